"""How far runs stay below each bound: `python -m benchmarks.tightness_figures [--only one-link] [--out docs/figures]`.

A figure for each page of theorems: left over right side against T, at the theorem's step from an exact start, the
largest over the families of benchmarks/families.py at each T. It also tells, where the bound is linear, how many times
faster than that the potential fell.
"""

import argparse
import functools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import adacgd as ac
import problems
from adacgd.theory import beta
from adacgd.theory.statement import ROUNDING
from benchmarks.bounds import KEYS, ROUNDS, SERVERS, UPLINKS, Trial, judge
from benchmarks.families import DIM, FAMILIES, recipe
from experiments.figures import MARKERS, OKABE_ITO, Curve, draw, render, styled

CONVEX_WORKERS = ("recipe s = 0.05", "logistic, l2")  # families where every f_i is strongly convex
TOP = 1.12  # of the panels
ABOVE_ROUNDING = 10.0  # times what rounding may be, down to which a potential tells a rate
REGIMES = {
    "nonconvex": "nonconvex",
    "pl": "PL",
    "convex": "convex",
    "strongly_convex": "strongly convex",
    "tight": "tight rate",
}


class Line(NamedTuple):
    """One method in the panels (group, regime), on some families."""

    group: str
    label: str
    trial: Trial
    families: tuple[str, ...] = tuple(FAMILIES)


class Found(NamedTuple):
    """What came of one line in one regime; F families."""

    group: str
    regime: str
    label: str
    families: tuple[str, ...]
    rounds: np.ndarray  # (T,)
    ratios: np.ndarray  # (F, T)
    faster: np.ndarray  # (F,) actual over guaranteed log-rate; NaN where the bound is not linear
    holds: bool


def line(group: str, label: str, uplink: Any, *families: str, **more: Any) -> Line:
    """Random methods are told by `Trial.random`, from the name."""
    return Line(group, label, Trial(label, "", uplink, **more), families or tuple(FAMILIES))


def one_link() -> Iterator[Line]:
    laws = ("GD", "EF21 Top-2", "LAG 0.5", "LAG 16", "CLAG Top-2, 64", "AdaCGD 1-2-4-8", "3PCv1 Top-2")
    for name in (*laws, "3PCv2 Rand-2 Top-2"):
        yield line("", name, UPLINKS[name])


def both_links() -> Iterator[Line]:
    pairs = (
        *(("GD", "Top-2"), ("EF21 Top-2", "Top-2"), ("EF21 Top-2", "Top-6"), ("EF21 Top-2", "LAG 4")),
        *(("LAG 0.5", "Top-2"), ("AdaCGD 1-2-4-8", "AdaCGD 1-2-4"), ("3PCv1 Top-2", "3PCv1 Top-2")),
    )
    for form in ("dual", "primal"):
        for up, down in pairs:
            yield line(form, f"{up} / {down}", UPLINKS[up], downlink=SERVERS[down], options=(("form", form),))


def not_3pc() -> Iterator[Line]:
    for name in ("MARINA Rand-2", "MARINA Perm"):
        yield line("MARINA", name, UPLINKS[name])
    for compressor, name in ((ac.RandK(2), "Rand-2"), (ac.Natural(), "natural")):
        for method in (ac.DIANA, ac.DCGD):
            label = f"{method.__name__} {name}"
            more: Any = {"regimes": ("strongly_convex",)}
            yield line("unbiased", label, method(compressor), *CONVEX_WORKERS, **more)
    for compressor, name in ((ac.TopK(2), "Top-2"), (ac.ContractiveRandK(2), "cRand-2")):
        more = {"regimes": ("pl",)}
        yield line("one worker", f"DCGD {name}", ac.DCGD(compressor), *ONE_WORKER, **more)
        yield line("one worker", f"EF14 {name}", ac.EF14(compressor), *ONE_WORKER, regimes=("tight",))


