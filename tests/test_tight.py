"""The tight rate of theory.md 3.3 as plain numbers: its values, its limits, and what it refuses."""

import math

import pytest

from adacgd.theory import ef14_potential, ef21_potential, tight_iterations_to, tight_rate, tight_stepsize


@pytest.mark.parametrize(
    ("mu", "alpha", "rho"),
    [
        (0.1, 0.1, 0.990469),
        (0.1, 0.5, 0.939368),
        (0.1, 0.9, 0.824095),
        (0.1, 0.75, 0.884808),
        (0.1, 0.25, 0.974219),
        (0.25, 0.5, 0.871129),
        (0.5, 0.1, 0.965491),
    ],
)
def test_the_rate_has_the_values_of_the_sheet(mu, alpha, rho):
    assert round(tight_rate(mu, 1, alpha), 6) == rho
    assert tight_rate(7 * mu, 7, alpha) == pytest.approx(tight_rate(mu, 1, alpha), rel=1e-14)
    assert tight_stepsize(7 * mu, 7, alpha) == pytest.approx(tight_stepsize(mu, 1, alpha) / 7, rel=1e-14)


@pytest.mark.parametrize("mu", [0.01, 0.1, 0.9])
def test_without_compression_it_is_gradient_descent(mu):
    S = 1 + mu
    assert tight_stepsize(mu, 1, 1) == pytest.approx(2 / S, rel=1e-15)
    assert tight_rate(mu, 1, 1) == pytest.approx(((1 - mu) / S) ** 2, rel=1e-14)
    assert tight_rate(mu, 1, 1 - 1e-12) == pytest.approx(((1 - mu) / S) ** 2, abs=1e-5)  # e = 1e-6


def test_the_rate_lies_between_e_and_one_and_gets_worse_with_conditioning_and_compression():
    for alpha in (0.01, 0.3, 0.8):
        rates = [tight_rate(mu, 1, alpha) for mu in (0.9, 0.3, 0.01, 1e-6)]
        assert math.sqrt(1 - alpha) < rates[0] and rates == sorted(rates) and rates[-1] < 1
    rates = [tight_rate(0.1, 1, alpha) for alpha in (1, 0.9, 0.5, 1e-3, 1e-9)]
    assert rates == sorted(rates) and 0 < 1 - rates[-1] < 1e-9


def test_the_potentials_and_the_rounds_they_promise():
    assert ef21_potential(4.0, 1.0, 0.75) == 0.5 * 4 + 1
    assert ef14_potential(4.0, 1.0, 0.75) == 4 + 1 / 0.5
    assert ef14_potential(4.0, 0.0, 1) == 4
    T = tight_iterations_to(1e-6, 1.0, 0.1, 1, 0.5)
    rho, target = tight_rate(0.1, 1, 0.5), 2 * 0.1 * math.sqrt(0.5) * 1e-6
    assert rho**T <= target < rho ** (T - 1)
    assert tight_iterations_to(1.0, 1e-9, 0.1, 1, 0.5) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tight_rate(1, 1, 0.5), "0 < mu < L"),
        (lambda: tight_rate(2, 1, 0.5), "0 < mu < L"),
        (lambda: tight_stepsize(0, 1, 0.5), "strongly convex"),
        (lambda: tight_stepsize(-1, 1, 0.5), "strongly convex"),
        (lambda: tight_rate(float("nan"), 1, 0.5), "mu = nan"),
        (lambda: tight_stepsize(0.1, float("inf"), 0.5), "L = inf"),
        (lambda: tight_rate(0.1, 1, 0), r"\(0, 1\]"),
        (lambda: tight_rate(0.1, 1, 1.1), "alpha"),
        (lambda: ef21_potential(1, 1, 1), "alpha=1"),
        (lambda: tight_iterations_to(0, 1, 0.1, 1, 0.5), "eps"),
        (lambda: tight_iterations_to(1, math.inf, 0.1, 1, 0.5), "V0"),
        (lambda: tight_iterations_to(1, 1, 0.1, 1, 1), "alpha"),
    ],
)
def test_a_failed_assumption_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
