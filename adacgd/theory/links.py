"""Three point compressors on one link or on both: three theorems out of one bookkeeping (theory.md 3.1, 3.2, 3.4).

Each link keeps one error e with E e+ <= (1 - A) e + move R + feed (the inner link's e), R = |x+ - x|^2, and

    |g - grad f(x)|^2 <= k1 weight e1 + k2 e2,   k1 = 1 + 1/r, k2 = 1 + r for any r > 0.

In Phi = f(x) - f* + a e1 + b e2 a share kappa of a A1 and b A2 is kept for the contraction; the rest must pay

    of e2:  b (1-kappa) A2 >= gamma k2/2
    of e1:  a (1-kappa) A1 >= gamma k1 weight/2 + b feed
    of R:   1/(2 gamma) - L_minus/2 >= a move1 + b move2

With equalities in the first two the third is gamma L_minus + gamma^2 (k1 u + k2 v) <= 1, and the bracket is least,
(sqrt u + sqrt v)^2, at r = sqrt(u/v). kappa = 0: nonconvex. kappa = 1/2: PL and convex, or a free split of the step.
1/(L_minus + sqrt u + sqrt v) satisfies the third; with `root` gamma is its root, up to 5/4 times as large.
"""

import abc
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from adacgd.theory.assumptions import mean_L, require_convex, require_mu
from adacgd.theory.constants import movement
from adacgd.theory.statement import (
    ROUNDING,
    Start,
    Theorem,
    average,
    column,
    contraction,
    gap,
    given,
    known,
    last_iterate,
    mean_over_rounds,
)


class Error(NamedTuple):
    """E e+ <= (1 - A) e + move |x+ - x|^2 + feed (the inner error): what one link keeps."""

    A: float
    move: float
    feed: float = 0.0
    weight: float = 1.0  # with which it enters |g - grad f(x)|^2

    @property
    def loses(self) -> bool:
        """False: from 0 it never leaves 0."""
        return self.move > 0 or self.feed > 0


NOTHING = Error(1.0, 0.0)


class Weights(NamedTuple):
    """Phi = f(x) - f* + a e1 + b e2."""

    a: float
    b: float