def extensions() -> Iterator[Line]:
    top = UPLINKS["EF21 Top-2"]
    for eta in (0.5, 0.9):
        for where, gains in (("x", ()), ("z", ("shadow",))):
            more: Any = {"regimes": ("nonconvex",), "gains": gains, "options": (("momentum", eta),)}
            yield line("heavy ball", f"at {where}, η = {eta}", top, **more)
    for penalty in ("l1", "l2", "box"):
        yield line("prox", penalty, top, regimes=("nonconvex",), penalty=penalty)
    for label, p in (("all workers", None), ("EF21-PP 4 of 6", 4), ("EF21-PP 2 of 6", 2)):
        uplink = top if p is None else ac.Sampled(top, count=p)
        yield line("participation", label, uplink, regimes=("nonconvex", "pl"))
    yield line("participation", "PP LAG 1, p = 1/2", UPLINKS["PP LAG 1, p = 1/2"], regimes=("nonconvex", "pl"))
    zeta = 4 * beta(2 / DIM)
    for gains in ((), ("weighted",), ("split",), ("root",), ("weighted", "split", "root")):
        regimes = ("pl",) if "split" in gains else ("nonconvex", "pl")
        yield line("gains", " + ".join(gains) or "standard", top, regimes=regimes, gains=gains)
    for sharp in (False, True):
        uplink = ac.CLAG(ac.TopK(2), zeta, sharp=sharp)
        yield line("gains", f"CLAG, ζ = 4β{', sharper' if sharp else ''}", uplink, regimes=("nonconvex", "pl"))


def alone(problem: Any) -> Any:
    """The mean of a quadratic's workers as the only one."""
    A, b = np.mean(np.asarray(problem.A), axis=0), np.mean(np.asarray(problem.b), axis=0)
    return problems.general_quadratic(A[None], b[None], x0=np.asarray(problem.x0))


def logistic_alone() -> Any:
    data = problems.load("breast_cancer")
    return problems.logistic((data.features[:, :DIM], data.labels), 1, regulariser="l2", strength=1e-2)


ONE_WORKER: dict[str, Callable[[], Any]] = {
    "recipe s = 0.05, one worker": lambda: alone(recipe(0.05)),
    "logistic, l2, one worker": logistic_alone,
}
BUILD = {**FAMILIES, **ONE_WORKER}


class Page(NamedTuple):
    """A figure: its lines, and its panels (group, regime) with their titles, row by row."""

    lines: Callable[[], Iterator[Line]]
    panels: tuple[dict[tuple[str, str], str], ...]


THREE = ("nonconvex", "pl", "convex")
PAGES = {
    "one-link": Page(one_link, ({("", regime): REGIMES[regime] for regime in THREE},)),
    "both-links": Page(
        both_links,
        tuple({(form, regime): f"{form}, {REGIMES[regime]}" for regime in THREE} for form in ("dual", "primal")),
    ),
    "not-3pc": Page(
        not_3pc,
        (
            {("MARINA", regime): f"MARINA, {REGIMES[regime]}" for regime in THREE},
            {
                ("unbiased", "strongly_convex"): "DIANA and DCGD, strongly convex",
                ("one worker", "pl"): "DCGD with a biased C, one worker, PL",
                ("one worker", "tight"): "EF14, one worker, tight rate",
            },
        ),
    ),
    "extensions": Page(
        extensions,
        (
            {
                ("heavy ball", "nonconvex"): "EF21-HB Top-2, nonconvex",
                ("prox", "nonconvex"): "EF21-Prox Top-2, nonconvex",
                ("participation", "nonconvex"): "participation, Top-2, nonconvex",
            },
            {
                ("gains", "nonconvex"): "gains, Top-2, nonconvex",
                ("gains", "pl"): "gains, Top-2, PL",
                ("participation", "pl"): "participation, Top-2, PL",
            },
        ),
    ),
}


# --- what is measured -------------------------------------------------------------------------------------------------


def measure(
    lines: Iterator[Line],
    build: Callable[[str], Any],
    rounds: int = ROUNDS,
    keys: tuple[int, ...] = KEYS,
    only: tuple[str, ...] = (),
) -> Iterator[Found]:
    """Every line in each of its regimes. build: a problem by the name of its family; only: families, () for all."""
    swept = 0
    for one in lines:
        runs: dict[str, list[tuple[str, Any, float]]] = {}
        for family in one.families:
            if only and family not in only:
                continue
            for regime, traces, check in judge(one.trial._replace(family=family), build(family), rounds, keys):
                faster = times_faster(traces, regime, one.trial.gains)
                runs.setdefault(regime, []).append((family, check, faster))
            swept += 1
            if swept % 40 == 0:
                jax.clear_caches()  # thousands of programs in one process run out of memory maps
        for regime, own in runs.items():
            names, checks, faster = zip(*own, strict=True)
            yield Found(
                one.group,
                regime,
                one.label,
                names,
                checks[0].rounds,
                np.array([check.ratios for check in checks]),
                np.array(faster),
                all(check.ok for check in checks),
            )


