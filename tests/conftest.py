"""What every test stands on: double precision, no silent broadcasting, and the project's shared material if at hand."""

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
os.environ["ADACGD_CACHE"] = "off"  # a test of the command line leaves no programs behind

ROOT = Path(__file__).resolve().parent.parent
COMPILED = "/jax/core/compile/backend_compile_duration"
MOST_PROGRAMS = 600  # each holds memory maps, of which a process may have some 65,000: beyond, the compiler crashes

_programs = [0]


def _count(event: str, duration: float, **facts: object) -> None:
    _programs[0] += event == COMPILED


jax.monitoring.register_event_duration_secs_listener(_count)


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """Compiled programs are dropped between tests before they are too many for one process."""
    yield
    if _programs[0] > MOST_PROGRAMS:
        _programs[0] = 0
        jax.clear_caches()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real LIBSVM files beside a developer's checkout; a user's clone has none."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the real LIBSVM files in ../shared/data, which this clone has not")
    return folder
