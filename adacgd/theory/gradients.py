"""Methods that compress gradients or their difference to a memory and are no 3PC: DCGD, DIANA (theory.md 2)."""

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from adacgd.theory.assumptions import require_convex_workers, require_mu
from adacgd.theory.residual import require_one_worker
from adacgd.theory.statement import (
    ROUNDING,
    Start,
    Theorem,
    average,
    column,
    contraction,
    gap,
    given,
    mean_over_rounds,
)

CONVEX_WORKERS = "every f_i convex and L_i-smooth, f mu-strongly convex, independent Q_i in U(omega)"


@dataclasses.dataclass(frozen=True)
class Unbiased(Theorem):
    """What DCGD and DIANA share."""

    omega: float
    workers: int

    source: ClassVar[str] = "derived here, docs/theory-not-3pc.md"

    def mu(self, smoothness: Any) -> float:
        """Of f, with every f_i convex. Raises ValueError."""
        require_convex_workers("stepsize", smoothness, type(self).__name__)
        return require_mu("stepsize", smoothness, "strongly_convex")

    def rounding(self, first: float, loss: float) -> float:
        """Of distances to an x* that a solver found."""
        return ROUNDING * first


@dataclasses.dataclass(frozen=True)
class DCGD(Unbiased):
    """E|x^T - x*|^2 <= (1 - gamma mu)^T |x^0 - x*|^2 + (2 gamma omega/(mu n)) mean |grad f_i(x*)|^2."""

    assumptions: ClassVar[str] = CONVEX_WORKERS
    left_side: ClassVar[str] = "|x - x*|^2"

    def stepsize(self, smoothness: Any, start: Start | None = None) -> float:
        """1/(L_minus + 2 omega L_max/n)."""
        self.mu(smoothness)
        return 1 / (smoothness.L_minus + 2 * self.omega * float(np.max(smoothness.L_i)) / self.workers)

    def rate(self, smoothness: Any, gamma: float) -> float | None:
        """1 - gamma mu, towards a neighbourhood of x*."""
        return max(1 - gamma * self.mu(smoothness), 0.0)

    def bound(self, smoothness: Any, gamma: float, start: Start, rounds: Any) -> np.ndarray:
        """As the class says."""
        noise = 2 * gamma * self.omega / (self.mu(smoothness) * self.workers)
        if noise > 0:
            noise *= given(start, "S", "mean |grad f_i(x*)|^2, which sets where DCGD stops.")
        D0 = given(start, "distance_sq", "|x^0 - x*|^2.")
        return contraction(D0, self.rate(smoothness, gamma) or 0.0, rounds) + noise

    def left(self, smoothness: Any, gamma: float, trace: Any) -> np.ndarray:
        """|x^T - x*|^2."""
        return column(trace, "distance_sq", math.nan)


@dataclasses.dataclass(frozen=True)
class Diana(Unbiased):
    """E V^T <= max(1 - gamma mu, 1 - eta/2)^T V^0.

    V = |x - x*|^2 + (4 omega gamma^2/(n eta)) S, S = mean |h_i - grad f_i(x*)|^2.
    """

    eta: float

    assumptions: ClassVar[str] = f"{CONVEX_WORKERS}, eta <= 1/(1 + omega)"
    left_side: ClassVar[str] = "|x - x*|^2 + (4 omega gamma^2/(n eta)) mean |h_i - grad f_i(x*)|^2"

    def __post_init__(self) -> None:
        if not 0 < self.eta <= (1 + 1e-12) / (1 + self.omega):
            raise ValueError(
                f"DIANA assumes 0 < eta <= 1/(1 + omega) = {1 / (1 + self.omega):.6g}; got eta = {self.eta}."
            )

    def stepsize(self, smoothness: Any, start: Start | None = None) -> float:
        """1/(L_max (1 + 6 omega/n))."""
        self.mu(smoothness)
        return 1 / (float(np.max(smoothness.L_i)) * (1 + 6 * self.omega / self.workers))

    def rate(self, smoothness: Any, gamma: float) -> float | None:
        """max(1 - gamma mu, 1 - eta/2); with omega = 0 the memory is not in V."""
        slow = 1 - self.eta / 2 if self.omega > 0 else 0.0
        return max(1 - gamma * self.mu(smoothness), slow, 0.0)

    def weight(self, gamma: float) -> float:
        """That of S in V."""
        return 4 * self.omega * gamma**2 / (self.workers * self.eta)

    def bound(self, smoothness: Any, gamma: float, start: Start, rounds: Any) -> np.ndarray:
        """The factor^T V^0."""
        V0 = given(start, "distance_sq", "|x^0 - x*|^2.")
        if self.omega > 0:
            V0 += self.weight(gamma) * given(start, "S", "mean |h_i^0 - grad f_i(x*)|^2.")
        return contraction(V0, self.rate(smoothness, gamma) or 0.0, rounds)

    def left(self, smoothness: Any, gamma: float, trace: Any) -> np.ndarray:
        """V^T."""
        memory = self.weight(gamma) * column(trace, "S", math.nan) if self.omega > 0 else 0.0
        return column(trace, "distance_sq", math.nan) + memory


