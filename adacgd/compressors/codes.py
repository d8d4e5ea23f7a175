"""Formats: how the numbers of a message are laid out, and what vector the receiver makes of them.

A format is a frozen dataclass of integers, words and other formats. It says which fields a message has (`fields`), what
they cost (`price`), and how the vector is made (`rebuild`), by one formula for NumPy and for JAX: the simulator's value
is that of the receiver, bit for bit. So formulas are single products (`times`) and selections, never a product inside a
sum, which a compiler may contract, and never a division by a constant, which it turns into a product.
NumPy and the standard library only: a receiver needs no JAX.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import numpy as np

from adacgd.compressors.bitstream import BitReader, BitWriter
from adacgd.compressors.fields import Field, Floats, Known, Subset, VariableSubset, check_subset

Numbers = tuple[np.ndarray, ...]


class Format(abc.ABC):
    """The layout of one message of `dim` coordinates. Constructors and `check` refuse with ValueError."""

    code: ClassVar[int]  # one byte of the header, never given to another format
    verbatim: ClassVar[bool] = False  # the floats it carries are coordinates of the vector, at `support`

    @abc.abstractmethod
    def fields(self, dim: int) -> tuple[Field, ...]:
        """The fields in the order of the payload."""

    @abc.abstractmethod
    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """(dim,) of dtype from the numbers, one entry a field. xp: numpy or jax.numpy, whose arrays the numbers are."""

    def check(self, dim: int, float_width: int) -> None:  # noqa: B027
        """Raise ValueError where no message of so many coordinates or of this float width exists."""

    def support(self, numbers: Numbers, dim: int) -> np.ndarray:
        """Which coordinates a `verbatim` format carries, in the order of its floats."""
        raise TypeError(f"{type(self).__name__} carries no coordinates as they are.")

    def carrying(self, numbers: Numbers, values: np.ndarray) -> Numbers:
        """The numbers of a `verbatim` format with other floats: values (dim,), from which its support is taken."""
        return (*numbers[:-1], values[self.support(numbers, values.size)])

    def arity(self, dim: int) -> int:
        """How many arrays its numbers are."""
        return len(self.fields(dim))

    def price(self, numbers: Any, dim: int) -> tuple[int, int]:
        """(scalars, extra bits) of these very numbers."""
        parts = [f.bits(n) for f, n in zip(self.fields(dim), numbers, strict=True)]
        return sum(p[0] for p in parts), sum(p[1] for p in parts)

    def write(self, out: BitWriter, known: BitWriter, numbers: Any, dim: int, float_width: int) -> None:
        """Append the numbers to the payload, and those that both ends know to the header."""
        self.check(dim, float_width)
        fields = self.fields(dim)
        if len(numbers) != len(fields):
            raise ValueError(f"{self!r} has {len(fields)} fields, got {len(numbers)} arrays of numbers.")
        for f, n in zip(fields, numbers, strict=True):
            f.write(known if f.known else out, n, float_width)

    def read(self, source: BitReader, known: BitReader, dim: int, float_width: int) -> Numbers:
        """The numbers again. Raises WireError, or ValueError from `check`."""
        self.check(dim, float_width)
        found: list[np.ndarray] = []
        later = None
        for f in self.fields(dim):
            found.append(f.read(known if f.known else source, later, float_width))
            later = found[-1].size if isinstance(f, VariableSubset) else later
        return tuple(found)


def flush(v: Any) -> Any:
    """Subnormal float32 and float64 as zeros of their sign, as XLA computes on a CPU. NumPy only."""
    if v.dtype.itemsize == 2:
        return v  # float16 is computed in float32, where its subnormals are normal
    tiny = np.finfo(v.dtype).tiny
    subnormal = (v < tiny) & (v > -tiny) & (v != 0)
    if not np.any(subnormal):
        return v  # no copy, since a short message may stand for a long vector
    return np.where(subnormal, np.copysign(v.dtype.type(0), v), v)


def times(xp: Any, a: Any, b: Any) -> Any:
    """a * b with one rounding and the same bits in NumPy as under XLA on a CPU, which flushes subnormals to 0."""
    if xp is not np:
        return a * b
    with np.errstate(all="ignore"):
        a, b = np.broadcast_arrays(flush(np.asarray(a)), flush(np.asarray(b)))
        out = np.asarray(a * b)
        tiny = np.finfo(out.dtype).tiny
        edge = np.abs(out) == tiny if out.dtype.itemsize > 2 else np.zeros((), bool)
        if np.any(edge):  # a product just below the smallest normal number may have been rounded up to it
            p, q = np.abs(a[edge]), np.abs(b[edge])
            scaled = np.maximum(p, q) * (np.minimum(p, q) * out.dtype.type(2.0**64))
            below = scaled < tiny * out.dtype.type(2.0**64)
            out[edge] = np.where(below, np.copysign(out.dtype.type(0), out[edge]), out[edge])
        return flush(out).astype(a.dtype, copy=False)


def plus(xp: Any, a: Any, b: Any) -> Any:
    """a + b with the same bits in NumPy as under XLA on a CPU."""
    if xp is not np:
        return a + b
    with np.errstate(all="ignore"):
        return flush(flush(np.asarray(a)) + flush(np.asarray(b)))


def scatter(xp: Any, indices: Any, values: Any, dim: int, dtype: Any) -> Any:
    """(dim,) zeros with values at the indices."""
    out = xp.zeros(dim, dtype)
    if xp is not np:
        return out.at[indices].set(values)
    out[indices] = values
    return out


@dataclasses.dataclass(frozen=True)
class Silent(Format):
    """Nothing: the zero vector (of a mechanism: no change)."""

    code = 1

    def fields(self, dim: int) -> tuple[Field, ...]:
        """None."""
        return ()

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """Zeros."""
        return xp.zeros(dim, dtype)


@dataclasses.dataclass(frozen=True)
class Dense(Format):
    """Every coordinate: (values)."""

    code = 2
    verbatim = True

    def fields(self, dim: int) -> tuple[Field, ...]:
        """Values."""
        return (Floats(dim),)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """As they are."""
        return xp.asarray(numbers[0], dtype=dtype)

    def support(self, numbers: Numbers, dim: int) -> np.ndarray:
        """All."""
        return np.arange(dim)


@dataclasses.dataclass(frozen=True)
class Sparse(Format):
    """k coordinates, zeros elsewhere: (indices ascending, values). coding: how indices are written, see `Subset`."""

    k: int
    coding: str = "fixed"
    code = 3
    verbatim = True

    def check(self, dim: int, float_width: int) -> None:
        """k of dim exist."""
        check_subset(self.k, dim, self.coding)

    def fields(self, dim: int) -> tuple[Field, ...]:
        """Indices, values."""
        return Subset(self.k, dim, self.coding), Floats(self.k)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """Scattered."""
        return scatter(xp, numbers[0], numbers[1], dim, dtype)

    def support(self, numbers: Numbers, dim: int) -> np.ndarray:
        """The indices."""
        return numbers[0]


@dataclasses.dataclass(frozen=True)
class SparseVariable(Format):
    """As many coordinates as the message says, zeros elsewhere: (indices ascending, values)."""

    coding: str = "fixed"
    code = 4
    verbatim = True

    def check(self, dim: int, float_width: int) -> None:
        """The coding is one."""
        check_subset(0, dim, self.coding)

    def fields(self, dim: int) -> tuple[Field, ...]:
        """How many and which, values."""
        return VariableSubset(dim, self.coding), Floats(None)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """Scattered."""
        return scatter(xp, numbers[0], numbers[1], dim, dtype)

    def support(self, numbers: Numbers, dim: int) -> np.ndarray:
        """The indices."""
        return numbers[0]


@dataclasses.dataclass(frozen=True)
class Seeded(Format):
    """k coordinates whose indices both ends draw from a shared seed: (indices ascending, values)."""

    k: int
    code = 5
    verbatim = True

    def check(self, dim: int, float_width: int) -> None:
        """k of dim exist."""
        check_subset(self.k, dim, "fixed")

    def fields(self, dim: int) -> tuple[Field, ...]:
        """Indices (in the header), values."""
        return Known(self.k, dim), Floats(self.k)

    def rebuild(self, xp: Any, numbers: Any, dim: int, dtype: Any) -> Any:
        """Scattered."""
        return scatter(xp, numbers[0], numbers[1], dim, dtype)

    def support(self, numbers: Numbers, dim: int) -> np.ndarray:
        """The indices."""
        return numbers[0]
