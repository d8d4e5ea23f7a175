"""Sparsifiers that let the values or a coin decide what is sent: thresholds and random selection (theory.md 1.2)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.base import (
    Compressor,
    Message,
    Outcomes,
    brief,
    no_constant,
    norm_of,
    product_outcomes,
    require_nonnegative,
    working,
)
from adacgd.compressors.codes import Format, Sparse, SparseVariable
from adacgd.compressors.sparsifiers import Masked, gap_bits, require_coding, sparse_cost
from adacgd.cost import Cost, index_bits
from adacgd.module import concrete, module, static

VARIABLE = ("fixed", "gaps")


def variable_cost(kept: jax.Array, coding: str) -> Cost:
    """m scalars, m itself in ceil(log2(d + 1)) bits, m indices."""
    m = jnp.sum(kept, dtype=jnp.int32)
    indices = gap_bits(kept) if coding == "gaps" else m * index_bits(kept.size)
    return Cost(m, indices + index_bits(kept.size + 1))


class _Threshold(Compressor, Masked):
    """Keep what is large enough: NaN is, zero never."""

    coding: str
    nonexpansive = True

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """The entries kept, zeros elsewhere."""
        kept = self.kept(key, x)
        return Message(jnp.where(kept, x, 0), variable_cost(kept, self.coding))

    def format(self, dim: int, float_width: int) -> Format:
        """As many indices and values as the message says."""
        return SparseVariable(self.coding)


@module
class HardThreshold(_Threshold):
    """Keep entries of magnitude at least `threshold`, lambda of the papers: |C(x) - x|^2 <= d lambda^2, and no alpha.

    An x with all entries below lambda loses everything, so no alpha > 0 holds for all x (theory.md 1.2; Sahu et al.,
    Rethinking gradient sparsification as total error minimization). The bound is absolute: `error_bound(dim)`.
    """

    threshold: float | jax.Array
    coding: str = static(default="fixed")
    __repr__ = brief

    def __post_init__(self) -> None:
        require_nonnegative("HardThreshold", "threshold", self.threshold)
        require_coding("HardThreshold", self.coding, VARIABLE)

    def kept(self, key: jax.Array, x: jax.Array, **shared: Any) -> jax.Array:
        """At least the threshold."""
        return ~(jnp.abs(x) < jnp.asarray(self.threshold, x.dtype)) & (x != 0)

    def alpha(self, dim: int) -> float:
        """Refused: there is none. Raises ValueError."""
        no_constant(self, "an x below the threshold loses everything; error_bound(dim) is its absolute bound")

    def error_bound(self, dim: int) -> float:
        """d lambda^2, the supremum of |C(x) - x|^2: all entries just below lambda."""
        return dim * float(self.threshold) ** 2

    def worst(self, dim: int) -> np.ndarray:
        """All just below the threshold: everything is lost."""
        return np.full(dim, np.nextafter(float(self.threshold), 0))


@module
class RelativeThreshold(_Threshold):
    """Keep entries of magnitude at least tau max|x_i| (norm `"max"`), or at least tau |x|/sqrt d, tau times the
    root mean square and not tau |x| (norm `"l2"`); 0 < tau <= 1.

    alpha = 1/(1 + (d-1) tau^2) for the maximum: one entry 1, the rest just under tau. alpha = 1 - tau^2 (d-1)/d for the
    2-norm: d-1 entries just under the threshold. Both are suprema, in every dimension (theory.md 1.2; the first is
    the threshold of Dryden et al. and Aji, Heafield, relative to the maximum).
    """

    tau: float | jax.Array
    norm: str = static(default="max")
    coding: str = static(default="fixed")
    __repr__ = brief

    def __post_init__(self) -> None:
        if self.norm not in ("max", "l2"):
            raise ValueError(f"RelativeThreshold(norm=...) must be 'max' or 'l2', got {self.norm!r}.")
        require_share("RelativeThreshold", "tau", self.tau)
        require_coding("RelativeThreshold", self.coding, VARIABLE)

    def kept(self, key: jax.Array, x: jax.Array, **shared: Any) -> jax.Array:
        """At least the share; the largest always, whatever the rounding."""
        v = jnp.abs(working(x))
        largest = jnp.max(v)
        reference = largest if self.norm == "max" else norm_of(v) * (1 / math.sqrt(x.size))
        return ~(v < jnp.minimum(self.tau * reference, largest).astype(v.dtype)) & (x != 0)

    def alpha(self, dim: int) -> float:
        """Of the d-1 smaller entries all may be dropped, each below the threshold."""
        square = float(self.tau) ** 2
        return 1 / (1 + (dim - 1) * square) if self.norm == "max" else 1 - square * (dim - 1) / dim

    def worst(self, dim: int) -> np.ndarray:
        """One large entry, the rest just under the threshold."""
        x = np.full(dim, np.nextafter(float(self.tau), 0))
        if self.norm == "l2":
            x = np.full(dim, float(self.tau) / math.sqrt(dim) * (1 - 1e-9))
        x[0] = 1.0 if self.norm == "max" else math.sqrt(1 - np.sum(x[1:] ** 2))
        return x

    def attained(self, dim: int) -> bool:
        """Always, as a supremum."""
        return True


def require_share(owner: str, name: str, value: Any) -> None:
    """Numbers in (0, 1], checked where they are concrete. Raises ValueError."""
    require_nonnegative(owner, name, value)
    if concrete(value) and not np.all((np.asarray(value) > 0) & (np.asarray(value) <= 1)):
        raise ValueError(f"{owner}({name}=...) must lie in (0, 1], got {value}.")


@module
class AdaptiveRandom(Compressor, Masked):
    """One entry as it is, chosen with probability |x_i| / |x|_1: adaptive random sparsification.

    Error exactly 1 - |x|_3^3 / (|x|_1 |x|^2), hence alpha = 1/d by Chebyshev's sum inequality, attained by a flat x in
    every dimension (theory.md 1.2; Beznosikov et al., On biased compression).
    """

    nonexpansive = True

    def kept(self, key: jax.Array, x: jax.Array, **shared: Any) -> jax.Array:
        """The drawn one. NaN and infinity are drawn for certain; of zeros the first."""
        drawn = jax.random.categorical(key, jnp.log(jnp.abs(working(x))))
        return jnp.arange(x.size) == drawn

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """One entry, zeros elsewhere."""
        return Message(jnp.where(self.kept(key, x), x, 0), sparse_cost(1, x.size))

    def outcomes(self, x: np.ndarray) -> Outcomes:
        """One entry, as likely as it is large."""
        return np.abs(x) / np.sum(np.abs(x)), np.diag(x)

    def alpha(self, dim: int) -> float:
        """1/d."""
        return 1 / dim

    def worst(self, dim: int) -> np.ndarray:
        """Flat."""
        return np.ones(dim)

    def attained(self, dim: int) -> bool:
        """Always."""
        return True

    def format(self, dim: int, float_width: int) -> Format:
        """One index, one value."""
        return Sparse(1)


@module
class BiasedRandom(Compressor, Masked):
    """Keep entry i with probability p_i, unscaled, independently of the others: biased random sparsification.

    alpha = min p_i, attained in every dimension by the unit vector of the least likely entry (theory.md 1.2; Beznosikov
    et al., On biased compression). probabilities: one number for all, or an array (d,), each in (0, 1].
    """

    probabilities: float | jax.Array | np.ndarray
    coding: str = static(default="fixed")
    nonexpansive = True
    __repr__ = brief

    def __post_init__(self) -> None:
        if isinstance(self.probabilities, list | tuple):
            object.__setattr__(self, "probabilities", np.asarray(self.probabilities, float))
        require_share("BiasedRandom", "probabilities", self.probabilities)
        require_coding("BiasedRandom", self.coding, VARIABLE)

    @property
    def equality(self) -> bool:  # type: ignore[override]
        """Where all are equally likely."""
        return np.ndim(self.probabilities) == 0

    def _probabilities(self, dim: int) -> Any:
        if np.shape(self.probabilities) not in ((), (dim,)):
            raise ValueError(f"BiasedRandom has {np.size(self.probabilities)} probabilities for {dim} coordinates.")
        return self.probabilities

    def kept(self, key: jax.Array, x: jax.Array, **shared: Any) -> jax.Array:
        """A coin each."""
        return jax.random.uniform(key, x.shape, working(x).dtype) < self._probabilities(x.size)

    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """The entries kept, zeros elsewhere."""
        kept = self.kept(key, x)
        return Message(jnp.where(kept, x, 0), variable_cost(kept, self.coding))

    def outcomes(self, x: np.ndarray) -> Outcomes | None:
        """All subsets."""
        return product_outcomes(np.broadcast_to(self._probabilities(x.size), x.size), np.zeros(x.size), x)

    def alpha(self, dim: int) -> float:
        """The least probability."""
        return float(np.min(self._probabilities(dim)))

    def worst(self, dim: int) -> np.ndarray:
        """All mass on the least likely entry."""
        return np.eye(dim)[int(np.argmin(np.broadcast_to(self._probabilities(dim), dim)))]

    def attained(self, dim: int) -> bool:
        """Always."""
        return True

    def format(self, dim: int, float_width: int) -> Format:
        """As many indices and values as the message says."""
        return SparseVariable(self.coding)
