"""The whole loop against a plain NumPy one: both directions, all starts, momentum, prox, estimated gradients."""

import jax.numpy as jnp
import numpy as np
import pytest

import adacgd as ac
import problems

RNG = np.random.RandomState(5)
ROOTS = RNG.normal(size=(4, 6, 6))
A = ROOTS @ ROOTS.transpose(0, 2, 1) / 6 + 0.3 * np.eye(6)
b, x0 = RNG.normal(size=(4, 6)), RNG.normal(size=6)
QUADRATIC = problems.general_quadratic(A, b, x0=x0)
LOGISTIC = problems.logistic(problems.load("breast_cancer"), workers=4, regulariser="l2", strength=0.05)
GAMMA, ROUNDS = 0.05, 30


def top(v, k):
    kept = np.zeros_like(v)
    order = np.argsort(-np.abs(v), kind="stable")[:k]
    kept[order] = v[order]
    return kept


def clag(h, y, x, k, zeta):
    """The map, and whether it spoke."""
    speaks = np.sum((x - h) ** 2) > zeta * np.sum((x - y) ** 2)
    return (h + top(x - h, k), 1) if speaks else (h, 0)


def loop(form="dual", init="exact", eta=0.0, prox=lambda z: z, up=(2, 0.5), down=(3, 0.2), x0=x0):
    """Rounds of theory.md 3.4 written out; returns x, w, levels of the last round and what was first sent."""
    grads = lambda x: A @ x - b
    x, w = x0.copy(), x0.copy()
    v = grads(w)
    g_i = {"exact": v, "zero": 0 * v}.get(init)
    if init == "compressed":
        g_i = np.array([clag(0 * r, 0 * r, r, *up)[0] for r in v])
    u = g_i.mean(0)
    g = clag(0 * u, 0 * u, u, *down)[0] if init == "compressed" and form == "dual" else u
    m = 0 * u
    for _ in range(ROUNDS):
        m = eta * m + (g if form == "dual" else u)
        new = prox(x - GAMMA * m)
        w = clag(w, x, new, *down)[0] if form == "primal" else new
        now, levels = grads(w), []
        sent = [clag(h, y, z, *up) for h, y, z in zip(g_i, v, now, strict=True)]
        g_i, levels = np.array([s[0] for s in sent]), [s[1] for s in sent]
        g = clag(g, u, g_i.mean(0), *down)[0]
        x, v, u = new, now, g_i.mean(0)
    return x, w, levels


UP, DOWN = ac.CLAG(ac.TopK(2), 0.5), ac.CLAG(ac.TopK(3), 0.2)


@pytest.mark.parametrize("init", ["exact", "compressed", "zero"])
@pytest.mark.parametrize("form", ["dual", "primal"])
def test_both_forms_and_all_starts(form, init):
    trace = ac.simulate(QUADRATIC, UP, DOWN, stepsize=GAMMA, rounds=ROUNDS, form=form, init=init, verify=True)
    x, w, levels = loop(form, init)
    np.testing.assert_allclose(trace.x, x, rtol=1e-11)
    assert trace.level[-1].tolist() == levels
    np.testing.assert_allclose(trace.W[-1], np.sum((w - x) ** 2), rtol=1e-9, atol=1e-25)
    np.testing.assert_allclose(trace.grad_sq[-1], np.sum((A @ x - b).mean(0) ** 2), rtol=1e-10)
    np.testing.assert_allclose(trace.loss[-1], np.mean(x @ A @ x / 2 - b @ x), rtol=1e-11)
    assert trace.slack.three_point <= 1 and trace.slack.downlink <= 1 and trace.slack.downlink > 0
    assert np.all(trace.H == 0) == (form == "primal") and np.all(trace.W == 0) == (form == "dual")
    first = trace.initial_cost
    if init == "compressed":
        assert first.up.scalars.tolist() == [2] * 4 and first.down.scalars == (6 if form == "primal" else 3)
    else:
        assert first.up.scalars == {"exact": 6, "zero": 0}[init]
        assert first.down.scalars == (6 if form == "primal" or init == "exact" else 0)


def test_without_a_downlink_both_forms_are_one():
    runs = [ac.simulate(QUADRATIC, UP, stepsize=GAMMA, rounds=ROUNDS, form=form) for form in ("dual", "primal")]
    np.testing.assert_allclose(runs[0].x, runs[1].x, rtol=1e-12)
    np.testing.assert_array_equal(runs[0].scalars_up, runs[1].scalars_up)
    np.testing.assert_array_equal(runs[0].scalars_down, runs[1].scalars_down)


