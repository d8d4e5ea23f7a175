"""What a worker takes for its gradient: the gradient itself, or an estimate of it from a few of its rows.

The uplink compresses v_i, whatever it is, so that one family of mechanisms serves them all: EF21 on `Minibatch` is
EF21-SGD, on `PAGE` EF21-PAGE, on `Momentum` EF21-SGDM (theory.md 3.5). Convergence theorems here speak of exact
gradients; |grad f(x)|^2 in a trace is always the true one.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp

from adacgd.compressors.base import require_count
from adacgd.compressors.thresholds import require_share
from adacgd.module import module, static


class Oracle(abc.ABC):
    """How v_i, (n, d) for all workers, follows the gradients. problem has `grads`, `sizes` and `batch_grads`."""

    needs_rows: bool = True

    @abc.abstractmethod
    def init(self, problem: Any, keys: jax.Array, x: jax.Array, grads: jax.Array) -> Any:
        """v^0 at x, (d,); keys: (n,), one a worker; grads: (n, d), the gradients at x."""

    @abc.abstractmethod
    def step(
        self, problem: Any, keys: jax.Array, coin: jax.Array, old: jax.Array, new: jax.Array, v: Any, grads: jax.Array
    ) -> Any:
        """v at `new` after v at `old`. coin: () a key that all workers of the round share. grads: those at `new`."""


@module
class Exact(Oracle):
    """v_i = grad f_i(x). Nothing is kept beside the gradients, hence ()."""

    needs_rows = False

    def init(self, problem: Any, keys: jax.Array, x: jax.Array, grads: jax.Array) -> tuple[()]:
        """Nothing."""
        return ()

    def step(
        self, problem: Any, keys: jax.Array, coin: jax.Array, old: jax.Array, new: jax.Array, v: Any, grads: jax.Array
    ) -> tuple[()]:
        """Nothing."""
        return ()


def batch_of(problem: Any, keys: jax.Array, batch: int) -> jax.Array:
    """Rows of each worker's own, uniform, with replacement: (n, batch) int."""
    return jax.vmap(lambda key, size: jax.random.randint(key, (batch,), 0, size))(keys, jnp.asarray(problem.sizes))


@module
class Minibatch(Oracle):
    """v_i = the mean of `batch` rows' gradients, drawn anew every round, with replacement: EF21-SGD."""

    batch: int = static()

    def __post_init__(self) -> None:
        require_count("Minibatch", "batch", self.batch)

    def init(self, problem: Any, keys: jax.Array, x: jax.Array, grads: jax.Array) -> jax.Array:
        """A batch at x."""
        return problem.batch_grads(x, batch_of(problem, keys, self.batch))

    def step(
        self, problem: Any, keys: jax.Array, coin: jax.Array, old: jax.Array, new: jax.Array, v: Any, grads: jax.Array
    ) -> jax.Array:
        """A batch at the new point."""
        return problem.batch_grads(new, batch_of(problem, keys, self.batch))


@module
class Momentum(Oracle):
    """v_i^+ = (1 - eta) v_i + eta (a batch's gradient at x^+): EF21-SGDM (Fatkhullin, Tyurin, Richtarik).

    eta = 1 is `Minibatch`. v_i^0 is a batch at x^0.
    """

    batch: int = static()
    eta: float | jax.Array

    def __post_init__(self) -> None:
        require_count("Momentum", "batch", self.batch)
        require_share("Momentum", "eta", self.eta)

    def init(self, problem: Any, keys: jax.Array, x: jax.Array, grads: jax.Array) -> jax.Array:
        """A batch at x."""
        return problem.batch_grads(x, batch_of(problem, keys, self.batch))

    def step(
        self, problem: Any, keys: jax.Array, coin: jax.Array, old: jax.Array, new: jax.Array, v: Any, grads: jax.Array
    ) -> jax.Array:
        """The moving average."""
        return (1 - self.eta) * v + self.eta * problem.batch_grads(new, batch_of(problem, keys, self.batch))


@module
class PAGE(Oracle):
    """v_i^+ = grad f_i(x^+) with probability p, one coin for all; else v_i plus what a batch says of the change.

    The same batch is asked at x^+ and at x: EF21-PAGE. v_i^0 = grad f_i(x^0). p = 1 is the exact gradient.
    """

    batch: int = static()
    p: float | jax.Array

    def __post_init__(self) -> None:
        require_count("PAGE", "batch", self.batch)
        require_share("PAGE", "p", self.p)

    def init(self, problem: Any, keys: jax.Array, x: jax.Array, grads: jax.Array) -> jax.Array:
        """The gradient."""
        return grads

    def step(
        self, problem: Any, keys: jax.Array, coin: jax.Array, old: jax.Array, new: jax.Array, v: Any, grads: jax.Array
    ) -> jax.Array:
        """The gradient, or v and a batch of differences."""
        rows = batch_of(problem, keys, self.batch)
        moved = v + (problem.batch_grads(new, rows) - problem.batch_grads(old, rows))
        return jnp.where(jax.random.bernoulli(coin, self.p), grads, moved)
