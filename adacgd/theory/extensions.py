"""Heavy ball and a proximal term on top of a three point compressor (theory.md 3.5, docs/theory-extensions.md)."""

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from adacgd.theory.links import SMOOTH, errors_of_workers, spread_of
from adacgd.theory.statement import Start, Theorem, average, given, mean_over_rounds

BELOW = "f(x^0) less the infimum of f (of f + r), which is assumed bounded below."


@dataclasses.dataclass(frozen=True)
class Extension(Theorem):
    """What both share: a mean of squared gradients against (2/(gamma T))(c D0 + c_G gamma G^0/A)."""

    A: float
    B: float
    spread: str = "L_plus"  # as in Links

    source: ClassVar[str] = "derived here, docs/theory-extensions.md"

    def spread_sq(self, smoothness: Any) -> float:
        """(B/A) L^2."""
        return self.B / self.A * spread_of(self.spread, smoothness) ** 2

    def start(self, smoothness: Any, trace: Any) -> Start:
        """With the weighted G where that is asked for."""
        G = float(errors_of_workers(self.spread, smoothness, trace)[0])
        return super().start(smoothness, trace)._replace(G=G)

    def target(self, smoothness: Any, eps: float) -> float:
        """A mean of squared norms of eps^2."""
        return eps * eps


@dataclasses.dataclass(frozen=True)
class HeavyBall(Extension):
    """x+ = x - gamma v, v+ = eta v + mean g_i+, v^0 = mean g_i^0; z^t = x^t - (gamma eta/(1 - eta)) v^{t-1}, z^0 = x^0.

    shadow: mean |grad f(z^t)|^2 <= 2 (1 - eta) D0/(gamma T) + 2 G^0/(A T), for
    gamma <= (1 - eta)/(L_minus + sqrt(2 (B/A) L^2 + 2 L_minus^2 eta^2/(1 - eta)^2)).
    Else, for half of that: mean |grad f(x^t)|^2 <= 5 (1 - eta) D0/(gamma T) + 5 G^0/(A T).
    """

    eta: float = 0.0
    shadow: bool = False

    assumptions: ClassVar[str] = f"{SMOOTH}; f is bounded below; workers use a 3PC(A, B) map; 0 <= eta < 1"

    @property
    def left_side(self) -> str:
        """At z or at x."""
        return f"mean |grad f({'z' if self.shadow else 'x'}^t)|^2, t < T"

    def stepsize(self, smoothness: Any, start: Start | None = None) -> float:
        """As the class says."""
        L, eta = smoothness.L_minus, self.eta
        root = math.sqrt(2 * self.spread_sq(smoothness) + 2 * (L * eta / (1 - eta)) ** 2)
        return (1 if self.shadow else 0.5) * (1 - eta) / (L + root)

    def bound(self, smoothness: Any, gamma: float, start: Start, rounds: Any) -> np.ndarray:
        """c (1 - eta) D0/(gamma T) + c G^0/(A T), c = 2 at z, 5 at x."""
        c = 2 if self.shadow else 5
        Phi0 = (1 - self.eta) * given(start, "gap", BELOW) + gamma * start.G / self.A
        return average(c / 2 * Phi0, gamma, rounds)

    def left(self, smoothness: Any, gamma: float, trace: Any) -> np.ndarray:
        """The mean over rounds, at z or at x."""
        return mean_over_rounds(trace, "shadow_sq_sum" if self.shadow else "grad_sq_sum")


@dataclasses.dataclass(frozen=True)
class Prox(Extension):
    """x+ = prox_{gamma r}(x - gamma mean g_i): mean |M(x^t)|^2 <= 12 D0/(gamma T) + 8 G^0/(A T), D0 of f + r.

    M(x) = (x - prox_{gamma r}(x - gamma grad f(x)))/gamma, gamma <= 1/(2 L_minus + L sqrt(2 B/A)).
    """

    assumptions: ClassVar[str] = f"{SMOOTH}; r convex, f + r bounded below; workers use a 3PC(A, B) map"
    left_side: ClassVar[str] = "mean |M(x^t)|^2, t < T"

    def stepsize(self, smoothness: Any, start: Start | None = None) -> float:
        """1/(2 L_minus + L sqrt(2 B/A))."""
        return 1 / (2 * smoothness.L_minus + math.sqrt(2 * self.spread_sq(smoothness)))

    def bound(self, smoothness: Any, gamma: float, start: Start, rounds: Any) -> np.ndarray:
        """12 D0/(gamma T) + 8 G^0/(A T)."""
        return average(6 * given(start, "gap", BELOW) + 4 * gamma * start.G / self.A, gamma, rounds)

    def left(self, smoothness: Any, gamma: float, trace: Any) -> np.ndarray:
        """The mean of |M(x)|^2, which is what grad_sq_sum adds up with a prox."""
        return mean_over_rounds(trace, "grad_sq_sum")


@dataclasses.dataclass(frozen=True)
class SGDM(Theorem):
    """EF21-SGDM: a step without a bound. WARNING: recalled from the paper's code, never re-proved, untested here."""

    alpha: float
    eta: float

    source: ClassVar[str] = "recalled: EF21 with momentum, step rule of its code; untested here"
    assumptions: ClassVar[str] = "every f_i L_i-smooth, stochastic gradients of bounded variance, C in B(alpha)"
    left_side: ClassVar[str] = "none is proved here"

    def stepsize(self, smoothness: Any, start: Start | None = None) -> float:
        """min{alpha/(20 Lt), eta/(7 L_minus)}, Lt = sqrt(mean L_i^2)."""
        Lt = math.sqrt(float(np.mean(np.asarray(smoothness.L_i, float) ** 2)))
        return min(self.alpha / (20 * Lt), self.eta / (7 * smoothness.L_minus))

    def bound(self, smoothness: Any, gamma: float, start: Start, rounds: Any) -> np.ndarray:
        """Refused: only the order of the rate is recalled. Raises ValueError."""
        raise ValueError(
            "no bound of EF21-SGDM is proved here: of its rate only the order is recalled, O(Psi0/(gamma T) + eta^3 "
            "sigma^2/alpha^2 + eta^2 sigma^2/alpha + eta sigma^2/n), without constants (theory.md 3.5)."
        )

    def left(self, smoothness: Any, gamma: float, trace: Any) -> np.ndarray:
        """Refused as `bound`. Raises ValueError."""
        return self.bound(smoothness, gamma, Start(), trace.rounds)
