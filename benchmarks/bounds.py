"""Every bound on every family: `python -m benchmarks.bounds [--only WORD] [--write docs/bounds.md]`.

Methods run at the theorem's step from the start of each family, with 16 keys where they draw at random, and the ratio
of both sides is taken at every T. The page shows the worst of each method and regime; the CSV beside it every row. The
exit code is 1 if one bound is broken. The test-suite runs the same lists on fewer families.
"""

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import adacgd as ac
import problems
from benchmarks.families import FAMILIES, regimes_of
from benchmarks.report import write

ROUNDS, KEYS = 300, tuple(range(16))
QUARTER = 1 / 6  # the chance of a full vector in MARINA and 3PCv5: K/d

UPLINKS: dict[str, Any] = {
    "GD": ac.GD(),
    "EF21 Top-2": ac.EF21(ac.TopK(2)),
    "EF21 cRand-2": ac.EF21(ac.ContractiveRandK(2)),
    "EF21 natural": ac.EF21(ac.Shrunk(ac.Natural())),
    "LAG 0.5": ac.LAG(0.5),
    "LAG 16": ac.LAG(16.0),
    "CLAG Top-2, 1": ac.CLAG(ac.TopK(2), 1.0),
    "CLAG Top-2, 64": ac.CLAG(ac.TopK(2), 64.0),
    "CLAG Top-2, 64, sharp": ac.CLAG(ac.TopK(2), 64.0, sharp=True),
    "AdaCGD 1-2-4-8": ac.AdaCGD([ac.TopK(1), ac.TopK(2), ac.TopK(4), ac.TopK(8)], 1.0),
    "AdaCGD cRand 1-4": ac.AdaCGD([ac.ContractiveRandK(1), ac.ContractiveRandK(4)], 1.0),
    "3PCv1 Top-2": ac.ThreePCv1(ac.TopK(2)),
    "3PCv2 Rand-2 Top-2": ac.ThreePCv2(ac.RandK(2), ac.TopK(2)),
    "3PCv3 LAG Top-2": ac.ThreePCv3(ac.LAG(4.0), ac.TopK(2)),
    "3PCv4 Top-1 Top-2": ac.ThreePCv4(ac.TopK(1), ac.TopK(2)),
    "3PCv5 Top-2": ac.ThreePCv5(ac.TopK(2), QUARTER),
    "EF21+ Top-2": ac.EF21Plus(ac.TopK(2)),
    "Ada3PC": ac.Ada3PC([ac.EF21(ac.TopK(1)), ac.ThreePCv4(ac.TopK(1), ac.TopK(2))], 1.0),
    "Energy 1/6, 1": ac.Energy(1 / 6, 1.0),
    "MARINA Rand-2": ac.MARINA(ac.RandK(2), QUARTER),
    "MARINA Perm": ac.MARINA(ac.PermK(), QUARTER),
    "EF21-PP 2 of 6": ac.Sampled(ac.EF21(ac.TopK(2)), count=2),
    "PP LAG 1, p = 1/2": ac.Sampled(ac.LAG(1.0), p=0.5),
}
RANDOM = ("cRand", "natural", "Rand-", "MARINA", "3PCv5", "PP")

SERVERS: dict[str, Any] = {
    "Top-2": ac.EF21(ac.TopK(2)),
    "Top-6": ac.EF21(ac.TopK(6)),
    "LAG 4": ac.LAG(4.0),
    "AdaCGD 1-2-4": ac.AdaCGD([ac.TopK(1), ac.TopK(2), ac.TopK(4)], 1.0),
    "3PCv1 Top-2": ac.ThreePCv1(ac.TopK(2)),
}
UNDER_SERVERS = ("GD", "EF21 Top-2", "LAG 0.5", "CLAG Top-2, 1", "AdaCGD 1-2-4-8", "3PCv1 Top-2", "3PCv4 Top-1 Top-2")
STARTS = ("exact", "compressed", "zero")


