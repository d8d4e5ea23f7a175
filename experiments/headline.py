"""The headline experiment: every method tuned on the same stated grid, its best run told, the theorem held against 1x.

1. *Tune*: every choice of K, zeta and ladder at every multiple of its own theoretical step, by `ac.sweep`, until
   |grad f| <= tolerance or the budget of rounds ends.
2. *Choose*, for each method, the cell with the fewest bits per worker ("floats": 32 a scalar, as the papers plot) at
   the first hit. Ties: fewer rounds, then the smaller multiple, then the earlier cell of the grid.
3. *Run again* by `ac.simulate`; only these numbers are told. Far above theory a run may be chaotic, and two compiled
   programs then part: a cell that does not hit when run again is passed over with a note, and so is one whose rounds
   differ from the sweep's told in a note.
4. *Check*: the same K, zeta and ladder at 1x, against the theorem.

No disk, no terminal: see `run.py`.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

import adacgd as ac
from experiments.spec import NEEDED_BY, BadRequest, ClaimSpec, Spec, resolve

TELL = 16  # pieces a sweep is recorded in, so that Ctrl-C is prompt and nothing else
PASSED_OVER = 5  # cells of one method that are tried again before it counts as not reached
SLACK = 1e-9  # of `ac.theory.check`
APART = 0.01  # losses that differ by more, relatively, are not those of one point
Progress = Callable[[str, int, int], None]  # what is being done, done, of


@dataclass(frozen=True)
class Choice:
    """A method with its tuned parameters; what it does not have is None."""

    method: str
    K: int | None = None
    zeta: float | None = None
    levels: tuple[int, ...] | None = None

    def uplink(self) -> Any:
        """The library's object."""
        made: dict[str, Callable[[Any, Any], Any]] = {
            "GD": lambda K, zeta: ac.GD(),
            "EF21": lambda K, zeta: ac.EF21(ac.TopK(K)),
            "LAG": lambda K, zeta: ac.LAG(zeta),
            "CLAG": lambda K, zeta: ac.CLAG(ac.TopK(K), zeta),
            "AdaCGD": lambda K, zeta: ac.AdaCGD([ac.TopK(k) for k in self.levels or ()], zeta),
        }
        return made[self.method](self.K, self.zeta)

    def words(self) -> str:
        """The tuned parameters, as in a table."""
        parts = [] if self.K is None else [f"K={self.K}"]
        parts += [] if self.levels is None else [f"K in {{{', '.join(map(str, self.levels))}}}"]
        parts += [] if self.zeta is None else [f"zeta={self.zeta:g}"]
        return ", ".join(parts) or "-"


@dataclass(frozen=True)
class Cell:
    """One run of the sweep, as it ended."""

    choice: Choice
    multiple: float
    stepsize: float
    status: str
    round: int
    bits: float  # per worker, floats
    grad_norm: float  # at the end
    loss: float  # at the end

    @property
    def reached(self) -> bool:
        """Whether it hit the tolerance."""
        return self.status == "converged"


@dataclass(frozen=True)
class Told:
    """What is told of a method: the best cell run again, the same choice at 1x, and the theorem's verdict on that."""

    choice: Choice
    multiple: float
    tuned: Any  # Trace
    unit: Any  # Trace at 1x
    check: Any  # ac.theory.Check, or None
    verdict: str
    reason: str

    def row(self) -> dict[str, Any]:
        """As `--json` tells it. `rounds`, bits: to the tolerance, null where it was not reached."""
        trace, reached = self.tuned, self.tuned.status == "converged"
        return {
            "method": self.choice.method,
            "multiple": self.multiple,
            "K": self.choice.K,
            "zeta": self.choice.zeta,
            "levels": None if self.choice.levels is None else list(self.choice.levels),
            "stepsize": trace.stepsize,
            "rounds": trace.outcome_round if reached else None,
            "bits": float(trace.bits()[-1]) if reached else None,
            "wire_bits": float(trace.bits(convention="wire")[-1]) if reached else None,
            "ratio": None if self.check is None else self.check.worst_ratio,
            "verdict": self.verdict,
            "reason": self.reason,
            "status": trace.status,
            "tolerance": trace.tolerance,
            "ran": trace.outcome_round,
            "bits_at_end": float(trace.bits()[-1]),
            "grad_norm_at_end": math.sqrt(trace.grad_sq[-1]),
            "loss": float(trace.loss[-1]),
            "unit_stepsize": self.unit.stepsize,
            "unit_status": self.unit.status,
            "unit_rounds": self.unit.outcome_round,
        }


