"""One link and two: the inequalities of the proofs, reductions, values, and runs on tiny quadratics."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from small import Quadratic, ef21, exact, lag, pair, random_quadratic, run, top, v1

from adacgd.theory import Start, bits_to, bound, check, iterations_to, movement, rate, stepsize, theorem

L = SimpleNamespace(L_minus=1.3, L_plus=2.0, L_pm=0.7, L_i=np.array([1.0, 3.0]), mu=0.02, how={})
UP, DOWN = pair(0.3, 1.7, 2.0, 2.0), pair(0.6, 0.9)
BOTH = [("dual", DOWN), ("primal", DOWN), ("dual", None)]


def feasible(form, regime, gamma, up, down):
    """Is there any Lyapunov function for this step? The three inequalities of theory.md 3.4 by a scan over r."""
    keep = 1.0 if regime == "nonconvex" else 0.5  # the share of a A and b A_M that is not for the contraction
    Lp, Lm = L.L_plus, L.L_minus
    A, B, A_M, B_M = up.A, up.B, *((down.A, down.B) if down else (1.0, 0.0))
    for r in np.geomspace(1e-6, 1e6, 4001):
        if form == "dual":
            P, Q = movement(*(getattr(up, k) for k in "ABPQ"))
            b = gamma * (1 + r) / (2 * keep * A_M) if down else 0.0
            a = (gamma * (1 + 1 / r) / 2 + b * B_M * P) / (keep * A)
            moved = Lp**2 * (a * B + b * B_M * Q)
        else:
            P, Q = movement(*(getattr(down, k) for k in "ABPQ"))
            a = gamma * (1 + r) / (2 * keep * A)
            b = (gamma * (1 + 1 / r) * Lm**2 / 2 + a * B * Lp**2 * P) / (keep * A_M)
            moved = a * B * Lp**2 * Q + b * B_M
        if 1 / (2 * gamma) - Lm / 2 >= moved:
            return True
    return False


@pytest.mark.parametrize(("form", "down"), BOTH)
@pytest.mark.parametrize("regime", ["nonconvex", "convex"])
def test_the_step_is_the_largest_for_which_the_proof_works(form, down, regime):
    gamma = stepsize(L, UP, regime, down, form=form, gains=("root",))
    assert feasible(form, regime, gamma * (1 - 1e-4), UP, down)
    assert not feasible(form, regime, gamma * 1.001, UP, down)
    standard = stepsize(L, UP, regime, down, form=form)
    assert standard < gamma <= 1.25 * standard and feasible(form, regime, standard, UP, down)


def test_the_root_gains_a_quarter_where_the_reach_is_two_thirds_of_L_minus():
    ab = pair(1.0, (2 / 3 * 1.3 / 2.0) ** 2)
    assert stepsize(L, ab, gains=("root",)) / stepsize(L, ab) == pytest.approx(1.25)
    gamma = stepsize(L, UP, gains=("root",))
    assert gamma * 1.3 + gamma**2 * 4 * 1.7 / 0.3 == pytest.approx(1, rel=1e-13)


@pytest.mark.parametrize("form", ["dual", "primal"])
def test_the_weights_are_those_of_the_sheet(form):
    """a and b as theory.md 3.4 prints them, nonconvex and PL."""
    (A, B, P, Q), (A_M, B_M, P_M, Q_M) = ((one.A, one.B, *movement(one.A, one.B, one.P, one.Q)) for one in (UP, DOWN))
    for regime, doubled in (("nonconvex", 1), ("pl", 2)):
        own = theorem(regime, UP, DOWN, form=form)
        gamma = own.stepsize(L)
        weight = own.weights(L, gamma)
        if form == "dual":
            u, v = B / A, B_M / A_M * (Q + doubled * P * B / A)
            r, (a, b) = math.sqrt(u / v), weight
            assert b == pytest.approx(doubled * gamma * (1 + r) / (2 * A_M))
            bracket = (1 + 1 / r) + doubled * (1 + r) * P * B_M / A_M
            assert a == pytest.approx(doubled * gamma / (2 * A) * bracket)
            reach = L.L_plus * (math.sqrt(u) + math.sqrt(v))
        else:
            u = L.L_minus**2 * B_M / A_M
            v = B / A * L.L_plus**2 * (Q_M + doubled * P_M * B_M / A_M)
            r, (b, a) = math.sqrt(u / v), weight
            assert a == pytest.approx(doubled * gamma * (1 + r) / (2 * A))
            inner = gamma * (1 + 1 / r) * L.L_minus**2 / 2 + a * B * L.L_plus**2 * P_M
            assert b == pytest.approx(doubled * inner / A_M)
            reach = math.sqrt(u) + math.sqrt(v)
        assert gamma == pytest.approx(1 / (L.L_minus + math.sqrt(doubled) * reach))


def test_steps_and_bounds_by_hand():
    own = theorem("nonconvex", UP)
    assert own.stepsize(L) == pytest.approx(1 / (1.3 + 2 * math.sqrt(1.7 / 0.3)))
    start = Start(gap=3.0, G=0.5)
    gamma = own.stepsize(L)
    got = bound(L, UP, start=start, rounds=[1, 10])
    np.testing.assert_allclose(got, (2 * 3 / gamma + 0.5 / 0.3) / np.array([1, 10]), rtol=1e-14)
    pl = theorem("pl", UP)
    gamma = pl.stepsize(L)
    assert gamma == pytest.approx(1 / (1.3 + 2 * math.sqrt(2 * 1.7 / 0.3)))
    assert stepsize(SimpleNamespace(**{**vars(L), "mu": 2.0}), UP, "pl") == pytest.approx(0.3 / 4)
    Phi0 = 3 + gamma / 0.3 * 0.5
    got = bound(L, UP, "pl", start=start, rounds=np.array([0, 7]))
    np.testing.assert_allclose(got, Phi0 * (1 - gamma * 0.02) ** np.array([0.0, 7.0]), rtol=1e-12)
    assert rate(L, UP) == pytest.approx(1 - gamma * 0.02) and rate(L, UP, "nonconvex") is None
    np.testing.assert_allclose(
        theorem("strongly_convex", UP).distance_sq(L, gamma, start, [7]), 2 / 0.02 * got[1:], rtol=1e-14
    )
    convex = SimpleNamespace(**{**vars(L), "mu": 0.0})
    got = bound(convex, UP, "convex", start=start._replace(R_sq=4.0), rounds=[0, 5])
    wanted = [1 / (1 / Phi0 + gamma * T / (2 * (4 + gamma * Phi0 / 0.3))) for T in (0, 5)]
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    assert got[1] <= 2 * 4 / (gamma * 5) + 2 * Phi0 / (0.3 * 5)
    strong = bound(L, UP, "convex", start=start, rounds=[5])
    R_sq = 2 * Phi0 / 0.02
    assert strong[0] == pytest.approx(1 / (1 / Phi0 + 5 / (2 * R_sq / gamma + 2 * Phi0 / 0.3)))


def test_least_rounds_by_the_formulas_of_the_sheet():
    start = Start(gap=3.0, G=0.5, R_sq=4.0)
    gamma = stepsize(L, UP)
    assert iterations_to(1e-2, L, UP, start=start) == math.ceil((2 * 3 / gamma + 0.5 / 0.3) / 1e-4)
    pl = stepsize(L, UP, "pl")
    Phi0 = 3 + pl / 0.3 * 0.5
    assert iterations_to(1e-3, L, UP, "pl", start=start) == math.ceil(math.log(Phi0 / 1e-3) / -math.log1p(-pl * 0.02))
    convex = SimpleNamespace(**{**vars(L), "mu": 0.0})
    wanted = math.ceil((1e3 - 1 / Phi0) * 2 / pl * (4 + pl * Phi0 / 0.3))
    assert iterations_to(1e-3, convex, UP, "convex", start=start) == wanted
    assert iterations_to(Phi0, L, UP, "pl", start=start) == 0
    bits = bits_to(1e-2, L, UP, start=start, per_round=320, initial=960)
    assert bits == 960 + 320 * iterations_to(1e-2, L, UP, start=start)


@pytest.mark.parametrize(("form", "down"), BOTH)
@pytest.mark.parametrize("regime", ["nonconvex", "pl", "strongly_convex", "convex"])
def test_iterations_is_the_least_T(form, down, regime):
    start = Start(gap=2.0, G=0.3, H=0.1 if form == "dual" and down else 0.0, W=0.2 if form == "primal" else 0.0)
    own = theorem(regime, UP, down, form=form)
    for eps in (0.3, 1e-3):
        T = iterations_to(eps, L, UP, regime, down, start=start, form=form)
        value = lambda t: bound(L, UP, regime, down, start=start, rounds=[t], form=form)[0]
        assert value(T) <= own.target(L, eps) < value(T - 1)
    with pytest.raises(ValueError, match="eps"):
        iterations_to(0.0, L, UP, regime, down, start=start, form=form)


def test_reductions():
    server = pair(1.0, 0.0, 0.0, 1.0)
    start = Start(gap=2.0, G=0.3)
    for regime, form in itertools.product(("nonconvex", "pl", "convex"), ("dual", "primal")):
        one, two = (dict(regime=regime, downlink=d, form=form) for d in (None, server))
        assert stepsize(L, UP, **two) == pytest.approx(stepsize(L, UP, **one), rel=1e-14)
        ask = dict(start=start, rounds=[0, 1, 9])
        np.testing.assert_allclose(bound(L, UP, **two, **ask), bound(L, UP, **one, **ask), rtol=1e-12)
    # exact workers in the primal form are EF21-P
    ef21_p = stepsize(L, server, "nonconvex", DOWN, form="primal")
    assert ef21_p == pytest.approx(1 / (L.L_minus * (1 + math.sqrt(DOWN.B / DOWN.A))))
    assert stepsize(L, server, "nonconvex", DOWN) == pytest.approx(1 / (1.3 + 2 * math.sqrt(DOWN.B / DOWN.A)))  # v only
    # equal workers: the weighted constant is L_plus and the weighted G is G
    same = SimpleNamespace(**{**vars(L), "L_i": np.array([2.0, 2.0])})
    assert stepsize(same, UP, gains=("weighted",)) == stepsize(L, UP)


def test_a_lossless_link_that_starts_with_an_error_is_told_a_smaller_step():
    workers = pair(1.0, 0.0, 0.0, 1.0)
    wrong = Start(gap=1.0, G=0.5)
    for regime in ("nonconvex", "pl", "convex"):
        assert stepsize(L, workers, regime, DOWN, start=wrong) < stepsize(L, workers, regime, DOWN)
    tall = SimpleNamespace(**{**vars(L), "mu": 1.2})
    assert stepsize(tall, workers, "pl") == 1 / 1.3  # nothing is ever lost: no cap
    assert stepsize(tall, workers, "pl", start=wrong) == pytest.approx(1 / 2.4)


@pytest.mark.parametrize("kappa", [0.1, 0.35, 0.8])
@pytest.mark.parametrize(("form", "down"), BOTH)
def test_the_free_split_is_the_best_split(form, down, kappa):
    """By hand at any kappa, one link: no step is larger than where the two terms meet."""
    own = theorem("pl", UP, down, form=form, gains=("split",))
    best, standard = own.stepsize(L), stepsize(L, UP, "pl", down, form=form)
    assert best > standard  # mu is small
    u, v = own.coupling(L, kappa)
    slowest = min(UP.A, down.A if down else 1.0)
    assert min(1 / (1.3 + math.sqrt(u) + math.sqrt(v)), kappa * slowest / L.mu) <= best * (1 + 1e-12)
    if down is None:
        assert u == pytest.approx(UP.B * 4 / ((1 - kappa) * UP.A)) and v == 0
        k = own.kappa(L)
        assert k * UP.A / L.mu == pytest.approx(1 / (1.3 + 2 * math.sqrt(UP.B / ((1 - k) * UP.A))), rel=1e-9)
        assert own.weights(L, best).a == pytest.approx(best / (2 * (1 - k) * UP.A))
    flat = SimpleNamespace(**{**vars(L), "mu": 1e-9})
    alone = SimpleNamespace(**{**vars(flat), "L_minus": 1e-9})
    assert stepsize(flat, UP, "pl", gains=("split",)) / stepsize(flat, UP, "pl") > 1.2
    many = stepsize(alone, UP, "pl", gains=("split",)) / stepsize(alone, UP, "pl")
    assert many == pytest.approx(math.sqrt(2), rel=1e-3)


MAPS = {"exact": exact(), "ef21": ef21(top(1), 0.5), "lag": lag(0.3), "lazier lag": lag(4.0), "v1": v1(top(1), 0.5)}
SERVERS = {"none": None, "exact": exact(), "ef21": ef21(top(1), 0.5), "lag": lag(4.0)}


@pytest.mark.parametrize("regime", ["nonconvex", "pl", "strongly_convex", "convex"])
@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("g0", ["exact", "zero"])
def test_no_run_breaks_its_bound(regime, form, g0):
    """Workers that disagree and are indefinite, n = 1, 2, 3, with every gain, from exact starts and from zero."""
    rng = np.random.default_rng(["exact", "zero"].index(g0))
    worst = 0.0
    every_gain = [(), ("weighted", "root"), *([("split", "root")] if regime in ("pl", "strongly_convex") else [])]
    for trial, (up, down) in enumerate(itertools.product(MAPS.values(), SERVERS.values())):
        problem = random_quadratic(rng, n=1 + trial % 3, convex=trial % 2 == 0)
        gains = every_gain[trial % len(every_gain)]
        offset = 0.7 if g0 == "zero" and down else 0.0
        own = theorem(regime, up[1], down[1] if down else None, form=form, gains=gains)
        first = run(problem, up, 1.0, 0, down, form, g0, offset)
        gamma = own.stepsize(problem.smoothness, own.start(problem.smoothness, first))
        verdict = check(run(problem, up, gamma, 20, down, form, g0, offset), regime, gains)
        assert verdict.ok and verdict.multiple == pytest.approx(1), (trial, gains, verdict)
        worst = max(worst, verdict.worst_ratio)
    assert worst > 0.5


@pytest.mark.parametrize(("form", "server"), [("dual", None), ("dual", exact()), ("primal", exact())])
def test_five_per_cent_off_the_smoothness_breaks_the_tight_instance(form, server):
    """Exact workers, f = |x|^2/2: one step reaches the optimum, and 2 D0/gamma is |grad f(x^0)|^2."""
    problem = Quadratic(np.eye(2)[None], np.zeros((1, 2)), [1.0, 2.0])
    gamma = stepsize(problem.smoothness, exact()[1], "nonconvex", server and server[1], form=form)
    honest = check(run(problem, exact(), gamma, 1, server, form))
    assert honest.ok and honest.worst_ratio == pytest.approx(1, abs=1e-12)
    problem.smoothness.L_minus *= 0.95
    believed = check(run(problem, exact(), gamma / 0.95, 1, server, form))
    assert not believed.ok and believed.worst_ratio == pytest.approx(1 / 0.95) and believed.worst_round == 1


@pytest.mark.parametrize("regime", ["pl", "convex"])
@pytest.mark.parametrize(("form", "down"), [("dual", "none"), ("dual", "ef21"), ("primal", "ef21")])
def test_a_step_100_times_too_long_breaks_every_bound(regime, form, down):
    problem = random_quadratic(np.random.default_rng(5), n=2, convex=True)
    up, server = MAPS["ef21"], SERVERS[down]
    allowed = stepsize(problem.smoothness, up[1], regime, server and server[1], form=form)
    verdict = check(run(problem, up, 100 * allowed, 12, server, form), regime)
    assert not verdict.ok and verdict.worst_ratio > 1 and verdict.multiple == pytest.approx(100)


def test_the_weighted_bound_needs_the_weights_it_has():
    """f_2 is 50 times as curved. With the plain G in the place of Gw the claim is another one; the left side tells."""
    problem = Quadratic([[[0.1, 0], [0, 0.2]], [[5.0, 1], [1, 4.0]]], [[9.0, -5], [0.0, 2]], [0.3, -0.2])
    trace = run(problem, MAPS["ef21"], 0.05, 5, g0="zero")
    own = theorem("pl", MAPS["ef21"][1], gains=("weighted",))
    Lbar = problem.smoothness.L_i.mean()
    wanted = np.mean(Lbar / problem.smoothness.L_i * trace.errors, axis=1)
    np.testing.assert_allclose(own.G(problem.smoothness, trace), wanted, rtol=1e-14)
    assert Lbar < problem.smoothness.L_plus and np.any(wanted > 1.5 * trace.G)
    with pytest.raises(ValueError, match="errors"):
        own.G(problem.smoothness, SimpleNamespace(**{**vars(trace), "errors": trace.errors[:, :1]}))
    with pytest.raises(ValueError, match="L_i > 0"):
        stepsize(SimpleNamespace(**{**vars(L), "L_i": np.array([0.0, 1.0])}), UP, gains=("weighted",))


def test_theorems_are_frozen_values_that_say_where_they_come_from():
    for regime, form, down in itertools.product(("nonconvex", "pl", "convex"), ("dual", "primal"), (None, DOWN)):
        own = theorem(regime, UP, down, form=form)
        assert own == theorem(regime, UP, down, form=form) and own.assumptions and own.left_side
        derived = down is not None or regime == "convex"
        assert ("derived here, docs/" in own.source) == derived, own
        with pytest.raises(dataclasses.FrozenInstanceError):
            own.A = 1.0
