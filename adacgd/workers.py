"""The workers of a run, all here or spread over devices: the one place where anything is summed over them.

The sum has one shape whatever the number of devices, so that its bits are the same on any: n = 2^k m, m odd; blocks of
m neighbours are added up first, then neighbouring blocks, pair by pair, until one is left. Spread over 2^j <= 2^k
devices each adds up its own branch and only the branches' sums travel: d words a device. Over another number of devices
the rows themselves travel, n d words, and everybody adds them up. `exact=False` gives the bits up for one reduction.
"""

from typing import Any

import jax
import jax.numpy as jnp

from adacgd.module import module, static

AXIS = "workers"  # of the mesh, and of every array that has an entry for each worker


def tree_sum(rows: jax.Array) -> jax.Array:
    """The sum over the first axis, (n, ...) -> (...), in the order of the module's text."""
    n = rows.shape[0]
    blocks = n & -n  # the largest power of two that divides n
    return _pairs(_pairs(rows.reshape(blocks, n // blocks, *rows.shape[1:]), 1), 0)


def tree_mean(rows: jax.Array) -> jax.Array:
    """The mean over the first axis, (n, ...) -> (...)."""
    return tree_sum(rows) / rows.shape[0]


def _pairs(rows: jax.Array, axis: int) -> jax.Array:
    """Neighbours added, then neighbours of those, along an axis, which is gone; one that is left over waits."""
    part = lambda start, stop, step=1: jax.lax.slice_in_dim(rows, start, stop, step, axis)
    while (length := rows.shape[axis]) > 1:
        even = length - length % 2
        added = part(0, even, 2) + part(1, even, 2)
        rows = jnp.concatenate([added, part(even, length)], axis) if even < length else added
    return jnp.squeeze(rows, axis)


@module
class Workers:
    """n workers in `parts` equal parts, one a device, in order; arrays "of the workers here" have n / parts entries.

    With parts > 1 its methods are called inside a `shard_map` over AXIS. exact: sums with the same bits for any parts.
    """

    n: int = static()
    parts: int = static(default=1)
    exact: bool = static(default=True)

    @property
    def here(self) -> int:
        """How many are here."""
        return self.n // self.parts

    @property
    def ids(self) -> jax.Array:
        """(here,) int32, which they are."""
        own = jnp.arange(self.here)
        return own if self.parts == 1 else own + jax.lax.axis_index(AXIS) * self.here

    @property
    def branches(self) -> bool:
        """Whether the sum of the workers here is a branch of the whole sum, so that nothing else need travel."""
        return self.parts & (self.parts - 1) == 0 and self.n % self.parts == 0 and (self.n & -self.n) >= self.parts

    @property
    def traffic(self) -> int:
        """Vectors of length d that each device is sent to form one sum."""
        if self.parts == 1:
            return 0
        return self.parts if self.branches or not self.exact else self.n

    def sum(self, rows: jax.Array) -> jax.Array:
        """Over all workers; rows: (here, ...), those here. Everybody is told."""
        if self.parts == 1:
            return tree_sum(rows)
        if not self.exact:
            return jax.lax.psum(tree_sum(rows), AXIS)
        if self.branches:
            return tree_sum(jax.lax.all_gather(tree_sum(rows), AXIS))
        return tree_sum(jax.lax.all_gather(rows, AXIS, tiled=True))

    def mean(self, rows: jax.Array) -> jax.Array:
        """Over all workers; rows: (here, ...)."""
        return self.sum(rows) / self.n

    def largest(self, values: jax.Array) -> jax.Array:
        """Over all workers; values: (here,)."""
        top = jnp.max(values)
        return top if self.parts == 1 else jax.lax.pmax(top, AXIS)

    def table(self, rows: Any, axis: int = 0) -> Any:
        """What each worker has, for all of them: along `axis` of every leaf, those here become all n."""
        if self.parts == 1:
            return rows
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, AXIS, axis=axis, tiled=True), rows)