@dataclass(frozen=True)
class Verdict:
    """A claim and what became of it."""

    claim: ClaimSpec
    verdict: str  # "holds" | "does not hold" | "not judged"
    reason: str
    value: float | None = None


@dataclass(frozen=True)
class Outcome:
    """All that an experiment found."""

    spec: Spec
    grid: dict[str, Any]  # the grid at this dimension
    cells: tuple[Cell, ...]
    told: tuple[Told, ...]
    claims: tuple[Verdict, ...]
    notes: tuple[str, ...]

    @property
    def winner(self) -> Told | None:
        """The method with the fewest bits; None where none reached the tolerance."""
        reached = [t for t in self.told if t.tuned.status == "converged"]
        return min(reached, key=lambda t: (t.tuned.bits()[-1], t.tuned.outcome_round), default=None)

    @property
    def sound(self) -> bool:
        """Whether no claim and no bound failed."""
        return "does not hold" not in [*(v.verdict for v in self.claims), *(t.verdict for t in self.told)]

    @property
    def diverged_alone(self) -> list[str]:
        """Methods whose one run, asked for by itself and not tuned, diverged."""
        single = {m for m in self.spec.methods if sum(c.choice.method == m for c in self.cells) == 1}
        return [t.choice.method for t in self.told if t.choice.method in single and t.tuned.status == "diverged"]


def choices(spec: Spec, dim: int) -> dict[str, list[Choice]]:
    """The grid of every method at this dimension. Raises BadRequest where a K exceeds it, with a grid that fits."""
    asked_ks, asked_ladders = _used(spec, "ks"), _used(spec, "ladders")
    try:
        ks = resolve("grid.ks", asked_ks, dim)
        ladders = list(dict.fromkeys(resolve("grid.ladders", ladder, dim) for ladder in asked_ladders))
    except BadRequest as error:
        raise BadRequest(f"{error}; what fits: {_fitting(spec, dim)}") from None
    zetas = spec.grid.zetas
    grids = {
        "GD": [Choice("GD")],
        "EF21": [Choice("EF21", K=k) for k in ks],
        "LAG": [Choice("LAG", zeta=z) for z in zetas],
        "CLAG": [Choice("CLAG", K=k, zeta=z) for k in ks for z in zetas],
        "AdaCGD": [Choice("AdaCGD", levels=ladder, zeta=z) for ladder in ladders for z in zetas],
    }
    return {method: grids[method] for method in spec.methods}


def _used(spec: Spec, key: str) -> tuple[Any, ...]:
    """`grid.key`, where a method is tuned over it."""
    return getattr(spec.grid, key) if set(NEEDED_BY[key]) & set(spec.methods) else ()


def _fitting(spec: Spec, dim: int) -> str:
    """The grid without what exceeds the dimension, as options."""

    def fit(entries: tuple[int | str, ...]) -> tuple[int, ...]:
        return resolve("", [k for k in entries if isinstance(k, str) or k <= dim] or [1], dim)

    shown: dict[str, Any] = {}
    if _used(spec, "ks"):
        shown["ks"] = fit(spec.grid.ks)
    if _used(spec, "ladders"):
        shown["ladders"] = list(dict.fromkeys(map(fit, spec.grid.ladders)))
    return " ".join(f"--set grid.{key}={json.dumps(value, separators=(',', ':'))}" for key, value in shown.items())


