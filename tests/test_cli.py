"""The command line: what it refuses, in a line or two, with nothing written; what it writes; how it ends."""

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import adacgd as ac
import problems
from experiments import figures, headline, spec, store, terminal
from experiments.cli import main
from problems.logistic import REGULARISERS
from problems.partition import NAMES

DATA = Path(__file__).parent / "data"
TINY = [
    "--set", "grid.multiples=[1,16]", "--set", "grid.ks=[1]", "--set", "grid.zetas=[16]",
    "--set", "grid.ladders=[[1,2]]", "--set", "budget.rounds=400", "--set", "budget.tolerance=0.01",
]  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADACGD_DATA", raising=False)


def refused(capsys, *argv):
    """The one or two lines on stderr of a request that is refused; nothing was written."""
    before = sorted(Path.cwd().rglob("*"))
    assert main([*argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err and 1 <= err.count("\n") <= 2
    assert sorted(Path.cwd().rglob("*")) == before
    return err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["reproduce", "hedline"], "'headline'"),
        (["reprodcue", "headline"], "'reproduce'"),
        (["reproduce", "headline", "--quik"], "'--quick'"),
        (["reproduce", "headline", "--qui"], "--quick"),
        (["reproduce", "headline", "--quick", "false"], "false"),
        (["reproduce", "headline", "--quick=false"], "--quick"),
        (["reproduce", "headline", "--json=no"], "--json"),
        (["reproduce", "headline", "--set", "stepsze=0.1"], "nearest"),
        (["reproduce", "headline", "--set", "problem.strenght=0.1"], "'problem.strength'"),
        (["reproduce", "headline", "--set", "problem.strength"], "KEY=VALUE"),
        (["reproduce", "headline", "--set", "problem.strength=-1"], "problem.strength"),
        (["reproduce", "headline", "--set", "grid.zetas=[-1]"], "grid.zetas"),
        (["reproduce", "headline", "--set", "grid.multiples=[nan]"], "grid.multiples"),
        (["reproduce", "headline", "--set", "grid.multiples=[0]"], "grid.multiples"),
        (["reproduce", "headline", "--set", "grid.ks=[0]"], "grid.ks"),
        (["reproduce", "headline", "--set", "grid.ks=[31]"], "30"),
        (["reproduce", "headline", "--set", "grid.ks=[2.5]"], "grid.ks"),
        (["reproduce", "headline", "--set", "budget.rounds=0"], "budget.rounds"),
        (["reproduce", "headline", "--set", "budget.tolerance=nan"], "budget.tolerance"),
        (["reproduce", "headline", "--set", "problem.partition='contigous'"], "'contiguous'"),
        (["reproduce", "headline", "--workers", "570"], "569"),
        (["reproduce", "headline", "--workers", "x"], "problem.workers"),
        (["reproduce", "headline", "--data", "phising"], "phishing"),
        (["reproduce", "headline", "--path", "nowhere.svm"], "nowhere.svm"),
        (["reproduce", "headline", "--path", "."], "folder"),
        (["reproduce", "headline", "--data-dir", "nowhere"], "nowhere"),
        (["reproduce", "headline", "--path", str(DATA / "malformed" / "value_text.svm")], "abc"),
        (["reproduce", "headline", "--out", ""], "--out"),
        (["reproduce", "headline", "--out", " "], "--out"),
        (["reproduce", "headline", "--path", ""], "--path"),
        (["reproduce", "headline", "--data-dir", ""], "--data-dir"),
        (["reproduce", "headline", "extra"], "extra"),
        (["reproduce"], "NAME"),
        (["run", "nowhere.toml"], "nowhere.toml"),
        ([], "command"),
    ],
    ids=lambda value: " ".join(value[-3:])[-48:] if isinstance(value, list) else "",
)
def test_a_bad_request_is_refused_in_a_line_with_nothing_written(capsys, argv, words):
    assert words in refused(capsys, *argv)


