"""Runs that have ended are left behind, memory bounds the blocks, and what is thinned loses neither best nor first."""

import numpy as np
import pytest
from test_sweep import alike

import adacgd as ac
import problems
from adacgd import loop, pool
from adacgd.drive import stretch_ends

METHOD = ac.CLAG(ac.TopK(3), 2.0)
STEPS = [1e-3, 3.0, 0.2, 0.1, 5.0, 0.05, 0.4]  # slow, diverging, converging, ...


@pytest.fixture(scope="module")
def quad():
    return problems.quadratic(workers=4, dim=12, noise_scale=0.5, strength=0.5, seed=2)


@pytest.fixture
def eager(monkeypatch):
    """Runs are left behind early and whatever it costs; the sizes that were gathered are seen."""
    monkeypatch.setattr(pool, "FIRST", 8)
    monkeypatch.setattr(pool, "LAST", 32)
    monkeypatch.setattr(pool, "WORTH", 1)
    sizes, gathered = [], pool.Site.gathered
    spy = lambda site, setting, carry, places: sizes.append(len(places)) or gathered(site, setting, carry, places)
    monkeypatch.setattr(pool.Site, "gathered", spy)
    return sizes


@pytest.mark.parametrize("record_every", [1, 7, 1000])
def test_what_is_left_behind_and_what_goes_on_are_the_single_runs(quad, eager, record_every):
    asked = {"rounds": 260, "tolerance": 0.02, "record_every": record_every}
    grid = ac.sweep(quad, METHOD, stepsizes=STEPS, **asked)
    assert eager == sorted(eager, reverse=True) and eager[-1] == 1 and len(set(eager)) == len(eager) >= 2
    assert {trace.status for trace in grid} == {"completed", "converged", "diverged"}
    for trace, gamma in zip(grid, STEPS, strict=True):
        single = ac.simulate(quad, METHOD, stepsize=gamma, **asked)
        if single.status == "diverged":  # amplifies rounding
            assert (trace.status, trace.outcome_round) == (single.status, single.outcome_round)
            continue
        alike(trace, single)
        np.testing.assert_array_equal(trace.best_round, single.best_round)
        np.testing.assert_allclose(trace.best_grad_sq, single.best_grad_sq, rtol=1e-9)


def test_nothing_is_left_behind_where_it_does_not_pay(quad, monkeypatch):
    monkeypatch.setattr(pool.Site, "gathered", lambda *_: pytest.fail("gathered a few words"))
    ac.sweep(quad, METHOD, stepsizes=STEPS, rounds=200, tolerance=0.02)


def test_all_runs_ended_is_the_end(quad, eager):
    grid = ac.sweep(quad, METHOD, stepsizes=[3.0, 5.0, 4.0], rounds=10**6, record_every=10**6)
    assert [trace.status for trace in grid] == ["diverged"] * 3 and all(trace.rounds[-1] < 1000 for trace in grid)


def test_gathering_is_decided_at_fixed_rounds():
    stops = pool.Pool.stops(None, 3000)
    assert stops.tolist() == [64, 128, 256, 512, 1024, 2048] and pool.Pool.stops(None, 64).size == 0
    assert stretch_ends(0, 300, 200, pool.Pool.stops(None, 300)).tolist() == [64, 128, 200, 256, 300]
    assert stretch_ends(128, 300, 200, pool.Pool.stops(None, 300)).tolist() == [200, 256, 300]


def test_memory_bounds_the_block(quad):
    each = 6 * quad.n * quad.dim * 8
    loop.MANY.stretch.clear_cache()
    grid = ac.sweep(quad, METHOD, stepsizes=STEPS, rounds=20, memory=2.5 * each)
    assert loop.MANY.stretch._cache_size() == 2  # of two runs, and of the one that is left over
    alike(grid[3], ac.simulate(quad, METHOD, stepsize=STEPS[3], rounds=20))
    for memory, words in (
        (each - 1, "one run of 4 workers"),
        (0, "> 0"),
        (True, "> 0"),
        ("1GB", "> 0"),
        (np.inf, "> 0"),
    ):
        with pytest.raises(ValueError, match=rf"sweep\(memory=.*{words}"):
            ac.sweep(quad, METHOD, stepsizes=STEPS, rounds=20, memory=memory)


def test_the_best_round_is_exact_however_thin_the_history(quad):
    asked = {"stepsize": 0.9, "rounds": 120}  # not monotone
    every = ac.simulate(quad, METHOD, **asked)
    assert np.any(np.diff(every.grad_sq) > 0)
    best = np.minimum.accumulate(every.grad_sq)
    np.testing.assert_array_equal(every.best_grad_sq, best)
    np.testing.assert_array_equal(every.best_round, [int(np.argmin(every.grad_sq[: t + 1])) for t in range(121)])
    thin = ac.simulate(quad, METHOD, **asked, record_every=50)
    assert thin.rounds.tolist() == [0, 50, 100, 120]
    np.testing.assert_array_equal(thin.best_grad_sq, best[thin.rounds])
    np.testing.assert_array_equal(thin.best_round, every.best_round[thin.rounds])
    half = ac.simulate(quad, METHOD, stepsize=0.9, rounds=50, record_every=50)
    again = ac.simulate(quad, METHOD, **asked, record_every=50, start=half)
    np.testing.assert_array_equal(again.best_round, thin.best_round)
    np.testing.assert_array_equal(again.best_grad_sq, thin.best_grad_sq)


def test_the_first_hit_is_exact_however_thin_the_history(quad):
    every = ac.simulate(quad, METHOD, stepsize=0.2, rounds=300)
    hit = int(np.argmax(every.grad_sq <= 0.02**2))
    grid = ac.sweep(quad, METHOD, stepsizes=[0.2, 0.1], rounds=300, tolerance=0.02, record_every=300)
    assert 0 < hit == grid[0].outcome_round and grid[0].rounds.tolist() == [0, hit]
    np.testing.assert_array_equal(grid[0].scalars_up[-1], every.scalars_up[hit])