@dataclasses.dataclass(frozen=True)
class ContractiveGD(Theorem):
    """x+ = x - gamma C(grad f(x)) of one worker, gamma <= 1/L: f(x+) <= f(x) - (gamma alpha/2)|grad f(x)|^2."""

    alpha: float
    regime: str  # "nonconvex" | "pl" | "strongly_convex"

    source: ClassVar[str] = "derived here, docs/theory-not-3pc.md"
    assumptions: ClassVar[str] = "n = 1, f L-smooth, C in B(alpha); for a rate |grad f|^2 >= 2 mu (f - f*)"

    @property
    def left_side(self) -> str:
        """By regime."""
        return "mean |grad f(x^t)|^2, t < T" if self.regime == "nonconvex" else "f(x) - f*"

    def stepsize(self, smoothness: Any, start: Start | None = None) -> float:
        """1/L. Raises ValueError for more than one worker."""
        why = "compressed gradients of more with a biased C diverge for every step on some problems (theory.md 2)"
        require_one_worker("DCGD with a contractive compressor", smoothness, why)
        if self.regime != "nonconvex":
            require_mu("stepsize", smoothness, self.regime)
        return 1 / float(smoothness.L_minus)

    def rate(self, smoothness: Any, gamma: float) -> float | None:
        """1 - gamma alpha mu."""
        if self.regime == "nonconvex":
            return None
        return max(1 - gamma * self.alpha * require_mu("rate", smoothness, self.regime), 0.0)

    def bound(self, smoothness: Any, gamma: float, start: Start, rounds: Any) -> np.ndarray:
        """2 D0/(gamma alpha T); (1 - gamma alpha mu)^T delta^0."""
        D0 = given(start, "gap", "f(x^0) less the infimum of f, which is assumed bounded below.")
        if self.regime == "nonconvex":
            return average(D0, gamma * self.alpha, rounds)
        return contraction(D0, self.rate(smoothness, gamma) or 0.0, rounds)

    def left(self, smoothness: Any, gamma: float, trace: Any) -> np.ndarray:
        """The mean of |grad f|^2, or f - f*."""
        if self.regime == "nonconvex":
            return mean_over_rounds(trace, "grad_sq_sum")
        return column(trace, "loss", math.nan) - trace.f_star

    def start(self, smoothness: Any, trace: Any) -> Start:
        """With f* itself where f - f* is compared."""
        return super().start(smoothness, trace)._replace(gap=gap(trace, self.regime != "nonconvex"))

    def rounding(self, first: float, loss: float) -> float:
        """Of f, where its values are compared."""
        return 0.0 if self.regime == "nonconvex" else ROUNDING * first + 1e-15 * abs(loss)

    def target(self, smoothness: Any, eps: float) -> float:
        """nonconvex: eps^2."""
        return eps * eps if self.regime == "nonconvex" else eps
