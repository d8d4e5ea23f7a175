"""Selection by counting gives the bits of selection by sorting: masks, levels, ties and all, on rows and under maps."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import bits_of

import adacgd as ac
from adacgd.adaptive import tabulated
from adacgd.compressors import bisection, selection
from adacgd.compressors.bisection import by_groups, threshold
from adacgd.compressors.selection import (
    first_within,
    largest,
    largest_mask,
    magnitude_bits,
    sort_bits,
    tail_sums,
    top_mask,
)

D = 4096
KS = np.array([1, 2, 40, 300, D // 3, D - 1, D, D], np.int32)


@pytest.fixture
def small_groups(monkeypatch):
    """Three rows at a time: eight rows make groups that overlap."""
    monkeypatch.setattr(bisection, "GROUP", 3 * D)


@functools.cache
def awkward(dtype):
    """(8, D): normal, skewed, ties of few values, zeros, one entry, NaN and infinities, subnormals, one value."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((8, D))
    rows[1] *= np.exp(5 * rng.standard_normal(D))
    rows[2] = rng.integers(-2, 3, D)
    rows[3] = np.where(rng.random(D) < 0.5, 0.0, -0.0)
    rows[4] = np.where(np.arange(D) == 77, -3.0, 0.0)
    rows[5, :600] = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 1e30], 600)
    rows[6] = rng.uniform(-2, 2, D) * float(np.finfo(dtype).tiny)
    rows[7] = -0.3
    return jnp.asarray(rows.astype(dtype))


def by_numpy(x, k):
    """The k largest magnitudes of each row, ties to the lowest index, NaN above infinity: a stable sort of bits."""
    magnitudes = np.abs(np.asarray(x))
    bits = magnitudes.view(f"u{magnitudes.dtype.itemsize}")
    order = np.argsort(-bits.astype(np.int64), axis=-1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(x.shape[-1]), x.shape), axis=-1)
    return rank < np.asarray(k)[..., None]


@jax.jit
def counted_mask(x, k):
    bits = magnitude_bits(x)
    return largest_mask(bits, threshold(bits, k), k)


