"""One command on several processes: who they are, that they write what one process writes, and how they end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from experiments import processes, spec, start
from experiments.cli import main
from experiments.processes import ADDRESS, COUNT, ID, Place, read_place
from experiments.spec import BadRequest

OWN = {ADDRESS: "node1:12345", COUNT: "2", ID: "1"}
SRUN = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
STEP = SRUN | {"SLURM_STEP_NODELIST": "node[1-2]"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
ORTE = {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:1"}
HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "2"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        (OWN, Place(1, 2, "node1:12345")),
        (OWN | {ADDRESS: "[::1]:80"}, Place(1, 2, "[::1]:80")),
        (STEP, Place(3, 4, None, 1)),
        (STEP | {ADDRESS: "node1:12345"}, Place(3, 4, "node1:12345", 1)),
        (STEP | {"JAX_LOCAL_DEVICE_IDS": "0,1"}, Place(3, 4)),
        (STEP | OWN, Place(1, 2, "node1:12345")),
        (MPIRUN | ORTE, Place(2, 4, None, 0)),
        (MPIRUN | ORTE | STEP, Place(2, 4, None, 0)),
        (MPIRUN | {ADDRESS: "node1:12345"}, Place(2, 4, "node1:12345", 0)),
        (HYDRA | {ADDRESS: "node1:12345"}, Place(2, 4, "node1:12345")),
        (STEP | {"PMI_SIZE": "4", "PMI_RANK": "3"}, Place(3, 4, None, 1)),
        (OWN | {"ADACGD_WAIT": "9", "ADACGD_HEARTBEAT": "5"}, Place(1, 2, "node1:12345", None, 9, 5)),
    ],
    ids=str,
)
def test_who_it_is_stands_in_the_environment(environment, place):
    assert read_place(environment) == place


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, r"JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID not set.*set JAX_COORDINATOR_ADDRESS=HOST"),
        ({ADDRESS: "node1:12345", COUNT: "2"}, r"JAX_PROCESS_ID not set"),
        ({ADDRESS: "node1:12345", COUNT: "2", ID: ""}, r"JAX_PROCESS_ID not set"),
        (SRUN, r"start it by srun"),
        (OWN | {COUNT: "two"}, r"JAX_NUM_PROCESSES must be a whole number.*'two'"),
        (OWN | {ID: "-1"}, r"JAX_PROCESS_ID must be a whole number.*'-1'"),
        (OWN | {ID: "2"}, r"JAX_PROCESS_ID=2 and JAX_NUM_PROCESSES=2 contradict"),
        (OWN | {COUNT: "0", ID: "0"}, r"contradict"),
        (STEP | {"SLURM_PROCID": "4"}, r"SLURM_PROCID=4 and SLURM_NTASKS=4 contradict"),
        (OWN | {ADDRESS: "node1"}, r"'node1' must be HOST:PORT"),
        (OWN | {ADDRESS: "node1:http"}, r"must be HOST:PORT"),
        (OWN | {ADDRESS: ":80"}, r"must be HOST:PORT"),
        (OWN | {ADDRESS: "node1:70000"}, r"must be HOST:PORT"),
        (MPIRUN, r"Open MPI does not say where process 0 is; set JAX_COORDINATOR_ADDRESS"),
        (HYDRA, r"MPI does not say where process 0 is"),
        (OWN | {"ADACGD_WAIT": "0"}, r"ADACGD_WAIT must be at least 1"),
    ],
    ids=str,
)
def test_what_is_missing_or_contradicts_is_named(environment, words):
    with pytest.raises(BadRequest, match=words):
        read_place(environment)


@pytest.mark.parametrize(
    ("reports", "status", "said", "words"),
    [
        ([], -6, b"absl::Status: DEADLINE_EXCEEDED", "have met at node1:12345 within 120 s"),
        (["joined", "lost UNKNOWN: Gloo AllGather failed"], 4, b"", "another process of the run .*Gloo AllGather"),
        (["joined"], -6, b"the JAX distributed service detected fatal errors", "another process of the run"),
        (["joined"], -11, b"one\nlast words\n\n", "ended by itself, signal 11: last words"),
        (["joined"], 3, b"", "ended by itself, exit code 3;"),
    ],
)
def test_what_became_of_it_is_told_in_a_line(tmp_path, reports, status, said, words):
    (tmp_path / "said").write_bytes(said)
    with open(tmp_path / "said", "rb") as log:
        told = processes._what_happened(Place(1, 2, "node1:12345"), reports, status, log)
    assert "\n" not in told
    assert re.search(words, told)


def test_it_is_a_command_of_its_own(monkeypatch, capsys, tmp_path):
    """A process in which jax has started already cannot be one of several."""
    for name, value in OWN.items():
        monkeypatch.setenv(name, value)
    assert main(["reproduce", "headline", "--distributed", "--out", str(tmp_path / "o")]) == 2
    assert "command of its own" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--devices", "0"], "--devices must be a whole number"),
        (["--devices", "two"], "'two'"),
        (["--devices", "2.0"], "'2.0'"),
        (["--devices", "3"], "20 workers cannot stand in 3 equal parts"),
        (["--devices", "4"], "jax sees 1"),
    ],
)
def test_devices_that_cannot_be_had_are_refused(capsys, monkeypatch, tmp_path, options, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "set_up", lambda devices=None: None)
    monkeypatch.setattr("experiments.run.set_up", lambda devices=None: None)
    assert main(["reproduce", "headline", *options]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1 and not list(tmp_path.iterdir())


# --- two real ones ----------------------------------------------------------------------------------------------------

COMMAND = """
import sys
from experiments import cli, processes
meet = processes.join
def join(place):
    meet(place)
    print("met", flush=True)
