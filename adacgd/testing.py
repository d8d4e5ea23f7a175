"""Assertions for a user's own test-suite: each fails with the court's report, or with the bytes that do not add up.

    from adacgd.testing import assert_contractive, vectors

    def test_mine():
        assert_contractive(Mine(k=3), dim=(1, 2, 20), keys=2)

Constants are tried in double precision: call `jax.config.update("jax_enable_x64", True)` in `conftest.py`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd import wire
from adacgd.certify import certify
from adacgd.compressors.base import Compressor, Unbiased, as_key
from adacgd.estimators import Estimator
from adacgd.laws import ask, panel, told
from adacgd.mechanisms import ThreePoint


def assert_contractive(compressor: Any, dim: int | Sequence[int] = 20, keys: int = 1, *, workers: int = 4) -> None:
    """E|C(x) - x|^2 <= (1 - alpha)|x|^2 stands in each dimension, with each of `keys` keys, and the habits are kept.

    Raises AssertionError with the report of `certify`, TypeError for what is no `Compressor`.
    """
    _assert_stands("assert_contractive", compressor, Compressor, dim, keys, workers)


def assert_unbiased(compressor: Any, dim: int | Sequence[int] = 20, keys: int = 1, *, workers: int = 4) -> None:
    """E Q(x) = x and E|Q(x) - x|^2 <= omega |x|^2 stand; otherwise as `assert_contractive`."""
    _assert_stands("assert_unbiased", compressor, Unbiased, dim, keys, workers)


def assert_three_point(mechanism: Any, dim: int | Sequence[int] = 20, keys: int = 1, *, workers: int = 4) -> None:
    """E|C_{h,y}(x) - x|^2 <= (1 - A)|h - y|^2 + B|x - y|^2 stands; otherwise as `assert_contractive`."""
    _assert_stands("assert_three_point", mechanism, ThreePoint, dim, keys, workers)


def _assert_stands(name: str, target: Any, kind: type, dim: int | Sequence[int], keys: int, workers: int) -> None:
    if not isinstance(target, kind):
        raise TypeError(f"{name} takes a {kind.__name__}, got {type(target).__name__} {target!r}.")
    if isinstance(keys, bool) or not isinstance(keys, int) or keys < 1:
        raise ValueError(f"{name}(keys=...) is how many keys are tried, an integer of at least 1; got {keys!r}.")
    for d in _dimensions(name, dim):
        for key in range(keys):
            certificate = certify(target, dim=d, key=key, workers=workers)
            if not certificate.ok:
                raise AssertionError(f"with key {key}\n{certificate}")


def _dimensions(name: str, dim: int | Sequence[int]) -> Sequence[int]:
    found = [int(dim)] if isinstance(dim, int | np.integer) else list(dim)
    if not found:
        raise ValueError(f"{name}(dim=...) names no dimension; give one or several, such as (1, 2, 20).")
    return found


def assert_wire_exact(target: Any, dim: int | Sequence[int] = 20, key: Any = 0, *, workers: int = 4) -> None:
    """The bytes of a message are its claimed cost, header and padding aside, and decode to its value, bit for bit.

    For a compressor with a byte format, or a mechanism over such; over the court's panel, zero, NaN and infinity, in
    float32 and, with 64-bit mode, float64. Raises AssertionError that names input and numbers.
    """
    key = as_key(key)
    dtypes = [np.float32, np.float64] if jax.config.read("jax_enable_x64") else [np.float32]
    for d in _dimensions("assert_wire_exact", dim):
        rows = panel(key, d)
        broken, infinite = rows[5].copy(), rows[5].copy()
        broken[0], infinite[-1] = np.nan, -np.inf
        for dtype in dtypes:
            for x in [np.zeros(d), *rows, broken, infinite]:
                _assert_exact(target, key, jnp.asarray(x, dtype), workers)


def _assert_exact(target: Any, key: jax.Array, x: jax.Array, workers: int) -> None:
    private, shared = told(target, key, workers)
    h = jnp.roll(x, 1) / 2
    with_h: dict[str, Any] = {"h": h, "y": x / 4} if isinstance(target, ThreePoint | Estimator) else {}
    message = ask(target, key, (h, x / 4, x) if with_h else (x,), workers)
    blob = wire.encode(target, private, x, **with_h, **shared)
    width = 8 * x.dtype.itemsize
    claimed = width * int(message.cost.scalars) + int(message.cost.extra_bits)
    written = 8 * len(blob) - wire.header_bits(blob) - wire.padding_bits(blob)
    if claimed != written:
        raise AssertionError(f"{target!r} claims {claimed} bits and writes {written}, of x = {x} in {x.dtype}.")
    value = wire.decode(blob, h=np.asarray(h)) if with_h else wire.decode(blob)
    if not np.array_equal(value, np.asarray(message.value), equal_nan=True):
        raise AssertionError(f"{target!r} sends {message.value} and is decoded as {value}, of x = {x} in {x.dtype}.")


def vectors(dim: int, dtype: Any = np.float64, *, finite: bool = True) -> Any:
    """A hypothesis strategy for inputs of shape (dim,): any normal numbers, and vectors full of ties and zeros.

    finite: whether NaN and infinities are left out. Needs hypothesis, which the extra `adacgd[test]` installs.
    """
    try:
        from hypothesis import strategies as st
        from hypothesis.extra import numpy as arrays
    except ImportError:
        raise ImportError("adacgd.testing.vectors needs hypothesis: pip install 'adacgd[test]'.") from None
    kind = np.dtype(dtype)
    largest = float(np.sqrt(np.finfo(kind).max) / dim)  # so that |x|^2 is a number
    width = 8 * kind.itemsize
    bound = float(np.float32(largest)) if width <= 32 else largest
    plain = st.floats(-bound, bound, width=width, allow_subnormal=False)
    ties = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0])
    any_number = st.floats(width=width, allow_subnormal=False, allow_nan=True, allow_infinity=True)
    elements = [plain, ties] if finite else [plain, ties, any_number]
    return st.one_of([arrays.arrays(kind, dim, elements=e) for e in elements])
