"""Formats made of formats, and those of which both ends know more than the payload says.

NumPy and the standard library only, as in `codes`.
"""

import abc
import dataclasses
from typing import Any

import numpy as np

from adacgd.compressors.bitstream import BitReader, BitWriter, WireError
from adacgd.compressors.codes import Format, Numbers, plus, scatter, times
from adacgd.compressors.fields import Field, Floats, Known, Subset, VariableSubset, check_subset


class KnownVariable(VariableSubset):
    """As many distinct ascending indices as both ends know of: free, in the header."""

    known = True

    def bits(self, numbers: np.ndarray) -> tuple[int, int]:
        """Nothing."""
        return 0, 0


@dataclasses.dataclass(frozen=True)
class SeededVariable(Format):
    """Coordinates of which both ends know how many and which: (indices ascending, values)."""

    code = 14
    verbatim = True

    def fields(self, dim: int) -> tuple[Field, ...]:
        """Indices (in the header), values."""
        return KnownVariable(dim), Floats(None)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """Scattered."""
        indices, values = numbers
        return scatter(xp, indices, values, dim, dtype)

    def support(self, numbers: Numbers, dim: int) -> np.ndarray:
        """The indices."""
        return numbers[0]


@dataclasses.dataclass(frozen=True)
class PartlySeeded(Format):
    """k coordinates, and others from a shared seed: (indices of the k, indices of the others, values in that order)."""

    k: int
    seeded: int
    coding: str = "fixed"
    code = 15
    verbatim = True

    def check(self, dim: int, float_width: int) -> None:
        """So many of dim exist."""
        check_subset(self.k, dim, self.coding)
        check_subset(self.k + self.seeded, dim, "fixed")

    def fields(self, dim: int) -> tuple[Field, ...]:
        """Indices, indices (in the header), values."""
        return Subset(self.k, dim, self.coding), Known(self.seeded, dim), Floats(self.k + self.seeded)

    def read(self, source: BitReader, known: BitReader, dim: int, float_width: int) -> Numbers:
        """The numbers again; no coordinate may come twice."""
        numbers = super().read(source, known, dim, float_width)
        if np.intersect1d(numbers[0], numbers[1]).size:
            raise WireError("a coordinate comes twice, by its index and from the shared seed.")
        return numbers

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """Scattered."""
        return scatter(xp, xp.concatenate([xp.asarray(n) for n in numbers[:2]]), numbers[2], dim, dtype)

    def support(self, numbers: Numbers, dim: int) -> np.ndarray:
        """Both, in the order of the values."""
        return np.concatenate(numbers[:2])


class Nested(Format):
    """A format whose numbers are those of its own fields and then those of other formats, each of a dimension."""

    @abc.abstractmethod
    def parts(self, dim: int) -> tuple[tuple[Format, int], ...]:
        """The other formats in order, and how many coordinates each has."""

    def fields(self, dim: int) -> tuple[Field, ...]:
        """None of its own."""
        return ()

    def check(self, dim: int, float_width: int) -> None:
        """All parts exist."""
        for part, size in self.parts(dim):
            part.check(size, float_width)

    def arity(self, dim: int) -> int:
        """Its own arrays and those of the parts."""
        return len(self.fields(dim)) + sum(part.arity(size) for part, size in self.parts(dim))

    def split(self, numbers: Any, dim: int) -> tuple[Any, list[tuple[Format, int, Any]]]:
        """The own numbers; each part with its dimension and its numbers."""
        at = len(self.fields(dim))
        if len(numbers) != self.arity(dim):
            raise ValueError(f"{self!r} has {self.arity(dim)} arrays of numbers, got {len(numbers)}.")
        own, found = tuple(numbers[:at]), []
        for part, size in self.parts(dim):
            found.append((part, size, tuple(numbers[at : at + part.arity(size)])))
            at += part.arity(size)
        return own, found

    def price(self, numbers: Any, dim: int) -> tuple[int, int]:
        """Of all."""
        own, parts = self.split(numbers, dim)
        prices = [f.bits(n) for f, n in zip(self.fields(dim), own, strict=True)]
        prices += [part.price(n, size) for part, size, n in parts]
        return sum(p[0] for p in prices), sum(p[1] for p in prices)

    def write(self, out: BitWriter, known: BitWriter, numbers: Any, dim: int, float_width: int) -> None:
        """One after the other."""
        self.check(dim, float_width)
        own, parts = self.split(numbers, dim)
        for f, n in zip(self.fields(dim), own, strict=True):
            f.write(known if f.known else out, n, float_width)
        for part, size, n in parts:
            part.write(out, known, n, size, float_width)

    def read(self, source: BitReader, known: BitReader, dim: int, float_width: int) -> Numbers:
        """One after the other."""
        self.check(dim, float_width)
        own = tuple(f.read(known if f.known else source, None, float_width) for f in self.fields(dim))
        for part, size in self.parts(dim):
            own += part.read(source, known, size, float_width)
        return own


