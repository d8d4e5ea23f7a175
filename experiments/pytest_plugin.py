"""A pytest plugin: the fixture `court` and the option `--court-keys`. It imports nothing heavy until a test asks."""

from collections.abc import Callable
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--court-keys N`."""
    parser.getgroup("adacgd").addoption(
        "--court-keys", type=int, default=1, metavar="N", help="random keys that the fixture `court` tries (default 1)"
    )


@pytest.fixture
def court(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`court(target, dim=20)`: what a compressor or three point map claims stands, with every one of N keys."""
    keys = request.config.getoption("--court-keys")

    def stands(target: Any, dim: Any = 20, **options: Any) -> None:
        from adacgd import testing
        from adacgd.compressors.base import Compressor, Unbiased

        if isinstance(target, Compressor):
            testing.assert_contractive(target, dim, keys, **options)
        elif isinstance(target, Unbiased):
            testing.assert_unbiased(target, dim, keys, **options)
        else:
            testing.assert_three_point(target, dim, keys, **options)

    return stands
