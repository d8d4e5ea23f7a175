"""A sweep is its single runs: same counts, levels and outcomes, values to rounding."""

import numpy as np
import pytest

import adacgd as ac
import problems
from adacgd import loop

METHODS = [
    ac.GD(),
    ac.EF21(ac.TopK(3)),
    ac.LAG(1.0),
    ac.CLAG(ac.TopK(3), 4.0),
    ac.AdaCGD([ac.TopK(1), ac.TopK(8)], 1.0),
]
FREE = ac.AdaCGD([ac.ContractiveRandK(2), ac.ContractiveRandK(5)], 1.0)  # takes the general path


@pytest.fixture(scope="module")
def problem():
    return problems.logistic(problems.load("breast_cancer"))


def alike(one, other):
    assert (one.status, one.outcome_round) == (other.status, other.outcome_round)
    for name in ("rounds", "level", "scalars_up", "extra_bits_up", "scalars_down", "extra_bits_down"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in ("loss", "grad_sq", "grad_sq_sum", "G", "x"):
        a, b = getattr(one, name), getattr(other, name)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-14 * (1 + np.abs(b).max()), err_msg=name)


def test_a_grid_is_its_runs(problem):
    grid = ac.sweep(problem, METHODS, multiples=[1.0, 4.0], rounds=120, tolerance=0.02, record_every=10)
    assert grid.shape == (5, 2) and list(grid.axes) == ["uplinks", "multiples"]
    for i, method in enumerate(METHODS):
        for j, multiple in enumerate([1.0, 4.0]):
            gamma = multiple * ac.theory.stepsize(problem.smoothness, method.constants(problem.dim))
            single = ac.simulate(problem, method, stepsize=gamma, rounds=120, tolerance=0.02, record_every=10)
            alike(grid[i, j], single)
            assert grid[i, j].uplink_constants == single.uplink_constants and grid[i, j].stepsize == gamma


def test_axes_come_in_the_order_promised(problem):
    grid = ac.sweep(problem, FREE, stepsizes=[0.01, 0.02, 0.05], zetas=[0.0, 2.0], keys=[0, 1], rounds=12)
    assert grid.shape == (3, 2, 2) and list(grid.axes) == ["stepsizes", "zetas", "keys"]
    single = ac.simulate(problem, ac.AdaCGD(FREE.levels, 2.0), stepsize=0.05, rounds=12, key=1)
    alike(grid[2, 1, 1], single)
    alike(grid[-1, -1, -1], single)
    assert not np.array_equal(grid[2, 1, 0].grad_sq, single.grad_sq)


def test_zetas_change_the_constants_with_the_step(problem):
    grid = ac.sweep(problem, ac.LAG(0.0), multiples=[1.0], zetas=[1.0, 9.0], rounds=5)
    for j, zeta in enumerate([1.0, 9.0]):
        assert grid[0, j].stepsize == ac.theory.stepsize(problem.smoothness, ac.AB(1.0, zeta))
        assert ac.theory.check(grid[0, j]).ok


def test_bidirectional_and_diverging_runs_are_cut_at_their_own_outcome():
    quad = problems.quadratic(workers=10, dim=100, noise_scale=0.8)
    grid = ac.sweep(
        quad, ac.EF21(ac.TopK(50)), ac.EF21(ac.TopK(25)), multiples=[1.0, 1000.0], rounds=60, record_every=7
    )
    assert grid[0].status == "completed" and grid[0].rounds.tolist() == [*range(0, 57, 7), 60]
    bad = grid[1]
    assert bad.status == "diverged" and bad.rounds[-1] == bad.outcome_round < 60
    single = ac.simulate(
        quad, ac.EF21(ac.TopK(50)), ac.EF21(ac.TopK(25)), stepsize=bad.stepsize, rounds=60, record_every=7
    )
    assert single.outcome_round == bad.outcome_round
    np.testing.assert_array_equal(single.scalars_down, bad.scalars_down)
    np.testing.assert_allclose(single.loss, bad.loss, rtol=1e-9)