processes.join = join
sys.exit(cli.main())
"""
CHANGES = ("grid.multiples=[1]", "grid.ks=[3]", "budget.rounds=60", "budget.tolerance=0.01")
BRIEF = [word for change in CHANGES for word in ("--set", change)]


@pytest.fixture
def own_spec(tmp_path):
    """A spec of one method, quick to compile."""
    text = spec.shipped()["headline"]
    methods = next(line for line in text.splitlines() if line.startswith("methods"))
    (tmp_path / "one.toml").write_text(text.replace(methods, 'methods = ["EF21"]'))
    return tmp_path / "one.toml"


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def command(*argv, **environment):
    """`adacgd` in a process of its own."""
    asked = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI_"))}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, argv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=asked | {"ADACGD_WAIT": "60", "ADACGD_HEARTBEAT": "20"} | environment,
    )


def two(*argv):
    """The same on two processes, told by the environment."""
    port = free_port()
    return [command(*argv, "--distributed", **{ADDRESS: f"localhost:{port}", COUNT: "2", ID: str(i)}) for i in (0, 1)]


def numbers(folder):
    record = json.loads((folder / "headline.json").read_text())
    return {name: value for name, value in record.items() if name != "made"}, record["made"]


def kill(pair, which):
    """SIGKILL one of two once both have met and gone on; what the other says, and the files are as they were."""
    for one in pair:
        assert one.stdout.readline() == "met\n", one.communicate()
    time.sleep(3)
    pair[which].send_signal(signal.SIGKILL)
    began = time.monotonic()
    out, err = pair[1 - which].communicate(timeout=60)
    pair[which].communicate(timeout=60)
    assert time.monotonic() - began < 50
    assert pair[1 - which].returncode == 4 and out == ""
    assert err.startswith(f"adacgd: process {1 - which} of 2: another process of the run has ended") and (
        err.count("\n") == 1
    )


def test_two_processes_write_what_one_writes_and_end_when_one_is_killed(own_spec, tmp_path):
    here, there = tmp_path / "one", tmp_path / "two"
    alone = command("run", own_spec, *BRIEF, "--out", here)
    said = alone.communicate(timeout=300)
    assert alone.returncode == 0, said
    pair = two("run", own_spec, *BRIEF, "--out", there)
    (out, err), (other_out, other_err) = (one.communicate(timeout=300) for one in pair)
    assert [one.returncode for one in pair] == [0, 0], (err, other_err)
    assert out.startswith("met\n") and "runs tuned" in out
    assert "written: " in err
    assert (other_out, other_err) == ("met\n", "")
    (record, _), (same, made) = numbers(here), numbers(there)
    assert record == same and (made["processes"], made["devices"]) == (2, 2)
    assert (here / "headline.csv").read_bytes() == (there / "headline.csv").read_bytes()

    written = {path: path.read_bytes() for path in there.iterdir()}
    endless = ["--set", "budget.rounds=2000000000", "--set", "budget.tolerance=1e-300"]
    kill(two("run", own_spec, "--set", "grid.multiples=[1]", *endless, "--out", there), which=0)
    assert {path: path.read_bytes() for path in there.iterdir()} == written


@pytest.mark.slow
def test_the_first_ends_when_another_is_killed(own_spec, tmp_path):
    endless = ["--set", "budget.rounds=2000000000", "--set", "budget.tolerance=1e-300"]
    kill(two("run", own_spec, *endless, "--out", tmp_path / "out"), which=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_processes_that_were_asked_for_different_things_say_so(own_spec, tmp_path):
    port = free_port()
    asked = lambda i: ("run", own_spec, "--distributed", "--set", f"budget.rounds={9 + i}", "--out", tmp_path / "o")
    pair = [command(*asked(i), **{ADDRESS: f"localhost:{port}", COUNT: "2", ID: str(i)}) for i in (0, 1)]
    for one in pair:
        _, err = one.communicate(timeout=200)
        assert one.returncode == 2 and "asked for other things than 1" in err


# --- programs that are kept -------------------------------------------------------------------------------------------


def test_where_programs_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("ADACGD_CACHE", str(tmp_path / "kept"))
    folder = start.cache_folder()
    assert folder.parent == tmp_path / "kept" and folder.is_dir()
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ADACGD_CACHE", str(tmp_path / "file"))
    assert start.cache_folder() is None
    for word in ("off", "OFF", "0", ""):
        monkeypatch.setenv("ADACGD_CACHE", word)
        assert start.cache_folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ADACGD_CACHE")
    if sys.platform.startswith("linux"):
        assert start.cache_folder().parent == tmp_path / "home" / "adacgd" / "compiled"


ONE_PROGRAM = """
import os, sys
from experiments import start
if sys.argv[1:]:
    start.set_up()
import jax
assert jax.jit(lambda x: x + 1)(0.5) == 1.5
"""


def test_what_was_compiled_once_is_found_again(tmp_path):
    """By the command line alone: the library keeps nothing."""
    kept = []
    for words in ([], ["set up"], ["set up"]):
        run = [sys.executable, "-c", ONE_PROGRAM, *words]
        subprocess.run(run, check=True, env=os.environ | {"ADACGD_CACHE": str(tmp_path)})
        kept.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*-cache")})
    assert not kept[0] and kept[1] and kept[1] == kept[2]
