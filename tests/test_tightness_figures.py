"""The figures of docs/theory-*.md, docs/theory-measured.md and docs/gains.md, on one family and few rounds."""

import functools
import math

import numpy as np
import pytest

import adacgd as ac
from benchmarks import gains, measured
from benchmarks.bounds import SERVERS, UPLINKS
from benchmarks.tightness_figures import BUILD, PAGES, Page, figure_of, line, measure
from experiments.figures import render

SMALL = "singular convex"
build = functools.cache(lambda name: BUILD[name]())


def test_curves_are_ratios_below_1_and_rates_are_those_of_the_potential():
    gd = list(measure(iter([line("", "GD", UPLINKS["GD"], SMALL)]), build, rounds=12))
    assert [f.regime for f in gd] == ["nonconvex", "pl", "convex"] and all(f.holds for f in gd)
    problem = build(SMALL)
    gamma, mu = 1 / problem.smoothness.L_minus, problem.smoothness.mu
    trace = ac.simulate(problem, ac.GD(), stepsize=gamma, rounds=12)
    delta = trace.loss - problem.f_star
    _, pl, _ = gd
    np.testing.assert_allclose(pl.ratios[0], delta[1:] / ((1 - gamma * mu) ** trace.rounds[1:] * delta[0]), rtol=1e-9)
    assert pl.faster[0] == pytest.approx(math.log(delta[0] / delta[-1]) / (-12 * math.log(1 - gamma * mu)), rel=1e-9)
    assert np.isnan(gd[0].faster).all() and np.isnan(gd[2].faster).all()


def test_a_figure_has_a_panel_a_curve_and_the_line_of_the_bound():
    lines = [
        line("dual", f"GD / {server}", ac.GD(), SMALL, downlink=SERVERS[server], regimes=("nonconvex", "pl"))
        for server in ("Top-2", "Top-6")
    ]
    page = Page(lambda: iter(lines), ({("dual", "nonconvex"): "one", ("dual", "pl"): "other"},))
    found = list(measure(page.lines(), build, rounds=12))
    figure = figure_of(page, found)
    assert [axes.get_title("left") for axes in figure.axes] == ["one", "other"]
    assert all(len(axes.get_lines()) == 3 and axes.get_ylim()[0] == 0 for axes in figure.axes)
    assert render(figure)["png"][:4] == b"\x89PNG"


@pytest.mark.parametrize("name", PAGES)
def test_every_panel_of_a_page_has_lines_and_every_line_a_panel(name):
    page = PAGES[name]
    lines = list(page.lines())
    panels = {which for row in page.panels for which in row}
    for one in lines:
        shown = {regime for group, regime in panels if group == one.group}
        assert shown and set(one.trial.regimes) <= shown, one.label
        assert set(one.families) <= set(BUILD)
    for group, regime in panels:
        own = [one for one in lines if one.group == group and regime in (one.trial.regimes or (regime,))]
        assert 1 <= len(own) <= 8
        assert len({one.label for one in own}) == len(own)


def test_maxima_are_read_and_compared(tmp_path, capsys):
    rows = tmp_path / "bounds.csv"
    rows.write_text(
        "method,options,family,regime,ratio\n"
        "GD,,one,nonconvex,0.5\nGD,,other,nonconvex,0.7\nGD,init=zero,one,nonconvex,0.9\nGD,,one,pl,0.8\n"
    )
    gd = measured.SHEET[0]
    assert measured.compare(measured.read(rows), gd) == (0.7, 0.7, "other")
    assert measured.compare([], gd) is None
    with pytest.raises(FileNotFoundError, match=r"benchmarks.bounds --write"):
        measured.read(tmp_path / "none.csv")
    (row, *_) = measured.rates(lengths=(20,), families=(SMALL,))
    assert row[0] == "GD" and float(row[1]) > 1


def test_gains_on_an_embedded_set_and_what_is_missing_is_told(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path))
    monkeypatch.delenv("ADACGD_DATA", raising=False)
    page = tmp_path / "gains.md"
    assert gains.main(["--data", "breast_cancer", "w8a", "--write", str(page)]) == 0
    text = page.read_text()
    assert "Not found here: w8a." in text and "Not found here: w8a." in capsys.readouterr().out
    table = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.split("Each of them:")[1].splitlines()[2:]]
    assert len(table[2:]) == 8 and all(len(row) == 11 for row in table if row)
    for row in table[2:]:
        steps = [float(cell) for cell in row[4:10] if cell != "-"]
        assert all(step >= 1 for step in steps) and (row[8] == "-") == ("CLAG" not in row[2])
