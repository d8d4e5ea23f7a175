"""Formats in which every coordinate, or every entry of a factor, has a code of its own.

NumPy and the standard library only, as in `codes`.
"""

import dataclasses
from typing import Any

import numpy as np

from adacgd.compressors.bitstream import bits_for
from adacgd.compressors.codes import Format, plus, scatter, times
from adacgd.compressors.fields import EliasGamma, Field, Floats, Symbols, Uints, VariableSubset

MOST_LEVELS = 1 << 16


def _signed(xp: Any, negative: Any, magnitude: Any) -> Any:
    return xp.where(xp.asarray(negative) != 0, -magnitude, magnitude)


@dataclasses.dataclass(frozen=True)
class SignScale(Format):
    """One scale with a sign each: (scale (1,), negative (dim,) bits). A bit an entry, no zero."""

    code = 6

    def fields(self, dim: int) -> tuple[Field, ...]:
        """Scale, signs."""
        return Floats(1), Uints(dim, 1)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """±scale."""
        return _signed(xp, numbers[1], numbers[0][0])


@dataclasses.dataclass(frozen=True)
class TernaryScale(Format):
    """One scale with a sign or zero each: (scale (1,), symbols (dim,)), 0 zero, 1 +, 2 -; ceil(d log2 3) bits."""

    code = 7

    def fields(self, dim: int) -> tuple[Field, ...]:
        """Scale, symbols."""
        return Floats(1), Symbols(dim, 3)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """±scale or 0; all NaN where the scale is, so that it is seen."""
        scale, symbols = numbers[0][0], xp.asarray(numbers[1])
        zero = xp.where(scale == scale, xp.zeros_like(scale), scale)
        return xp.where(symbols == 0, zero, xp.where(symbols == 2, -scale, scale))


@dataclasses.dataclass(frozen=True)
class Levels(Format):
    """Norm, signs and level codes of fixed width: (norm (1,), negative (dim,), codes (dim,) in 0..levels).

    spacing: `"linear"` (code / levels, QSGD) or `"powers"` (0 and 2^(code - levels), natural dithering).
    """

    levels: int
    spacing: str = "linear"
    code = 8

    def __post_init__(self) -> None:
        check_levels(self.levels, self.spacing)

    def fields(self, dim: int) -> tuple[Field, ...]:
        """Norm, signs, codes."""
        return Floats(1), Uints(dim, 1), Uints(dim, bits_for(self.levels + 1), self.levels + 1)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """±norm * the part that the code stands for."""
        norm, negative, codes = numbers
        return _signed(xp, negative, times(xp, norm[0], level_parts(xp, codes, self.levels, self.spacing, dtype)))


def check_levels(levels: int, spacing: str) -> None:
    """Raise ValueError where there are no such levels."""
    if not 1 <= levels < MOST_LEVELS:
        raise ValueError(f"Levels(levels=...) must lie in 1..{MOST_LEVELS - 1}, got {levels}.")
    if spacing not in ("linear", "powers"):
        raise ValueError(f"Levels(spacing=...) must be 'linear' or 'powers', got {spacing!r}.")


def level_parts(xp: Any, codes: Any, levels: int, spacing: str, dtype: Any) -> Any:
    """The parts of the norm that codes in 0..levels stand for, each rounded once to dtype.

    Under JAX looked up in a table; a receiver with few codes need not make one.
    """
    if xp is not np:
        return xp.asarray(level_parts(np, np.arange(levels + 1), levels, spacing, dtype))[codes]
    codes = np.asarray(codes).astype(np.int64)
    parts = codes / levels if spacing == "linear" else np.where(codes, np.ldexp(1.0, codes - levels), 0.0)
    with np.errstate(under="ignore"):
        return parts.astype(dtype)


@dataclasses.dataclass(frozen=True)
class LevelsElias(Format):
    """As `Levels`, but only entries that are not zero, in Elias gamma code.

    (norm (1,), indices of those entries ascending, negative (m,), codes (m,) in 1..levels).
    """

    levels: int
    spacing: str = "linear"
    code = 9

    def __post_init__(self) -> None:
        check_levels(self.levels, self.spacing)

    def fields(self, dim: int) -> tuple[Field, ...]:
        """Norm, how many and which, signs, codes."""
        return Floats(1), VariableSubset(dim, "gaps"), Uints(None, 1), EliasGamma(None, self.levels)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """±norm * table[code], +0 elsewhere; NaN everywhere where the norm is."""
        norm, indices, negative, codes = numbers
        parts = level_parts(xp, codes, self.levels, self.spacing, dtype)
        values = _signed(xp, negative, times(xp, norm[0], parts))
        out = scatter(xp, indices, values, dim, dtype)
        return xp.where(norm[0] == norm[0], out, norm[0])


_EXPONENT = {16: 5, 32: 8, 64: 11}  # bits of the exponent of IEEE numbers


