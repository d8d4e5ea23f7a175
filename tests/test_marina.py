"""MARINA: the law of the mean, where it is an equality; Perm-K; steps and checks; the common coin and the price."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adacgd as ac
import problems
from adacgd.compressors import Draw
from adacgd.estimators import Estimator

KEY = jax.random.key(1)
N, D = 4, 8


@pytest.fixture(scope="module")
def quad():
    return problems.quadratic(workers=N, dim=D, noise_scale=0.8, strength=5e-2, seed=3)


def next_mean(marina, count, h, y, x):
    """What the workers' mean becomes on `count` draws, (count, d)."""

    def once(key):
        common = jax.random.fold_in(key, N)
        one = lambda i, h, y, x: marina.step(Draw(jax.random.fold_in(key, i), common, 0, i, N), (), h, y, x)[0].value
        return jnp.mean(jax.vmap(one)(jnp.arange(N), h, y, x), axis=0)

    return np.asarray(jax.jit(jax.vmap(once))(jax.random.split(KEY, count)))


# --- the law ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [ac.RandK(2), ac.PermK(), ac.RandK(8)], ids=repr)
@pytest.mark.parametrize("p", [0.2, 0.6])
def test_the_law_of_the_mean_is_an_equality_and_better_constants_are_convicted(q, p):
    h, y, x = np.random.RandomState(0).normal(size=(3, N, D))
    A, B, *_ = ac.MARINA(q, p).constants(D, workers=N)

    def meets(h, y, x, better):
        """The mean error is the right side, and not that of better constants, by five standard errors."""
        off = np.sum((next_mean(ac.MARINA(q, p), 40_000, h, y, x) - np.mean(x, axis=0)) ** 2, axis=1)
        shared = np.mean(x - y, axis=0) if isinstance(q, ac.PermK) else 0.0  # L_pm speaks of what moves apart
        apart = np.mean(np.sum((x - y - shared) ** 2, axis=1))
        right = lambda A, B: (1 - A) * np.sum(np.mean(h - y, axis=0) ** 2) + B * apart
        error = 5 * off.std() / math.sqrt(len(off))
        assert abs(off.mean() - right(A, B)) <= error + 1e-12
        assert better is None or off.mean() - error > right(*better)

    meets(h, y, x, None)
    meets(y, y, x, (A, B / 1.05) if B > 0 else None)  # an exact start: all of the right side is B's
    meets(h + 1, x, x, (1.1 * A, B))  # nothing moves: all of it is A's


def test_constants_are_the_tables():
    assert ac.MARINA(ac.RandK(2), 0.25).constants(8, workers=4) == (0.25, 0.75 * 3 / 4, None, None)
    assert ac.MARINA(ac.RandK(2), 1.0).constants(8, workers=4)[:2] == (1, 0)
    perm = ac.MARINA(ac.PermK(), 0.25)
    assert perm.constants(8, workers=4)[:2] == (0.25, 0.75)
    assert perm.constants(4, workers=8)[:2] == (0.25, pytest.approx(0.75 * 3 / 7))  # times (d - 1)/(n - 1)
    assert (perm.constants(8, workers=4).spread, perm.constants(8, workers=4)._replace(B=1.0).spread) == ("L_pm",) * 2
    coupled = ac.MARINA(ac.Composed(ac.PermK(), ac.RandK(1)), 0.25)  # who depends on whom is not known
    assert coupled.constants(8, workers=4)[1] == 0.75 * coupled.unbiased.omega(8, workers=4)
    with pytest.raises(ValueError, match="workers="):
        perm.constants(8)


# --- steps and checks ------------------------------------------------------------------------------------------------


def test_the_step():
    smoothness = SimpleNamespace(L_minus=2.0, L_plus=5.0, L_pm=3.0, mu=1e-9)
    step = lambda marina, *args: ac.theory.stepsize(smoothness, marina.constants(8, workers=4), *args)
    u = 0.75 * 3 / (0.25 * 4)
    assert step(ac.MARINA(ac.RandK(2), 0.25)) == pytest.approx(1 / (2 + 5 * math.sqrt(u)))
    assert step(ac.MARINA(ac.PermK(), 0.25)) == pytest.approx(1 / (2 + 3 * math.sqrt(3)))
    assert step(ac.MARINA(ac.PermK(), 0.25), "pl") == pytest.approx(1 / (2 + 3 * math.sqrt(6)))
    server = ac.EF21(ac.TopK(2)).constants(8)
    as_others = ac.AB(*ac.MARINA(ac.PermK(), 0.25).constants(8, workers=4))
    both = step(ac.MARINA(ac.PermK(), 0.25), "nonconvex", server)
    assert both == ac.theory.stepsize(smoothness, as_others, "nonconvex", server)  # L_plus, which is never smaller


def own(problem, marina):
    return marina.constants(problem.dim, workers=problem.n)


