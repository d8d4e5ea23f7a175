"""3PCv1 to v5, EF21+ and Ada3PC: formulas, constants where they are attained, special cases, coins, prices, refusals.

Their law is on trial in test_mechanisms.py and benchmarks/court.py, their golden runs in test_reference.py.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adacgd as ac
import problems
from adacgd.testing import assert_wire_exact
from adacgd.theory import beta, theta

KEY = jax.random.key(0)
TOP, RAND, MASK = ac.TopK(2), ac.RandK(2), ac.ContractiveRandK(2)
send = jax.jit(lambda m, key, h, y, x, **shared: m(key, h, y, x, **shared), static_argnames="workers")
many = jax.jit(lambda m, keys, h, y, x: jax.vmap(m, (0, None, None, None))(keys, h, y, x))


@pytest.fixture(scope="module")
def quad():
    return problems.quadratic(workers=4, dim=12, noise_scale=0.8, strength=1e-2, seed=3)


def whole_numbers(seed, d=6):
    """h, y, x of small integers, on which every sum is exact."""
    return tuple(jnp.asarray(v) for v in np.random.RandomState(seed).randint(-9, 10, size=(3, d)).astype(float))


def square(v):
    return float(np.sum(np.asarray(v) ** 2))


def run(problem, uplink, **kwargs):
    return ac.simulate(problem, uplink, **{"stepsize": 0.05, "rounds": 60, "key": 2, **kwargs})


def alike(one, other, level=True):
    """Two runs: iterates to the bit, counts, and levels."""
    for name in ("x", "loss", "grad_sq", "scalars_up", "extra_bits_up", *(["level"] if level else [])):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


# --- what they are ---------------------------------------------------------------------------------------------------


def largest(v, k):
    kept = np.zeros(v.size)
    kept[np.argsort(-np.abs(v), kind="stable")[:k]] = 1
    return v * kept


@pytest.mark.parametrize("seed", range(8))
def test_the_formulas(seed):
    h, y, x = whole_numbers(seed)
    v = {name: np.asarray(a) for name, a in zip("hyx", (h, y, x), strict=True)}
    b = v["h"] + largest(v["x"] - v["h"], 1)
    assert np.array_equal(send(ac.ThreePCv1(TOP), KEY, h, y, x).value, v["y"] + largest(v["x"] - v["y"], 2))
    assert np.array_equal(send(ac.ThreePCv4(TOP, ac.TopK(1)), KEY, h, y, x).value, b + largest(v["x"] - b, 2))
    assert np.array_equal(send(ac.ThreePCv3(ac.EF21(ac.TopK(1)), TOP), KEY, h, y, x).value, b + largest(v["x"] - b, 2))
    moved = np.asarray(RAND(jax.random.fold_in(KEY, 0), x - y).value)
    b = v["h"] + moved
    assert np.array_equal(send(ac.ThreePCv2(RAND, TOP), KEY, h, y, x).value, b + largest(v["x"] - b, 2))
    values = many(ac.ThreePCv5(TOP, 0.5), jax.random.split(KEY, 40), h, y, x)
    expected = {1: v["h"] + largest(v["x"] - v["y"], 2), 2: v["x"]}
    assert set(np.asarray(values.level)) == {1, 2}
    for value, level in zip(np.asarray(values.value), np.asarray(values.level), strict=True):
        assert np.array_equal(value, expected[int(level)])
    plus, both = send(ac.EF21Plus(TOP), KEY, h, y, x), (v["h"] + largest(v["x"] - v["h"], 2), largest(v["x"], 2))
    better = int(square(both[1] - v["x"]) < square(both[0] - v["x"]))
    assert int(plus.level) == better + 1 and np.array_equal(plus.value, both[better])


def test_constants_are_the_tables():
    assert ac.ThreePCv1(TOP).constants(8) == (1, 0.75, None, None)
    assert ac.ThreePCv2(RAND, TOP).constants(8) == (0.25, 0.75 * 3, None, None)
    A, B, *_ = ac.EF21(ac.TopK(4)).constants(8)
    assert ac.ThreePCv3(ac.EF21(ac.TopK(4)), TOP).constants(8) == (1 - 0.75 * (1 - A), 0.75 * B, None, None)
    assert ac.ThreePCv4(TOP, ac.TopK(4)).constants(8) == (theta(0.625), beta(0.625), None, None)
    v5 = ac.ThreePCv5(TOP, 0.19).constants(8)
    assert v5[:2] == pytest.approx((0.1, 0.81 * 0.75 / 0.1)) and v5[2:] == (None, None)
    assert ac.ThreePCv5(TOP, 1.0).constants(8)[:2] == (1, 0)
    assert ac.EF21Plus(TOP).constants(8)[:2] == ac.EF21(TOP).constants(8)[:2]
    for zeta in (0.1, 90.0):
        mixed = ac.Ada3PC([ac.LAG(7.0), ac.ThreePCv1(TOP)], zeta).constants(8)
        assert mixed == (1, max(0.75, zeta), None, None)
    shares = ac.ThreePCv3(ac.EF21(ac.ContractivePermK()), ac.ContractivePermK())
    assert shares.constants(8, workers=4)[0] == pytest.approx(1 - 0.75 * (1 - theta(0.25)))
    with pytest.raises(ValueError, match="workers="):
        shares.constants(8)


@pytest.mark.parametrize(
    ("mechanism", "scalars", "extra"),  # indices of 16 coordinates take 4 bits each
    [
        (ac.ThreePCv1(TOP), 16 + 2, 8),
        (ac.ThreePCv2(ac.RandK(3, shared_seed=True), TOP), 3 + 2, 8),
        (ac.ThreePCv3(ac.CLAG(ac.TopK(3), 0.0), TOP), 3 + 2, 12 + 1 + 8),
        (ac.ThreePCv3(ac.LAG(9.0), TOP), 2, 1 + 8),  # silent
        (ac.ThreePCv4(TOP, ac.TopK(3)), 3 + 2, 12 + 8),
        (ac.ThreePCv5(TOP, 1.0), 16, 0),
        (ac.ThreePCv5(TOP, 1.0, common_coin=False), 16, 1),
        (ac.ThreePCv5(TOP, 1e-300), 2, 8),
        (ac.EF21Plus(TOP), 2, 8 + 1),
        (ac.Ada3PC([ac.ThreePCv1(TOP)] * 4, 0.0), 16 + 2, 8 + 3),
    ],
    ids=repr,
)
def test_the_price(mechanism, scalars, extra):
    x = jnp.arange(1.0, 17.0)
    sent = send(mechanism, KEY, 0 * x, 2 * x, x)  # far off, so that no trigger of small zeta is content
    assert (int(sent.cost.scalars), int(sent.cost.extra_bits)) == (scalars, extra)


# --- where the constants are attained --------------------------------------------------------------------------------


def attained(h, y, x, error, A, B):
    """The mean error is the right side, so that A or B that is 5 % better is below it."""
    right = lambda A, B: (1 - A) * square(h - y) + B * square(x - y)
    assert error == pytest.approx(right(A, B), rel=1e-9)
    assert error > right(1.05 * A, B) * (1 + 1e-4) and error > right(A, B / 1.05) * (1 + 1e-4)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_v5_attains_its_constants(p):
    moved = jnp.ones(6)  # flat, for Top-K
    lost = TOP(KEY, moved).value - moved
    y = jnp.arange(6.0)
    h, x = y + lost / (1 / math.sqrt(1 - p) - 1), y + moved  # where Young's inequality is an equality
    left_behind = square(send(ac.ThreePCv5(TOP, 1e-300), KEY, h, y, x).value - x)  # the coin that does not fall
    attained(h, y, x, (1 - p) * left_behind, *ac.ThreePCv5(TOP, p).constants(6)[:2])


def test_v3_attains_its_constants():
    inner = ac.EF21(TOP)
    h, x = jnp.arange(6.0), jnp.arange(6.0) + 1
    y = h + (1 - inner.constants(6).A) * (x - h)
    after = [ac.ThreePCv3(inner, One(j)) for j in range(6)]  # every outcome of Rand-1, alpha = 1/6
    error = np.mean([square(send(m, KEY, h, y, x).value - x) for m in after])
    attained(h, y, x, error, *after[0].constants(6)[:2])


@ac.module
class One(ac.Compressor):
    """Coordinate j alone; with a random j contractive, alpha = 1/d."""

    j: int

    def __call__(self, key, x):
        return ac.Message(jnp.where(jnp.arange(x.size) == self.j, x, 0), ac.Cost(1))

    def alpha(self, dim):
        return 1 / dim


def test_ef21_plus_attains_the_constants_of_ef21_where_the_fresh_message_is_worse():
    h, x = 10 + jnp.zeros(6), 11 + jnp.zeros(6)
    A, B, *_ = ac.EF21Plus(TOP).constants(6)
    y = h + (1 - A) * (x - h)
    sent = send(ac.EF21Plus(TOP), KEY, h, y, x)
    assert int(sent.level) == 1
    attained(h, y, x, square(sent.value - x), A, B)


# --- special cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_parts_that_lose_nothing(seed):
    h, y, x = whole_numbers(seed)
    whole, all_six = ac.Identity(), ac.RandK(6)  # all of six coordinates, scaled by 6/6
    for mechanism in (
        ac.ThreePCv1(whole),
        ac.ThreePCv2(RAND, whole),
        ac.ThreePCv3(ac.GD(), TOP),
        ac.ThreePCv3(ac.EF21(MASK), whole),
        ac.ThreePCv4(whole, TOP),
        ac.ThreePCv4(TOP, whole),
        ac.ThreePCv5(TOP, 1.0),
        ac.EF21Plus(whole),
    ):
        assert np.array_equal(send(mechanism, KEY, h, y, x).value, x), mechanism
        assert mechanism.constants(6).A == 1 and mechanism.constants(6).B == 0
    v2 = ac.ThreePCv2(all_six, TOP)
    assert v2.constants(6).B == 0
    assert np.array_equal(send(v2, KEY, y, y, x).value, x)  # h = y, as in a run that started exactly
    ef21 = send(ac.EF21(TOP), KEY, h, y, x)
    one_level = send(ac.Ada3PC([ac.EF21(TOP)], 0.0), KEY, h, y, x)
    assert np.array_equal(ef21.value, one_level.value)


def test_v4_is_v3_of_ef21_and_of_two_top_k_it_is_ef21_with_the_sum():
    for c1, c2 in ((TOP, ac.TopK(1)), (MASK, ac.Sign()), (ac.Sign(), ac.Shrunk(RAND))):
        for seed in range(5):
            h, y, x = (jnp.asarray(v) for v in np.random.RandomState(seed).normal(size=(3, 6)))
            key = jax.random.key(seed)
            one, other = send(ac.ThreePCv4(c1, c2), key, h, y, x), send(ac.ThreePCv3(ac.EF21(c2), c1), key, h, y, x)
            assert np.array_equal(one.value, other.value)
            assert [int(c) for c in one.cost] == [int(c) for c in other.cost]
            if c1 is TOP:
                assert np.array_equal(one.value, send(ac.EF21(ac.TopK(3)), key, h, y, x).value)


def test_v5_with_p_1_and_v3_of_gd_are_gradient_descent(quad):
    gd = run(quad, ac.GD())
    for common in (True, False):
        v5 = run(quad, ac.ThreePCv5(TOP, 1.0, common_coin=common))
        assert np.all(v5.level[1:] == 2)
        np.testing.assert_array_equal(v5.extra_bits_up[-1], 0 if common else 60)
        for name in ("x", "loss", "grad_sq", "scalars_up"):
            np.testing.assert_array_equal(getattr(v5, name), getattr(gd, name), err_msg=name)
    v3 = run(quad, ac.ThreePCv3(ac.GD(), TOP))
    np.testing.assert_array_equal(v3.x, gd.x)
    np.testing.assert_array_equal(v3.scalars_up, gd.scalars_up + 2 * np.arange(61)[:, None])


@pytest.mark.parametrize(
    "levels",
    [
        [ac.TopK(1), ac.TopK(3), ac.TopK(8)],
        [ac.TopK(1), ac.ContractiveRandK(3), ac.Identity()],
        [ac.ContractivePermK(), ac.Sign(), ac.ContractivePermK()],
    ],
    ids=["top", "random", "shared"],
)
def test_ada3pc_over_ef21_is_adacgd(quad, levels):
    ada = run(quad, ac.AdaCGD(levels, 1.0))
    alike(run(quad, ac.Ada3PC([ac.EF21(c) for c in levels], 1.0)), ada)
    assert len(np.unique(ada.level)) >= 3
    A, B, *_ = ac.AdaCGD(levels, 1.0).constants(12, workers=4)
    assert ac.Ada3PC([ac.EF21(c) for c in levels], 1.0).constants(12, workers=4)[:2] == (A, B)


def test_ada3pc_of_other_maps_uses_its_levels():
    levels = [ac.EF21(ac.TopK(1)), ac.ThreePCv4(TOP, TOP), ac.ThreePCv5(ac.TopK(4), 0.5)]
    random, seen = np.random.RandomState(0), set()
    for seed, reach in enumerate(np.geomspace(0.01, 10, 60)):
        key, y = jax.random.key(seed), jnp.asarray(random.normal(size=6))
        x = y + reach * jnp.asarray(random.normal(size=6))
        h = (x + y) / 2 if seed % 10 == 0 else y + jnp.asarray(random.normal(size=6))
        messages = [ac.Message(h, ac.Cost(0), 0)]
        messages += [level(k, h, y, x) for level, k in zip(levels, jax.random.split(key, 3), strict=True)]
        enough = [square(m.value - x) <= 0.5 * square(x - y) for m in messages]
        j = enough.index(True) if any(enough) else 3
        sent = send(ac.Ada3PC(levels, 0.5), key, h, y, x)
        assert int(sent.level) == j
        np.testing.assert_allclose(sent.value, messages[j].value, rtol=1e-12)
        assert int(sent.cost.scalars) == int(messages[j].cost.scalars)
        assert int(sent.cost.extra_bits) == int(messages[j].cost.extra_bits) + 2
        seen.add((j, int(sent.cost.scalars)))
    assert seen == {(0, 0), (1, 1), (2, 4), (3, 4), (3, 6)}


# --- randomness ------------------------------------------------------------------------------------------------------


def test_the_coin_is_common_to_a_round_unless_asked_otherwise(quad):
    common = run(quad, ac.ThreePCv5(TOP, 0.4), rounds=200).level[1:]
    own = run(quad, ac.ThreePCv5(TOP, 0.4, common_coin=False), rounds=200).level[1:]
    assert np.all(common == common[:, :1]) and len(np.unique(common)) == 2
    assert np.any(own != own[:, :1])
    assert abs(np.corrcoef(own[:, 0], own[:, 1])[0, 1]) < 5 / math.sqrt(200)


@pytest.mark.parametrize("p", [0.1, 0.7])
def test_average_price_of_v5(quad, p):
    rounds = 2000
    for common, independent in ((True, 1), (False, quad.n)):
        trace = run(quad, ac.ThreePCv5(TOP, p, common_coin=common), stepsize=1e-4, rounds=rounds, record_every=rounds)
        mean = trace.scalars_up[-1].mean() / rounds
        error = (12 - 2) * math.sqrt(p * (1 - p) / (rounds * independent))
        assert abs(mean - (p * 12 + (1 - p) * 2)) < 5 * error


def test_both_links_do_not_throw_the_same_coin(quad):
    trace = run(quad, ac.ThreePCv5(TOP, 0.5), downlink=ac.ThreePCv5(ac.TopK(3), 0.5), stepsize=1e-3, rounds=400)
    up, down = np.diff(trace.scalars_up[:, 0]) == 12, np.diff(trace.scalars_down) == 12
    assert abs(np.mean(up == down) - 0.5) < 5 * 0.5 / math.sqrt(400)


def test_parts_draw_independently():
    """Q and C of v2 are the same compressor here: with one key they would keep the same coordinates."""
    keys, x = jax.random.split(KEY, 2000), jnp.ones(6)
    sent = many(ac.ThreePCv2(ac.RandK(1), ac.ContractiveRandK(1)), keys, 0 * x, 0 * x, x).value
    # b is 6 where Q kept; C then sets a coordinate to 1: the same one with probability 1/6
    same = np.all(np.asarray(sent) < 2, axis=1)
    assert abs(same.mean() - 1 / 6) < 5 * math.sqrt(5 / 36 / 2000)


@pytest.mark.parametrize("kind", [lambda cs: ac.AdaCGD(cs, 1.0), lambda cs: ac.Ada3PC([ac.EF21(c) for c in cs], 1.0)])
def test_levels_that_share_a_permutation_among_workers_draw_apart(kind):
    """Level 2 is met when level 1 missed the large entry; with one permutation for both it would miss it always."""
    mechanism, x = kind([ac.ContractivePermK(), ac.ContractivePermK()]), jnp.array([5.0, 1.0, 1.0, 1.0])
    one = lambda k: mechanism(k, 0 * x, x - 2 * x / jnp.sqrt(28.0), x, common=k, round=0, worker=1, workers=4)
    sent = jax.jit(jax.vmap(one))(jax.random.split(KEY, 2000))
    second = np.asarray(sent.level) == 2
    assert abs(second.mean() - 0.75) < 5 * math.sqrt(3 / 16 / 2000)
    found = np.asarray(sent.value)[second, 0] == 5
    assert abs(found.mean() - 0.25) < 5 * math.sqrt(3 / 16 / second.sum())


def test_the_bytes_follow_levels_that_draw_apart():
    assert_wire_exact(ac.AdaCGD([ac.ContractivePermK(), ac.Sign(), ac.ContractivePermK()], 1.0), dim=12)


def test_p_is_data(quad):
    uplinks = [ac.ThreePCv5(TOP, p) for p in (0.1, 0.9)]
    grid = ac.sweep(quad, uplinks, stepsizes=[0.01], rounds=30, keys=[2])
    for i, uplink in enumerate(uplinks):
        single = run(quad, uplink, stepsize=0.01, rounds=30)
        np.testing.assert_allclose(grid[i, 0, 0].grad_sq, single.grad_sq, rtol=1e-11)
        np.testing.assert_array_equal(grid[i, 0, 0].level, single.level)


# --- bad requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0, -0.1, 1.01, math.nan, math.inf, None, "1", True])
def test_p_is_a_probability_that_is_not_zero(p):
    for make in (lambda p: ac.ThreePCv5(TOP, p), lambda p: ac.MARINA(RAND, p)):
        with pytest.raises(ValueError, match=r"^(ThreePCv5|MARINA)\(p=\.\.\.\)"):
            make(p)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ac.ThreePCv1(RAND), r"ThreePCv1\(compressor=.*unbiased.*Shrunk"),
        (lambda: ac.ThreePCv2(TOP, TOP), r"ThreePCv2\(unbiased=.*contractive"),
        (lambda: ac.ThreePCv2(RAND, RAND), r"ThreePCv2\(compressor=.*Shrunk"),
        (lambda: ac.ThreePCv3(TOP, TOP), r"ThreePCv3\(inner=.*EF21\(TopK\(k=2\)\)"),
        (lambda: ac.ThreePCv3(RAND, TOP), r"ThreePCv3\(inner=.*EF21\(Shrunk\(RandK\(k=2\)\)\)"),
        (lambda: ac.ThreePCv3(ac.GD, TOP), r"ThreePCv3\(inner=.*class GD"),
        (lambda: ac.ThreePCv3(lambda *a: a, TOP), r"ThreePCv3\(inner=.*three point map"),
        (lambda: ac.ThreePCv3(ac.MARINA(RAND, 0.5), TOP).constants(6), r"three point map.*MARINA"),
        (lambda: ac.ThreePCv4(ac.EF21(TOP), TOP), r"ThreePCv4\(c1=.*mechanism already"),
        (lambda: ac.ThreePCv4(TOP, "top"), r"ThreePCv4\(c2=.*Compressor"),
        (lambda: ac.ThreePCv5(ac.TopK, 0.5), r"ThreePCv5\(compressor=.*class TopK"),
        (lambda: ac.EF21Plus(RAND), r"EF21Plus\(compressor=.*Shrunk"),
        (lambda: ac.Ada3PC(ac.GD(), 1.0), r"Ada3PC\(levels=.*list of three point maps"),
        (lambda: ac.Ada3PC([ac.GD(), TOP], 1.0), r"Ada3PC\(levels\[1\]=.*EF21"),
        (lambda: ac.MARINA(TOP, 0.5), r"MARINA\(unbiased=.*contractive"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make, told):
    with pytest.raises(TypeError, match=told):
        make()


def test_other_bad_requests():
    with pytest.raises(ValueError, match=r"Ada3PC\(levels=\.\.\.\) needs at least one"):
        ac.Ada3PC([], 1.0)
    with pytest.raises(ValueError, match=r"Ada3PC\(zeta=\.\.\.\)"):
        ac.Ada3PC([ac.GD()], -1.0)
    with pytest.raises(ValueError, match=r"ThreePCv5\(common_coin="):
        ac.ThreePCv5(TOP, 0.5, common_coin=1)


TIGHT = [  # dimension 4, left over right of the law: what theory.md section 7 reached
    (ac.ThreePCv2(RAND, TOP), 0.9999),
    (ac.ThreePCv3(ac.LAG(2.0), TOP), 0.999999),
    (ac.ThreePCv3(ac.EF21(ac.TopK(1)), TOP), 0.6666),
    (ac.ThreePCv4(ac.TopK(1), ac.TopK(1)), 0.8888),
    (ac.ThreePCv5(TOP, 0.3), 0.99),
    (ac.AdaCGD([ac.TopK(1), ac.TopK(2), ac.TopK(3)], 0.7), 0.998),
    (ac.CLAG(TOP, 8.0, sharp=True), 0.999999),
]


@pytest.mark.parametrize(("mechanism", "reached"), TIGHT, ids=lambda v: str(v))
def test_the_court_reaches_the_tightness_of_the_sheet(mechanism, reached):
    found = ac.certify(mechanism, dim=4)
    assert found.ok and found.interval[1] >= reached
    assert found.worst > reached - 0.02
