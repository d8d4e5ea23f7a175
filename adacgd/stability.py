"""How far beyond theory a step may go: the largest stable multiple of the theorem's step, by sweeps of whole runs."""

import dataclasses
import math
from typing import Any

import numpy as np

from adacgd.grid import sweep
from adacgd.host import require_run

A_SWEEP = 16  # multiples tried at once
LARGEST = 2.0**40  # no step is tried beyond this multiple


@dataclasses.dataclass(frozen=True, eq=False)
class Edge:
    """Between `stable` and `unstable` the method loses its hold; all multiples of `gamma`, the theorem's step.

    A run counts as stable if it does not diverge and its |grad f(x^t)|^2 is less in the second half of the rounds than
    in the first, on average: where f is bounded a step that is too long oscillates and does not diverge.
    """

    gamma: float  # the theorem's step
    stable: float  # every multiple tried up to this one was stable; 0 where none was
    unstable: float  # the first that was not; infinity where none was found
    multiples: np.ndarray  # (m,) all that were tried, in order
    grad_sq: np.ndarray  # (m,) |grad f|^2 at the end of each; NaN and infinity as they came
    outcomes: tuple[str, ...]  # (m,) "settles" | "oscillates" | "diverges"

    def __repr__(self) -> str:
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
    **options: Any,
) -> Edge:
    """The stability edge of a method on a problem.

    Powers of two from 1/8 up are swept until one is unstable, then the bracket is filled again and again until its ends
    differ by at most `precision`, relatively. What is found is the *first* loss of stability: beyond it there may be
    steps that happen to be stable again, as the picture shows. regime: whose step the multiples are of. options: those
    of `sweep`, such as form, init, momentum, x0; one key for all.
    Raises ValueError that names the argument.
    """
    require_run("stability_edge", rounds, 1, None)
    if rounds < 4:
        raise ValueError(f"stability_edge(rounds=...) compares two halves of a run; at least 4, got {rounds}.")
    if isinstance(precision, bool) or not isinstance(precision, int | float) or not 1e-6 <= precision < 1:
        raise ValueError(f"stability_edge(precision=...) must be in [1e-6, 1), got {precision!r}.")
    seen: dict[float, tuple[str, float]] = {}
    gamma = math.nan

    def swept(multiples: Any) -> None:
        nonlocal gamma
        fresh = [float(m) for m in multiples if float(m) not in seen]
        half = max(rounds // 2, 1)
        grid = sweep(
            problem, uplink, downlink, multiples=fresh, regime=regime, rounds=2 * half, record_every=half, **options
        )
        for i, multiple in enumerate(fresh):
            trace = grid[i]
            gamma = trace.stepsize / multiple
            seen[multiple] = outcome(trace), float(trace.grad_sq[-1])

    def bracket() -> tuple[float, float]:
        """The largest multiple up to which all are stable, and the next that was tried."""
        low = 0.0
        for multiple in sorted(seen):
            if seen[multiple][0] != "settles":
                return low, multiple
            low = multiple
        return low, math.inf

    at = 2.0**-3
    while bracket()[1] == math.inf and at <= LARGEST:
        swept(at * 2.0 ** np.arange(A_SWEEP))
        at *= 2.0**A_SWEEP
    low, high = bracket()
    while 0 < low and high < math.inf and high / low > 1 + precision:
        swept(low * (high / low) ** (np.arange(1, A_SWEEP + 1) / (A_SWEEP + 1)))
        low, high = bracket()
    multiples = np.array(sorted(seen))
    outcomes, ends = zip(*(seen[m] for m in multiples), strict=True)
    return Edge(gamma, low, high, multiples, np.array(ends), outcomes)


def outcome(trace: Any) -> str:
    """What became of a run with rows at 0, half way and the end."""
    if trace.status == "diverged":
        return "diverges"
    first = trace.grad_sq_sum[1]
    return "settles" if trace.grad_sq_sum[-1] - first < first else "oscillates"
