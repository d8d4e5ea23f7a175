"""Our ratios beside those of the theory sheet, and log-rates: `python -m benchmarks.measured [--write FILE]`.

The ratios are read from the rows of `python -m benchmarks.bounds` (docs/bounds.csv); the rates are measured here, on
runs long enough that the start is forgotten.
"""

import argparse
import csv
import functools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import jax

from benchmarks.bounds import UPLINKS
from benchmarks.families import FAMILIES
from benchmarks.report import write
from benchmarks.tightness_figures import line, measure

TWICE = 2.0  # times the sheet's maximum, above which a maximum has to be explained
LENGTHS = (300, 3000, 30000)
RATES = {  # of the sheet: actual over guaranteed log-rate
    "GD": "2.4-6.3",
    "LAG 16": "3.2-6.2",
    "AdaCGD 1-2-4-8": "2.7-6.2",
    "EF21 Top-2": "4.2-9.0",
}


class Measured(NamedTuple):
    """One row of docs/bounds.csv, as far as it is compared."""

    method: str
    options: str
    family: str
    regime: str
    ratio: float


class Sheet(NamedTuple):
    """A figure of the sheet: the methods whose maxima it is of, and their range there."""

    what: str
    regime: str
    low: float
    high: float
    methods: Callable[[str], bool]
    options: Callable[[str], bool] = lambda options: options == ""


def named(*names: str) -> Callable[[str], bool]:
    return lambda method: method in names


def both(method: str) -> bool:
    """With a server of its own."""
    return " / " in method


def general(method: str) -> bool:
    """Workers whose P and Q are those of any map."""
    return both(method) and method.startswith("3PC")


def exact(method: str) -> bool:
    return method.startswith("GD / ")


DUAL = lambda options: options in ("form=dual", "form=primal")
SHEET = (
    Sheet("GD", "nonconvex", 0.88, 0.88, named("GD")),
    Sheet("LAG 0.5", "nonconvex", 0.61, 0.61, named("LAG 0.5")),
    Sheet("3PCv1", "nonconvex", 0.60, 0.60, named("3PCv1 Top-2")),
    Sheet("AdaCGD", "nonconvex", 0.46, 0.54, named("AdaCGD 1-2-4-8", "AdaCGD cRand 1-4")),
    Sheet("CLAG", "nonconvex", 0.50, 0.50, named("CLAG Top-2, 1", "CLAG Top-2, 64")),
    Sheet("EF21", "nonconvex", 0.51, 0.51, named("EF21 Top-2", "EF21 cRand-2")),
    Sheet("EF21-PP", "nonconvex", 0.46, 0.46, named("EF21-PP 2 of 6")),
    Sheet("3PCv2", "nonconvex", 0.51, 0.51, named("3PCv2 Rand-2 Top-2")),
    Sheet("3PCv4", "nonconvex", 0.51, 0.51, named("3PCv4 Top-1 Top-2")),
    Sheet("3PCv5", "nonconvex", 0.52, 0.52, named("3PCv5 Top-2")),
    Sheet("MARINA Rand", "nonconvex", 0.58, 0.58, named("MARINA Rand-2")),
    Sheet("heavy ball, at z", "nonconvex", 0.50, 0.50, named("EF21-HB Top-2"), lambda o: "shadow" in o),
    Sheet("heavy ball, at x", "nonconvex", 0.22, 0.22, named("EF21-HB Top-2"), lambda o: "shadow" not in o),
    Sheet("prox", "nonconvex", 0.08, 0.08, lambda m: m.startswith("EF21-Prox")),
    Sheet("both links", "nonconvex", 0.25, 0.88, lambda m: both(m) and not general(m), DUAL),
    Sheet("both links, 3PCv1, v4 or exact workers", "nonconvex", 0.42, 0.55, lambda m: general(m) or exact(m), DUAL),
    Sheet("DIANA", "strongly_convex", 0.997, 0.997, named("DIANA Rand-2")),
    Sheet("every method of one link", "pl", 1.0, 1.0, lambda m: not both(m)),
    Sheet("every method of one link", "convex", 1.0, 1.0, lambda m: not both(m)),
    Sheet("both links", "pl", 1.0, 1.0, both, DUAL),
    Sheet("both links", "convex", 1.0, 1.0, both, DUAL),
)


