"""Every bound along runs of every method, on some of the families of docs/bounds.md; and that a bound can fail."""

import numpy as np
import pytest

import adacgd as ac
import problems
from benchmarks.bounds import KEYS, UNDER_SERVERS, UPLINKS, Trial, extensions, run, trials
from benchmarks.families import FAMILIES, regimes_of

ONE_LINK = ("heterogeneous, L_plus/L_minus = 7.6", "opposed pairs, L_plus/L_minus = 16", "singular convex")
ROUNDS = 120


@pytest.fixture(scope="module")
def family():
    """A family by name, built once."""
    built = {}
    return lambda name: built.setdefault(name, FAMILIES[name]())


def judged(trial, problem):
    rows = list(run(trial, problem, ROUNDS, KEYS))
    for row in rows:
        assert row.holds, row
        assert 0 < row.ratio <= 1 + 3 * row.stderr + 1e-9, row
    return rows


@pytest.mark.parametrize("name", UPLINKS)
def test_one_link(name, family):
    for where in ONE_LINK:
        assert {row.regime for row in judged(Trial(name, where, UPLINKS[name]), family(where))} == {
            "nonconvex",
            "pl",
            "convex",
        }


TABLED = [t for t in trials(("opposed pairs, L_plus/L_minus = 16",)) if "/" in t.name and "3PC" not in t.name]


@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("uplink", [name for name in UNDER_SERVERS if "3PC" not in name])
def test_both_links(uplink, form, family):
    own = [t for t in TABLED if t.name.startswith(f"{uplink} / ") and dict(t.options).get("form") == form]
    assert len(own) >= 4
    for trial in own:
        judged(trial, family(trial.family))


@pytest.mark.parametrize("where", ["recipe s = 0.05", "opposed pairs, L_plus/L_minus = 16"])
def test_extensions(where, family):
    rows = [row for trial in extensions(where) for row in judged(trial, family(where))]
    assert len(rows) >= 15


def test_the_families_are_what_they_say(family):
    for name in FAMILIES:
        s = family(name).smoothness
        assert s.L_minus <= s.L_plus * (1 + 1e-9) <= np.sqrt(np.mean(s.L_i**2)) * (1 + 2e-9)
        if "=" in name and "L_plus" in name:
            assert s.L_plus / s.L_minus == pytest.approx(float(name.split("= ")[1]), rel=1e-6)
    assert regimes_of(family("logistic, nonconvex")) == ("nonconvex",)


# --- a bound that could not fail would prove nothing ------------------------------------------------------------------