def test_a_data_error_names_file_line_and_token(capsys):
    words = refused(capsys, "reproduce", "headline", "--path", str(DATA / "malformed" / "value_text.svm"))
    assert "value_text.svm" in words and "line 2" in words and "abc" in words


def write(name, features):
    """A LIBSVM file of two labels in turn."""
    rows = [
        f"{(-1) ** i:+d} " + " ".join(f"{j}:{value!r}" for j, value in enumerate(row, 1))
        for i, row in enumerate(features.tolist())
    ]
    Path(name).write_text("\n".join(rows))


def test_data_too_large_is_told_in_a_line_with_the_remedy(capsys):
    features = np.ones((40, 3))
    features[7, 2] = 1e200
    write("huge.svm", features)
    words = refused(capsys, "reproduce", "headline", "--path", "huge.svm", "--workers", "4")
    assert "feature 3" in words and "1e+200" in words and "rescale" in words


@pytest.mark.parametrize("quick", [["--quick"], []])
def test_few_features_are_refused_with_a_grid_that_fits(capsys, quick):
    write("narrow.svm", np.random.default_rng(0).standard_normal((40, 3)))
    asked = ["reproduce", "headline", "--path", "narrow.svm", "--workers", "4", *quick]
    words = refused(capsys, *asked)
    assert "d = 3" in words and "--set grid.ks=[1" in words and "--set grid.ladders=[[1,2]" in words
    remedy = shlex.split(words[words.index("--set") :])
    short = ["--set", "budget.rounds=30", "--set", "grid.multiples=[1]", "--set", "grid.zetas=[16]"]
    assert main([*asked, *remedy, *short, "--json"]) == 0