@dataclasses.dataclass(frozen=True)
class Links(Theorem):
    """What the three forms share; `inner` and `outer` are what sets them apart."""

    regime: str  # "nonconvex" | "pl" | "strongly_convex" | "convex"
    spread: str = "L_plus"  # the constant before B: "L_plus", "L_pm", or "weighted", mean L_i with a weighted G
    split: bool = False  # choose kappa freely in the PL regimes
    root: bool = False  # the largest gamma of the quadratic inequality instead of one that satisfies it

    @abc.abstractmethod
    def inner(self, smoothness: Any) -> Error:
        """The error e1 that depends on no other."""

    @abc.abstractmethod
    def outer(self, smoothness: Any, start: Start | None = None) -> Error:
        """The error e2 that the inner one feeds; NOTHING on one link."""

    @abc.abstractmethod
    def errors_at_start(self, start: Start) -> tuple[float, float]:
        """(e1, e2) of `start`."""

    @abc.abstractmethod
    def errors(self, smoothness: Any, trace: Any) -> tuple[np.ndarray, np.ndarray]:
        """(e1, e2) at each row, (R,) each."""

    @property
    def left_side(self) -> str:
        """By regime."""
        return "mean |grad f(x^t)|^2, t < T" if self.regime == "nonconvex" else "f(x) - f* + a e1 + b e2"

    # --- the bookkeeping ---

    def coupling(self, smoothness: Any, kappa: float, start: Start | None = None) -> tuple[float, float]:
        """(u, v): gamma L_minus + gamma^2 (k1 u + k2 v) <= 1."""
        e1, e2 = self.inner(smoothness), self.outer(smoothness, start)
        u = e1.move / ((1 - kappa) * e1.A)
        return e1.weight * u, (e2.move + e2.feed * u) / ((1 - kappa) * e2.A)

    def factors(self, smoothness: Any, kappa: float, start: Start | None) -> tuple[float, float]:
        """(k1, k2) = (1 + 1/r, 1 + r). An error that starts at 0 and stays there needs no share: r is 0 or infinite.

        One that starts above 0 on a link without loss has r = 1: the theorem is then one for a smaller step, in which
        P = 0, Q = 1 no longer describe how that link moves (`moves`).
        """
        u, v = self.coupling(smoothness, kappa, start)
        start1, start2 = self.errors_at_start(start) if start is not None else (0.0, 0.0)
        if u > 0 and v > 0:
            return 1 + math.sqrt(v / u), 1 + math.sqrt(u / v)
        first, second = u > 0 or start1 > 0, v > 0 or start2 > 0
        return (2.0, 2.0) if first and second else (float(first), float(second))

    def weights(self, smoothness: Any, gamma: float, start: Start | None = None) -> Weights:
        """a and b, by the equalities for e1 and e2."""
        kappa = self.kappa(smoothness)
        e1, e2 = self.inner(smoothness), self.outer(smoothness, start)
        k1, k2 = self.factors(smoothness, kappa, start)
        b = gamma * k2 / (2 * (1 - kappa) * e2.A)
        return Weights((gamma * k1 * e1.weight / 2 + b * e2.feed) / ((1 - kappa) * e1.A), b)

    def slowest(self, smoothness: Any, start: Start | None = None) -> float:
        """The least A of the links that lose something or start with an error; inf where there is none."""
        links = (self.inner(smoothness), self.outer(smoothness, start))
        starts = self.errors_at_start(start) if start is not None else (0.0, 0.0)
        return min([e.A for e, at0 in zip(links, starts, strict=True) if e.loses or at0 > 0], default=math.inf)

    def kappa(self, smoothness: Any) -> float:
        """0 nonconvex, 1/2 else; with `split` the one where both terms of the PL step meet."""
        if self.regime == "nonconvex":
            return 0.0
        if not self.split or not self.slowest(smoothness) < math.inf:
            return 0.5
        mu, A = require_mu("theorem", smoothness, self.regime), self.slowest(smoothness)
        low, high = 0.0, 1.0
        for _ in range(200):
            middle = (low + high) / 2
            if not low < middle < high:
                break
            falls = self._largest(smoothness, middle, None)
            low, high = (middle, high) if middle * A / mu < falls else (low, middle)
        return low if low > 0 else high

    def _largest(self, smoothness: Any, kappa: float, start: Start | None) -> float:
        """A gamma with gamma L_minus + gamma^2 reach^2 <= 1, reach^2 = k1 u + k2 v."""
        u, v = self.coupling(smoothness, kappa, start)
        k1, k2 = self.factors(smoothness, kappa, start)
        reach = math.sqrt(u) + math.sqrt(v) if u > 0 and v > 0 else math.sqrt(k1 * u + k2 * v)
        L = smoothness.L_minus
        return 2 / (L + math.hypot(L, 2 * reach)) if self.root else 1 / (L + reach)

    # --- the theorem ---

    def stepsize(self, smoothness: Any, start: Start | None = None) -> float:
        """1/(L_minus + sqrt u + sqrt v) or the root; in the PL regimes at most kappa A/mu of every link that loses.

        start: one with an error on a link that loses nothing asks for the cap of that link, and for r = 1.
        """
        if self.regime == "convex":
            require_convex("stepsize", smoothness)
        kappa = self.kappa(smoothness)
        step = self._largest(smoothness, kappa, start)
        if self.regime in ("nonconvex", "convex"):
            return step
        mu = require_mu("stepsize", smoothness, self.regime)
        return min(step, kappa * self.slowest(smoothness, start) / mu)

    def rate(self, smoothness: Any, gamma: float) -> float | None:
        """1 - gamma mu in the PL regimes."""
        if self.regime in ("nonconvex", "convex"):
            return None
        return max(1 - gamma * require_mu("rate", smoothness, self.regime), 0.0)

    def potential(self, smoothness: Any, gamma: float, start: Start) -> float:
        """Phi^0."""
        a, b = self.weights(smoothness, gamma, start)
        e1, e2 = self.errors_at_start(start)
        what = "least value f_star" if self.regime != "nonconvex" else "infimum of f, or a lower bound: f bounded below"
        return given(start, "gap", f"f(x^0) less the {what}.") + a * e1 + b * e2

    def bound(self, smoothness: Any, gamma: float, start: Start, rounds: Any) -> np.ndarray:
        """nonconvex: (2/(gamma T)) Phi^0. PL: (1 - gamma mu)^T Phi^0.

        convex: [1/Phi^0 + T/(2 R^2/gamma + 2 Phi^0/A)]^-1, A the least of the links that lose something.
        """
        Phi0 = self.potential(smoothness, gamma, start)
        if self.regime == "nonconvex":
            return average(Phi0, gamma, rounds)
        if self.regime == "convex":
            slowest = self.slowest(smoothness, start)
            return last_iterate(Phi0, 2 * self.R_sq(smoothness, Phi0, start) / gamma + 2 * Phi0 / slowest, rounds)
        return contraction(Phi0, self.rate(smoothness, gamma) or 0.0, rounds)

    def R_sq(self, smoothness: Any, Phi0: float, start: Start) -> float:
        """As given; of a strongly convex f 2 Phi^0/mu. Raises ValueError where neither is known."""
        if start.R_sq is None and smoothness.mu is not None and smoothness.mu > 0:
            return 2 * Phi0 / smoothness.mu
        return given(start, "R_sq", "the convex bound assumes |x^t - x*| <= R for all t; f is not strongly convex.")

    def distance_sq(self, smoothness: Any, gamma: float, start: Start, rounds: Any) -> np.ndarray:
        """(2/mu) times the bound: what |x^T - x*|^2 obeys of a strongly convex f. Raises ValueError elsewhere."""
        if self.regime != "strongly_convex":
            raise ValueError(f"a bound on |x - x*|^2 needs regime='strongly_convex', this is {self.regime!r}.")
        mu = require_mu("distance_sq", smoothness, self.regime)
        return 2 / mu * self.bound(smoothness, gamma, start, rounds)

    def left(self, smoothness: Any, gamma: float, trace: Any) -> np.ndarray:
        """nonconvex: (1/T) sum_{t<T} |grad f(x^t)|^2. Else Phi^T, strongly convex: of max(delta, mu|x - x*|^2/2)."""
        if self.regime == "nonconvex":
            return mean_over_rounds(trace, "grad_sq_sum")
        a, b = self.weights(smoothness, gamma, self.start(smoothness, trace))
        e1, e2 = self.errors(smoothness, trace)
        delta = column(trace, "loss", math.nan) - trace.f_star
        if self.regime == "strongly_convex":
            delta = np.fmax(delta, smoothness.mu / 2 * column(trace, "distance_sq", math.nan))
        return delta + a * e1 + b * e2

    def start(self, smoothness: Any, trace: Any) -> Start:
        """With the weighted G where that is asked for, and the farthest x of the run where only convexity is known."""
        R_sq = known(np.max(column(trace, "farthest_sq", math.nan))) if self._farthest(smoothness) else None
        return (
            super()
            .start(smoothness, trace)
            ._replace(
                gap=gap(trace, needs_f_star=self.regime != "nonconvex"),
                G=float(self.G(smoothness, trace)[0]),
                R_sq=R_sq,
            )
        )

    def observed(self, smoothness: Any, trace: Any) -> str:
        """The R of the convex regime where no mu bounds it."""
        if not self._farthest(smoothness):
            return ""
        R_sq = known(np.max(column(trace, "farthest_sq", math.nan)))
        return "" if R_sq is None else f"|x^t - x*| <= {math.sqrt(R_sq):.6g} for all t is what the run showed"

    def _farthest(self, smoothness: Any) -> bool:
        return self.regime == "convex" and not (smoothness.mu is not None and smoothness.mu > 0)

    def rounding(self, first: float, loss: float) -> float:
        """Of f and of Phi, in the regimes that compare values of f."""
        return 0.0 if self.regime == "nonconvex" else ROUNDING * first + 1e-15 * abs(loss)

    def target(self, smoothness: Any, eps: float) -> float:
        """nonconvex: a mean of |grad f|^2 of eps^2. Else delta <= eps."""
        return eps * eps if self.regime == "nonconvex" else eps

    def G(self, smoothness: Any, trace: Any) -> np.ndarray:
        """mean |g_i - grad f_i|^2, or Gw = mean (Lbar/L_i)|g_i - grad f_i|^2. Raises ValueError without `errors`."""
        return errors_of_workers(self.spread, smoothness, trace)

    def L(self, smoothness: Any) -> float:
        """What multiplies R in E G+ <= (1 - A) G + B L^2 R."""
        return spread_of(self.spread, smoothness)


