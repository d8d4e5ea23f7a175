"""The picture of step against outcome: one panel a problem and method, the stability edge as a line."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MultipleLocator

from experiments.edge import found
from experiments.figures import OKABE_ITO, head, styled

# Colour, marker and size of each outcome: apart for the colour-blind, and by shape in grey.
OUTCOMES = {
    "settles": (OKABE_ITO[5], "o", 3.6),
    "oscillates": (OKABE_ITO[1], "s", 3.6),
    "diverges": (OKABE_ITO[4], "X", 5.0),
}
FLOOR, CEILING = 1e-32, 1e13  # what the axis shows: below is rounding, above a run has diverged


def edges(rows: Sequence[Any]) -> Figure:
    """|grad f|^2 at the end of a run against log2 of its step over theory's. Rows of panels: problems."""
    names, methods = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("problem", "method"))
    with styled():
        figure = Figure(figsize=(1.5 + 1.75 * len(methods), 1.3 + 2.0 * len(names)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(names), len(methods), sharex="row", sharey="row", squeeze=False)
        for row in rows:
            _panel(panels[names.index(row.problem), methods.index(row.method)], row.edge)
        for axes, method in zip(panels[0], methods, strict=True):
            axes.set_title(method)
        for axes, name in zip(panels[:, 0], names, strict=True):
            axes.set_ylabel(f"{name}\n" r"$\|\nabla f\|^2$ at the end")
        for axes in panels[-1]:
            axes.set_xlabel(r"$\log_2(\gamma/\gamma_{\mathrm{theory}})$")
        keys = [
            Line2D([], [], ls="", color=colour, marker=marker, ms=size + 1, label=outcome)
            for outcome, (colour, marker, size) in OUTCOMES.items()
        ]
        keys.append(Line2D([], [], color="black", lw=1.1, label="edge: first loss of hold"))
        keys.append(Line2D([], [], color="#777777", lw=0.9, ls=(0, (4, 3)), label="the theorem's step"))
        figure.legend(handles=keys, loc="outside lower center", ncols=len(keys))
        head(
            figure,
            "How far beyond theory a step may go before the method loses its hold",
            ["Over each panel: the largest multiple of the theorem's step up to which every run settled"],
        )
    return figure


def _panel(axes: Axes, edge: Any) -> None:
    at, diverged = np.log2(edge.multiples), np.array([told == "diverges" for told in edge.outcomes])
    ends = np.where(diverged, CEILING, np.clip(edge.grad_sq, FLOOR, CEILING))
    for outcome, (colour, marker, size) in OUTCOMES.items():
        chosen = np.array([told == outcome for told in edge.outcomes])
        axes.plot(at[chosen], ends[chosen], ls="", color=colour, marker=marker, ms=size, mew=0.2, mec="white")
    axes.axvline(0, color="#777777", lw=0.9, ls=(0, (4, 3)), zorder=1)
    if edge.unstable < math.inf:
        axes.axvline(math.log2(edge.unstable), color="black", lw=1.1, zorder=1)
    axes.set_title(found(edge)[0].replace("x", "×").replace(">=", "≥"), loc="right", fontweight="bold")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MultipleLocator(4 if at[-1] < 24 else 8))
