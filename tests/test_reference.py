"""Golden runs that an independent implementation made: every norm, loss, count and level."""

import json
from pathlib import Path

import numpy as np
import pytest

import adacgd as ac
import problems

FOLDER = Path(__file__).parent / "data" / "reference"
FAMILY = ("gd", "ef21", "lag", "clag", "adacgd")
RUNS = [run for run in json.loads((FOLDER / "index.json").read_text()) if run["method"] in FAMILY]


@pytest.fixture(scope="module")
def reference_problems():
    quad, cancer = (np.load(FOLDER / f"problem_{name}.npz") for name in ("quadA", "breast_cancer"))
    split = lambda offsets: problems.logistic((cancer["A"], cancer["y"]), 20, strength=0.1, partition=list(offsets))
    return {
        None: problems.tridiagonal(quad["diag"], quad["off"], quad["b0"], int(quad["d"])),
        "last": split(cancer["offsets_last"]),
        "drop": split(cancer["offsets_drop"]),
        "x0_normal": cancer["x0_normal"],
    }


def uplink(method, K=None, zeta=None, levels=None, server_K=None):
    if method == "gd":
        return ac.GD()
    if method == "ef21":
        return ac.EF21(ac.TopK(K))
    if method == "lag":
        return ac.LAG(zeta)
    if method == "clag":
        return ac.CLAG(ac.TopK(K), zeta)
    return ac.AdaCGD([ac.TopK(k) for k in levels], zeta)


def test_all_25_runs_of_the_family_are_here():
    assert len(RUNS) == 25
    assert sum("server_K" in run["params"] for run in RUNS) == 5


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["case"])
def test_golden_run(run, reference_problems):
    golden = np.load(FOLDER / f"{run['case']}.npz")
    downlink = ac.EF21(ac.TopK(run["params"]["server_K"])) if "server_K" in run["params"] else None
    trace = ac.simulate(
        reference_problems[run["split"]],
        uplink(run["method"], **run["params"]),
        downlink,
        stepsize=float(golden["gamma"]),
        rounds=300,
        x0=reference_problems["x0_normal"] if run["x0"] == "x0_normal" else None,
    )
    rtol = run["rtol_suggested"]
    np.testing.assert_allclose(trace.grad_sq, golden["gradnorm_sq"], rtol=rtol, atol=0)
    np.testing.assert_allclose(trace.loss, golden["f"], rtol=rtol, atol=0)
    np.testing.assert_allclose(trace.x, golden["x_final"], rtol=rtol, atol=rtol)
    np.testing.assert_array_equal(np.diff(trace.scalars_up, axis=0), golden["sent"][1:])
    np.testing.assert_array_equal(np.diff(trace.scalars_down), golden["down"][1:])
    if run["method"] in ("lag", "clag", "adacgd"):
        np.testing.assert_array_equal(trace.level[1:], golden["level"][1:])
    start = trace.initial_cost.up.scalars * trace.n
    np.testing.assert_array_equal(start + trace.scalars_up.sum(axis=1)[:-1], golden["uplink_floats_before"][1:])


def test_the_oracle_can_say_no(reference_problems):
    run = next(r for r in RUNS if r["case"].startswith("quadA__clag_K5_z8"))
    golden = np.load(FOLDER / f"{run['case']}.npz")
    trace = ac.simulate(reference_problems[None], ac.CLAG(ac.TopK(5), 7.9), stepsize=float(golden["gamma"]), rounds=300)
    assert not np.array_equal(trace.level[1:], golden["level"][1:])