@dataclasses.dataclass(frozen=True)
class Blocks(Nested):
    """One block of the vector after the other, each in a format of its own."""

    formats: tuple[Format, ...]
    sizes: tuple[int, ...]
    code = 16

    @property
    def verbatim(self) -> bool:  # type: ignore[override]
        """Where all are."""
        return all(part.verbatim for part in self.formats)

    def check(self, dim: int, float_width: int) -> None:
        """The blocks make up the vector."""
        if len(self.formats) != len(self.sizes) or sum(self.sizes) != dim or min(self.sizes, default=0) < 1:
            raise ValueError(f"{len(self.formats)} formats and {len(self.sizes)} sizes of blocks do not make up {dim}.")
        super().check(dim, float_width)

    def parts(self, dim: int) -> tuple[tuple[Format, int], ...]:
        """The blocks."""
        return tuple(zip(self.formats, self.sizes, strict=True))

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """Joined."""
        return xp.concatenate([p.rebuild(xp, n, size, dtype) for p, size, n in self.split(numbers, dim)[1]])

    def support(self, numbers: Numbers, dim: int) -> np.ndarray:
        """The parts' own, shifted."""
        starts = np.cumsum((0, *self.sizes))
        parts = zip(self.split(numbers, dim)[1], starts[:-1], strict=True)
        return np.concatenate([part.support(n, size) + start for (part, size, n), start in parts])

    def carrying(self, numbers: Numbers, values: np.ndarray) -> Numbers:
        """Each part with its share of the values."""
        shares = np.split(values, np.cumsum(self.sizes)[:-1])
        parts = zip(self.split(numbers, values.size)[1], shares, strict=True)
        return tuple(n for (p, _, own), share in parts for n in p.carrying(own, share))


@dataclasses.dataclass(frozen=True)
class Pair(Nested):
    """The sum of two messages."""

    first: Format
    second: Format
    code = 17

    def parts(self, dim: int) -> tuple[tuple[Format, int], ...]:
        """Both."""
        return (self.first, dim), (self.second, dim)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """Added."""
        return plus(xp, *(p.rebuild(xp, n, size, dtype) for p, size, n in self.split(numbers, dim)[1]))


@dataclasses.dataclass(frozen=True)
class Scaled(Nested):
    """A message times a number that both ends know, written as `float.hex` does."""

    inner: Format
    factor: str
    code = 18

    def __post_init__(self) -> None:
        try:
            right = float.fromhex(self.factor).hex() == self.factor and self.factor not in ("inf", "-inf", "nan")
        except (ValueError, OverflowError):
            right = False
        if not right:
            raise ValueError(f"Scaled(factor={self.factor!r}) must be finite, and written as float.hex does.")

    def parts(self, dim: int) -> tuple[tuple[Format, int], ...]:
        """The one."""
        return ((self.inner, dim),)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """Multiplied."""
        factor = np.float64(float.fromhex(self.factor)).astype(dtype)
        return times(xp, self.inner.rebuild(xp, numbers, dim, dtype), factor)


@dataclasses.dataclass(frozen=True)
class OnSupport(Nested):
    """k coordinates as another format sends them: (indices ascending, then its numbers at length k)."""

    k: int
    coding: str
    inner: Format
    code = 19

    def check(self, dim: int, float_width: int) -> None:
        """k of dim exist."""
        check_subset(self.k, dim, self.coding)
        super().check(dim, float_width)

    def fields(self, dim: int) -> tuple[Field, ...]:
        """Indices."""
        return (Subset(self.k, dim, self.coding),)

    def parts(self, dim: int) -> tuple[tuple[Format, int], ...]:
        """The values."""
        return ((self.inner, self.k),)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """Scattered."""
        return scatter(xp, numbers[0], self.inner.rebuild(xp, numbers[1:], self.k, dtype), dim, dtype)


@dataclasses.dataclass(frozen=True)
class Flag(Field):
    """One bit that both ends know, since a message that did not come is seen not to: free, in the header."""

    known = True

    def bits(self, numbers: np.ndarray) -> tuple[int, int]:
        """Nothing."""
        return 0, 0

    def write(self, out: BitWriter, numbers: np.ndarray, float_width: int) -> None:
        """The bit."""
        out.uints(np.asarray(numbers, np.uint8).reshape(1), 1)

    def read(self, source: BitReader, later: int | None, float_width: int) -> np.ndarray:
        """(1,) uint8."""
        return source.uints(1, 1)


@dataclasses.dataclass(frozen=True)
class Maybe(Nested):
    """A message or none: (flag (1,), then the numbers, which stand empty where there is none)."""

    inner: Format
    code = 20

    @property
    def verbatim(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.inner.verbatim

    def fields(self, dim: int) -> tuple[Field, ...]:
        """Whether (in the header)."""
        return (Flag(),)

    def parts(self, dim: int) -> tuple[tuple[Format, int], ...]:
        """The message."""
        return ((self.inner, dim),)

    def price(self, numbers: Any, dim: int) -> tuple[int, int]:
        """Nothing where nothing is sent."""
        return self.inner.price(numbers[1:], dim) if numbers[0][0] else (0, 0)

    def write(self, out: BitWriter, known: BitWriter, numbers: Any, dim: int, float_width: int) -> None:
        """The flag, and the message if there is one."""
        self.check(dim, float_width)
        Flag().write(known, numbers[0], float_width)
        if numbers[0][0]:
            self.inner.write(out, known, numbers[1:], dim, float_width)

    def read(self, source: BitReader, known: BitReader, dim: int, float_width: int) -> Numbers:
        """The flag, and the message if there is one."""
        self.check(dim, float_width)
        flag = Flag().read(known, None, float_width)
        if not flag[0]:
            return (flag, *(np.zeros(0) for _ in range(self.inner.arity(dim))))
        return flag, *self.inner.read(source, known, dim, float_width)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """The message, or zeros."""
        return self.inner.rebuild(xp, numbers[1:], dim, dtype) if numbers[0][0] else xp.zeros(dim, dtype)

    def support(self, numbers: Numbers, dim: int) -> np.ndarray:
        """Of the message, or nothing."""
        return self.inner.support(numbers[1:], dim) if numbers[0][0] else np.zeros(0, np.int64)

    def carrying(self, numbers: Numbers, values: np.ndarray) -> Numbers:
        """The message with other floats."""
        return (numbers[0], *self.inner.carrying(numbers[1:], values)) if numbers[0][0] else numbers