class Trial(NamedTuple):
    """One method on one family."""

    name: str
    family: str
    uplink: Any
    downlink: Any = None
    options: tuple[tuple[str, Any], ...] = ()  # form, init, momentum
    regimes: tuple[str, ...] = ()  # () those of the family
    gains: tuple[str, ...] = ()
    penalty: str = ""

    @property
    def random(self) -> bool:
        """Whether the theorem speaks of a mean over keys."""
        return any(word in self.name for word in RANDOM)


class Row(NamedTuple):
    """A verdict."""

    method: str
    options: str
    family: str
    regime: str
    ratio: float  # the worst over T, of the mean over keys
    stderr: float  # of that ratio
    at: int  # the T
    holds: bool
    keys: int
    rounds: int
    stepsize: float
    f_lower: float
    x0_norm: float


def trials(families: tuple[str, ...] = tuple(FAMILIES)) -> Iterator[Trial]:
    """All of them."""
    for family in families:
        for name, uplink in UPLINKS.items():
            yield Trial(name, family, uplink)
        for name in ("EF21 Top-2", "LAG 0.5", "CLAG Top-2, 1", "MARINA Rand-2", "GD"):
            for init in STARTS[1:]:
                yield Trial(name, family, UPLINKS[name], options=(("init", init),))
        for name in UNDER_SERVERS:
            for server, downlink in SERVERS.items():
                for form in ("dual", "primal"):
                    yield Trial(f"{name} / {server}", family, UPLINKS[name], downlink, (("form", form),))
        for form in ("dual", "primal"):
            for init in STARTS[1:]:
                options = (("form", form), ("init", init))
                yield Trial("EF21 Top-2 / Top-2", family, UPLINKS["EF21 Top-2"], SERVERS["Top-2"], options)
        yield from extensions(family)


def extensions(family: str) -> Iterator[Trial]:
    """Momentum, prox, gains, and what asks more of the workers."""
    top = UPLINKS["EF21 Top-2"]
    for eta in (0.5, 0.9):
        for gains in ((), ("shadow",)):
            yield Trial("EF21-HB Top-2", family, top, None, (("momentum", eta),), ("nonconvex",), gains)
    for penalty in ("l1", "l2", "box"):
        yield Trial(f"EF21-Prox Top-2, {penalty}", family, top, regimes=("nonconvex",), penalty=penalty)
    for name in ("EF21 Top-2", "CLAG Top-2, 1"):
        yield Trial(name, family, UPLINKS[name], gains=("weighted",))
        yield Trial(name, family, UPLINKS[name], regimes=("pl",), gains=("split",))
    yield Trial("EF21 Top-2 / Top-2", family, top, SERVERS["Top-2"], gains=("weighted",))
    if family in ("recipe s = 0.05", "logistic, l2"):
        for name in ("EF21 Top-2", "EF21 cRand-2"):
            yield Trial(name, family, UPLINKS[name], regimes=("tight",))
        yield Trial("DIANA Rand-2", family, ac.DIANA(ac.RandK(2)), regimes=("strongly_convex",))
        yield Trial("DCGD Rand-2", family, ac.DCGD(ac.RandK(2)), regimes=("strongly_convex",))


def judge(
    trial: Trial, problem: Any, rounds: int = ROUNDS, keys: tuple[int, ...] = KEYS
) -> Iterator[tuple[str, list[Any], Any]]:
    """(regime, the traces, their check) for each regime, all from one sweep over steps and keys."""
    if trial.penalty:
        strength = (-0.5, 0.5) if trial.penalty == "box" else 0.05
        problem = problems.composite(problem, trial.penalty, strength)
    keys = keys if trial.random else keys[:1]
    options = dict(trial.options)
    regimes = trial.regimes or regimes_of(problem)
    regimes = tuple(r for r in regimes if r not in ("pl",) or "pl" in regimes_of(problem))
    if not regimes:
        return
    steps = [_step(trial, problem, regime) for regime in regimes]
    grid = ac.sweep(problem, trial.uplink, trial.downlink, stepsizes=steps, keys=list(keys), rounds=rounds, **options)
    for i, regime in enumerate(regimes):
        traces = list(grid[i])
        yield regime, traces, ac.theory.check(traces if len(traces) > 1 else traces[0], regime, trial.gains)


