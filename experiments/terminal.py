"""What a terminal shows: the table on stdout, a progress bar on stderr where somebody watches, notes."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from experiments import headline

WIDTH = 106  # of what goes into a pipe, where nobody has a width
COLOURS = {"holds": "green", "does not hold": "bold red", "not judged": "yellow"}


def out() -> Console:
    """Standard output, as it is now."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH, highlight=False)


@contextmanager
def progress(wanted: bool = True) -> Iterator[headline.Progress | None]:
    """A bar on stderr; None where it is no terminal, or not wanted."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, object] = {}

        def show(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=of)
            bar.update(tasks[what], completed=done)  # type: ignore[arg-type]

        yield show


def verdict(words: str) -> Text:
    """A verdict in its colour."""
    return Text(words, style=COLOURS[words])


def show(outcome: headline.Outcome, data: str, seconds: float) -> None:
    """The table, the verdicts, and who won."""
    console, spec = out(), outcome.spec
    problem = spec.problem
    quick = ", quick grid" if spec.quick else ""
    console.print(
        f"{spec.title}: {data}, {problem.workers} workers, {problem.partition}, {problem.regulariser} regulariser "
        f"{problem.strength:g}{quick}",
        soft_wrap=True,
    )
    table = Table()
    table.add_column("method", no_wrap=True)
    table.add_column("tuned")
    for name in ("step", "rounds", "bits/worker", "wire bits", "loss", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound", no_wrap=True)
    best = outcome.winner
    for told in outcome.told:
        row = told.row()
        if row["status"] == "diverged":
            numbers = (f"diverged at {row['ran']}", "-", "-")
        elif row["rounds"] is None:
            numbers = ("not reached", "-", "-")
        else:
            numbers = (f"{row['rounds']:,}", f"{row['bits']:,.0f}", f"{row['wire_bits']:,.0f}")
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
        style = "bold" if told is best else ""
        loss = "-" if row["status"] == "diverged" else f"{row['loss']:.4g}"
        cells = (told.choice.method, told.choice.words(), f"{told.multiple:g}x", *numbers, loss, ratio)
        table.add_row(*(Text(cell, style=style) for cell in cells), verdict(told.verdict))
    console.print(table)
    tolerance, rounds = spec.budget.tolerance, spec.budget.rounds
    console.print(
        f"rounds, bits: to |grad f| <= {tolerance:g}, uplink, without the first full gradient, the same for all; "
        f"bits are 32 a scalar, wire adds indices and levels; at most {rounds:,} rounds. "
        "step: a multiple of the method's own theory. loss: where the tuned run ends. ratio: left side of the theorem "
        "over its right side at 1x, 1 is the bound."
    )
    for told in outcome.told:
        if told.reason:
            console.print(f"{told.choice.method}: {told.verdict}: {told.reason}", soft_wrap=True)
    console.print(Text(headline.finding(outcome), style="bold"), soft_wrap=True)
    for claim in outcome.claims:
        console.print(verdict(claim.verdict).append(f": {claim.claim.words} ({claim.reason})", style="default"))
    console.print(f"{len(outcome.cells):,} runs tuned, {seconds:.0f} s")


def show_tightness(rows: Sequence[Any], seconds: float) -> None:
    """Theorem, exact worst case and trajectory, and how much of the theorem is given away."""
    from experiments import tightness

    console, table = out(), Table()
    for name in ("rate", "method"):
        table.add_column(name, no_wrap=True)
    several = f"worst, {tightness.SEVERAL}"
    for name in ("mu/L", "alpha", "theorem", "worst", several, "run", "worst/t", "run/t"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    last = None
    for row in rows:
        group = (row.statement, row.mechanism, row.n, row.mu)
        if last not in (None, group):
            table.add_section()
        last = group
        rates = ["-" if rate is None else f"{rate:.5f}" for rate in row.rates().values()]
        ratios = [f"{row.times(name):.3f}" for name in ("worst", "measured")]
        head = (row.statement, f"{row.mechanism} n={row.n}", f"{row.mu:g}", f"{row.alpha:g}")
        table.add_row(*head, *rates, *ratios, verdict(row.verdict))
    console.print(table)
    console.print(
        "theorem, worst, run: -log of the factor by which the potential shrinks a round, at the theorem's own step: "
        f"what it promises, the exact worst case of 1 and of {tightness.SEVERAL} rounds, the worst trajectory found on "
        "a quadratic. worst/t, run/t: over what it promises, 1 is tight. holds: run >= worst >= theorem, as rates."
    )
    console.print(Text("\n".join(tightness.finding(rows)), style="bold"), soft_wrap=True)
    console.print(f"{len(rows)} rows, {seconds:.0f} s")


def show_edges(rows: Sequence[Any], seconds: float) -> None:
    """The theorem's step and the multiples of it that each method bears."""
    from experiments import edge

    console, table = out(), Table()
    for name in ("problem", "method"):
        table.add_column(name, no_wrap=True)
    for name in ("theory step", "stable up to", "not at", "diverges from"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("1x", no_wrap=True)
    last = None
    for row in rows:
        if last not in (None, row.problem):
            table.add_section()
        last = row.problem
        cells = (
            row.problem,
            row.method,
            f"{row.edge.gamma:.4g}",
            *edge.found(row.edge),
            edge.first_divergence(row.edge),
        )
        table.add_row(*cells, verdict(row.verdict))
    console.print(table)
    console.print(
        "theory step: of the nonconvex theorem. stable up to, not at: multiples of it, the first loss of hold; a run "
        "settles when its gradient goes on falling and diverges when it leaves all bounds; between, it goes round "
        "without end. diverges from: the first power of two that diverged. holds: stable at the theorem's own step."
    )
    console.print(Text("\n".join(edge.finding(rows)), style="bold"), soft_wrap=True)
    console.print(f"{len(rows)} rows, {sum(len(row.edge.multiples) for row in rows):,} runs, {seconds:.0f} s")


def note(words: str) -> None:
    """A line on stderr."""
    print(words, file=sys.stderr)
