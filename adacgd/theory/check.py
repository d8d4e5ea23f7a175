"""A theorem held against a run: left side over right side at every recorded T.

The only room of `theory` that meets a trace, which it reads by its fields.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from adacgd.theory.assumptions import require_smoothness
from adacgd.theory.choice import choose
from adacgd.theory.statement import Start, Theorem

SLACK = 1e-9  # by which a computed ratio may pass 1
SEEN = 1e-6  # by which an inequality may pass 1 along a run before it counts as broken
SIGNIFICANT = 3.0  # standard errors by which a mean over keys must pass 1
INEQUALITIES = {
    "three_point": "the three point inequality of the uplink",
    "downlink": "the three point inequality of the downlink",
    "L_minus": "|grad f(x) - grad f(y)| <= L_minus |x - y|",
    "L_plus": "mean |grad f_i(x) - grad f_i(y)|^2 <= L_plus^2 |x - y|^2",
}


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
    broken: tuple[str, ...] = ()  # visible assumptions that a run passed, of INEQUALITIES
    observed: str = ""  # what the theorem assumes and the run could only show
    keys: int = 1  # runs averaged
    standard_errors: np.ndarray | None = None  # of the ratios, with several keys
    source: str = ""  # of the theorem
    assumptions: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        worst = f"worst ratio {self.worst_ratio:.6g} at round {self.worst_round}"
        words = [
            "holds" if self.ok else "does not hold",
            "no rounds" if self.worst_round is None else worst,
            f"mean of {self.keys} keys" if self.keys > 1 else "",
            self.reason,
            self.observed,
        ]
        return f"<Check {self.regime}: {', '.join(word for word in words if word)}>"


def check(trace: Any, regime: str = "nonconvex", gains: tuple[str, ...] = ()) -> Check:
    """Left over right of the theorem of `regime` along `trace`, or of the mean over a list of traces.

    The theorem is `theorem(regime, ...)` of the constants, form, momentum and prox that the trace carries.
    "nonconvex": (1/T) sum_{t<T} |grad f(x^t)|^2 against (2/(gamma T))(f(x^0) - inf f + a G^0 + b H^0), the sum over
    every round whatever was recorded. "pl", "strongly_convex": f(x^T) - f* + a G^T + b H^T against (1 - gamma mu)^T
    times the same at 0. "convex", "tight": docs/theory-one-link.md, docs/theory-tight.md.
    For random mechanisms the theorems speak of the mean over keys; one run may pass 1 and prove nothing. Several traces
    that differ in the key only give the ratio of the means; it breaks the bound where it passes 1 by more than 3 of its
    standard errors. A run cut short counts to where the shortest ends.
    A step above the theorem's gives the ratios, and ok = False with that reason. `broken` says which of the
    inequalities that a run with verify=True can see was passed; of random maps one draw may pass the first.
    Raises ValueError for a float32 run (what would be certified is rounding) and for an assumption that fails.
    """
    traces = list(trace) if isinstance(trace, list | tuple) else [trace]
    for one in traces:
        _require_trace(one)
    first = traces[0] if traces else None
    if first is None or any(not _alike(first, other) for other in traces[1:]):
        raise ValueError(
            "check(trace=[...]) averages runs that differ in the key only: at least one, all of one problem, step, "
            f"form and recording interval; got {len(traces)}."
        )
    smoothness, gamma = first.smoothness, float(first.stepsize)
    own = choose(
        "check",
        regime,
        first.uplink_constants,
        first.downlink_constants,
        form=getattr(first, "form", "dual"),
        gains=gains,
        momentum=float(getattr(first, "momentum", 0.0)),
        prox=bool(getattr(first, "prox", False)),
    )
    require_smoothness("check", smoothness)
    rows = min(len(one.rounds) for one in traces)
    start = _mean([own.start(smoothness, one) for one in traces])
    allowed = own.stepsize(smoothness, start)
    right = own.bound(smoothness, gamma, start, first.rounds[:rows])
    at_zero = float(own.bound(smoothness, gamma, start, np.zeros(1))[0])
    right = np.maximum(right, own.rounding(at_zero, float(first.loss[0])))
    left = np.array([own.left(smoothness, gamma, one)[:rows] for one in traces])
    counted = first.rounds[:rows] >= 1
    rounds = first.rounds[:rows][counted]
    ratios = _over(left.mean(axis=0), right)[counted]
    errors = _over(left.std(axis=0, ddof=1) / math.sqrt(len(traces)), right)[counted] if len(traces) > 1 else None
    worst, where = _worst(ratios, rounds)
    multiple = gamma / allowed
    broken = _broken(traces)
    reason = _reason(own, multiple, traces) or _beyond(ratios, errors, rounds)
    if reason and broken:
        reason = f"{reason}; {'; '.join(broken.values())}"
    return Check(
        ok=not reason,
        regime=regime,
        ratios=ratios,
        rounds=rounds,
        worst_ratio=worst,
        worst_round=where,
        allowed=allowed,
        multiple=multiple,
        reason=reason,
        broken=tuple(broken),
        observed=own.observed(smoothness, first) if len(traces) == 1 or start.R_sq is None else _farthest(start),
        keys=len(traces),
        standard_errors=errors,
        source=own.source,
        assumptions=own.assumptions,
    )


def _reason(own: Theorem, multiple: float, traces: list[Any]) -> str:
    """Why no bound could hold, whatever the ratios are."""
    if multiple > 1 + 1e-12:
        return f"the step is {multiple:.6g} times what the theorem allows"
    if own.only_at_the_step and multiple < 1 - 1e-12:
        return f"the step is {multiple:.6g} times the only one that the theorem speaks of"
    diverged = [one.outcome_round for one in traces if one.status == "diverged"]
    return f"the run diverged at round {min(diverged)}" if diverged else ""


def _beyond(ratios: np.ndarray, errors: np.ndarray | None, rounds: np.ndarray) -> str:
    """Where the bound is broken: past 1, and with several keys by more than their scatter explains."""
    allowance = SLACK if errors is None else SLACK + SIGNIFICANT * errors
    excess = ratios - 1 - allowance
    if not ratios.size or np.all(excess <= 0):
        return ""
    k = int(np.argmax(np.where(np.isnan(excess), np.inf, excess)))
    scatter = "" if errors is None else f" (standard error {errors[k]:.2g})"
    return f"the bound is broken at round {rounds[k]}: left over right is {ratios[k]:.6g}{scatter}"


def _broken(traces: list[Any]) -> dict[str, str]:
    """name -> sentence, of every inequality that a run of `traces` saw broken; the earliest first."""
    found: list[tuple[int, str, str]] = []
    for name, words in INEQUALITIES.items():
        factors = [float(getattr(getattr(one, "slack", None), name, 0.0)) for one in traces]
        factor = max(factors)
        if not factor <= 1 + SEEN:
            at = getattr(getattr(traces[factors.index(factor)], "slack_rounds", None), name, None)
            when = "" if at is None else f" at round {int(at)}"
            found.append((10**18 if at is None else int(at), name, f"{words} is broken{when} by a factor {factor:.3g}"))
    return {name: sentence for _, name, sentence in sorted(found, key=lambda one: one[0])}


def _require_trace(trace: Any) -> None:
    for name in ("precision", "uplink_constants", "grad_sq_sum"):
        if not hasattr(trace, name):
            raise TypeError(
                "check(trace=...) must be one Trace, as simulate and grid[i, j] give it, or a list of such; got "
                f"{type(trace).__name__}."
            )
    if trace.precision != "float64":
        raise ValueError(
            f"check(trace): a bound cannot be certified on a {trace.precision} run, where rounding is as large as what "
            'is compared; run in double precision: jax.config.update("jax_enable_x64", True) and dtype="float64".'
        )
    if not getattr(trace, "exact_gradients", True):
        raise ValueError(
            "check(trace): this run drew mini-batches, and the theorems here assume the full gradients of each worker; "
            "no bound with their variance is proved here."
        )


def _alike(one: Any, other: Any) -> bool:
    """Of one problem and method, as far as the columns tell."""
    rows = min(len(one.rounds), len(other.rounds))
    same = ("stepsize", "uplink_constants", "downlink_constants", "f_star", "f_lower")
    return (
        all(getattr(one, name) == getattr(other, name) for name in same)
        and all(getattr(one, name, None) == getattr(other, name, None) for name in ("form", "momentum", "prox"))
        and bool(np.all(one.rounds[:rows] == other.rounds[:rows]))
        and one.smoothness.L_minus == other.smoothness.L_minus
    )


def _mean(starts: list[Start]) -> Start:
    """The mean of each field, and the largest R: the bounds are linear or concave in the rest."""
    if len(starts) == 1:
        return starts[0]
    fields: dict[str, Any] = {}
    for name in Start._fields:
        values = [getattr(start, name) for start in starts]
        together = np.max if name == "R_sq" else np.mean
        fields[name] = None if any(value is None for value in values) else float(together(values))
    return Start(**fields)


def _farthest(start: Start) -> str:
    return f"|x^t - x*| <= {math.sqrt(start.R_sq or 0.0):.6g} for all t is what the runs showed"


def _over(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left / right, with 0/0 = 0: a start at the optimum satisfies every bound."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(left == 0, 0.0, left / right)


def _worst(ratios: np.ndarray, rounds: np.ndarray) -> tuple[float, int | None]:
    if ratios.size == 0:
        return 0.0, None
    where = int(np.argmax(np.where(np.isnan(ratios), np.inf, ratios)))
    return float(ratios[where]), int(rounds[where])
