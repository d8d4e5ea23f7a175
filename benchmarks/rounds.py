"""P1 to P4: a whole AdaCGD round with 8 levels over the bare gradient of all workers, in the same storage."""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import adacgd as ac
import problems
from benchmarks.timing import Ratio, interleaved, ratio
from problems.quadratic import Quadratic


@functools.partial(jax.jit, static_argnames="rounds")
def bare(problem: Any, stepsize: jax.Array, rounds: int) -> jax.Array:
    """Rounds of distributed gradient descent and nothing else."""
    step = lambda _, x: x - stepsize * jnp.mean(problem.grads(x), axis=0)
    return jax.lax.fori_loop(0, rounds, step, problem.x0)


def round_over_gradient(id: str, what: str, target: float, problem: Any, repeats: int, rounds: int = 200) -> Ratio:
    dim = problem.dim
    ks = np.unique(np.maximum(1, np.geomspace(max(1, dim // 100), dim // 2, 8).astype(int)))
    uplink = ac.AdaCGD([ac.TopK(int(k)) for k in ks], zeta=1.0)
    gamma = ac.theory.stepsize(problem.smoothness, uplink.constants(dim))
    run = functools.partial(ac.simulate, problem, uplink, stepsize=gamma, record_every=rounds)
    warm = run(rounds=rounds)  # a worker's first round may skip: time the ones that choose

    seconds = interleaved(
        {
            "round": lambda: run(rounds=2 * rounds, start=warm).loss,
            "bare": lambda: bare(problem, jnp.asarray(gamma), rounds),
        },
        repeats,
    )
    return ratio(id, what, target, seconds, "round", "bare")


def like(shape: tuple[int, int], per_row: int, groups: bool, seed: int = 0) -> problems.Data:
    """0/1 data of a shape and sparsity: one-hot groups as a9a, or skewed columns as w8a."""
    rng = np.random.default_rng(seed)
    rows, d = shape
    if groups:
        starts = np.linspace(0, d, per_row + 1).astype(int)
        columns = np.stack([rng.integers(a, b, rows) for a, b in itertools.pairwise(starts)], 1).ravel()
    else:
        weights = 1 / np.arange(1, d + 1)
        columns = rng.choice(d, rows * per_row, p=weights / weights.sum())
    index = np.repeat(np.arange(rows), per_row)
    features = scipy.sparse.coo_array((np.ones(len(columns)), (index, columns)), shape).tocsr()
    features.data[:] = 1.0
    labels = np.where(rng.random(rows) < 0.25, 1.0, -1.0)
    return problems.Data(features, labels, "like-shaped", "synthetic")


def data(name: str, data_dir: str | None, stand_in: problems.Data) -> problems.Data:
    """The real file where it is at hand, else the stand-in, which says so by its name."""
    try:
        return problems.load(name, data_dir=data_dir)
    except (FileNotFoundError, ValueError):
        return stand_in


def measure(data_dir: str | None, repeats: int) -> Iterator[Ratio]:
    a9a = data("a9a", data_dir, like((32561, 123), 14, groups=True))
    problem: Any = problems.logistic(a9a, workers=20)
    yield round_over_gradient("P1", f"AdaCGD m=8 round / bare gradient, a9a n=20 ({a9a.name})", 1.15, problem, repeats)
    w8a = data("w8a", data_dir, like((49749, 300), 12, groups=False))
    problem = problems.logistic(w8a, workers=20)
    yield round_over_gradient("P2", f"the same, w8a n=20 ({w8a.name})", 1.15, problem, repeats)
    problem = problems.logistic(w8a, workers=100)
    yield round_over_gradient("P3", f"the same, w8a n=100 ({w8a.name})", 1.35, problem, repeats)
    problem = dense_quadratic(100, 1000)
    yield round_over_gradient("P4", "the same, dense quadratic d=1000 n=100", 1.10, problem, repeats, rounds=20)


def dense_quadratic(n: int, dim: int) -> Quadratic:
    """The 3PC recipe written out as dense matrices."""
    banded = problems.quadratic(workers=n, dim=dim)
    path = np.eye(dim, k=1) + np.eye(dim, k=-1)
    diag, off, b0 = (np.asarray(v) for v in (banded.diag, banded.off, banded.b0))
    A = diag[:, None, None] * np.eye(dim) + off[:, None, None] * path
    return Quadratic(jnp.asarray(A), jnp.asarray(b0[:, None] * np.eye(1, dim)), banded.about)
