"""Selection of the largest coordinates: the one place that sorts, and that leaves long vectors to `bisection`.

Magnitudes are compared as the bit patterns of |x|, which order as the numbers do, make an integer sort several times
faster than a float sort, and give every special value a place: -0 equals +0, and NaN stands above infinity, so that a
NaN is always selected first and shown, never hidden. Ties go to the lowest index. docs/selection.md has what it costs.
"""

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from adacgd.compressors import bisection
from adacgd.compressors.bisection import magnitudes

_WORD = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}
_FEW = 256  # coordinates up to which a masked sum for each level costs less than the steps of a running sum
_BLOCK = 64  # columns of a block of the running sums: one small triangular product instead of a scan over d


def magnitude_bits(x: jax.Array) -> jax.Array:
    """The bits of |x| as unsigned integers of the same width and shape: they order as |x| does."""
    return jax.lax.bitcast_convert_type(jnp.abs(x), _WORD[x.dtype.itemsize])


def sort_bits(bits: jax.Array) -> jax.Array:
    """Ascending along the last axis."""
    return jax.lax.sort(bits, dimension=-1, is_stable=False)


def largest(ordered: jax.Array, k: jax.Array) -> jax.Array:
    """(...) the bits of the k-th largest of each row: ordered (..., d), their sort; k (...) integers in 0..d."""
    d = ordered.shape[-1]
    return jnp.take_along_axis(ordered, jnp.minimum(d - k, d - 1)[..., None], axis=-1)[..., 0]


def largest_mask(bits: jax.Array, threshold: jax.Array, k: jax.Array) -> jax.Array:
    """Which coordinates are the k largest: exactly k per row, ties to the lowest index.

    bits: (..., d), magnitudes. threshold: (...), bits of the k-th largest, or any that exactly k reach. k: (...)
    integers in 0..d. Not to be mapped with `vmap`: the repair of ties stands behind one scalar `cond` for the whole
    batch, since a mapped one would always run.
    """
    threshold, k = threshold[..., None], k[..., None]
    mask = (bits >= threshold) & (k > 0)
    exact = jnp.all(jnp.sum(mask, axis=-1, keepdims=True) == k)

    def repair() -> jax.Array:
        above, equal = bits > threshold, bits == threshold
        room = k - jnp.sum(above, axis=-1, keepdims=True)
        return (above | (equal & (jnp.cumsum(equal, axis=-1) <= room))) & (k > 0)

    return jax.lax.cond(exact, lambda: mask, repair)


@custom_vmap
def top_mask(x: jax.Array, k: jax.Array) -> jax.Array:
    """The mask of the k largest magnitudes of each row: x (..., d), k (...) -> bool (..., d). May be mapped."""
    return bisection.by_groups(_counted, x, k) if x.shape[-1] >= bisection.LONG else _sorted(x, k)


def _sorted(x: jax.Array, k: jax.Array) -> jax.Array:
    bits = magnitude_bits(x)
    return largest_mask(bits, largest(sort_bits(bits), k), k)


def _counted(x: jax.Array, k: jax.Array) -> jax.Array:
    bits = magnitude_bits(x)
    return largest_mask(bits, bisection.threshold(bits, k), k)


@top_mask.def_vmap
def _top_mask_batched(size: int, batched: list[bool], x: jax.Array, k: jax.Array) -> tuple[jax.Array, bool]:
    x, k = rows(size, batched, x, k)
    return top_mask(x, k), True


def rows(size: int, batched: list[bool], *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Give each array the mapped axis in front, so that the rule of a `custom_vmap` is the function itself on rows."""
    return tuple(a if b else jnp.broadcast_to(a, (size, *a.shape)) for a, b in zip(arrays, batched, strict=True))


def first_within(x: jax.Array, ks: jax.Array, allowed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first of nested Top-K levels that leaves a sum of squares within what is allowed, else the last; its mask.

    x: (..., d). ks: (..., m) integers in 1..d, ascending. allowed: (...); NaN allows none. Returns the index of the
    level, (...) int32, where of levels that keep as many as the last any stands for all; and the mask of its
    coordinates, (..., d) bool. Not to be mapped with `vmap`, as `largest_mask`.
    """
    if x.shape[-1] >= bisection.LONG:
        return bisection.by_groups(_first_counted, x, ks, allowed)
    return _first_sorted(x, ks, allowed)


def _first_sorted(x: jax.Array, ks: jax.Array, allowed: jax.Array) -> tuple[jax.Array, jax.Array]:
    bits = magnitude_bits(x)
    ordered = sort_bits(bits)
    enough = tail_sums(ordered, ks) <= allowed[..., None]
    index = jnp.where(jnp.any(enough, axis=-1), jnp.argmax(enough, axis=-1), ks.shape[-1] - 1).astype(jnp.int32)
    k = jnp.take_along_axis(ks, index[..., None], axis=-1)[..., 0]
    return index, largest_mask(bits, largest(ordered, k), k)


def _first_counted(x: jax.Array, ks: jax.Array, allowed: jax.Array) -> tuple[jax.Array, jax.Array]:
    bits = magnitude_bits(x)
    index, known = bisection.first_within(bits, ks, allowed)
    k = jnp.take_along_axis(ks, index[..., None], axis=-1)[..., 0]
    return index, largest_mask(bits, bisection.threshold(bits, k, known), k)


def tail_sums(ordered: jax.Array, kept: jax.Array) -> jax.Array:
    """What nested Top-K levels leave behind: sum of squares of all but the `kept` largest, from one sort.

    ordered: (..., d) sorted bits of magnitudes. kept: (..., m) integers in 0..d. Returns (..., m).
    Summed from the small end: nothing is subtracted, so nothing cancels, and a full send leaves exactly 0.
    """
    d = ordered.shape[-1]
    squares = magnitudes(ordered) ** 2
    if d <= _FEW:
        left = jax.lax.broadcasted_iota(kept.dtype, (*kept.shape, d), kept.ndim) < (d - kept[..., None])
        return jnp.sum(jnp.where(left, squares[..., None, :], 0), axis=-1)
    finite = squares < jnp.inf  # ascending: a product with 0 must not turn what stands above into NaN below it
    sums = jnp.where(finite, _running_sums(jnp.where(finite, squares, 0)), squares)
    left = jnp.take_along_axis(sums, jnp.maximum(d - kept - 1, 0), axis=-1)
    return jnp.where(kept >= d, 0, left)


def _running_sums(q: jax.Array) -> jax.Array:
    """Running sums along the last axis: within a block by a triangular product, plus the sum of all earlier blocks."""
    *lead, d = q.shape
    blocks = -(-d // _BLOCK)
    padded = jnp.pad(q, [(0, 0)] * len(lead) + [(0, blocks * _BLOCK - d)])
    padded = padded.reshape(*lead, blocks, _BLOCK)
    triangle = jnp.triu(jnp.ones((_BLOCK, _BLOCK), q.dtype))
    inner = jnp.matmul(padded, triangle, precision="highest")
    totals = inner[..., :-1, -1]
    before = jnp.cumsum(jnp.pad(totals, [(0, 0)] * len(lead) + [(1, 0)]), axis=-1)
    return (inner + before[..., None]).reshape(*lead, blocks * _BLOCK)[..., :d]
