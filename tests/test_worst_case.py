"""Exact worst cases by the solver, against the theorems and closed forms of theory.md 2, 3.1 and 3.3."""

import builtins
import importlib.util
import math
from types import SimpleNamespace

import numpy as np
import pytest

from adacgd import theory
from adacgd.theory import (
    beta,
    cgd_factor,
    ef14_potential,
    ef21_floor,
    ef21_potential,
    tight_rate,
    tight_stepsize,
    worst_case,
)

needs_pep = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("PEPit", "clarabel")),
    reason='needs PEPit and Clarabel: pip install "adacgd[pep]"',
)
SHEET = [(0.1, 0.75), (0.1, 0.25), (0.25, 0.5), (0.5, 0.1)]  # (mu, alpha) of theory.md 3.3, L = 1


def tight(method="ef21", mu=0.1, alpha=0.5, multiple=1.0, **how):
    return worst_case(method, mu=mu, L=1, alpha=alpha, stepsize=multiple * tight_stepsize(mu, 1, alpha), **how)


def general(alpha, mu, zeta=None):
    """The PL step of theory.md 3.1 for L_minus = L_plus = 1, and its factor."""
    A, B = theory.theta(alpha), max(beta(alpha), zeta or 0.0)
    smoothness = SimpleNamespace(L_minus=1.0, L_plus=1.0, mu=mu)
    gamma = theory.stepsize(smoothness, SimpleNamespace(A=A, B=B), regime="pl")
    return gamma, 1 - gamma * mu


@needs_pep
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(("alpha", "rho"), [(0.1, 0.990469), (0.5, 0.939368), (0.9, 0.824095)])
def test_the_tight_rate_of_ef21_is_the_exact_worst_case_for_any_n(alpha, rho, n):
    found = tight(alpha=alpha, n=n)
    assert found.factor == pytest.approx(rho, abs=1e-6)
    assert found.factor == pytest.approx(tight_rate(0.1, 1, alpha), rel=1e-6)
    assert found.programs == 1 and abs(found.gap) < 1e-6


@needs_pep
@pytest.mark.parametrize(
    ("mu", "alpha", "rho"),
    [(*at, rho) for at, rho in zip(SHEET, (0.884808, 0.974219, 0.871129, 0.965491), strict=True)],
)
def test_ef14_has_the_same_rate_with_one_worker_and_where_all_share_a_minimiser(mu, alpha, rho):
    for method, how in (("ef21", {}), ("ef14", {}), ("ef14", {"n": 2, "shared_minimiser": True})):
        assert tight(method, mu, alpha, **how).factor == pytest.approx(rho, abs=1e-6)


@needs_pep
@pytest.mark.parametrize("multiple", [0.5, 0.9, 1.05, 1.5])
def test_any_other_step_is_worse_and_the_floor_is_the_worst_case_there_too(multiple):
    for n, alpha in ((1, 0.5), (2, 0.5), (1, 0.1)):
        found = tight(alpha=alpha, multiple=multiple, n=n).factor
        assert found > tight_rate(0.1, 1, alpha) + 1e-4
        assert found == pytest.approx(ef21_floor(0.1, 1, alpha, multiple * tight_stepsize(0.1, 1, alpha)), rel=1e-6)


@needs_pep
@pytest.mark.parametrize("method", ["ef21", "ef14"])
def test_the_worst_case_can_be_had_round_after_round(method):
    """No T rounds are better than T times one: the potential loses nothing."""
    for steps in (2, 4):
        found = tight(method, steps=steps)
        assert found.per_step == pytest.approx(tight_rate(0.1, 1, 0.5), rel=1e-6)
        assert found.factor == pytest.approx(found.per_step**steps, rel=1e-12)


@needs_pep
def test_order_matters_with_the_weight_e_the_pair_that_lags_can_grow():
    assert tight(alpha=0.75, potential="late").factor == pytest.approx(1.402, abs=5e-4)


@needs_pep
@pytest.mark.parametrize(
    ("mu", "alpha", "rate"), [(*at, rate) for at, rate in zip(SHEET, (0.9586, 0.9901, 0.9434, 0.9816), strict=True)]
)
def test_the_general_pl_theorem_is_true_and_loose(mu, alpha, rate):
    gamma, factor = general(alpha, mu)
    assert factor == pytest.approx(rate, abs=5e-5)
    assert 1.88 <= math.log(tight_rate(mu, 1, alpha)) / math.log(factor) <= 2.9
    found = worst_case("ef21", mu=mu, L=1, alpha=alpha, stepsize=gamma, potential="pl")
    assert tight_rate(mu, 1, alpha) < found.factor < factor