def run(trial: Trial, problem: Any, rounds: int = ROUNDS, keys: tuple[int, ...] = KEYS) -> Iterator[Row]:
    """A row for each regime."""
    shown = ", ".join([f"{k}={v}" for k, v in trial.options] + [f"gain {g}" for g in trial.gains])
    for regime, traces, check in judge(trial, problem, rounds, keys):
        worst = int(np.argmax(check.ratios))
        stderr = 0.0 if check.standard_errors is None else float(check.standard_errors[worst])
        yield Row(
            trial.name,
            shown,
            trial.family,
            regime,
            check.worst_ratio,
            stderr,
            int(check.worst_round or 0),
            check.ok,
            check.keys,
            rounds,
            traces[0].stepsize,
            traces[0].f_lower,
            float(np.linalg.norm(problem.x0)),
        )


def _step(trial: Trial, problem: Any, regime: str) -> float:
    """The theorem's step for this start."""
    told = {"workers": problem.n} if getattr(trial.uplink, "shares_randomness", False) else {}
    up = trial.uplink.constants(problem.dim, **told)
    down = None if trial.downlink is None else trial.downlink.constants(problem.dim)
    options = dict(trial.options)
    init = options.pop("init", "exact")
    off = float(init != "exact")
    start = ac.theory.Start(gap=1.0, G=off, H=off if init == "compressed" else 0.0)
    return ac.theory.stepsize(
        problem.smoothness, up, regime, down, gains=trial.gains, prox=bool(trial.penalty), start=start, **options
    )


def summary(rows: list[Row]) -> list[tuple[str, ...]]:
    """The worst of each method and regime over the families."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.method, row.options, row.regime), []).append(row)
    lines = []
    for (method, options, regime), own in groups.items():
        worst = max(own, key=lambda row: row.ratio)
        noise = f" ± {worst.stderr:.2g}" if worst.stderr else ""
        verdict = "holds" if all(row.holds for row in own) else "DOES NOT HOLD"
        found = (f"{worst.ratio:.3f}{noise}", worst.family, str(worst.at), str(len(own)), str(worst.keys))
        lines.append((method, options, regime, *found, verdict))
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--only", default="", help="methods or families whose name contains this")
    parser.add_argument("--write", help="where the table goes, as Markdown; the rows go beside it as CSV")
    given = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    began, rows = time.perf_counter(), []
    built: dict[str, Any] = {}
    for count, trial in enumerate(trials()):
        if given.only and given.only not in f"{trial.name} {trial.family}":
            continue
        problem = built.setdefault(trial.family, FAMILIES[trial.family]())
        for row in run(trial, problem):
            rows.append(row)
            mark = "" if row.holds else "   BROKEN"
            print(
                f"{row.family:38} {row.method:28} {row.options:28} {row.regime:16} {row.ratio:8.4f}{mark}", flush=True
            )
        if count % 40 == 39:
            jax.clear_caches()  # thousands of programs in one process run out of memory maps
    broken = [row for row in rows if not row.holds]
    took = time.perf_counter() - began
    print(f"{len(rows)} rows, {len(broken)} broken, {took:.0f} s")
    if given.write:
        path = Path(given.write)
        words = (
            f"{len(rows)} rows ({path.with_suffix('.csv').name} has each, with its step, T, keys, |x^0| and f_lower); "
            f"{len(broken)} broken. T = 1, ..., {ROUNDS} from each family's own x^0, at the theorem's step. Random "
            f"methods are means over {len(KEYS)} keys, 0 to {KEYS[-1]}. A ratio of 1 is the bound. Families: "
            "`benchmarks/families.py`."
        )
        columns = ("method", "options", "regime", "worst ratio", "in the family", "at T", "families", "keys", "verdict")
        command = "python -m benchmarks.bounds" + (f" --only {given.only!r}" if given.only else "") + f" --write {path}"
        write(path, "Every bound, tried", command, words, columns, summary(rows))
        with path.with_suffix(".csv").open("w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(Row._fields)
            out.writerows([[f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in rows])
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
