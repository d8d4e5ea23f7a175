"""Problems: closed forms against differentiation, constants against what they bound, minima against a solver."""

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse

import problems
from problems import optimum, spectra

ROOT = Path(__file__).resolve().parent.parent
RANDOM = np.random.RandomState(0)
ROWS, LABELS = RANDOM.normal(size=(23, 5)) * [1, 2, 0.5, 1, 3], np.where(RANDOM.normal(size=23) > 0, 1.0, -1.0)
TARGETS = RANDOM.normal(size=23)
SPLIT = [0, 9, 13, 23]
SYMMETRIC = RANDOM.normal(size=(3, 5, 5))
INDEFINITE = SYMMETRIC + SYMMETRIC.transpose(0, 2, 1)
CONVEX = np.einsum("nij,nkj->nik", SYMMETRIC, SYMMETRIC) / 2
VECTORS = RANDOM.normal(size=(3, 5))
FOUR = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [-1.0, 1.0]])  # FR-18


def softplus(z):
    return jnp.logaddexp(0.0, z)


def worker_losses(kind, strength, weights):
    """The f_i by hand, a function x -> (n,), for the shards SPLIT."""
    penalty = {
        "nonconvex": lambda x: strength * jnp.sum(x**2 / (1 + x**2)),
        "l2": lambda x: strength / 2 * jnp.sum(x**2),
        "none": lambda x: 0.0,
        "squares": lambda x: 0.0,
    }[kind]
    n, total = len(SPLIT) - 1, SPLIT[-1] - SPLIT[0]

    def losses(x):
        out = []
        for start, stop in itertools.pairwise(SPLIT):
            part = jnp.asarray(ROWS[start:stop])
            if kind == "squares":
                data = jnp.mean((part @ x - TARGETS[start:stop]) ** 2)
            else:
                data = jnp.mean(softplus(-LABELS[start:stop] * (part @ x)))
            share = n * (stop - start) / total if weights == "rows" else 1.0
            out.append(share * (data + penalty(x)))
        return jnp.stack(out)

    return losses


def quadratic_losses(A, b):
    return lambda x: jnp.einsum("nij,i,j->n", jnp.asarray(A), x, x) / 2 - jnp.asarray(b) @ x


def tridiagonal_matrices(diag, off, b0, d):
    path = np.eye(d, k=1) + np.eye(d, k=-1)
    A = np.asarray(diag)[:, None, None] * np.eye(d) + np.asarray(off)[:, None, None] * path
    return A, np.asarray(b0)[:, None] * np.eye(1, d)


BANDS = ([2.0, -1.0, 0.5], [-1.0, 0.7, 0.2], [0.3, -0.2, 1.0])


def logistic(regulariser="nonconvex", strength=0.1, **more):
    return problems.logistic(
        (ROWS, LABELS), workers=3, regulariser=regulariser, strength=strength, partition=SPLIT, **more
    )


def all_problems():
    yield "nonconvex", logistic(), worker_losses("nonconvex", 0.1, "equal")
    yield "l2, rows", logistic("l2", 0.01, weights="rows"), worker_losses("l2", 0.01, "rows")
    yield "nonconvex, rows", logistic(weights="rows"), worker_losses("nonconvex", 0.1, "rows")
    yield "plain", logistic("none"), worker_losses("none", 0.0, "equal")
    squares = problems.least_squares((ROWS, TARGETS), workers=3, partition=SPLIT)
    yield "least squares", squares, worker_losses("squares", 0.0, "equal")
    squares = problems.least_squares((ROWS, TARGETS), workers=3, partition=SPLIT, weights="rows")
    yield "least squares, rows", squares, worker_losses("squares", 0.0, "rows")
    sparse = problems.logistic((scipy.sparse.csr_array(ROWS), LABELS), workers=3, partition=SPLIT)
    yield "from sparse rows", sparse, worker_losses("nonconvex", 0.1, "equal")
    yield "convex quadratics", problems.general_quadratic(CONVEX, VECTORS), quadratic_losses(CONVEX, VECTORS)
    yield "indefinite", problems.general_quadratic(INDEFINITE, VECTORS), quadratic_losses(INDEFINITE, VECTORS)
    yield "tridiagonal", problems.tridiagonal(*BANDS, 5), quadratic_losses(*tridiagonal_matrices(*BANDS, 5))


