"""Compressors that send so many coordinates: identity, Top-K, Rand-K in both of its forms, mixtures (theory.md 1.2).

`coding` says how indices are written: `"fixed"`, ceil(log2 d) bits each; `"rank"`, ceil(log2 C(d, K)) bits in all, the
information-theoretic price; `"gaps"`, Elias gamma code of the distances between them, whose price depends on them.
"""

import abc
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.base import (
    MOST_OUTCOMES,
    Coded,
    Compressor,
    Message,
    Outcomes,
    Unbiased,
    brief,
    fetch,
    require_count,
    require_fits,
)
from adacgd.compressors.codes import Dense, Format, Seeded, Sparse
from adacgd.compressors.fields import CODINGS, subset_bits
from adacgd.compressors.nested import Blocks, PartlySeeded
from adacgd.compressors.selection import top_mask
from adacgd.cost import Cost, total
from adacgd.module import module, static


@module
class Identity(Compressor, Coded):
    """C(x) = x. alpha = 1. Sends d scalars."""

    verbatim = True
    nonexpansive = True
    equality = True

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """x."""
        return Message(x, Cost(x.size))

    def alpha(self, dim: int) -> float:
        """Nothing is lost: 1."""
        return 1.0

    def format(self, dim: int, float_width: int) -> Format:
        """All coordinates."""
        return Dense()

    def numbers(self, key: jax.Array, x: jax.Array, **shared: Any) -> tuple[np.ndarray, ...]:
        """x."""
        return fetch(x)


class Masked(Coded):
    """A compressor whose value is a scaled x on the coordinates of a mask, +0 elsewhere; those are what travels."""

    @property
    def verbatim(self) -> bool:  # type: ignore[override]
        """The contractive ones are those that do not scale."""
        return isinstance(self, Compressor)

    @abc.abstractmethod
    def kept(self, key: jax.Array, x: jax.Array, **shared: Any) -> jax.Array:
        """(d,) bool: which coordinates are sent, be they zero or not."""

    def numbers(self, key: jax.Array, x: jax.Array, **shared: Any) -> tuple[np.ndarray, ...]:
        """Their indices, ascending, and their values."""
        kept, value = fetch(self.kept(key, x, **shared), self(key, x, **shared).value)  # type: ignore[operator]
        indices = np.flatnonzero(kept)
        return indices, value[indices]


@jax.jit  # called plainly it would be traced and compiled each time
def top(x: jax.Array, k: jax.Array) -> jax.Array:
    """`top_mask`, constant almost everywhere: no derivative passes, so that one can be taken of what it selects."""
    return top_mask(jax.lax.stop_gradient(x), k)


def gap_bits(kept: jax.Array) -> jax.Array:
    """() int32, bits of the Elias gamma code of the distances between the indices of a mask, the first from -1."""
    index = jnp.arange(kept.size, dtype=jnp.int32)
    latest = jax.lax.cummax(jnp.where(kept, index, -1))
    gap = index - jnp.concatenate([jnp.full(1, -1, jnp.int32), latest[:-1]])
    return jnp.sum(jnp.where(kept, gamma_bits(gap), 0), dtype=jnp.int32)


def gamma_bits(integers: jax.Array) -> jax.Array:
    """Bits of positive int32 in Elias gamma code: 2 floor(log2 n) + 1."""
    return 2 * (31 - jax.lax.clz(integers)) + 1


def sparse_cost(k: int, dim: int, coding: str = "fixed", kept: jax.Array | None = None) -> Cost:
    """K scalars and their K indices. Zeros among them are paid for as any other value. `"gaps"` looks at the mask."""
    return Cost(k, gap_bits(kept) if coding == "gaps" and kept is not None else subset_bits(k, dim, coding))


def require_coding(owner: str, value: Any, choices: tuple[str, ...] = CODINGS) -> None:
    """One of the names. Raises ValueError."""
    if value not in choices:
        raise ValueError(f"{owner}(coding=...) must be one of {', '.join(choices)}; got {value!r}.")


@module
class TopK(Compressor, Masked):
    """Keep the k entries largest in magnitude; ties go to the lowest index.

    alpha = k/d, attained by a flat x in every dimension (theory.md 1.2; Beznosikov et al., On biased compression). The
    k is static: it decides how many entries the message has. NaN counts as larger than infinity, so it is sent and
    seen.
    Raises ValueError for a k that is no integer >= 1, or above the dimension met.
    """

    k: int = static()
    coding: str = static(default="fixed")
    nonexpansive = True
    __repr__ = brief

    def __post_init__(self) -> None:
        require_count("TopK", "k", self.k)
        require_coding("TopK", self.coding)

    def kept(self, key: jax.Array, x: jax.Array, **shared: Any) -> jax.Array:
        """The k largest."""
        require_fits("TopK", "k", self.k, x.size)
        return top(x, jnp.int32(self.k))

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """The k largest entries, zeros elsewhere."""
        kept = self.kept(key, x)
        return Message(jnp.where(kept, x, 0), sparse_cost(self.k, x.size, self.coding, kept))

    def alpha(self, dim: int) -> float:
        """k/d: the k largest squares are at least their share of the sum."""
        require_fits("TopK", "k", self.k, dim)
        return self.k / dim

    def worst(self, dim: int) -> np.ndarray:
        """Flat."""
        return np.ones(dim)

    def attained(self, dim: int) -> bool:
        """Always."""
        return True

    def format(self, dim: int, float_width: int) -> Format:
        """k indices and values."""
        return Sparse(self.k, self.coding)