def read(path: Path) -> list[Measured]:
    """The rows of a run of benchmarks.bounds. Raises FileNotFoundError that names the command."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no rows; `python -m benchmarks.bounds --write {path.with_suffix('.md')}`")
    with path.open(newline="") as file:
        return [Measured(*(row[f] for f in Measured._fields[:4]), float(row["ratio"])) for row in csv.DictReader(file)]


def compare(rows: Iterable[Measured], sheet: Sheet) -> tuple[float, float, str] | None:
    """The least and the largest maximum over families of those methods, and the family of the latter; None: no rows."""
    maxima: dict[tuple[str, str], Measured] = {}
    for row in rows:
        if row.regime == sheet.regime and sheet.methods(row.method) and sheet.options(row.options):
            key = (row.method, row.options)
            maxima[key] = max(maxima.get(key, row), row, key=lambda one: one.ratio)
    if not maxima:
        return None
    worst = max(maxima.values(), key=lambda one: one.ratio)
    return min(one.ratio for one in maxima.values()), worst.ratio, worst.family


def span(low: float, high: float, digits: int = 2) -> str:
    """A range, or the one number that it is."""
    one, other = f"{low:.{digits}f}", f"{high:.{digits}f}"
    return other if one == other else f"{one}-{other}"


def rates(lengths: tuple[int, ...] = LENGTHS, families: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    """method, then a range over the families with a linear bound for each length, then the sheet's."""
    linear = families or tuple(name for name in FAMILIES if name != "logistic, nonconvex")
    build = functools.cache(lambda name: FAMILIES[name]())
    for name, told in RATES.items():
        shown = []
        for rounds in lengths:
            (found,) = measure(iter([line("", name, UPLINKS[name], *linear, regimes=("pl",))]), build, rounds)
            shown.append(span(found.faster.min(), found.faster.max(), 1))
        yield (name, *shown, told)


def main(arguments: list[str] | None = None) -> int:
    """The exit code is 1 if a maximum is more than twice the sheet's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measured", description=__doc__, allow_abbrev=False)
    parser.add_argument("--rows", type=Path, default=Path("docs/bounds.csv"), help="what benchmarks.bounds wrote")
    parser.add_argument("--write", type=Path, help="where the page goes, as Markdown")
    given = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    rows, lines, beyond = read(given.rows), [], []
    for sheet in SHEET:
        ours = compare(rows, sheet)
        if ours is None:
            continue
        low, high, family = ours
        beyond += [f"{sheet.what}, {sheet.regime}"] if high > TWICE * sheet.high else []
        told = f"{sheet.low:g}" if sheet.low == sheet.high else f"{sheet.low:g}-{sheet.high:g}"
        regime = sheet.regime.replace("_", " ")
        lines.append((sheet.what, regime, span(low, high, 3), family, told))
        print(*lines[-1], sep="  ")
    faster = list(rates())
    for row in faster:
        print(*row, sep="  ")
    if given.write:
        verdict = f"More than twice the sheet's: {', '.join(beyond) or 'none'}."
        table = [
            f"| method | {' | '.join(f'T = {T}' for T in LENGTHS)} | the sheet |",
            f"|{' --- |' * (len(LENGTHS) + 2)}",
            *[f"| {' | '.join(row)} |" for row in faster],
        ]
        columns = ("method", "regime", "ours", "largest in the family", "the sheet")
        words = "\n".join([RATE_WORDS, "", *table, "", RATIO_WORDS + verdict])
        command = f"python -m benchmarks.measured --write {given.write}"
        write(given.write, "What is measured, beside the sheet", command, words, columns, lines)
    return int(bool(beyond))


RATE_WORDS = """\
The sheet is section 7 of the notes that this library was built from ([the theory](theory.md)); it had eight families
like ours (`benchmarks/families.py`), not the same ones.

**Rates.** Under PL the largest ratio is that at T = 1, before anything has happened. What tells more is (log Phi^0 -
log Phi^T)/(-T log(1 - gamma mu)), how many times faster than promised the potential fell, here at the last T above
rounding, least to largest over the seven families with a linear bound. It falls as T grows: first the large eigenvalues
go, then only the least is left, where 2 is inherent (on a quadratic f falls by (1 - gamma mu)^2). At T = 300 the
smaller steps have not forgotten their start; the sheet does not say its T."""
RATIO_WORDS = """\
**Ratios.** The largest over T and families of left over right side, from exact starts (`python -m benchmarks.bounds`);
a range is one over the methods of the row. """


if __name__ == "__main__":
    sys.exit(main())
