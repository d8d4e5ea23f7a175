"""A row of the table of benchmarks: what was aimed at, what was measured, and what that means."""

import dataclasses

from benchmarks.timing import Ratio, ratio


@dataclasses.dataclass(frozen=True)
class Row:
    """One line. verdict: `holds`, `does not hold`, or `not judged (why)`."""

    id: str
    what: str
    target: str
    measured: str
    verdict: str
    detail: str = ""


def judged(id: str, what: str, measured: float, target: float, detail: str = "", at_least: bool = False) -> Row:
    """A number against the most, or the least, that it may be."""
    good = measured >= target if at_least else measured <= target
    sign = ">=" if at_least else "<="
    return Row(id, what, f"{sign} {target}", f"{measured:.3f}", "holds" if good else "does not hold", detail)


def as_row(one: Ratio, at_least: bool = False) -> Row:
    """A ratio of times, left open where its base is too noisy."""
    row = judged(one.id, one.what, one.measured, one.target, f"base varies by {one.spread:.0%}", at_least)
    return row if one.settled else dataclasses.replace(row, verdict=f"not judged ({row.detail})")


def compared(
    id: str, what: str, target: float, seconds: dict[str, list[float]], of: str, base: str, at_least: bool = False
) -> Row:
    """Candidate over base, as `interleaved` timed them side by side."""
    return as_row(ratio(id, what, target, seconds, of, base), at_least)