@module
class BlockTopK(Compressor, Coded):
    """Top-K within each of some consecutive blocks: ks[j] of sizes[j] coordinates, which sum to d.

    alpha = min_j ks[j] / sizes[j], attained in every dimension by an x that is flat in the worst block and 0 elsewhere
    (theory.md 1.2). Indices are local to their block, so that they are cheaper than those of one Top-K.
    """

    ks: tuple[int, ...] = static()
    sizes: tuple[int, ...] = static()
    coding: str = static(default="fixed")
    nonexpansive = True
    verbatim = True
    __repr__ = brief

    def __post_init__(self) -> None:
        object.__setattr__(self, "ks", tuple(self.ks))
        object.__setattr__(self, "sizes", tuple(self.sizes))
        if len(self.ks) != len(self.sizes) or not self.ks:
            raise ValueError(f"BlockTopK needs one k a block, got ks={self.ks} for sizes={self.sizes}.")
        for k, size in zip(self.ks, self.sizes, strict=True):
            require_count("BlockTopK", "ks", k)
            require_count("BlockTopK", "sizes", size)
            require_fits("BlockTopK", "ks", k, size)
        require_coding("BlockTopK", self.coding)

    def _levels(self, dim: int) -> list[TopK]:
        if sum(self.sizes) != dim:
            raise ValueError(f"BlockTopK(sizes={self.sizes}) is for dimension {sum(self.sizes)}, met {dim}.")
        return [TopK(k, self.coding) for k in self.ks]

    def _parts(self, x: jax.Array) -> list[jax.Array]:
        return jnp.split(x, np.cumsum(self.sizes)[:-1])

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """The largest entries of each block."""
        sent = [level(key, part) for level, part in zip(self._levels(x.size), self._parts(x), strict=True)]
        return Message(jnp.concatenate([m.value for m in sent]), total([m.cost for m in sent]))

    def alpha(self, dim: int) -> float:
        """The least share of a block."""
        self._levels(dim)
        return min(k / size for k, size in zip(self.ks, self.sizes, strict=True))

    def worst(self, dim: int) -> np.ndarray:
        """Flat in the worst block."""
        self._levels(dim)
        j = int(np.argmin([k / size for k, size in zip(self.ks, self.sizes, strict=True)]))
        return np.repeat(np.arange(len(self.sizes)) == j, self.sizes).astype(float)

    def attained(self, dim: int) -> bool:
        """Always."""
        return True

    def format(self, dim: int, float_width: int) -> Format:
        """One block after the other."""
        return Blocks(tuple(Sparse(k, self.coding) for k in self.ks), self.sizes)

    def numbers(self, key: jax.Array, x: jax.Array, **shared: Any) -> tuple[np.ndarray, ...]:
        """Indices and values of each block."""
        parts = zip(self._levels(x.size), self._parts(x), strict=True)
        return tuple(n for level, part in parts for n in level.numbers(key, part))


def random_subset(key: jax.Array, dim: int, k: int) -> jax.Array:
    """A uniformly random k-subset of 0..dim-1 as a mask (dim,): the k largest of dim random words.

    Equal words (one pair in 2^32) fall to the lowest index.
    """
    return largest_words(jax.random.bits(key, (dim,), jnp.uint32), k)


def largest_words(words: jax.Array, k: int) -> jax.Array:
    """The mask of the k largest words, (d,) uint32; equal ones fall to the lowest index."""
    return jnp.zeros(words.size, bool).at[jax.lax.top_k(words, k)[1]].set(True)


class _Random(Masked):
    """A uniformly random k-subset, its indices sent or, with a seed that both ends share, known."""

    k: int
    shared_seed: bool
    coding: str
    equality = True
    scaled = False

    def outcomes(self, x: np.ndarray) -> Outcomes | None:
        """Every subset is as likely."""
        count = math.comb(x.size, self.k)
        if count > MOST_OUTCOMES:
            return None
        kept = np.zeros((count, x.size), bool)
        subsets = np.array(list(itertools.combinations(range(x.size), self.k)))
        np.put_along_axis(kept, subsets, True, axis=1)
        return np.full(count, 1 / count), np.where(kept, x * (x.size / self.k if self.scaled else 1.0), 0)

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_count(name, "k", self.k)
        require_coding(name, self.coding)
        if not isinstance(self.shared_seed, bool):
            raise ValueError(f"{name}(shared_seed=...) must be True or False, got {self.shared_seed!r}.")
        if self.shared_seed and self.coding != "fixed":
            raise ValueError(f"{name}(shared_seed=True, coding={self.coding!r}): a shared seed sends no indices.")

    def kept(self, key: jax.Array, x: jax.Array, **shared: Any) -> jax.Array:
        """A random k of them."""
        require_fits(type(self).__name__, "k", self.k, x.size)
        return random_subset(key, x.size, self.k)

    def cost(self, kept: jax.Array) -> Cost:
        """k scalars, and their indices where they are sent."""
        return Cost(self.k) if self.shared_seed else sparse_cost(self.k, kept.size, self.coding, kept)

    def format(self, dim: int, float_width: int) -> Format:
        """k indices and values; with a shared seed the indices stand in the header."""
        return Seeded(self.k) if self.shared_seed else Sparse(self.k, self.coding)


