"""Compressors of one worker among many, who share a permutation: Perm-K (theory.md 1.2; Szlendak et al., Perm-K)."""

from typing import Any

import jax
import jax.numpy as jnp

from adacgd.compressors.base import Compressor, Message, Unbiased
from adacgd.compressors.codes import Format
from adacgd.compressors.nested import SeededVariable
from adacgd.compressors.sparsifiers import Masked
from adacgd.cost import Cost
from adacgd.module import concrete, module


def require_workers(owner: Any, workers: int | None) -> int:
    """The number of workers. Raises ValueError that names it where it is missing."""
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(f"{owner!r} depends on how many workers there are: pass workers=, got {workers!r}.")
    return workers


class _Permuted(Masked):
    """Which coordinates a worker owns in a round: all of them are dealt out, evenly, in one order that all share.

    Coordinates and workers stand in a random order each and are matched one by one, the shorter row again and again.
    So with n <= d every coordinate has one owner and a worker owns d/n of them, rounded up or down; with n >= d every
    worker owns one coordinate, which has n/d owners, rounded up or down. Who is rounded up is random: a worker owns a
    coordinate with probability 1/min(n, d) exactly, also where neither divides the other.
    """

    shares_randomness = True
    equality = True

    def _dealt(self, dim: int, common: jax.Array, worker: Any, workers: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Places of the coordinates, (d,), the mask of those the worker owns, (d,), and the place of the worker."""
        n = require_workers(self, workers)
        if concrete(worker) and not 0 <= int(worker) < n:
            raise ValueError(f"{self!r}(worker=...) must be one of 0, ..., workers - 1 = {n - 1}, got {worker}.")
        places = jax.random.permutation(jax.random.fold_in(common, 0), dim)
        place = jax.random.permutation(jax.random.fold_in(common, 1), workers)[worker]
        return places, places == place % dim if workers >= dim else places % workers == place, place

    def kept(self, key: jax.Array, x: jax.Array, **shared: Any) -> jax.Array:
        """Those that the worker owns."""
        return self._dealt(x.size, shared["common"], shared["worker"], shared["workers"])[1]

    def cost(self, dim: int, place: Any, workers: int) -> Cost:
        """A scalar for each; both ends know which."""
        return Cost(1 if workers >= dim else dim // workers + (place < dim % workers))

    def format(self, dim: int, float_width: int, workers: int | None = None) -> Format:
        """Values; the indices stand in the header."""
        return SeededVariable()


def owners(dim: int, workers: int) -> list[int]:
    """How many workers own the coordinate at each place, the larger numbers first."""
    return [1] * dim if workers <= dim else [workers // dim + (c < workers % dim) for c in range(dim)]


@module
class PermK(_Permuted, Unbiased):
    """Send the coordinates that a permutation shared by all workers deals to this one, times n over their owners.

    omega = n - 1 for n <= d (scale n) and (n/d) sum_c 1/q_c - 1 for n >= d, where coordinate c has q_c owners and scale
    n/q_c; d - 1 if d divides n. With equality for every x, whether or not one divides the other. Together:
    E|(1/n) sum_i Q_i(a_i) - mean a|^2 = joint(d, n) (mean|a_i|^2 - |mean a|^2), with joint = 1 for n <= d and
    (d-1)/(n-1) if d divides n, so equal vectors arrive without loss (theory.md 1.2; Szlendak, Tyurin, Richtarik,
    Permutation compressors for provably faster distributed nonconvex optimization).
    """

    def __call__(  # type: ignore[override]
        self, key: jax.Array, x: jax.Array, *, common: jax.Array, worker: Any, workers: int, round: Any = None
    ) -> Message:
        """The own coordinates, scaled, zeros elsewhere. Only `common` is drawn from."""
        places, kept, place = self._dealt(x.size, common, worker, workers)
        scale: Any = float(workers)
        if workers > x.size:
            scale = jnp.asarray([workers / q for q in owners(x.size, workers)], x.dtype)[places]
        return Message(jnp.where(kept, x * scale, 0), self.cost(x.size, place, workers))

    def omega(self, dim: int, workers: int | None = None) -> float:
        """n - 1, or with more workers than coordinates the mean of n/q_c weighted by owners, less 1."""
        n = require_workers(self, workers)
        return n / dim * sum(1 / q for q in owners(dim, n)) - 1 if n > dim else n - 1.0

    def joint(self, dim: int, workers: int) -> float:
        """The variance of the average over that of the vectors: mean of (n/q_c - 1)/(n - 1), from sampling q_c of n."""
        n = require_workers(self, workers)
        return sum((n / q - 1) / (n - 1) for q in owners(dim, n)) / dim if n > 1 else 0.0


@module
class ContractivePermK(_Permuted, Compressor):
    """Perm-K unscaled: alpha = 1/min(n, d), with equality for every x (theory.md 1.2), as one of n workers alone."""

    nonexpansive = True

    def __call__(  # type: ignore[override]
        self, key: jax.Array, x: jax.Array, *, common: jax.Array, worker: Any, workers: int, round: Any = None
    ) -> Message:
        """The own coordinates, zeros elsewhere. Only `common` is drawn from."""
        _, kept, place = self._dealt(x.size, common, worker, workers)
        return Message(jnp.where(kept, x, 0), self.cost(x.size, place, workers))

    def alpha(self, dim: int, workers: int | None = None) -> float:
        """The probability that a coordinate is the worker's own."""
        return 1 / min(require_workers(self, workers), dim)