def moves(A: float, B: float, P: float | None, Q: float | None, at_start: float) -> tuple[float, float]:
    """(P, Q) of a link; P = 0 assumes that its error is 0 from the start, else what holds for any map stands in."""
    return movement(A, B) if P == 0 and at_start > 0 else movement(A, B, P, Q)


def spread_of(spread: str, smoothness: Any) -> float:
    """L_plus, L_pm or mean L_i."""
    return mean_L(smoothness) if spread == "weighted" else float(getattr(smoothness, spread))


def errors_of_workers(spread: str, smoothness: Any, trace: Any) -> np.ndarray:
    """G, or the weighted Gw of theory.md 3.0, (R,). Raises ValueError where the trace has no column of each worker."""
    if spread != "weighted":
        return column(trace, "G", math.nan)
    errors = getattr(trace, "errors", None)
    L_i = np.asarray(smoothness.L_i, float)
    if errors is None or np.shape(errors)[1] != len(L_i):
        raise ValueError(
            "gains=('weighted',) needs the errors |g_i - grad f_i(x)|^2 of each worker, trace.errors of shape (R, n); "
            f"got {None if errors is None else np.shape(errors)} for n = {len(L_i)}."
        )
    return np.mean(mean_L(smoothness) / L_i * np.asarray(errors, float), axis=1)


