"""Which rows each worker has: every name as it is documented, for any number of rows and workers."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import problems
from problems.partition import NAMES, partition

fixed = settings(derandomize=True, database=None, deadline=None, max_examples=150)


@st.composite
def requests(draw):
    rows = draw(st.integers(1, 60))
    labels = np.array(draw(st.lists(st.sampled_from([-1.0, 1.0, 2.0]), min_size=rows, max_size=rows)))
    return labels, draw(st.integers(1, rows)), draw(st.integers(0, 2**32 - 1))


def lengths(shards):
    return [len(shard) for shard in shards]


@fixed
@given(requests())
def test_every_name_as_documented(request):
    labels, n, seed = request
    rows = labels.size
    low, left = divmod(rows, n)
    spread = [low + 1] * left + [low] * (n - left)
    order = np.arange(rows)
    for name in NAMES:
        shards = partition(labels, n, name, seed=seed, alpha=0.3 if name == "dirichlet" else None)
        joined = np.concatenate(shards)
        assert isinstance(shards, tuple) and len(shards) == n and min(lengths(shards)) >= 1
        assert all(shard.dtype.kind == "i" and shard.ndim == 1 for shard in shards)
        kept = low * n if name == "contiguous-drop" else rows
        np.testing.assert_array_equal(np.sort(joined), order[:kept])  # each used row once
        if name.startswith("contiguous"):
            np.testing.assert_array_equal(joined, order[:kept])
        if name == "contiguous":
            assert lengths(shards) == [low] * (n - 1) + [low + left]
        elif name == "contiguous-drop":
            assert lengths(shards) == [low] * n
        elif name != "dirichlet":
            assert lengths(shards) == spread
        if name == "sorted":
            np.testing.assert_array_equal(joined, np.argsort(labels, kind="stable"))
        if name == "dirichlet":
            assert all((np.diff(shard) > 0).all() for shard in shards)
        again = partition(labels, n, name, seed=seed, alpha=0.3 if name == "dirichlet" else None)
        assert all((a == b).all() for a, b in zip(shards, again, strict=True))


@fixed
@given(requests(), st.one_of(st.floats(5e-324, 1.7e308), st.sampled_from([5e-324, 1e-9, 1e-3, 1.0, 1e308])))
def test_dirichlet_uses_each_row_once_for_any_alpha(request, alpha):
    labels, n, seed = request
    shards = partition(labels, n, "dirichlet", alpha=alpha, seed=seed)
    assert min(lengths(shards)) >= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(labels.size))


def test_dirichlet_skew_goes_with_alpha():
    labels = np.repeat([-1.0, 1.0], 5000)

    def spread(alpha):
        shards = partition(labels, 10, "dirichlet", alpha=alpha, seed=1)
        return np.std([np.mean(labels[shard] > 0) for shard in shards])

    assert spread(1e6) < 0.01 < 0.05 < spread(10.0) < 0.3 < spread(0.05)
    even = partition(labels, 10, "dirichlet", alpha=1e9, seed=1)
    assert all(abs(len(shard) - 1000) <= 2 for shard in even)
    # All rows of a label go to one worker: the repair gives each other worker the last rows of the fullest.
    tiny = partition(labels, 10, "dirichlet", alpha=1e-9, seed=1)
    assert sorted(lengths(tiny))[:8] == [1] * 8


def test_dirichlet_follows_its_law():
    """Mean share 1/n and variance (n-1)/(n^2 (n alpha + 1)), within five standard errors."""
    from problems.partition import _proportions

    random = np.random.RandomState(0)
    for alpha in (0.1, 1.0, 5.0):
        draws = np.array([_proportions(alpha, 4, random) for _ in range(4000)])
        np.testing.assert_allclose(draws.sum(axis=1), 1, rtol=1e-12)
        variance = 3 / (16 * (4 * alpha + 1))
        assert np.abs(draws.mean(axis=0) - 0.25).max() < 5 * np.sqrt(variance / 4000)
        assert draws.var() == pytest.approx(variance, rel=0.1)


def test_the_draws_are_frozen():
    """The same on every machine: a published figure names its seed."""
    assert [s.tolist() for s in partition(7, 3, "shuffled", seed=5)] == [[6, 2, 4], [1, 0], [5, 3]]
    labels = [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert [s.tolist() for s in partition(labels, 3, "dirichlet", alpha=0.5, seed=5)] == [
        [8],
        [0, 1, 2, 3, 4, 5, 6],
        [7],
    ]
    assert (np.concatenate(partition(50, 2, "shuffled", seed=1)) != np.concatenate(partition(50, 2, "shuffled"))).any()


def test_fr15_unequal_shards():
    assert lengths(partition(10, 3, "contiguous-spread")) == [4, 3, 3]
    assert lengths(partition(10, 3)) == [3, 3, 4]
    assert lengths(partition(10, 3, "contiguous-drop")) == [3, 3, 3]
    means = [np.mean(shard) for shard in partition(10, 3, "contiguous-spread")]
    assert np.mean(means) == pytest.approx(4.8333, abs=5e-5)
    for name in NAMES:
        with pytest.raises(ValueError, match=r"11 workers .* 10$"):
            partition([0, 1] * 5, 11, name, alpha=1.0 if name == "dirichlet" else None)


def test_offsets_of_the_reference_problem():
    last, drop = partition(569, 20), partition(569, 20, "contiguous-drop")
    assert [s[0] for s in last] == [s[0] for s in drop] == list(range(0, 560, 28))
    assert last[-1][-1] == 568 and drop[-1][-1] == 559


@fixed
@given(st.data())
def test_offsets(data):
    rows = data.draw(st.integers(1, 40))
    cuts = sorted(data.draw(st.sets(st.integers(0, rows), min_size=2)))
    shards = partition(rows, len(cuts) - 1, data.draw(st.sampled_from([list, tuple, np.array]))(cuts))
    assert lengths(shards) == np.diff(cuts).tolist()
    np.testing.assert_array_equal(np.concatenate(shards), np.arange(cuts[0], cuts[-1]))


@pytest.mark.parametrize(
    ("offsets", "says"),
    [
        ([0, 4, 10], "3 workers need 4 offsets, and there are 3"),
        ([0, 4, 4, 10], "worker 1 .*without rows: 4, 4"),
        ([0, 6, 4, 10], "worker 1 .*descend: 6, 4"),
        ([-1, 4, 7, 10], "number of rows, 10"),
        ([0, 4, 7, 11], "number of rows, 10"),
        ([0, 4.0, 7, 10], "whole numbers"),
        ([[0, 4, 7, 10]], "whole numbers"),
        ([True, False, True, True], "whole numbers"),
        (None, "a name"),
        (3, "a name"),
    ],
)
def test_bad_offsets(offsets, says):
    with pytest.raises(ValueError, match=says):
        partition(10, 3, offsets)


@pytest.mark.parametrize(
    ("arguments", "keywords", "says"),
    [
        ((10, 3, "contigous"), {}, "'contigous'; the nearest is 'contiguous'"),
        ((10, 3, "Dirichlet"), {}, "the nearest is 'dirichlet'"),
        ((10, 0), {}, "workers"),
        ((10, 2.0), {}, "workers"),
        ((10, True), {}, "workers"),
        ((0, 1), {}, "number of rows"),
        ((10.0, 1), {}, "number of rows"),
        (([[1, 2]], 1), {}, r"\(1, 2\)"),
        (([], 1), {}, r"\(0,\)"),
        (([1, np.nan], 1, "sorted"), {}, "nan"),
        ((10, 3, "sorted"), {}, "'sorted' goes by the labels"),
        ((10, 3, "dirichlet"), {"alpha": 1.0}, "'dirichlet' goes by the labels"),
        (([0, 1] * 5, 3, "dirichlet"), {}, "needs alpha"),
        *((([0, 1] * 5, 3, "dirichlet"), {"alpha": a}, "alpha") for a in (0, -1.0, np.inf, np.nan, "1", True, [1.0])),
        ((10, 3, "contiguous"), {"alpha": 1.0}, "alpha belongs to 'dirichlet'"),
        ((10, 3, [0, 4, 7, 10]), {"alpha": 1.0}, "alpha belongs to 'dirichlet'"),
        ((10, 3, "shuffled"), {"seed": -1}, "seed"),
        ((10, 3, "shuffled"), {"seed": 2**32}, "seed"),
        ((10, 3, "shuffled"), {"seed": 1.5}, "seed"),
    ],
)
def test_bad_requests(arguments, keywords, says):
    with pytest.raises(ValueError, match=says):
        partition(*arguments, **keywords)


def test_unequal_shards_are_weighed_as_they_say():  # FR-15
    """10 rows, 3 workers: every row used once; equal weights average shard means, row weights the rows."""
    rows = (np.ones((10, 1)), np.arange(10.0))
    for weights, mean in (("equal", 29 / 6), ("rows", 4.5)):
        problem = problems.least_squares(rows, workers=3, partition="contiguous-spread", weights=weights)
        assert np.asarray(problem.sizes).tolist() == [4, 3, 3]
        slope = float(np.mean(np.asarray(problem.grads(jnp.zeros(1)))))
        assert slope == pytest.approx(-2 * mean)
        assert problem.x_star[0] == pytest.approx(mean)
        assert problem.smoothness.L_minus == pytest.approx(2.0)
        assert float(problem.loss(jnp.asarray(problem.x_star))) == pytest.approx(problem.f_star)
