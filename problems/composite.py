"""f + r with a convex r that has a prox, for proximal methods (theory.md 3.5, EF21-Prox).

prox_{gamma r}(z) = argmin_x r(x) + |x - z|^2/(2 gamma)
"""

import abc
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.module import Aside, module, static
from problems.problem import Minimum, Problem, require_positive


class Penalty(abc.ABC):
    """A convex r >= 0 with a closed-form prox."""

    @abc.abstractmethod
    def value(self, x: jax.Array) -> jax.Array:
        """r(x), ()."""

    @abc.abstractmethod
    def prox(self, gamma: jax.Array, z: jax.Array) -> jax.Array:
        """prox_{gamma r}(z), (d,)."""


@module
class L1(Penalty):
    """strength |x|_1."""

    strength: float | jax.Array

    def value(self, x: jax.Array) -> jax.Array:
        """strength sum |x_k|."""
        return self.strength * jnp.sum(jnp.abs(x))

    def prox(self, gamma: jax.Array, z: jax.Array) -> jax.Array:
        """Soft thresholding."""
        return jnp.sign(z) * jnp.maximum(jnp.abs(z) - gamma * self.strength, 0)


@module
class SquaredL2(Penalty):
    """(strength/2) |x|^2."""

    strength: float | jax.Array

    def value(self, x: jax.Array) -> jax.Array:
        """(strength/2) sum x_k^2."""
        return self.strength / 2 * jnp.sum(x * x)

    def prox(self, gamma: jax.Array, z: jax.Array) -> jax.Array:
        """z/(1 + gamma strength)."""
        return z / (1 + gamma * self.strength)


@module
class Box(Penalty):
    """0 where low <= x_k <= high for every k, else infinity."""

    low: float | jax.Array
    high: float | jax.Array

    def value(self, x: jax.Array) -> jax.Array:
        """0 or infinity."""
        return jnp.where(jnp.all((self.low <= x) & (x <= self.high)), 0.0, jnp.inf).astype(x.dtype)

    def prox(self, gamma: jax.Array, z: jax.Array) -> jax.Array:
        """The nearest point of the box."""
        return jnp.clip(z, self.low, self.high)


@module
class Composite(Problem):
    """f of `smooth` plus r. `grads` and `smoothness` are those of f; `simulate` then steps with the prox of r."""

    smooth: Problem
    regulariser: Penalty
    about: Aside = static()
    by_worker = ("smooth",)

    @property
    def n(self) -> int:
        """The number of workers."""
        return self.smooth.n

    @property
    def dim(self) -> int:
        """The dimension."""
        return self.smooth.dim

    def losses(self, x: jax.Array) -> jax.Array:
        """(f_i(x))_i, without r."""
        return self.smooth.losses(x)

    def grads(self, x: jax.Array) -> jax.Array:
        """(grad f_i(x))_i."""
        return self.smooth.grads(x)

    def losses_and_grads(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Both, as f gives them."""
        return self.smooth.losses_and_grads(x)

    def penalty(self, x: jax.Array) -> jax.Array:
        """r(x)."""
        return self.regulariser.value(x)

    def prox(self, gamma: jax.Array, z: jax.Array) -> jax.Array:
        """prox_{gamma r}(z)."""
        return self.regulariser.prox(gamma, z)

    @property
    def sizes(self) -> jax.Array:
        """Those of f."""
        return self.smooth.sizes

    def batch_grads(self, x: jax.Array, index: jax.Array) -> jax.Array:
        """Those of f."""
        return self.smooth.batch_grads(x, index)  # type: ignore[attr-defined]


def composite(problem: Problem, penalty: str, strength: float | tuple[float, float]) -> Composite:
    """`problem` plus r: "l1" strength |x|_1, "l2" (strength/2)|x|^2, "box" strength = (low, high), low < high.

    x0 is moved into the box. inf(f + r) >= inf f, as r >= 0; the least value itself is not computed. Raises ValueError
    or TypeError that names the argument.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"composite(problem=...) must be a problems.Problem, got {type(problem).__name__}.")
    if isinstance(problem, Composite):
        raise TypeError("composite(problem=...) has a penalty already; give the smooth problem.")
    regulariser = _penalty(penalty, strength)
    start = np.asarray(problem.x0)
    if isinstance(regulariser, Box):
        start = np.clip(start, regulariser.low, regulariser.high)
    how = {**problem.smoothness.how, "mu": "none: of f + r", "mu_i": "none: of f + r"}
    about = Aside(
        smoothness=problem.smoothness._replace(mu=None, mu_i=None, strongly=None, how=how),
        x0=start,
        minimum=lambda: Minimum(None, problem.f_lower, "bound: inf f, as r >= 0"),
        storage=problem.storage,
        name=f"{problem.name} + {penalty}",
    )
    return Composite(problem, regulariser, about)


def _penalty(penalty: str, strength: Any) -> Penalty:
    if penalty == "box":
        bounds = np.ravel(np.asarray(strength, float))
        if bounds.shape != (2,) or math.isnan(bounds.sum()) or not bounds[0] < bounds[1]:
            raise ValueError(f"composite(strength=...) of a box must be (low, high), low < high; got {strength!r}.")
        return Box(float(bounds[0]), float(bounds[1]))
    if penalty not in ("l1", "l2"):
        raise ValueError(f"composite(penalty=...) must be one of l1, l2, box; got {penalty!r}.")
    value = require_positive("composite", "strength", strength, zero=True)
    return L1(value) if penalty == "l1" else SquaredL2(value)
