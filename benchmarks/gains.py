"""How much larger a step each gain allows on real data: `python -m benchmarks.gains [--write docs/gains.md]`.

Logistic regression over 20 workers, contiguous shards. Data sets that `problems.load` finds (embedded, or LIBSVM files
in a folder of the environment variable ADACGD_DATA); those that it does not find are told.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax

import adacgd as ac
import problems
from adacgd.theory import beta, sharper
from benchmarks.report import write
from problems.libsvm import MissingFileError

WORKERS = 20
DATA = (
    *("breast_cancer", "digits", "phishing", "mushrooms", "a1a", "a9a", "w6a", "w7a", "w8a", "ijcnn1"),
    *("splice", "german.numer", "australian", "heart_scale", "cocoa_small_train", "covtype"),
)
# regime: (regulariser, its strength); strongly convex has the step of PL, and the tight rate beside it
REGIMES = {"strongly_convex": ("l2", 1e-3), "nonconvex": ("nonconvex", 0.1)}
COLUMNS = ("weighted", "split", "root", "weighted + split + root", "sharper", "sharper + weighted + split + root")


class Method(NamedTuple):
    """Constants of both links, and others of the same uplink by name."""

    name: str
    uplink: Any
    downlink: Any = None
    pairs: dict[str, Any] | None = None


def methods(dim: int) -> list[Method]:
    """In dimension `dim`."""
    eighth = ac.TopK(max(2, dim // 8))  # not Top-1 twice
    one, some = ac.EF21(ac.TopK(1)).constants(dim), ac.EF21(eighth).constants(dim)
    alpha = eighth.alpha(dim)
    zeta = 4 * beta(alpha)
    clag = ac.CLAG(eighth, zeta).constants(dim)
    A, B = sharper(alpha, zeta)
    return [
        Method("EF21 Top-1", one),
        Method("EF21 Top-d/8", some),
        Method("CLAG Top-d/8, ζ = 4β", clag, pairs={"sharper": ac.AB(A, B, clag.P, clag.Q)}),
        Method("EF21 Top-d/8 both ways", some, some),
    ]


class Row(NamedTuple):
    """The gains of one method on one problem."""

    data: str
    regime: str
    method: str
    step: float  # the standard step, in units of 1/L_minus
    gains: dict[str, Any]  # name -> Gain


def measure(data: Any) -> list[Row]:
    """All methods and regimes on a data set, of which only the constants are asked."""
    rows = []
    for regime, (regulariser, strength) in REGIMES.items():
        problem = problems.logistic(data, WORKERS, regulariser=regulariser, strength=strength)
        smoothness, d = problem.smoothness, problem.dim
        for method in methods(d):
            gains = ac.theory.gain_factors(smoothness, method.uplink, regime, method.downlink, pairs=method.pairs)
            step = gains["standard"].stepsize * smoothness.L_minus
            rows.append(Row(f"{data.name}, d = {d}", regime, method.name, step, gains))
    return rows


def found(names: Iterable[str]) -> tuple[list[Any], list[str]]:
    """The data sets at hand, and the names of the others. A file that is not the official one is an error."""
    at_hand, missing = [], []
    for name in names:
        try:
            at_hand.append(problems.load(name))
        except MissingFileError:
            missing.append(name)
    return at_hand, missing


def cells(row: Row) -> tuple[str, ...]:
    """A line of the table."""
    without = lambda name: name.replace(" + split", "") if row.regime == "nonconvex" else name
    steps = [f"{row.gains[without(name)].step:.3f}" if without(name) in row.gains else "-" for name in COLUMNS]
    tight = row.gains.get("tight")
    shown = "-" if tight is None else f"{tight.step:.3f}, {tight.speed:.2f}"
    regime = "strongly convex" if row.regime == "strongly_convex" else row.regime
    return (row.data, regime, row.method, f"{row.step:.2e}", *steps, shown)


def ranges(rows: list[Row]) -> list[tuple[str, ...]]:
    """regime, method and, over the data sets, the least to the largest step of each column of the table."""
    groups: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for row in rows:
        groups.setdefault((row.regime, row.method), []).append(cells(row)[4:])
    return [
        (regime.replace("_", " "), method, *(_range(column) for column in zip(*own, strict=True)))
        for (regime, method), own in groups.items()
    ]


def _range(column: tuple[str, ...]) -> str:
    steps = sorted(float(cell.split(",")[0]) for cell in column if cell != "-")
    return f"{steps[0]:.2f}-{steps[-1]:.2f}" if steps else "-"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gains", description=__doc__, allow_abbrev=False)
    parser.add_argument("--data", nargs="+", default=DATA, choices=problems.datasets(), metavar="NAME")
    parser.add_argument("--write", type=Path, help="where the table goes, as Markdown")
    given = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    at_hand, missing = found(given.data)
    rows: list[Row] = []
    for data in at_hand:
        for row in measure(data):
            rows.append(row)
            print(*cells(row), sep="  ", flush=True)
    absent = f"Not found here: {', '.join(missing)}." if missing else "All data sets asked for were found."
    print(absent)
    if given.write:
        named = "" if given.data == DATA else f" --data {' '.join(given.data)}"
        steps = ("weighted", "split", "root", "these three", "sharper", "all four")
        summary = [
            f"| regime | method | {' | '.join((*steps, 'tight'))} |",
            f"|{' --- |' * (len(steps) + 3)}",
            *[f"| {' | '.join(line)} |" for line in ranges(rows)],
        ]
        words = "\n".join(
            [f"{WORDS} {absent}", "", f"Least to largest over the {len(at_hand)} data sets:", "", *summary]
        )
        columns = ("data", "regime", "method", "standard γ L_-", *steps, "tight: step, speed")
        command = f"python -m benchmarks.gains{named} --write {given.write}"
        write(given.write, "What each gain is worth", command, f"{words}\n\nEach of them:", columns, map(cells, rows))
    return 0


WORDS = f"""\
Each number is the step that a [gain](theory-extensions.md) allows over the standard one
(`theory.gain_factors`); *standard* is that step in units of 1/L_-. Logistic regression, {WORKERS} workers, contiguous
shards: strongly convex with the L2 regulariser 1e-3 (the step of PL), nonconvex with 0.1, where *split* does not exist
and *these three* are two. *sharper* is of CLAG alone. The [tight rate](theory-tight.md) is of EF21 alone, one way: its
step is for max L_i in the place of the means, and its *speed*, the rounds saved by its rate, is what it is for. Only
constants are compared, nothing is run. Files are looked for as `problems.load` does: in the folders of ADACGD_DATA."""


if __name__ == "__main__":
    sys.exit(main())
