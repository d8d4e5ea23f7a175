"""How far beyond theory a step may go: the largest stable multiple of the theorem's step, by sweeps of whole runs."""

import dataclasses
import math
from typing import Any

import numpy as np

from adacgd.drive import Progress
from adacgd.grid import sweep
from adacgd.request import require_run

A_SWEEP = 16  # multiples tried at once
FIRST = -3  # the search begins at this power of two of the theorem's step,
LOWEST, HIGHEST = -19, 40  # and tries none beyond these
DESCENT = 0.25  # share of gamma sum |grad f|^2 by which f falls in a run that still settles; gradient flow has 1


@dataclasses.dataclass(frozen=True, eq=False)
class Edge:
    """Between `stable` and `unstable` the method loses its hold; all multiples of `gamma`, the theorem's step.

    A run counts as stable, it "settles", where `outcome` says so: not diverging is not enough, for where |grad f| is
    bounded a step that is too long oscillates for ever and never diverges.
    """

    gamma: float  # the theorem's step
    stable: float  # every multiple tried up to this one was stable; 0 where none was
    unstable: float  # the first that was not; infinity where none was found
    multiples: np.ndarray  # (m,) all that were tried, in order
    grad_sq: np.ndarray  # (m,) |grad f|^2 at the end of each; NaN and infinity as they came
    outcomes: tuple[str, ...]  # (m,) "settles" | "oscillates" | "diverges"

    def __repr__(self) -> str:
        if self.unstable == math.inf:
            found = f"stable at every step tried, up to {self.stable:.4g} times theory"
        elif self.stable == 0:
            found = f"unstable already at {self.unstable:.4g} times theory, the shortest step tried"
        else:
            found = f"stable up to {self.stable:.4g} times theory, not at {self.unstable:.4g}"
        return f"<Edge {found}, {len(self.multiples)} steps tried>"


def stability_edge(
    problem: Any,
    uplink: Any,
    downlink: Any = None,
    *,
    regime: str = "nonconvex",
    rounds: int = 1000,
    precision: float = 0.02,
    key: Any = 0,
    x0: Any = None,
    form: str = "dual",
    init: str = "exact",
    momentum: float = 0.0,
    oracle: Any = None,
    progress: Progress | None = None,
) -> Edge:
    """The stability edge of a method on a problem.

    Powers of two of the theorem's step are swept, from 1/8 up to 2^40, until one is unstable (and below 1/8, down to
    2^-19, where all are), then the bracket is filled again and again until its ends differ by at most `precision`,
    relatively. What is found is the *first* loss of stability among the steps tried: beyond it there may be steps that
    happen to be stable again, as `Edge.outcomes` tells. What needs more than `rounds` to lose its hold is not seen, and
    gradients drawn at random (`oracle`) never settle below their noise, whatever the step.

    regime: whose step the multiples are of. rounds: of each run, >= 8; a multiple of 4, or up to three are left out.
    key: one for all runs. progress: called with (runs done, runs foreseen). The rest as in `simulate`; multiples are of
    the step that the theorem of that form and momentum allows. The same arguments give the same edge.
    Raises ValueError or TypeError that names the argument.
    """
    if isinstance(uplink, list | tuple):
        raise TypeError("stability_edge(uplink=...) takes one method; call it for each of the list.")
    require_run("stability_edge", rounds, 1, None)
    if rounds < 8:
        raise ValueError(f"stability_edge(rounds=...) compares the quarters of a run; at least 8, got {rounds}.")
    if isinstance(precision, bool) or not isinstance(precision, int | float) or not 1e-6 <= precision < 1:
        raise ValueError(f"stability_edge(precision=...) must be in [1e-6, 1), got {precision!r}.")
    given = {"regime": regime, "keys": [key], "x0": x0}
    given |= {"form": form, "init": init, "momentum": momentum, "oracle": oracle}
    quarter = rounds // 4
    seen: dict[float, Any] = {}  # multiple -> trace, rows at 0 and the four quarters

    def swept(multiples: Any) -> None:
        fresh = [float(m) for m in multiples if float(m) not in seen]
        grid = sweep(problem, uplink, downlink, multiples=fresh, rounds=4 * quarter, record_every=quarter, **given)
        seen.update({multiple: runs[0] for multiple, runs in zip(fresh, grid, strict=True)})
        if progress is not None:
            progress(len(seen), len(seen) + A_SWEEP * fills(*bracket(seen), precision))

    swept(powers(FIRST))
    gamma = seen[1.0].stepsize
    if not seen[1.0].grad_sq[0] > 0:
        where = "problem" if x0 is None else "x0"
        raise ValueError(f"stability_edge({where}=...): grad f(x^0) = 0, where every step is stable; start elsewhere.")
    while (high := bracket(seen)[1]) == math.inf and math.log2(max(seen)) < HIGHEST:
        swept(powers(round(math.log2(max(seen))) + 1))
    if bracket(seen)[0] == 0:
        swept(powers(LOWEST))
    while fills(*bracket(seen), precision):
        low, high = bracket(seen)
        swept(low * (high / low) ** (np.arange(1, A_SWEEP + 1) / (A_SWEEP + 1)))
    multiples = sorted(seen)
    ends = np.array([seen[m].grad_sq[-1] for m in multiples], float)
    return Edge(gamma, *bracket(seen), np.array(multiples), ends, tuple(outcome(seen[m]) for m in multiples))


def powers(first: int) -> np.ndarray:
    """2^first and the powers after it, a sweep of them at most."""
    return 2.0 ** np.arange(first, min(first + A_SWEEP, HIGHEST + 1))


def bracket(seen: dict[float, Any]) -> tuple[float, float]:
    """The largest multiple up to which all are stable, 0 if none is, and the next that was tried, or infinity."""
    low = 0.0
    for multiple in sorted(seen):
        if outcome(seen[multiple]) != "settles":
            return low, multiple
        low = multiple
    return low, math.inf


def fills(low: float, high: float, precision: float) -> int:
    """Sweeps until the ends of the bracket are as near as asked for: each leaves a 17th of it, in logarithms."""
    if low == 0 or high == math.inf or high / low <= 1 + precision:
        return 0
    return math.ceil(math.log(math.log(high / low) / math.log1p(precision)) / math.log(A_SWEEP + 1))


def outcome(trace: Any) -> str:
    """What became of a run with rows at 0 and after each quarter: "settles", "oscillates" or "diverges".

    It settles if the sum of |grad f|^2 over the last quarter is at most half that over the second (the first is left to
    what the start does), which a decay as slow as 1/t passes; or, for steps too short to get that far, if over the
    second half f falls by a share of gamma sum |grad f|^2, the descent lemma's 1 - gamma L/2, while a cycle or a cloud
    leaves f where it was; or if what is left, on average or at the end, is
    within the rounding of the sums and of f.
    """
    if trace.status == "diverged":
        return "diverges"
    _, second, third, last = np.diff(trace.grad_sq_sum)
    eps = np.finfo(trace.precision).eps
    fell = trace.loss[2] - trace.loss[4] + 64 * eps * abs(trace.loss[2])
    rounding = 64 * eps * trace.grad_sq_sum[4]
    ended = min(last, trace.grad_sq[4] * (trace.rounds[4] - trace.rounds[3])) <= rounding
    descends = fell >= DESCENT * trace.stepsize * (third + last)
    return "settles" if last <= second / 2 or descends or ended else "oscillates"