def run(problem: Any, spec: Spec, progress: Progress | None = None, devices: Any = None) -> Outcome:
    """The whole experiment on `problem`, workers over `devices`. Raises BadRequest where the grid does not fit it."""
    progress = progress or (lambda what, done, of: None)
    grid = choices(spec, problem.dim)
    cells = _tune(problem, spec, grid, progress, devices)
    told: list[Told] = []
    notes: list[str] = []
    for i, method in enumerate(spec.methods):
        progress("running the best again", i, len(spec.methods))
        told.append(_tell(problem, spec, [c for c in cells if c.choice.method == method], notes, devices))
    progress("running the best again", len(spec.methods), len(spec.methods))
    return Outcome(
        spec=spec,
        grid={
            "multiples": sorted(spec.grid.multiples),
            **{method: [c.words() for c in grid[method]] for method in spec.methods},
        },
        cells=tuple(cells),
        told=tuple(told),
        claims=tuple(judge(claim, spec, told) for claim in spec.claims),
        notes=tuple(notes),
    )


def _tune(problem: Any, spec: Spec, grid: dict[str, list[Choice]], progress: Progress, devices: Any) -> list[Cell]:
    """Every cell, in the order of the grid.

    A block of a sweep lasts as long as its longest run, so runs of like length go together: the large multiples, which
    end early, apart from the small ones; and methods that send in full apart from those that must sort.
    """
    full = [c for m in ("GD", "LAG") if m in grid for c in grid[m]]
    sparse = [c for m in ("EF21", "CLAG", "AdaCGD") if m in grid for c in grid[m]]
    multiples = sorted(spec.grid.multiples, reverse=True)
    total = len(multiples) * (len(full) + len(sparse))
    found: dict[tuple[Choice, float], Cell] = {}
    progress("tuning", 0, total)
    for group in (full, sparse):
        for multiple in multiples if group else ():
            before = len(found)

            def tell(done: int, _: int, before: int = before) -> None:
                progress("tuning", before + done, total)

            runs = ac.sweep(
                problem,
                [c.uplink() for c in group],
                multiples=[multiple],
                rounds=spec.budget.rounds,
                tolerance=spec.budget.tolerance,
                record_every=max(1, math.ceil(spec.budget.rounds / TELL)),
                devices=devices,
                progress=tell,
            )
            for i, choice in enumerate(group):
                found[choice, multiple] = _cell(choice, multiple, runs[i, 0])
    order = [c for m in grid for c in grid[m]]
    return [found[c, multiple] for c in order for multiple in reversed(multiples)]


def _cell(choice: Choice, multiple: float, trace: Any) -> Cell:
    return Cell(
        choice,
        multiple,
        trace.stepsize,
        trace.status,
        trace.outcome_round,
        float(trace.bits()[-1]),
        math.sqrt(trace.grad_sq[-1]) if trace.grad_sq[-1] >= 0 else math.nan,
        float(trace.loss[-1]),
    )


def ranked(cells: Iterable[Cell]) -> list[Cell]:
    """Best first: those that reached the tolerance by bits, rounds, multiple; then the others by how near they came."""

    def rank(cell: Cell) -> tuple[float, ...]:
        if cell.reached:
            return (0, cell.bits, cell.round, cell.multiple)
        return (1, cell.grad_norm if math.isfinite(cell.grad_norm) else math.inf, cell.multiple)

    return sorted(cells, key=rank)


