"""Runs on tiny quadratics in plain NumPy, with every column that `theory.check` reads: no loop of ours, no jax.

Random methods are enumerated: `choices[t]` is the outcome of round t among equally likely ones.
"""

import itertools
import math
from types import SimpleNamespace

import numpy as np

from adacgd.theory import beta, theta


class Quadratic:
    """f_i(x) = x'A_i x/2 - b_i'x with exact constants."""

    def __init__(self, A, b, x0, mu="convex"):
        self.A, self.b, self.x0 = (np.asarray(v, float) for v in (A, b, x0))
        self.n, self.dim = self.b.shape
        mean = self.A.mean(axis=0)
        eig = lambda M: np.linalg.eigvalsh((M + M.T) / 2)
        second = np.mean([M @ M for M in self.A], axis=0)
        own = np.array([eig(M) for M in self.A])
        least = eig(mean)[0]
        self.x_star = np.linalg.lstsq(mean, self.b.mean(axis=0), rcond=None)[0]
        self.f_star = self.loss(self.x_star)
        self.smoothness = SimpleNamespace(
            L_minus=float(np.abs(eig(mean)).max()),
            L_plus=math.sqrt(eig(second)[-1]),
            L_pm=math.sqrt(max(eig(second - mean @ mean)[-1], 0.0)),
            L_i=np.abs(own).max(axis=1),
            mu_i=own.min(axis=1),
            mu=float(least) if least > 1e-9 else 0.0,
            how={},
        )

    def loss(self, x):
        return float(x @ self.A.mean(axis=0) @ x / 2 - self.b.mean(axis=0) @ x)

    def grads(self, x):
        return self.A @ x - self.b


def random_quadratic(rng, n=2, d=2, mu=0.05, convex=False):
    """Workers that disagree, indefinite unless `convex`; the mean is at least mu."""
    M = rng.normal(size=(n, d, d))
    A = M @ M.transpose(0, 2, 1) if convex else (M + M.transpose(0, 2, 1)) / 2
    if convex:
        A = A + mu * np.eye(d)
    else:
        A = A + (mu - np.linalg.eigvalsh(A.mean(axis=0))[0]) * np.eye(d)
    return Quadratic(A, rng.normal(size=(n, d)), 2 * rng.normal(size=d))


# --- deterministic maps C_{h,y}(x) with their constants ---------------------------------------------------------------


def pair(A, B, P=None, Q=None, **more):
    return SimpleNamespace(A=A, B=B, P=P, Q=Q, **more)


def top(k):
    def compress(v):
        kept = np.zeros_like(v)
        largest = np.argsort(-np.abs(v), kind="stable")[:k]
        kept[largest] = v[largest]
        return kept

    return compress


def exact():
    return (lambda h, y, x: x), pair(1.0, 0.0, 0.0, 1.0)


def ef21(compress, alpha, nonexpansive=True):
    P = 2.0 if nonexpansive else None
    return (lambda h, y, x: h + compress(x - h)), pair(theta(alpha), beta(alpha), P, P, residual=True)


def lag(zeta):
    skip = lambda h, y, x: np.sum((x - h) ** 2) <= zeta * np.sum((x - y) ** 2) * (1 + 1e-14)
    return (lambda h, y, x: h if skip(h, y, x) else x), pair(1.0, zeta, 2.0, 2.0)


def v1(compress, alpha):
    return (lambda h, y, x: y + compress(x - y)), pair(1.0, 1 - alpha)


# --- runs -------------------------------------------------------------------------------------------------------------


