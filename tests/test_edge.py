"""`adacgd theory edge`: its table, its files, its picture, its verdicts."""

import csv
import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest

import adacgd as ac
from experiments import edge, edge_figure, theorems
from experiments.cli import main


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def made(stable=4.0, unstable=4.5, outcomes=("settles", "settles", "oscillates", "diverges")):
    return ac.Edge(0.25, stable, unstable, np.array([1.0, 4.0, 4.5, 8.0]), np.array([1e-3, 0.0, 2, math.nan]), outcomes)


ROWS = [
    edge.Row("one", "GD", made()),
    edge.Row("one", "LAG", made(2.0**40, math.inf, ("settles",) * 4)),
    edge.Row("two", "GD", made(0.0, 1.0, ("diverges",) * 4)),
    edge.Row("two", "LAG", made(1.0, 4.0, ("settles", "oscillates", "oscillates", "oscillates"))),
]


def test_the_command_prints_the_table_and_writes_the_figure(capsys, monkeypatch):
    """Whole and small; nothing beyond the library is asked for."""
    real = importlib.util.find_spec
    monkeypatch.setattr(theorems.importlib.util, "find_spec", lambda name: None if name == "PEPit" else real(name))
    three = edge.three_problems()
    monkeypatch.setattr(
        edge, "three_problems", lambda: {name: p for name, p in three.items() if name != "logistic, L2"}
    )
    assert main(["theory", "edge", "--quick", "--out", "here"]) == 0
    out, err = capsys.readouterr()
    assert all(len(line) <= 106 for line in out.splitlines() if "│" in line) and "…" not in out
    assert "6 rows" in out and "first to lose its hold" in out and "written" in err
    assert sorted(p.name for p in Path("here").iterdir()) == [f"edge.{kind}" for kind in ("csv", "json", "pdf", "png")]
    record = json.loads(Path("here/edge.json").read_text())
    rows = record["rows"]
    assert [row["method"] for row in rows] == list(edge.QUICK) * 2 and len(record["finding"]) == 2
    assert {row["verdict"] for row in rows} == {"holds"} and "PEPit" not in record["made"]["versions"]
    for row in rows:
        tried = {step["multiple"]: step["outcome"] for step in row["tried"]}
        assert all(outcome == "settles" for multiple, outcome in tried.items() if multiple <= row["stable"])
        assert tried[row["unstable"]] != "settles" and row["unstable"] <= row["stable"] * 1.3
    by_name = {(row["problem"], row["method"]): row for row in rows}
    assert by_name["quadratic", "GD"]["stable"] <= 2 < by_name["quadratic", "GD"]["unstable"]
    assert not any(step["outcome"] == "diverges" for row in rows[3:] for step in row["tried"])  # |grad f| is bounded
    with open("here/edge.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == sum(len(row["tried"]) for row in rows)
    assert float(lines[0]["multiple"]) == 0.125 and lines[0]["outcome"] == "settles"


def test_an_edge_that_was_not_found_is_told_so():
    assert edge.found(ROWS[1].edge) == (">= 2^40x", "-") and ROWS[1].as_dict()["unstable"] is None
    assert edge.found(ROWS[0].edge) == ("4x", "4.5x") and edge.found(ROWS[2].edge) == ("none", "1x")
    assert edge.times(12345.6) == "12,346x" and edge.times(92.62) == "92.62x"
    assert [edge.first_divergence(row.edge) for row in ROWS] == ["8x", "-", "1x", "-"]
    words = edge.finding(ROWS)
    assert words[0].startswith(
        "one: the first to lose its hold is GD (4x theory), the last LAG (>= 2^40x theory); 1 of 2"
    )


def test_a_theorem_whose_own_step_is_not_stable_fails(capsys, monkeypatch):
    assert [row.verdict for row in ROWS] == ["holds", "holds", "does not hold", "holds"]
    monkeypatch.setattr(edge, "run", lambda *_: ROWS)
    assert main(["theory", "edge"]) == 1
    out = capsys.readouterr().out
    assert "does not hold" in out and ">= 2^40x" in out and "none" in out
    monkeypatch.setattr(edge, "run", lambda *_: ROWS[:2])
    assert main(["theory", "edge", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["tried"][3]["grad_sq"] is None and rows[1]["unstable"] is None


def test_the_picture_has_a_panel_a_method_and_problem_and_the_edge_where_it_is():
    figure = edge_figure.edges(ROWS)
    assert len(figure.axes) == 4
    first, second = figure.axes[:2]
    lines = [line.get_xdata()[0] for line in first.get_lines() if line.get_marker() == "None"]
    assert lines == [0, math.log2(4.5)]
    assert len([line for line in second.get_lines() if line.get_marker() == "None"]) == 1  # no edge, theory only
    points = {line.get_marker(): line.get_xydata().tolist() for line in first.get_lines()}
    assert points["o"] == [[0, 1e-3], [2, edge_figure.FLOOR]] and points["X"] == [[3, edge_figure.CEILING]]
    assert len({marker for _, marker, _ in edge_figure.OUTCOMES.values()}) == 3
    assert first.get_title(loc="right") == "4×" and second.get_title(loc="right") == "≥ 2^40×"


def test_every_row_is_a_method_with_a_step(monkeypatch):
    """The full form, without its runs: 8 methods on 3 problems, each at its own nonconvex theory."""
    asked = []
    monkeypatch.setattr(
        ac, "stability_edge", lambda problem, uplink, **kw: asked.append((problem, uplink, kw)) or made()
    )
    told = []
    rows = edge.run(False, lambda *counts: told.append(counts))
    assert len(rows) == len(asked) == 24 and told[-1] == ("stability edge", 24, 24)
    assert [kw["momentum"] for *_, kw in asked] == [*[0.0] * 7, 0.9] * 3
    assert all(kw["rounds"] == edge.ROUNDS and kw["precision"] == edge.PRECISION for *_, kw in asked)
    for problem, uplink, _ in asked:
        assert ac.theory.stepsize(problem.smoothness, uplink.constants(problem.dim)) > 0


def test_a_near_miss_is_told_the_nearest(capsys):
    assert main(["theory", "edg"]) == 2
    assert "'edge'" in capsys.readouterr().err and not list(Path.cwd().iterdir())