@pytest.mark.parametrize("q", [ac.RandK(2), ac.PermK()], ids=repr)
@pytest.mark.parametrize("regime", ["nonconvex", "pl"])
@pytest.mark.parametrize("down", [None, ac.EF21(ac.TopK(3))], ids=["exact server", "ef21 server"])
def test_the_theorems_hold_on_average_at_their_steps(quad, q, regime, down):
    marina, server = ac.MARINA(q, 0.3), None if down is None else down.constants(D)
    gamma = ac.theory.stepsize(quad.smoothness, own(quad, marina), regime, server)
    grid = ac.sweep(quad, marina, down, stepsizes=[gamma], keys=list(range(30)), rounds=200)
    checks = [ac.theory.check(grid[0, k], regime) for k in range(30)]
    assert all(c.multiple == pytest.approx(1) for c in checks)
    ratios = np.array([c.ratios for c in checks])
    error = 5 * ratios.std(axis=0) / math.sqrt(30)
    assert np.all(ratios.mean(axis=0) - error <= 1)
    assert ratios.max() > 1e-3


def test_g_is_the_error_of_the_mean(quad):
    trace = ac.simulate(quad, ac.MARINA(ac.RandK(2), 0.3), stepsize=0.05, rounds=60, verify=True)
    full = trace.level[:, 0] == 2
    assert np.all(trace.G[full] < 1e-24) and np.all(trace.G[1:][~full[1:]] > 0) and trace.slack.three_point > 0
    exact = ac.simulate(quad, ac.MARINA(ac.RandK(2), 1.0), stepsize=0.05, rounds=60, verify=True)
    assert exact.slack.three_point <= 1
    # of equal workers Perm-K loses nothing of the mean, however far off each of them is
    alike = problems.tridiagonal(np.full(N, 1.0), np.full(N, -0.3), np.ones(N), D)
    trace = ac.simulate(alike, ac.MARINA(ac.PermK(), 0.1), stepsize=0.3, rounds=50, verify=True)
    assert alike.smoothness.L_pm < 1e-7 and np.all(trace.G < 1e-24)
    gd = ac.simulate(alike, ac.GD(), stepsize=0.3, rounds=50)
    np.testing.assert_allclose(trace.grad_sq, gd.grad_sq, rtol=1e-9)


# --- coin and price --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [ac.RandK(2), ac.PermK()], ids=repr)
@pytest.mark.parametrize("p", [0.1, 0.7])
def test_one_coin_a_round_and_the_average_price(quad, q, p):
    rounds = 2000
    trace = ac.simulate(quad, ac.MARINA(q, p), stepsize=1e-4, rounds=rounds, key=4)
    assert isinstance(ac.MARINA(q, p), Estimator)
    assert np.all(trace.level == trace.level[:, :1]) and set(trace.level[1:, 0]) == {1, 2}
    sent = np.diff(trace.scalars_up, axis=0)
    assert np.all(sent[trace.level[1:] == 2] == D) and np.all(sent[trace.level[1:] == 1] == 2)
    error = (D - 2) * math.sqrt(p * (1 - p) / rounds)
    assert abs(sent.mean() - (p * D + (1 - p) * 2)) < 5 * error


def test_p_1_is_gradient_descent_and_a_run_continues(quad):
    gd = ac.simulate(quad, ac.GD(), stepsize=0.05, rounds=40)
    full = ac.simulate(quad, ac.MARINA(ac.RandK(2), 1.0), stepsize=0.05, rounds=40)
    for name in ("x", "loss", "grad_sq", "scalars_up", "extra_bits_up"):
        np.testing.assert_array_equal(getattr(full, name), getattr(gd, name), err_msg=name)
    run = lambda rounds, start=None: ac.simulate(
        quad, ac.MARINA(ac.PermK(), 0.3), stepsize=0.05, rounds=rounds, start=start
    )
    np.testing.assert_array_equal(run(40, run(17)).G, run(40).G)


def test_as_a_downlink_it_is_a_three_point_map(quad):
    down = ac.MARINA(ac.RandK(4), 0.5)
    trace = ac.simulate(quad, ac.EF21(ac.TopK(4)), down, stepsize=0.02, rounds=400)
    assert trace.downlink_constants == (0.5, 0.5, None, None) and trace.status == "completed"
    assert set(np.diff(trace.scalars_down)) == {4, D}


@pytest.mark.parametrize("q", [ac.RandK(1), ac.PermK()], ids=repr)
def test_the_court_tries_the_law_of_the_mean(q):
    marina = ac.MARINA(q, 0.5)
    found = ac.certify(marina, dim=4, workers=2)
    assert found.ok and 0.99 < found.tightness < 1.01 and np.shape(found.witness) == (3, 2, 4)
    A, B, *_ = marina.constants(4, workers=2)
    assert not ac.certify(marina, dim=4, workers=2, claim=ac.AB(A, 0.9 * B))


def test_a_memory_has_no_law_of_one_message():
    with pytest.raises(TypeError, match=r"certify takes .* got DIANA .an estimator with a memory"):
        ac.certify(ac.DIANA(ac.RandK(1)))
