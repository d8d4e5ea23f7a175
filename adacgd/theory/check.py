"""A theorem held against a run: left side over right side at every recorded T.

The only room of `theory` that meets a trace, which it reads by its fields.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from adacgd.theory.constants import movement
from adacgd.theory.stepsizes import coupling, require_mu, stepsize

ROUNDING = 1e-13  # of the potential at the start: below it only rounding is compared (theory.md pitfall 19)
SLACK = 1e-9  # by which a computed ratio may pass 1


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Check:
    """The verdict: `ok`, and why not where not."""

    ok: bool
    regime: str
    ratios: np.ndarray  # left / right at `rounds`; 1 is the bound
    rounds: np.ndarray  # the recorded T >= 1
    worst_ratio: float  # the largest; NaN if one is, 0 for a run of no rounds
    worst_round: int | None
    allowed: float  # the theorem's step
    multiple: float  # the run's step over it
    reason: str  # "" where ok

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        worst = f"worst ratio {self.worst_ratio:.6g} at round {self.worst_round}"
        words = [
            "holds" if self.ok else "does not hold",
            "no rounds" if self.worst_round is None else worst,
            self.reason,
        ]
        return f"<Check {self.regime}: {', '.join(word for word in words if word)}>"


def check(trace: Any, regime: str = "nonconvex") -> Check:
    """Left over right of the theorem of `regime` along `trace` (theory.md 3.1, with a downlink 3.4 (I)).

    "nonconvex": (1/T) sum_{t<T} |grad f(x^t)|^2 against 2 (f(x^0) - inf f)/(gamma T) + G^0/(A T), the sum over every
    round whatever was recorded. "pl", "strongly_convex": f(x^T) - f* + a G^T + b H^T against (1 - gamma mu)^T times the
    same at 0. For random mechanisms the theorems speak of the mean over keys; one run may pass 1 and prove nothing.
    A step above the theorem's gives the ratios, and ok = False with that reason.
    Raises ValueError for a float32 run (what would be certified is rounding) and for an assumption that fails.
    """
    for name in ("precision", "uplink_constants", "grad_sq_sum"):
        if not hasattr(trace, name):
            raise TypeError(
                f"check(trace=...) must be one Trace, as simulate and grid[i, j] give it; got {type(trace).__name__}."
            )
    if trace.precision != "float64":
        raise ValueError(
            f"check(trace): a bound cannot be certified on a {trace.precision} run, where rounding is as large as what "
            'is compared; run in double precision: jax.config.update("jax_enable_x64", True) and dtype="float64".'
        )
    allowed = stepsize(trace.smoothness, trace.uplink_constants, regime, trace.downlink_constants)
    ratios = _nonconvex(trace) if regime == "nonconvex" else _pl(trace, regime)
    ratios = ratios[trace.rounds >= 1]
    rounds = trace.rounds[trace.rounds >= 1]
    worst, where = _worst(ratios, rounds)
    multiple = trace.stepsize / allowed
    reason = ""
    if multiple > 1 + 1e-12:
        reason = f"the step is {multiple:.6g} times what the theorem allows"
    elif trace.status == "diverged":
        reason = f"the run diverged at round {trace.outcome_round}"
    elif not worst <= 1 + SLACK:
        reason = f"the bound is broken at round {where}: left over right is {worst:.6g}"
    return Check(not reason, regime, ratios, rounds, worst, where, allowed, multiple, reason)


def _nonconvex(trace: Any) -> np.ndarray:
    """sum_{t<T} |grad f|^2 over 2 D0/gamma + G^0/A; with a downlink and an exact start G^0 = H^0 = 0."""
    f_inf = trace.f_lower if trace.f_star is None else trace.f_star
    if not math.isfinite(f_inf):
        raise ValueError(
            "check(regime='nonconvex') assumes that f is bounded below; this problem gives f_lower = -inf."
        )
    D0 = float(trace.loss[0]) - f_inf
    right = 2 * D0 / trace.stepsize + float(trace.G[0]) / trace.uplink_constants.A
    return _over(trace.grad_sq_sum, np.full(len(trace.rounds), right))


def _pl(trace: Any, regime: str) -> np.ndarray:
    """Phi^T over (1 - gamma mu)^T Phi^0, Phi = f - f* + a G + b H; a = gamma/A, b = 0 without a downlink."""
    mu = require_mu("check", trace.smoothness, regime)
    if trace.f_star is None:
        raise ValueError(f"check(regime={regime!r}) needs the least value f_star; this problem does not know it.")
    a, b = _weights(trace.uplink_constants, trace.downlink_constants, trace.stepsize)
    Phi = trace.loss.astype(float) - trace.f_star + a * trace.G.astype(float) + b * trace.H.astype(float)
    rate = max(1 - trace.stepsize * mu, 0.0)
    right = rate ** trace.rounds.astype(float) * Phi[0]
    return _over(Phi, np.maximum(right, ROUNDING * Phi[0] + 1e-15 * abs(float(trace.loss[0]))))


def _weights(constants: Any, downlink: Any, gamma: float) -> tuple[float, float]:
    """a and b of the Lyapunov function in the PL regimes (theory.md 3.1 and 3.4 (I))."""
    if downlink is None or downlink.B == 0:
        return gamma / constants.A, 0.0
    u, v2 = coupling(constants, downlink, "pl")
    P, _ = movement(*constants)
    if u == 0:  # exact workers: the term of G is absent
        return 0.0, gamma / downlink.A
    r = math.sqrt(u / v2)
    b = gamma * (1 + r) / downlink.A
    return gamma / constants.A * ((1 + 1 / r) + 2 * (1 + r) * P * downlink.B / downlink.A), b


def _over(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left / right, with 0/0 = 0: a start at the optimum satisfies every bound."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(left == 0, 0.0, left / right)


def _worst(ratios: np.ndarray, rounds: np.ndarray) -> tuple[float, int | None]:
    if ratios.size == 0:
        return 0.0, None
    where = int(np.argmax(np.where(np.isnan(ratios), np.inf, ratios)))
    return float(ratios[where]), int(rounds[where])
