"""The energy rule: as many of the largest coordinates as accuracy asks for (derived; theory.md section 2)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.base import Message, fetch, require_nonnegative, sq
from adacgd.compressors.codes import SparseVariable
from adacgd.compressors.selection import magnitude_bits, sort_bits, tail_sums, top_mask
from adacgd.compressors.thresholds import require_share
from adacgd.cost import Cost, index_bits, level_bits
from adacgd.mechanisms import AB, ThreePoint, accurate, silent_pair, single
from adacgd.module import module
from adacgd.steps import REPLACING, Sent, Step


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
        d, (kept, K) = x.size, self._kept(h, y, x)
        cost = Cost(K, K * index_bits(d) + level_bits(d))
        return Message(jnp.where(kept & (x != h), x, h), cost, jnp.minimum(K, 1))

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """K, which coordinates, and what they become."""
        kept, value = fetch(self._kept(h, y, x)[0], self(key, h, y, x).value)
        indices = np.flatnonzero(kept)
        return Sent((Step(REPLACING, SparseVariable(), (indices, value[indices])),))

    @jax.jit  # called plainly it would be traced and compiled each time
    def _kept(self, h: jax.Array, y: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The K largest entries of x - h, (d,) bool, and K."""
        d, difference = x.size, x - h
        tail = tail_sums(sort_bits(magnitude_bits(difference)), jnp.arange(d + 1, dtype=jnp.int32))
        enough = accurate(tail, self.zeta, sq(x - y)) | accurate(tail, 1 - self.alpha, sq(difference))
        K = jnp.where(jnp.any(enough), jnp.argmax(enough), d).astype(jnp.int32)  # all of it where nothing is a measure
        return top_mask(difference, K), K

    def constants(self, dim: int) -> AB:
        """(theta(alpha), max(beta(alpha), zeta)); P = Q = 2, for the increment is 0 or entries of x - h."""
        alpha, zeta = (float(single("Energy", name, getattr(self, name))) for name in ("alpha", "zeta"))
        return silent_pair(alpha, zeta, False, {"P": 2.0, "Q": 2.0})