ALL = {name: (problem, losses) for name, problem, losses in all_problems()}
QUADRATIC = ("least squares", "least squares, rows", "convex quadratics", "indefinite", "tridiagonal")
every = pytest.mark.parametrize("name", ALL)

loss_of = jax.jit(lambda problem, x: problem.loss(x))
grads_of = jax.jit(lambda problem, x: problem.grads(x))
both_of = jax.jit(lambda problem, x: problem.losses_and_grads(x))
slope_of = jax.jit(lambda problem, x: jax.grad(problem.loss)(x))
many_grads = jax.jit(lambda problem, x: jax.vmap(problem.grads)(x))


def points(count, seed=1, scale=1.0):
    return jnp.asarray(scale * np.random.RandomState(seed).normal(size=(count, 5)))


# --- closed forms ----------------------------------------------------------------------------------------------------


@every
def test_gradients_are_the_derivatives_of_the_workers_losses(name):
    problem, losses = ALL[name]
    assert (problem.n, problem.dim) == (3, 5)
    by_hand = jax.jit(lambda x: (jnp.mean(losses(x)), jax.jacobian(losses)(x)))
    for x in points(4):
        loss, grads = by_hand(x)
        np.testing.assert_allclose(loss_of(problem, x), loss, rtol=1e-12)
        np.testing.assert_allclose(grads_of(problem, x), grads, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(slope_of(problem, x), grads.mean(axis=0), rtol=1e-10, atol=1e-12)
        both = both_of(problem, x)
        np.testing.assert_allclose(both[0], losses(x), rtol=1e-12)
        np.testing.assert_allclose(both[1], grads, rtol=1e-10, atol=1e-12)


@every
def test_gradients_are_the_differences_of_the_loss(name):
    problem, _ = ALL[name]
    x, h = points(1)[0], 1e-5
    slope = [(loss_of(problem, x + h * e) - loss_of(problem, x - h * e)) / (2 * h) for e in jnp.eye(5)]
    np.testing.assert_allclose(slope, grads_of(problem, x).mean(axis=0), rtol=1e-6, atol=1e-8)


# --- smoothness constants --------------------------------------------------------------------------------------------


@every
def test_no_pair_of_points_exceeds_a_constant(name):
    problem, _ = ALL[name]
    L = problem.smoothness
    x = points(400, seed=2, scale=2.0)
    y = x + points(400, seed=3) * 10.0 ** np.random.RandomState(4).uniform(-4, 1, size=(400, 1))
    moved = np.linalg.norm(x - y, axis=1)
    change = np.asarray(many_grads(problem, x) - many_grads(problem, y))  # (400, n, d)
    each = np.linalg.norm(change, axis=2)
    mean = np.linalg.norm(change.mean(axis=1), axis=1)
    above = 1 + 1e-9
    assert np.all(each <= above * L.L_i * moved[:, None])
    assert np.all(mean <= above * L.L_minus * moved)
    assert np.all((each**2).mean(axis=1) <= above * (L.L_plus * moved) ** 2)
    assert np.all((each**2).mean(axis=1) - mean**2 <= above * (L.L_pm * moved) ** 2 + 1e-12)
    if L.mu:  # every f here with a mu is strongly convex
        inner = np.sum(change.mean(axis=1) * np.asarray(x - y), axis=1)
        assert np.all(inner >= L.mu * moved**2 * (1 - 1e-9))


@every
def test_relations_between_constants(name):
    L = ALL[name][0].smoothness
    root_mean_square = math.sqrt(np.mean(L.L_i**2))
    assert L.L_minus <= L.L_plus * (1 + 1e-12) and L.L_minus <= L.L_i.mean() * (1 + 1e-12)
    assert L.L_plus <= root_mean_square * (1 + 1e-12) and L.L_pm <= L.L_plus * (1 + 1e-12)
    assert L.L_plus**2 <= (L.L_minus**2 + L.L_pm**2) * (1 + 1e-12)
    assert set(L.how) == {"L_i", "L_minus", "L_plus", "L_pm", "mu", "mu_i"} and L.L_i.dtype == np.float64
    assert L.mu_i is None or (L.mu_i.shape == L.L_i.shape and np.all(L.mu_i <= L.L_i))


def hessians(name):
    """Of each f_i, and of f, at 0, by differentiation of the losses written by hand."""
    each = np.asarray(jax.jit(jax.hessian(ALL[name][1]))(jnp.zeros(5)))
    return each, each.mean(axis=0)


@every
def test_exact_constants_are_attained(name):
    # For logistic losses the largest curvature of every term is that at 0: eigenvectors there attain the bounds.
    problem, _ = ALL[name]
    L, (each, mean) = problem.smoothness, hessians(name)
    assert pytest.approx(np.abs(np.linalg.eigvalsh(each)).max(axis=1), rel=1e-10) == L.L_i
    assert pytest.approx(np.abs(np.linalg.eigvalsh(mean)).max(), rel=1e-10) == L.L_minus
    values, directions = np.linalg.eigh(each[0])
    v = jnp.asarray(directions[:, np.argmax(np.abs(values))]) * 1e-4
    change = (grads_of(problem, v) - grads_of(problem, -v))[0]
    assert np.linalg.norm(change) == pytest.approx(2e-4 * L.L_i[0], rel=1e-6)
    squares = np.einsum("nij,njk->ik", each, each) / 3
    if name in QUADRATIC:
        assert L.L_plus == pytest.approx(math.sqrt(np.linalg.eigvalsh(squares)[-1]), rel=1e-10)
        assert L.how["L_plus"].startswith("exact")
    else:
        assert L.how["L_plus"].startswith("bound")
    if L.how["L_pm"].startswith("exact"):
        assert L.L_pm == pytest.approx(math.sqrt(np.linalg.eigvalsh(squares - mean @ mean)[-1]), rel=1e-10)
        assert name in ("convex quadratics", "indefinite", "tridiagonal")


def test_mu():
    assert ALL["nonconvex"][0].smoothness.mu is None
    assert ALL["plain"][0].smoothness.mu == 0
    assert ALL["l2, rows"][0].smoothness.mu == 0.01
    for name in ("least squares", "least squares, rows", "convex quadratics"):
        least = np.linalg.eigvalsh(hessians(name)[1])[0]
        assert ALL[name][0].smoothness.mu == pytest.approx(least, rel=1e-9)
    assert ALL["indefinite"][0].smoothness.mu is None
    singular = problems.general_quadratic([np.diag([0.0, 2.0, 3.0])], [[0.0, 1.0, 1.0]])
    assert singular.smoothness.mu == 2  # the PL constant: the least eigenvalue that is not zero
    wide = problems.least_squares((ROWS[:3], TARGETS[:3]), workers=1)
    gram = 2 / 3 * ROWS[:3] @ ROWS[:3].T
    assert wide.smoothness.mu == pytest.approx(np.linalg.eigvalsh(gram)[0], rel=1e-9)


def test_l_i_of_an_indefinite_matrix_takes_absolute_eigenvalues():
    A, b = np.array([np.diag([1.0, -5.0]), np.diag([3.0, 1.0])]), np.zeros((2, 2))
    L = problems.general_quadratic(A, b).smoothness
    np.testing.assert_allclose(L.L_i, [5, 3])
    assert pytest.approx((2, math.sqrt(13), 3)) == (L.L_minus, L.L_plus, L.L_pm)
    np.testing.assert_allclose(problems.tridiagonal([0.0, 1.0], [-1.0, 0.0], [0.0, 0.0], 3).smoothness.L_i, [2**0.5, 1])


def test_large_spectra_are_bounded_from_above(monkeypatch):
    exact, how = spectra.largest_eigenvalue(ROWS, 4.0)
    assert how.startswith("exact")
    assert exact == pytest.approx(np.linalg.norm(ROWS, 2) ** 2 / 4, rel=1e-12)
    monkeypatch.setattr(spectra, "EXACT_UP_TO", 3)
    for rows in (ROWS, scipy.sparse.csr_array(ROWS)):
        bound, how = spectra.largest_eigenvalue(rows, 4.0)
        assert how.startswith("bound") and exact <= bound < 3 * exact
    assert logistic().smoothness.how["L_i"].startswith("bound")


def test_fr18_constants_by_hand():
    make = lambda regulariser, strength, workers: problems.logistic(
        (FOUR, [1, -1, 1, -1]), workers=workers, regulariser=regulariser, strength=strength
    )
    one, two = make("none", 0.0, 1).smoothness, make("none", 0.0, 2).smoothness
    assert (one.L_minus, one.L_plus) == pytest.approx((0.375, 0.375))
    np.testing.assert_allclose(two.L_i, [0.5, 0.25])
    assert (two.L_minus, two.L_plus, two.mu) == pytest.approx((0.375, 0.3952847, 0), abs=1e-7)
    np.testing.assert_allclose(make("l2", 0.3, 2).smoothness.L_i, [0.8, 0.55])
    np.testing.assert_allclose(make("nonconvex", 0.3, 2).smoothness.L_i, [1.1, 0.85])
    assert make("l2", 0.3, 2).smoothness.mu == 0.3 and make("nonconvex", 0.3, 2).smoothness.L_minus == 0.975


def test_hessian_upper_bounds_do_not_square():
    # theory.md 3.0: H <= M does not give H^2 <= M^2, so L_plus is never taken from the M_i.
    M, H = np.array([[2.0, 1.0], [1.0, 1.0]]), np.diag([1.0, 0.0])
    other = np.array([[0.71888332, -1.15642818], [-1.15642818, 1.8753115]])  # found by search
    assert np.linalg.eigvalsh(M - H)[0] >= -1e-12 and np.linalg.eigvalsh(other)[0] > 0
    true = problems.general_quadratic([H, other], np.zeros((2, 2))).smoothness.L_plus
    wrong = math.sqrt(np.linalg.eigvalsh((M @ M + other @ other) / 2)[-1])
    assert true / wrong == pytest.approx(1.0118, abs=1e-4)
    assert true <= math.sqrt((np.linalg.norm(M, 2) ** 2 + np.linalg.norm(other, 2) ** 2) / 2)  # what is used instead


# --- quadratics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3, 40])
def test_tridiagonal_is_general_quadratic_on_the_dense_matrices(d):
    bands = ([3.0, 2.5, 2.0], [-1.0, 0.7, -1.2], [0.3, -0.2, 1.0])
    banded = problems.tridiagonal(*bands, d)
    dense = problems.general_quadratic(*tridiagonal_matrices(*bands, d), x0=banded.x0)
    for name in ("L_minus", "L_plus", "L_pm", "mu", "L_i"):
        np.testing.assert_allclose(
            getattr(banded.smoothness, name), getattr(dense.smoothness, name), rtol=1e-10, atol=1e-10
        )
    assert banded.f_star == pytest.approx(dense.f_star, rel=1e-10)
    x = jnp.asarray(np.random.RandomState(1).normal(size=d))
    np.testing.assert_allclose(grads_of(banded, x), grads_of(dense, x), atol=1e-12)
    np.testing.assert_allclose(loss_of(banded, x), loss_of(dense, x), rtol=1e-12)
    assert banded.storage == "banded" and dense.storage == "dense"
    np.testing.assert_array_equal(banded.x0, np.sqrt(d) * np.eye(1, d)[0])


@pytest.fixture(scope="module")
def quad_a():
    for folder in (ROOT / "tests" / "data" / "reference", ROOT.parent / "shared" / "reference"):
        if (folder / "problem_quadA.npz").is_file():
            return np.load(folder / "problem_quadA.npz")
    return pytest.skip("needs problem_quadA.npz in tests/data/reference or ../shared/reference")


def test_the_recipe_makes_the_reference_quadratic_from_its_seed(quad_a):
    made = problems.quadratic(workers=10, dim=100, noise_scale=0.8, strength=1e-6, seed=12345)
    given = problems.tridiagonal(quad_a["diag"], quad_a["off"], quad_a["b0"], int(quad_a["d"]))
    for name in ("diag", "off", "b0"):
        np.testing.assert_allclose(getattr(made, name), quad_a[name], rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(made.x0, quad_a["x0"], rtol=1e-15)
    for problem in (made, given):
        L = problem.smoothness
        assert pytest.approx((float(quad_a["L"]), float(quad_a["L_pm"])), rel=1e-7) == (L.L_minus, L.L_pm)
        assert L.mu == pytest.approx(1e-6, rel=1e-8)
        assert np.all(L.L_i >= quad_a["Li"] - 1e-7)  # theirs is the largest, ours the largest absolute eigenvalue
        convex = quad_a["off"] < 0
        np.testing.assert_allclose(L.L_i[convex], quad_a["Li"][convex], rtol=1e-6)


def test_the_recipe_of_the_poster():
    L = problems.quadratic(workers=100, dim=1000, noise_scale=6.4, seed=12345).smoothness
    assert (round(L.L_pm, 2), round(L.L_minus, 2)) == (6.58, 0.77)
    assert math.sqrt(np.mean(L.L_i**2)) == pytest.approx(6.626, abs=1e-3)  # theory.md pitfall 8 cuts it to 6.62
    same = problems.quadratic(workers=4, dim=50, noise_scale=0.0).smoothness
    assert same.L_pm == pytest.approx(0, abs=1e-7) and same.L_minus == pytest.approx(1, abs=5e-3)


# --- minima ----------------------------------------------------------------------------------------------------------


def minimise(problem):
    value = lambda x: float(loss_of(problem, jnp.asarray(x)))
    slope = lambda x: np.asarray(grads_of(problem, jnp.asarray(x)).mean(axis=0))
    found = scipy.optimize.minimize(value, np.zeros(problem.dim), jac=slope, method="BFGS", options={"gtol": 1e-10})
    return found.fun


@pytest.mark.parametrize("name", ["l2, rows", "least squares", "least squares, rows", "convex quadratics"])
def test_f_star_is_the_least_value(name):
    problem = ALL[name][0]
    assert problem.f_star == pytest.approx(minimise(problem), rel=1e-12)
    assert problem.f_lower == problem.f_star


def test_fr20_f_star_is_certified_by_its_gradient_and_gaps_are_not_clamped():
    problem = logistic("l2", 0.01)
    found = problem.about.minimum()
    slope = np.linalg.norm(grads_of(problem, jnp.asarray(found.x)).mean(axis=0))
    assert slope <= 1e-12 and "|grad f|" in found.how
    gap = float(loss_of(problem, jnp.asarray(found.x))) - problem.f_star
    assert -1e-15 < gap < 1e-15
    assert problem.smoothness.mu == 0.01
    for x in points(20, seed=5):  # strong convexity: f - f* >= mu/2 |x - x*|^2, <= |grad f|^2/(2 mu)
        gap = float(loss_of(problem, x)) - problem.f_star
        assert gap >= 0.005 * np.sum((x - found.x) ** 2)
        assert gap <= np.sum(grads_of(problem, x).mean(axis=0) ** 2) / 0.02


def test_fr20_a_minimum_that_cannot_be_certified_is_refused(monkeypatch):
    monkeypatch.setattr(optimum, "GRADIENT_TOLERANCE", 1e-40)
    problem = logistic("l2", 1e-3)
    with pytest.raises(ValueError, match=r"reference solver reached.*needed to certify f_star"):
        _ = problem.f_star


@pytest.mark.parametrize("make", [lambda: logistic(), lambda: logistic("none"), lambda: logistic("l2", 0.0)])
def test_where_the_minimum_is_not_known_there_is_a_bound(make):
    problem = make()
    assert problem.f_star is None and problem.f_lower == 0.0
    assert min(float(loss_of(problem, x)) for x in points(50)) > problem.f_lower


@pytest.mark.parametrize(
    "make",
    [
        lambda: problems.general_quadratic([np.diag([1.0, -1.0])], [[0.0, 0.0]]),
        lambda: problems.general_quadratic([np.diag([1.0, 0.0])], [[0.0, 1.0]]),
        lambda: problems.general_quadratic([np.diag([1e-6, 0.0])], [[0.0, 1e-9]]),  # the same, in other units
        lambda: problems.tridiagonal([1.0], [1.0], [0.0], 4),
        lambda: problems.tridiagonal([1.0], [-0.5 / math.cos(math.pi / 4)], [1.0], 3),
        lambda: problems.tridiagonal([1e-9], [-0.5e-9 / math.cos(math.pi / 4)], [1e-9], 3),
    ],
)
def test_a_quadratic_that_is_unbounded_below_says_so(make):
    problem = make()
    assert problem.f_star is None and problem.f_lower == -math.inf


def test_one_bad_worker_does_not_make_f_unbounded():
    problem = problems.general_quadratic([np.diag([4.0, -1.0]), np.diag([0.0, 3.0])], [[2.0, 0.0], [0.0, 2.0]])
    assert problem.f_star == pytest.approx(-(1**2 / 2 + 1**2 / 1) / 2, rel=1e-12)


def test_a_singular_quadratic_with_its_linear_term_in_range_is_bounded():
    assert problems.general_quadratic([np.diag([2.0, 0.0])], [[1.0, 0.0]]).f_star == pytest.approx(-0.25, rel=1e-12)
    assert problems.tridiagonal([1.0], [-0.5 / math.cos(math.pi / 4)], [0.0], 3).f_star == 0


def test_an_all_zero_feature_table_is_a_problem_too():
    flat = problems.least_squares((np.zeros((4, 2)), np.array([1.0, 2.0, 3.0, 4.0])), workers=2)
    assert flat.f_star == pytest.approx(7.5) and flat.smoothness.L_minus == 0 and flat.smoothness.mu is None
    assert problems.logistic((np.zeros((4, 2)), [1, -1, 1, -1]), workers=2).smoothness.L_minus == pytest.approx(0.2)


# --- weights and rows ------------------------------------------------------------------------------------------------

TEN = (np.ones((10, 1)), np.arange(10.0))  # 10 rows, 3 workers: f_i = mean (x - y_j)^2


@pytest.mark.parametrize("weights, minimiser", [("equal", (1.5 + 5 + 8) / 3), ("rows", 4.5)])
def test_fr15_unequal_shards(weights, minimiser):
    problem = problems.least_squares(TEN, workers=3, partition="contiguous-spread", weights=weights)
    assert minimiser == pytest.approx({"equal": 4.8333, "rows": 4.5}[weights], abs=1e-4)
    x = jnp.array([minimiser])
    assert np.abs(grads_of(problem, x).mean()) < 1e-14
    assert problem.f_star == pytest.approx(float(loss_of(problem, x)), rel=1e-12)
    share = np.ones(3) if weights == "equal" else np.array([1.2, 0.9, 0.9])
    np.testing.assert_allclose(problem.smoothness.L_i, 2 * share)
    assert problem.smoothness.L_minus == pytest.approx(2) and problem.smoothness.mu == pytest.approx(2)
    assert problem.smoothness.L_plus == pytest.approx(2 * math.sqrt(np.mean(share**2)))
    np.testing.assert_allclose(grads_of(problem, jnp.zeros(1))[:, 0], -2 * share * [1.5, 5, 8])


def test_fr15_weights_of_a_logistic_problem():
    rows, pooled = logistic("l2", 0.2, weights="rows"), problems.logistic((ROWS, LABELS), 1, "l2", 0.2)
    for x in points(3):
        assert loss_of(rows, x) == pytest.approx(float(loss_of(pooled, x)), rel=1e-13)
        np.testing.assert_allclose(grads_of(rows, x).mean(axis=0), grads_of(pooled, x)[0], atol=1e-14)
    assert rows.smoothness.L_minus == pytest.approx(pooled.smoothness.L_minus, rel=1e-12)
    share = 3 * np.diff(SPLIT) / 23
    np.testing.assert_allclose(rows.smoothness.L_i, share * logistic("l2", 0.2).smoothness.L_i)
    assert rows.f_star == pytest.approx(pooled.f_star, rel=1e-12)


def test_offsets_may_leave_out_rows_which_then_count_for_nothing():
    spoilt = np.concatenate([np.full((2, 5), 1e6), ROWS, np.full((3, 5), -1e6)])
    labels = np.concatenate([[1, 1], LABELS, [-1, 1, 1]])
    targets = np.concatenate([[9, 9], TARGETS, [9, 9, 9]])
    offsets = [2 + start for start in SPLIT]
    for weights in ("equal", "rows"):
        pairs = [
            (
                problems.logistic((spoilt, labels), 3, "l2", 0.2, offsets, weights=weights),
                logistic("l2", 0.2, weights=weights),
            ),
            (
                problems.least_squares((spoilt, targets), 3, offsets, weights=weights),
                problems.least_squares((ROWS, TARGETS), 3, SPLIT, weights=weights),
            ),
        ]
        for outer, inner in pairs:
            x = points(1)[0]
            assert loss_of(outer, x) == loss_of(inner, x)
            np.testing.assert_array_equal(grads_of(outer, x), grads_of(inner, x))
            assert outer.smoothness[:4] == inner.smoothness[:4] and outer.f_star == inner.f_star


def test_a_shard_is_as_good_alone():
    for i, (start, stop) in enumerate(itertools.pairwise(SPLIT)):
        alone = problems.logistic((ROWS, LABELS), 1, "nonconvex", 0.1, [start, stop])
        x = points(1)[0]
        np.testing.assert_allclose(grads_of(alone, x)[0], grads_of(logistic(), x)[i], atol=1e-15)
        assert alone.smoothness.L_minus == pytest.approx(logistic().smoothness.L_i[i], rel=1e-12)


# --- extremes, labels, precision -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("row, loss", [(0, 1000.0), (1, 0.6931472), (2, 0.0)])
def test_fr21_margins_at_the_extremes(row, loss, dtype):
    data = (np.array([[1000.0], [0.0], [1000.0]]), np.array([-1, 1, 1]))
    problem = problems.logistic(data, 1, "none", 0.0, [row, row + 1], dtype=dtype)
    x = jnp.ones(1, dtype)
    assert loss_of(problem, x) == pytest.approx(loss, abs=1e-7)
    grads = grads_of(problem, x)
    assert np.isfinite(grads).all() and np.isfinite(slope_of(problem, x)).all()
    assert float(grads[0, 0]) == pytest.approx([1000, 0, 0][row])


@pytest.mark.parametrize("regulariser", ["nonconvex", "l2", "none"])
def test_fr21_regularisers_at_zero_and_far_out(regulariser):
    for dtype in ("float32", "float64"):
        problem = logistic(regulariser, 0.1, dtype=dtype)
        for x in (jnp.zeros(5, dtype), jnp.full(5, 1e30 if regulariser == "nonconvex" else 1e3, dtype)):
            grads = grads_of(problem, x)
            assert np.isfinite(grads).all() and np.isfinite(slope_of(problem, x)).all()
            assert np.isfinite(loss_of(problem, x))


@pytest.mark.parametrize("labels", [(0, 1, 1, 0), (1, 2, 2, 1), (-1, 1, 1, -1), (False, True, True, False)])
def test_fr22_the_larger_label_is_plus_one(labels):
    problem = problems.logistic((FOUR, np.array(labels)), 1, "none", 0.0)
    assert loss_of(problem, jnp.ones(2)) == pytest.approx(0.5650662, abs=5e-8)
    reference = problems.logistic((FOUR, np.array([-1, 1, 1, -1])), 1, "none", 0.0)
    np.testing.assert_array_equal(grads_of(problem, jnp.ones(2)), grads_of(reference, jnp.ones(2)))


@pytest.mark.parametrize("labels", [(1, 1, 1, 1), (0, 1, 2, 0), (0, 1, np.nan, 1)])
def test_fr22_other_labels_are_refused(labels):
    with pytest.raises(ValueError, match="label"):
        problems.logistic((FOUR, np.array(labels)), 1)


def factories(dtype):
    data = (ROWS, LABELS)
    yield problems.logistic(data, 3, dtype=dtype)
    yield problems.least_squares(data, 3, dtype=dtype)
    yield problems.quadratic(workers=3, dim=5, dtype=dtype)
    yield problems.general_quadratic(CONVEX, VECTORS, dtype=dtype)


def test_the_precision_asked_for_is_the_precision_had():
    for single, double in zip(factories("float32"), factories("float64"), strict=True):
        for problem, dtype in ((single, np.float32), (double, np.float64)):
            leaves = jax.tree.leaves(problem)
            assert {leaf.dtype for leaf in leaves} == {np.dtype(dtype)} == {problem.x0.dtype}
            x = points(1)[0].astype(dtype)
            assert loss_of(problem, x).dtype == grads_of(problem, x).dtype == dtype
        np.testing.assert_allclose(grads_of(single, x.astype(np.float32)), grads_of(double, x), rtol=1e-4, atol=1e-5)
        assert single.smoothness.L_plus == pytest.approx(double.smoothness.L_plus, rel=1e-12)  # host doubles
    assert logistic().x0.dtype == np.float64
    assert problems.logistic((ROWS.astype(np.float32), LABELS), 3).x0.dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "int32", "double!", complex])