HALF = ac.TopK(50)
LONG = problems.quadratic(workers=10, dim=100, noise_scale=0.8, strength=1e-3, seed=12345)
CONTROLS = {
    "one link, nonconvex": (ac.EF21(HALF), None, {}, "nonconvex"),
    "one link, PL": (ac.EF21(HALF), None, {}, "pl"),
    "one link, convex": (ac.EF21(HALF), None, {}, "convex"),
    "LAG": (ac.LAG(8.0), None, {}, "nonconvex"),
    "AdaCGD": (ac.AdaCGD([ac.TopK(5), HALF], 1.0), None, {}, "nonconvex"),
    "dual": (ac.EF21(HALF), ac.EF21(HALF), {}, "nonconvex"),
    "dual, PL": (ac.EF21(HALF), ac.EF21(HALF), {}, "pl"),
    "dual, convex": (ac.EF21(HALF), ac.EF21(HALF), {}, "convex"),
    "primal": (ac.EF21(HALF), ac.EF21(HALF), {"form": "primal"}, "nonconvex"),
    "primal, PL": (ac.EF21(HALF), ac.EF21(HALF), {"form": "primal"}, "pl"),
    "primal, convex": (ac.EF21(HALF), ac.EF21(HALF), {"form": "primal"}, "convex"),
    "heavy ball": (ac.EF21(HALF), None, {"momentum": 0.5}, "nonconvex"),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_step_100_times_too_long_breaks_the_bound(name):
    uplink, downlink, options, regime = CONTROLS[name]
    up, down = uplink.constants(100), None if downlink is None else downlink.constants(100)
    gamma = ac.theory.stepsize(LONG.smoothness, up, regime, down, **options)
    long = ac.simulate(LONG, uplink, downlink, stepsize=100 * gamma, rounds=60, **options)
    check = ac.theory.check(long, regime)
    assert not check.ok and check.multiple == pytest.approx(100) and not check.ratios.max() <= 1
    short = ac.simulate(LONG, uplink, downlink, stepsize=gamma, rounds=60, **options)
    assert ac.theory.check(short, regime).ok


@pytest.mark.parametrize("penalty", ["l1", "l2"])
def test_a_proximal_step_100_times_too_long_breaks_the_bound(penalty):
    problem = problems.composite(LONG, penalty, 1e-3)
    gamma = ac.theory.stepsize(problem.smoothness, ac.EF21(HALF).constants(100), prox=True)
    run = lambda multiple: ac.simulate(problem, ac.EF21(HALF), stepsize=multiple * gamma, rounds=60)
    assert not ac.theory.check(run(100)).ratios.max() <= 1 and ac.theory.check(run(1)).ok


@pytest.mark.parametrize("link", [ac.DIANA(ac.Natural()), ac.DIANA(ac.RandK(2)), ac.DCGD(ac.RandK(2))], ids=str)
@pytest.mark.parametrize("init", ["exact", "compressed"])
def test_diana_and_dcgd_hold_from_both_of_their_starts(link, init):
    """V pairs x^t with the shift before the message at x^t: near x* and with the shift far off the other pair fails."""
    a = np.random.RandomState(0).normal(size=4)
    problem = problems.general_quadratic([np.eye(4)] * 2, [a, -a], x0=np.full(4, 1e-9))
    gamma = ac.theory.stepsize(problem.smoothness, link.constants(4, workers=2), "strongly_convex")
    grid = ac.sweep(problem, link, stepsizes=[gamma], keys=list(range(64)), rounds=6, init=init)
    check = ac.theory.check(list(grid[0]), "strongly_convex")
    assert check.ok, check
    with pytest.raises(
        ValueError, match=r"init='zero'\): D.* presumes a first message; use init='exact' or 'compressed'"
    ):
        ac.simulate(problem, link, stepsize=gamma, rounds=1, init="zero")


def test_a_pl_constant_is_not_one_of_strong_convexity():
    A = [np.diag([0.0, 1, 2, 3]), np.diag([0.0, 2, 1, 3])]
    problem = problems.general_quadratic(A, [[0, 1, 1, 1], [0, 1, 0, 2]], x0=[5, 1, 1, 1])
    up = ac.EF21(ac.TopK(2)).constants(4)
    assert ac.theory.stepsize(problem.smoothness, up, "pl") > 0
    for constants in (up, ac.DIANA(ac.RandK(2)).constants(4, workers=2)):
        with pytest.raises(ValueError, match=r"mu = 1.5 of this problem is a PL constant.*Use regime='pl'"):
            ac.theory.stepsize(problem.smoothness, constants, "strongly_convex")
    rows = problems.least_squares((np.eye(3)[:2], np.ones(2)), workers=2)
    assert rows.smoothness.strongly is False and np.all(rows.smoothness.mu_i == 0)
    assert problems.least_squares((np.eye(2), np.ones(2)), workers=2).smoothness.strongly


def test_one_times_theory_is_one_from_every_start():
    problem = problems.general_quadratic([np.diag([0.5, 1, 2]), np.diag([1.0, 2, 4])], np.zeros((2, 3)), x0=np.ones(3))
    for init in ("zero", "compressed"):
        for regime in ("nonconvex", "pl"):
            grid = ac.sweep(problem, ac.GD(), ac.EF21(ac.TopK(1)), multiples=[1], init=init, regime=regime, rounds=20)
            assert ac.theory.check(grid[0], regime).ok


def test_gradient_descent_attains_the_nonconvex_bound():
    """f = L x^2/2 with gamma = 1/L: T = 1 attains it; with D0 5 % smaller it is broken."""
    problem = problems.general_quadratic(np.ones((1, 1, 1)), np.zeros((1, 1)), x0=np.ones(1))
    trace = ac.simulate(problem, ac.GD(), stepsize=1.0, rounds=1)
    start = ac.theory.Start(gap=0.5)
    right = ac.theory.bound(problem.smoothness, ac.AB(1.0, 0.0), start=start, rounds=[1], stepsize=1.0)
    assert trace.grad_sq_sum[-1] == pytest.approx(right[0], rel=1e-12)
    assert ac.theory.check(trace).worst_ratio == pytest.approx(1.0) and ac.theory.check(trace).ok
    assert trace.grad_sq_sum[-1] > right[0] / 1.05


def test_hessian_bounds_do_not_bound_L_plus():
    """H <= M does not give H^2 <= M^2: sqrt(lambda_max(mean M_i^2)) is passed along a run (theory.md 3.0)."""
    M, H = np.array([[2.0, 1.0], [1.0, 1.0]]), np.diag([1.0, 0.0])
    assert np.linalg.eigvalsh(M - H)[0] > -1e-12
    best, other = 0.0, H
    for angle in np.linspace(0, np.pi, 181):
        v = np.array([np.cos(angle), np.sin(angle)])
        for c in np.linspace(0, 4, 81):
            second = c * np.outer(v, v)  # of a worker whose Hessian is known
            bound = np.linalg.eigvalsh((M @ M + second @ second) / 2)[-1]
            truth = np.linalg.eigvalsh((H @ H + second @ second) / 2)[-1]
            if truth / bound > best:
                best, other, L_plus = truth / bound, second, np.sqrt(bound)
    assert np.sqrt(best) > 1.01
    along = np.linalg.eigh((H @ H + other @ other) / 2)[1][:, -1]
    problem = problems.general_quadratic(np.stack([H, other]), np.stack([along, along]))
    problem.about.smoothness = problem.smoothness._replace(L_plus=L_plus)
    trace = ac.simulate(problem, ac.GD(), stepsize=0.1, rounds=1, verify=True)
    assert trace.slack.L_plus == pytest.approx(np.sqrt(best), rel=1e-3) and trace.slack.L_minus <= 1
    honest = problems.general_quadratic(np.stack([H, other]), np.stack([along, along]))
    assert ac.simulate(honest, ac.GD(), stepsize=0.1, rounds=1, verify=True).slack.L_plus <= 1
