"""Side-by-side timing: everything compared runs interleaved in one process, medians decide, noise is told."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

NOISY = 0.30  # a base that varies by more than this leaves a verdict open


@dataclasses.dataclass(frozen=True)
class Ratio:
    """One target and what was measured."""

    id: str
    what: str
    target: float
    measured: float
    spread: float  # of the base: (upper - lower quartile) / median

    @property
    def settled(self) -> bool:
        """Whether the base is steady enough for a verdict."""
        return self.spread <= NOISY

    @property
    def verdict(self) -> str:
        """`holds`, `does not hold`, or `not judged` where the base itself is too noisy."""
        if not self.settled:
            return f"not judged (base varies by {self.spread:.0%})"
        return "holds" if self.measured <= self.target else "does not hold"


def interleaved(
    work: dict[str, Callable[[], Any]], repeats: int = 9, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each, measured in turn `repeats` times after one call to compile and warm up.

    clock: `time.process_time` counts what all threads worked, which others on the machine do not lengthen.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for call in work.values():
        jax.block_until_ready(call())
    for _ in range(repeats):
        for name, call in work.items():
            began = clock()
            jax.block_until_ready(call())
            seconds[name].append(clock() - began)
    return seconds


def ratio(id: str, what: str, target: float, seconds: dict[str, list[float]], of: str, base: str) -> Ratio:
    """The median of the pairwise quotients: what runs in turn shares its noise."""
    quotients = [a / b for a, b in zip(seconds[of], seconds[base], strict=True)]
    lower, middle, upper = statistics.quantiles(seconds[base], n=4)
    return Ratio(id, what, target, statistics.median(quotients), (upper - lower) / middle)
