"""Least squares f_i(x) = mean_j (a_j'x - y_j)^2, the PL problem of the EF21 experiments (theory.md section 5)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.sparse

from adacgd.module import Aside, module, static
from problems.datasets import Data, as_data
from problems.partition import partition as split
from problems.problem import Minimum, Problem, Smoothness, as_dtype
from problems.spectra import largest_eigenvalue, require_moderate
from problems.stacking import Shards, row_weights, shard_weights, stack, weighted_rows

ZERO_CUT = 1e-12  # eigenvalues of the Hessian below this times the largest count as zero
EXACT_UP_TO = 4096  # features for which mu and the minimum are computed


@module
class LeastSquares(Problem):
    """See the module."""

    shards: Shards
    targets: jax.Array  # (n, m), 0 for padding
    about: Aside = static()
    by_worker = ("shards", "targets")

    @property
    def n(self) -> int:
        """The number of workers."""
        return self.shards.n

    @property
    def dim(self) -> int:
        """The number of features."""
        return self.shards.dim

    def losses(self, x: jax.Array) -> jax.Array:
        """(f_i(x))_i."""
        return self.losses_and_grads(x)[0]

    def grads(self, x: jax.Array) -> jax.Array:
        """(2 A_i'(w (A_i x - y_i)))_i."""
        return self.losses_and_grads(x)[1]

    def losses_and_grads(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Both from one product with the data."""
        residual = self.shards.times(x) - self.targets
        weighted = self.shards.weights * residual
        return jnp.sum(weighted * residual, axis=1), self.shards.transposed_times(2 * weighted)

    @property
    def sizes(self) -> jax.Array:
        """The rows of each worker, (n,)."""
        return self.shards.sizes

    def batch_grads(self, x: jax.Array, index: jax.Array) -> jax.Array:
        """(n, d) the gradients with the mean over all rows of a worker replaced by that over its rows index, (n, b)."""
        rows, targets = self.shards.batch(index), jnp.take_along_axis(self.targets, index, axis=1)
        residual = jnp.einsum("nbd,d->nb", rows, x, precision="highest") - targets
        mean = jnp.einsum("nbd,nb->nd", rows, 2 * residual / index.shape[1], precision="highest")
        return self.shards.scale[:, None] * mean


def least_squares(
    data: Data | tuple[Any, Any],
    workers: int = 20,
    partition: Any = "contiguous",
    *,
    weights: str = "equal",
    dtype: Any = None,
    alpha: float | None = None,
    seed: int = 0,
) -> LeastSquares:
    """Least squares over `workers`; arguments as `logistic`, labels may be any finite numbers. Exact constants.

    mu, the PL constant, is twice the least nonzero eigenvalue of the weighted Gram matrix. Raises ValueError.
    """
    data = as_data(data, classes=False)
    require_moderate("least_squares", data.features)
    wanted = as_dtype(dtype or data.features.dtype)
    index = split(data.labels, workers, partition, alpha=alpha, seed=seed)
    scale = shard_weights("least_squares", index, weights)
    features = data.features.astype(np.float64)
    labels = np.asarray(data.labels, np.float64)
    shards = stack(features, index, scale, wanted)
    targets = np.zeros(shards.weights.shape, wanted)
    for i, own in enumerate(index):
        targets[i, : len(own)] = labels[own]
    solution = functools.cache(lambda: _solve(weighted_rows(features, index, scale), labels, index, scale))
    about = Aside(
        smoothness=_smoothness(features, index, scale),
        x0=np.zeros(features.shape[1], wanted),
        minimum=solution,
        storage="dense",
        name=f"least squares on {data.name}",
        data=data,
    )
    return LeastSquares(shards, jnp.asarray(targets), about)


def _smoothness(features: Any, index: Any, scale: np.ndarray) -> Smoothness:
    """L_i = 2 lambda_max(A_i'A_i)/m_i; of f the same with the rows weighted as f weighs them (theory.md 3.6)."""
    found = [largest_eigenvalue(features[rows], len(rows) / 2) for rows in index]
    L_i = scale * np.array([value for value, _ in found])
    weighted = weighted_rows(features, index, scale)
    L_minus, how = largest_eigenvalue(weighted, 0.5)
    L_plus, plus_how = _quadratic_L_plus(features, index, scale, L_i)
    mu, mu_how, full = _least_nonzero(weighted)
    return Smoothness(
        L_minus=L_minus,
        L_plus=L_plus,
        L_pm=L_plus,
        mu=mu,
        L_i=L_i,
        how={
            "L_i": found[0][1],
            "L_minus": how,
            "L_plus": plus_how,
            "L_pm": "bound: L_plus",
            "mu": mu_how,
            "mu_i": "bound: 0, a sum of squares",
        },
        mu_i=np.zeros(len(index)),
        strongly=full,
    )


def _quadratic_L_plus(features: Any, index: Any, scale: np.ndarray, L_i: np.ndarray) -> tuple[float, str]:
    """sqrt(lambda_max(mean H_i^2)), exact for quadratics, where the n Hessians are small enough to square."""
    d = features.shape[1]
    if d > 512:
        return float(np.sqrt(np.mean(L_i**2))), "bound: sqrt(mean L_i^2)"
    squares = np.zeros((d, d))
    for rows, s in zip(index, scale, strict=True):
        part = features[rows]
        gram = part.T @ part
        hessian = 2 * s / len(rows) * (gram.toarray() if scipy.sparse.issparse(gram) else gram)
        squares += hessian @ hessian / len(index)
    return float(np.sqrt(max(np.linalg.eigvalsh(squares)[-1], 0.0))), "exact: symmetric eigenvalue of mean H_i^2"


def _least_nonzero(weighted: Any) -> tuple[float | None, str, bool]:
    """The PL constant, how it was found, and whether it is one of strong convexity."""
    if min(weighted.shape) > EXACT_UP_TO:
        return None, f"none: not computed above order {EXACT_UP_TO}", False
    dense = weighted.toarray() if scipy.sparse.issparse(weighted) else weighted
    gram = dense.T @ dense if dense.shape[1] <= dense.shape[0] else dense @ dense.T
    eigenvalues = 2 * scipy.linalg.eigvalsh(gram)
    positive = eigenvalues[eigenvalues > ZERO_CUT * eigenvalues[-1]]
    if positive.size == 0:
        return None, "none: all features are zero", False
    full = positive.size == dense.shape[1]
    return float(positive[0]), f"exact: least eigenvalue above {ZERO_CUT:g} of the largest", full


def _solve(weighted: Any, labels: np.ndarray, index: Any, scale: np.ndarray) -> Minimum:
    """min |W^(1/2)(A x - y)|^2 by least squares."""
    target = np.sqrt(row_weights(index, scale)) * labels[np.concatenate(index)]
    if min(weighted.shape) > EXACT_UP_TO:
        return Minimum(None, 0.0, "certified bound: a sum of squares")
    dense = weighted.toarray() if scipy.sparse.issparse(weighted) else weighted
    x = scipy.linalg.lstsq(dense, target)[0]
    value = float(np.sum((dense @ x - target) ** 2))
    return Minimum(value, value, "exact: least squares", x)
