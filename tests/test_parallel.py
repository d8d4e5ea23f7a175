"""Workers and runs spread over devices and processes give the bits of one device; what cannot be spread is refused."""

import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from spread import methods

import adacgd as ac
import problems

SPREAD = Path(__file__).with_name("spread.py")
NAMES = list(methods())


def on_devices(out, devices, runs, *process):
    """A process of its own, for jax has one number of devices for life."""
    words = [sys.executable, str(SPREAD), str(out), str(devices), ",".join(runs), *(str(word) for word in process)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(*started, within=900):
    """All of them, or what went wrong."""
    for one in started:
        said, _ = one.communicate(timeout=within)
        assert one.returncode == 0, said[-3000:]


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def of_processes(out, devices, runs):
    """The same on two processes with so many devices each."""
    port = free_port()
    finished(*(on_devices(out, devices, runs, 2, process, port) for process in range(2)))
    return np.load(out)


def told(results, run):
    """The numbers of one run."""
    found = {name.rsplit("/", 1)[1]: results[name] for name in results.files if name.startswith(f"{run}/")}
    assert len(found) > 10, f"{run} has not been done"
    return found


def assert_same(results, run, others, other):
    """Bit for bit."""
    one, two = told(results, run), told(others, other)
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=f"{run} and {other}: {name}")


FEW = ("adacgd", "marina_perm", "both ways")
SINGLE = [f"{name}/{way}" for name in FEW for way in ("1", "2")]
OTHER_WAYS = [
    "adacgd/resumed",
    "v2/resumed",
    "clag/fast",
    "clag/2x2",
    "clag/left behind",
    "clag/sweep",
    "ef21/plain@9",
    "ef21/3@9",
]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Every mechanism on one device and on four, and the other ways."""
    out = tmp_path_factory.mktemp("spread") / "here.npz"
    both = [f"{name}/{way}" for name in NAMES for way in ("plain", "4")]
    finished(on_devices(out, 4, [*both, *SINGLE, *OTHER_WAYS]))
    return np.load(out)


@pytest.mark.parametrize("name", NAMES)
def test_four_devices_give_the_bits_of_one(here, name):
    assert_same(here, f"{name}/plain", here, f"{name}/4")
    assert np.ptp(told(here, f"{name}/plain")["loss"]) > 0


@pytest.mark.parametrize("run", SINGLE)
def test_one_and_two_devices_too(here, run):
    assert_same(here, f"{run.split('/')[0]}/plain", here, run)


def test_three_devices_whose_sums_are_no_branches(here):
    assert_same(here, "ef21/plain@9", here, "ef21/3@9")


@pytest.mark.parametrize("name", ["adacgd", "v2"])
def test_a_run_continues_on_other_devices(here, name):
    assert_same(here, f"{name}/plain", here, f"{name}/resumed")


def test_one_reduction_a_round_is_the_same_to_rounding(here):
    one, fast = told(here, "clag/plain"), told(here, "clag/fast")
    np.testing.assert_allclose(fast["grad_sq"], one["grad_sq"], rtol=1e-11)
    np.testing.assert_array_equal(fast["scalars_up"], one["scalars_up"])


@pytest.mark.parametrize("way", ["2x2", "left behind"])
def test_a_sweep_over_runs_and_workers(here, way):
    """Another program than that of one device, whose vector lanes differ: equal to rounding, its counts exactly."""
    one, spread = told(here, "clag/sweep"), told(here, f"clag/{way}")
    np.testing.assert_allclose(spread["grad_sq"], one["grad_sq"], rtol=1e-11)
    np.testing.assert_array_equal(spread["scalars_up"], one["scalars_up"])


def test_two_processes_give_the_bits_of_one(here, tmp_path):
    chosen = ["adacgd/every", "marina/every", "both ways/every"]
    results = of_processes(tmp_path / "two.npz", 2, chosen)
    for run in chosen:
        assert_same(here, run.replace("every", "plain"), results, run)


@pytest.mark.slow
def test_all_mechanisms_on_1_2_4_devices_and_two_processes(tmp_path):
    ways = ("plain", "1", "2", "4")
    finished(on_devices(tmp_path / "all.npz", 4, [f"{name}/{way}" for name in NAMES for way in ways]))
    here, two = (
        np.load(tmp_path / "all.npz"),
        of_processes(tmp_path / "two.npz", 2, [f"{name}/every" for name in NAMES]),
    )
    for name in NAMES:
        for way in ways[1:]:
            assert_same(here, f"{name}/plain", here, f"{name}/{way}")
        assert_same(here, f"{name}/plain", two, f"{name}/every")


# --- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quad():
    return problems.quadratic(workers=4, dim=6, seed=1)


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"devices": 0}, TypeError, "a number >= 1"),
        ({"devices": 2.0}, TypeError, "a number >= 1"),
        ({"devices": True}, TypeError, "a number >= 1"),
        ({"devices": "two"}, TypeError, "'all'"),
        ({"devices": (1, 1)}, TypeError, "must be a number"),
        ({"devices": []}, TypeError, "a list of devices"),
        ({"devices": 64}, ValueError, "jax sees 1.*jax_num_cpu_devices"),
        ({"devices": 1, "aggregate": "quick"}, ValueError, "one of exact, fast"),
        ({"aggregate": "fast"}, ValueError, "several devices"),
    ],
    ids=repr,
)
def test_refusals(quad, how, error, words):
    with pytest.raises(error, match=words):
        ac.simulate(quad, ac.GD(), stepsize=0.1, rounds=1, **how)


def test_workers_that_do_not_fit_are_told_what_does():
    nine = problems.quadratic(workers=9, dim=4, seed=1)
    with pytest.raises(ValueError, match=r"9 workers cannot stand in 2 equal parts"):
        ac.simulate(nine, ac.GD(), stepsize=0.1, rounds=1, devices=jax.devices() * 2)


def test_a_problem_that_does_not_say_whose_data_is_whose(quad):
    class Mute:
        n, dim, x0, smoothness = quad.n, quad.dim, quad.x0, quad.smoothness
        loss, grads = staticmethod(quad.loss), staticmethod(quad.grads)

    with pytest.raises(TypeError, match=r"Mute does not say what belongs to which worker.*by_worker"):
        ac.simulate(Mute(), ac.GD(), stepsize=0.1, rounds=1, devices=1)
