"""Fields: the kinds of number that messages are made of, and their exact price in bits.

The numbers of a field are one array. A field prices them, writes them and reads them back; reading checks everything
that the bits can show to be wrong. NumPy and the standard library only: a receiver needs no JAX.
"""

import abc
import dataclasses
import math
from typing import ClassVar

import numpy as np

from adacgd.compressors.bitstream import BitReader, BitWriter, WireError, bit_lengths, bits_for

CODINGS = ("fixed", "rank", "gaps")
SYMBOL_BLOCK = 1 << 16  # symbols that share one big integer: beyond, arithmetic on it would grow with the square
_RANK_WORK = 1 << 32  # dim times the bits of a rank: what may be spent on one subset, a second or two


class Field(abc.ABC):
    """So many numbers of one kind. `later` below: how many entries the latest `VariableSubset` before it had."""

    known: ClassVar[bool] = False  # stands in the header, since both ends know it

    @abc.abstractmethod
    def bits(self, numbers: np.ndarray) -> tuple[int, int]:
        """(scalars, other bits) that these numbers take."""

    @abc.abstractmethod
    def write(self, out: BitWriter, numbers: np.ndarray, float_width: int) -> None:
        """Append the numbers. Raises ValueError for numbers that this field cannot carry."""

    @abc.abstractmethod
    def read(self, source: BitReader, later: int | None, float_width: int) -> np.ndarray:
        """The numbers again. Raises WireError for bits that no writer leaves."""


def _count(field: str, count: int | None, later: int | None) -> int:
    if count is not None:
        return count
    if later is None:
        raise WireError(f"{field} follows no subset that says how many there are.")
    return later


def _sized(field: str, numbers: np.ndarray, count: int | None) -> np.ndarray:
    numbers = np.asarray(numbers)
    if numbers.ndim != 1 or (count is not None and numbers.size != count):
        raise ValueError(f"{field} carries ({count},) numbers, got shape {numbers.shape}.")
    return numbers


@dataclasses.dataclass(frozen=True)
class Floats(Field):
    """Real scalars of the message's float width. count None: as many as the subset before it has entries."""

    count: int | None

    def bits(self, numbers: np.ndarray) -> tuple[int, int]:
        """One scalar each."""
        return np.asarray(numbers).size, 0

    def write(self, out: BitWriter, numbers: np.ndarray, float_width: int) -> None:
        """Bit for bit, NaN and -0.0 too."""
        numbers = _sized("Floats", numbers, self.count)
        if numbers.dtype != f"f{float_width // 8}":
            raise ValueError(f"Floats of a message of float width {float_width} got {numbers.dtype}.")
        out.floats(numbers)

    def read(self, source: BitReader, later: int | None, float_width: int) -> np.ndarray:
        """(count,) of the message's dtype."""
        return source.floats(_count("Floats", self.count, later), float_width)


@dataclasses.dataclass(frozen=True)
class Uints(Field):
    """Unsigned integers of `width` bits each, below `below` where it is given: signs, codes, exponents, raw bits."""

    count: int | None
    width: int
    below: int | None = None

    def bits(self, numbers: np.ndarray) -> tuple[int, int]:
        """`width` bits each."""
        return 0, np.asarray(numbers).size * self.width

    def write(self, out: BitWriter, numbers: np.ndarray, float_width: int) -> None:
        """The integers."""
        numbers = _integers("Uints", _sized("Uints", numbers, self.count), 0, self.limit)
        out.uints(numbers, self.width)

    def read(self, source: BitReader, later: int | None, float_width: int) -> np.ndarray:
        """(count,) unsigned, in the smallest type."""
        numbers = source.uints(_count("Uints", self.count, later), self.width)
        if self.below is not None and numbers.size and int(numbers.max()) >= self.below:
            raise WireError(f"a code is {numbers.max()} where only those below {self.below} mean something.")
        return numbers

    @property
    def limit(self) -> int:
        """The first integer that is too large."""
        return 1 << self.width if self.below is None else self.below