@needs_pep
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("share", [0.0, 1.0, 4.0])
def test_clag_is_never_worse_than_its_theorem(share, n):
    """zeta as a share of beta(alpha), at the PL step of the pair (theta, max(beta, zeta))."""
    for mu, alpha in SHEET[: 4 if n == 1 else 2]:
        zeta = share * beta(alpha)
        gamma, factor = general(alpha, mu, zeta)
        found = worst_case("clag", mu=mu, L=1, alpha=alpha, stepsize=gamma, zeta=zeta, n=n)
        assert 0.5 < found.factor < factor
        assert found.programs == (1 if zeta == 0 else n + 1) and len(found.branch) == n


@needs_pep
def test_silence_beyond_the_theorem_is_seen():
    """The step of EF21 with a trigger a hundred times beta breaks the factor, and it is a silent worker who does it."""
    mu, alpha = 0.1, 0.75
    gamma, factor = general(alpha, mu)
    found = worst_case("clag", mu=mu, L=1, alpha=alpha, stepsize=gamma, zeta=100 * beta(alpha))
    assert found.factor > factor and found.branch == ("s",)


@needs_pep
def test_patterns_of_silence_over_two_rounds_and_two_workers():
    mu, alpha, zeta = 0.25, 0.5, beta(0.5)
    gamma, factor = general(alpha, mu, zeta)
    one = worst_case("clag", mu=mu, L=1, alpha=alpha, stepsize=gamma, zeta=zeta)
    two = worst_case("clag", mu=mu, L=1, alpha=alpha, stepsize=gamma, zeta=zeta, steps=2)
    assert two.programs == 4 and two.factor <= one.factor**2 * (1 + 1e-6) and two.factor < factor**2
    assert worst_case("clag", mu=mu, L=1, alpha=alpha, stepsize=gamma, zeta=zeta, n=2, steps=2).programs == 10


@needs_pep
def test_lag_is_clag_with_nothing_lost_in_what_is_sent():
    gamma, factor = general(1.0, 0.1, 4.0)
    found = worst_case("clag", mu=0.1, L=1, alpha=1, stepsize=gamma, zeta=4.0)
    assert found.factor < factor


@needs_pep
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_compressed_gradient_descent_with_one_worker(alpha):
    """The closed form is the worst case; 1 - gamma alpha mu is above it, and near it for small gamma and alpha."""
    for gamma in (0.2, 1.0, 1.8):
        found = worst_case("cgd", mu=0.1, L=1, alpha=alpha, stepsize=gamma).factor
        assert found == pytest.approx(cgd_factor(0.1, 1, alpha, gamma), rel=1e-5)
        if gamma <= 1:
            assert found < 1 - gamma * alpha * 0.1
            assert found > 1 - 2 * gamma * alpha * 0.1
    assert worst_case("cgd", mu=0.1, L=1, alpha=alpha, stepsize=0.5, potential="distance").factor > 0.93


@needs_pep
def test_without_compression_everything_is_gradient_descent():
    gamma = tight_stepsize(0.1, 1, 1)
    for potential in ("loss", "distance", "gradient"):
        for n in (1, 2):
            found = worst_case("cgd", mu=0.1, L=1, alpha=1, stepsize=gamma, potential=potential, n=n)
            assert found.factor == pytest.approx(tight_rate(0.1, 1, 1), rel=1e-6)


def test_two_workers_leave_the_minimiser_at_once():
    """What makes the factor infinite, by hand: f_i = (x -+ 1)^2/2, x = 0 = x*, C(1) = 1 + e, C(-1) = -1."""
    e, gamma = math.sqrt(0.5), 0.5
    grads = np.array([-1.0, 1.0])
    sent = np.array([-1.0 - e, 1.0])
    assert np.all(abs(sent - grads) <= e * abs(grads)) and grads.mean() == 0
    assert (gamma * sent.mean()) ** 2 > 0.01  # |x^+ - x*|^2 from V^0 = 0
    err = gamma * (grads - sent)
    assert ef14_potential((gamma * sent.mean() + err.mean()) ** 2, (err**2).mean(), 0.5) > 0.01
    for method in ("cgd", "ef14"):
        found = worst_case(method, mu=0.1, L=1, alpha=0.5, stepsize=gamma, n=2)
        assert found.factor == math.inf and found.programs == 0 and "unbounded" in found.status


