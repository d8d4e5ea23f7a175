"""Figures: one style, no display, no LaTeX, and nothing global left changed.

Figures are objects (no pyplot), so none stays open; the style is set inside `styled()` and gone after it.
"""

import functools
import io
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's colours, which the colour-blind can tell apart, and a marker each for print in grey.
OKABE_ITO = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
METHODS = {
    "GD": ("#999999", "o"),
    "LAG": ("#E69F00", "s"),
    "EF21": ("#0072B2", "^"),
    "CLAG": ("#009E73", "D"),
    "AdaCGD": ("#D55E00", "v"),
}
SILENT = "#F2F2F2"
LEVELS = ("#FBD3B4", "#F2A46B", "#D55E00", "#9A4400", "#5C2900", "#2E1400")  # cheapest to finest, in AdaCGD's hue
ROOM = (
    3.0  # the axis ends at this multiple of the fewest bits: what needs more leaves it, and a note says where it ends
)
STYLE = {
    "text.usetex": False,
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "none",
    "savefig.dpi": 200,
    "figure.dpi": 100,
}


@dataclass(frozen=True)
class Curve:
    """One line of a plot. `style`: (colour, marker), or the next of the palette."""

    label: str
    x: Any
    y: Any
    style: tuple[str, str] | None = None


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's own defaults under `STYLE`, whatever the user's settings; those come back untouched."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(cast(Any, STYLE))
        yield