def test_heavy_ball_with_a_downlink():
    trace = ac.simulate(QUADRATIC, UP, DOWN, stepsize=GAMMA, rounds=ROUNDS, momentum=0.7)
    np.testing.assert_allclose(trace.x, loop(eta=0.7)[0], rtol=1e-11)
    # the shadow point: sum of |grad f(z)|^2 with z = x - gamma eta/(1 - eta) v
    plain = ac.simulate(QUADRATIC, ac.GD(), stepsize=GAMMA, rounds=3, momentum=0.7)
    x, v, total = x0.copy(), np.zeros(6), 0.0
    for _ in range(3):
        z = x - GAMMA * 0.7 / 0.3 * v
        total += np.sum((A @ z - b).mean(0) ** 2)
        v = 0.7 * v + (A @ x - b).mean(0)
        x = x - GAMMA * v
    np.testing.assert_allclose(plain.x, x, rtol=1e-12)
    np.testing.assert_allclose(plain.shadow_sq_sum[-1], total, rtol=1e-12)
    assert np.all(ac.simulate(QUADRATIC, ac.GD(), stepsize=GAMMA, rounds=3).shadow_sq_sum == 0)


PENALTIES = {
    "l1": (0.2, lambda z: np.sign(z) * np.maximum(np.abs(z) - GAMMA * 0.2, 0), lambda x: 0.2 * np.abs(x).sum()),
    "l2": (0.2, lambda z: z / (1 + GAMMA * 0.2), lambda x: 0.1 * x @ x),
    "box": ((-0.1, 0.2), lambda z: np.clip(z, -0.1, 0.2), lambda x: 0.0),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_proximal_steps(name):
    strength, prox, value = PENALTIES[name]
    problem = problems.composite(QUADRATIC, name, strength)
    start = np.clip(x0, -0.1, 0.2) if name == "box" else x0
    trace = ac.simulate(problem, UP, DOWN, stepsize=GAMMA, rounds=ROUNDS, x0=start)
    x = loop(prox=prox, x0=start)[0]
    np.testing.assert_allclose(trace.x, x, rtol=1e-11, atol=1e-15)
    mapped = (x - prox(x - GAMMA * (A @ x - b).mean(0))) / GAMMA
    np.testing.assert_allclose(trace.grad_sq[-1], mapped @ mapped, rtol=1e-9)
    np.testing.assert_allclose(trace.loss[-1], np.mean(x @ A @ x / 2 - b @ x) + value(x), rtol=1e-11)
    assert trace.prox and trace.f_lower == QUADRATIC.f_lower and trace.f_star is None
    if name == "box":
        with pytest.raises(ValueError, match=r"x0=...\) lies where r is infinite"):
            ac.simulate(problem, UP, stepsize=GAMMA, rounds=1, x0=x0)
    # at a minimiser of f + r nothing moves
    end = ac.simulate(problem, ac.GD(), stepsize=GAMMA, rounds=3000, record_every=3000, tolerance=1e-9)
    assert end.status == "converged"


@pytest.mark.parametrize("name", PENALTIES)
def test_a_prox_is_the_minimiser(name):
    problem = problems.composite(QUADRATIC, name, PENALTIES[name][0])
    z, gamma = RNG.normal(size=6), 0.7
    x = np.asarray(problem.prox(gamma, jnp.asarray(z)))
    objective = lambda x: float(problem.penalty(jnp.asarray(x))) + np.sum((x - z) ** 2) / (2 * gamma)
    others = x + 0.05 * RNG.normal(size=(200, 6))
    assert all(objective(other) > objective(x) for other in others)


def test_batches_are_right_on_average_and_whole_ones_exact():
    x = jnp.asarray(0.1 * RNG.normal(size=LOGISTIC.dim))
    sizes = np.asarray(LOGISTIC.sizes)
    assert sizes.sum() == 569
    exact = np.asarray(LOGISTIC.grads(x))
    every = np.array(LOGISTIC.batch_grads(x, jnp.tile(jnp.arange(sizes.min()), (4, 1))))
    np.testing.assert_allclose(every[:3], exact[:3], atol=1e-14)  # the first shards have just so many rows
    rows = np.stack([RNG.randint(0, sizes) for _ in range(4000)], axis=1)
    singles = np.stack([np.asarray(LOGISTIC.batch_grads(x, jnp.asarray(rows[:, [j]]))) for j in range(0, 4000, 10)])
    sigmas = (singles.mean(0) - exact) / (singles.std(0) / np.sqrt(len(singles)))
    assert np.abs(sigmas).max() < 5
    squares = problems.least_squares((RNG.normal(size=(12, 3)), RNG.normal(size=12)), workers=3)
    point = jnp.asarray(RNG.normal(size=3))
    whole = squares.batch_grads(point, jnp.tile(jnp.arange(4), (3, 1)))
    np.testing.assert_allclose(whole, squares.grads(point), atol=1e-13)


def test_estimated_gradients_follow_their_rules():
    """PAGE with p = 1 is the exact gradient, `Momentum` with eta = 1 is `Minibatch`, one row a worker is exact."""
    run = lambda oracle, problem=LOGISTIC, **o: ac.simulate(
        problem, ac.EF21(ac.TopK(3)), stepsize=0.05, rounds=20, oracle=oracle, **o
    )
    np.testing.assert_allclose(run(ac.PAGE(4, 1.0)).x, run(None).x, rtol=1e-11)
    np.testing.assert_array_equal(run(ac.Momentum(4, 1.0)).x, run(ac.Minibatch(4)).x)
    assert not np.allclose(run(ac.Minibatch(4)).x, run(ac.Minibatch(4), key=1).x)
    single = problems.least_squares((RNG.normal(size=(4, 3)), RNG.normal(size=4)), workers=4)
    np.testing.assert_allclose(run(ac.Minibatch(1), single).x, run(None, single).x, rtol=1e-11)
    np.testing.assert_allclose(run(ac.PAGE(1, 0.3), single).x, run(None, single).x, rtol=1e-11)
    # the average over keys follows the exact run to first order: gradient descent is linear in the noise at round 1
    first = np.array([run(ac.Minibatch(8), key=k).x for k in range(2)])
    assert np.isfinite(first).all()
    trace = run(ac.Momentum(8, 0.1))
    assert not trace.exact_gradients and trace.G[-1] > 0 and run(None).exact_gradients


def test_momentum_of_batches_by_hand():
    """v^+ = (1 - eta) v + eta batch, with gradient descent on it: x follows from the same rows."""
    oracle, key = ac.Momentum(2, 0.25), ac.compressors.base.as_key(7)
    trace = ac.simulate(LOGISTIC, ac.GD(), stepsize=0.1, rounds=3, oracle=oracle, key=7)
    from adacgd.loop import BEFORE, each, keys_of
    from adacgd.oracles import batch_of
    from adacgd.workers import Workers

    rows = lambda t: batch_of(LOGISTIC, each(keys_of(key, t).oracle, Workers(4)), 2)
    x = LOGISTIC.x0
    v = LOGISTIC.batch_grads(x, rows(jnp.uint32(BEFORE)))
    for t in range(3):
        x = x - 0.1 * jnp.mean(v, axis=0)
        v = 0.75 * v + 0.25 * LOGISTIC.batch_grads(x, rows(t))
    np.testing.assert_allclose(trace.x, x, rtol=1e-12)


def test_the_distance_to_a_minimiser():
    trace = ac.simulate(QUADRATIC, ac.EF21(ac.TopK(2)), stepsize=0.3, rounds=40, record_every=10)
    every = ac.simulate(QUADRATIC, ac.EF21(ac.TopK(2)), stepsize=0.3, rounds=40)
    star = np.linalg.solve(A.mean(0), b.mean(0))
    np.testing.assert_allclose(trace.distance_sq[0], np.sum((x0 - star) ** 2), rtol=1e-10)
    np.testing.assert_allclose(trace.distance_sq[-1], np.sum((trace.x - star) ** 2), rtol=1e-8)
    running = np.maximum.accumulate(every.distance_sq)
    np.testing.assert_allclose(trace.farthest_sq, running[trace.rounds], rtol=1e-12)
    diana = ac.simulate(QUADRATIC, ac.DIANA(ac.RandK(2)), stepsize=0.02, rounds=5)
    np.testing.assert_allclose(diana.S[0], np.mean(np.sum((A @ x0 - A @ star) ** 2, axis=1)), rtol=1e-10)
    dcgd = ac.simulate(QUADRATIC, ac.DCGD(ac.RandK(2)), stepsize=0.02, rounds=5)
    np.testing.assert_allclose(dcgd.S, np.mean(np.sum((A @ star - b) ** 2, axis=1)), rtol=1e-10)
    assert np.all(np.isnan(every.S))
    free = problems.logistic(problems.load("breast_cancer"), workers=4)
    assert np.all(np.isnan(ac.simulate(free, ac.GD(), stepsize=0.1, rounds=2).distance_sq))


BAD = [
    (dict(form="primary"), "form=.* dual, primal"),
    (dict(init="none"), "init=.* exact, compressed, zero"),
    (dict(momentum=1.0), r"momentum=...\) must be a number in \[0, 1\)"),
    (dict(momentum=True), "momentum="),
    (dict(oracle=8), "oracle=.* such as Minibatch"),
    (dict(oracle=ac.Minibatch(3)), "no rows to draw a batch from"),
]


@pytest.mark.parametrize(("options", "words"), BAD)
def test_bad_options(options, words):
    for run in (ac.simulate, lambda *a, stepsize, **o: ac.sweep(*a, stepsizes=[stepsize], **o)):
        with pytest.raises((ValueError, TypeError), match=words):
            run(QUADRATIC, ac.GD(), stepsize=0.1, rounds=1, **options)


def test_bad_combinations():
    with pytest.raises(ValueError, match=r"Minibatch.*more rows than the 142"):
        ac.simulate(LOGISTIC, ac.GD(), stepsize=0.1, rounds=1, oracle=ac.Minibatch(143))
    for link in (ac.LAGWorker(), ac.EF14(ac.TopK(1))):
        with pytest.raises(ValueError, match=r"form='primal'. compresses the model"):
            ac.simulate(QUADRATIC, ac.GD(), link, stepsize=0.1, rounds=1, form="primal")
    for start, words in ((ac.theory.Start(gap=-1.0), "gap=-1.0"), (2.0, "must be a theory.Start")):
        with pytest.raises((TypeError, ValueError), match=words):
            ac.theory.bound(QUADRATIC.smoothness, ac.AB(1.0, 0.0), start=start, rounds=[1])
    with pytest.raises(ValueError, match="counts rounds"):
        ac.theory.bound(QUADRATIC.smoothness, ac.AB(1.0, 0.0), start=ac.theory.Start(gap=1.0), rounds=[-3])
    with pytest.raises(ValueError, match="LAGWorker as a downlink"):
        none = ac.LAGWorker().constants(6)
        ac.theory.stepsize(QUADRATIC.smoothness, ac.AB(1.0, 0.0), downlink=none)
    composite = problems.composite(QUADRATIC, "l1", 0.1)
    with pytest.raises(ValueError, match=r"momentum=0.5\): not with a prox"):
        ac.simulate(composite, ac.GD(), stepsize=0.1, rounds=1, momentum=0.5)
    with pytest.raises(ValueError, match=r"verify=True.*one of them has none"):
        ac.simulate(QUADRATIC, ac.EF14(ac.TopK(1)), stepsize=0.1, rounds=1, verify=True)
    with pytest.raises(ValueError, match="another form"):
        ac.simulate(QUADRATIC, UP, DOWN, stepsize=0.1, rounds=2, form="primal", start=ac.simulate(
            QUADRATIC, UP, DOWN, stepsize=0.1, rounds=1
        ))  # fmt: skip
    for arguments, words in (
        ((QUADRATIC, "l3", 0.1), "penalty="),
        ((QUADRATIC, "l1", -1), "strength="),
        ((QUADRATIC, "box", (1, 0)), "low < high"),
        ((composite, "l1", 0.1), "has a penalty already"),
        ((3, "l1", 0.1), "problem="),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            problems.composite(*arguments)


@ac.module
class Overclaimed(ac.ThreePoint):
    """Silence for ever, said to be gradient descent."""

    def __call__(self, key, h, y, x):
        return ac.Message(h, ac.Cost(0), 0)

    def constants(self, dim):
        return ac.AB(0.9, 0.1)


def test_a_broken_run_says_which_inequality_broke_and_when():
    for links, name, words in (
        ((Overclaimed(), None), "three_point", "three point inequality of the uplink is broken at round"),
        ((ac.GD(), Overclaimed()), "downlink", "three point inequality of the downlink is broken at round"),
    ):
        trace = ac.simulate(QUADRATIC, *links, stepsize=0.05, rounds=400, verify=True)
        check = ac.theory.check(trace)
        assert not check.ok and check.broken == (name,) and words in check.reason
        assert getattr(trace.slack, name) > 2 and getattr(trace.slack_rounds, name) >= 1


def test_a_broken_assumption_is_named_with_its_round():
    """L_plus from bounds on the Hessians is broken where they do not commute (theory.md 3.0)."""
    wrong = problems.general_quadratic(A, b, x0=x0)
    wrong.about.smoothness = wrong.smoothness._replace(L_plus=0.3, L_minus=10.0)
    trace = ac.simulate(wrong, UP, stepsize=GAMMA, rounds=10, verify=True)
    assert trace.slack.L_plus > 1 and trace.slack.L_minus < 1 and 1 <= trace.slack_rounds.L_plus <= 10
