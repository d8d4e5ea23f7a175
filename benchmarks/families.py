"""Eight problem families on which every bound is tried (theory.md section 7), all of dimension 12 with 6 workers."""

from collections.abc import Callable
from typing import Any

import numpy as np

import problems

DIM, WORKERS = 12, 6


def symmetric(random: Any, count: int) -> np.ndarray:
    """Random symmetric matrices of norm about 1, (count, d, d)."""
    raw = random.normal(size=(count, DIM, DIM)) / np.sqrt(2 * DIM)
    return (raw + raw.transpose(0, 2, 1)) / 2


def spread_out(mean: np.ndarray, apart: np.ndarray, ratio: float, seed: int) -> Any:
    """A_i = mean + s apart_i with s such that L_plus/L_minus = ratio; apart: (n, d, d) of mean zero; b_i random."""
    L_minus = np.abs(np.linalg.eigvalsh(mean)).max()
    squares = np.mean(apart @ apart, axis=0)
    largest = lambda s: np.linalg.eigvalsh(mean @ mean + s**2 * squares)[-1]
    low, high = 0.0, 1e4
    for _ in range(100):  # lambda_max grows with s
        middle = (low + high) / 2
        low, high = (middle, high) if largest(middle) < (ratio * L_minus) ** 2 else (low, middle)
    random = np.random.RandomState(seed)
    b = random.normal(size=(len(apart), DIM))
    return problems.general_quadratic(mean + low * apart, b, x0=random.normal(size=DIM))


def positive(random: Any, least: float) -> np.ndarray:
    """A positive definite matrix with eigenvalues in [least, 1]."""
    basis = np.linalg.qr(random.normal(size=(DIM, DIM)))[0]
    return basis @ np.diag(np.linspace(least, 1, DIM)) @ basis.T


def heterogeneous(ratio: float, seed: int) -> Any:
    """Workers whose Hessians differ at random, many of them indefinite, around a positive definite mean."""
    random = np.random.RandomState(seed)
    apart = symmetric(random, WORKERS)
    return spread_out(positive(random, 0.05), apart - apart.mean(axis=0), ratio, seed)


def opposed(ratio: float, seed: int) -> Any:
    """Pairs of workers with opposite indefinite parts."""
    random = np.random.RandomState(seed)
    one = symmetric(random, 1)[0]
    signs = np.where(np.arange(WORKERS) % 2, -1.0, 1.0)
    return spread_out(positive(random, 0.05), signs[:, None, None] * one, ratio, seed)


def recipe(noise_scale: float) -> Any:
    """The 3PC recipe as dense matrices, so that all quadratics share their programs."""
    banded = problems.quadratic(workers=WORKERS, dim=DIM, noise_scale=noise_scale, strength=1e-2, seed=12345)
    path = np.eye(DIM, k=1) + np.eye(DIM, k=-1)
    A = np.asarray(banded.diag)[:, None, None] * np.eye(DIM) + np.asarray(banded.off)[:, None, None] * path
    b = np.asarray(banded.b0)[:, None] * np.eye(1, DIM)
    return problems.general_quadratic(A, b, x0=np.asarray(banded.x0))


def singular(seed: int) -> Any:
    """Convex quadratics of low rank, whose mean is singular."""
    random = np.random.RandomState(seed)
    factors = random.normal(size=(WORKERS, DIM, 1)) / np.sqrt(DIM)
    A = factors @ factors.transpose(0, 2, 1)
    b = np.einsum("nij,j->ni", A, random.normal(size=DIM))  # b_i in the range of A_i: convex, with minimisers
    return problems.general_quadratic(A, b, x0=random.normal(size=DIM))


def logistic(regulariser: str, strength: float) -> Any:
    """Rows of the embedded breast_cancer, its first 12 features."""
    data = problems.load("breast_cancer")
    features, labels = data.features[:, :DIM], data.labels
    return problems.logistic((features, labels), WORKERS, regulariser=regulariser, strength=strength)


FAMILIES: dict[str, Callable[[], Any]] = {
    "recipe s = 0.05": lambda: recipe(0.05),
    "recipe s = 1.6": lambda: recipe(1.6),
    "heterogeneous, L_plus/L_minus = 7.6": lambda: heterogeneous(7.6, 1),
    "heterogeneous, L_plus/L_minus = 71": lambda: heterogeneous(71.0, 2),
    "opposed pairs, L_plus/L_minus = 16": lambda: opposed(16.0, 3),
    "singular convex": lambda: singular(4),
    "logistic, l2": lambda: logistic("l2", 1e-2),
    "logistic, nonconvex": lambda: logistic("nonconvex", 0.1),
}


def regimes_of(problem: Any) -> tuple[str, ...]:
    """The regimes whose assumptions on f this problem meets."""
    mu, convex = problem.smoothness.mu, problem.f_star is not None
    known = ("pl",) if mu is not None and mu > 0 and convex else ()
    return ("nonconvex", *known, *(("convex",) if convex else ()))