@jax.jit
def sorted_mask(x, k):
    bits = magnitude_bits(x)
    return largest_mask(bits, largest(sort_bits(bits), k), k)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [0, 1, 7, D // 2, D - 1, D])
def test_the_mask_is_that_of_the_sort_to_the_last_tie(dtype, k):
    x, ks = awkward(dtype), jnp.full(8, k, jnp.int32)
    found = np.asarray(counted_mask(x, ks))
    np.testing.assert_array_equal(found, np.asarray(sorted_mask(x, ks)))
    np.testing.assert_array_equal(found, by_numpy(x, ks))
    assert np.all(found.sum(-1) == k)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_may_ask_for_different_k_and_what_is_known_changes_nothing(dtype):
    x, ks = awkward(dtype), jnp.asarray([0, D, 3, 5, 1, 650, D // 2, 9], jnp.int32)
    np.testing.assert_array_equal(np.asarray(counted_mask(x, ks)), by_numpy(x, ks))


def test_long_vectors_are_counted_and_short_ones_sorted():
    def how(d):
        text = str(jax.make_jaxpr(top_mask)(jnp.ones((3, d)), jnp.ones(3, jnp.int32)))
        return " sort[" in text, "while[" in text

    assert how(bisection.LONG) == (False, True) and how(bisection.LONG - 1) == (True, False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_jitted_and_under_two_maps_it_is_one_mask(dtype, small_groups):
    x = jnp.broadcast_to(awkward(dtype), (2, 8, D))
    k = jnp.stack([jnp.asarray(KS), jnp.full(8, 5, jnp.int32)])
    once = jax.jit(top_mask)(x, k)
    np.testing.assert_array_equal(np.asarray(once), by_numpy(x, k))
    np.testing.assert_array_equal(np.asarray(jax.jit(jax.vmap(jax.vmap(top_mask)))(x, k)), np.asarray(once))
    mapped = jax.jit(jax.vmap(jax.vmap(top_mask, (None, 0)), (0, None)))(x[0, 4:6], jnp.asarray(KS))
    np.testing.assert_array_equal(np.asarray(mapped)[1], by_numpy(jnp.broadcast_to(x[0, 5], (8, D)), KS))


@pytest.mark.parametrize("rows", [1, 3, 4, 8])
def test_groups_cover_all_rows_once(rows, small_groups):
    x = awkward(np.float64)[:rows]
    k = jnp.arange(rows, dtype=jnp.int32) * 100
    doubled, rank = by_groups(lambda x, k: (x * 2, k + 1), x, k)
    np.testing.assert_array_equal(bits_of(doubled), bits_of(2 * x))
    np.testing.assert_array_equal(np.asarray(rank), np.asarray(k) + 1)


# --- levels ----------------------------------------------------------------------------------------------------------

counted = jax.jit(lambda x, ks, allowed: by_groups(selection._first_counted, x, ks, allowed))
in_order = jax.jit(selection._first_sorted)


def left(x, ks):
    """What levels leave, exactly: (rows, m) Python sums of the squares in the sort, correctly rounded."""
    squares = np.sort(np.asarray(x, np.float64) ** 2, axis=-1)
    return np.array([[math.fsum(row[: D - k]) for k in ks] for row in squares])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_level_is_the_first_that_leaves_no_more_than_allowed(dtype):
    """Of every level in turn: a budget just above what it leaves takes it, one just below takes the next."""
    rows = np.array([0, 1, 2, 7])
    x, rest = awkward(dtype)[rows], left(awkward(dtype)[rows], KS[:7])
    ks = jnp.broadcast_to(jnp.asarray(KS), (4, 8))
    slack = 64 * np.finfo(dtype).eps
    for j in range(7):
        for factor, first in ((1 + slack, j), (1 - slack, j + 1)):
            allowed = jnp.asarray((factor * rest[:, j]).astype(dtype))
            if j == 6 and factor < 1:
                continue  # nothing is left, and less than nothing is not allowed
            index, mask = counted(x, ks, allowed)
            expected = [next(i for i in range(7) if rest[r, i] <= factor * rest[r, j]) for r in range(4)]
            assert list(map(int, index)) == expected and (expected[0] == first or rest[0, j] == 0)
            np.testing.assert_array_equal(np.asarray(mask), by_numpy(x, KS[np.asarray(index)]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_levels_and_masks_are_those_of_the_sort(dtype, small_groups):
    """Budgets from nothing to all, none, negative and infinite ones; ladders of one, two and eight levels."""
    x, counted = awkward(dtype), jax.jit(lambda *arrays: by_groups(selection._first_counted, *arrays))
    total = jnp.sum(jnp.where(jnp.isfinite(x), x, 0) ** 2, axis=-1)
    for ladder in (KS, np.sort(np.minimum(KS, 300)), np.full(8, 40), np.array([2, 9, 9, 9, 9, 9, 9, 9])):
        ks = jnp.broadcast_to(jnp.asarray(ladder, jnp.int32), (8, 8))
        for factor in (0.0, 1e-9, 0.003, 0.1, 0.37, 0.9, 1.1, np.inf, np.nan, -1.0):
            allowed = jnp.where(factor == 0, 0, total * factor).astype(dtype)
            (one, mask), (other, same) = counted(x, ks, allowed), in_order(x, ks, allowed)
            np.testing.assert_array_equal(ladder[np.asarray(one)], ladder[np.asarray(other)], err_msg=f"{factor}")
            np.testing.assert_array_equal(np.asarray(mask), np.asarray(same), err_msg=f"{ladder} {factor}")


def test_ties_on_the_bracket_are_divided_exactly():
    """All alike: level K leaves (d - K) of the square, which no threshold separates."""
    x = jnp.full((1, D), 0.5)
    ks = jnp.asarray([[10, 20, 30, 40, 50, 60, 70, 80]], jnp.int32)
    for j, k in enumerate(ks[0]):
        for more, index in ((0.0, j), (-1e-6, min(j + 1, 7))):
            found, mask = counted(x, ks, jnp.asarray([(D - int(k)) * 0.25 + more]))
            assert int(found[0]) == index and np.all(np.asarray(mask[0])[: int(ks[0, index])])


def test_a_ladder_over_long_vectors_is_the_ladder_of_the_sort(monkeypatch):
    """The whole map, mapped over workers and configurations, beside itself with every vector held to be short."""
    uplink = tabulated(ac.AdaCGD([ac.TopK(k) for k in (5, 40, 300, 2000)], zeta=1.0), D, np.float64)
    rng = np.random.default_rng(1)
    h, x = jnp.asarray(rng.standard_normal((2, 2, 3, D)))
    y = x + jnp.asarray([0.01, 0.8, 1.4])[None, :, None] * rng.standard_normal((2, 3, D))

    def messages(sorts):
        send = jax.vmap(jax.vmap(lambda h, y, x: uplink(None, h, y, x)))
        assert (" sort[" in str(jax.make_jaxpr(send)(h, y, x))) == sorts
        return jax.jit(send)(h, y, x)

    long = messages(sorts=False)
    monkeypatch.setattr(bisection, "LONG", D + 1)
    short = messages(sorts=True)
    for one, other in zip(jax.tree.leaves(long), jax.tree.leaves(short), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert len(set(np.asarray(long.level).ravel().tolist())) > 1, "the levels differ, or nothing is tried"


def test_what_the_sort_says_levels_leave_is_what_they_leave():
    x = awkward(np.float64)[:3]
    ks = jnp.broadcast_to(jnp.asarray(KS), (3, 8))
    found = tail_sums(sort_bits(magnitude_bits(x)), ks)
    np.testing.assert_allclose(np.asarray(found), left(x, KS), rtol=1e-13)
    index, _ = first_within(x, ks, found[:, 3])
    assert list(map(int, index)) == [3, 3, 3]
