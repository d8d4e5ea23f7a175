"""Least values, certified: a solver's answer counts only with its gradient norm (theory.md 3.6)."""

import functools
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse.linalg
import scipy.special

from problems.problem import Minimum

GRADIENT_TOLERANCE = 1e-12


def logistic_minimum(rows: Any, weights: np.ndarray, strength: float) -> Minimum:
    """f* of sum_j w_j log(1 + exp(-a_j'x)) + (strength/2)|x|^2, in float64; rows: (N, d) array or CSR of y_j a_j.

    SciPy's Newton-CG finds x^, plain Newton-CG steps polish it. f is strength-strongly convex, so
    f(x^) - |grad f(x^)|^2 / (2 strength) <= f* <= f(x^); the lower end is taken. Raises ValueError where the gradient
    norm cannot be brought to 1e-12 max(1, |grad f(0)|).
    """
    d = rows.shape[1]

    def value(x: np.ndarray) -> float:
        return float(weights @ np.logaddexp(0, -(rows @ x)) + strength / 2 * x @ x)

    def gradient(x: np.ndarray) -> np.ndarray:
        return strength * x - rows.T @ (weights * scipy.special.expit(-(rows @ x)))

    def curvature(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        z = rows @ x
        return strength * v + rows.T @ (weights * scipy.special.expit(z) * scipy.special.expit(-z) * (rows @ v))

    start = np.zeros(d)
    wanted = GRADIENT_TOLERANCE * max(1.0, float(np.linalg.norm(gradient(start))))
    x = scipy.optimize.minimize(
        value, start, jac=gradient, hessp=curvature, method="Newton-CG", options={"xtol": 1e-10}
    ).x
    x = _polish(x, gradient, curvature, wanted)
    slope = float(np.linalg.norm(gradient(x)))
    if not slope <= wanted:
        raise ValueError(
            f"the reference solver reached |grad f| = {slope:.1e} only, {wanted:.1e} is needed to certify f_star; "
            "use a larger strength."
        )
    lower = value(x) - slope**2 / (2 * strength)
    return Minimum(lower, lower, f"Newton, |grad f| = {slope:.1e}, gap below {slope**2 / (2 * strength):.1e}", x)


def _polish(x: np.ndarray, gradient: Any, curvature: Any, wanted: float) -> np.ndarray:
    """A few undamped Newton steps by conjugate gradients: near the optimum each squares the error."""
    for _ in range(20):
        g = gradient(x)
        if np.linalg.norm(g) <= wanted / 4:
            break
        hessian = scipy.sparse.linalg.LinearOperator((x.size,) * 2, matvec=functools.partial(curvature, x), dtype=float)
        step, _ = scipy.sparse.linalg.cg(hessian, g, rtol=1e-6, maxiter=10 * x.size)
        x = x - step
    return x


def quadratic_minimum(A: np.ndarray, b: np.ndarray, least: float, cut: float) -> Minimum:
    """min of x'Ax/2 - b'x for symmetric A (d, d) whose least eigenvalue is given; eigenvalues below `cut` count as 0.

    By least squares (b in the range of A); -inf where A has a negative eigenvalue or b leaves the range.
    """
    if least < -cut:
        return Minimum(None, -np.inf, "none: the mean matrix has a negative eigenvalue")
    x = np.linalg.lstsq(A, b, rcond=1e-12)[0]
    if np.linalg.norm(A @ x - b) > 1e-8 * float(np.linalg.norm(b)):
        return Minimum(None, -np.inf, "none: the linear term leaves the range of the mean matrix")
    value = float(x @ A @ x / 2 - b @ x)
    return Minimum(value, value, "exact: least squares", x)
