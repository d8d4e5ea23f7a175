"""Quadratics f_i(x) = x'A_i x / 2 - b_i'x: tridiagonal ones in banded storage, with the 3PC recipe, and dense ones."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.fft

from adacgd.compressors.base import require_count
from adacgd.module import Aside, module, static
from problems.optimum import quadratic_minimum
from problems.problem import Minimum, Problem, Smoothness, as_dtype, require_positive
from problems.stacking import each_times

ZERO_CUT = 1e-12  # eigenvalues of the mean matrix below this times the largest count as zero


@module
class Tridiagonal(Problem):
    """A_i = diag_i I + off_i S, S the adjacency of the path (both neighbours); b_i = b0_i e_1. Memory O(n + d)."""

    diag: jax.Array  # (n,)
    off: jax.Array  # (n,)
    b0: jax.Array  # (n,)
    size: int = static()
    about: Aside = static()
    by_worker = ("diag", "off", "b0")

    @property
    def n(self) -> int:
        """The number of workers."""
        return self.diag.shape[0]

    @property
    def dim(self) -> int:
        """The dimension."""
        return self.size

    def _neighbours(self, x: jax.Array) -> jax.Array:
        return jnp.pad(x[1:], (0, 1)) + jnp.pad(x[:-1], (1, 0))

    def losses(self, x: jax.Array) -> jax.Array:
        """(f_i(x))_i; two inner products serve all."""
        square, mixed = (jnp.dot(x, v, precision="highest") for v in (x, self._neighbours(x)))
        return (self.diag * square + self.off * mixed) / 2 - self.b0 * x[0]

    def grads(self, x: jax.Array) -> jax.Array:
        """(A_i x - b_i)_i."""
        Ax = self.diag[:, None] * x[None, :] + self.off[:, None] * self._neighbours(x)[None, :]
        return Ax.at[:, 0].add(-self.b0)


def tridiagonal(diag: Any, off: Any, b0: Any, dim: int, *, x0: Any = None, dtype: Any = "float64") -> Tridiagonal:
    """f_i = x'A_i x/2 - b_i'x, A_i = diag_i I + off_i (both neighbours), b_i = b0_i e_1; constants exact.

    diag, off, b0: (n,). x0: (dim,), sqrt(dim) e_1 where not given. All A_i share the eigenvectors of the path, with
    eigenvalues diag_i + 2 off_i cos(k pi/(dim+1)), so every constant is a maximum over k. Raises ValueError.
    """
    wanted = as_dtype(dtype)
    require_count("tridiagonal", "dim", dim)
    diag, off, b0 = (_vector("tridiagonal", name, v) for name, v in (("diag", diag), ("off", off), ("b0", b0)))
    if not diag.shape == off.shape == b0.shape:
        raise ValueError(f"tridiagonal: diag, off, b0 must have one length, got {len(diag)}, {len(off)}, {len(b0)}.")
    path = 2 * np.cos(np.arange(1, dim + 1) * np.pi / (dim + 1))
    worker_eigenvalues = diag[:, None] + off[:, None] * path[None, :]  # (n, d), one basis for all
    smoothness = _shared_basis_smoothness(worker_eigenvalues)
    start = np.sqrt(dim) * np.eye(1, dim)[0] if x0 is None else _vector("tridiagonal", "x0", x0)
    if start.shape != (dim,):
        raise ValueError(f"tridiagonal(x0=...) must have length {dim}, got {start.shape[0]}.")
    about = Aside(
        smoothness=smoothness,
        x0=start.astype(wanted),
        minimum=functools.cache(lambda: _tridiagonal_minimum(diag.mean(), off.mean(), b0.mean(), dim)),
        storage="banded",
        name=f"tridiagonal quadratics, n = {len(diag)}, d = {dim}",
    )
    leaves = [jnp.asarray(v, wanted) for v in (diag, off, b0)]
    return Tridiagonal(leaves[0], leaves[1], leaves[2], dim, about)


def quadratic(
    workers: int = 10,
    dim: int = 1000,
    noise_scale: float = 0.8,
    strength: float = 1e-6,
    seed: int = 12345,
    *,
    dtype: Any = "float64",
) -> Tridiagonal:
    """The quadratics of the 3PC experiments (theory.md section 5), x^0 = sqrt(d) e_1.

    With T = tridiag(-1, 2, -1) and, worker by worker, nu = 1 + noise_scale xi, nu' = noise_scale xi':
    A_i = (nu/4) T, b_i = (nu/4)(-1 + nu') e_1; then the same multiple of I is added to every A_i, so that the least
    eigenvalue of their mean is `strength`. Draws: numpy's legacy RandomState(seed), as the paper's code.
    """
    require_count("quadratic", "workers", workers)
    require_count("quadratic", "dim", dim)
    noise_scale = require_positive("quadratic", "noise_scale", noise_scale, zero=True)
    strength = require_positive("quadratic", "strength", strength, zero=True)
    random = np.random.RandomState(seed)
    draws = np.array([(1 + noise_scale * random.normal(), noise_scale * random.normal()) for _ in range(workers)])
    nu, nu_b = draws[:, 0], draws[:, 1]
    off, diag, b0 = -nu / 4, nu / 2, nu / 4 * (nu_b - 1)
    least = diag.mean() - 2 * abs(off.mean()) * np.cos(np.pi / (dim + 1))
    return tridiagonal(diag + (strength - least), off, b0, dim, dtype=dtype)


@module
class Quadratic(Problem):
    """f_i = x'A_i x / 2 - b_i'x with dense A_i."""

    A: jax.Array  # (n, d, d)
    b: jax.Array  # (n, d)
    about: Aside = static()
    by_worker = ("A", "b")

    @property
    def n(self) -> int:
        """The number of workers."""
        return self.A.shape[0]

    @property
    def dim(self) -> int:
        """The dimension."""
        return self.A.shape[1]

    def losses(self, x: jax.Array) -> jax.Array:
        """(f_i(x))_i."""
        return jnp.sum((each_times(self.A, x) / 2 - self.b) * x[None, :], axis=1)

    def grads(self, x: jax.Array) -> jax.Array:
        """(A_i x - b_i)_i."""
        return each_times(self.A, x) - self.b


def general_quadratic(A: Any, b: Any, *, x0: Any = None, dtype: Any = "float64") -> Quadratic:
    """f_i = x'A_i x/2 - b_i'x; A: (n, d, d) symmetric, b: (n, d), x0: (d,), zeros where not given. Exact constants.

    L_plus = sqrt(lambda_max(mean A_i^2)), L_pm = sqrt(lambda_max(mean A_i^2 - mean(A)^2)), L_i the largest *absolute*
    eigenvalue (theory.md 3.0). mu is the least nonzero eigenvalue of the mean. Raises ValueError.
    """
    wanted = as_dtype(dtype)
    A, b = np.array(A, np.float64), np.array(b, np.float64)
    if A.ndim != 3 or A.shape[1] != A.shape[2] or b.shape != A.shape[:2] or 0 in A.shape:
        raise ValueError(f"general_quadratic: A must be (n, d, d) and b (n, d), got {A.shape} and {b.shape}.")
    if not (np.isfinite(A).all() and np.isfinite(b).all()):
        raise ValueError("general_quadratic: A and b must be finite.")
    if not np.allclose(A, A.transpose(0, 2, 1), rtol=1e-12, atol=1e-12 * np.abs(A).max()):
        raise ValueError("general_quadratic: each A_i must be symmetric; pass (A_i + A_i') / 2.")
    n, d = b.shape
    start = np.zeros(d) if x0 is None else _vector("general_quadratic", "x0", x0)
    if start.shape != (d,):
        raise ValueError(f"general_quadratic(x0=...) must have length {d}, got {start.shape[0]}.")
    mean = A.mean(axis=0)
    squares = np.einsum("nij,njk->ik", A, A) / n
    eigenvalues = np.linalg.eigvalsh(mean)
    top = float(np.abs(eigenvalues).max())
    smoothness = Smoothness(
        L_minus=top,
        L_plus=float(np.sqrt(max(np.linalg.eigvalsh(squares)[-1], 0.0))),
        L_pm=float(np.sqrt(max(np.linalg.eigvalsh(squares - mean @ mean)[-1], 0.0))),
        mu=_pl_constant(eigenvalues),
        L_i=np.abs(np.linalg.eigvalsh(A)).max(axis=1),
        how=_EXACT,
        mu_i=np.linalg.eigvalsh(A).min(axis=1),
        strongly=bool(eigenvalues.min() > ZERO_CUT * top),
    )
    about = Aside(
        smoothness=smoothness,
        x0=start.astype(wanted),
        minimum=functools.cache(lambda: quadratic_minimum(mean, b.mean(axis=0), eigenvalues[0], ZERO_CUT * top)),
        storage="dense",
        name=f"quadratics, n = {n}, d = {d}",
    )
    return Quadratic(jnp.asarray(A, wanted), jnp.asarray(b, wanted), about)


_EXACT = {name: "exact: symmetric eigenvalues" for name in ("L_i", "L_minus", "L_plus", "L_pm")} | {
    "mu": f"exact: least eigenvalue of the mean above {ZERO_CUT:g} of the largest",
    "mu_i": "exact: symmetric eigenvalues",
}


def _vector(owner: str, name: str, value: Any) -> np.ndarray:
    array = np.atleast_1d(np.array(value, np.float64))
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"{owner}({name}=...) must be a finite vector, got shape {array.shape}.")
    return array


def _pl_constant(eigenvalues: np.ndarray) -> float | None:
    """The least nonzero eigenvalue, the PL constant of a convex quadratic; None where one is negative."""
    cut = ZERO_CUT * np.abs(eigenvalues).max()
    if eigenvalues.min() < -cut:
        return None
    positive = eigenvalues[eigenvalues > cut]
    return float(positive.min()) if positive.size else None


def _shared_basis_smoothness(worker_eigenvalues: np.ndarray) -> Smoothness:
    """All constants when the A_i share their eigenvectors; worker_eigenvalues: (n, d)."""
    mean = worker_eigenvalues.mean(axis=0)
    return Smoothness(
        L_minus=float(np.abs(mean).max()),
        L_plus=float(np.sqrt((worker_eigenvalues**2).mean(axis=0).max())),
        L_pm=float(np.sqrt(worker_eigenvalues.var(axis=0).max())),
        mu=_pl_constant(mean),
        L_i=np.abs(worker_eigenvalues).max(axis=1),
        how=_EXACT,
        mu_i=worker_eigenvalues.min(axis=1),
        strongly=bool(mean.min() > ZERO_CUT * np.abs(mean).max()),
    )


def _tridiagonal_minimum(diag: float, off: float, b0: float, dim: int) -> Minimum:
    """-b'A^+ b / 2 in the eigenbasis of the path, whose vectors begin with sqrt(2/(d+1)) sin(k pi/(d+1))."""
    angles = np.arange(1, dim + 1) * np.pi / (dim + 1)
    eigenvalues = diag + 2 * off * np.cos(angles)
    first = np.sqrt(2 / (dim + 1)) * np.sin(angles) * b0
    cut = ZERO_CUT * np.abs(eigenvalues).max()
    if eigenvalues.min() < -cut:
        return Minimum(None, -np.inf, "none: the mean matrix has a negative eigenvalue")
    nonzero = eigenvalues > cut
    if np.any(np.abs(first[~nonzero]) > 1e-8 * abs(b0)):
        return Minimum(None, -np.inf, "none: the linear term leaves the range of the mean matrix")
    value = float(-np.sum(first[nonzero] ** 2 / eigenvalues[nonzero]) / 2)
    weights = np.where(nonzero, first, 0) / np.where(nonzero, eigenvalues, 1)
    x = scipy.fft.dst(weights, type=1) / np.sqrt(2 * (dim + 1))
    return Minimum(value, value, "exact: eigenbasis of the path", x)