def _tell(problem: Any, spec: Spec, cells: list[Cell], notes: list[str], devices: Any) -> Told:
    """The best cell of one method that hits the tolerance again, and its check at 1x."""
    order = ranked(cells)
    best, tuned = order[0], _again(problem, spec, order[0], devices)
    tries = [c for c in order if c.reached][1:PASSED_OVER]
    while best.reached and tuned.status != "converged" and tries:
        notes.append(
            f"{_name(best)} hit the tolerance at round {best.round} of the sweep and not when run again: "
            "a chaotic run, passed over."
        )
        best, tuned = tries[0], _again(problem, spec, tries[0], devices)
        del tries[0]
    if (tuned.status, tuned.outcome_round) != (best.status, best.round):
        notes.append(
            f"{_name(best)}: {tuned.status} at round {tuned.outcome_round} when run again, {best.status} at round "
            f"{best.round} in the sweep (two programs, equal to rounding; far above theory runs may part)."
        )
    unit = _at(problem, spec, best.choice, _theory(problem, best.choice), devices)
    check, verdict, reason = held(unit)
    return Told(best.choice, best.multiple, tuned, unit, check, verdict, reason)


def _name(cell: Cell) -> str:
    tuned = "" if cell.choice.words() == "-" else f" ({cell.choice.words()})"
    return f"{cell.choice.method}{tuned} at {cell.multiple:g}x"


def _theory(problem: Any, choice: Choice) -> float:
    return ac.theory.stepsize(problem.smoothness, choice.uplink().constants(problem.dim))


def _again(problem: Any, spec: Spec, cell: Cell, devices: Any) -> Any:
    return _at(problem, spec, cell.choice, cell.stepsize, devices)


def _at(problem: Any, spec: Spec, choice: Choice, stepsize: float, devices: Any) -> Any:
    return ac.simulate(
        problem,
        choice.uplink(),
        stepsize=stepsize,
        rounds=spec.budget.rounds,
        tolerance=spec.budget.tolerance,
        record_every=spec.record.every,
        devices=devices,
    )


def held(unit: Any) -> tuple[Any, str, str]:
    """(check, verdict, reason) of the theorem on a 1x run."""
    try:
        check = ac.theory.check(unit)
    except ValueError as error:
        return None, "not judged", str(error)
    if check.worst_round is None:
        return check, "not judged", "the start is within the tolerance, there are no rounds to judge"
    return check, "holds" if check.ok else "does not hold", check.reason


def judge(claim: ClaimSpec, spec: Spec, told: list[Told]) -> Verdict:
    """A claim by code, or the reason why not: never about a data set on another one, nor with another set-up."""

    def unjudged(reason: str) -> Verdict:
        return Verdict(claim, "not judged", reason)

    if claim.data is not None:
        if spec.problem.data != claim.data:
            return unjudged(f"it is about {claim.data}")
        if spec.quick:
            return unjudged("it is about the whole grid, not --quick")
        others = [key for key in spec.changed if key != "problem.data"]
        if others:
            return unjudged(f"it is about the set-up as stated; changed: {', '.join(others)}")
    if claim.judge == "worst ratio":
        asked = [t for t in told if t.choice.method in (claim.methods or spec.methods)]
        missing = [t.choice.method for t in asked if t.verdict == "not judged"]
        if missing or not asked:
            return unjudged(f"no bound was judged for {', '.join(missing) or 'any method'}")
        worst = max(asked, key=lambda t: math.inf if math.isnan(t.check.worst_ratio) else t.check.worst_ratio)
        value = worst.check.worst_ratio
        good = value <= claim.threshold + SLACK and all(t.check.ok for t in asked)
        reason = f"worst ratio {value:.3g} ({worst.choice.method}), the bound is {claim.threshold:g}"
        return Verdict(claim, "holds" if good else "does not hold", reason, value)
    bits = {t.choice.method: t.tuned.bits()[-1] for t in told if t.tuned.status == "converged"}
    missing = [m for m in claim.methods if m not in bits]
    if missing:
        return unjudged(f"no tuned run of {', '.join(missing)} reached the tolerance")
    first, *rest = claim.methods
    least = min(rest, key=lambda m: bits[m])
    if bits[least] == 0:
        sent = "nothing either, a tie" if bits[first] == 0 else f"{bits[first]:,.0f} bits"
        return unjudged(f"{least} is within the tolerance before anything is sent, and {first} sent {sent}")
    value = float(bits[first] / bits[least])
    good = value < claim.threshold
    tie = ", a tie" if bits[first] == bits[least] else ""
    return Verdict(claim, "holds" if good else "does not hold", f"{value:.3f} times the bits of {least}{tie}", value)