@module
class RandK(_Random, Unbiased):
    """Keep a uniformly random k-subset, scaled by d/k: unbiased, omega = d/k - 1, with equality for every x.

    (theory.md 1.2; Konecny, Richtarik, Randomized distributed mean estimation.) Scaled, it must not stand in error
    feedback; `Shrunk(RandK(k))` is the contractive form with the same draws as `ContractiveRandK(k)`. Indices are paid
    for, except with `shared_seed`: both ends derive them from a seed, one for each worker, so draws remain private.
    """

    k: int = static()
    shared_seed: bool = static(default=False)
    coding: str = static(default="fixed")
    scaled = True
    __repr__ = brief

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """d/k times a random k of the entries, zeros elsewhere."""
        kept = self.kept(key, x)
        return Message(jnp.where(kept, x * float(x.size / self.k), 0), self.cost(kept))

    def omega(self, dim: int) -> float:
        """d/k - 1."""
        require_fits("RandK", "k", self.k, dim)
        return dim / self.k - 1


@module
class ContractiveRandK(_Random, Compressor):
    """Keep a uniformly random k-subset, unscaled: contractive, alpha = k/d, with equality for every x (theory.md 1.2).

    `shared_seed` as in `RandK`.
    """

    k: int = static()
    shared_seed: bool = static(default=False)
    coding: str = static(default="fixed")
    nonexpansive = True
    __repr__ = brief

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """A random k of the entries, zeros elsewhere."""
        kept = self.kept(key, x)
        return Message(jnp.where(kept, x, 0), self.cost(kept))

    def alpha(self, dim: int) -> float:
        """k/d: each coordinate arrives with that probability."""
        require_fits("ContractiveRandK", "k", self.k, dim)
        return self.k / dim


@module
class MixK(Compressor, Masked):
    """The k1 largest entries, and k2 of the others at random: alpha = (k1 + k2)/d, attained by a flat x always.

    Of a flat x the k1 + k2 carry exactly their share, of any other more: theory.md 1.2. With `shared_seed` the k2 are
    drawn from a seed that both ends hold, and only the k1 indices are paid for.
    """

    k1: int = static()
    k2: int = static()
    shared_seed: bool = static(default=False)
    nonexpansive = True
    __repr__ = brief

    def __post_init__(self) -> None:
        require_count("MixK", "k1", self.k1)
        require_count("MixK", "k2", self.k2)

    def _masks(self, key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        require_fits("MixK", "k1 + k2", self.k1 + self.k2, x.size)
        largest = top(x, jnp.int32(self.k1))
        words = jax.random.bits(key, (x.size,), jnp.uint32) | jnp.uint32(1 << 31)  # above the 0 of those that are taken
        return largest, largest_words(jnp.where(largest, 0, words), self.k2)

    def kept(self, key: jax.Array, x: jax.Array, **shared: Any) -> jax.Array:
        """Both parts."""
        largest, others = self._masks(key, x)
        return largest | others

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """The entries kept, zeros elsewhere."""
        paid = self.k1 if self.shared_seed else self.k1 + self.k2
        cost = Cost(self.k1 + self.k2, subset_bits(paid, x.size, "fixed"))
        return Message(jnp.where(self.kept(key, x), x, 0), cost)

    def alpha(self, dim: int) -> float:
        """(k1 + k2)/d."""
        require_fits("MixK", "k1 + k2", self.k1 + self.k2, dim)
        return (self.k1 + self.k2) / dim

    def worst(self, dim: int) -> np.ndarray:
        """Flat."""
        return np.ones(dim)

    def attained(self, dim: int) -> bool:
        """Always."""
        return True

    def format(self, dim: int, float_width: int) -> Format:
        """Indices and values; with a shared seed the k2 indices stand in the header."""
        return PartlySeeded(self.k1, self.k2) if self.shared_seed else Sparse(self.k1 + self.k2)

    def numbers(self, key: jax.Array, x: jax.Array, **shared: Any) -> tuple[np.ndarray, ...]:
        """Indices and values; with a shared seed the top ones first."""
        if not self.shared_seed:
            return super().numbers(key, x)
        first, second = (np.flatnonzero(mask) for mask in fetch(*self._masks(key, x)))
        return first, second, fetch(x)[0][np.concatenate([first, second])]
