"""Logistic regression with an L2 or a nonconvex regulariser, the workhorse of the field.

    f_i(x) = mean_j log(1 + exp(-y_j a_j'x)) + r(x),   r = strength sum_k x_k^2/(1 + x_k^2)  or  (strength/2) |x|^2

(EF21, 3PC and AdaCGD experiments; theory.md section 5.) Labels are folded into the rows, so the data are y_j a_j.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from adacgd.module import Aside, module, static
from problems.datasets import Data, as_data
from problems.optimum import logistic_minimum
from problems.partition import partition as split
from problems.problem import Minimum, Problem, Smoothness, as_dtype, require_positive
from problems.spectra import largest_eigenvalue, require_moderate
from problems.stacking import Shards, row_weights, shard_weights, stack, weighted_rows

REGULARISERS = ("nonconvex", "l2", "none")


@module
class Logistic(Problem):
    """See the module. Shards are stacked as dense arrays, short ones padded with rows of weight 0."""

    shards: Shards  # of y_j a_j
    strength: jax.Array  # ()
    regulariser: str = static()
    about: Aside = static()
    by_worker = ("shards",)

    @property
    def n(self) -> int:
        """The number of workers."""
        return self.shards.n

    @property
    def dim(self) -> int:
        """The number of features."""
        return self.shards.dim

    def _penalty(self, x: jax.Array) -> jax.Array:
        if self.regulariser == "none":
            return jnp.zeros((), x.dtype)
        if self.regulariser == "l2":
            return self.strength / 2 * jnp.sum(x * x)
        small = jnp.abs(x) < 1  # x^2/(1+x^2) without overflow: above 1 it is 1/(1 + 1/x^2)
        inverse = 1 / jnp.where(small, 1, x)
        inside = jnp.where(small, x, 0)
        return self.strength * jnp.sum(jnp.where(small, inside**2 / (1 + inside**2), 1 / (1 + inverse**2)))

    def _penalty_grad(self, x: jax.Array) -> jax.Array:
        if self.regulariser == "none":
            return jnp.zeros_like(x)
        if self.regulariser == "l2":
            return self.strength * x
        return 2 * self.strength * x / (1 + x * x) ** 2

    def losses(self, x: jax.Array) -> jax.Array:
        """(f_i(x))_i."""
        return self._losses(self.shards.times(x), x)

    def grads(self, x: jax.Array) -> jax.Array:
        """(grad f_i(x))_i, in closed form: A_i'(-w s(-A_i x)) + grad r."""
        margins = self.shards.times(x)
        return self._grads(margins, x)

    def losses_and_grads(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Both from one product with the data."""
        margins = self.shards.times(x)
        return self._losses(margins, x), self._grads(margins, x)

    @property
    def sizes(self) -> jax.Array:
        """The rows of each worker, (n,)."""
        return self.shards.sizes

    def batch_grads(self, x: jax.Array, index: jax.Array) -> jax.Array:
        """(n, d) the gradients with the mean over all rows of a worker replaced by that over its rows index, (n, b)."""
        rows = self.shards.batch(index)
        slopes = -jax.nn.sigmoid(-jnp.einsum("nbd,d->nb", rows, x, precision="highest")) / index.shape[1]
        mean = jnp.einsum("nbd,nb->nd", rows, slopes, precision="highest")
        return self.shards.scale[:, None] * (mean + self._penalty_grad(x)[None, :])

    def _losses(self, margins: jax.Array, x: jax.Array) -> jax.Array:
        data = jnp.sum(self.shards.weights * jnp.logaddexp(0, -margins), axis=1)
        return data + self.shards.scale * self._penalty(x)

    def _grads(self, margins: jax.Array, x: jax.Array) -> jax.Array:
        slopes = -self.shards.weights * jax.nn.sigmoid(-margins)
        return self.shards.transposed_times(slopes) + self.shards.scale[:, None] * self._penalty_grad(x)[None, :]


def logistic(
    data: Data | tuple[Any, Any],
    workers: int = 20,
    regulariser: str = "nonconvex",
    strength: float = 0.1,
    partition: Any = "contiguous",
    *,
    weights: str = "equal",
    dtype: Any = None,
    alpha: float | None = None,
    seed: int = 0,
) -> Logistic:
    """Logistic regression over `workers`, with exact constants.

    data: `Data`, or (features (N, d), labels (N,)) with two label values, the larger meaning +1.
    regulariser, strength: "nonconvex" strength sum x^2/(1+x^2); "l2" (strength/2)|x|^2; "none".
    partition: a name of `problems.partition`, or the offsets of the shards. alpha, seed: of a random partition.
    weights: "equal" f = (1/n) sum f_i whatever the shard sizes; "rows" weighs each row alike, f_i times n m_i / N.
    dtype: float32 or float64; that of the data where not given.
    Raises ValueError for what does not fit, naming it.
    """
    if regulariser not in REGULARISERS:
        raise ValueError(f"logistic(regulariser=...) must be one of {', '.join(REGULARISERS)}; got {regulariser!r}.")
    strength = require_positive("logistic", "strength", strength, zero=True)
    data = as_data(data)
    require_moderate("logistic", data.features)
    wanted = as_dtype(dtype or data.features.dtype)
    index = split(data.labels, workers, partition, alpha=alpha, seed=seed)
    scale = shard_weights("logistic", index, weights)

    signed = _signed(data.features, data.labels)
    shards = stack(signed, index, scale, wanted)
    curvature = {"nonconvex": 2 * strength, "l2": strength, "none": 0.0}[regulariser]
    smoothness = _smoothness(signed, index, scale, curvature, regulariser, strength)
    minimum = functools.cache(lambda: _minimum(signed, index, scale, regulariser, strength))
    about = Aside(
        smoothness=smoothness,
        x0=np.zeros(signed.shape[1], wanted),
        minimum=minimum,
        storage="dense",
        name=f"logistic regression on {data.name}, {regulariser} regulariser",
        data=data,
    )
    return Logistic(shards, jnp.asarray(strength, wanted), regulariser, about)


def _signed(features: Any, labels: np.ndarray) -> Any:
    """Rows y_j a_j in float64, dense or CSR as they came."""
    if scipy.sparse.issparse(features):
        return scipy.sparse.diags_array(labels.astype(float)).dot(features.astype(np.float64)).tocsr()
    return np.asarray(features, np.float64) * labels[:, None]


def _smoothness(
    signed: Any, index: Any, scale: np.ndarray, curvature: float, regulariser: str, strength: float
) -> Smoothness:
    """L_i = lambda_max(A_i'A_i)/(4 m_i) + r; of f the same with rows weighted as f weighs them (theory.md 3.0)."""
    found = [largest_eigenvalue(signed[rows], 4 * len(rows)) for rows in index]
    L_i = scale * np.array([value + curvature for value, _ in found])
    pooled, how = largest_eigenvalue(weighted_rows(signed, index, scale), 4)
    L_plus = float(np.sqrt(np.mean(L_i**2)))
    mu = {"nonconvex": None, "l2": strength, "none": 0.0}[regulariser]
    regularised = regulariser == "l2" and strength > 0
    convex = "exact: the regulariser's strength, weighted" if regularised else "bound: 0, the loss is convex"
    worst = next((w for _, w in found if not w.startswith("exact")), found[0][1])
    return Smoothness(
        L_minus=min(pooled + curvature, float(np.mean(L_i))),
        L_plus=L_plus,
        L_pm=L_plus,
        mu=mu,
        L_i=L_i,
        how={
            "L_i": f"{worst} of A_i'A_i/(4 m_i), plus the regulariser's {curvature:g}",
            "L_minus": f"{how} of the weighted Gram matrix / 4, plus {curvature:g}",
            "L_plus": "bound: sqrt(mean L_i^2)",
            "L_pm": "bound: L_plus",
            "mu_i": "none: the regulariser is not convex" if mu is None else convex,
            "mu": {
                "nonconvex": "none: the regulariser is not convex",
                "l2": "exact: the regulariser's strength",
                "none": "0: logistic loss alone is convex, not strongly",
            }[regulariser],
        },
        mu_i=None if mu is None else scale * mu,
        strongly=regularised,
    )


def _minimum(signed: Any, index: Any, scale: np.ndarray, regulariser: str, strength: float) -> Minimum:
    if regulariser != "l2" or strength == 0:
        return Minimum(None, 0.0, "certified bound: both terms are nonnegative")
    return logistic_minimum(signed[np.concatenate(index)], row_weights(index, scale), strength)