def times_faster(traces: list[Any], regime: str, gains: tuple[str, ...]) -> float:
    """(log Phi^0 - log Phi^T)/(-T log rate) at the last T where the mean Phi^T over keys is above rounding.

    NaN where the bound is not linear, or its left side no potential that starts at the right side's (DCGD stops at a
    distance).
    """
    first = traces[0]
    if first.momentum or first.prox or isinstance(first.uplink_constants, ac.theory.DCGDConstants):
        return math.nan
    smoothness, gamma = first.smoothness, first.stepsize
    own = ac.theory.theorem(regime, first.uplink_constants, first.downlink_constants, form=first.form, gains=gains)
    factor = own.rate(smoothness, gamma)
    if factor is None:
        return math.nan
    Phi = np.mean([own.left(smoothness, gamma, trace) for trace in traces], axis=0)
    rounding = max(own.rounding(float(Phi[0]), float(first.loss[0])), ROUNDING * Phi[0])
    T = int(np.flatnonzero(Phi > ABOVE_ROUNDING * rounding)[-1])
    return math.nan if T == 0 else float(np.log(Phi[0] / Phi[T]) / (-first.rounds[T] * np.log(factor)))


# --- what is drawn ----------------------------------------------------------------------------------------------------


def figure_of(page: Page, found: list[Found]) -> Figure:
    """Left over right against T on one linear scale; 1 is the bound. Panels that share their methods share a legend."""
    labels: dict[str, list[str]] = {}  # of each group, so that a method looks the same in all its panels
    for f in found:
        own = labels.setdefault(f.group, [])
        own += [f.label] if f.label not in own else []
    shared = len({tuple(own) for own in labels.values()}) == 1
    with styled():
        columns = max(len(row) for row in page.panels)
        figure = Figure(figsize=(3.4 * columns, 3.0 * len(page.panels) + 0.6 * shared), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(page.panels), columns, sharex=True, sharey=True, squeeze=False)
        for row, across in zip(panels, page.panels, strict=True):
            for axes, (which, title) in zip(row, across.items(), strict=True):
                _panel(axes, [f for f in found if (f.group, f.regime) == which], labels[which[0]])
                axes.set(title=title)
                if not shared:
                    axes.legend(loc="best", bbox_to_anchor=(0, 0, 1, 1 / TOP), fontsize=7.5)  # below the bound
            row[0].set_ylabel("left side / right side")
        for axes in panels[-1]:
            axes.set(xlabel="rounds T")
        if shared:
            handles, names = panels[0, 0].get_legend_handles_labels()
            figure.legend(handles, names, loc="outside lower center", ncols=4)
    return figure


def _panel(axes: Axes, found: list[Found], labels: list[str]) -> None:
    style = {label: (OKABE_ITO[i % len(OKABE_ITO)], MARKERS[i % len(MARKERS)]) for i, label in enumerate(labels)}
    draw(axes, [Curve(f.label, f.rounds, f.ratios.max(axis=0), style[f.label]) for f in found], log_x=True)
    axes.axhline(1, color="black", lw=1.4, zorder=1)
    axes.text(0.98, 1.015, "1: the bound", transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=8)
    axes.set(xscale="log", yscale="linear", ylim=(0, TOP))


def table(found: list[Found]) -> Iterator[str]:
    """The worst ratio, after one round and after the last, and the log-rates."""
    for f in found:
        most = f.ratios.max(axis=0)
        where = int(most.argmax())
        family = f.families[int(f.ratios[:, where].argmax())]
        known = f.faster[np.isfinite(f.faster)]
        rates = f"{known.min():.1f}-{known.max():.1f}" if known.size else "-"
        yield (
            f"{f.group:13} {f.regime:15} {f.label:27} worst {most[where]:.3f} at {f.rounds[where]:3} ({family}), "
            f"last {most[-1]:.3g}, rate x {rates}{'' if f.holds else '   BROKEN'}"
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tightness_figures", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--only", choices=PAGES, help="one page")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), help="the folder of bounds-PAGE.png")
    given = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    build = functools.cache(lambda name: BUILD[name]())
    broken = False
    for name, page in PAGES.items():
        if given.only in (None, name):
            found = list(measure(page.lines(), build))
            print(*table(found), sep="\n", flush=True)
            broken |= not all(f.holds for f in found)
            (given.out / f"bounds-{name}.png").write_bytes(render(figure_of(page, found))["png"])
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
