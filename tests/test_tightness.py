"""`adacgd theory tightness`: its rows, its files, its verdicts, and what it refuses."""

import dataclasses
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import adacgd as ac
from adacgd import theory
from experiments import theorems, tightness
from experiments.cli import main

needs_pep = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("PEPit", "clarabel")),
    reason='needs PEPit and Clarabel: pip install "adacgd[pep]"',
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@needs_pep
def test_the_command_prints_the_table_and_writes_the_figure(capsys, monkeypatch):
    monkeypatch.setattr(tightness, "TURNS", 2)  # C(v) = (1 + e)v and (1 - e)v
    assert main(["theory", "tightness", "--quick", "--out", "here"]) == 0
    out, err = capsys.readouterr()
    words = " ".join(out.split())
    assert "The tight rate: the worst case is 1.000 times" in words and "18 rows" in words and "written" in err
    assert all(len(line) <= 106 for line in out.splitlines() if "│" in line) and "…" not in out
    assert sorted(p.name for p in Path("here").iterdir()) == [
        f"tightness.{kind}" for kind in ("csv", "json", "pdf", "png")
    ]
    record = json.loads(Path("here/tightness.json").read_text())
    assert set(record["made"]["versions"]) >= {"PEPit", "clarabel", "adacgd"}
    rows = record["rows"]
    assert len(rows) == 18 == len(Path("here/tightness.csv").read_text().splitlines()) - 1
    for row in rows:
        assert row["verdict"] == "holds" and row["measured"] <= row["worst"] * (1 + 1e-5)
        if row["statement"] == "tight":
            rho = theory.tight_rate(row["mu"], 1, row["alpha"])
            for name in ("theorem", "worst", "several", "measured", "measured_round"):
                assert row[name] == pytest.approx(rho, rel=1e-5), (row["mechanism"], row["n"], name)
        elif row["statement"] == "general":  # runs on quadratics go as fast as the floor, nearly twice the theorem
            floor = theory.ef21_floor(row["mu"], 1, row["alpha"], row["stepsize"])
            assert row["measured"] == pytest.approx(floor, rel=2e-3)
            assert 1.5 < row["log_rate_worst"] / row["log_rate_theorem"] < 1.9
        else:
            factor = theory.cgd_factor(row["mu"], 1, row["alpha"], row["stepsize"])
            assert row["worst"] == pytest.approx(factor, rel=1e-5) == row["measured"]


@needs_pep
def test_a_theorem_that_promises_a_little_more_falls(monkeypatch):
    """The tight factor with 0.1 % more log-rate, on its own instance; EF14 likewise."""
    for mechanism in ("EF21", "EF14"):
        row = tightness.compare(tightness.Case("tight", mechanism, 1, 0.1, 0.5))
        assert row.verdict == "holds"
        assert dataclasses.replace(row, theorem=row.theorem**1.001).verdict == "does not hold"
        assert dataclasses.replace(row, measured=row.worst * 1.001).verdict == "does not hold"
    monkeypatch.setattr(tightness, "run", lambda *_: [dataclasses.replace(row, theorem=row.theorem**1.001)])
    assert main(["theory", "tightness"]) == 1


def test_the_compressors_of_the_trajectories_lose_all_that_alpha_allows():
    e = math.sqrt(0.5)
    for turn in (0.0, 1.0, math.pi):
        turned = tightness.Turned(e, turn)
        v = np.array([3.0, -4.0])
        assert np.linalg.norm(turned(None, v).value - v) == pytest.approx(e * 5, rel=1e-12)
        assert turned.alpha(2) == pytest.approx(0.5)
    sent = tightness.Direct(ac.TopK(1))(None, np.ones(2), np.ones(2), np.array([1.0, -3.0])).value
    assert list(sent) == [0.0, -3.0]


def test_factors_leave_rounding_out():
    V = 0.5 ** np.arange(200.0)
    mean, most = tightness.factors(np.maximum(V, 1e-30))
    assert mean == pytest.approx(0.5, rel=1e-12) == most
    assert tightness.factors(np.array([4.0, 1.0, 0.9, 0.81]))[1] == pytest.approx(0.9)


def refused(capsys, *argv):
    assert main([*argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and not list(Path.cwd().iterdir())
    return err


def test_without_the_extra_one_line_names_it(capsys, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(theorems.importlib.util, "find_spec", lambda name: None if name == "PEPit" else real(name))
    assert 'PEPit: pip install "adacgd[pep]"' in refused(capsys, "theory", "tightness")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["theory", "tightnes"], "'tightness'"),
        (["theory"], "TOPIC"),
        (["theory", "tightness", "--quik"], "'--quick'"),
        (["theory", "tightness", "--out", " "], "--out"),
    ],
)
def test_a_bad_request_is_refused_in_a_line(capsys, argv, words):
    assert words in refused(capsys, *argv)


@needs_pep
def test_a_file_in_the_way_is_told_before_anything_runs(capsys):
    Path("taken").write_text("")
    assert main(["theory", "tightness", "--out", "taken"]) == 2
    assert "taken" in capsys.readouterr().err and Path("taken").read_text() == ""


def test_help_shows_an_example_and_imports_nothing_heavy():
    program = (
        "import sys; from experiments.cli import main\n"
        "try: code = main(['theory', '--help'])\n"
        "except SystemExit as stop: code = stop.code or 0\n"
        "print(code, [m for m in ('jax', 'matplotlib', 'PEPit', 'cvxpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=Path(theorems.__file__).parent.parent,
    )
    assert done.stdout.rstrip().endswith("0 []") and "adacgd theory tightness" in done.stdout, done.stderr
