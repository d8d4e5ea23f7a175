"""All shards as one dense stack, with a stored transpose: both products of a round run over contiguous memory."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from adacgd.module import module

DENSE_LIMIT = 6 * 2**30  # bytes of the two copies together


@module
class Shards:
    """The rows of every worker, short shards padded with rows of weight 0."""

    rows: jax.Array  # (n, m, d)
    columns: jax.Array  # (n, d, m), the transpose, stored: A'r reads it in order, and is then as fast as Ax
    weights: jax.Array  # (n, m) scale_i / m_i, 0 for padding
    scale: jax.Array  # (n,) 1, or n m_i / N where rows weigh alike

    @property
    def n(self) -> int:
        """The number of workers."""
        return self.rows.shape[0]

    @property
    def dim(self) -> int:
        """The number of features."""
        return self.rows.shape[2]

    @property
    def sizes(self) -> jax.Array:
        """The rows of each worker, padding aside, (n,)."""
        return jnp.sum(self.weights > 0, axis=1)

    def batch(self, index: jax.Array) -> jax.Array:
        """Rows index[i] of each worker i, (n, b, d); index: (n, b)."""
        return jnp.take_along_axis(self.rows, index[:, :, None], axis=1)

    def times(self, x: jax.Array) -> jax.Array:
        """(A_i x)_i, (n, m)."""
        return each_times(self.rows, x)

    def transposed_times(self, r: jax.Array) -> jax.Array:
        """(A_i'r_i)_i, (n, d); r is (n, m)."""
        return jax.lax.dot_general(self.columns, r, (((2,), (1,)), ((0,), (0,))), precision="highest")


def each_times(A: jax.Array, x: jax.Array) -> jax.Array:
    """(A_i x)_i, (n, m); A: (n, m, d), x: (d,). One product a worker: its bits do not depend on who else is there."""
    spread = jnp.broadcast_to(x, (A.shape[0], *x.shape))
    return jax.lax.dot_general(A, spread, (((2,), (1,)), ((0,), (0,))), precision="highest")


def stack(rows: Any, index: Sequence[np.ndarray], scale: np.ndarray, dtype: np.dtype) -> Shards:
    """Stack rows[index[i]] for worker i; rows: (N, d) array or CSR. Raises ValueError before a huge allocation."""
    n, m, d = len(index), max(len(i) for i in index), rows.shape[1]
    needed = 2 * n * m * d * dtype.itemsize
    if needed > DENSE_LIMIT:
        raise ValueError(
            f"dense storage of {n} shards of up to {m} rows x {d} features takes {needed / 2**30:.1f} GiB, more than "
            f"{DENSE_LIMIT / 2**30:.0f} GiB; use fewer rows or features, or more even shards."
        )
    stacked = np.zeros((n, m, d), dtype)
    weights = np.zeros((n, m), dtype)
    for i, own in enumerate(index):
        part = rows[own]
        stacked[i, : len(own)] = part.toarray() if scipy.sparse.issparse(part) else part
        weights[i, : len(own)] = scale[i] / len(own)
    columns = np.ascontiguousarray(stacked.transpose(0, 2, 1))
    return Shards(jnp.asarray(stacked), jnp.asarray(columns), jnp.asarray(weights), jnp.asarray(scale.astype(dtype)))


def shard_weights(owner: str, index: Sequence[np.ndarray], weights: str) -> np.ndarray:
    """What f_i is multiplied by: 1 each ("equal"), or n m_i / N ("rows"), so that f stays a plain mean."""
    sizes = np.array([len(i) for i in index], float)
    if weights == "equal":
        return np.ones(len(index))
    if weights == "rows":
        return len(index) * sizes / sizes.sum()
    raise ValueError(f"{owner}(weights=...) must be 'equal' or 'rows'; got {weights!r}.")


def row_weights(index: Sequence[np.ndarray], scale: np.ndarray) -> np.ndarray:
    """The weight of each used row in f, in the order of np.concatenate(index): scale_i / (n m_i). They sum to 1."""
    return np.concatenate(
        [np.full(len(rows), s / (len(rows) * len(index))) for rows, s in zip(index, scale, strict=True)]
    )


def weighted_rows(rows: Any, index: Sequence[np.ndarray], scale: np.ndarray) -> Any:
    """The used rows, each times the root of its weight, so that their Gram matrix is the Hessian bound of f."""
    root = np.sqrt(row_weights(index, scale))[:, None]
    used = rows[np.concatenate(index)]
    return used.multiply(root).tocsr() if scipy.sparse.issparse(used) else used * root