def test_more_runs_than_a_block_share_one_program(problem):
    steps = np.geomspace(1e-3, 0.1, 130).tolist()
    ac.sweep(problem, METHODS[1], stepsizes=steps[:64], rounds=3)
    before = loop.MANY.stretch._cache_size()
    seen = []
    grid = ac.sweep(
        problem, METHODS[3], stepsizes=steps[:128], rounds=4, progress=lambda done, runs: seen.append((done, runs))
    )
    assert loop.MANY.stretch._cache_size() == before
    assert [runs for _, runs in seen] == [128] * len(seen) and (64, 128) in seen and seen[-1] == (128, 128)
    assert sorted(seen) == seen and len(set(seen)) > 2
    alike(grid[100], ac.simulate(problem, METHODS[3], stepsize=steps[100], rounds=4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(), "stepsizes"),
        (dict(stepsizes=[0.1], multiples=[1.0]), "one of them"),
        (dict(stepsizes=0.1), r"\[0.1\]"),
        (dict(stepsizes=[]), "empty"),
        (dict(stepsizes=[0.1, float("nan")]), "stepsize"),
        (dict(multiples=[-1.0]), "multiples"),
        (dict(stepsizes=[0.1], zetas=[1.0]), "GD has no zeta"),
        (dict(stepsizes=[0.1], keys=[True]), "key"),
        (dict(stepsizes=[0.1], rounds=-1), "rounds"),
    ],
)
def test_bad_grids_are_refused_by_name(problem, options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        ac.sweep(problem, ac.GD(), **options)


def test_a_negative_zeta_is_refused(problem):
    with pytest.raises(ValueError, match="zeta"):
        ac.sweep(problem, ac.LAG(1.0), stepsizes=[0.1], zetas=[-1.0])


def test_a_grid_is_walked_along_its_first_axis(problem):
    grid = ac.sweep(problem, ac.LAG(1.0), stepsizes=[0.1, 0.2, 0.3], zetas=[1.0, 2.0], rounds=2)
    walked = [[trace for trace in row] for row in grid]
    assert len(walked) == len(grid) == 3
    for i, row in enumerate(walked):
        assert grid[i].shape == (2,) and list(grid[i].axes) == ["zetas"]
        for j, trace in enumerate(row):
            alike(trace, grid[i, j])
            alike(trace, grid[i][j])
            assert trace.stepsize == grid.axes["stepsizes"][i] and trace.uplink_constants.B == grid.axes["zetas"][j]
    with pytest.raises(TypeError, match=r"slice.*stepsizes"):
        grid[:, 0]
    with pytest.raises(TypeError, match=r"1\.0.*zetas"):
        grid[0, 1.0]
    for index in ((0, 2), (0, -3)):
        with pytest.raises(IndexError, match="zetas has 2 entries"):
            grid[index]
    with pytest.raises(IndexError, match="stepsizes, zetas"):
        grid[0, 0, 0]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (dict(uplink="EF21"), "uplink"),
        (dict(uplink="EF21", zetas=[1.0]), "str has no zeta"),
        (dict(uplink=[ac.GD(), ac.TopK(2)]), "uplink"),
        (dict(downlink=ac.TopK(2)), "downlink"),
        (dict(problem=3), "problem"),
        (dict(x0=np.zeros(3)), "x0"),
        (dict(multiples=None, stepsizes=[-1.0]), "stepsizes"),
        (dict(tolerance=True), "tolerance"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_sweep_speaks_of_sweep(problem, changed, words):
    with pytest.raises((TypeError, ValueError), match=rf"sweep\(.*{words}") as refused:
        ac.sweep(**{"problem": problem, "uplink": ac.GD(), "multiples": [1.0], "rounds": 2, **changed})
    assert "simulate" not in str(refused.value)