@dataclasses.dataclass(frozen=True)
class Natural(Format):
    """Sign and exponent of each entry, a power of two or 0: (their bits (dim,)); 6, 9 or 12 bits by the float width."""

    float_width: int
    code = 10

    def __post_init__(self) -> None:
        if self.float_width not in _EXPONENT:
            raise ValueError(f"Natural(float_width=...) must be 16, 32 or 64, got {self.float_width}.")

    def check(self, dim: int, float_width: int) -> None:
        """The width of the message."""
        if float_width != self.float_width:
            raise ValueError(f"Natural({self.float_width}) in a message of float width {float_width}.")

    def fields(self, dim: int) -> tuple[Field, ...]:
        """The upper bits."""
        return (Uints(dim, 1 + _EXPONENT[self.float_width]),)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """The bits with a mantissa of zeros."""
        shift = self.float_width - 1 - _EXPONENT[self.float_width]
        kind = np.dtype(f"u{self.float_width // 8}")
        return (xp.asarray(numbers[0]).astype(kind) << kind.type(shift)).view(dtype)


@dataclasses.dataclass(frozen=True)
class FloatCast(Format):
    """Narrow IEEE-like floats, sign, exponent, mantissa: (their bits (dim,)). (5, 10) is float16, (8, 7) bfloat16."""

    exponent: int
    mantissa: int
    code = 11

    def __post_init__(self) -> None:
        if not (2 <= self.exponent <= 8 and 1 <= self.mantissa and self.exponent + self.mantissa <= 15):
            raise ValueError(
                f"FloatCast({self.exponent}, {self.mantissa}): 2..8 exponent bits, at least 1 of mantissa, at most 16 "
                "with the sign."
            )

    def fields(self, dim: int) -> tuple[Field, ...]:
        """The bits."""
        return (Uints(dim, 1 + self.exponent + self.mantissa),)

    def values(self, patterns: np.ndarray, dtype: Any) -> np.ndarray:
        """What patterns of bits stand for: exact in float32 and float64."""
        pattern = patterns.astype(np.int64)
        top = (1 << self.exponent) - 1
        e, m = pattern >> self.mantissa & top, pattern & ((1 << self.mantissa) - 1)
        value = np.ldexp((np.where(e, 1 << self.mantissa, 0) + m).astype(np.float64),
                         np.maximum(e, 1) - (top >> 1) - self.mantissa)  # fmt: skip
        value = np.where(e == top, np.where(m, np.nan, np.inf), value)
        with np.errstate(all="ignore"):
            return np.where(pattern >> (self.exponent + self.mantissa), -value, value).astype(dtype)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """Under JAX looked up in a table; a receiver with few of them need not make one."""
        if xp is np:
            return self.values(numbers[0], dtype)
        return xp.asarray(self.values(np.arange(1 << (1 + self.exponent + self.mantissa)), dtype))[numbers[0]]


@dataclasses.dataclass(frozen=True)
class FixedPoint(Format):
    """Whole multiples of 2^-fraction in two's complement: (their bits (dim,)). The most negative code is NaN."""

    width: int
    fraction: int
    code = 12

    def __post_init__(self) -> None:
        if not (2 <= self.width <= 24 and -1000 <= self.fraction <= 1000):
            raise ValueError(f"FixedPoint({self.width}, {self.fraction}): 2..24 bits, |fraction| at most 1000.")

    def fields(self, dim: int) -> tuple[Field, ...]:
        """The bits."""
        return (Uints(dim, self.width),)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """code * 2^-fraction."""
        half = np.int32(1 << (self.width - 1))
        code = (xp.asarray(numbers[0]).astype(np.int32) ^ half) - half
        with np.errstate(all="ignore"):
            step = np.float64(2.0**-self.fraction).astype(dtype)
        return xp.where(code == -half, xp.asarray(np.nan, dtype), times(xp, code.astype(dtype), step))


@dataclasses.dataclass(frozen=True)
class LowRank(Format):
    """Two factors of a rows x columns matrix: (left (rows * rank,), right (columns * rank,)), both row by row."""

    rank: int
    rows: int
    columns: int
    code = 13

    def check(self, dim: int, float_width: int) -> None:
        """The coordinates fill the matrix row by row, and the rank exists."""
        filled = (self.rows - 1) * self.columns < dim <= self.rows * self.columns
        if min(self.rank, self.rows, self.columns) < 1 or not filled:
            raise ValueError(f"LowRank({self.rank}, {self.rows}, {self.columns}) of {dim} coordinates does not exist.")
        if self.rank > min(self.rows, self.columns):
            raise ValueError(f"LowRank(rank={self.rank}) of a {self.rows} x {self.columns} matrix does not exist.")

    def fields(self, dim: int) -> tuple[Field, ...]:
        """Both factors."""
        return Floats(self.rows * self.rank), Floats(self.columns * self.rank)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """Outer products summed in order, a selection between product and sum: compilers contract them otherwise."""
        left, right = (xp.asarray(n).reshape(-1, self.rank) for n in numbers)
        outers = (times(xp, left[:, r, None], right[None, :, r]) for r in range(self.rank))  # one at a time in memory
        total = next(outers)
        for outer in outers:
            total = plus(xp, xp.where(total != 0, total, 0), xp.where(outer != 0, outer, 0))
        return total.reshape(-1)[:dim]
