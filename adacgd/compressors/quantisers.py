"""Compressors that send few bits of every coordinate (theory.md 1.2)."""

import jax
import jax.numpy as jnp

from adacgd.compressors.base import Compressor, Message
from adacgd.cost import Cost
from adacgd.module import module


@module
class Sign(Compressor):
    """Scaled sign: (|x|_1 / d) sign(x) with sign(0) = +1, so that one bit an entry carries it.

    Error exactly 1 - |x|_1^2 / (d |x|^2), hence alpha = 1/d, attained by a one-hot x (theory.md 1.2).
    """

    nonexpansive = True

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """(|x|_1 / d) sign(x)."""
        scale = jnp.mean(jnp.abs(x))
        return Message(jnp.where(x >= 0, scale, -scale), Cost(1, x.size))

    def alpha(self, dim: int) -> float:
        """1/d."""
        return 1 / dim
