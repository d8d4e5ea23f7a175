"""Constants, step sizes, and checks that fail when a constant is inflated."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

import adacgd as ac
import problems
from adacgd.theory import beta, check, movement, stepsize, theta

CANCER = problems.load("breast_cancer")


def known(L_minus=1.0, L_plus=2.0, mu=0.1):
    return SimpleNamespace(L_minus=L_minus, L_plus=L_plus, mu=mu, how={})


def run(problem, uplink, downlink=None, regime="nonconvex", multiple=1.0, **options):
    down = None if downlink is None else downlink.constants(problem.dim)
    gamma = multiple * stepsize(problem.smoothness, uplink.constants(problem.dim), regime, down)
    return ac.simulate(problem, uplink, downlink, stepsize=gamma, **options)


def test_constants_do_not_cancel():
    """FR-19."""
    assert theta(1e-8) == pytest.approx(5.0e-9, rel=1e-6) and theta(1e-12) == pytest.approx(5.0e-13, rel=1e-6)
    assert theta(0.25) == pytest.approx(0.1339746, abs=1e-7) and beta(0.25) == pytest.approx(5.5980762, abs=1e-7)
    assert math.sqrt(beta(0.25) / theta(0.25)) == pytest.approx(6.4641016, abs=1e-7)
    assert theta(1.0) == 1.0 and beta(1.0) == 0.0


@pytest.mark.parametrize("alpha", [0.01, 0.25, 0.9])
def test_the_young_parameter_minimises_B_over_A(alpha):
    pair = lambda s: (1 - (1 - alpha) * (1 + s), (1 - alpha) * (1 + 1 / s))
    best = 1 / math.sqrt(1 - alpha) - 1
    assert pair(best) == pytest.approx((theta(alpha), beta(alpha)))
    for s in (0.9 * best, 1.1 * best):
        A, B = pair(s)
        assert B / A > beta(alpha) / theta(alpha)


def test_every_method_claims_the_constants_of_the_sheet():
    a = 5 / 20
    top = ac.TopK(5)
    assert ac.GD().constants(20) == (1, 0, 0, 1)
    assert ac.EF21(top).constants(20) == (theta(a), beta(a), 2, 2)
    assert ac.LAG(3.0).constants(20) == (1, 3, 2, 2)
    assert ac.CLAG(top, 3.0).constants(20) == (theta(a), beta(a), 2, 2)
    assert ac.CLAG(top, 30.0).constants(20) == (theta(a), 30, 2, 2)
    assert ac.AdaCGD([ac.TopK(1), top], 30.0).constants(20) == ac.CLAG(top, 30.0).constants(20)
    assert ac.AdaCGD([ac.TopK(1), top, ac.Identity()], 3.0).constants(20) == ac.LAG(3.0).constants(20)
    general = ac.EF21(ac.Shrunk(ac.RandK(5))).constants(20)
    assert general.P is None and movement(*general) == pytest.approx(
        (2 * (1 + math.sqrt(1 - theta(a))) ** 2, 2 * (1 + math.sqrt(beta(a))) ** 2)
    )


def test_steps_by_hand():
    L, ab = known(), ac.AB(0.5, 2.0, 2.0, 2.0)
    assert stepsize(L, ab) == pytest.approx(1 / (1 + 2 * 2))
    assert stepsize(L, ac.AB(1, 0)) == 1.0
    assert stepsize(L, ab, "pl") == pytest.approx(min(1 / (1 + 2 * math.sqrt(8)), 0.5 / 0.2))
    assert stepsize(known(mu=3.0), ab, "strongly_convex") == pytest.approx(0.5 / 6)
    assert stepsize(known(mu=3.0), ac.AB(1, 0), "pl") == 1.0  # nothing is lost: no cap
    down = ac.AB(0.25, 1.0)
    v = 1 / 0.25 * (2 + 2 * 4)
    assert stepsize(L, ab, downlink=down) == pytest.approx(1 / (1 + 2 * (2 + math.sqrt(v))))
    v2 = 1 / 0.25 * (2 + 2 * 2 * 4)
    wanted = min(1 / (1 + 2 * math.sqrt(2) * (2 + math.sqrt(v2))), 0.25 / 0.2)
    assert stepsize(L, ab, "pl", down) == pytest.approx(wanted)
    assert stepsize(L, ab, downlink=ac.AB(1, 0)) == stepsize(L, ab)


def test_zeta_up_to_beta_costs_nothing():
    problem = problems.logistic(CANCER)
    coarse = ac.AdaCGD([ac.TopK(1), ac.TopK(5)], beta(5 / 30)).constants(30)
    assert stepsize(problem.smoothness, coarse) == stepsize(problem.smoothness, ac.EF21(ac.TopK(5)).constants(30))


def test_reference_steps_are_theory():
    """The golden runs state their step as a multiple of theory; the EF21 and CLAG ones are ours."""
    problem = problems.logistic(CANCER, partition="contiguous-drop")
    gamma = stepsize(problem.smoothness, ac.LAG(0.5).constants(30))
    assert gamma == pytest.approx(0.15837107738883568, rel=1e-9)


@pytest.mark.parametrize(
    "uplink",
    [ac.GD(), ac.EF21(ac.TopK(5)), ac.LAG(1.0), ac.CLAG(ac.TopK(5), 16.0), ac.AdaCGD([ac.TopK(1), ac.TopK(9)], 4.0)],
    ids=repr,
)
@pytest.mark.parametrize("downlink", [None, ac.EF21(ac.TopK(10)), ac.LAG(4.0)], ids=repr)
def test_the_bound_holds_along_every_run_at_the_theoretical_step(uplink, downlink):
    quad = problems.quadratic(workers=10, dim=30, noise_scale=0.8, strength=1e-2)
    l2 = problems.logistic(CANCER, regulariser="l2", strength=0.1)
    nonconvex = problems.logistic(CANCER)
    for problem, regime in ((nonconvex, "nonconvex"), (quad, "nonconvex"), (quad, "pl"), (l2, "strongly_convex")):
        verdict = check(run(problem, uplink, downlink, regime, rounds=400), regime)
        assert verdict.ok, (problem.name, regime, verdict)
        assert 0 < verdict.worst_ratio <= 1 and verdict.multiple == pytest.approx(1)
        assert verdict.ratios.shape == verdict.rounds.shape == (400,)


def test_thinned_rows_are_checked_with_every_round_counted():
    problem = problems.logistic(CANCER)
    full, thin = (check(run(problem, ac.EF21(ac.TopK(3)), rounds=100, record_every=k)) for k in (1, 9))
    np.testing.assert_allclose(thin.ratios, full.ratios[thin.rounds - 1], rtol=1e-12)


def tight():
    """GD on |x|^2/2 with gamma = 1/L reaches the minimum at once: the nonconvex bound is an equality at T = 1."""
    return problems.general_quadratic(np.eye(3)[None], np.zeros((1, 3)), x0=np.ones(3))


def test_the_nonconvex_bound_is_attained():
    verdict = check(run(tight(), ac.GD(), rounds=1))
    assert verdict.ok and verdict.worst_ratio == pytest.approx(1, abs=1e-12)


def test_a_constant_better_by_5_percent_breaks_the_tight_instance():
    problem = tight()
    better = problem.smoothness._replace(L_minus=0.95 * problem.smoothness.L_minus)
    gamma = stepsize(better, ac.GD().constants(3))
    honest = ac.simulate(problem, ac.GD(), stepsize=gamma, rounds=1)
    assert "1.05263 times" in check(honest).reason  # the true constants notice the step
    believed = dataclasses.replace(honest, smoothness=better)
    verdict = check(believed)
    assert not verdict.ok and "broken at round 1" in verdict.reason
    assert verdict.worst_ratio == pytest.approx(1 / 0.95)


def test_an_inflated_rate_breaks_the_strongly_convex_bound():
    """f = mu|x|^2/2 from a step 1/L: the factor (1 - gamma mu)^2 is below 1 - gamma mu, not below 1 - 3 gamma mu."""
    problem = problems.general_quadratic(np.diag([1.0, 0.05])[None], np.zeros((1, 2)), x0=[0.0, 1.0])
    trace = run(problem, ac.GD(), regime="strongly_convex", rounds=60)
    assert check(trace, "strongly_convex").ok
    inflated = dataclasses.replace(trace, smoothness=problem.smoothness._replace(mu=3 * 0.05))
    assert not check(inflated, "strongly_convex").ok


def test_a_step_above_the_theorem_gives_the_ratio_and_that_reason():
    verdict = check(run(problems.logistic(CANCER), ac.EF21(ac.TopK(3)), multiple=8, rounds=50))
    assert not verdict.ok and "8 times" in verdict.reason and np.isfinite(verdict.worst_ratio)
    assert verdict.multiple == pytest.approx(8)


def test_oscillation_that_never_ends_breaks_the_pl_bound_even_below_its_rounding_floor():
    trace = run(problems.quadratic(workers=4, dim=10, strength=0.1), ac.GD(), regime="pl", rounds=500)
    stuck = dataclasses.replace(trace, loss=np.full_like(trace.loss, trace.loss[0]))
    assert check(trace, "pl").ok and not check(stuck, "pl").ok


def test_requests_outside_the_assumptions_are_refused_with_the_assumption():
    problem = problems.logistic(CANCER)
    trace = run(problem, ac.GD(), rounds=3)
    with pytest.raises(ValueError, match="mu"):
        check(trace, "pl")
    with pytest.raises(ValueError, match="mu"):
        stepsize(problem.smoothness, ac.AB(1, 0), "strongly_convex")
    with pytest.raises(ValueError, match="nonconvex, pl, strongly_convex"):
        stepsize(problem.smoothness, ac.AB(1, 0), "convecks")
    unbounded = problems.general_quadratic(np.diag([1.0, -1.0])[None], np.zeros((1, 2)), x0=[1.0, 0.0])
    with pytest.raises(ValueError, match="bounded below"):
        check(ac.simulate(unbounded, ac.GD(), stepsize=0.1, rounds=3))
    with pytest.raises(ValueError, match="0 < A <= 1"):
        stepsize(problem.smoothness, ac.AB(0, 1))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda p: stepsize(p.smoothness, ac.GD()), r"stepsize\(constants=...\).*GD\(\); pass its .constants\(dim\)"),
        (lambda p: stepsize(p.smoothness, 3), r"stepsize\(constants=...\) must be constants such as AB"),
        (
            lambda p: stepsize(p.smoothness, ac.AB(1, 0), downlink=ac.GD()),
            r"stepsize\(downlink=...\).*constants\(dim\)",
        ),
        (lambda p: stepsize(p, ac.AB(1, 0)), r"stepsize\(smoothness=...\).*pass problem.smoothness"),
        (lambda p: stepsize(3, ac.AB(1, 0)), r"stepsize\(smoothness=...\).*got int"),
        (lambda p: check(3), r"check\(trace=...\) must be one Trace.*int"),
        (lambda p: check(ac.sweep(p, ac.GD(), multiples=[1], rounds=2)), r"check\(trace=...\).*Grid"),
        (lambda p: ac.EF21(3).constants(30), r"EF21\(compressor=...\) must be a Compressor"),
        (lambda p: ac.AdaCGD([1, 4], 1.0).constants(30), r"AdaCGD\(levels\[0\]=...\) must be a Compressor"),
    ],
)
def test_a_thing_in_the_place_of_another_is_told_what_to_pass(ask, words):
    with pytest.raises(TypeError, match=words):
        ask(problems.logistic(CANCER))


def test_a_check_prints_its_verdict_in_a_line():
    trace = run(tight(), ac.GD(), rounds=1)
    assert repr(check(trace)) == "<Check nonconvex: holds, worst ratio 1 at round 1>"
    above = repr(check(dataclasses.replace(trace, stepsize=8 * trace.stepsize)))
    assert "does not hold" in above and "8 times" in above and "\n" not in above
    assert "no rounds" in str(check(run(tight(), ac.GD(), rounds=0)))


def test_a_run_of_no_rounds_and_a_start_at_the_optimum_break_nothing():
    assert check(run(tight(), ac.GD(), rounds=0)).ok
    still = problems.general_quadratic(np.eye(3)[None], np.zeros((1, 3)))
    assert check(run(still, ac.LAG(1.0), rounds=5)).ok
