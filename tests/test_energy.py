"""The energy rule: K is the least that is accurate enough, its price, its place among EF21 and LAG, its bound.

Its law is on trial in test_mechanisms.py and benchmarks/court.py.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adacgd as ac
import problems
from adacgd.theory import beta, theta

KEY = jax.random.key(0)
D = 12
send = jax.jit(lambda m, h, y, x: m(KEY, h, y, x))
rows = jax.jit(lambda m, h, y, x: jax.vmap(lambda h, y, x: m(KEY, h, y, x))(h, y, x))


def triples(seed, count=300, d=D):
    """(h, y, x), (count, d) each, of whole numbers, so that sums are exact; x near y, near h, or far from both."""
    random = np.random.RandomState(seed)
    h, y, x = (random.randint(-9, 10, size=(count, d)).astype(float) for _ in range(3))
    sparse = random.randint(-9, 10, size=(count, d)) * (random.uniform(size=(count, d)) < 2 / d)
    kind = np.arange(count) % 4
    x[kind == 1] = (h + sparse)[kind == 1]
    y[kind == 2] = (x + sparse)[kind == 2]
    x[kind == 3] = y[kind == 3] = h[kind == 3]
    return h, y, x


def least(alpha, zeta, h, y, x):
    """K by trying 0, 1, 2, ... on the list of squares."""
    squares = sorted((float(v) ** 2 for v in x - h), reverse=True)
    limit = max(zeta * float(np.sum((x - y) ** 2)), (1 - alpha) * sum(squares))
    return next(K for K in range(len(squares) + 1) if sum(squares[K:]) <= limit * (1 + 1e-12))


@pytest.mark.parametrize(("alpha", "zeta"), [(0.25, 0.0), (0.5, 1.0), (0.9, 0.25), (1.0, 0.5), (1.0, 0.0)])
def test_the_count_is_the_least_that_is_accurate_enough(alpha, zeta):
    h, y, x = triples(1)
    sent = rows(ac.Energy(alpha, zeta), h, y, x)
    expected = np.array([least(alpha, zeta, *row) for row in zip(h, y, x, strict=True)])
    np.testing.assert_array_equal(sent.cost.scalars, expected)
    np.testing.assert_array_equal(sent.level, expected > 0)
    assert len(set(expected)) > 2 and np.all(expected <= math.ceil(alpha * D))
    np.testing.assert_array_equal(sent.cost.extra_bits, expected * 4 + 4)  # 4 bits an index, and 0..12 in 4 bits
    for value, K, (a, b) in zip(np.asarray(sent.value), expected, zip(h, x, strict=True), strict=True):
        kept = np.argsort(-np.abs(b - a), kind="stable")[:K]
        full = a.copy()
        full[kept] = b[kept]
        np.testing.assert_array_equal(value, full)


def test_one_entry_less_would_break_the_inequality():
    """A rule that sends K - 1 entries is no longer 3PC(A, B): the flat x - h with Young's y, where EF21 is tight."""
    rule = ac.Energy(1 / 3, 0.0)
    h, x = jnp.zeros(D), jnp.ones(D)
    A, B, *_ = rule.constants(D)
    y = h + (1 - A) * (x - h)
    right = (1 - A) * jnp.sum((h - y) ** 2) + B * jnp.sum((x - y) ** 2)
    sent = send(rule, h, y, x)
    assert int(sent.cost.scalars) == 4 and float(jnp.sum((sent.value - x) ** 2)) == pytest.approx(float(right))
    assert float(jnp.sum((x - h) ** 2)) - 3 > float(right) * 1.1  # K = 3


def test_the_error_is_that_of_ef21_with_the_same_alpha_or_less():
    h, y, x = triples(2)
    error = np.sum((np.asarray(rows(ac.Energy(0.25, 0.0), h, y, x).value) - x) ** 2, axis=1)
    assert np.all(error <= 0.75 * np.sum((x - h) ** 2, axis=1) * (1 + 1e-12))
    ef21 = rows(ac.EF21(ac.TopK(3)), h, y, x)
    counts = np.asarray(rows(ac.Energy(0.25, 0.0), h, y, x).cost.scalars)
    assert np.all(counts <= np.asarray(ef21.cost.scalars)) and np.any(counts == 1)


def test_silence_is_that_of_lag_and_alpha_one_sends_what_moved():
    h, y, x = triples(3)
    for zeta in (0.5, 4.0):
        lag, energy = (rows(m, h, y, x) for m in (ac.LAG(zeta), ac.Energy(1.0, zeta)))
        np.testing.assert_array_equal(energy.level == 0, (lag.level == 0) | np.all(x == h, axis=1))
    np.testing.assert_array_equal(rows(ac.Energy(1.0, 0.0), h, y, x).value, x)


def test_constants():
    for alpha, zeta in ((0.25, 0.0), (0.25, 90.0), (1.0, 0.5)):
        assert ac.Energy(alpha, zeta).constants(D) == (theta(alpha), max(beta(alpha), zeta), 2.0, 2.0)
    with pytest.raises(ValueError, match=r"Energy\(alpha=\.\.\.\) must be one number"):
        ac.Energy(np.array([0.1, 0.2]), 1.0).constants(D)


@pytest.mark.parametrize("d", [1, 300])  # 300: tails by running sums
def test_other_dimensions(d):
    random = np.random.RandomState(d)
    h, y, x = random.normal(size=(3, d))
    sent = send(ac.Energy(0.3, 0.1), h, y, x)
    K = least(0.3, 0.1, h, y, x)
    assert int(sent.cost.scalars) == K and int(sent.cost.extra_bits) == (K * 0 + 1 if d == 1 else K * 9 + 9)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_not_finite_is_sent_and_seen(broken):
    x = np.arange(1.0, D + 1)
    x[3] = broken
    sent = send(ac.Energy(0.5, 1.0), np.zeros(D), np.ones(D), x)
    np.testing.assert_array_equal(sent.value, x)


def test_runs_keep_the_bound_and_sweeps_take_zeta_as_data():
    problem = problems.quadratic(workers=4, dim=D, noise_scale=0.8, strength=1e-2, seed=3)
    uplink = ac.Energy(0.25, 0.1)
    gamma = ac.theory.stepsize(problem.smoothness, uplink.constants(D))
    trace = ac.simulate(problem, uplink, stepsize=gamma, rounds=200, verify=True)
    assert ac.theory.check(trace).ok
    assert trace.grad_sq[-1] < trace.grad_sq[0] and np.all(np.diff(trace.scalars_up, axis=0) <= 3)
    assert len(np.unique(np.diff(trace.scalars_up, axis=0))) >= 2
    grid = ac.sweep(problem, uplink, stepsizes=[gamma], zetas=[0.1, 4.0], rounds=200)
    np.testing.assert_allclose(grid[0, 0].grad_sq, trace.grad_sq, rtol=1e-6)
    assert np.mean(grid[0, 1].level) < np.mean(grid[0, 0].level)


@pytest.mark.parametrize("alpha", [0, -0.1, 1.01, math.nan, math.inf, None, "1", True])
def test_alpha_is_a_share(alpha):
    with pytest.raises(ValueError, match=r"^Energy\(alpha=\.\.\.\)"):
        ac.Energy(alpha, 1.0)


def test_zeta_is_not_negative():
    with pytest.raises(ValueError, match=r"^Energy\(zeta=\.\.\.\)"):
        ac.Energy(0.5, -1.0)