def _integers(field: str, numbers: np.ndarray, low: int, high: int) -> np.ndarray:
    if numbers.dtype == bool:
        numbers = numbers.astype(np.uint8)
    if not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(f"{field} carries integers, got {numbers.dtype}.")
    if numbers.size and not (low <= int(numbers.min()) and int(numbers.max()) < high):
        raise ValueError(f"{field} carries integers in [{low}, {high}), got {numbers.min()} to {numbers.max()}.")
    return numbers


def symbol_bits(count: int, base: int) -> int:
    """What `count` digits to `base` take: ceil(count log2 base), exactly; in blocks of 65536 digits beyond that."""
    whole, rest = divmod(count, SYMBOL_BLOCK)
    block = (base**SYMBOL_BLOCK - 1).bit_length() if whole else 0
    return whole * block + (base**rest - 1).bit_length()


@dataclasses.dataclass(frozen=True)
class Symbols(Field):
    """Digits 0..base-1 as one big integer to that base, first digit most significant: ceil(count log2 base) bits.

    More than 65536 digits stand in blocks of so many, each rounded up to a whole bit.
    """

    count: int
    base: int

    def bits(self, numbers: np.ndarray) -> tuple[int, int]:
        """Not a whole number of bits a digit, and yet exact."""
        return 0, symbol_bits(self.count, self.base)

    def write(self, out: BitWriter, numbers: np.ndarray, float_width: int) -> None:
        """Block after block."""
        numbers = _integers("Symbols", _sized("Symbols", numbers, self.count), 0, self.base)
        group = self._group()
        for start in range(0, self.count, SYMBOL_BLOCK):
            digits = numbers[start : start + SYMBOL_BLOCK].astype(np.int64)
            grouped = np.concatenate([np.zeros(-digits.size % group, np.int64), digits]).reshape(-1, group)
            values = (grouped @ (self.base ** np.arange(group - 1, -1, -1, dtype=np.int64))).tolist()
            out.integer(_join(values, self.base**group, {}), symbol_bits(digits.size, self.base))

    def read(self, source: BitReader, later: int | None, float_width: int) -> np.ndarray:
        """(count,) uint8 or uint16."""
        source.require(symbol_bits(self.count, self.base))
        out = np.zeros(self.count, np.uint8 if self.base <= 256 else np.uint16)
        group = self._group()
        for start in range(0, self.count, SYMBOL_BLOCK):
            size = min(SYMBOL_BLOCK, self.count - start)
            value = source.integer(symbol_bits(size, self.base))
            if value >= self.base**size:
                raise WireError(f"{size} symbols of {self.base} kinds are coded by a number that is too large.")
            values = np.array(_split(value, -(-size // group), self.base**group, {}), np.int64)
            digits = values[:, None] // self.base ** np.arange(group - 1, -1, -1, dtype=np.int64) % self.base
            out[start : start + size] = digits.reshape(-1)[-size:]
        return out

    def _group(self) -> int:
        """Digits that fit an int64 together."""
        return int(62 / math.log2(self.base))


def _join(digits: list[int], base: int, powers: dict[int, int]) -> int:
    """The integer with these digits, halves first, so that large products are few."""
    if len(digits) == 1:
        return digits[0]
    low = len(digits) // 2
    if low not in powers:
        powers[low] = base**low
    return _join(digits[:-low], base, powers) * powers[low] + _join(digits[-low:], base, powers)


def _split(value: int, count: int, base: int, powers: dict[int, int]) -> list[int]:
    """The `count` digits of the integer: `_join` undone."""
    if count == 1:
        return [value]
    low = count // 2
    if low not in powers:
        powers[low] = base**low
    high, rest = divmod(value, powers[low])
    return _split(high, count - low, base, powers) + _split(rest, low, base, powers)


def subset_bits(count: int, dim: int, coding: str) -> int:
    """What the indices of a `count`-subset of 0..dim-1 take: `"fixed"` or `"rank"`; `"gaps"` depend on the subset."""
    if coding == "fixed":
        return count * bits_for(dim)
    if coding == "rank":
        return bits_for(math.comb(dim, count))
    raise ValueError(f"the bits of a subset in coding {coding!r} depend on its members.")


def check_subset(count: int, dim: int, coding: str) -> None:
    """Raise ValueError for a subset that there is not, or one whose rank would take too long to work out."""
    if coding not in CODINGS:
        raise ValueError(f"coding must be one of {', '.join(CODINGS)}; got {coding!r}.")
    if not 0 <= count <= dim:
        raise ValueError(f"a subset of {count} among {dim} indices does not exist.")
    if coding == "rank" and dim * _about_rank_bits(count, dim) > _RANK_WORK:
        raise ValueError(f"the rank of {count} among {dim} indices takes too long; use coding 'gaps' or 'fixed'.")


def _about_rank_bits(count: int, dim: int) -> float:
    """log2 C(dim, count) to many digits, without the number itself, which may be huge."""
    logs = math.lgamma(dim + 1) - math.lgamma(count + 1) - math.lgamma(dim - count + 1)
    return max(logs / math.log(2), 0.0)


@dataclasses.dataclass(frozen=True)
class Subset(Field):
    """`count` distinct indices below `dim`, ascending, in one of three codings.

    `"fixed"`: ceil(log2 dim) bits each. `"rank"`: the place of the subset among all, ceil(log2 C(dim, count)) bits in
    all. `"gaps"`: each distance to the index before in Elias gamma code, whose length depends on the subset.
    """

    count: int
    dim: int
    coding: str = "fixed"

    def bits(self, numbers: np.ndarray) -> tuple[int, int]:
        """By the coding."""
        if self.coding == "gaps":
            return 0, int(np.sum(2 * bit_lengths(_gaps(np.asarray(numbers))) - 1))
        return 0, subset_bits(self.count, self.dim, self.coding)

    def write(self, out: BitWriter, numbers: np.ndarray, float_width: int) -> None:
        """The indices."""
        check_subset(self.count, self.dim, self.coding)
        numbers = _integers("Subset", _sized("Subset", numbers, self.count), 0, self.dim)
        if np.any(numbers[1:] <= numbers[:-1]):
            raise ValueError("Subset carries distinct indices in ascending order.")
        if self.coding == "fixed":
            out.uints(numbers, bits_for(self.dim))
        elif self.coding == "gaps":
            out.gammas(_gaps(numbers))
        else:
            out.integer(_rank(numbers.tolist(), self.dim), subset_bits(self.count, self.dim, "rank"))

    def read(self, source: BitReader, later: int | None, float_width: int) -> np.ndarray:
        """(count,) int64, ascending."""
        check_subset(self.count, self.dim, self.coding)
        if self.coding == "gaps":
            gaps = source.gammas(self.count)
            if self.count and int(gaps.max()) > self.dim:
                raise WireError(f"a gap between indices is {gaps.max()} where there are {self.dim} of them.")
            found = np.cumsum(gaps.astype(np.int64)) - 1
        elif self.coding == "fixed":
            found = source.uints(self.count, bits_for(self.dim)).astype(np.int64)
        else:
            source.require(int(_about_rank_bits(self.count, self.dim) * (1 - 1e-9)))
            rank = source.integer(subset_bits(self.count, self.dim, "rank"))
            found = np.array(_unrank(rank, self.count, self.dim), np.int64)
        if np.any(found[1:] <= found[:-1]):
            raise WireError("the indices of a subset are not distinct and ascending.")
        if self.count and int(found[-1]) >= self.dim:
            raise WireError(f"an index is {found[-1]} where there are {self.dim} coordinates.")
        return found


def _gaps(indices: np.ndarray) -> np.ndarray:
    return np.diff(indices.astype(np.int64), prepend=-1)


def _rank(indices: list[int], dim: int) -> int:
    """The place of an ascending subset: sum of C(c_i, i), i = 1..count (the combinatorial number system)."""
    rank, at, binomial, i = 0, 0, 0, 1  # binomial = C(at, i)
    for index in indices:
        while at < index:  # C(at + 1, i) from C(at, i)
            at += 1
            binomial = binomial * at // (at - i) if at > i else int(at == i)
        rank += binomial
        i += 1
        binomial = binomial * (at - i + 1) // i
    return rank


def _unrank(rank: int, count: int, dim: int) -> list[int]:
    """The subset at this place: from the largest index down, the largest c with C(c, i) <= rank."""
    if rank >= math.comb(dim, count):
        raise WireError(f"the rank of a subset of {count} among {dim} indices is too large.")
    found, at, i = [], dim, count
    binomial = math.comb(at, i)  # C(at, i)
    while i:
        while binomial > rank:  # C(at - 1, i) from C(at, i)
            binomial = binomial * (at - i) // at
            at -= 1
        found.append(at)
        rank -= binomial
        binomial = binomial * i // at if at else 0  # C(at - 1, i - 1) from C(at, i): the next index is smaller
        at, i = at - 1, i - 1
    return found[::-1]


@dataclasses.dataclass(frozen=True)
class VariableSubset(Field):
    """m distinct indices below `dim`: m itself in ceil(log2(dim + 1)) bits, then the indices as in `Subset`."""

    dim: int
    coding: str = "fixed"

    def bits(self, numbers: np.ndarray) -> tuple[int, int]:
        """The count and the indices."""
        numbers = np.asarray(numbers)
        return 0, bits_for(self.dim + 1) + Subset(numbers.size, self.dim, self.coding).bits(numbers)[1]

    def write(self, out: BitWriter, numbers: np.ndarray, float_width: int) -> None:
        """The count and the indices."""
        numbers = _sized("VariableSubset", numbers, None)
        out.integer(numbers.size, bits_for(self.dim + 1))
        Subset(numbers.size, self.dim, self.coding).write(out, numbers, float_width)

    def read(self, source: BitReader, later: int | None, float_width: int) -> np.ndarray:
        """(m,) int64, ascending."""
        count = source.integer(bits_for(self.dim + 1))
        if count > self.dim:
            raise WireError(f"a subset has {count} members where there are {self.dim} coordinates.")
        return Subset(count, self.dim, self.coding).read(source, later, float_width)


@dataclasses.dataclass(frozen=True)
class EliasGamma(Field):
    """Positive integers up to `most` in Elias gamma code: 2 floor(log2 n) + 1 bits each."""

    count: int | None
    most: int

    def bits(self, numbers: np.ndarray) -> tuple[int, int]:
        """Small integers are cheap."""
        return 0, int(np.sum(2 * bit_lengths(np.asarray(numbers)) - 1))

    def write(self, out: BitWriter, numbers: np.ndarray, float_width: int) -> None:
        """The code words."""
        out.gammas(_integers("EliasGamma", _sized("EliasGamma", numbers, self.count), 1, self.most + 1))

    def read(self, source: BitReader, later: int | None, float_width: int) -> np.ndarray:
        """(count,) uint64."""
        numbers = source.gammas(_count("EliasGamma", self.count, later))
        if numbers.size and int(numbers.max()) > self.most:
            raise WireError(f"a code is {numbers.max()} where {self.most} is the largest there is.")
        return numbers


@dataclasses.dataclass(frozen=True)
class Known(Field):
    """`count` distinct ascending indices below `dim` that both ends draw from a shared seed: free, in the header."""

    count: int
    dim: int
    known = True

    def bits(self, numbers: np.ndarray) -> tuple[int, int]:
        """Nothing."""
        return 0, 0

    def write(self, out: BitWriter, numbers: np.ndarray, float_width: int) -> None:
        """As a `Subset` of fixed width."""
        Subset(self.count, self.dim).write(out, numbers, float_width)

    def read(self, source: BitReader, later: int | None, float_width: int) -> np.ndarray:
        """(count,) int64, ascending."""
        return Subset(self.count, self.dim).read(source, later, float_width)