def test_no_other_precision_is_taken(dtype):
    with pytest.raises(ValueError, match="float32 or float64"):
        problems.quadratic(workers=2, dim=5, dtype=dtype)


def test_double_precision_without_64_bit_mode_is_refused_with_the_remedy():
    code = """
import numpy as np, problems
rows, labels = np.eye(4), np.array([1, -1, 1, -1])
makers = [
    lambda **k: problems.logistic((rows, labels), 2, **k),
    lambda **k: problems.least_squares((rows, labels), 2, **k),
    lambda **k: problems.quadratic(workers=2, dim=4, **k),
    lambda **k: problems.tridiagonal([2.0], [0.5], [1.0], 4, **k),
    lambda **k: problems.general_quadratic([np.eye(2)], [[1.0, 1.0]], **k),
]
for make in makers:
    for asked in ({}, {"dtype": "float64"}):
        try:
            make(**asked)
        except ValueError as error:
            assert "jax_enable_x64" in str(error) and 'dtype="float32"' in str(error), error
        else:
            raise SystemExit("float64 was promised and float32 given")
    assert make(dtype="float32").x0.dtype == np.float32
"""
    environment = {key: value for key, value in os.environ.items() if key != "JAX_ENABLE_X64"}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


# --- bad requests ----------------------------------------------------------------------------------------------------

