"""The energy rule: as many of the largest coordinates as accuracy asks for (derived; theory.md section 2)."""

import jax
import jax.numpy as jnp

from adacgd.compressors.base import Message, require_nonnegative, sq
from adacgd.compressors.selection import magnitude_bits, sort_bits, tail_sums, top_mask
from adacgd.compressors.thresholds import require_share
from adacgd.cost import Cost, index_bits, level_bits
from adacgd.mechanisms import AB, ThreePoint, accurate, silent_pair, single
from adacgd.module import module


@module
class Energy(ThreePoint):
    """C_{h,y}(x) = h + Top-K(x - h) with the smallest K >= 0 for which

        tail(K) <= max(zeta |x - y|^2, (1 - alpha)|x - h|^2),

    tail(K) = |x - C_{h,y}(x)|^2 being the sum of squares of all but the K largest entries of x - h. A = theta(alpha),
    B = max(beta(alpha), zeta), by the case split of AdaCGD (derived, theory.md section 2). alpha is a parameter and no
    compressor's: K is at most ceil(alpha d), which a flat x - h needs, and less where the entries differ in size.

    Sends K scalars with their indices, and ceil(log2(d + 1)) bits for the count K. Level 0 where K = 0, else 1.
    alpha: in (0, 1]. zeta: finite, >= 0; with 0 the rule is that of EF21 with an exact K for each message.
    """

    alpha: float | jax.Array
    zeta: float | jax.Array

    def __post_init__(self) -> None:
        require_share("Energy", "alpha", self.alpha)
        require_nonnegative("Energy", "zeta", self.zeta)

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array) -> Message:
        """h + Top-K(x - h)."""
        d, difference = x.size, x - h
        tail = tail_sums(sort_bits(magnitude_bits(difference)), jnp.arange(d + 1, dtype=jnp.int32))
        enough = accurate(tail, self.zeta, sq(x - y)) | accurate(tail, 1 - self.alpha, sq(difference))
        K = jnp.where(jnp.any(enough), jnp.argmax(enough), d).astype(jnp.int32)  # all of it where nothing is a measure
        value = jnp.where(top_mask(difference, K) & (x != h), x, h)
        return Message(value, Cost(K, K * index_bits(d) + level_bits(d)), jnp.minimum(K, 1))

    def constants(self, dim: int) -> AB:
        """(theta(alpha), max(beta(alpha), zeta)); P = Q = 2, for the increment is 0 or entries of x - h."""
        alpha, zeta = (float(single("Energy", name, getattr(self, name))) for name in ("alpha", "zeta"))
        return silent_pair(alpha, zeta, False, {"P": 2.0, "Q": 2.0})
