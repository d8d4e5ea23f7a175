"""The tight rates of h + C(x - h), every f_i strongly convex, on runs (theory.md 3.3, docs/theory-tight.md)."""

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from adacgd.theory.assumptions import require_convex_workers
from adacgd.theory.statement import ROUNDING, Start, Theorem, column, contraction, given
from adacgd.theory.tight import tight_rate, tight_stepsize


@dataclasses.dataclass(frozen=True)
class Residual(Theorem):
    """What EF21 and EF14 share: the step, the rate, and the class of f_i."""

    alpha: float

    only_at_the_step = True

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(
                f"regime='tight' assumes a compressor that loses something, 0 < alpha < 1; got alpha = {self.alpha}. "
                "Use regime='strongly_convex'."
            )

    @property
    def e(self) -> float:
        """sqrt(1 - alpha)."""
        return math.sqrt(1 - self.alpha)

    def mu_L(self, smoothness: Any) -> tuple[float, float]:
        """The common constants: least mu_i, largest L_i."""
        mu_i = require_convex_workers("stepsize", smoothness, "regime='tight'")
        if not mu_i.min() > 0:
            raise ValueError(
                f"regime='tight' assumes that every f_i is strongly convex; the least mu_i is {mu_i.min()}. "
                "Use regime='pl' or 'convex'."
            )
        return float(mu_i.min()), float(np.max(smoothness.L_i))

    def stepsize(self, smoothness: Any, start: Start | None = None) -> float:
        """(2/(L + mu))(1 - e)/(1 + e)."""
        return tight_stepsize(*self.mu_L(smoothness), self.alpha)

    def rate(self, smoothness: Any, gamma: float) -> float | None:
        """rho, at gamma = stepsize(smoothness)."""
        return tight_rate(*self.mu_L(smoothness), self.alpha)

    def rounding(self, first: float, loss: float) -> float:
        """Of V."""
        return ROUNDING * first


@dataclasses.dataclass(frozen=True)
class EF21Tight(Residual):
    """E V^T <= rho^T V^0, V = e|grad f(x)|^2 + mean|grad f_i(x) - g_i|^2, any n and any g_i^0."""

    source: ClassVar[str] = "derived here, docs/theory-tight.md; n = 1 in the literature"
    assumptions: ClassVar[str] = "every f_i mu-strongly convex and L-smooth; g_i+ = g_i + C(grad f_i - g_i), alpha < 1"
    left_side: ClassVar[str] = "e |grad f(x)|^2 + mean |grad f_i(x) - g_i|^2"

    def bound(self, smoothness: Any, gamma: float, start: Start, rounds: Any) -> np.ndarray:
        """rho^T V^0."""
        V0 = self.e * given(start, "grad_sq", "|grad f(x^0)|^2, part of V^0.") + start.G
        return contraction(V0, self.rate(smoothness, gamma) or 0.0, rounds)

    def left(self, smoothness: Any, gamma: float, trace: Any) -> np.ndarray:
        """V^T."""
        return self.e * column(trace, "grad_sq", math.nan) + column(trace, "G", math.nan)

    def target(self, smoothness: Any, eps: float) -> float:
        """f - f* <= |grad f|^2/(2 mu) <= V/(2 mu e) <= eps."""
        return 2 * self.mu_L(smoothness)[0] * self.e * eps


@dataclasses.dataclass(frozen=True)
class EF14Tight(Residual):
    """E|x^T - x*|^2 <= (1 + e) rho^T |x^0 - x*|^2 of classic error feedback with one worker and no error at the start.

    V = |x - x* - err|^2 + (1/e)|err|^2 contracts by rho, and |x - x*|^2 <= (1 + e) V by Young.
    """

    source: ClassVar[str] = "the tight rate of one worker is the literature's; the passage to |x - x*|^2 derived here"
    assumptions: ClassVar[str] = "n = 1, f mu-strongly convex and L-smooth, err^0 = 0, alpha < 1"
    left_side: ClassVar[str] = "|x - x*|^2"

    def mu_L(self, smoothness: Any) -> tuple[float, float]:
        """Of the one worker. Raises ValueError for more."""
        require_one_worker("EF14", smoothness, "no rate of classic error feedback is proved here for more")
        return super().mu_L(smoothness)

    def bound(self, smoothness: Any, gamma: float, start: Start, rounds: Any) -> np.ndarray:
        """(1 + e) rho^T |x^0 - x*|^2."""
        V0 = given(start, "distance_sq", "|x^0 - x*|^2, which is V^0.")
        return contraction((1 + self.e) * V0, self.rate(smoothness, gamma) or 0.0, rounds)

    def left(self, smoothness: Any, gamma: float, trace: Any) -> np.ndarray:
        """|x - x*|^2."""
        return column(trace, "distance_sq", math.nan)


def require_one_worker(method: str, smoothness: Any, why: str) -> None:
    """n = 1, by the length of L_i. Raises ValueError."""
    if len(smoothness.L_i) != 1:
        raise ValueError(f"{method} has a theorem for n = 1 only, this problem has n = {len(smoothness.L_i)}: {why}.")
