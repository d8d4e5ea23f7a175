"""Dithering: a norm, signs, and levels drawn at random so that every coordinate is right on average (theory.md 1.2)."""

import abc
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.base import (
    Compressor,
    Message,
    Outcomes,
    Unbiased,
    brief,
    fetch,
    norm_of,
    product_outcomes,
    require_count,
    working,
)
from adacgd.compressors.codes import Format
from adacgd.compressors.dense_codes import MOST_LEVELS, Levels, LevelsElias, TernaryScale
from adacgd.compressors.fields import symbol_bits
from adacgd.compressors.quantisers import Quantised
from adacgd.compressors.sparsifiers import gamma_bits, gap_bits, require_coding
from adacgd.cost import Cost, index_bits
from adacgd.module import module, static

LEVEL_CODINGS = ("fixed", "elias")


def share(x: jax.Array, norm: jax.Array, levels: int) -> jax.Array:
    """levels * |x_i| / norm in [0, levels], (d,); 0 for zeros and where the norm is no number.

    Exact where the ratio is, and the same bits in every program: each entry has a divisor of its own, since a division
    by one number for all would become a product with its reciprocal. A power of two keeps the product in range.
    """
    v = jnp.abs(x)
    room = jnp.where(norm > 1, 2.0**-20, 2.0**20).astype(x.dtype)
    ratio = (v * (levels * room)) / jnp.where(v > 0, norm * room, 1)
    return jnp.where(norm == norm, jnp.minimum(ratio, levels), 0)


def drawn_norm(norm: jax.Array, x: jax.Array) -> jax.Array:
    """The norm as it is sent, in the precision of x; NaN for any norm that is not finite, so that nothing is hidden."""
    sent = norm.astype(x.dtype)
    return jnp.where(jnp.isfinite(sent), sent, jnp.nan).astype(x.dtype)


def up_or_down(key: jax.Array, ratio: jax.Array) -> jax.Array:
    """Round each at random to a neighbouring integer, right on average: (d,) int32."""
    low = jnp.floor(ratio)
    return (low + (jax.random.uniform(key, ratio.shape, ratio.dtype) < ratio - low)).astype(jnp.int32)


def require_levels(owner: str, levels: Any) -> None:
    """A count of levels that has a code. Raises ValueError."""
    require_count(owner, "levels", levels)
    if levels >= MOST_LEVELS:
        raise ValueError(f"{owner}(levels={levels}) has a code for at most {MOST_LEVELS - 1}.")


