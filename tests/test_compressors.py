"""Laws of every compressor, from one list, and what single ones promise on top.

A new compressor is one more line of COMPRESSORS.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adacgd as ac
from adacgd.compressors.base import as_key
from adacgd.compressors.selection import magnitude_bits, sort_bits, tail_sums, top_mask
from adacgd.cost import bits
from adacgd.evidence import is_deterministic
from adacgd.laws import Relative

D = 8


@dataclasses.dataclass(frozen=True)
class Case:
    """A compressor and which laws it keeps."""

    target: Any
    tight: bool = True  # the claimed constant is attained on R^D
    support: int | None = None  # how many non-zeros of a vector without zeros
    scales: bool = True  # C(tx) = t C(x) for t > 0
    shows: str = "bad"  # what it shows of a non-finite entry: "bad" always, "drawn" where that entry is drawn

    @property
    def unbiased(self):
        return isinstance(self.target, ac.Unbiased)


COMPRESSORS = {
    "identity": Case(ac.Identity(), support=D),
    "top-1": Case(ac.TopK(1), support=1),
    "top-3": Case(ac.TopK(3), support=3),
    "top-d": Case(ac.TopK(D), support=D),
    "rand-3": Case(ac.RandK(3), support=3, shows="drawn"),
    "contractive rand-3": Case(ac.ContractiveRandK(3), support=3, shows="drawn"),
    "shrunk rand-3": Case(ac.Shrunk(ac.RandK(3)), support=3, shows="drawn"),
    "sign": Case(ac.Sign(), support=D),
}
LOSSY = [name for name in COMPRESSORS if name not in ("identity", "top-d")]
every = pytest.mark.parametrize("case", COMPRESSORS.values(), ids=COMPRESSORS.keys())
lossy = pytest.mark.parametrize("case", [COMPRESSORS[name] for name in LOSSY], ids=LOSSY)


@ac.module
class ClaimsContraction(ac.Compressor):
    """A compressor that claims `factor` times its alpha; the factor is a leaf, so that one search serves all claims."""

    inner: ac.Compressor
    factor: float

    def __call__(self, key, x):
        return self.inner(key, x)

    def alpha(self, dim):
        return float(min(1.0, self.factor * self.inner.alpha(dim)))


@ac.module
class ClaimsVariance(ac.Unbiased):
    """An unbiased compressor that claims omega / factor."""

    inner: ac.Unbiased
    factor: float

    def __call__(self, key, x):
        return self.inner(key, x)

    def omega(self, dim):
        return self.inner.omega(dim) / self.factor


def claims(target, factor):
    return (ClaimsVariance if isinstance(target, ac.Unbiased) else ClaimsContraction)(target, factor)


def normal(seed, shape, dtype=np.float64):
    return jnp.asarray(np.random.RandomState(seed).normal(size=shape).astype(dtype))


send = jax.jit(lambda target, key, x: target(key, x))
send_rows = jax.jit(lambda target, keys, x: jax.vmap(target)(keys, x))
send_draws = jax.jit(lambda target, keys, x: jax.vmap(target, (0, None))(keys, x))


def routes(target, key, x, plain=True):
    """One message by every route: compiled, as one row among normal rows, and (slow) plain."""
    rows = normal(7, (4, x.size), x.dtype).at[2].set(x)
    keys = jax.random.split(jax.random.key(99), 4).at[2].set(key)
    mapped = jax.tree.map(lambda leaf: leaf if jnp.ndim(leaf) == 0 else leaf[2], send_rows(target, keys, rows))
    return [send(target, key, x), mapped, *([target(key, x)] if plain else [])]


def same_value(messages):
    first, *rest = [np.asarray(m.value) for m in messages]
    for other in rest:
        np.testing.assert_array_equal(other, first)
    return first


# --- the claimed constant --------------------------------------------------------------------------------------------


@lossy
def test_the_constant_holds_is_reached_and_cannot_be_1_4_times_better(case):
    honest = ac.certify(claims(case.target, 1.0), dim=D)
    assert honest.ok, str(honest)
    if not case.tight:
        return
    assert honest.worst + 4 * honest.stderr >= 0.98 * honest.claimed, str(honest)
    inflated = ac.certify(claims(case.target, 1.4), dim=D)
    assert not inflated.ok, str(inflated)


def test_what_loses_nothing_is_certified_bare():
    cert = ac.certify(ac.Identity(), dim=D)
    assert cert.ok and cert.claimed == cert.worst == 0 and cert.stderr == 0


def test_top_k_with_alpha_1_4_times_too_large_is_convicted_whatever_the_key():
    for key in range(8):
        assert not ac.certify(claims(ac.TopK(3), 1.4), dim=D, key=key).ok


@pytest.mark.parametrize("dim, k", [(2, 1), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_the_verdict_on_a_small_random_target_does_not_hang_on_one_mask(dim, k):
    # Two draws agree with probability 1/C(d,k), which must not pass for "deterministic".
    for key in range(8):
        cert = ac.certify(ac.ContractiveRandK(k), dim=dim, key=key)
        assert cert.ok and abs(cert.worst - (1 - k / dim)) <= 1e-9 + 5 * cert.stderr, str(cert)
        law = Relative(ac.ContractiveRandK(k), jnp.zeros((0, dim)), 1)
        assert not is_deterministic(law, jax.random.key(key), dim)
    assert is_deterministic(Relative(ac.TopK(k), jnp.zeros((0, dim)), 1), jax.random.key(0), dim)


def test_constants_are_the_tables():
    assert ac.TopK(3).alpha(12) == 0.25 and ac.Identity().alpha(5) == 1.0 and ac.Sign().alpha(8) == 0.125
    assert ac.ContractiveRandK(3).alpha(12) == 0.25 and ac.RandK(3).omega(12) == 3.0
    assert ac.Shrunk(ac.RandK(3)).alpha(12) == 0.25


@lossy
def test_promised_non_expansion_holds(case):
    if case.unbiased or not case.target.nonexpansive:
        return
    x = jnp.concatenate([normal(1, (60, D)), jnp.eye(D), jnp.ones((1, D)), jnp.round(normal(2, (20, D)))])
    sent = send_rows(case.target, jax.random.split(jax.random.key(1), len(x)), x).value
    assert np.all(np.linalg.norm(sent, axis=1) <= np.linalg.norm(x, axis=1) * (1 + 1e-14))


@pytest.mark.parametrize("name", ["top-1", "top-3", "sign"])
def test_deterministic_errors_are_their_closed_forms(name):
    for x in np.asarray(normal(3, (20, D))):
        value = np.asarray(send(COMPRESSORS[name].target, jax.random.key(0), jnp.asarray(x)).value)
        if name == "sign":
            expected = x @ x - np.abs(x).sum() ** 2 / D
        else:
            expected = np.sum(np.sort(x**2)[: D - COMPRESSORS[name].support])
        assert np.sum((value - x) ** 2) == pytest.approx(expected, rel=1e-12)


# --- laws of all -----------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zero_goes_to_zero(case, dtype):
    zero = jnp.zeros(D, dtype)
    rows = normal(4, (5, D), dtype).at[3].set(0)
    keys = jax.random.split(jax.random.key(4), 5)
    mapped = send_rows(case.target, keys, rows).value
    assert mapped.dtype == dtype and np.isfinite(mapped).all()
    assert not np.any(mapped[3]) and np.all(np.any(mapped[jnp.array([0, 1, 2, 4])], axis=1))
    plain = [case.target(keys[3], zero).value] if dtype == np.float64 else []
    for value in (send(case.target, keys[3], zero).value, *plain):
        assert value.dtype == dtype and value.shape == (D,) and not np.any(value)


@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_plain_compiled_and_mapped_agree_and_the_key_decides(case, dtype):
    key, x = jax.random.key(5), normal(5, (D,), dtype)
    sent = routes(case.target, key, x)
    for other in sent[1:]:
        np.testing.assert_allclose(other.value, sent[0].value, rtol=1e-12 if dtype == np.float64 else 1e-6)
        np.testing.assert_array_equal(np.asarray(other.value) == 0, np.asarray(sent[0].value) == 0)
        assert [int(c) for c in other.cost] == [int(c) for c in sent[0].cost]
    np.testing.assert_array_equal(send(case.target, key, x).value, sent[0].value)
    assert int(sent[0].level) == 1


@lossy
def test_random_ones_and_only_they_change_with_the_key(case):
    x = normal(6, (D,))
    sent = send_draws(case.target, jax.random.split(jax.random.key(6), 30), x).value
    random = case.shows == "drawn"
    assert bool(np.any(np.asarray(sent) != np.asarray(sent[0]))) == random


@every
def test_the_support_is_exact(case):
    x = normal(8, (200, D)) + 10
    sent = send_rows(case.target, jax.random.split(jax.random.key(8), 200), x)
    np.testing.assert_array_equal(np.count_nonzero(sent.value, axis=1), case.support)


@every
def test_a_positive_factor_passes_through(case):
    if not case.scales:
        return
    key, x = jax.random.key(9), normal(9, (D,))
    sent = np.asarray(send(case.target, key, x).value)
    np.testing.assert_array_equal(send(case.target, key, 1024 * x).value, 1024 * sent)  # exact in binary
    np.testing.assert_allclose(send(case.target, key, x / 3).value, sent / 3, rtol=1e-14)


@every
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_the_same_by_every_route(case, bad):
    x = normal(10, (D,)).at[4].set(bad)
    for seed in range(4):
        key = jax.random.key(seed)
        value = same_value(routes(case.target, key, x, plain=seed == 0 and bad == np.inf))
        drawn = case.shows == "bad" or np.asarray(send(case.target, key, jnp.ones(D)).value)[4] != 0
        assert np.isfinite(value).all() == (not drawn)
    rows = normal(11, (4, D)).at[2].set(x)
    sent = np.asarray(send_rows(case.target, jax.random.split(jax.random.key(0), 4), rows).value)
    assert np.isfinite(sent[[0, 1, 3]]).all()  # no row spoils another


@every
def test_the_price_is_made_of_small_whole_numbers(case):
    cost = send(case.target, jax.random.key(0), normal(13, (D,))).cost
    assert all(np.issubdtype(np.asarray(c).dtype, np.integer) and c >= 0 for c in cost)
    zeros = send(case.target, jax.random.key(0), jnp.zeros(D)).cost
    assert int(zeros.scalars) == int(cost.scalars)  # zeros are paid for


@pytest.mark.parametrize(
    "target, dim, scalars, extra",
    [
        (ac.Identity(), 100, 100, 0),
        (ac.TopK(10), 100, 10, 70),
        (ac.RandK(10), 100, 10, 70),
        (ac.ContractiveRandK(10), 100, 10, 70),
        (ac.Shrunk(ac.RandK(10)), 100, 10, 70),
        (ac.Sign(), 100, 1, 100),
        (ac.TopK(2), 6, 2, 6),
        (ac.TopK(1), 1, 1, 0),
        (ac.TopK(3), 64, 3, 18),
        (ac.TopK(3), 65, 3, 21),
    ],
)
def test_prices(target, dim, scalars, extra):
    cost = target(jax.random.key(0), jnp.ones(dim)).cost
    assert (int(cost.scalars), int(cost.extra_bits)) == (scalars, extra)


def test_fr17_top_10_of_100():
    cost = ac.TopK(10)(jax.random.key(0), jnp.ones(100)).cost
    assert bits(*cost, convention="wire") == 390 and bits(*cost) == 320 and bits(*cost, float_width=64) == 640
    assert 3200 / bits(*cost, convention="wire") == pytest.approx(8.205, abs=5e-4)


# --- Top-K: by rank, by magnitude, lowest index first ----------------------------------------------------------------


@pytest.mark.parametrize(
    "x, k, expected",
    [
        ([1, 1, 1, 1, 1, 1], 2, [1, 1, 0, 0, 0, 0]),
        ([10, 9, 9], 2, [10, 9, 0]),
        ([9, 10, 9], 2, [9, 10, 0]),
        ([1, -5, 2], 1, [0, -5, 0]),
        ([-2, 2, -2, 3], 3, [-2, 2, 0, 3]),
        ([0, 0, 0, 1], 2, [0, 0, 0, 1]),
        ([-1, 1, 1, -1], 3, [-1, 1, 1, 0]),
    ],
)
def test_fr1_top_k_by_hand(x, k, expected):
    for dtype in (jnp.float32, jnp.float64):
        sent = ac.TopK(k)(jax.random.key(0), jnp.array(x, dtype))
        np.testing.assert_array_equal(sent.value, expected)
    np.testing.assert_array_equal(same_value(routes(ac.TopK(k), jax.random.key(0), jnp.array(x, float))), expected)


def test_fr1_price_of_tied_entries():
    sent = ac.TopK(2)(jax.random.key(0), jnp.ones(6))
    assert bits(*sent.cost, convention="wire") == 2 * (32 + 3)


plain_mask, mapped_mask = jax.jit(top_mask), jax.jit(jax.vmap(top_mask))


def oracle_mask(x, k):
    mask = np.zeros(np.shape(x), bool)
    mask[np.argsort(-np.abs(x), kind="stable")[:k]] = True
    return mask


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 3.0]), min_size=9, max_size=9), st.integers(0, 9))
def test_fr1_any_pattern_of_ties(values, k):
    x, wanted = np.array(values), oracle_mask(np.array(values), k)
    np.testing.assert_array_equal(plain_mask(jnp.asarray(x), jnp.int32(k)), wanted)
    batch = mapped_mask(jnp.stack([jnp.asarray(x), jnp.arange(9.0)]), jnp.array([k, 4], jnp.int32))
    np.testing.assert_array_equal(batch, [wanted, oracle_mask(np.arange(9.0), 4)])


@pytest.mark.parametrize("tiny", [5e-324, 1e-310, np.finfo(float).tiny])
def test_the_smallest_numbers_are_ranked_too(tiny):
    mask = plain_mask(jnp.array([0.0, tiny, 0.0, -2 * tiny]), jnp.int32(1))
    np.testing.assert_array_equal(mask, [False, False, False, True])


def test_fr5_nan_stands_above_infinity():
    one = lambda *x: same_value(routes(ac.TopK(1), jax.random.key(0), jnp.array(x, float), plain=np.isnan(x[1])))
    np.testing.assert_array_equal(one(1, np.nan, 3), [0, np.nan, 0])
    np.testing.assert_array_equal(one(1, -np.nan, 3), [0, np.nan, 0])
    np.testing.assert_array_equal(one(np.inf, np.nan, 3), [0, np.nan, 0])
    np.testing.assert_array_equal(one(1, -np.inf, 3), [0, -np.inf, 0])


# --- k ---------------------------------------------------------------------------------------------------------------

SPARSE = [ac.TopK, ac.RandK, ac.ContractiveRandK]


@pytest.mark.parametrize("make", SPARSE)
@pytest.mark.parametrize("k", [0, -1, 2.5, True, math.nan, "3", None, np.float64(2)])
def test_fr3_what_is_no_count_is_refused_by_name(make, k):
    with pytest.raises(ValueError, match=rf"{make.__name__}\(k=\.\.\.\)"):
        make(k)


@pytest.mark.parametrize("make", SPARSE)
def test_fr3_k_above_d_is_refused_before_compilation(make):
    target = make(D + 1)
    for call in (
        lambda: target(jax.random.key(0), jnp.ones(D)),
        lambda: jax.jit(target.__call__).lower(jax.random.key(0), jnp.ones(D)),
        lambda: jax.eval_shape(target, jax.random.key(0), jnp.ones(D)),
        lambda: getattr(target, "alpha", getattr(target, "omega", None))(D),
    ):
        with pytest.raises(ValueError, match=rf"{make.__name__}\(k=9\).*8 coordinates"):
            call()


@pytest.mark.parametrize("make", SPARSE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fr3_k_equal_d_is_the_identity_bitwise(make, dtype):
    x = normal(14, (D,), dtype)
    for target in (make(D), make(np.int64(D))):
        value = jax.jit(lambda key, x, target=target: target(key, x))(jax.random.key(3), x).value
        assert value.dtype == dtype
        np.testing.assert_array_equal(np.asarray(value).view(np.uint8), np.asarray(x).view(np.uint8))


def test_shrunk_is_for_unbiased_ones_only():
    with pytest.raises(TypeError, match=r"contractive already"):
        ac.Shrunk(ac.TopK(3))
    with pytest.raises(TypeError, match="Unbiased"):
        ac.Shrunk(ac.RandK)


def test_an_unbiased_one_in_error_feedback_is_refused_and_the_remedy_named():
    for make in (ac.EF21, lambda c: ac.CLAG(c, 1.0), lambda c: ac.AdaCGD([ac.TopK(1), c], 1.0)):
        with pytest.raises(TypeError, match=r"Shrunk\(RandK\(k=3\)\)"):
            make(ac.RandK(3))


def test_shrunk_rand_k_is_contractive_rand_k_on_the_same_draws():
    x, keys = normal(15, (D,)), jax.random.split(jax.random.key(15), 30)
    one, other = (send_draws(c, keys, x).value for c in (ac.Shrunk(ac.RandK(3)), ac.ContractiveRandK(3)))
    np.testing.assert_allclose(one, other, rtol=1e-15)


# --- the two forms of Rand-K -----------------------------------------------------------------------------------------

DRAWS = 40_000


@pytest.fixture(scope="module")
def rand_1_of_4():
    x, keys = jnp.array([1.0, 2.0, 3.0, 4.0]), jax.random.split(jax.random.key(2024), DRAWS)
    return np.asarray(x), {
        c: np.asarray(send_draws(c, keys, x).value) for c in (ac.RandK(1), ac.ContractiveRandK(1), ac.RandK(3))
    }


def off(sample, expected):
    """How far the mean lies from what is expected, in its own standard errors."""
    spread = sample.std(axis=0) / math.sqrt(len(sample))
    return np.max(np.abs(sample.mean(axis=0) - expected) / spread)


def test_fr4_unbiased_form(rand_1_of_4):
    x, sent = rand_1_of_4
    sent = sent[ac.RandK(1)]
    assert off(sent, x) < 5
    assert off(np.sum((sent - x) ** 2, axis=1), 3 * 30) < 5


def test_fr4_contractive_form(rand_1_of_4):
    x, sent = rand_1_of_4
    sent = sent[ac.ContractiveRandK(1)]
    assert off(sent, x / 4) < 5
    assert off(sent, x) > 100  # and it is not the other form
    assert off(np.sum((sent - x) ** 2, axis=1), 0.75 * 30) < 5


def test_fr4_always_k_distinct_coordinates_all_equally_likely(rand_1_of_4):
    _, sent = rand_1_of_4
    for target, values in sent.items():
        assert np.all(np.count_nonzero(values, axis=1) == target.k)
    subsets, counts = np.unique(sent[ac.RandK(3)] != 0, axis=0, return_counts=True)
    assert len(subsets) == 4
    assert np.max(np.abs(counts / DRAWS - 0.25)) < 5 * math.sqrt(0.25 * 0.75 / DRAWS)


@pytest.mark.slow
def test_every_pair_is_as_likely():
    sent = send_draws(ac.ContractiveRandK(2), jax.random.split(jax.random.key(1), 400_000), jnp.ones(7)).value
    _, counts = np.unique(np.asarray(sent) != 0, axis=0, return_counts=True)
    p = 1 / math.comb(7, 2)
    assert len(counts) == 21 and np.max(np.abs(counts / 400_000 - p)) < 5 * math.sqrt(p * (1 - p) / 400_000)


# --- sign ------------------------------------------------------------------------------------------------------------


def test_fr6_sign_of_zero_is_plus_one_bit_each():
    x = jnp.array([3.0, -1.0, 0.0, 0.0])
    sent = routes(ac.Sign(), jax.random.key(0), x)
    value = same_value(sent)
    np.testing.assert_array_equal(value, [1, -1, 1, 1])
    assert np.sum((value - np.asarray(x)) ** 2) == 6
    assert (int(sent[0].cost.scalars), int(sent[0].cost.extra_bits)) == (1, 4)
    np.testing.assert_array_equal(ac.Sign()(jax.random.key(0), jnp.array([3.0, -1.0, -0.0, 0.0])).value, [1, -1, 1, 1])


# --- selection: one sort for everything ------------------------------------------------------------------------------


def counts_kept(d):
    return sorted({0, 1, d // 3, d // 2, d - 1, d} & set(range(d + 1)))


@pytest.mark.parametrize("d", [1, 2, 5, 63, 64, 65, 256, 257, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tail_sums_and_mask_against_numpy(d, dtype):
    ks = counts_kept(d)
    x = np.random.RandomState(d).standard_t(2, size=(2, 3, d)).astype(dtype)
    x[1, 0] = np.round(x[1, 0])  # ties
    kept = jnp.asarray(np.array(ks, np.int32))

    @jax.jit
    def both(x, kept):
        def row(x):
            mask = jax.vmap(lambda k: top_mask(x, k))(kept)
            return tail_sums(sort_bits(magnitude_bits(x)), kept), mask

        return jax.vmap(jax.vmap(row))(x)

    sums, masks = both(jnp.asarray(x), kept)  # three nested maps, k a tracer
    for i in np.ndindex(2, 3):
        squares = np.sort(np.abs(x[i]).astype(np.longdouble)) ** 2
        wanted = [float(squares[: d - k].sum()) for k in ks]
        np.testing.assert_allclose(sums[i], wanted, rtol=d * np.finfo(dtype).eps, atol=0)
        np.testing.assert_array_equal(masks[i], [oracle_mask(x[i], k) for k in ks])
    assert np.all(np.asarray(sums)[..., -1] == 0)


@pytest.mark.parametrize("d", [65, 300])
@pytest.mark.parametrize("top", [1e200, np.inf, np.nan])
def test_a_huge_entry_that_is_kept_does_not_spoil_the_tail(d, top):
    x = np.arange(d) / d
    x[3] = top
    wanted = float(np.sum(np.sort(np.delete(x, 3)) ** 2))
    sums = tail_sums(sort_bits(magnitude_bits(jnp.asarray(x))), jnp.array([0, 1, d]))
    assert not np.isfinite(sums[0])
    np.testing.assert_allclose(sums[1:], [wanted, 0], rtol=1e-12)


# --- keys ------------------------------------------------------------------------------------------------------------


def test_a_key_may_be_an_int_that_means_the_same_in_both_precisions():
    for n in (0, 1, 2**31, 2**32 - 1):
        for key in (n, np.uint32(n), np.int64(n), np.uint64(n)):
            np.testing.assert_array_equal(jax.random.key_data(as_key(key)), [0, n])
    own = jax.random.key(5)
    assert as_key(own) is own


@pytest.mark.parametrize("key", [-1, 2**32, np.int64(-1), np.uint64(2**40), 10**30])
def test_a_key_out_of_range_is_refused(key):
    with pytest.raises(ValueError, match=r"\[0, 2\*\*32\)"):
        as_key(key)


@pytest.mark.parametrize("key", [True, np.bool_(False), 1.0, "0", None, np.arange(2, dtype=np.uint32), jnp.int32(3)])
def test_what_is_no_key_is_refused(key):
    with pytest.raises(TypeError, match=r"key must be"):
        as_key(key)


def test_many_keys_are_refused():
    with pytest.raises(ValueError, match=r"array of keys of shape \(3,\)"):
        as_key(jax.random.split(jax.random.key(0), 3))
