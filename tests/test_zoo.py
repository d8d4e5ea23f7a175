"""Laws of the whole zoo, from one list: constants that are attained and cannot be better, prices, routes, zero.

`zoo(dim)` builds one of each; a new compressor is one more line. Constants are judged at each input on its own.
"""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import NO_CONSTANT, WORKERS, bits_of, each, normal, send, shared, special, zoo

import adacgd as ac
import problems
from adacgd.compressors import (
    QSGD,
    AdaptiveRandom,
    BiasedRandom,
    BlockTopK,
    Composed,
    ContractivePermK,
    ContractiveRandK,
    FixedPoint,
    FloatCast,
    Identity,
    Induced,
    LowRank,
    MaxDithering,
    MixK,
    Natural,
    NaturalDithering,
    OnSupport,
    Participation,
    PermK,
    PowerSGD,
    PowerSGDWarm,
    RandK,
    RelativeThreshold,
    Residual,
    Shrunk,
    Sign,
    TernGrad,
    TopK,
    Unbiased,
)
from adacgd.compressors.base import alpha_of, norm_of, omega_of
from adacgd.compressors.low_rank import power_factors, svd_factors

DIMS = (1, 2, 3, 12, 100)

FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # to compile, not to run
compiled = jax.jit(send)
quickly = jax.jit(send, compiler_options=FAST)
rowwise = jax.jit(lambda target, keys, rows: jax.vmap(send, (None, 0, 0))(target, keys, rows))


@functools.partial(jax.jit, static_argnames="draws", compiler_options=FAST)
def measure(target, key, inputs, draws):
    """Of each input on each draw |C(x) - x|^2 / |x|^2, (inputs, draws); of each input the mean of what arrives and its
    deviation, (inputs, d); and mean scalars and extra bits, (inputs,)."""
    keys = jax.random.split(key, draws)

    def of_one(x):
        sent = jax.vmap(lambda k: send(target, k, x))(keys)
        off = jnp.sum((sent.value - x[None]) ** 2, -1) / jnp.sum(x**2)
        price = [jnp.mean(jnp.asarray(c, float)) for c in sent.cost]
        return off, jnp.mean(sent.value, 0), jnp.std(sent.value, 0), price

    return jax.vmap(of_one)(inputs)


def claim(target, dim, better=1.0):
    """1 - alpha or omega, or what it would be were the constant better by this factor."""
    if isinstance(target, Unbiased):
        return omega_of(target, dim, WORKERS) / better
    return 1 - better * alpha_of(target, dim, WORKERS)


# --- constants -------------------------------------------------------------------------------------------------------


