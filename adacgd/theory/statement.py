"""What a theorem is here: a step, a right-hand side at each T, and how its left-hand side is read off a run."""

import abc
import math
from typing import Any, NamedTuple

import numpy as np

ROUNDING = 1e-13  # of the potential at the start: below it only rounding is compared (theory.md pitfall 19)
ROUNDS_LIMIT = 1 << 62  # a bound that is not below eps by then does not get there


class Start(NamedTuple):
    """The start of a run in plain numbers; what a theorem does not use may be left out."""

    gap: float | None = None  # f(x^0) - inf f; of f + r with a prox
    G: float = 0.0  # mean |g_i^0 - grad f_i(x^0)|^2, at w^0 in the primal form; weighted with gains=("weighted",)
    H: float = 0.0  # |g^0 - mean g_i^0|^2, dual form
    W: float = 0.0  # |w^0 - x^0|^2, primal form
    distance_sq: float | None = None  # |x^0 - x*|^2
    S: float | None = None  # mean |h_i^0 - grad f_i(x*)|^2 of DIANA, mean |grad f_i(x*)|^2 of DCGD
    grad_sq: float | None = None  # |grad f(x^0)|^2
    R_sq: float | None = None  # R^2, R >= |x^t - x*| for all t, where only convexity is known


class Theorem(abc.ABC):
    """A theorem in the constants of a method; `smoothness` brings those of the problem.

    gamma is the step of the run, at most `stepsize(smoothness)`. E is the mean over keys for random mechanisms.
    """

    only_at_the_step = False  # the theorem speaks of gamma = stepsize(smoothness) and of no smaller one

    @property
    @abc.abstractmethod
    def source(self) -> str:
        """Paper and theorem, or "derived here" and the page of the proof, or "recalled"."""

    @property
    @abc.abstractmethod
    def assumptions(self) -> str:
        """In words."""

    @property
    @abc.abstractmethod
    def left_side(self) -> str:
        """What is bounded, in words."""

    @abc.abstractmethod
    def stepsize(self, smoothness: Any, start: Start | None = None) -> float:
        """The largest gamma allowed. start: None is an exact one; another can ask for more (links.py).

        Raises ValueError that names the assumption that fails.
        """

    def rate(self, smoothness: Any, gamma: float) -> float | None:
        """The factor a round by which the bound contracts; None where it is not linear."""
        return None

    @abc.abstractmethod
    def bound(self, smoothness: Any, gamma: float, start: Start, rounds: Any) -> np.ndarray:
        """The right-hand side after each of `rounds`, float64 of its shape; inf where it says nothing."""

    @abc.abstractmethod
    def left(self, smoothness: Any, gamma: float, trace: Any) -> np.ndarray:
        """The left-hand side at each row of `trace`, (R,); 0 at T = 0 where a mean over rounds is bounded."""

    def start(self, smoothness: Any, trace: Any) -> Start:
        """The start of `trace`, as `bound` takes it."""
        return Start(
            gap=gap(trace),
            G=float(trace.G[0]),
            H=float(trace.H[0]),
            W=float(column(trace, "W", 0.0)[0]),
            distance_sq=known(column(trace, "distance_sq", math.nan)[0]),
            S=known(column(trace, "S", math.nan)[0]),
            grad_sq=float(trace.grad_sq[0]),
        )

    def observed(self, smoothness: Any, trace: Any) -> str:
        """What `start` took from the run where the theorem assumes it; "" for nothing."""
        return ""

    def rounding(self, first: float, loss: float) -> float:
        """What the left side may be by rounding alone, given the bound and the loss at the start."""
        return 0.0

    def target(self, smoothness: Any, eps: float) -> float:
        """The value of `bound` that guarantees eps."""
        return eps

    def iterations(self, smoothness: Any, gamma: float, start: Start, eps: float) -> int | float:
        """The least T at which `bound` guarantees eps, 0 if the start does; math.inf if none does.

        Found by bisection over T: every bound here decreases. Raises ValueError unless eps > 0.
        """
        if not eps > 0:
            raise ValueError(f"iterations_to(eps=...) must be above 0, got {eps!r}.")
        target = self.target(smoothness, eps)
        enough = lambda T: float(self.bound(smoothness, gamma, start, np.array([T]))[0]) <= target
        if enough(0):
            return 0
        high = 1
        while not enough(high):
            high *= 2
            if high > ROUNDS_LIMIT:
                return math.inf
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high


# --- the three shapes of a right-hand side ----------------------------------------------------------------------------


def average(Phi0: float, gamma: float, rounds: Any) -> np.ndarray:
    """2 Phi0/(gamma T): what a mean over T rounds of a squared gradient is bounded by; inf at T = 0 unless Phi0 = 0."""
    T = np.asarray(rounds, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(T > 0, 2 * Phi0 / (gamma * T), math.inf if Phi0 > 0 else 0.0)


def contraction(Phi0: float, factor: float, rounds: Any) -> np.ndarray:
    """factor^T Phi0, 0 <= factor <= 1; with 0^0 = 1."""
    return Phi0 * np.power(factor, np.asarray(rounds, float))


def last_iterate(Phi0: float, slowness: float, rounds: Any) -> np.ndarray:
    """[1/Phi0 + T/slowness]^{-1}, written so that Phi0 = 0 is no division."""
    T = np.asarray(rounds, float)
    return Phi0 * slowness / (slowness + T * Phi0) if Phi0 > 0 else np.zeros(T.shape)


# --- reading a trace and a start --------------------------------------------------------------------------------------


def column(trace: Any, name: str, default: float) -> np.ndarray:
    """A column of `trace` in float64, or (R,) of `default` where the trace has none."""
    found = getattr(trace, name, None)
    return np.full(len(trace.rounds), default) if found is None else np.asarray(found, float)


def mean_over_rounds(trace: Any, name: str) -> np.ndarray:
    """A running sum over the T of each row; 0 at T = 0."""
    T = np.asarray(trace.rounds, float)
    return np.where(T > 0, column(trace, name, math.nan) / np.maximum(T, 1), 0.0)


def gap(trace: Any, needs_f_star: bool = False) -> float | None:
    """f(x^0) less f* where known, else less the lower bound; None where neither is a number."""
    f_inf = trace.f_star if needs_f_star or trace.f_star is not None else trace.f_lower
    return None if f_inf is None or not math.isfinite(f_inf) else float(trace.loss[0]) - f_inf


def known(value: Any) -> float | None:
    """None for NaN."""
    return None if math.isnan(value) else float(value)


def given(start: Start, name: str, remedy: str) -> float:
    """A field of `start`. Raises ValueError where it is None."""
    value = getattr(start, name)
    if value is None:
        raise ValueError(f"Start({name}=...) is needed by this theorem: {remedy}")
    return float(value)
