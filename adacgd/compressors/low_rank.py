"""Low rank: a vector folded into a matrix, and two thin factors of it (theory.md 1.2).

A vector of d entries fills a rows x columns matrix row by row, with zeros at the end of the last row; what comes back
has d entries again. Without a shape the matrix is nearly square: columns = ceil(sqrt d), rows = ceil(d / columns). The
matrix has the norm of the vector and what is cut off only helps, so the constants are those of the matrix. A rank whose
factors cost more than the d entries is refused. An input with NaN or infinity is caught before any decomposition, which
might hang on it, and comes out as NaN everywhere.
"""

import abc
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors import dense_codes
from adacgd.compressors.base import Compressor, Message, Stateful, brief, no_constant, require_count, working
from adacgd.compressors.codes import Format
from adacgd.compressors.quantisers import Quantised
from adacgd.cost import Cost
from adacgd.module import module, static

Shape = tuple[int, int]
Factors = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def folded(owner: str, rank: int, shape: Shape | None, dim: int) -> Shape:
    """(rows, columns) that d entries fill. Raises ValueError for a shape that does not fit or does not pay."""
    columns = math.isqrt(dim - 1) + 1
    rows, columns = shape if shape is not None else (-(-dim // columns), columns)
    if not (rows - 1) * columns < dim <= rows * columns:
        raise ValueError(f"{owner}(shape=({rows}, {columns})) is not filled by {dim} coordinates row by row.")
    if rank > min(rows, columns) or rank * (rows + columns) > dim:
        raise ValueError(
            f"{owner}(rank={rank}) of {dim} coordinates as {rows} x {columns} sends {rank * (rows + columns)} numbers: "
            f"more than the vector itself or than there are; use Identity or a rank <= {dim // (rows + columns)}."
        )
    return rows, columns


def svd_factors(matrix: jax.Array, rank: int) -> tuple[jax.Array, jax.Array]:
    """U_r S_r, (m, r), and V_r, (p, r), of the truncated singular value decomposition."""
    u, s, vt = jnp.linalg.svd(matrix, full_matrices=False)
    return u[:, :rank] * s[None, :rank], vt[:rank].T


def power_factors(matrix: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
    """P = orth(M Q), (m, r), and M'P, (p, r): one step of PowerSGD from Q, (p, r), by Householder QR, finite always."""
    p, _ = jnp.linalg.qr(jnp.matmul(matrix, start, precision="highest"))
    return p, jnp.matmul(matrix.T, p, precision="highest")


class _Folded:
    """What low rank compressors have in common: the fold, the guard, the price and the layout of two factors."""

    rank: int
    shape: Shape | None

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_count(name, "rank", self.rank)
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(self.shape))
            if len(self.shape) != 2:
                raise ValueError(f"{name}(shape=...) must be (rows, columns), got {self.shape!r}.")
            for n in self.shape:
                require_count(name, "shape", n)

    def fold(self, dim: int) -> Shape:
        """(rows, columns) for so many coordinates."""
        return folded(type(self).__name__, self.rank, self.shape, dim)

    def cost(self, dim: int, float_width: int) -> Cost:
        """r(m + p) scalars."""
        return Cost(self.rank * sum(self.fold(dim)))

    def format(self, dim: int, float_width: int) -> Format:
        """Two factors."""
        return dense_codes.LowRank(self.rank, *self.fold(dim))

    def sent(self, factors: Factors, x: jax.Array) -> tuple[jax.Array, ...]:
        """The factors of the folded vector, row by row; NaN where the vector is not finite."""
        rows, columns = self.fold(x.size)
        finite = jnp.all(jnp.isfinite(x))
        flat = jnp.pad(jnp.where(finite, working(x), 0), (0, rows * columns - x.size))
        both = factors(flat.reshape(rows, columns))
        return tuple(jnp.where(finite, f, jnp.nan).astype(x.dtype).reshape(-1) for f in both)


class _LowRank(_Folded, Quantised, Compressor):
    """A low rank compressor with alpha = r/min(m, p)."""

    nonexpansive = True

    @abc.abstractmethod
    def factors(self, key: jax.Array, matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(m, r) and (p, r) of a finite matrix."""

    def send(self, key: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        """Both factors row by row."""
        return self.sent(lambda matrix: self.factors(key, matrix), x)

    def alpha(self, dim: int) -> float:
        """r / min(m, p)."""
        return self.rank / min(self.fold(dim))

    def worst(self, dim: int) -> np.ndarray:
        """All singular values equal."""
        return np.eye(*self.fold(dim)).reshape(-1)[:dim]

    def attained(self, dim: int) -> bool:
        """Where the fold has room for the whole diagonal: where the last row does not end before it."""
        return bool(np.sum(self.worst(dim)) == min(self.fold(dim)))


@module
class LowRank(_LowRank):
    """The best approximation of rank r, by a singular value decomposition: alpha = r/min(m, p).

    Attained where all singular values are equal, in every dimension whose fold holds the diagonal (theory.md 1.2; Wang
    et al., ATOMO; Vogels et al., PowerSGD). shape: (rows, columns) of the matrix, or None for a nearly square one.
    """

    rank: int = static()
    shape: Shape | None = static(default=None)
    __repr__ = brief

    def factors(self, key: jax.Array, matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
        """U_r S_r and V_r."""
        return svd_factors(matrix, self.rank)


@module
class PowerSGD(_LowRank):
    """One power step from a fresh Gaussian Q: P = orth(M Q), C = P P'M; alpha = r/min(m, p) in expectation.

    Equality on a flat spectrum (theory.md 1.2; Vogels et al., PowerSGD, with a start that does not depend on the past).
    In a network P is averaged before M'P is formed; here each worker sends both, r(m + p) scalars.
    """

    rank: int = static()
    shape: Shape | None = static(default=None)
    __repr__ = brief

    def factors(self, key: jax.Array, matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
        """P and M'P."""
        return power_factors(matrix, jax.random.normal(key, (matrix.shape[1], self.rank), matrix.dtype))


@module
class PowerSGDWarm(_Folded, Stateful):
    """PowerSGD as it is used: the power step starts from the last right factor. A state, and no uniform constant.

    A start orthogonal to the row space of M loses everything, so no alpha > 0 holds for all states (theory.md 1.2); on
    a fixed M the steps converge to the truncated decomposition. It is no `Compressor`: `state = warm.init(key, dim)`,
    then `message, state = warm.step(state, x)`, without randomness, in a loop of your own; mechanisms, `simulate` and
    `certify` need a constant and refuse it. `adacgd.wire.encode(warm, key, x, state=state)` writes its messages.
    """

    rank: int = static()
    shape: Shape | None = static(default=None)
    __repr__ = brief

    def init(self, key: jax.Array, dim: int, dtype: Any = None) -> jax.Array:
        """The first start, (columns, rank), Gaussian."""
        return jax.random.normal(key, (self.fold(dim)[1], self.rank), dtype or jnp.result_type(float))

    def step(self, state: jax.Array, x: jax.Array) -> tuple[Message, jax.Array]:
        """The message and the next start: the right factor, or the old one where that is not finite or zero."""
        left, right = self.send(state, x)
        value = self.format(x.size, 8 * x.dtype.itemsize).rebuild(jnp, (left, right), x.size, x.dtype)
        usable = jnp.all(jnp.isfinite(right)) & jnp.any(right != 0)
        kept = jnp.where(usable, right.reshape(state.shape).astype(state.dtype), state)
        return Message(value, self.cost(x.size, 8 * x.dtype.itemsize)), kept

    def send(self, state: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        """Both factors row by row, the numbers of the message. Raises ValueError for a state of another shape."""
        if jnp.shape(state) != (self.fold(x.size)[1], self.rank):
            raise ValueError(
                f"{self!r}: state= must be {(self.fold(x.size)[1], self.rank)} for {x.size} coordinates, got "
                f"{jnp.shape(state)}; start with state = warm.init(key, {x.size})."
            )
        return self.sent(lambda matrix: power_factors(matrix, state.astype(matrix.dtype)), x)

    def fresh(self) -> str:
        """PowerSGD of the same rank and shape."""
        return repr(PowerSGD(self.rank, self.shape))

    def alpha(self, dim: int) -> float:
        """Refused: there is none. Raises ValueError."""
        no_constant(self, "a start orthogonal to the row space loses everything; PowerSGD starts afresh and has one")
