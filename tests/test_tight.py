"""The tight rate of theory.md 3.3 as plain numbers: its values, its limits, and what it refuses."""

import math
import random

import numpy as np
import pytest

from adacgd.theory import (
    cgd_factor,
    ef14_potential,
    ef21_floor,
    ef21_potential,
    tight_iterations_to,
    tight_rate,
    tight_stepsize,
)


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


def certificate(mu, L, alpha, rho):
    """The proof's forms (docs/theory-tight.md): of the means in (grad f, D, E), of the deviations in (D_i, E_i)."""
    e, S, gamma = math.sqrt(1 - alpha), L + mu, tight_stepsize(mu, L, alpha)
    lam = 4 * (tight_rate(mu, L, alpha) - e) / ((1 + e) * (L - mu))
    k = e * S * lam / (gamma**2 * (L - mu))
    F, D, E = np.eye(3)
    d = -gamma * (F - E)  # x^+ - x

    def product(u, v):
        return (np.outer(u, v) + np.outer(v, u)) / 2

    s = product(D, d) - L * mu / S * product(d, d) - product(D, D) / S
    V = e * product(F, F) + product(E, E)
    means = rho * V - e * product(F + D, F + D) - e**2 * product(D + E, D + E) - k * s
    deviations = np.array([[k / S - e**2, -(e**2)], [-(e**2), rho - e**2]])
    return means, deviations


def test_the_proof_holds_number_by_number():
    """The form of the means is a square, that of the deviations is not negative; a smaller rho breaks the former."""
    random.seed(0)
    for _ in range(300):
        mu, alpha = 10 ** random.uniform(-4, -0.01), random.uniform(0.01, 0.99)
        rho = tight_rate(mu, 1, alpha)
        means, deviations = certificate(mu, 1, alpha, rho)
        scale = np.abs(means).max()
        eigenvalues = np.linalg.eigvalsh(means) / scale
        assert np.all(np.abs(eigenvalues[:2]) < 1e-12) and eigenvalues[2] > 0
        assert np.linalg.eigvalsh(deviations)[0] >= -1e-12 * np.abs(deviations).max()
        lower, _ = certificate(mu, 1, alpha, rho * (1 - 1e-3))
        assert np.linalg.eigvalsh(lower)[0] < -1e-7


def test_no_step_has_a_lower_floor_than_the_tight_one():
    random.seed(1)
    for _ in range(300):
        mu, alpha = 10 ** random.uniform(-4, -0.01), random.uniform(0.001, 0.999)
        gamma, rho = tight_stepsize(mu, 1, alpha), tight_rate(mu, 1, alpha)
        assert ef21_floor(mu, 1, alpha, gamma) == pytest.approx(rho, rel=1e-12)
        for multiple in (0.3, 0.9, 0.999, 1.001, 1.1, 3):
            assert ef21_floor(mu, 1, alpha, multiple * gamma) > rho


def test_compressed_descent_is_never_slower_than_its_theorem_says():
    for alpha in (0.1, 0.5, 0.9, 1):
        for gamma in (0.1, 0.5, 1):
            assert cgd_factor(0.1, 1, alpha, gamma) <= 1 - gamma * alpha * 0.1
        assert cgd_factor(0.1, 1, alpha, 2.1) > 1  # gamma L (1 + e) > 2
    assert cgd_factor(0.1, 1, 1, 2 / 1.1) == pytest.approx(tight_rate(0.1, 1, 1), rel=1e-14)


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
        (lambda: ef21_floor(0.1, 1, 0.5, 0), "stepsize"),
        (lambda: cgd_factor(0, 1, 0.5, 1), "0 < mu < L"),
        (lambda: tight_iterations_to(0, 1, 0.1, 1, 0.5), "eps"),
        (lambda: tight_iterations_to(1, math.inf, 0.1, 1, 0.5), "V0"),
        (lambda: tight_iterations_to(1, 1, 0.1, 1, 1), "alpha"),
    ],
)
def test_a_failed_assumption_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
