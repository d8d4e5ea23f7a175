"""Compressors that send some coordinates: identity, Top-K, Rand-K in both of its forms (theory.md 1.2)."""

import jax
import jax.numpy as jnp

from adacgd.compressors.base import Compressor, Message, Unbiased, require_count, require_fits
from adacgd.compressors.selection import top_mask
from adacgd.cost import Cost, index_bits
from adacgd.module import module, static


@module
class Identity(Compressor):
    """C(x) = x. alpha = 1. Sends d scalars."""

    nonexpansive = True

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """x."""
        return Message(x, Cost(x.size))

    def alpha(self, dim: int) -> float:
        """Nothing is lost: 1."""
        return 1.0


def sparse_cost(k: int, dim: int) -> Cost:
    """K scalars and their K indices of ceil(log2 d) bits each. Zeros among them are paid for as any other value."""
    return Cost(k, k * index_bits(dim))


@module
class TopK(Compressor):
    """Keep the k entries largest in magnitude; ties go to the lowest index.

    alpha = k/d, attained by a flat x (theory.md 1.2; Beznosikov et al., On biased compression). The k is static: it
    decides how many entries the message has. NaN counts as larger than infinity, so it is sent and seen.
    Raises ValueError for a k that is no integer >= 1, or above the dimension met.
    """

    k: int = static()
    nonexpansive = True

    def __post_init__(self) -> None:
        require_count("TopK", "k", self.k)

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """The k largest entries, zeros elsewhere."""
        require_fits("TopK", "k", self.k, x.size)
        kept = top_mask(x, jnp.int32(self.k))
        return Message(jnp.where(kept, x, 0), sparse_cost(self.k, x.size))

    def alpha(self, dim: int) -> float:
        """k/d: the k largest squares are at least their share of the sum."""
        require_fits("TopK", "k", self.k, dim)
        return self.k / dim


def random_subset(key: jax.Array, dim: int, k: int) -> jax.Array:
    """A uniformly random k-subset of 0..dim-1 as a mask (dim,): the k largest of dim random words.

    Equal words (one pair in 2^32) fall to the lowest index.
    """
    words = jax.random.bits(key, (dim,), jnp.uint32)
    indices = jax.lax.top_k(words, k)[1]
    return jnp.zeros(dim, bool).at[indices].set(True)


@module
class RandK(Unbiased):
    """Keep a uniformly random k-subset, scaled by d/k: unbiased, omega = d/k - 1, with equality for every x.

    Scaled, it must not stand in error feedback; `Shrunk(RandK(k))` is the contractive form with the same draws as
    `ContractiveRandK(k)`. Indices are paid for; a form whose seed is shared needs none.
    """

    k: int = static()

    def __post_init__(self) -> None:
        require_count("RandK", "k", self.k)

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """d/k times a random k of the entries, zeros elsewhere."""
        require_fits("RandK", "k", self.k, x.size)
        kept = random_subset(key, x.size, self.k)
        return Message(jnp.where(kept, x * float(x.size / self.k), 0), sparse_cost(self.k, x.size))

    def omega(self, dim: int) -> float:
        """d/k - 1."""
        require_fits("RandK", "k", self.k, dim)
        return dim / self.k - 1


@module
class ContractiveRandK(Compressor):
    """Keep a uniformly random k-subset, unscaled: contractive, alpha = k/d, with equality for every x."""

    k: int = static()
    nonexpansive = True

    def __post_init__(self) -> None:
        require_count("ContractiveRandK", "k", self.k)

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """A random k of the entries, zeros elsewhere."""
        require_fits("ContractiveRandK", "k", self.k, x.size)
        kept = random_subset(key, x.size, self.k)
        return Message(jnp.where(kept, x, 0), sparse_cost(self.k, x.size))

    def alpha(self, dim: int) -> float:
        """k/d: each coordinate arrives with that probability."""
        require_fits("ContractiveRandK", "k", self.k, dim)
        return self.k / dim
