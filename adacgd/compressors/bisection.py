"""Selection without a sort, for long vectors: thresholds on |x| are bracketed by counting what reaches them.

A sort moves every element some log2 d times; a count only reads, and a group of rows stays near the core while it is
read. Thresholds are bit patterns of magnitudes, which are integers that order as the numbers do, so that a bracket of
width one is as far as one can go and ties, zeros, infinities and NaN need no word of their own. docs/selection.md.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

LONG = 1024  # coordinates from which counting is faster than sorting (docs/selection.md)
GROUP = 1 << 15  # elements of the rows that are looked at together: they stay near the core, and few wait for others
_LANES = 1024  # partial sums: no sum is longer than this or d/1024, so that many small squares are not lost


def magnitudes(bits: jax.Array) -> jax.Array:
    """The floats that bits stand for."""
    return jax.lax.bitcast_convert_type(bits, {2: jnp.float16, 4: jnp.float32, 8: jnp.float64}[bits.dtype.itemsize])


def by_groups(select: Callable[..., Any], *arrays: jax.Array) -> Any:
    """`select` of arrays (..., d), (..., m) or (...), one group of rows after the other, each in the same memory.

    The first array is (..., d) and says what the rows are; `select` is given (rows, d), (rows, m), (rows,) and returns
    a tree of such. The last group overlaps the one before where the rows do not fill it.
    """
    *lead, d = arrays[0].shape
    flat = [a.reshape(-1, *a.shape[len(lead) :]) for a in arrays]
    count = flat[0].shape[0]
    size = min(count, max(1, GROUP // d))

    def group(start: Any) -> Any:
        return select(*(jax.lax.dynamic_slice_in_dim(a, start, size) for a in flat))

    def step(i: jax.Array, out: Any) -> Any:
        start = jnp.minimum(i * size, count - size)
        put = lambda whole, part: jax.lax.dynamic_update_slice_in_dim(whole, part, start, 0)
        return jax.tree.map(put, out, group(start))

    if size == count:
        out = select(*flat)
    else:
        like = jax.eval_shape(group, 0)
        empty = jax.tree.map(lambda a: jnp.zeros((count, *a.shape[1:]), a.dtype), like)
        out = jax.lax.fori_loop(0, -(-count // size), step, empty)
    return jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), out)


class Bracket(NamedTuple):
    """low <= threshold < high, bit patterns, and how many coordinates reach each: at least k, and fewer than k."""

    low: jax.Array
    high: jax.Array
    reach_low: jax.Array
    reach_high: jax.Array

    def narrowed(self, at: jax.Array, reach: jax.Array, k: jax.Array) -> "Bracket":
        """By the knowledge that so many reach `at`. Nothing is forgotten where `at` lies outside."""
        up = (reach >= k) & (at >= self.low)
        down = (reach < k) & (at < self.high)
        return Bracket(
            jnp.where(up, at, self.low),
            jnp.where(down, at, self.high),
            jnp.where(up, reach, self.reach_low),
            jnp.where(down, reach, self.reach_high),
        )

    def middle(self) -> jax.Array:
        """Half way."""
        return self.low + (self.high - self.low) // 2

    def guess(self, k: jax.Array) -> jax.Array:
        """Where exactly k would reach if those between low and high were spread evenly."""
        width = self.high - self.low
        fraction = (self.reach_low - k + 0.5) / jnp.maximum(self.reach_low - self.reach_high, 1)
        real = magnitudes(width).dtype
        return self.low + jnp.clip((width.astype(real) * fraction.astype(real)).astype(width.dtype), 1, width - 1)

    def closed(self, k: jax.Array) -> jax.Array:
        """Whether low is as good as can be: exactly k reach it, or it is the k-th largest itself."""
        return (self.reach_low == k) | (self.high - self.low <= 1)


def everything(bits: jax.Array) -> Bracket:
    """All reach 0, none reaches more than the largest: brackets (rows,) of bits (rows, d)."""
    rows, d = bits.shape
    full, none = jnp.full(rows, d, jnp.int32), jnp.zeros(rows, jnp.int32)
    return Bracket(jnp.zeros(rows, bits.dtype), jnp.max(bits, axis=-1) + 1, full, none)


def threshold(bits: jax.Array, k: jax.Array, start: Bracket | None = None) -> jax.Array:
    """(rows,) bit patterns that exactly k reach, or the k-th largest itself where ties leave no such.

    bits: (rows, d). k: (rows,) int32 in 0..d. start: what is known already. Steps that halve the bracket alternate with
    guesses, so that there are never more than two for each bit; all end when the last row has what it seeks.
    """
    first = everything(bits) if start is None else start

    def open_(state: tuple[jax.Array, Bracket]) -> jax.Array:
        return jnp.any(~state[1].closed(k) & (k > 0))

    def step(state: tuple[jax.Array, Bracket]) -> tuple[jax.Array, Bracket]:
        i, found = state
        at = jnp.where(i % 2 == 0, found.guess(k), found.middle())
        reach = jnp.sum(bits >= at[:, None], axis=-1, dtype=jnp.int32)
        return i + 1, found.narrowed(at, reach, k)

    return jax.lax.while_loop(open_, step, (jnp.int32(0), first))[1].low


def first_within(bits: jax.Array, ks: jax.Array, allowed: jax.Array) -> tuple[jax.Array, Bracket]:
    """The first of nested Top-K levels that leaves no more than is allowed, without looking for the others' thresholds.

    bits: (rows, d). ks: (rows, m) int32, ascending; the last one is taken whatever it leaves. allowed: (rows,), the sum
    of squares that may be left; NaN allows none. Returns the index of the level, (rows,) int32, where of levels that
    keep as many as the last any stands for all; and what is known of its threshold.

    Between two thresholds that are known, what a level leaves lies between what they leave: the bracket of the largest
    threshold that leaves no more than allowed is narrowed until it separates all levels. Where it cannot, because equal
    numbers lie on it, what a level leaves is the sum below them and so many of them.
    """
    rows, d = bits.shape
    column = lambda a: a[:, None]
    squares_below = lambda at: _sum(jnp.where(bits < column(at), magnitudes(bits), 0))
    whole = everything(bits)
    levels = Bracket(*(jnp.broadcast_to(column(a), ks.shape) for a in whole))
    start = jax.lax.bitcast_convert_type(jnp.sqrt(allowed / d) / 2, bits.dtype)  # d squares of it are within
    allows = allowed >= 0

    def between(found: Bracket) -> jax.Array:
        return (ks > column(found.reach_high)) & (ks < column(found.reach_low)) & (ks < ks[:, -1:])

    def open_(state: Any) -> jax.Array:
        found = state[1]
        return jnp.any(between(found) & column(allows & (found.high - found.low > 1)))

    def step(state: Any) -> Any:
        i, found, left, levels = state
        at = jnp.where(i == 0, jnp.clip(start, found.low, found.high - 1), found.middle())
        reach = jnp.sum(bits >= column(at), axis=-1, dtype=jnp.int32)
        below = squares_below(at)
        within = below <= allowed
        found = Bracket(
            jnp.where(within, at, found.low),
            jnp.where(within, found.high, at),
            jnp.where(within, reach, found.reach_low),
            jnp.where(within, found.reach_high, reach),
        )
        return i + 1, found, jnp.where(within, below, left), levels.narrowed(column(at), column(reach), ks)

    state = (jnp.int32(0), whole, jnp.zeros(rows, allowed.dtype), levels)
    _, found, left, levels = jax.lax.while_loop(open_, step, state)
    tied = column(magnitudes(found.low) ** 2) * (column(found.reach_low) - ks).astype(allowed.dtype)
    enough = (ks >= column(found.reach_low)) | (between(found) & (column(left) + tied <= column(allowed)))
    enough &= column(allows)
    index = jnp.where(jnp.any(enough, axis=-1), jnp.argmax(enough, axis=-1), ks.shape[-1] - 1).astype(jnp.int32)
    chosen = Bracket(*(jnp.take_along_axis(a, column(index), axis=-1)[:, 0] for a in levels))
    return index, chosen


def _sum(v: jax.Array) -> jax.Array:
    """Sums of squares of (rows, d) in two stages."""
    rows, d = v.shape
    v = jnp.pad(v, ((0, 0), (0, -d % _LANES))).reshape(rows, -1, _LANES)
    return jnp.sum(jnp.sum(v * v, axis=1), axis=-1)
