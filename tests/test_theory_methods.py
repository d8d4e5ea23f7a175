"""Methods that are no 3PC, the tight rate, heavy ball, prox, and pairs of constants: formulas, runs, controls."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from small import Quadratic, ef21, every, exact, lag, marina_perm, pair, rand1_methods, random_quadratic, run, top

from adacgd.theory import (
    ContractiveDCGD,
    DCGDConstants,
    DianaConstants,
    EF14Constants,
    SGDMConstants,
    Start,
    beta,
    bound,
    check,
    iterations_to,
    participating,
    rate,
    sharper,
    stepsize,
    theorem,
    theta,
    tight_rate,
    tight_stepsize,
)

L = SimpleNamespace(
    L_minus=1.3, L_plus=2.0, L_pm=0.7, L_i=np.array([1.0, 3.0]), mu_i=np.array([0.1, 0.3]), mu=0.1, how={}
)
ONE = SimpleNamespace(L_minus=1.0, L_plus=1.0, L_pm=0.0, L_i=np.array([1.0]), mu_i=np.array([0.1]), mu=0.1, how={})


def isotropic(d):
    """f = |x|^2/2 of one worker, mu = L = 1."""
    return Quadratic(np.eye(d)[None], np.zeros((1, d)), np.arange(1.0, d + 1))


# --- pairs of constants -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.05, 0.25, 0.9])
@pytest.mark.parametrize("times", [0.5, 1.0, 1.01, 3.0, 1e6])
def test_the_sharper_pair(alpha, times):
    zeta = times * beta(alpha)
    A, B = sharper(alpha, zeta)
    standard = (theta(alpha), max(beta(alpha), zeta))
    assert standard[0] <= A <= alpha and standard[1] == B
    assert B / A <= standard[1] / standard[0]
    if times > 1:  # the Young parameter that lifts the branch that sends to zeta
        s = (1 - alpha) / (zeta - 1 + alpha)
        assert ((1 - alpha) * (1 + 1 / s), 1 - (1 - alpha) * (1 + s)) == (pytest.approx(zeta), pytest.approx(A))
    if times == 1e6:
        assert pytest.approx(alpha, rel=1e-5) == A


def test_the_sharper_pair_is_an_equality_somewhere_and_1_per_cent_more_A_is_false():
    """1-d, C(v) = (1 - e) v, the branch that sends: the error is e^2 |x - h|^2 with x - h = (x - y) + (y - h)."""
    alpha, zeta = 0.75, 3.0
    A, B = sharper(alpha, zeta)
    e2 = 1 - alpha
    t = np.linspace(0.01, 3, 3000)  # |x - y| for |h - y| = 1
    error = e2 * (1 + t) ** 2
    sends = (1 + t) ** 2 > zeta * t**2  # the trigger is |x - h|^2 > zeta |x - y|^2
    ratio = lambda A: np.max((error / ((1 - A) + B * t**2))[sends])
    assert 1 - 1e-6 < ratio(A) <= 1 and ratio(1.01 * A) > 1


@pytest.mark.parametrize(("A", "B"), [(0.3, 2.0), (1.0, 0.0), (1.0, 4.0), (0.01, 0.5)])
@pytest.mark.parametrize("p", [0.1, 0.6, 1.0])
def test_participation_minimises_B_over_A(A, B, p):
    own = participating(A, B, p)
    if p == 1:
        assert own == (A, B)
        return
    q = 1 - p
    s = np.linspace(0, p * A / q, 20001)[1:-1]
    ratios = (p * B + q * (1 + 1 / s)) / (p * A - q * s)
    assert 0 < own[0] <= A and own[1] / own[0] == pytest.approx(ratios.min(), rel=1e-5)
    assert own[1] / own[0] <= ratios.min() * (1 + 1e-12)
    with pytest.raises(ValueError, match="probability"):
        participating(A, B, 0.0)


def test_participation_of_gd_in_1_d_is_what_the_coin_does():
    """x with probability p, else h: the error is q |x - h|^2 in the mean, at most (1 - A')|h - y|^2 + B'|x - y|^2."""
    p = 0.3
    A, B = participating(1.0, 0.0, p)
    t = np.linspace(0.01, 20, 20000)
    ratio = lambda A: np.max((1 - p) * (1 + t) ** 2 / ((1 - A) + B * t**2))
    assert 1 - 1e-5 < ratio(A) <= 1 + 1e-12 and ratio(1.02 * A) > 1


# --- DCGD, DIANA, MARINA by enumeration -------------------------------------------------------------------------------

PAIRS = [(i, j) for i in range(2) for j in range(2)]


def test_steps_and_rates_by_hand():
    dcgd, diana = DCGDConstants(1.5, 4), DianaConstants(1.5, 0.3, 4)
    assert stepsize(L, dcgd, "strongly_convex") == pytest.approx(1 / (1.3 + 2 * 1.5 * 3 / 4))
    assert stepsize(L, diana, "strongly_convex") == pytest.approx(1 / (3 * (1 + 6 * 1.5 / 4)))
    gamma = stepsize(L, diana, "strongly_convex")
    assert rate(L, diana, "strongly_convex") == max(1 - gamma * 0.1, 1 - 0.15)
    start = Start(distance_sq=4.0, S=2.0)
    V0 = 4 + 4 * 1.5 * gamma**2 / (4 * 0.3) * 2
    np.testing.assert_allclose(
        bound(L, diana, "strongly_convex", start=start, rounds=[0, 3]), V0 * (1 - gamma * 0.1) ** np.array([0, 3.0])
    )
    gamma = stepsize(L, dcgd, "strongly_convex")
    far = bound(L, dcgd, "strongly_convex", start=start, rounds=[10**6])
    assert far[0] == pytest.approx(2 * gamma * 1.5 / (0.1 * 4) * 2)
    assert iterations_to(0.9 * far[0], L, dcgd, "strongly_convex", start=start) == math.inf
    T = iterations_to(1.1 * far[0], L, dcgd, "strongly_convex", start=start)
    least = bound(L, dcgd, "strongly_convex", start=start, rounds=[T - 1, T])
    assert least[1] <= 1.1 * far[0] < least[0]
    assert stepsize(ONE, ContractiveDCGD(0.3)) == 1.0 and rate(ONE, ContractiveDCGD(0.3)) == pytest.approx(1 - 0.03)


@pytest.mark.parametrize("eta", [0.0, 0.5], ids=["dcgd", "diana"])
def test_dcgd_and_diana_in_the_exact_mean(eta):
    """Scaled Rand-1 in d = 2 with two workers: 64 equally likely runs of 3 rounds."""
    rng = np.random.default_rng(3)
    worst = 0.0
    for _ in range(25):
        problem = random_quadratic(rng, 2, 2, convex=True)
        own = DianaConstants(1.0, eta, 2) if eta else DCGDConstants(1.0, 2)
        gamma = stepsize(problem.smoothness, own, "strongly_convex")
        verdict = check(enumerated(problem, gamma, 3, eta, own), "strongly_convex")
        assert np.all(verdict.ratios <= 1 + 1e-12) and verdict.keys == 64
        worst = max(worst, verdict.ratios.max())
    assert worst > 0.8
    assert check(enumerated(problem, 100 * gamma, 2, eta, own), "strongly_convex").ratios.max() > 1


def enumerated(problem, gamma, T, eta, own):
    """All runs of T rounds, from h = 0."""
    return [rand1_methods(problem, gamma, c, eta, np.zeros((2, 2)), own) for c in every(PAIRS, T)]


@pytest.mark.parametrize(
    ("own", "share", "better"),
    [(DCGDConstants(1 / 31, 1), 1.0, 1.05), (DianaConstants(1 / 31, 31 / 32, 1), 0.1, 3.0)],
    ids=["dcgd", "diana"],
)
def test_a_better_rate_is_false(own, share, better):
    """One worker, f = |x|^2/2, one coordinate of 32 dropped, the others scaled: one round, 32 outcomes.

    DCGD at its step has 1 - 1.03 gamma mu: 5 % are too much. DIANA's max(1 - gamma mu, 1 - eta/2) is attained in the
    limit of no progress only; of short steps 1 - 2 gamma mu is the truth, and 3 gamma mu too much.
    """
    problem = isotropic(32)
    gamma = share * stepsize(problem.smoothness, own, "strongly_convex")
    eta = getattr(own, "eta", 0.0)
    keeps = [[np.delete(np.arange(32), drop)] for drop in range(32)]
    runs = [one_round(problem, gamma, keep, eta, own) for keep in keeps]
    honest = check(runs, "strongly_convex")
    assert 0 < honest.ratios[0] <= 1
    problem.smoothness.mu *= better
    assert check(runs, "strongly_convex").ratios[0] > 1


def one_round(problem, gamma, keep, eta, own):
    """DIANA or DCGD with Rand-31 of 32, from h = 0, which is grad f(x*)."""
    from small import _marina_row, traced

    x = problem.x0
    rows = [{**_marina_row(problem, x, x, problem.grads(x)), "S": 0.0}]
    q = np.zeros(32)
    q[keep[0]] = 32 / 31 * x[keep[0]]
    x, h = x - gamma * q, eta * q
    rows.append({**_marina_row(problem, x, x, problem.grads(x)), "S": h @ h})
    return traced(problem, rows, gamma, own)


def test_marina_with_perm_k_in_the_exact_mean():
    """Two workers, two coordinates, p = 1/2: 16 equally likely runs of two rounds; L_pm stands before B."""
    rng = np.random.default_rng(1)
    own = pair(0.5, 0.5, spread="L_pm", of_mean=True)
    outcomes = [(coin, order) for coin in (0, 1) for order in ((0, 1), (1, 0))]
    worst = dict.fromkeys(("nonconvex", "pl", "convex"), 0.0)
    for trial in range(30):
        problem = random_quadratic(rng, convex=trial % 2 == 0)
        for regime in worst:
            gamma = stepsize(problem.smoothness, own, regime)
            verdict = check([marina_perm(problem, 2, gamma, c, own) for c in every(outcomes, 2)], regime)
            assert np.all(verdict.ratios <= 1 + 1e-12), (regime, verdict)
            worst[regime] = max(worst[regime], verdict.ratios.max())
    assert min(worst.values()) > 0.6
    # equal workers: Perm-K loses nothing of the mean, and the bound is attained; 5 % off L_minus breaks it
    alike = Quadratic(np.stack([np.eye(2)] * 2), np.zeros((2, 2)), [1.0, 2.0])
    runs = lambda gamma: [marina_perm(alike, 2, gamma, c, own) for c in every(outcomes, 1)]
    assert check(runs(1.0)).worst_ratio == pytest.approx(1, abs=1e-12)
    alike.smoothness.L_minus = 0.95
    assert check(runs(1 / 0.95)).worst_ratio == pytest.approx(1 / 0.95)


@pytest.mark.parametrize("regime", ["nonconvex", "pl"])
def test_compressed_gradients_of_one_worker(regime):
    """C(v) = (1 - e)v in 1-d: alpha = 1 - e^2 and x+ = (1 - gamma (1 - e)) x."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        problem = random_quadratic(rng, 1, 2)
        own = ContractiveDCGD(0.5)
        gamma = stepsize(problem.smoothness, own, regime)
        map_of_x = (lambda h, y, x: top(1)(x)), own
        trace = run(problem, map_of_x, gamma, 30, g0="zero")
        verdict = check(started_compressed(trace), regime)
        assert verdict.ok, verdict
    with pytest.raises(ValueError, match=r"n = 1 only.*diverge for every step"):
        stepsize(L, own, regime)


def started_compressed(trace):
    """Rows from round 1 on: g^0 = 0 was no compressed gradient, and x^1 = x^0."""
    cut = {k: v[1:] for k, v in vars(trace).items() if isinstance(v, np.ndarray) and k not in ("rounds", "grad_sq_sum")}
    rest = {"rounds": np.arange(len(trace.rounds) - 1), "grad_sq_sum": trace.grad_sq_sum[1:] - trace.grad_sq_sum[1]}
    return SimpleNamespace(**{**vars(trace), **cut, **rest})


def test_the_counter_example_diverges_at_its_exact_factor_for_every_step():
    """theory.md 2: n = d = 3, Top-1, x^k = (1 + 11 gamma/6)^k x^0; hence no theorem for more than one worker."""
    a = np.array([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])
    A = 2 * a[:, :, None] * a[:, None, :] + np.eye(3) / 2
    problem = Quadratic(A, np.zeros((3, 3)), np.ones(3))
    for gamma in (1e-4, 1e-2, 1.0):
        x = problem.x0
        for k in range(1, 6):
            x = x - gamma * np.mean([top(1)(v) for v in problem.grads(x)], axis=0)
            np.testing.assert_allclose(x, (1 + 11 * gamma / 6) ** k * problem.x0, rtol=1e-12)


# --- the tight rate ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("g0", ["exact", "zero"])
def test_the_tight_rate_holds_and_is_nearly_attained(g0):
    rng = np.random.default_rng(7)
    worst = 0.0
    for trial in range(60):
        problem = random_quadratic(rng, 1 + trial % 3, 2, mu=0.1, convex=True)
        method = ef21(top(1), 0.5)
        gamma = stepsize(problem.smoothness, method[1], "tight")
        class_ = problem.smoothness.mu_i.min(), problem.smoothness.L_i.max()
        assert gamma == pytest.approx(tight_stepsize(*class_, 0.5))
        verdict = check(run(problem, method, gamma, 25, g0=g0), "tight")
        assert verdict.ok, verdict
        worst = max(worst, verdict.worst_ratio)
    assert worst > 0.8


def test_a_tight_rate_better_by_5_percent_is_false():
    """f = a x^2/2 with C(v) = (1 + e)v has the rate asymptotically (docs/theory-tight.md)."""
    e = 0.5
    method = ef21(lambda v: (1 + e) * v, 1 - e * e, nonexpansive=False)
    problem = Quadratic(np.diag([0.1, 1.0])[None], np.zeros((1, 2)), [1.0, 1.0])
    own = theorem("tight", method[1])
    gamma = own.stepsize(problem.smoothness)
    trace = run(problem, method, gamma, 400)
    assert check(trace, "tight").ok
    V = own.left(problem.smoothness, gamma, trace)
    rho = own.rate(problem.smoothness, gamma)
    assert rho == pytest.approx(tight_rate(0.1, 1.0, 0.75))
    assert V[-1] > rho ** (1.05 * 400) * V[0]


def test_the_tight_regime_speaks_of_one_step_and_of_one_map():
    problem = random_quadratic(np.random.default_rng(0), 2, 2, mu=0.1, convex=True)
    method = ef21(top(1), 0.5)
    gamma = stepsize(problem.smoothness, method[1], "tight")
    shorter = check(run(problem, method, gamma / 2, 5), "tight")
    assert not shorter.ok and "only one" in shorter.reason
    start = Start(grad_sq=1.0)
    with pytest.raises(ValueError, match="speaks of the step"):
        bound(problem.smoothness, method[1], "tight", start=start, rounds=[1], stepsize=gamma / 2)
    T = iterations_to(1e-3, problem.smoothness, method[1], "tight", start=start)
    mu, rho, e = problem.smoothness.mu_i.min(), rate(problem.smoothness, method[1], "tight"), math.sqrt(0.5)
    assert math.ceil(math.log(e / (2 * mu * e * 1e-3)) / -math.log(rho)) == T
    with pytest.raises(ValueError, match="g \\+ C\\(grad - g\\) alone"):
        stepsize(problem.smoothness, lag(1.0)[1], "tight")
    with pytest.raises(ValueError, match="every f_i is strongly convex"):
        stepsize(SimpleNamespace(**{**vars(L), "mu_i": np.array([0.0, 1.0])}), method[1], "tight")
    with pytest.raises(ValueError, match="mu_i = None"):
        stepsize(SimpleNamespace(L_minus=1, L_plus=1, L_i=[1.0], mu=0.1), method[1], "tight")
    with pytest.raises(ValueError, match="0 < alpha < 1"):
        stepsize(problem.smoothness, pair(1.0, 0.0, residual=True), "tight")


def test_classic_error_feedback_of_one_worker():
    rng = np.random.default_rng(4)
    own, worst = EF14Constants(0.5), 0.0
    for _ in range(40):
        problem = random_quadratic(rng, 1, 2, mu=0.1, convex=True)
        gamma = stepsize(problem.smoothness, own, "tight")
        x, e, distances = problem.x0, np.zeros(2), []
        for _ in range(40):
            distances.append(np.sum((x - problem.x_star) ** 2))
            p = e + gamma * problem.grads(x)[0]
            x, e = x - top(1)(p), p - top(1)(p)
        start = Start(distance_sq=distances[0])
        right = bound(problem.smoothness, own, "tight", start=start, rounds=np.arange(40))
        ratios = np.array(distances)[1:] / right[1:]
        assert np.all(ratios <= 1 + 1e-9)
        worst = max(worst, ratios.max())
    assert worst > 0.3
    with pytest.raises(ValueError, match="n = 1 only"):
        stepsize(L, own, "tight")


# --- heavy ball and prox ----------------------------------------------------------------------------------------------

MAPS = [ef21(top(1), 0.5), lag(1.0), exact()]


@pytest.mark.parametrize("gains", [(), ("shadow",), ("weighted",)], ids=str)
@pytest.mark.parametrize("eta", [0.5, 0.9])
def test_heavy_ball(eta, gains):
    rng = np.random.default_rng(6)
    worst = 0.0
    for trial in range(15):
        problem, method = random_quadratic(rng, 1 + trial % 3), MAPS[trial % 3]
        ask = dict(momentum=eta, gains=gains)
        gamma = stepsize(problem.smoothness, method[1], **ask)
        trace = run(problem, method, gamma, 60, momentum=eta, g0=["exact", "zero"][trial % 2])
        verdict = check(trace, gains=gains)
        assert verdict.ok and verdict.multiple == pytest.approx(1), verdict
        worst = max(worst, verdict.worst_ratio)
        wild = run(problem, method, 1000 * gamma, 40, momentum=eta)  # 100 times is stable at eta = 0.9
        if trial % 3 == 0:
            assert check(wild, gains=gains).worst_ratio > 1
    assert worst > 0.2


def test_heavy_ball_by_hand_and_without_momentum():
    A, B, eta = 0.3, 1.7, 0.6
    x_step = stepsize(L, pair(A, B), momentum=eta)
    z_step = stepsize(L, pair(A, B), momentum=eta, gains=("shadow",))
    root = math.sqrt(2 * B / A * 4 + 2 * 1.3**2 * eta**2 / (1 - eta) ** 2)
    assert z_step == pytest.approx((1 - eta) / (1.3 + root)) and x_step == pytest.approx(z_step / 2)
    start = Start(gap=3.0, G=0.5)
    at_z = bound(L, pair(A, B), momentum=eta, gains=("shadow",), start=start, rounds=[10])
    assert at_z[0] == pytest.approx(2 * (1 - eta) * 3 / (z_step * 10) + 2 * 0.5 / (A * 10))
    at_x = bound(L, pair(A, B), momentum=eta, start=start, rounds=[10])
    assert at_x[0] == pytest.approx(5 * (1 - eta) * 3 / (x_step * 10) + 5 * 0.5 / (A * 10))
    from adacgd.theory.extensions import HeavyBall

    none = HeavyBall(A, B, eta=0.0, shadow=True)  # no more than the plain theorem, and equal to it without loss
    assert none.stepsize(L) == pytest.approx(1 / (1.3 + 2 * math.sqrt(2 * B / A)))
    plain = HeavyBall(1.0, 0.0, eta=0.0, shadow=True)
    assert plain.stepsize(L) == stepsize(L, pair(1.0, 0.0))
    np.testing.assert_allclose(
        plain.bound(L, 0.5, Start(gap=2.0), [3]),
        theorem("nonconvex", pair(1.0, 0.0)).bound(L, 0.5, Start(gap=2.0), [3]),
    )


def test_prox():
    """|x|_1 and a box, lower bounds of f + r: f* itself."""
    rng = np.random.default_rng(8)
    soft = lambda x, gamma: np.sign(x) * np.maximum(np.abs(x) - gamma / 2, 0)
    box = lambda x, gamma: np.clip(x, -3, 3)
    worst = 0.0
    for trial in range(20):
        problem, method = random_quadratic(rng, 1 + trial % 3), MAPS[trial % 3]
        problem.x0 = np.clip(problem.x0, -3, 3)
        prox, r = (soft, lambda x: np.abs(x).sum() / 2) if trial % 2 else (box, lambda x: 0.0)
        gamma = stepsize(problem.smoothness, method[1], prox=True)
        assert gamma == pytest.approx(
            1 / (2 * problem.smoothness.L_minus + problem.smoothness.L_plus * math.sqrt(2 * method[1].B / method[1].A))
        )
        trace = run(problem, method, gamma, 40, prox=prox, r=r, f_lower=problem.f_star, g0=["exact", "zero"][trial % 2])
        verdict = check(trace)
        assert verdict.ok and verdict.multiple == pytest.approx(1), verdict
        worst = max(worst, verdict.worst_ratio)
    assert worst > 0.05
    broken = run(problem, method, 100 * gamma, 40, prox=soft, r=lambda x: np.abs(x).sum() / 2, f_lower=problem.f_star)
    assert not check(broken).ok and check(broken).worst_ratio > 1
    start = Start(gap=3.0, G=0.5)
    got = bound(L, pair(0.3, 1.7), prox=True, start=start, rounds=[10])[0]
    assert got == pytest.approx((12 * 3 / stepsize(L, pair(0.3, 1.7), prox=True) + 8 * 0.5 / 0.3) / 10)


def test_sgdm_has_a_step_and_no_bound():
    own = SGDMConstants(0.1, 0.2)
    assert stepsize(L, own) == pytest.approx(min(0.1 / (20 * math.sqrt(5)), 0.2 / (7 * 1.3)))
    assert "untested" in theorem("nonconvex", own).source and "WARNING" in type(theorem("nonconvex", own)).__doc__
    with pytest.raises(ValueError, match="no bound of EF21-SGDM"):
        bound(L, own, start=Start(gap=1.0), rounds=[1])
