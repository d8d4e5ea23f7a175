"""Selection of the largest coordinates: the one place that sorts.

Magnitudes are compared as the bit patterns of |x|, which order as the numbers do, make an integer sort several times
faster than a float sort, and give every special value a place: -0 equals +0, and NaN stands above infinity, so that a
NaN is always selected first and shown, never hidden. Ties go to the lowest index.
"""

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

_WORD = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}
_FEW = 256  # coordinates up to which a masked sum for each level costs less than the steps of a running sum
_BLOCK = 64  # columns of a block of the running sums: one small triangular product instead of a scan over d


def magnitude_bits(x: jax.Array) -> jax.Array:
    """The bits of |x| as unsigned integers of the same width and shape: they order as |x| does."""
    return jax.lax.bitcast_convert_type(jnp.abs(x), _WORD[x.dtype.itemsize])


def sort_bits(bits: jax.Array) -> jax.Array:
    """Ascending along the last axis."""
    return jax.lax.sort(bits, dimension=-1, is_stable=False)


def largest_mask(bits: jax.Array, ordered: jax.Array, k: jax.Array) -> jax.Array:
    """Which coordinates are the k largest: exactly k per row, ties to the lowest index.

    bits, ordered: (..., d), magnitudes and their sort. k: (...) integers in 0..d. Not to be mapped with `vmap`: the
    repair of ties stands behind one scalar `cond` for the whole batch, since a mapped one would always run.
    """
    d = bits.shape[-1]
    k = k[..., None]
    threshold = jnp.take_along_axis(ordered, jnp.minimum(d - k, d - 1), axis=-1)
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
    bits = magnitude_bits(x)
    return largest_mask(bits, sort_bits(bits), k)


@top_mask.def_vmap
def _top_mask_batched(size: int, batched: list[bool], x: jax.Array, k: jax.Array) -> tuple[jax.Array, bool]:
    x, k = rows(size, batched, x, k)
    return top_mask(x, k), True


def rows(size: int, batched: list[bool], *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Give each array the mapped axis in front, so that the rule of a `custom_vmap` is the function itself on rows."""
    return tuple(a if b else jnp.broadcast_to(a, (size, *a.shape)) for a, b in zip(arrays, batched, strict=True))


def tail_sums(ordered: jax.Array, kept: jax.Array) -> jax.Array:
    """What nested Top-K levels leave behind: sum of squares of all but the `kept` largest, from one sort.

    ordered: (..., d) sorted bits of magnitudes. kept: (..., m) integers in 0..d. Returns (..., m).
    Summed from the small end: nothing is subtracted, so nothing cancels, and a full send leaves exactly 0.
    """
    d = ordered.shape[-1]
    float_type = {2: jnp.float16, 4: jnp.float32, 8: jnp.float64}[ordered.dtype.itemsize]
    magnitudes = jax.lax.bitcast_convert_type(ordered, float_type)
    squares = magnitudes * magnitudes
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