SMOOTH = "f is L_minus-smooth, mean |grad f_i(x) - grad f_i(y)|^2 <= L_plus^2 |x - y|^2 (L_pm, mean L_i: theory.md 3.0)"
REGIME_ASSUMES = {
    "nonconvex": "f is bounded below",
    "pl": "|grad f|^2 >= 2 mu (f - f*)",
    "strongly_convex": "f is mu-strongly convex",
    "convex": "f is convex with a minimiser x*, |x^t - x*| <= R",
}


@dataclasses.dataclass(frozen=True)
class OneLink(Links):
    """The uplink compressed, the server exact: u = B L^2/A, Phi = delta + a G, a = gamma/(2 (1 - kappa) A)."""

    A: float = 1.0
    B: float = 0.0

    @property
    def source(self) -> str:
        """By regime."""
        own = "derived here, docs/theory-one-link.md"
        paper = {"nonconvex": "3PC, nonconvex theorem", "convex": own}.get(self.regime, "EF21 and 3PC, PL theorem")
        return f"{paper}; {own}" if self.spread == "weighted" or self.split or self.root else paper

    @property
    def assumptions(self) -> str:
        """In words."""
        return f"{SMOOTH}; {REGIME_ASSUMES[self.regime]}; workers use a 3PC(A, B) map"

    def inner(self, smoothness: Any) -> Error:
        """G+ <= (1 - A) G + B L^2 R."""
        return Error(self.A, self.B * self.L(smoothness) ** 2)

    def outer(self, smoothness: Any, start: Start | None = None) -> Error:
        """None."""
        return NOTHING

    def errors_at_start(self, start: Start) -> tuple[float, float]:
        """(G, 0)."""
        return start.G, 0.0

    def errors(self, smoothness: Any, trace: Any) -> tuple[np.ndarray, np.ndarray]:
        """(G, 0)."""
        return self.G(smoothness, trace), np.zeros(len(trace.rounds))


@dataclasses.dataclass(frozen=True)
class TwoLinks(Links):
    """Constants of both links, each with its movement (P, Q)."""

    A: float = 1.0
    B: float = 0.0
    P: float | None = None
    Q: float | None = None
    A_M: float = 1.0
    B_M: float = 0.0
    P_M: float | None = None
    Q_M: float | None = None

    source = "derived here, docs/theory-both-links.md"

    @property
    def assumptions(self) -> str:
        """In words."""
        return f"{SMOOTH}; {REGIME_ASSUMES[self.regime]}; workers use a 3PC(A, B) map, the server an independent one"


@dataclasses.dataclass(frozen=True)
class Dual(TwoLinks):
    """(I) The server compresses the aggregate g: e1 = G, e2 = H = |g - mean g_i|^2."""

    def inner(self, smoothness: Any) -> Error:
        """G+ <= (1 - A) G + B L^2 R."""
        return Error(self.A, self.B * self.L(smoothness) ** 2)

    def outer(self, smoothness: Any, start: Start | None = None) -> Error:
        """H+ <= (1 - A_M) H + B_M (P G + Q L^2 R)."""
        P, Q = moves(self.A, self.B, self.P, self.Q, start.G if start else 0.0)
        return Error(self.A_M, self.B_M * Q * self.L(smoothness) ** 2, self.B_M * P)

    def errors_at_start(self, start: Start) -> tuple[float, float]:
        """(G, H)."""
        return start.G, start.H

    def errors(self, smoothness: Any, trace: Any) -> tuple[np.ndarray, np.ndarray]:
        """(G, H)."""
        return self.G(smoothness, trace), column(trace, "H", math.nan)


@dataclasses.dataclass(frozen=True)
class Primal(TwoLinks):
    """(II) The server compresses the model, shared as w: e1 = W = |w - x|^2, e2 = G at w. EF21-P with exact workers."""

    def inner(self, smoothness: Any) -> Error:
        """W+ <= (1 - A_M) W + B_M R; |grad f(w) - grad f(x)|^2 <= L_minus^2 W."""
        return Error(self.A_M, self.B_M, weight=smoothness.L_minus**2)

    def outer(self, smoothness: Any, start: Start | None = None) -> Error:
        """G+ <= (1 - A) G + B L^2 |w+ - w|^2, and E|w+ - w|^2 <= P_M W + Q_M R."""
        P_M, Q_M = moves(self.A_M, self.B_M, self.P_M, self.Q_M, start.W if start else 0.0)
        BL2 = self.B * self.L(smoothness) ** 2
        return Error(self.A, BL2 * Q_M, BL2 * P_M)

    def errors_at_start(self, start: Start) -> tuple[float, float]:
        """(W, G)."""
        return start.W, start.G

    def errors(self, smoothness: Any, trace: Any) -> tuple[np.ndarray, np.ndarray]:
        """(W, G)."""
        return column(trace, "W", 0.0), self.G(smoothness, trace)
