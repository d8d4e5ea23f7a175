"""What every test stands on: double precision, no silent broadcasting, and the project's shared material if at hand."""

from pathlib import Path

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real LIBSVM files beside a developer's checkout; a user's clone has none."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the real LIBSVM files in ../shared/data, which this clone has not")
    return folder
