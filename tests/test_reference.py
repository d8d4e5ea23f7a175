"""Golden runs that an independent implementation made: every norm, loss, count and level."""

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adacgd as ac
import problems
from adacgd.estimators import Estimator

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


# --- the rest of 3PC, and MARINA, on the draws that were stored -------------------------------------------------------

OTHERS = [run for run in json.loads((FOLDER / "index.json").read_text()) if run["method"] not in FAMILY]


def on(indices, x):
    """x on the indices, zeros elsewhere."""
    return jnp.zeros_like(x).at[indices].set(x[indices])


@ac.module
class StoredMask(ac.Compressor):
    """Unscaled Rand-K on the indices that worker i drew in round t."""

    idx: jax.Array  # (T, n, K)
    shares_randomness = True

    def __call__(self, key, x, *, round, worker, **shared):
        return ac.Message(on(self.idx[round, worker], x), ac.Cost(self.idx.shape[-1]))

    def alpha(self, dim, workers=None):
        return self.idx.shape[-1] / dim


@ac.module
class StoredRandK(ac.Unbiased):
    """Rand-K on the indices that worker i drew in round t; -1 where a coin made them unused."""

    idx: jax.Array  # (T, n, K)
    shares_randomness = True

    def __call__(self, key, x, *, round, worker, **shared):
        k = self.idx.shape[-1]
        return ac.Message(x.size / k * on(self.idx[round, worker], x), ac.Cost(k))

    def omega(self, dim, workers=None):
        return dim / self.idx.shape[-1] - 1


@ac.module
class StoredPermK(ac.Unbiased):
    """Perm-K on the permutation of round t: worker i owns the i-th part of it."""

    perm: jax.Array  # (T, d)
    shares_randomness = True

    def __call__(self, key, x, *, round, worker, workers, **shared):
        parts = self.perm[round].reshape(workers, -1)
        return ac.Message(workers * on(parts[worker], x), ac.Cost(parts.shape[1]))

    def omega(self, dim, workers=None):
        return workers - 1.0


@ac.module
class StoredCoin(ac.ThreePoint):
    """3PCv5 whose coin fell as stored: round by round p is 0 or 1."""

    compressor: ac.Compressor
    coins: jax.Array  # (T,)
    p: float
    shares_randomness = True

    def __call__(self, key, h, y, x, *, round, **shared):
        return ac.ThreePCv5(self.compressor, self.coins[round])(key, h, y, x, round=round, **shared)

    def constants(self, dim, workers=None):
        return ac.ThreePCv5(self.compressor, self.p).constants(dim, workers)


@ac.module
class StoredMARINA(Estimator):
    """MARINA whose coin fell as stored."""

    unbiased: ac.Unbiased
    coins: jax.Array  # (T,)
    p: float
    shares_randomness = True
    of_mean = True

    def init(self, x):
        return ()

    def step(self, draw, memory, h, y, x):
        return ac.MARINA(self.unbiased, self.coins[draw.round]).step(draw, memory, h, y, x)

    def constants(self, dim, workers=None):
        return ac.MARINA(self.unbiased, self.p).constants(dim, workers)


def replayed(method, golden, K=None, K1=None, K2=None, zeta=None):
    """The uplink, and the constants of the same method when it draws itself, whose theory the step was taken from."""
    stored = lambda name: jnp.asarray(golden[name])
    coins = stored("draw_coin").astype(float) if "draw_coin" in golden else None
    if method == "ef21_randk":
        return ac.EF21(StoredMask(stored("draw_idx"))), ac.EF21(ac.ContractiveRandK(K))
    if method == "v1":
        return (ac.ThreePCv1(ac.TopK(K)),) * 2
    if method == "v2":
        own = ac.ThreePCv2(ac.RandK(K2), ac.TopK(K))
        return ac.ThreePCv2(StoredRandK(stored("draw_idx")), ac.TopK(K)), own
    if method == "v3":  # the files took the step of CLAG, not that of v3
        return ac.ThreePCv3(ac.CLAG(ac.TopK(K1), zeta), ac.TopK(K)), ac.CLAG(ac.TopK(K), zeta)
    if method == "v4":
        return (ac.ThreePCv4(ac.TopK(K), ac.TopK(K2)),) * 2
    if method == "v5":
        return StoredCoin(ac.TopK(K), coins, K / 100), ac.ThreePCv5(ac.TopK(K), K / 100)
    if method == "marina":
        return StoredMARINA(StoredRandK(stored("draw_idx")), coins, K / 100), ac.MARINA(ac.RandK(K), K / 100)
    return StoredMARINA(StoredPermK(stored("draw_perm")), coins, 0.1), ac.MARINA(ac.PermK(), 0.1)


def test_all_other_runs_are_here():
    """With the 25 above, every file."""
    assert len(OTHERS) == 9 and len(OTHERS) + len(RUNS) == len(list(FOLDER.glob("*__*.npz")))
    assert all(run["problem"] == "quadA" for run in OTHERS)


@pytest.mark.parametrize("run", OTHERS, ids=lambda run: run["case"])
def test_golden_run_of_the_others(run, reference_problems):
    golden, problem, K = np.load(FOLDER / f"{run['case']}.npz"), reference_problems[None], run["params"].get("K")
    link, own = replayed(run["method"], golden, **run["params"])
    trace = ac.simulate(problem, link, stepsize=float(golden["gamma"]), rounds=300)
    rtol = run["rtol_suggested"]
    np.testing.assert_allclose(trace.grad_sq, golden["gradnorm_sq"], rtol=rtol, atol=0)
    np.testing.assert_allclose(trace.loss, golden["f"], rtol=rtol, atol=0)
    np.testing.assert_allclose(trace.x, golden["x_final"], rtol=rtol, atol=rtol)
    sent = np.diff(trace.scalars_up, axis=0)
    unpaid = problem.dim if run["method"] == "v1" else 0  # the reference has y for nothing
    np.testing.assert_array_equal(sent - unpaid, golden["sent"][1:])
    np.testing.assert_array_equal(np.diff(trace.scalars_down), golden["down"][1:])
    if run["method"] in ("v5", "marina", "marina_perm"):
        np.testing.assert_array_equal(trace.level[1:] - 1, golden["level"][1:])
    else:
        assert np.all(trace.level[1:] == 1)
    if run["method"] == "v3":  # the files store the level of the inner map
        np.testing.assert_array_equal(sent, K + run["params"]["K1"] * golden["level"][1:])
    assert allowed_step(own) * float(run["case"].rsplit("_x", 1)[1]) == pytest.approx(float(golden["gamma"]), rel=1e-12)


def allowed_step(own):
    """The step that the theory allows with the constants of the file, whose L_plus is the mean square of its Li."""
    quad = np.load(FOLDER / "problem_quadA.npz")
    smoothness = SimpleNamespace(L_minus=quad["L"], L_plus=np.sqrt(np.mean(quad["Li"] ** 2)), L_pm=quad["L_pm"])
    told = {"workers": 10} if getattr(own, "shares_randomness", False) else {}
    return float(ac.theory.stepsize(smoothness, own.constants(100, **told)))