@each(*DIMS)
def test_the_constant_holds_is_attained_where_it_says_so_and_keeps_the_uncertainty_principle(dim, name):
    """For each input by itself. The principle, theory.md 1.4: delta 4^(N/d) >= 1 with N bits on a Gaussian input."""
    if name in NO_CONSTANT:
        pytest.skip("claims none")
    target, draws = zoo(dim)[name], 4096 if dim > 12 else 8192
    two_level = np.where(np.arange(dim) < max(1, dim // 4), 1.0, 0.3)
    worst = target.worst(dim)
    inputs = [two_level, 1 + normal(0, dim) ** 2, normal(1, dim), *([] if worst is None else [worst])]
    off, mean, deviation, price = jax.device_get(
        measure(target, jax.random.key(3), jnp.asarray(np.stack(inputs)), draws)
    )
    average, stderr, bound = off.mean(1), off.std(1) / math.sqrt(draws), claim(target, dim)
    assert np.all(average <= bound * (1 + 1e-9) + 4 * stderr + 1e-12), (average, stderr, bound)
    if isinstance(target, Unbiased):
        for i in (0, 1):  # no events so rare that their deviation cannot be seen
            x = inputs[i]
            assert np.all(np.abs(mean[i] - x) <= 5 * deviation[i] / math.sqrt(draws) + 1e-9), (mean[i], x)
    if target.attained(dim):
        assert average[-1] >= bound * (1 - 2e-6) - 4 * stderr[-1] - 1e-12, (average[-1], stderr[-1], bound)
        if bound > 1e-9:
            assert average[-1] - 2 * stderr[-1] > claim(target, dim, 1.05) + 1e-9, "5 % better should be broken"
    delta = bound / (1 + bound) if isinstance(target, Unbiased) else bound
    assert math.log2(max(delta, 2.0**-106)) + 2 * (64 * price[0][2] + price[1][2]) / dim >= 0


@pytest.mark.parametrize("name", sorted(NO_CONSTANT))
def test_those_without_a_constant_say_so(name):
    target = zoo(12)[name]
    with pytest.raises(ValueError, match="no uniform contraction constant"):
        target.alpha(12)
    sent = np.asarray(target(jax.random.key(0), jnp.asarray(target.worst(12))).value)
    if name in ("hard threshold", "fixed point"):
        assert not sent.any(), "everything is lost"
        off = np.random.RandomState(0).uniform(-3, 3, (50, 12))
        bound = target.error_bound(12)
        assert all(np.sum((np.asarray(target(jax.random.key(0), x).value) - x) ** 2) <= bound for x in jnp.asarray(off))
    else:
        off = np.sum((sent - target.worst(12)) ** 2) / np.sum(target.worst(12) ** 2)
        assert math.isclose(off, 1 - target.alpha_in_range(12), rel_tol=1e-9)
    warm = PowerSGDWarm(1)
    with pytest.raises(ValueError, match="no uniform"):
        warm.alpha(12)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float8_e5m2", "float8_e4m3", "float8_e3m4"])
def test_narrow_floats_round_as_ml_dtypes_does(kind):
    import ml_dtypes

    cast = FloatCast(kind)
    x = np.concatenate(
        [normal(0, 300) * s for s in (1.0, 1e-3, 1e-5, 30.0, 1e4)] + [[cast.largest, cast.smallest, 0.0]]
    )
    x = np.concatenate([x, [math.inf, -math.inf, math.nan, 1e38, 1e-30]]).astype(np.float32)
    with np.errstate(over="ignore"):
        right = x.astype(getattr(ml_dtypes, kind, np.float16)).astype(np.float32)
    for dtype in (np.float32, np.float64):
        sent = np.asarray(cast(jax.random.key(0), jnp.asarray(x.astype(dtype))).value)
        np.testing.assert_array_equal(sent, right.astype(dtype))


@pytest.mark.parametrize(("dim", "levels"), [(1, 1), (4, 1), (100, 5), (12, 255), (8, 4), (100, 7), (50, 200)])
def test_the_sharp_constants_are_not_above_the_literature(dim, levels):
    assert QSGD(levels).omega(dim) <= QSGD(levels).omega_literature(dim)
    assert QSGD(levels).attained(dim) == (math.isclose(sum(QSGD(levels).worst(dim) ** 2), levels**2) or dim == 1
                                          or levels <= math.sqrt(dim) / 2 or levels == 1)  # fmt: skip
    if levels < 100:
        assert NaturalDithering(levels).omega(dim) <= NaturalDithering(levels).omega_literature(dim)


# --- one message -----------------------------------------------------------------------------------------------------


@each(1, 3, 12)
def test_the_value_is_what_the_receiver_rebuilds_and_the_cost_is_the_price_of_what_travels(dim, name):
    """By NumPy, to the bit."""
    target, dtype = zoo(dim)[name], np.dtype(np.float64 if dim == 12 else np.float32)
    workers = {"workers": WORKERS} if target.shares_randomness else {}
    layout = target.format(dim, 8 * dtype.itemsize, **workers)
    for i, x in enumerate(special(dim, dtype)):
        key = jax.random.key(i)
        message = (compiled if dim == 12 else quickly)(target, key, x)
        numbers = target.numbers(key, x, **shared(target, key))
        cost = tuple(int(c) for c in message.cost)
        assert cost == layout.price(numbers, dim), (x, cost, layout.price(numbers, dim))
        rebuilt = layout.rebuild(np, numbers, dim, dtype)
        assert rebuilt.dtype == dtype and message.value.dtype == dtype
        np.testing.assert_array_equal(bits_of(rebuilt), bits_of(message.value), err_msg=str(x))
        assert np.any(x) or not np.any(rebuilt), "zero to zero"


@each(12)
def test_zero_routes_and_determinism(dim, name):
    """Zero comes back as zeros on every route; eager, compiled and mapped are the same bits; NaN is seen."""
    target, key = zoo(dim)[name], jax.random.key(8)
    exact = not isinstance(target, PowerSGD)  # its matrix products are batched by another algorithm
    rows = normal(2, 4, dim, dtype=np.float32)
    rows[1], rows[3, 2] = 0, math.nan
    keys = jax.random.split(key, 4)
    mapped = rowwise(target, keys, jnp.asarray(rows))
    again = rowwise(target, keys, jnp.asarray(rows))
    np.testing.assert_array_equal(mapped.value, again.value)
    assert not np.any(np.asarray(mapped.value[1])) and np.all(np.isfinite(mapped.value[:3]))
    for i in range(4):
        one = compiled(target, keys[i], jnp.asarray(rows[i]))
        plain = send(target, keys[i], jnp.asarray(rows[i]))
        same = np.testing.assert_array_equal if exact else functools.partial(np.testing.assert_allclose, rtol=1e-4)
        same(np.asarray(one.value), np.asarray(plain.value))
        same(np.asarray(one.value), np.asarray(mapped.value[i]))
        for a, b in zip(jax.tree.leaves(one.cost), jax.tree.leaves(plain.cost), strict=True):
            assert int(a) == int(b)
        assert int(one.level) == int(plain.level)


SHOWS = (
    *("identity", "top", "hard threshold", "threshold of max", "threshold of norm", "adaptive random", "sign"),
    *(
        "sign with zero",
        "natural",
        "float16",
        "fixed point",
        "qsgd 1",
        "qsgd 3, elias",
        "terngrad",
        "low rank",
        "power",
    ),
)


@pytest.mark.parametrize("name", SHOWS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_seen(name, bad):
    x = normal(6, 12)
    x[7] = bad
    assert not np.all(np.isfinite(zoo(12)[name](jax.random.key(0), jnp.asarray(x)).value))


def test_no_two_classes_are_one_tree():
    """`jit` keeps programs by the structure of what it is given: two classes with the same fields must differ in it."""
    alike = [Identity(), AdaptiveRandom(), Natural(), TernGrad(), PermK(), ContractivePermK()]
    alike += [QSGD(3), MaxDithering(3), NaturalDithering(3), RandK(3), ContractiveRandK(3), LowRank(3), PowerSGD(3)]
    assert len({jax.tree.structure(target) for target in alike}) == len(alike)
    assert all(jax.tree.structure(a) != jax.tree.structure(b) for a, b in itertools.combinations(alike, 2))


# --- single families -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [1, 127, 128, 255, 256, 32768])
@pytest.mark.parametrize("family", [QSGD, MaxDithering, NaturalDithering])
def test_levels_do_not_wrap(family, levels):
    """FR-6."""
    for dtype in (np.float32, np.float64):
        for scale in (1.0, 3.0, 1e-30, 7e30):
            x = jnp.asarray([scale, 0, 0], dtype)
            for coding in ("fixed", "elias"):
                target = family(levels, coding)
                np.testing.assert_array_equal(target(jax.random.key(0), x).value, x)


def test_one_level_on_3_4():
    """FR-6: entries 0 or 5, mean [3, 4], mean squared error 10."""
    sent = np.asarray(
        rowwise(QSGD(1), jax.random.split(jax.random.key(0), 8000), jnp.tile(jnp.array([3.0, 4.0]), (8000, 1))).value
    )
    assert set(np.unique(sent)) == {0.0, 5.0}
    np.testing.assert_allclose(sent.mean(0), [3, 4], atol=0.15)
    off = np.sum((sent - [3, 4]) ** 2, 1)
    assert abs(off.mean() - 10) < 5 * off.std() / math.sqrt(8000)


def test_sign_of_zero_and_its_price():
    """FR-6."""
    x = jnp.array([3.0, -1.0, 0.0, 0.0])
    plus, zero = Sign()(0, x), Sign("zero")(0, x)
    assert plus.value.tolist() == [1, -1, 1, 1] and plus.cost == (1, 4)
    assert zero.value.tolist() == [1, -1, 0, 0] and zero.cost == (1, 7)  # ceil(4 log2 3) = ceil(6.34)


def test_low_rank_on_awkward_shapes():
    """FR-7: a fold that does not fill, zero, a deficient matrix, more rank than the matrix has, and what is refused."""
    key = jax.random.key(0)
    for target in (LowRank(1), PowerSGD(1)):
        assert target(key, jnp.ones(7)).value.shape == (7,)
        assert not np.any(np.asarray(target(key, jnp.zeros(7)).value))
        np.testing.assert_allclose(target(key, jnp.array([1.0, 2, 2, 4])).value, [1, 2, 2, 4], atol=1e-6)
        with pytest.raises(ValueError, match="more than the vector itself"):
            target(key, jnp.ones(3))
        with pytest.raises(ValueError, match="not filled"):
            type(target)(1, (3, 5))(key, jnp.ones(7))
        with pytest.raises(ValueError, match="rank"):
            type(target)(0)
    ones = jnp.ones((3, 2))
    for left, right in (svd_factors(ones, 2), power_factors(ones, jax.random.normal(key, (2, 2)))):
        np.testing.assert_allclose(left @ right.T, ones, atol=1e-6)


def test_low_rank_is_the_same_bits_in_every_program():
    """A sum of products that a compiler would contract."""
    x = jnp.asarray(normal(0, 3, 144))
    target = LowRank(3, (12, 12))
    mapped = rowwise(target, jax.random.split(jax.random.key(0), 3), x).value
    for row, other in zip(x, mapped, strict=True):
        numbers = target.numbers(jax.random.key(0), row)
        rebuilt = target.format(144, 64).rebuild(np, numbers, 144, np.dtype(float))
        np.testing.assert_array_equal(rebuilt, compiled(target, jax.random.key(0), row).value)
        np.testing.assert_array_equal(rebuilt, other)


def test_warm_power_steps_converge_and_may_lose_everything():
    warm, x = PowerSGDWarm(1, (4, 5)), jnp.asarray(np.outer(normal(0, 4), normal(1, 5)).reshape(-1))
    state = warm.init(jax.random.key(0), 20)
    for _ in range(3):
        message, state = warm.step(state, x)
    np.testing.assert_allclose(message.value, x, atol=1e-12)
    lost = jnp.zeros(20).at[5].set(3.0)  # row 1, column 0: the start below is orthogonal to its row space
    assert not np.any(np.asarray(warm.step(jnp.eye(5)[:, 1:2], lost)[0].value))
    silent, kept = warm.step(state, jnp.zeros(20))
    assert not np.any(silent.value) and np.array_equal(kept, state) and message.cost == (9, 0)
    assert np.all(np.isnan(warm.step(state, x.at[3].set(math.inf))[0].value))


def test_warm_power_steps_are_refused_where_a_constant_is_needed():
    warm, says = (
        PowerSGDWarm(1, (4, 5)),
        r"keeps a state .* use PowerSGD\(rank=1, shape=\(4, 5\)\), which starts afresh",
    )
    problem = problems.quadratic(workers=2, dim=20, noise_scale=0.8, strength=1e-2, seed=1)
    for place, make in {
        "EF21(compressor=...)": lambda: ac.EF21(warm),
        "AdaCGD(levels[0]=...)": lambda: ac.AdaCGD([warm], 1.0),
        "Shrunk(inner=...)": lambda: ac.Shrunk(warm),
        "Participation(compressor=...)": lambda: ac.Participation(warm, 0.5),
        "simulate(uplink=...)": lambda: ac.simulate(problem, warm, stepsize=0.1, rounds=3),
        "simulate(downlink=...)": lambda: ac.simulate(problem, ac.GD(), downlink=warm, stepsize=0.1, rounds=3),
        "certify(target=...)": lambda: ac.certify(warm),
    }.items():
        with pytest.raises(TypeError, match=re.escape(place) + ".*" + says):
            make()


@pytest.mark.parametrize(("dim", "workers"), [(3, 2), (4, 2), (2, 4), (2, 3), (3, 3), (1, 3), (3, 4), (2, 1)])
def test_perm_k_by_enumeration(dim, workers, monkeypatch):
    """Every order of coordinates and workers: unbiased, omega and alpha with equality, joint variance, sizes."""
    a = normal(1, workers, dim)
    orders = list(itertools.product(itertools.permutations(range(dim)), itertools.permutations(range(workers))))
    sent = np.zeros((len(orders), workers, dim))
    kept = np.zeros_like(sent)
    for i, order in enumerate(orders):
        for worker in range(workers):
            queue = [jnp.asarray(p) for p in order] * 2
            monkeypatch.setattr(jax.random, "permutation", lambda key, n, queue=queue: queue.pop(0))
            told = {"common": jax.random.key(0), "worker": worker, "workers": workers}
            message = PermK()(None, jnp.asarray(a[worker]), **told)
            sent[i, worker] = message.value
            kept[i, worker] = ContractivePermK()(None, jnp.ones(dim), **told).value
            assert int(message.cost.scalars) == kept[i, worker].sum() and message.cost.extra_bits == 0
            assert kept[i, worker].sum() in (max(dim // workers, 1), max(-(-dim // workers), 1))
    np.testing.assert_allclose(sent.mean(0), a)
    off = np.sum((sent - a) ** 2, 2).mean(0)
    np.testing.assert_allclose(off, PermK().omega(dim, workers) * np.sum(a**2, 1), atol=1e-12)
    np.testing.assert_allclose(kept.mean(0), ContractivePermK().alpha(dim, workers))
    together = np.sum((sent.mean(1) - a.mean(0)) ** 2, 1).mean()
    spread = np.mean(np.sum(a**2, 1)) - np.sum(a.mean(0) ** 2)
    np.testing.assert_allclose(together, PermK().joint(dim, workers) * spread, atol=1e-12)
    if workers % dim == 0 and workers > 1:
        assert math.isclose(PermK().joint(dim, workers), (dim - 1) / (workers - 1))
    elif workers <= dim and workers > 1:
        assert PermK().joint(dim, workers) == 1


def test_perm_k_asks_for_workers():
    for constant in (PermK().omega, ContractivePermK().alpha, Shrunk(PermK()).alpha, Composed(PermK(), RandK(1)).omega):
        with pytest.raises(ValueError, match="workers"):
            constant(4)


def test_shared_seed_sends_no_indices_and_draws_the_same():
    x, key = jnp.asarray(normal(0, 20)), jax.random.key(3)
    paid, free = RandK(5)(key, x), RandK(5, shared_seed=True)(key, x)
    np.testing.assert_array_equal(paid.value, free.value)
    assert paid.cost == (5, 25) and free.cost == (5, 0)
    with pytest.raises(ValueError, match="coding"):
        RandK(5, shared_seed=True, coding="rank")


def test_top_k_twice_is_top_k():
    x, key = jnp.asarray(normal(0, 20)), jax.random.key(3)
    np.testing.assert_array_equal(Residual(TopK(3), TopK(4))(key, x).value, TopK(7)(key, x).value)
    assert Residual(TopK(3), TopK(4)).alpha(20) == 7 / 20
    assert math.isclose(Residual(TopK(3), ContractiveRandK(4)).alpha(20), 1 - 17 / 20 * 16 / 20)


def test_parts_draw_independently():
    """Of Rand-1 after Rand-1 the two coordinates agree one time in d, also where both read the common key."""
    hits = [
        np.any(np.asarray(send(Composed(RandK(1), RandK(1)), jax.random.key(i), jnp.ones(8)).value)) for i in range(200)
    ]
    assert 5 <= sum(hits) <= 50
    both = Composed(PermK(), PermK())
    told = [{"common": jax.random.key(i), "worker": 0, "workers": 8} for i in range(200)]
    hits = [np.any(np.asarray(both(jax.random.key(0), jnp.ones(8), **t).value)) for t in told]
    assert 5 <= sum(hits) <= 50


def test_silence_is_level_0_and_costs_nothing():
    sent = rowwise(Participation(TopK(2), 0.3), jax.random.split(jax.random.key(0), 400), jnp.ones((400, 5)))
    active = np.asarray(sent.level) == 1
    assert 80 < active.sum() < 160
    assert np.all(np.asarray(sent.cost.scalars) == 2 * active) and np.all(
        np.asarray(sent.cost.extra_bits) == 6 * active
    )
    assert np.array_equal(np.any(np.asarray(sent.value), axis=1), active)


def test_norm_does_not_leave_the_range():
    for scale in (1e-300, 1e-160, 1.0, 1e160, 1e300):
        assert math.isclose(float(norm_of(jnp.array([3.0, 4.0]) * scale)), 5 * scale, rel_tol=1e-15)
    assert float(norm_of(jnp.zeros(5))) == 0


def test_what_cannot_be_is_refused():
    for build, words in [
        (lambda: QSGD(0), "levels"),
        (lambda: QSGD(1 << 16), "levels"),
        (lambda: QSGD(2, "huffman"), "coding"),
        (lambda: TopK(2, "huffman"), "coding"),
        (lambda: RelativeThreshold(1.5), "tau"),
        (lambda: RelativeThreshold(0.0), "tau"),
        (lambda: BiasedRandom([0.5, 0.0]), "probabilities"),
        (lambda: Participation(TopK(1), 0.0), "p="),
        (lambda: BlockTopK((1, 4), (3, 3)), "ks"),
        (lambda: BlockTopK((1, 2), (3, 3)).alpha(7), "dimension 6"),
        (lambda: MixK(3, 3).alpha(5), "k1"),
        (lambda: OnSupport(8, QSGD(1), scaled=False).alpha(8), "omega < 1"),
        (lambda: FixedPoint(1, 0), "bits"),
        (lambda: FloatCast("float12"), "kind"),
        (lambda: Sign("minus"), "zero"),
    ]:
        with pytest.raises(ValueError, match=words):
            build()
    for build, words in [
        (lambda: Induced(RandK(1), RandK(1)), "unbiased"),
        (lambda: Induced(TopK(1), TopK(1)), "contractive already"),
        (lambda: Composed(TopK(1), RandK(1)), "contractive already"),
        (lambda: Residual(TopK(1), RandK(1)), "Shrunk"),
    ]:
        with pytest.raises(TypeError, match=words):
            build()