@needs_pep
def test_two_workers_with_a_shared_minimiser_can_still_grow():
    """DCGD: the errors are relative to the single gradients, which can be far longer than their mean."""
    found = worst_case("cgd", mu=0.1, L=1, alpha=0.5, stepsize=0.5, n=2, shared_minimiser=True)
    assert found.factor > 1.04


@needs_pep
def test_unequal_workers_have_no_closed_rate_but_a_worst_case():
    """Between the best worker's rate and that of the class that holds both."""
    e = math.sqrt(0.5)
    gamma = 2 / 1.65 * (1 - e) / (1 + e)
    found = worst_case("ef21", mu=[0.1, 0.2], L=[1, 2], alpha=0.5, stepsize=gamma, n=2).factor
    assert tight_rate(0.1, 1, 0.5) < found < tight_rate(0.1, 2, 0.5)
    mean = worst_case("ef21", mu=[0.1, 0.1], L=[1.0, 1.0], alpha=0.5, stepsize=tight_stepsize(0.1, 1, 0.5), n=2)
    assert mean.factor == pytest.approx(tight_rate(0.1, 1, 0.5), rel=1e-6)


def test_the_floor_is_attained_in_one_dimension():
    """f = a x^2/2 with C(v) = (1 + e)v, in plain arithmetic: V shrinks by the floor a round, whatever the step."""
    mu, alpha = 0.1, 0.5
    e = math.sqrt(1 - alpha)
    for multiple in (0.6, 1.0, 1.4):
        gamma = multiple * tight_stepsize(mu, 1, alpha)
        worst = 0.0
        for a in (mu, 1.0):
            x, g, V = 1.0, a, []
            for _ in range(60):
                x -= gamma * g
                g += (1 + e) * (a * x - g)
                V.append(ef21_potential((a * x) ** 2, (a * x - g) ** 2, alpha))
            worst = max(worst, V[-1] / V[-2])
        assert worst == pytest.approx(ef21_floor(mu, 1, alpha, gamma), rel=1e-6)
        assert worst >= tight_rate(mu, 1, alpha) * (1 - 1e-9)


GOOD = {"mu": 0.1, "L": 1, "alpha": 0.5, "stepsize": 0.1}


@pytest.mark.parametrize(
    ("method", "change", "words"),
    [
        ("ef22", {}, "ef21, ef14, clag, cgd"),
        ("ef21", {"mu": 1}, "0 < mu < L"),
        ("ef21", {"mu": 0}, "0 < mu < L"),
        ("ef21", {"mu": [0.1, 0.1, 0.1], "n": 2}, "n = 2"),
        ("ef21", {"alpha": 0}, r"\(0, 1\]"),
        ("ef21", {"alpha": 1}, "'cgd'"),
        ("ef21", {"stepsize": -1}, "stepsize"),
        ("ef21", {"n": 0}, "n="),
        ("ef21", {"steps": 0}, "steps"),
        ("ef21", {"zeta": 1.0}, "zeta"),
        ("clag", {}, "zeta"),
        ("clag", {"zeta": -1.0}, "zeta"),
        ("clag", {"zeta": 1.0, "potential": "late"}, "potential"),
        ("cgd", {"potential": "tight"}, "loss, distance, gradient"),
    ],
)
def test_a_request_outside_the_class_is_refused(method, change, words):
    with pytest.raises(ValueError, match=words):
        worst_case(method, **GOOD | change)


def test_without_the_extra_one_line_names_it(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] in ("PEPit", "clarabel"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'pip install "adacgd\[pep\]"'):
        worst_case("ef21", **GOOD)


@needs_pep
def test_a_solver_that_fails_is_told(monkeypatch):
    monkeypatch.setattr("adacgd.theory.worst_cases.SETTINGS", ({"max_iter": 1},))
    with pytest.raises(RuntimeError, match="no answer"):
        worst_case("ef21", **GOOD)