def drawable(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """What a logarithmic y axis can show of a curve, and how many points it cannot (<= 0, NaN, infinite)."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    with np.errstate(invalid="ignore"):
        kept = np.isfinite(x) & np.isfinite(y) & (y > 0)
    return x[kept], y[kept], int(np.sum(~kept))


def draw(axes: Axes, curves: Sequence[Curve], log_x: bool = False) -> list[str]:
    """The curves on an axis, about ten markers each; notes tell what could not be drawn."""
    notes, drawn = [], 0
    for i, curve in enumerate(curves):
        x, y, left_out = drawable(curve.x, curve.y)
        if left_out:
            points = "point" if left_out == 1 else "points"
            notes.append(f"{curve.label}: {left_out} {points} not drawn (not positive or not finite)")
        colour, marker = curve.style or (OKABE_ITO[i % len(OKABE_ITO)], MARKERS[i // len(OKABE_ITO) % len(MARKERS)])
        axes.plot(x, y, color=colour, marker=marker, markevery=_some(x, i, log_x), label=curve.label)
        drawn += len(x)
    if drawn:
        axes.set_yscale("log")
    if not drawn:
        axes.text(0.5, 0.5, "nothing to draw on a logarithmic axis", transform=axes.transAxes, ha="center")
    return notes


def _some(x: np.ndarray, shift: int, log_x: bool) -> Any:
    """Indices of about ten points even along the axis, a little shifted from curve to curve, the last one of them."""
    if len(x) <= 12:
        return None
    along = np.log(np.maximum(x, 1)) if log_x else x
    targets = np.linspace(along[0], along[-1], 11)[:-1] + (shift % 5) / 50 * (along[-1] - along[0])
    return sorted({int(np.argmin(np.abs(along - target))) for target in targets} | {len(x) - 1})


def plot(curves: Sequence[Curve], xlabel: str, ylabel: str, title: str = "") -> tuple[Figure, list[str]]:
    """One panel with a logarithmic y axis, its legend beside it in as many columns as it needs; and the notes."""
    with styled():
        columns = max(1, math.ceil(len(curves) / 20))
        figure = Figure(figsize=(5.6 + 1.8 * columns, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        notes = draw(axes, curves)
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        if curves:
            figure.legend(loc="outside right upper", ncols=columns)
        _foot(figure, notes)
    return figure, notes


def _foot(figure: Figure, notes: Sequence[str]) -> None:
    if notes:
        shown = [*notes[:3], f"and {len(notes) - 3} more"] if len(notes) > 4 else notes
        figure.supxlabel("\n".join(shown), fontsize=7, color="#555555", x=0.01, ha="left")


def render(figure: Figure) -> dict[str, bytes]:
    """The figure as `png` and `pdf`, all of it inside."""
    files = {}
    with styled():
        for kind in ("png", "pdf"):
            buffer = io.BytesIO()
            dated = {"CreationDate": None} if kind == "pdf" else {}  # the same figure is the same file
            figure.savefig(buffer, format=kind, bbox_inches="tight", pad_inches=0.08, metadata=dated)
            files[kind] = buffer.getvalue()
    return files


# --- the headline ---------------------------------------------------------------------------------------------------


def headline(outcome: Any, data: str, finding: str) -> tuple[Figure, list[str]]:
    """Bits to accuracy; under it what AdaCGD sent; beside it the theorem at 1x. And notes on what is not drawn.

    finding: the sentence under the title.
    """
    with styled():
        strip = next((t for t in outcome.told if t.choice.method == "AdaCGD"), None)
        figure = Figure(figsize=(10.2, 6.4 if strip else 4.4), layout="constrained")
        FigureCanvasAgg(figure)
        heights = (2.3, 1.0) if strip else (1.0,)
        grid = figure.add_gridspec(len(heights), 2, width_ratios=(1.7, 1), height_ratios=heights)
        notes = _race(figure.add_subplot(grid[0, 0]), outcome)
        notes += _bounds(figure.add_subplot(grid[0, 1]), outcome)
        if strip:
            _levels(figure, figure.add_subplot(grid[1, :]), strip)
        problem = outcome.spec.problem
        head(
            figure,
            f"{outcome.spec.title}: {data}, {problem.workers} workers, {problem.regulariser} regulariser "
            f"{problem.strength:g}",
            textwrap.wrap(finding, 150),
        )
        _foot(figure, notes)
    return figure, notes


def head(figure: Figure, title: str, lines: Sequence[str]) -> None:
    """A title and lines under it, in a band of their own above the panels."""
    inch = 1 / figure.get_figheight()
    figure.text(0.01, 1, title, va="top", fontsize=11, fontweight="bold")
    figure.text(0.01, 1 - 0.24 * inch, "\n".join(lines), va="top", fontsize=9, linespacing=1.25)
    engine = cast(ConstrainedLayoutEngine, figure.get_layout_engine())
    engine.set(rect=(0, 0, 1, 1 - (0.29 + 0.17 * len(lines)) * inch))


def amount(bits: float) -> str:
    """Bits in three digits and the unit that suits them."""
    for unit, size in (("bit", 1.0), ("kbit", 1e3)):
        if bits < 999.5 * size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits / 1e6:,.0f} Mbit" if bits >= 999.5e6 else f"{bits / 1e6:.3g} Mbit"


def _race(axes: Axes, outcome: Any) -> list[str]:
    """Squared gradient norm against bits per worker, tuned runs."""
    told, tolerance = outcome.told, outcome.spec.budget.tolerance
    ends = [t.tuned.bits()[-1] for t in told if t.tuned.status == "converged"] or [t.tuned.bits()[-1] for t in told]
    right = min(1.05 * max(ends), ROOM * min(ends)) or 1.0
    curves, notes = [], []
    for t in told:
        bits, grad_sq = t.tuned.bits(), t.tuned.grad_sq
        reached = t.tuned.status == "converged"
        end = amount(bits[-1]) if reached else "not reached" if t.tuned.status == "completed" else "diverged"
        seen = np.arange(len(bits)) <= np.searchsorted(bits, right, side="right")  # and one more, to reach the edge
        words = "" if t.choice.words() == "-" else f"{_pretty(t.choice.words())}, "
        label = f"{t.choice.method}  ({words}{t.multiple:g}×):  {end}"
        curves.append(Curve(label, bits[seen] / 1000, grad_sq[seen], METHODS[t.choice.method]))
        if bits[-1] > right:
            verb = "reaches the tolerance at" if reached else "does not reach the tolerance and goes on to"
            notes.append(f"beyond the axis: {t.choice.method} {verb} {amount(bits[-1])}")
    notes += draw(axes, curves)
    axes.axhline(tolerance**2, color="#555555", lw=0.9, ls=(0, (4, 3)), zorder=1)
    axes.set_xlim(-0.012 * right / 1000, right / 1000)
    axes.annotate(  # on the left, where no curve ends: the axis is at most ROOM times the shortest
        rf"$\|\nabla f\| = $ {tolerance:g}",
        (0, tolerance**2),
        xycoords=axes.get_yaxis_transform(),
        xytext=(6, -3),
        textcoords="offset points",
        ha="left",
        va="top",
        fontsize=8,
        color="#555555",
    )
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log":
        axes.set_ylim(min(low, tolerance**2 / 6), high)
    axes.set(
        xlabel="uplink, kbit per worker (32 bits a scalar)",
        ylabel=r"squared gradient norm  $\|\nabla f(x)\|^2$",
        title="Tuned: parameters, step as a multiple (×) of theory, bits to the tolerance",
    )
    axes.legend(loc="upper right")
    return notes


def _pretty(words: str) -> str:
    return words.replace("zeta=", "ζ=").replace(" in ", " ∈ ")


def _levels(figure: Figure, axes: Axes, told: Any) -> None:
    """What AdaCGD sent, worker by worker, round by round."""
    trace, levels = told.tuned, told.choice.levels
    m = len(levels)
    shades = {1: LEVELS[2:3], 2: LEVELS[1:4:2], 3: LEVELS[:5:2]}.get(m, LEVELS)
    colours = [SILENT] + [shades[round(j * (len(shades) - 1) / max(m - 1, 1))] for j in range(m)]
    words = ["silent"] + [f"K={k}" for k in levels]
    axes.grid(False)
    if len(trace.rounds) > 1:
        edges = np.concatenate([trace.rounds, trace.rounds[-1:]])[:-1] + 0.5  # round t fills t - 1/2 .. t + 1/2
        image = axes.pcolormesh(
            edges,
            np.arange(trace.n + 1) + 0.5,
            trace.level[1:].T,
            cmap=ListedColormap(colours),
            norm=BoundaryNorm(np.arange(m + 2) - 0.5, m + 1),
            rasterized=True,
        )
        bar = figure.colorbar(image, ax=axes, ticks=range(m + 1), pad=0.01, aspect=8, fraction=0.05, drawedges=True)
        bar.ax.set_yticklabels(words)
        bar.ax.tick_params(length=0)
        bar.outline.set_linewidth(0.5)
    sent = trace.level[1:]
    share = ", ".join(f"{word} {np.mean(sent == j):.0%}" for j, word in enumerate(words)) if len(sent) else "nothing"
    gaps = int(np.max(np.diff(trace.rounds), initial=1))
    sample = "" if gaps == 1 else f", seen every {gaps} rounds"
    axes.set(xlabel="round", ylabel="worker", title=f"What each worker sent in the tuned AdaCGD run{sample}: {share}")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))


def _bounds(axes: Axes, outcome: Any) -> list[str]:
    """The left side of the theorem over its right side along the 1x runs; 1 is the bound."""
    told = [t for t in outcome.told if t.check is not None and len(t.check.rounds)]
    curves = [Curve(t.choice.method, t.check.rounds, t.check.ratios, METHODS[t.choice.method]) for t in told]
    notes = draw(axes, curves, log_x=True)
    axes.axhline(1, color="black", lw=1.4)
    axes.text(0.02, 1.04, "1: the theorem's bound", transform=axes.get_yaxis_transform(), va="bottom", fontsize=8.5)
    if told:
        axes.set_xscale("log")
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.1), max(high, 2.0))
        axes.legend(loc="lower right")
    axes.set(
        xlabel="round", ylabel="theorem: left side / right side", title="Same parameters at 1×: the theorem's check"
    )
    return notes


# --- theorem, worst case, trajectory --------------------------------------------------------------------------------

STATEMENTS = {
    "tight": "Tight rate and step: EF21, EF14",
    "general": "General PL rate and step: EF21, CLAG",
    "descent": "1 − γαμ at γ = 1/L: C(∇f) alone, one worker",
}
CONDITION = {0.1: "#0072B2", 0.01: "#D55E00"}  # colour of mu/L
# Marker and size, so that those that fall on one another are seen as rings.
SERIES = {
    ("EF21", 1): ("o", 12.0),
    ("EF21", 2): ("s", 8.0),
    ("EF21", 3): ("D", 5.0),
    ("EF14", 1): ("^", 4.0),
    ("CLAG", 1): ("s", 8.0),
    ("CLAG", 2): ("D", 5.0),
    ("CGD", 1): ("o", 9.0),
}


def tightness(rows: Sequence[Any], promised: Callable[[str, float, float], float]) -> Figure:
    """Above, log-rates against alpha: theorem (lines), exact worst case (rings), trajectory (crosses). Below, the
    latter two over the theorem's: 1 is tight.

    promised: the theorem's factor, of (statement, mu, alpha).
    """
    with styled():
        figure = Figure(figsize=(10.2, 6.2), layout="constrained")
        FigureCanvasAgg(figure)
        shown = [statement for statement in STATEMENTS if any(row.statement == statement for row in rows)]
        panels = figure.subplots(2, len(shown), sharex=True, squeeze=False, gridspec_kw={"height_ratios": (1.5, 1)})
        for statement, (rates, ratios) in zip(shown, panels.T, strict=True):
            chosen = [row for row in rows if row.statement == statement]
            _rates(rates, chosen, functools.partial(promised, statement))
            _ratios(ratios, chosen)
            rates.set(title=STATEMENTS[statement])
            ratios.set(xlabel=r"$\alpha$ of the compressor")
        panels[0, 0].set_ylabel(r"log-rate  $-\log(V^{t+1}/V^t)$")
        panels[1, 0].set_ylabel("log-rate / theorem's")
        head(
            figure,
            "Theorem (lines), exact worst case (rings), measured trajectory (crosses), at the theorem's own step",
            ["Higher is faster. Below: how many times faster than the theorem says, in log-rate; 1 is tight"],
        )
    return figure


def _series(rows: Sequence[Any]) -> Iterator[tuple[str, str, str, float, list[Any]]]:
    """(label, colour, marker, its size, rows) of each mechanism, n and mu."""
    for mechanism, n, mu in dict.fromkeys((row.mechanism, row.n, row.mu) for row in rows):
        own = [row for row in rows if (row.mechanism, row.n, row.mu) == (mechanism, n, mu)]
        yield (f"{mechanism}, n = {n}", CONDITION[mu], *SERIES[mechanism, n], own)


def _rates(axes: Axes, rows: Sequence[Any], promised: Callable[[float, float], float]) -> None:
    alphas = np.linspace(0.05, 0.95, 91)
    for mu in dict.fromkeys(row.mu for row in rows):
        line = [-math.log(promised(mu, float(alpha))) for alpha in alphas]
        axes.plot(alphas, line, color=CONDITION[mu], lw=1.2, label=f"theorem, μ/L = {mu:g}")
    named: set[str] = set()
    for label, colour, marker, size, own in _series(rows):
        at = [row.alpha for row in own]
        shown = "_" if label in named else f"worst case, {label}"
        named.add(label)
        worst, run = ([row.rates()[name] for row in own] for name in ("worst", "measured"))
        axes.plot(at, worst, ls="", marker=marker, color=colour, mfc="none", ms=size, mew=0.9, label=shown)
        axes.plot(at, run, "x", color=colour, ms=3.4, mew=1.0)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / 6, high)  # room for the legend
    axes.legend(loc="lower right", fontsize=7.5)


def _ratios(axes: Axes, rows: Sequence[Any]) -> None:
    for _, colour, marker, size, own in _series(rows):
        at = [row.alpha for row in own]
        worst, run = ([row.times(name) for row in own] for name in ("worst", "measured"))
        axes.plot(at, worst, ls="", marker=marker, color=colour, mfc="none", ms=size, mew=0.9)
        axes.plot(at, run, "x", color=colour, ms=3.4, mew=1.0)
    axes.axhline(1, color="black", lw=1.2, zorder=1)
    axes.set_ylim(0.9, max(2.15, axes.get_ylim()[1]))