class Dithered(Quantised, Unbiased):
    """norm * sign(x_i) * level(|x_i| / norm), the level drawn between its two neighbours; the norm is sent.

    With `coding="elias"` only nonzero levels travel: their distances and codes in Elias gamma code, and their signs.
    """

    levels: int
    coding: str
    spacing: str = "linear"

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_levels(name, self.levels)
        require_coding(name, self.coding, LEVEL_CODINGS)

    @abc.abstractmethod
    def norm(self, x: jax.Array) -> jax.Array:
        """() of (d,): no entry is larger."""

    def codes(self, key: jax.Array, x: jax.Array, norm: jax.Array) -> jax.Array:
        """(d,) int32 in 0..levels."""
        return up_or_down(key, share(x, norm, self.levels))

    def send(self, key: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        """Norm, signs, codes."""
        w = working(x)
        norm = drawn_norm(self.norm(w), x)
        return norm[None], x < 0, self.codes(key, w, norm.astype(w.dtype))

    def outcomes(self, x: np.ndarray) -> Outcomes | None:
        """Each entry on one of its two neighbouring levels."""
        if self.spacing != "linear":
            return None
        norm = float(self.norm(jnp.asarray(x)))
        ratio = self.levels * np.abs(x) / norm
        low = np.minimum(np.floor(ratio), self.levels - 1)
        value = lambda level: np.sign(x) * norm * level / self.levels
        return product_outcomes(ratio - low, value(low), value(low + 1))

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """What the receiver makes of x."""
        norm, _, codes = numbers = self.send(key, x)
        value = Levels(self.levels, self.spacing).rebuild(jnp, numbers, x.size, x.dtype)
        if self.coding == "fixed":
            return Message(value, self.cost(x.size, 8 * x.dtype.itemsize))
        sent = codes > 0
        words = jnp.sum(jnp.where(sent, 1 + gamma_bits(codes), 0), dtype=jnp.int32)
        cost = Cost(1, index_bits(x.size + 1) + gap_bits(sent) + words)
        return Message(jnp.where(sent | (norm != norm), value, 0), cost)

    def cost(self, dim: int, float_width: int) -> Cost:
        """One scalar, d signs and d codes of ceil(log2(levels + 1)) bits."""
        return Cost(1, dim * (1 + index_bits(self.levels + 1)))

    def format(self, dim: int, float_width: int) -> Format:
        """Fixed width or Elias."""
        return (Levels if self.coding == "fixed" else LevelsElias)(self.levels, self.spacing)

    def numbers(self, key: jax.Array, x: jax.Array, **shared: Any) -> tuple[np.ndarray, ...]:
        """All signs and codes, or those that are not zero and where they are."""
        norm, negative, codes = fetch(*self.send(key, x))
        if self.coding == "fixed":
            return norm, negative, codes
        indices = np.flatnonzero(codes)
        return norm, indices, negative[indices], codes[indices]


@module
class QSGD(Dithered):
    """Standard dithering in the 2-norm with s levels (Alistarh et al., QSGD).

    omega = sqrt(d)/s - 1 if s <= sqrt(d)/2 or s = 1, else at most d/(4 s^2) (theory.md 1.2; sharper than the paper's
    min(d/s^2, sqrt(d)/s), which is `omega_literature`). Attained by a flat x in the first case; in the second where all
    s |x_i|/|x| can lie half way between levels: where 4 s^2 - d is a multiple of 8.
    """

    levels: int = static()
    coding: str = static(default="fixed")
    __repr__ = brief

    def norm(self, x: jax.Array) -> jax.Array:
        """|x|."""
        return norm_of(x)

    def _flat(self, dim: int) -> bool:
        return self.levels <= math.sqrt(dim) / 2 or self.levels == 1 or dim == 1

    def omega(self, dim: int) -> float:
        """The concave envelope of frac(1 - frac) at the mean of (s x_i/|x|)^2; of one coordinate nothing is lost."""
        if dim == 1:
            return 0.0
        return math.sqrt(dim) / self.levels - 1 if self._flat(dim) else dim / (4 * self.levels**2)

    def omega_literature(self, dim: int) -> float:
        """min(d/s^2, sqrt(d)/s)."""
        return min(dim / self.levels**2, math.sqrt(dim) / self.levels)

    def worst(self, dim: int) -> np.ndarray:
        """Flat, or half way between levels: (k_i + 1/2) with k_i(k_i + 1)/2 triangular, summing to (4s^2 - d)/8."""
        x, left = np.full(dim, 0.5), 0 if self._flat(dim) else (4 * self.levels**2 - dim) // 8
        for i in range(dim):
            k = (math.isqrt(8 * left + 1) - 1) // 2  # the largest triangular number that is left
            x[i] = k + 0.5
            left -= k * (k + 1) // 2
        return x

    def attained(self, dim: int) -> bool:
        """In the first case, and where the half integers of `worst` have the norm s."""
        return self._flat(dim) or math.isclose(float(np.sum(self.worst(dim) ** 2)), self.levels**2)


@module
class MaxDithering(Dithered):
    """Standard dithering in the maximum norm with s levels: fixed point numbers relative to the largest entry.

    omega = (sqrt(s^2 + d - 1) - s)/(2 s) exactly, in every dimension, attained by one entry 1 and the others
    1/(sqrt(s^2 + d - 1) + s) (theory.md 1.2; the norm is a parameter of Alistarh et al., QSGD).
    """

    levels: int = static()
    coding: str = static(default="fixed")
    __repr__ = brief

    def norm(self, x: jax.Array) -> jax.Array:
        """max |x_i|."""
        return jnp.max(jnp.abs(x))

    def omega(self, dim: int) -> float:
        """The largest entry is exact; the others err most at one value."""
        return max_omega(self.levels, dim)

    def worst(self, dim: int) -> np.ndarray:
        """One entry 1, the others alike."""
        return max_worst(self.levels, dim)

    def attained(self, dim: int) -> bool:
        """Always."""
        return True


def max_omega(levels: int, dim: int) -> float:
    """(sqrt(s^2 + d - 1) - s)/(2 s), without cancellation."""
    return (dim - 1) / (2 * levels * (math.sqrt(levels**2 + dim - 1) + levels))


def max_worst(levels: int, dim: int) -> np.ndarray:
    """What loses most with so many levels relative to the largest entry."""
    x = np.full(dim, 1 / (math.sqrt(levels**2 + dim - 1) + levels))
    x[0] = 1
    return x


@module
class MaxRounding(Quantised, Compressor):
    """The nearest of s levels of the largest entry, without chance: the quantiser of LAQ (Sun et al.), with a level 0.

    An entry errs by at most max|x|/(2 s), hence alpha = 4 s^2/(4 s^2 + d - 1), in every dimension, attained by one
    entry 1 and the others 1/(2 s), which become 0 (derived: with the largest entry 1, an entry a errs by a itself up to
    1/(2 s) and by no more beyond, so that e^2/a^2 and |x|^2 are both at their worst there).
    """

    levels: int = static()
    __repr__ = brief

    def __post_init__(self) -> None:
        require_levels("MaxRounding", self.levels)

    def send(self, key: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        """Norm, signs, codes; a half goes to the even level."""
        w = working(x)
        norm = drawn_norm(jnp.max(jnp.abs(w)), x)
        return norm[None], x < 0, jnp.round(share(w, norm.astype(w.dtype), self.levels)).astype(jnp.int32)

    def cost(self, dim: int, float_width: int) -> Cost:
        """One scalar, d signs and d codes of ceil(log2(levels + 1)) bits."""
        return Cost(1, dim * (1 + index_bits(self.levels + 1)))

    def alpha(self, dim: int) -> float:
        """4 s^2/(4 s^2 + d - 1)."""
        return 4 * self.levels**2 / (4 * self.levels**2 + dim - 1)

    def worst(self, dim: int) -> np.ndarray:
        """One entry 1, the others half a level."""
        x = np.full(dim, 0.5 / self.levels)
        x[0] = 1
        return x

    def attained(self, dim: int) -> bool:
        """Always."""
        return True

    def format(self, dim: int, float_width: int) -> Format:
        """Fixed width."""
        return Levels(self.levels)


@module
class TernGrad(Quantised, Unbiased):
    """max|x| times sign or zero, drawn: dithering in the maximum norm with one level (Wen et al., TernGrad, unclipped).

    omega = (sqrt(d) - 1)/2 exactly, in every dimension, attained by one entry 1 and the others 1/(sqrt(d) + 1)
    (theory.md 1.2). Three symbols: ceil(d log2 3) bits.
    """

    def send(self, key: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        """The maximum, and a symbol each."""
        w = working(x)
        norm = drawn_norm(jnp.max(jnp.abs(w)), x)
        code = up_or_down(key, share(w, norm.astype(w.dtype), 1))
        return norm[None], jnp.where(x < 0, 2 * code, code).astype(jnp.uint8)

    def cost(self, dim: int, float_width: int) -> Cost:
        """One scalar and d symbols."""
        return Cost(1, symbol_bits(dim, 3))

    def omega(self, dim: int) -> float:
        """(sqrt(d) - 1)/2."""
        return max_omega(1, dim)

    def worst(self, dim: int) -> np.ndarray:
        """One entry 1, the others alike."""
        return max_worst(1, dim)

    def attained(self, dim: int) -> bool:
        """Always."""
        return True

    def format(self, dim: int, float_width: int) -> Format:
        """Scale and three symbols."""
        return TernaryScale()


@module
class NaturalDithering(Dithered):
    """Dithering in the 2-norm with levels 1, 1/2, ..., 2^(1-s), 0 (Horvath et al., Natural compression).

    With q = sqrt(d) 2^(1-s): omega = q - 1 if q >= 9/4 or s = 1, attained by a flat x; else at most 1/8 + 2 q^2/9,
    which need not be attained (theory.md 1.2). `omega_literature`: 1/8 + q min(1, q), up to three times larger.
    """

    levels: int = static()
    coding: str = static(default="fixed")
    spacing = "powers"
    __repr__ = brief

    def norm(self, x: jax.Array) -> jax.Array:
        """|x|."""
        return norm_of(x)

    def codes(self, key: jax.Array, x: jax.Array, norm: jax.Array) -> jax.Array:
        """Below the last power of two against 0, above it between powers: the chance is the mantissa."""
        u, s = share(x, norm, 1), self.levels
        info = jnp.finfo(u.dtype)
        word = jnp.uint32 if info.bits == 32 else jnp.uint64
        bits, one = jax.lax.bitcast_convert_type(u, word), word((1 << (info.nexp - 1)) - 1)
        exponent = (bits >> info.nmant).astype(jnp.int32) - jnp.int32(one)
        mantissa = jax.lax.bitcast_convert_type((bits & word((1 << info.nmant) - 1)) | (one << info.nmant), u.dtype) - 1
        finest = 2.0 ** min(s - 1, -int(info.minexp))
        low = u * finest < 1
        up = jax.random.uniform(key, u.shape, u.dtype) < jnp.where(low, u * finest, mantissa)
        return jnp.where(low, 0, s + exponent) + up

    def _ratio(self, dim: int) -> float:
        return math.sqrt(dim) * 2.0 ** (1 - self.levels)

    def omega(self, dim: int) -> float:
        """q - 1 or 1/8 + 2 q^2/9; of one coordinate nothing is lost."""
        q = self._ratio(dim)
        if dim == 1:
            return 0.0
        return q - 1 if self.attained(dim) else 1 / 8 + 2 * q**2 / 9

    def omega_literature(self, dim: int) -> float:
        """1/8 + q min(1, q)."""
        q = self._ratio(dim)
        return 1 / 8 + q * min(1, q)

    def worst(self, dim: int) -> np.ndarray:
        """Flat."""
        return np.ones(dim)

    def attained(self, dim: int) -> bool:
        """Where q >= 9/4, with one level, and in one dimension."""
        return self._ratio(dim) >= 9 / 4 or self.levels == 1 or dim == 1
