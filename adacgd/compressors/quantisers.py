"""Compressors that send few bits of every coordinate: signs, powers of two, narrow numbers (theory.md 1.2)."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors import dense_codes
from adacgd.compressors.base import (
    Coded,
    Compressor,
    Message,
    Outcomes,
    Unbiased,
    brief,
    fetch,
    no_constant,
    product_outcomes,
    total_of,
    working,
)
from adacgd.compressors.codes import Format
from adacgd.compressors.dense_codes import SignScale, TernaryScale
from adacgd.compressors.fields import symbol_bits
from adacgd.cost import Cost
from adacgd.module import module, static


class Quantised(Coded):
    """A compressor that is defined by what it sends: its value is what the receiver rebuilds of it."""

    @abc.abstractmethod
    def send(self, key: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        """The numbers of the message, on the device."""

    @abc.abstractmethod
    def cost(self, dim: int, float_width: int) -> Cost:
        """The price of every message."""

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """What the receiver makes of x."""
        width = 8 * x.dtype.itemsize
        value = self.format(x.size, width).rebuild(jnp, self.send(key, x), x.size, x.dtype)
        return Message(value, self.cost(x.size, width))

    def numbers(self, key: jax.Array, x: jax.Array, **shared: Any) -> tuple[np.ndarray, ...]:
        """Those of `send`."""
        return fetch(*self.send(key, x))


@module
class Sign(Quantised, Compressor):
    """Scaled sign, (|x|_1 / d) sign(x), with either reading of the sign of zero: alpha = 1/d.

    `zero="plus"`: sign(0) = +1, one bit an entry. Error exactly 1 - |x|_1^2 / (d |x|^2), attained by a one-hot x.
    `zero="zero"`: sign(0) = 0, three symbols, ceil(d log2 3) bits. Error exactly 1 - |x|_1^2 (2 - nnz/d) / (d |x|^2),
    a supremum: one entry, and others that are tiny. In every dimension (theory.md 1.2; Bernstein et al., signSGD;
    Karimireddy et al., Error feedback fixes signSGD).
    """

    zero: str = static(default="plus")
    nonexpansive = True
    __repr__ = brief

    def __post_init__(self) -> None:
        if self.zero not in ("plus", "zero"):
            raise ValueError(f"Sign(zero=...) must be 'plus' or 'zero', got {self.zero!r}.")

    def send(self, key: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        """The scale and the signs."""
        scale = (total_of(jnp.abs(working(x))) * (1 / x.size)).astype(x.dtype)[None]
        if self.zero == "plus":
            return scale, x < 0
        return scale, jnp.where(x > 0, 1, jnp.where(x < 0, 2, 0)).astype(jnp.uint8)

    def cost(self, dim: int, float_width: int) -> Cost:
        """One scalar, and d bits or ceil(d log2 3)."""
        return Cost(1, dim if self.zero == "plus" else symbol_bits(dim, 3))

    def alpha(self, dim: int) -> float:
        """1/d."""
        return 1 / dim

    def worst(self, dim: int) -> np.ndarray:
        """One-hot; where zeros are seen, all but."""
        return np.maximum(np.eye(dim)[0], 0.0 if self.zero == "plus" else 1e-9)

    def attained(self, dim: int) -> bool:
        """Always."""
        return True

    def format(self, dim: int, float_width: int) -> Format:
        """Scale and signs, of two kinds or three."""
        return SignScale() if self.zero == "plus" else TernaryScale()


@module
class Natural(Quantised, Unbiased):
    """Natural compression: round at random to one of the two neighbouring powers of two; omega = 1/8.

    Attained in every dimension where all |x_i| = (4/3) 2^k (theory.md 1.2; Horvath et al., Natural compression).
    Sign and exponent travel: 9 bits an entry in float32, 12 in float64, 6 in float16. The chance to round up is the
    mantissa itself, so the mean is exact. C(0) = 0; subnormal entries become 0, NaN becomes an infinity, and the
    largest binade may round up to one: the bound is meant for normal numbers below it.
    """

    def send(self, key: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        """The sign and exponent of each entry, rounded."""
        if x.dtype == jnp.bfloat16:
            raise TypeError("Natural has formats for float16, float32 and float64, got x in bfloat16; cast it first.")
        info = jnp.finfo(x.dtype)
        word = {16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}[info.bits]
        bits = jax.lax.bitcast_convert_type(x, word)
        below, top = word((1 << info.nmant) - 1), (1 << info.nexp) - 1
        upper = bits >> info.nmant
        exponent = upper & word(top)
        up = (exponent < top) & ((jax.random.bits(key, x.shape, word) & below) < (bits & below))
        return (jnp.where(exponent == 0, 0, upper + up).astype(jnp.uint16),)

    def cost(self, dim: int, float_width: int) -> Cost:
        """Sign and exponent."""
        return Cost(0, dim * {16: 6, 32: 9, 64: 12}[float_width])

    def outcomes(self, x: np.ndarray) -> Outcomes | None:
        """Each entry at one of its two neighbouring powers of two."""
        mantissa, exponent = np.frexp(np.abs(x))  # in [1/2, 1)
        low = np.sign(x) * np.ldexp(0.5, exponent)
        return product_outcomes(np.where(x == 0, 0, 2 * mantissa - 1), low, 2 * low)

    def omega(self, dim: int) -> float:
        """1/8: with x = m 2^e the relative variance is (m-1)(2-m)/m^2."""
        return 1 / 8

    def worst(self, dim: int) -> np.ndarray:
        """All 4/3."""
        return np.full(dim, 4 / 3)

    def attained(self, dim: int) -> bool:
        """Always."""
        return True

    def format(self, dim: int, float_width: int) -> Format:
        """The upper bits."""
        return dense_codes.Natural(float_width)


KINDS = {"float16": (5, 10), "bfloat16": (8, 7), "float8_e5m2": (5, 2), "float8_e4m3": (4, 3), "float8_e3m4": (3, 4)}


@module
class FloatCast(Quantised, Compressor):
    """Each entry rounded to a narrower float, ties to even: `"float16"`, `"bfloat16"`, `"float8_e5m2"`, ...

    With m bits of mantissa and u = 2^-(m+1), an entry in [smallest, largest] errs by at most u/(1+u) of itself,
    attained at 1 + u: 1 - alpha = (u/(1+u))^2 there, `alpha_in_range`. There is no uniform alpha: above `largest` an
    entry becomes infinite, and below `smallest` the error is absolute, so `alpha` refuses. The names are the IEEE-like
    formats of ml_dtypes; scale first what does not fit.
    """

    kind: str = static(default="float16")

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"FloatCast(kind=...) must be one of {', '.join(KINDS)}; got {self.kind!r}.")

    @property
    def smallest(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (2 - 2 ** (KINDS[self.kind][0] - 1))

    @property
    def largest(self) -> float:
        """The largest finite number."""
        exponent, mantissa = KINDS[self.kind]
        return (2 - 2.0**-mantissa) * 2.0 ** (2 ** (exponent - 1) - 1)

    def send(self, key: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        """The bits of each, rounded."""
        w = working(x)
        exponent, mantissa = KINDS[self.kind]
        info, word = jnp.finfo(w.dtype), jnp.uint32 if w.dtype.itemsize == 4 else jnp.uint64
        drop, shift = info.nmant - mantissa, (1 << (info.nexp - 1)) - (1 << (exponent - 1))  # of mantissa, of exponent
        v = jnp.abs(w)
        bits = jax.lax.bitcast_convert_type(v, word)
        rounded = (bits + ((bits >> drop) & 1) + word((1 << (drop - 1)) - 1)) >> drop
        normal = rounded - jnp.minimum(rounded, word(shift << mantissa))
        finest = min(2.0**mantissa / self.smallest, float(info.max) / 4)
        subnormal = jnp.round(jnp.minimum(v, self.smallest) * finest).astype(word)
        infinite = word(((1 << exponent) - 1) << mantissa)
        code = jnp.where(v < self.smallest, subnormal, jnp.minimum(normal, infinite))
        code = jnp.where(w == w, code, infinite | word(1 << (mantissa - 1)))
        return ((code | jnp.where(w < 0, word(1 << (exponent + mantissa)), 0)).astype(jnp.uint16),)

    def cost(self, dim: int, float_width: int) -> Cost:
        """All bits of the narrow float."""
        return Cost(0, dim * (1 + sum(KINDS[self.kind])))

    def alpha(self, dim: int) -> float:
        """Refused: there is none for all x. Raises ValueError."""
        no_constant(self, f"only entries in [{self.smallest:g}, {self.largest:g}] have alpha_in_range(dim)")

    def alpha_in_range(self, dim: int) -> float:
        """1 - (u/(1+u))^2, for x whose entries are 0 or lie in [smallest, largest] in magnitude."""
        u = 2.0 ** -(KINDS[self.kind][1] + 1)
        return 1 - (u / (1 + u)) ** 2

    def worst(self, dim: int) -> np.ndarray:
        """All 1 + u, half way between two numbers: attains `alpha_in_range`."""
        return np.full(dim, 1 + 2.0 ** -(KINDS[self.kind][1] + 1))

    def format(self, dim: int, float_width: int) -> Format:
        """The bits."""
        return dense_codes.FloatCast(*KINDS[self.kind])


@module
class FixedPoint(Quantised, Compressor):
    """Each entry rounded to a whole multiple of 2^-fraction, ties to even, in `width` bits: an absolute error only.

    |C(x) - x|^2 <= d 2^(-2 fraction) / 4 while |x_i| <= `largest`; larger ones become +-largest, NaN and infinity NaN.
    No alpha: an x below half a step loses everything, so `alpha` refuses. Fixed point relative to the largest entry,
    rounded at random, is `MaxDithering`, which is unbiased with a constant.
    """

    width: int = static(default=16)
    fraction: int = static(default=8)

    def __post_init__(self) -> None:
        dense_codes.FixedPoint(self.width, self.fraction)

    @property
    def largest(self) -> float:
        """The largest magnitude that there is a code for."""
        return (2.0 ** (self.width - 1) - 1) * 2.0**-self.fraction

    def send(self, key: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        """The code of each in two's complement."""
        w, most = working(x), (1 << (self.width - 1)) - 1
        steps = jnp.clip(jnp.round(w * 2.0**self.fraction), -most, most)
        code = jnp.where(jnp.isfinite(w), steps, 0).astype(jnp.int32)
        code = jnp.where(jnp.isfinite(w), code, -most - 1)
        return ((code & ((1 << self.width) - 1)).astype(jnp.uint32),)

    def cost(self, dim: int, float_width: int) -> Cost:
        """`width` bits each."""
        return Cost(0, dim * self.width)

    def alpha(self, dim: int) -> float:
        """Refused: there is none. Raises ValueError."""
        no_constant(self, "an x below half a step loses everything; error_bound(dim) is its absolute bound")

    def error_bound(self, dim: int) -> float:
        """d 2^(-2 fraction) / 4 for x within `largest`: half a step each."""
        return dim * 4.0**-self.fraction / 4

    def worst(self, dim: int) -> np.ndarray:
        """All half a step, which rounds to 0: everything is lost."""
        return np.full(dim, 2.0 ** -(self.fraction + 1))

    def format(self, dim: int, float_width: int) -> Format:
        """The codes."""
        return dense_codes.FixedPoint(self.width, self.fraction)
