"""How far beyond its theory each method can go: the stability edge of several methods on three problems."""

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import adacgd as ac
import problems

PACKAGES: tuple[str, ...] = ()  # what it needs beyond the library
ROUNDS, QUICK_ROUNDS = 2000, 400
PRECISION, QUICK_PRECISION = 0.02, 0.3
QUICK = ("GD", "EF21 Top-1", "AdaCGD 1,2,4,8")
ZETA = 1.0  # of the triggers
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Row:
    """One method on one problem."""

    problem: str
    method: str
    edge: ac.Edge

    @property
    def verdict(self) -> str:
        """The theorem's own step is stable, or it is not."""
        return "holds" if self.edge.stable >= 1 else "does not hold"

    def as_dict(self) -> dict[str, Any]:
        """For machines; an edge that was not found is null."""
        edge = self.edge
        return {
            "problem": self.problem,
            "method": self.method,
            "theory_step": edge.gamma,
            "stable": edge.stable,
            "unstable": None if edge.unstable == math.inf else edge.unstable,
            "verdict": self.verdict,
            "tried": [
                {"multiple": float(multiple), "grad_sq": float(grad_sq), "outcome": outcome}
                for multiple, grad_sq, outcome in zip(edge.multiples, edge.grad_sq, edge.outcomes, strict=True)
            ],
        }


def three_problems() -> dict[str, Any]:
    """The 3PC recipe, where too long a step diverges, and the embedded breast_cancer with both regularisers."""
    data = problems.load("breast_cancer")
    return {
        "quadratic": problems.quadratic(workers=10, dim=64, noise_scale=0.8, strength=1e-3, seed=12345),
        "logistic, L2": problems.logistic(data, workers=20, regulariser="l2", strength=1e-2),
        "logistic, nonconvex": problems.logistic(data, workers=20, regulariser="nonconvex", strength=0.1),
    }


def methods(dim: int) -> dict[str, tuple[ac.ThreePoint, float]]:
    """Map and momentum: those of theory.md pitfall 15, with K = d/8, EF21 with Top-1, and EF21 with a heavy ball."""
    eighth = ac.TopK(max(1, dim // 8))
    found: dict[str, ac.ThreePoint] = {
        "GD": ac.GD(),
        "EF21 Top-1": ac.EF21(ac.TopK(1)),
        "EF21 Top-d/8": ac.EF21(eighth),
        "LAG": ac.LAG(ZETA),
        "CLAG Top-d/8": ac.CLAG(eighth, ZETA),
        "AdaCGD 1,2,4,8": ac.AdaCGD([ac.TopK(k) for k in (1, 2, 4, 8)], ZETA),
        "3PCv1 Top-d/8": ac.ThreePCv1(eighth),
    }
    heavy = {"EF21-HB 0.9": (ac.EF21(eighth), 0.9)}
    return {name: (uplink, 0.0) for name, uplink in found.items()} | heavy


def run(quick: bool, progress: Progress | None = None) -> list[Row]:
    """Every method on every problem, at multiples of its nonconvex theorem's step."""
    cases = [
        (name, problem, method, *chosen)
        for name, problem in three_problems().items()
        for method, chosen in methods(problem.dim).items()
        if method in QUICK or not quick
    ]
    rounds, precision = (QUICK_ROUNDS, QUICK_PRECISION) if quick else (ROUNDS, PRECISION)
    rows = []
    for name, problem, method, uplink, momentum in cases:
        edge = ac.stability_edge(problem, uplink, momentum=momentum, rounds=rounds, precision=precision)
        rows.append(Row(name, method, edge))
        if progress is not None:
            progress("stability edge", len(rows), len(cases))
    return rows


def times(multiple: float) -> str:
    """A multiple of theory in words."""
    return f"{multiple:,.0f}x" if multiple >= 1000 else f"{multiple:.4g}x"


def found(edge: ac.Edge) -> tuple[str, str]:
    """The two ends in words."""
    if edge.unstable == math.inf:
        return f">= 2^{math.log2(edge.stable):g}x", "-"
    return "none" if edge.stable == 0 else times(edge.stable), times(edge.unstable)


def first_divergence(edge: ac.Edge) -> str:
    """The smallest power of two that diverged, in words: what theory.md pitfall 15 tells of."""
    steps = zip(edge.multiples, edge.outcomes, strict=True)
    powers = [m for m, outcome in steps if outcome == "diverges" and math.frexp(m)[0] == 0.5]
    return times(powers[0]) if powers else "-"


def finding(rows: Sequence[Row]) -> list[str]:
    """What the numbers say, a sentence a problem."""
    words = []
    for problem in dict.fromkeys(row.problem for row in rows):
        own = sorted((row for row in rows if row.problem == problem), key=lambda row: row.edge.stable)
        ends = [f"{row.method} ({found(row.edge)[0]} theory)" for row in (own[0], own[-1])]
        diverged = sum("diverges" in row.edge.outcomes for row in own)
        words.append(
            f"{problem}: the first to lose its hold is {ends[0]}, the last {ends[1]}; {diverged} of {len(own)} diverge "
            "at some step tried."
        )
    return words


def table(rows: Sequence[Row]) -> str:
    """Every step tried as CSV, floats so that they read back as the same bits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["problem", "method", "theory_step", "stable", "unstable", "multiple", "grad_sq", "outcome"])
    for row in rows:
        told = row.as_dict()
        head = [told[name] for name in ("problem", "method", "theory_step", "stable", "unstable")]
        writer.writerows([*head, *step.values()] for step in told["tried"])
    return text.getvalue()