def run(
    problem,
    uplink,
    gamma,
    T,
    server=None,
    form="dual",
    g0="exact",
    offset=0.0,
    momentum=0.0,
    prox=None,
    r=lambda x: 0.0,
    f_lower=None,
):
    """A trace of x+ = x - gamma g. g0: "exact" | "zero"; offset: what the server's first broadcast is off by."""
    (C, up), (C_M, down) = uplink, server or (None, None)
    x, n = problem.x0.copy(), problem.n
    w = x + offset if form == "primal" else x
    y = problem.grads(w)
    g_i = y.copy() if g0 == "exact" else np.zeros_like(y)
    g = g_i.mean(axis=0) + (offset if form == "dual" and server is not None else 0.0)
    z, v = x.copy(), g.copy()
    rows = []
    for _ in range(T + 1):
        grad = problem.grads(x).mean(axis=0)
        errors = np.sum((g_i - y) ** 2, axis=1)
        M = grad if prox is None else (x - prox(x - gamma * grad, gamma)) / gamma
        rows.append(
            dict(
                loss=problem.loss(x) + r(x),
                grad_sq=M @ M,
                errors=errors,
                G=errors.mean(),
                H=np.sum((g - g_i.mean(axis=0)) ** 2) if form == "dual" else 0.0,
                W=np.sum((w - x) ** 2),
                distance_sq=np.sum((x - problem.x_star) ** 2),
                shadow=np.sum(problem.grads(z).mean(axis=0) ** 2),
            )
        )
        before, y_before = x, y
        x = x - gamma * (v if momentum else g)
        if prox is not None:
            x = prox(x, gamma)
        w = C_M(w, before, x) if form == "primal" and server is not None else x
        y = problem.grads(w)
        was = g_i.mean(axis=0)
        g_i = np.array([C(g_i[i], y_before[i], y[i]) for i in range(n)])
        now = g_i.mean(axis=0)
        g = C_M(g, was, now) if form == "dual" and server is not None else now
        z = x - gamma * momentum / (1 - momentum) * v  # v is still that of the round before
        v = momentum * v + g
    return traced(problem, rows, gamma, up, down, form=form, momentum=momentum, prox=prox is not None, f_lower=f_lower)


def traced(problem, rows, gamma, up, down=None, f_lower=None, **more):
    """The columns of `rows`, with the running sums."""
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    before = lambda v: np.concatenate([[0.0], np.cumsum(v)[:-1]])
    columns["grad_sq_sum"] = before(columns["grad_sq"])
    columns["shadow_sq_sum"] = before(columns.pop("shadow", np.zeros(len(rows))))
    columns["farthest_sq"] = np.maximum.accumulate(columns["distance_sq"])
    columns.setdefault("H", np.zeros(len(rows)))
    return SimpleNamespace(
        rounds=np.arange(len(rows)),
        stepsize=gamma,
        uplink_constants=up,
        downlink_constants=down,
        smoothness=problem.smoothness,
        f_star=problem.f_star if f_lower is None else None,
        f_lower=problem.f_star if f_lower is None else f_lower,
        precision="float64",
        status="completed",
        outcome_round=len(rows) - 1,
        **columns,
        **more,
    )


def marina_perm(problem, p_inverse, gamma, choices, up):
    """MARINA with Perm-K, n = d: choices[t] = (coin, permutation), the coin one of p_inverse, 0 sends in full."""
    x = problem.x0.copy()
    g, n = problem.grads(x).mean(axis=0), problem.n
    rows = []
    for coin, order in choices:
        grads = problem.grads(x)
        rows.append(_marina_row(problem, x, g, grads))
        x = x - gamma * g
        moved = problem.grads(x) - grads
        masks = np.eye(n)[list(order)]  # worker i owns coordinate order[i], scaled by n
        g = problem.grads(x).mean(axis=0) if coin == 0 else g + np.mean(n * masks * moved, axis=0)
    rows.append(_marina_row(problem, x, g, problem.grads(x)))
    return traced(problem, rows, gamma, up)


def _marina_row(problem, x, g, grads):
    error = np.sum((g - grads.mean(axis=0)) ** 2)
    grad = grads.mean(axis=0)
    distance_sq = np.sum((x - problem.x_star) ** 2)
    return dict(loss=problem.loss(x), grad_sq=grad @ grad, errors=[error], G=error, distance_sq=distance_sq)


def rand1_methods(problem, gamma, choices, eta, h0, up):
    """DIANA with scaled Rand-1, or DCGD with eta = 0 and h0 = 0. choices[t][i]: the coordinate of worker i."""
    x, h, d = problem.x0.copy(), np.array(h0, float), problem.dim
    at_star = problem.grads(problem.x_star)
    rows = []
    for chosen in [*choices, None]:
        grads = problem.grads(x)
        S = np.mean(np.sum((h - at_star) ** 2, axis=1))
        row = _marina_row(problem, x, grads.mean(axis=0), grads)
        rows.append({**row, "S": S})
        if chosen is None:
            break
        q = d * np.eye(d)[list(chosen)] * (grads - h)
        x = x - gamma * np.mean(h + q, axis=0)
        h = h + eta * q
    return traced(problem, rows, gamma, up)


def every(options, T):
    """All sequences of T choices, equally likely."""
    return itertools.product(options, repeat=T)
