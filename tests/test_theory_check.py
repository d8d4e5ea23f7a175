"""`check` on single runs and on means over keys, the refusals, and the table of gains."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from small import ef21, exact, lag, pair, random_quadratic, run, top

from adacgd.theory import (
    ContractiveDCGD,
    DCGDConstants,
    DianaConstants,
    NoTheorem,
    Start,
    bound,
    check,
    gain_factors,
    rate,
    sharper,
    stepsize,
    theorem,
    theta,
)

EF21 = ef21(top(1), 0.5)
PROBLEM = random_quadratic(np.random.default_rng(11), n=3, d=3, convex=True)


def at_theory(regime="nonconvex", problem=PROBLEM, T=20, **options):
    gamma = stepsize(problem.smoothness, EF21[1], regime)
    return run(problem, EF21, gamma, T, **options)


def but(trace, **changed):
    return SimpleNamespace(**{**vars(trace), **changed})


def test_what_a_check_says():
    verdict = check(at_theory("pl"), "pl")
    assert verdict.ok and verdict.broken == () and verdict.observed == "" and verdict.keys == 1
    assert "EF21" in verdict.source and "3PC(A, B)" in verdict.assumptions
    assert verdict.rounds.tolist() == list(range(1, 21)) and verdict.worst_ratio == verdict.ratios.max()


def test_the_plain_fields_of_an_old_trace_are_enough():
    """No errors, W, form, momentum, prox, S: what is absent is zero, False, or not asked for."""
    trace = at_theory()
    old = but(trace)
    for name in ("errors", "W", "form", "momentum", "prox", "distance_sq", "farthest_sq", "shadow_sq_sum"):
        delattr(old, name)
    np.testing.assert_array_equal(check(old).ratios, check(trace).ratios)
    with pytest.raises(ValueError, match="errors"):
        check(old, gains=("weighted",))


def test_the_reason_names_the_inequality_that_broke():
    trace = at_theory("pl")
    bad = but(trace, loss=trace.loss * 0 + trace.loss[0])
    assert "the bound is broken at round" in check(bad, "pl").reason and check(bad, "pl").broken == ()
    slack = SimpleNamespace(three_point=3.1, L_minus=0.9, L_plus=1.7)
    when = SimpleNamespace(three_point=12, L_minus=1, L_plus=15)
    verdict = check(but(bad, slack=slack, slack_rounds=when), "pl")
    assert verdict.broken == ("three_point", "L_plus")
    assert "the three point inequality of the uplink is broken at round 12 by a factor 3.1" in verdict.reason
    assert verdict.reason.index("round 12") < verdict.reason.index("L_plus^2 |x - y|^2 is broken at round 15")
    fine = check(but(trace, slack=slack), "pl")
    assert fine.ok and fine.broken == ("three_point", "L_plus")  # the bound held; what was seen is told all the same
    whole = SimpleNamespace(three_point=1.0, L_minus=1 + 1e-9, L_plus=0.2)
    assert check(but(trace, slack=whole), "pl").broken == ()


def test_the_convex_regime_takes_R_from_mu_or_from_the_run_and_says_so():
    trace = at_theory("convex")
    strong = check(trace, "convex")
    assert strong.ok and strong.observed == ""
    flat = SimpleNamespace(**{**vars(PROBLEM.smoothness), "mu": 0.0})
    seen = check(but(trace, smoothness=flat), "convex")
    R = math.sqrt(trace.farthest_sq.max())
    assert seen.ok and f"{R:.6g}" in seen.observed and seen.observed in repr(seen)
    assert seen.worst_ratio > strong.worst_ratio  # 2 Phi^0/mu is the larger R^2
    with pytest.raises(ValueError, match=r"R_sq.*\|x\^t - x\*\| <= R"):
        check(but(trace, smoothness=flat, farthest_sq=np.full(21, math.nan)), "convex")
    with pytest.raises(ValueError, match="convex f"):
        check(but(trace, smoothness=SimpleNamespace(**{**vars(flat), "mu": None})), "convex")


def test_strong_convexity_is_seen_in_the_distance():
    trace = at_theory("strongly_convex")
    assert check(trace, "strongly_convex").ok
    far = but(trace, distance_sq=trace.distance_sq + 2 * trace.loss[0] / PROBLEM.smoothness.mu * 100)
    assert not check(far, "strongly_convex").ok and check(far, "pl").ok


def test_several_keys_are_judged_by_their_mean():
    """Runs whose losses scatter about one that holds: single ones pass the bound, their mean does not."""
    trace = at_theory("pl")
    gap = trace.loss - trace.f_star
    rng = np.random.default_rng(0)
    factor = lambda mean: mean * rng.exponential(size=400)
    runs = lambda mean: [but(trace, loss=trace.f_star + gap[0] * k * after(trace, gap)) for k in factor(mean)]

    def after(trace, gap):
        """The gap at 0, then 0.5 of what the bound allows."""
        own = theorem("pl", EF21[1])
        right = own.bound(PROBLEM.smoothness, trace.stepsize, own.start(PROBLEM.smoothness, trace), trace.rounds)
        return 0.5 * right / right[0]

    fixed = lambda many: [but(one, loss=np.where(trace.rounds == 0, trace.loss, one.loss), G=0 * one.G) for one in many]
    good, bad = fixed(runs(1.0)), fixed(runs(3.0))
    single = [check(one, "pl").ok for one in good]
    assert 0 < sum(single) < 400
    verdict = check(good, "pl")
    assert verdict.ok and verdict.keys == 400 and "mean of 400 keys" in repr(verdict)
    assert np.all(np.abs(verdict.ratios - 0.5) < 5 * verdict.standard_errors)
    assert not check(bad, "pl").ok and "standard error" in check(bad, "pl").reason
    # within its scatter of 1 is no proof of a broken bound
    near = fixed(runs(2.0))[:10]
    assert check(near, "pl").worst_ratio == pytest.approx(1, abs=4 * check(near, "pl").standard_errors.max())
    with pytest.raises(ValueError, match="key only"):
        check([trace, but(trace, stepsize=trace.stepsize / 2)], "pl")
    with pytest.raises(ValueError, match="at least one"):
        check([], "pl")
    short = but(trace, **{k: v[:9] for k, v in vars(trace).items() if isinstance(v, np.ndarray)})
    assert check([trace, short], "pl").rounds[-1] == 8


def test_what_is_not_covered_is_refused_with_the_reason():
    L = SimpleNamespace(**{**vars(PROBLEM.smoothness)})
    ab, down = EF21[1], exact()[1]
    cases = [
        ("mini-batches", lambda: check(but(at_theory(), exact_gradients=False))),
        ("float32", lambda: check(but(at_theory(), precision="float32"))),
        ("must be one of nonconvex, pl", lambda: stepsize(L, ab, "quasiconvex")),
        ("must be one of dual, primal", lambda: stepsize(L, ab, form="both")),
        ("must be one of weighted, split", lambda: stepsize(L, ab, gains=("magic",))),
        ("splits the PL step", lambda: stepsize(L, ab, gains=("split",))),
        ("needs momentum > 0", lambda: stepsize(L, ab, gains=("shadow",))),
        ("links alone", lambda: stepsize(L, ab, momentum=0.5, gains=("root",))),
        ("speak of none", lambda: stepsize(L, pair(0.5, 1.0, spread="L_pm"), gains="weighted")),
        ("speak of none", lambda: stepsize(L, pair(0.5, 1.0, of_mean=True), gains=("weighted",))),
        (r"must be in \[0, 1\)", lambda: stepsize(L, ab, momentum=1.0)),
        ("regime='nonconvex' only", lambda: stepsize(L, ab, "pl", momentum=0.5)),
        ("regime='nonconvex' only", lambda: stepsize(L, ab, "convex", prox=True)),
        ("together with a downlink", lambda: stepsize(L, ab, downlink=down, prox=True)),
        ("together with momentum", lambda: stepsize(L, ab, momentum=0.5, prox=True)),
        ("proved without downlink, momentum", lambda: stepsize(L, ab, "tight", down, momentum=0.5)),
        ("is one for 'strongly_convex'", lambda: stepsize(L, DianaConstants(1.0, 0.5, 3), "pl")),
        ("has no downlink", lambda: stepsize(L, DCGDConstants(1.0, 3), "strongly_convex", down)),
        ("eta <= 1/", lambda: stepsize(L, DianaConstants(1.0, 0.6, 3), "strongly_convex")),
        ("n = 1 only", lambda: stepsize(L, ContractiveDCGD(0.5))),
        ("EControl.*only recalled", lambda: stepsize(L, NoTheorem("EControl", "its rate is only recalled."))),
        ("at most", lambda: bound(L, ab, start=Start(1.0), rounds=[1], stepsize=1e3)),
        ("gap=.*bounded below", lambda: bound(L, ab, start=Start(), rounds=[1])),
        ("distance_sq", lambda: bound(L, DCGDConstants(0.0, 3), "strongly_convex", start=Start(1.0), rounds=[1])),
        ("strongly_convex", lambda: theorem("pl", ab).distance_sq(L, 0.1, Start(1.0), [1])),
    ]
    for words, ask in cases:
        with pytest.raises(ValueError, match=words):
            ask()
    crooked = SimpleNamespace(**{**vars(L), "mu_i": np.array([-1.0, 1.0, 1.0])})
    with pytest.raises(ValueError, match=r"each f_i is convex.*down to -1.0"):
        stepsize(crooked, DCGDConstants(1.0, 3), "strongly_convex")
    for name in ("rate", "bound"):
        with pytest.raises(ValueError, match=rf"{name}\(regime="):
            {"rate": rate, "bound": lambda *a: bound(*a, start=Start(1.0), rounds=[1])}[name](L, ab, "quasi")


def test_the_table_of_gains():
    alpha, zeta = 0.05, 2000.0
    L = SimpleNamespace(
        L_minus=1.0, L_plus=3.0, L_pm=2.9, L_i=np.array([1.0, 1.0, 6.0]), mu_i=np.array([0.01] * 3), mu=0.01, how={}
    )
    clag = pair(theta(alpha), zeta, 2.0, 2.0)
    rows = gain_factors(L, clag, "nonconvex", pairs={"sharper": pair(*sharper(alpha, zeta), 2.0, 2.0)})
    assert set(rows) == {
        f"{pair_}{gains}".strip(" +") or "standard"
        for pair_ in ("", "sharper")
        for gains in ("", " + weighted", " + root", " + weighted + root")
    }
    assert rows["standard"].step == 1 and rows["standard"].speed is None
    assert 1.2 < rows["sharper"].step < math.sqrt(2) and 1 < rows["root"].step <= 1.25
    for name, gain in rows.items():
        assert gain.step >= 1 and gain.stepsize == pytest.approx(gain.step * rows["standard"].stepsize), name
    assert rows["weighted"].step == pytest.approx(
        (1 + 3 * math.sqrt(zeta / clag.A)) / (1 + 8 / 3 * math.sqrt(zeta / clag.A))
    )
    linear = gain_factors(L, EF21[1], "strongly_convex")
    assert {"standard", "split", "weighted + split + root", "tight"} <= set(linear)
    assert all(gain.speed == pytest.approx(gain.step, rel=2e-2) for name, gain in linear.items() if name != "tight")
    assert linear["split"].step > 1.1 and linear["tight"].speed is not None
    both = gain_factors(L, EF21[1], "pl", lag(1.0)[1], form="primal")
    assert "tight" not in both and both["split"].step > 1