BAD = [
    (lambda: logistic("l1"), "regulariser.*nonconvex, l2, none; got 'l1'"),
    (lambda: logistic(strength=-1), r"logistic\(strength="),
    (lambda: logistic(strength=math.nan), r"logistic\(strength="),
    (lambda: logistic(strength=True), r"logistic\(strength="),
    (lambda: logistic(weights="row"), r"logistic\(weights=.*'equal' or 'rows'; got 'row'"),
    (lambda: problems.logistic((ROWS, LABELS), workers=24), "24 workers need at least 24 rows"),
    (lambda: problems.logistic((ROWS, LABELS), 3, partition="contigous"), "nearest is 'contiguous'"),
    (lambda: problems.least_squares((ROWS, TARGETS), 3, weights="both"), r"least_squares\(weights="),
    (lambda: problems.quadratic(workers=0), r"quadratic\(workers="),
    (lambda: problems.quadratic(dim=2.5), r"quadratic\(dim="),
    (lambda: problems.quadratic(dim=5, noise_scale=-0.1), r"quadratic\(noise_scale="),
    (lambda: problems.quadratic(dim=5, strength=math.inf), r"quadratic\(strength="),
    (lambda: problems.tridiagonal([1.0], [1.0, 2.0], [1.0], 4), "one length"),
    (lambda: problems.tridiagonal([math.nan], [1.0], [1.0], 4), r"tridiagonal\(diag="),
    (lambda: problems.tridiagonal([1.0], [1.0], [1.0], 4, x0=[1.0]), r"tridiagonal\(x0=.*length 4"),
    (lambda: problems.general_quadratic([[[1.0, 2.0], [0.0, 1.0]]], [[0.0, 0.0]]), "symmetric"),
    (lambda: problems.general_quadratic([np.eye(2)], [[0.0, 0.0, 0.0]]), r"must be \(n, d, d\)"),
    (lambda: problems.general_quadratic([np.eye(2)], [[0.0, math.nan]]), "finite"),
]


@pytest.mark.parametrize("make, told", BAD)
def test_bad_requests_are_refused_by_name(make, told):
    with pytest.raises(ValueError, match=told):
        make()


@pytest.mark.parametrize("make", [problems.logistic, problems.least_squares])
@pytest.mark.parametrize("stored", [np.asarray, scipy.sparse.csr_array])
def test_data_too_large_for_its_constants_is_refused_by_feature(make, stored):
    features, labels = np.ones((8, 3)), np.array([1.0, -1.0] * 4)
    features[5, 1] = -1e200
    with pytest.raises(ValueError, match=rf"{make.__name__}: feature 2 .*1e\+200.*rescale"):
        make((stored(features), labels), 2)
    features[5, 1] = 1e70  # large, and its fourth power is a float64
    assert np.isfinite(make((stored(features), labels), 2).smoothness.L_plus)
