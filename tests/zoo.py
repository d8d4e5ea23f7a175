"""One of each compressor, inputs that try them, and comparison bit by bit."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adacgd import wire
from adacgd.compressors import (
    QSGD,
    AdaptiveRandom,
    BiasedRandom,
    BlockTopK,
    Composed,
    ContractivePermK,
    ContractiveRandK,
    FixedPoint,
    FloatCast,
    HardThreshold,
    Identity,
    Induced,
    LowRank,
    MaxDithering,
    MaxRounding,
    MixK,
    Natural,
    NaturalDithering,
    OnSupport,
    Participation,
    PermK,
    PowerSGD,
    RandK,
    RelativeThreshold,
    Residual,
    Shrunk,
    Sign,
    TernGrad,
    TopK,
)

WORKERS = 4
NO_CONSTANT = {"hard threshold", "float16", "bfloat16", "float8", "fixed point"}


def zoo(dim):
    """One of each that exists in this dimension, by name."""
    k, half = max(1, dim // 3), dim // 2
    found = {
        "identity": Identity(),
        "top": TopK(k),
        "top, rank": TopK(k, "rank"),
        "top, gaps": TopK(k, "gaps"),
        "rand": RandK(k),
        "rand, shared seed": RandK(k, shared_seed=True),
        "contractive rand": ContractiveRandK(k, coding="gaps"),
        "contractive rand, shared seed": ContractiveRandK(k, shared_seed=True),
        "hard threshold": HardThreshold(0.5),
        "threshold of max": RelativeThreshold(0.5),
        "threshold of max, tau 1": RelativeThreshold(1.0),
        "threshold of norm": RelativeThreshold(0.5, "l2", "gaps"),
        "threshold of norm, tau 1": RelativeThreshold(1.0, "l2"),
        "adaptive random": AdaptiveRandom(),
        "biased random": BiasedRandom(np.linspace(0.5, 1, dim)),
        "biased random, one p": BiasedRandom(0.6, "gaps"),
        "sign": Sign(),
        "sign with zero": Sign("zero"),
        "natural": Natural(),
        "float16": FloatCast(),
        "bfloat16": FloatCast("bfloat16"),
        "float8": FloatCast("float8_e4m3"),
        "fixed point": FixedPoint(16, 8),
        "qsgd 1": QSGD(1),
        "qsgd 2": QSGD(2),
        "qsgd 3, elias": QSGD(3, "elias"),
        "qsgd 5": QSGD(5),
        "max dithering": MaxDithering(4),
        "max dithering, elias": MaxDithering(3, "elias"),
        "max rounding": MaxRounding(3),
        "terngrad": TernGrad(),
        "natural dithering 1": NaturalDithering(1),
        "natural dithering 3": NaturalDithering(3, "elias"),
        "perm": PermK(),
        "contractive perm": ContractivePermK(),
        "shrunk rand": Shrunk(RandK(k)),
        "shrunk perm": Shrunk(PermK()),
        "shrunk qsgd": Shrunk(QSGD(1)),
        "induced": Induced(TopK(k), RandK(k)),
        "induced, signs": Induced(Sign(), QSGD(2)),
        "residual": Residual(TopK(k), ContractiveRandK(k)),
        "residual, top twice": Residual(TopK(k), TopK(1)),
        "residual, shrunk": Residual(TopK(k), Shrunk(MaxDithering(2))),
        "on support, rand": OnSupport(k, RandK(1)),
        "on support, natural": OnSupport(k, Natural()),
        "on support, unscaled": OnSupport(k, Natural(), scaled=False, coding="gaps"),
        "on support, sign": OnSupport(k, Sign()),
        "composed": Composed(PermK(), RandK(k)),
        "composed, natural": Composed(Natural(), RandK(k, shared_seed=True)),
        "participation": Participation(TopK(k), 0.7),
        "participation, perm": Participation(ContractivePermK(), 0.5),
    }
    if dim > 1:
        found["mix"] = MixK(k, 1)
        found["mix, shared seed"] = MixK(1, k, shared_seed=True)
        found["blocks"] = BlockTopK((max(1, half // 2), 1), (half, dim - half))
    if dim >= 12:
        found["low rank"] = LowRank(1)
        found["power"] = PowerSGD(1)
    if dim == 100:
        found["low rank 2"] = LowRank(2, (20, 5))
    return found


def each(*dims):
    """Parametrise over the zoo in these dimensions."""
    rows = [(dim, name) for dim in dims for name in zoo(dim)]
    return pytest.mark.parametrize(("dim", "name"), rows, ids=[f"{name} {dim}" for dim, name in rows])


def shared(target, key):
    """The keywords of those that ask for them: worker 1 of 4."""
    if not target.shares_randomness:
        return {}
    return {"common": jax.random.fold_in(key, 5), "round": 0, "worker": 1, "workers": WORKERS}


def send(target, key, x):
    return target(key, x, **shared(target, key))


def normal(seed, *shape, dtype=np.float64):
    return np.random.RandomState(seed).normal(size=shape).astype(dtype)


def special(dim, dtype):
    """Inputs that have gone wrong somewhere: zero, ties, one entry, signs of zero, tiny, NaN, infinity."""
    x, ties, signed = normal(4, dim), np.sign(normal(5, dim)), np.where(np.arange(dim) % 2, 0.0, -0.0)
    broken, infinite, one = x.copy(), x.copy(), np.zeros(dim)
    broken[0], infinite[-1], one[-1] = math.nan, -math.inf, 3.0
    rows = [np.zeros(dim), x, ties, signed, one, 1e-30 * x, broken, infinite]
    return [jnp.asarray(row.astype(dtype)) for row in rows]


def bits_of(a):
    """The bits, with one NaN for all."""
    a = np.asarray(a)
    a = np.where(np.isnan(a), np.nan, a)
    return a.view(f"u{a.dtype.itemsize}")


def hard(dim, dtype):
    """`special`, and subnormal numbers."""
    tiny = np.random.RandomState(3).uniform(-2, 2, dim) * float(np.finfo(dtype).tiny)
    return [*special(dim, np.dtype(dtype)), jnp.asarray(tiny.astype(dtype))]


def same(decoded, value):
    """Bit for bit, NaN as NaN."""
    assert isinstance(decoded, np.ndarray) and decoded.dtype == value.dtype
    np.testing.assert_array_equal(bits_of(decoded), bits_of(value))


def paid(blob):
    """The bits of a blob that are no header and no padding, by its length alone."""
    padding = wire.padding_bits(blob)
    assert 0 <= padding < 8
    return 8 * len(blob) - wire.header_bits(blob) - padding


def price(message, dtype):
    return 8 * np.dtype(dtype).itemsize * int(message.cost.scalars) + int(message.cost.extra_bits)
