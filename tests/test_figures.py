"""Figures: log axes with what cannot be drawn, no display, no LaTeX, many curves, nothing left behind."""

import io
import warnings

import matplotlib as mpl
import numpy as np
import pytest

from experiments import figures


def curve(y, label="curve"):
    return figures.Curve(label, np.arange(len(y)), np.asarray(y, float))


def test_what_a_log_axis_cannot_show_is_left_out_and_told():
    """FR-32."""
    figure, notes = figures.plot([curve([1, 1e-3, 0, -1e-9, np.nan, 1e-6])], "x", "y")
    (line,) = figure.axes[0].get_lines()
    assert len(line.get_ydata()) == 3
    assert len(notes) == 1 and "3" in notes[0]
    assert figures.render(figure)["png"][:4] == b"\x89PNG"


def test_all_zeros_make_a_file():
    """FR-32."""
    figure, notes = figures.plot([curve(np.zeros(5))], "x", "y")
    assert notes and figures.render(figure)["pdf"][:4] == b"%PDF"


def test_the_legend_of_40_curves_is_inside_the_image():
    """FR-33."""
    figure, _ = figures.plot([curve(10.0 ** -np.arange(5) / (i + 1), f"method {i}") for i in range(40)], "x", "y")
    files = figures.render(figure)
    renderer = figure.canvas.get_renderer()
    legend = (figure.legends or [figure.axes[0].get_legend()])[0].get_window_extent(renderer)
    tight = figure.get_tightbbox(renderer)
    assert legend.width > 0 and tight.height > 0
    image = mpl.image.imread(io.BytesIO(files["png"]))
    assert image.shape[0] > 100 and np.ptp(image[:, -3:, :3]) < 1e-6  # the margin is blank: nothing is cut off
    assert np.ptp(image[-3:, :, :3]) < 1e-6


def test_60_plots_leave_nothing_open_and_no_setting_changed(monkeypatch):
    """FR-33: without a display, without LaTeX."""
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("PATH", "")
    before = dict(mpl.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(60):
            figures.plot([curve([1.0, 0.1])], "x", "y")
    figure, _ = figures.plot([curve([1.0, 0.1])], "x", "y")
    assert set(figures.render(figure)) == {"png", "pdf"}
    assert dict(mpl.rcParams) == before
    pyplot = pytest.importorskip("matplotlib.pyplot")
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize(
    ("bits", "words"),
    [(0, "0 bit"), (32, "32 bit"), (960, "960 bit"), (999.7, "1 kbit"), (22_080, "22.1 kbit"), (999_900, "1 Mbit"),
     (2.5e7, "25 Mbit"), (3.21e10, "32,100 Mbit")],
)  # fmt: skip
def test_amounts_are_told_in_the_unit_that_suits_them(bits, words):
    assert figures.amount(bits) == words