def finding(outcome: Outcome) -> str:
    """Which method won, AdaCGD or not, and what a reader must know before believing it."""
    best = outcome.winner
    tolerance = outcome.spec.budget.tolerance
    if best is None:
        return f"No method reached |grad f| <= {tolerance:g} within {outcome.spec.budget.rounds} rounds."
    grid = ", on the quick grid" if outcome.spec.quick else ""
    bits = {t.choice.method: float(t.tuned.bits()[-1]) for t in outcome.told if t.tuned.status == "converged"}
    least = bits[best.choice.method]
    first = [method for method in bits if bits[method] == least]
    winner = first[0] if len(first) == 1 else f"a tie of {', '.join(first)}"
    words = [f"Fewest bits to |grad f| <= {tolerance:g}{grid}: {winner}, {least:,.0f} per worker."]
    if least == 0:
        words.append("The start is within the tolerance: nothing was sent and nothing is compared.")
    elif "AdaCGD" in outcome.spec.methods and "AdaCGD" not in first:
        words.append(_lost(outcome, first, bits.get("AdaCGD"), least))
    return " ".join([*words, *_apart(outcome)])


def _lost(outcome: Outcome, first: list[str], bits: float | None, least: float) -> str:
    """That AdaCGD did not win, by how much, and where it could not because the grid has no such ladder."""
    if bits is None:
        return "AdaCGD did not reach it."
    words = f"AdaCGD did not win: it needs {bits / least:.4g} times as many."
    shortest = min(len(c.choice.levels) for c in outcome.cells if c.choice.levels is not None)
    if "CLAG" in first and shortest > 1:
        words += f" (CLAG is AdaCGD with one level; the ladders of this grid have {shortest} or more.)"
    return words


def _apart(outcome: Outcome) -> list[str]:
    """A note where the tuned runs end at different losses: a small gradient far out is not a minimum."""
    losses = {t.choice.method: float(t.tuned.loss[-1]) for t in outcome.told if t.tuned.status == "converged"}
    low, high = min(losses, key=lambda m: losses[m]), max(losses, key=lambda m: losses[m])
    if losses[high] - losses[low] <= APART * abs(losses[low]):
        return []
    return [
        f"The tuned runs end at different losses, {losses[low]:.4g} ({low}) to {losses[high]:.4g} ({high}): "
        "not at the same point, so their bits buy different things."
    ]


def curves(outcome: Outcome) -> str:
    """Every row of every published run as CSV: the tuned runs, then those at 1x, which alone have a bound ratio.

    `levels`: what each worker sent, worker by worker, 0 nothing; of AdaCGD only.
    """
    names = "method run multiple round bits_up_floats bits_up_wire bits_down_floats grad_sq loss level_mean bound_ratio"
    lines = [",".join([*names.split(), "levels"])]
    for told in outcome.told:
        for name, trace in (("tuned", told.tuned), ("1x", told.unit)):
            multiple = told.multiple if name == "tuned" else 1.0
            checked = () if told.check is None or name == "tuned" else (told.check.rounds, told.check.ratios)
            ratios = dict(zip(*checked, strict=True)) if checked else {}
            down, floats, wire = trace.bits("down"), trace.bits(), trace.bits(convention="wire")
            means = trace.level.mean(axis=1)
            for i, t in enumerate(trace.rounds):
                level = " ".join(map(str, trace.level[i])) if told.choice.method == "AdaCGD" else ""
                numbers = (floats[i], wire[i], down[i], trace.grad_sq[i], trace.loss[i], means[i])
                ratio = _shown(ratios[t]) if t in ratios else ""
                lines.append(
                    f"{told.choice.method},{name},{multiple:g},{t},{','.join(map(_shown, numbers))},{ratio},{level}"
                )
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return repr(float(value)) if np.isfinite(value) else ""