def test_an_output_that_is_a_file_is_refused(capsys, tmp_path):
    (tmp_path / "taken").write_text("mine")
    assert "taken" in refused(capsys, "reproduce", "headline", "--out", "taken")
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stepsze = 0.1\n", "nearest"),
        ("name = \n", "my.toml"),
        ("name = 'x'\n", "'problem' is missing"),
    ],
)
def test_a_bad_spec_of_ones_own_is_refused(capsys, tmp_path, text, words):
    (tmp_path / "my.toml").write_text(text)
    assert words in refused(capsys, "run", "my.toml")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One small run of the headline, from the command line."""
    out = tmp_path_factory.mktemp("finished") / "deep" / "er"
    assert main(["reproduce", "headline", *TINY, "--out", str(out)]) == 0
    return out


def test_it_writes_figure_numbers_and_record(finished):
    assert sorted(p.name for p in finished.iterdir()) == [f"headline.{k}" for k in ("csv", "json", "pdf", "png")]
    record = json.loads((finished / "headline.json").read_text())
    assert record["made"]["precision"] == "float64" and record["data"]["sha256"] and record["made"]["versions"]["jax"]
    assert [row["method"] for row in record["rows"]] == ["GD", "EF21", "LAG", "CLAG", "AdaCGD"]
    bound = next(c for c in record["claims"] if c["name"] == "bound")
    assert bound["verdict"] == "holds"
    fewer = next(c for c in record["claims"] if c["name"] == "fewer-bits")
    assert fewer["verdict"] == "not judged"  # it is about the grid as stated
    assert (finished / "headline.png").read_bytes()[:4] == b"\x89PNG" and b"Type3" not in (
        finished / "headline.pdf"
    ).read_bytes()


def test_every_row_of_json_replays_exactly(capsys):
    assert main(["reproduce", "headline", *TINY, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    problem = problems.logistic(problems.load("breast_cancer"), workers=20, strength=0.1)
    for row in rows:
        uplink = {
            "GD": lambda row: ac.GD(),
            "EF21": lambda row: ac.EF21(ac.TopK(row["K"])),
            "LAG": lambda row: ac.LAG(row["zeta"]),
            "CLAG": lambda row: ac.CLAG(ac.TopK(row["K"]), row["zeta"]),
            "AdaCGD": lambda row: ac.AdaCGD([ac.TopK(k) for k in row["levels"]], row["zeta"]),
        }[row["method"]](row)
        theory = ac.theory.stepsize(problem.smoothness, uplink.constants(problem.dim))
        assert row["stepsize"] == pytest.approx(row["multiple"] * theory, rel=1e-15)
        trace = ac.simulate(problem, uplink, stepsize=row["stepsize"], rounds=400, tolerance=0.01)
        assert row["rounds"] is not None and row["rounds"] == trace.outcome_round
        assert row["bits"] == trace.bits()[-1] and row["wire_bits"] == trace.bits(convention="wire")[-1]
        unit = ac.simulate(problem, uplink, stepsize=theory, rounds=400, tolerance=0.01)
        assert row["ratio"] == ac.theory.check(unit).worst_ratio and row["verdict"] == "holds"


def test_the_table_tells_the_winner_and_a_pipe_sees_no_bar(capsys):
    assert main(["reproduce", "headline", *TINY]) == 0
    out, err = capsys.readouterr()
    assert "Fewest bits" in out and "holds" in out and "AdaCGD" in out
    assert "written: " in err and "%" not in err and "\x1b" not in out + err


def test_any_file_and_a_spec_of_ones_own(capsys, tmp_path):
    rng = np.random.default_rng(0)
    lines = [
        f"{y:+d} " + " ".join(f"{j}:{v:.3f}" for j, v in enumerate(rng.standard_normal(6), 1)) for y in [1, -1] * 20
    ]
    (tmp_path / "mine.svm").write_text("\n".join(lines))
    shipped = spec.shipped()["headline"].replace('name = "headline"', 'name = "mine"')
    (tmp_path / "mine.toml").write_text(shipped)
    assert main(["run", "mine.toml", "--path", "mine.svm", "--workers", "4", *TINY, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["data"] == "mine" and (tmp_path / "adacgd-out" / "mine" / "mine.csv").exists()
    record = json.loads((tmp_path / "adacgd-out" / "mine" / "mine.json").read_text())
    assert next(c for c in record["claims"] if c["name"] == "fewer-bits")["verdict"] == "not judged"


def test_a_method_that_does_not_get_there_is_shown(capsys):
    short = [word if "rounds" not in word else "budget.rounds=3" for word in TINY]
    assert main(["reproduce", "headline", *short, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row["rounds"] is None and row["bits"] is None and row["status"] == "completed" for row in rows)


def test_a_broken_bound_ends_with_1(monkeypatch, capsys):
    """With smoothness believed five times too small, 1x is above theory and a bound breaks."""
    honest = problems.logistic

    def too_smooth(*args, **kwargs):
        problem = honest(*args, **kwargs)
        s = problem.smoothness
        problem.about.smoothness = s._replace(L_minus=s.L_minus / 5, L_plus=s.L_plus / 5)
        return problem

    monkeypatch.setattr(problems, "logistic", too_smooth)
    assert main(["reproduce", "headline", *TINY]) == 1
    assert "does not hold" in capsys.readouterr().out


def test_zero_bits_are_a_tie_and_no_number_is_nan(capsys):
    """With the start within the tolerance nobody sends anything; warnings are errors here."""
    argv = [word if "tolerance" not in word else "budget.tolerance=10" for word in TINY]
    assert main(["reproduce", "headline", *argv]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "a tie of GD, EF21, LAG, CLAG, AdaCGD, 0 per worker" in out and "nan" not in out and "did not win" not in out
    record = json.loads(Path("adacgd-out/headline/headline.json").read_text())
    assert "a tie" in record["finding"] and all(row["bits"] == 0 for row in record["rows"])


def told(method, bits, loss=0.5, status="converged", **tuned):
    """What `finding` and `judge` read of a method."""
    run = SimpleNamespace(
        bits=lambda: np.array([0.0, bits]), loss=np.array([1.0, loss]), status=status, outcome_round=9
    )
    return headline.Told(headline.Choice(method, **tuned), 1.0, run, run, None, "not judged", "")


def found(*all_told, ladders=((1, 2),)):
    text = spec.shipped()["headline"]
    asked = dataclasses.replace(spec.read(text, "x"), methods=tuple(t.choice.method for t in all_told))
    cells = [
        headline.Cell(headline.Choice("AdaCGD", levels=levels), 1, 1, "converged", 1, 1, 1, 1) for levels in ladders
    ]
    return headline.finding(headline.Outcome(asked, {}, tuple(cells), all_told, (), ()))


def test_the_finding_says_who_won_and_what_to_know_about_it():
    assert "AdaCGD, 90 per worker." in found(told("CLAG", 100), told("AdaCGD", 90))
    assert "a tie of CLAG, AdaCGD, 90 per worker." in found(told("CLAG", 90), told("AdaCGD", 90))
    lost = found(told("CLAG", 100), told("AdaCGD", 101))
    assert "1.01 times as many" in lost and "CLAG is AdaCGD with one level" in lost and "have 2 or more" in lost
    assert "one level" not in found(told("CLAG", 100), told("AdaCGD", 101), ladders=((1,), (1, 2)))
    assert "one level" not in found(told("EF21", 100), told("AdaCGD", 101))
    assert "AdaCGD did not reach it" in found(told("CLAG", 100), told("AdaCGD", 9, status="completed"))
    assert "different losses" not in found(told("CLAG", 100, 0.5), told("AdaCGD", 90, 0.504))
    apart = found(told("CLAG", 100, 0.5), told("AdaCGD", 90, 0.506), told("GD", 80, 9.0, "completed"))
    assert "0.5 (CLAG) to 0.506 (AdaCGD)" in apart


@pytest.mark.parametrize(
    ("first", "other", "verdict", "words"),
    [
        (0, 0, "not judged", "a tie"),
        (5, 0, "not judged", "before anything is sent"),
        (0, 5, "holds", "0.000 times"),
        (5, 5, "does not hold", "a tie"),
        (4, 5, "holds", "0.800 times"),
    ],
)
def test_a_ratio_of_bits_is_judged_also_where_there_are_none(first, other, verdict, words):
    claim = spec.ClaimSpec("fewer", "fewer", "bits ratio", 1.0, ("AdaCGD", "GD"))
    judged = headline.judge(
        claim, spec.read(spec.shipped()["headline"], "x"), [told("AdaCGD", first), told("GD", other)]
    )
    assert judged.verdict == verdict and words in judged.reason


def test_the_loss_stands_in_the_table_the_rows_and_the_cells(finished):
    record = json.loads((finished / "headline.json").read_text())
    lines = (finished / "headline.csv").read_text().splitlines()
    at = lines[0].split(",").index("loss")
    for row in record["rows"]:
        ends = [line.split(",") for line in lines if line.startswith(f"{row['method']},tuned,")]
        assert row["loss"] == float(ends[-1][at])
    assert all(0 < cell["loss"] < 10 for cell in record["cells"])


def test_the_figure_tells_the_finding_and_its_label_is_clear_of_the_curves():
    problem = problems.logistic(problems.load("breast_cancer"), workers=20, strength=0.1)
    asked = spec.read(spec.shipped()["headline"], "x", overrides=dict(spec.setting(word) for word in TINY[1::2]))
    outcome = headline.run(problem, asked)
    figure, _ = figures.headline(outcome, "breast_cancer", headline.finding(outcome))
    figures.render(figure)
    assert any("Fewest bits" in text.get_text() for text in figure.texts)
    race = figure.axes[0]
    (label,) = (text for text in race.texts if "nabla" in text.get_text())
    box = label.get_window_extent().transformed(race.transData.inverted())
    for line in race.get_lines()[: len(outcome.told)]:
        assert line.get_xdata()[-1] > box.x1
    assert any("left side / right side" in axes.get_ylabel() for axes in figure.axes)
    above = min(text.get_window_extent().y0 for text in figure.texts if text.get_verticalalignment() == "top")
    assert all(axes.get_tightbbox().y1 <= above for axes in figure.axes[:2])


PROGRAM = """
import signal, sys
from experiments.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the parent did
print("ready", flush=True)
sys.exit(main())
"""


@pytest.mark.parametrize("delay", [0.05, 0.6, 1.5, 4.0])
def test_ctrl_c_is_answered_in_a_line(tmp_path, delay):
    """Before jax is imported, while it is, while it compiles, while runs go on."""
    argv = [sys.executable, "-c", PROGRAM, "reproduce", "headline", "--quick", "--out", "here"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "ready\n"
        time.sleep(delay)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, "", "adacgd: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_waits_for_files_to_be_written(tmp_path, monkeypatch):
    """All of them or none, and nothing that was written aside; then the handler is called that was there before."""
    real, seen = os.replace, []

    def replace(*args):
        os.kill(os.getpid(), signal.SIGINT)
        real(*args)

    monkeypatch.setattr(os, "replace", replace)
    before = signal.signal(signal.SIGINT, lambda *args: seen.append(sorted(p.name for p in tmp_path.iterdir())))
    try:
        store.commit({tmp_path / "a.txt": b"1", tmp_path / "b.txt": b"2"})
        assert seen == [["a.txt", "b.txt"]]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_call_from_python_leaves_the_handler_as_it_was(capsys):
    before = signal.getsignal(signal.SIGINT)
    assert main(["list"]) == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_the_names_of_the_spec_are_those_of_the_problems():
    """Named twice because the spec is read before anything heavy is imported."""
    assert spec.REGULARISERS == REGULARISERS
    assert set(spec.PARTITIONS) < set(NAMES)


def test_interrupted_leaves_nothing(monkeypatch, capsys, tmp_path):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(headline, "run", stop)
    assert main(["reproduce", "headline", "--quick"]) == 130
    assert "interrupted" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_quick_grids_are_parts_of_the_whole():
    for text in spec.shipped().values():
        whole, quick = spec.read(text, "x"), spec.read(text, "x", quick=True)
        for name in ("multiples", "ks", "zetas", "ladders"):
            assert set(getattr(quick.grid, name)) <= set(getattr(whole.grid, name))
        assert quick.quick and not whole.quick


def test_help_and_mistakes_are_answered_before_anything_heavy_is_imported():
    for argv, code in (
        (["--help"], 0),
        (["reproduce", "--help"], 0),
        (["run", "--help"], 0),
        (["list"], 0),
        (["--version"], 0),
        (["reproduce", "hedline"], 2),
        (["reproduce", "headline", "--set", "problem.strenght=1"], 2),
        (["reproduce", "headline", "--devices", "none"], 2),
        (["reproduce", "headline", "--distributed"], 2),
    ):
        program = (
            "import sys; from experiments.cli import main\n"
            f"try: code = main({argv!r})\n"
            "except SystemExit as stop: code = stop.code or 0\n"
            "heavy = [m for m in ('jax', 'sklearn', 'matplotlib', 'scipy') if m in sys.modules]\n"
            "print(code, heavy)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.stdout.rstrip().endswith(f"{code} []"), (argv, done.stdout, done.stderr)
        if "--help" in argv:
            assert "example" in done.stdout


def test_files_are_whole_or_not_there(tmp_path, monkeypatch):
    def broken(*args):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="no space"):
        store.commit({tmp_path / "a.txt": b"1", tmp_path / "b.txt": b"2"})
    assert list(tmp_path.iterdir()) == []


def test_json_never_says_nan():
    text = store.json_text({"a": np.float64("nan"), "b": [np.inf, np.int64(3)], "c": 0.1 + 0.2})
    assert json.loads(text) == {"a": None, "b": [None, 3], "c": 0.1 + 0.2}


def test_a_bar_shows_on_a_terminal_only(capsys):
    with terminal.progress() as progress:
        if progress is not None:
            progress("tuning", 1, 2)
    assert capsys.readouterr().err == ""
