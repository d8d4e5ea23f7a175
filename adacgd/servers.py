"""How the server moves x along g: plain descent, heavy ball, or with a prox after the step (theory.md 3.5)."""

import abc
from typing import Any

import jax
import jax.numpy as jnp

from adacgd.compressors.base import sq
from adacgd.module import module


class Server(abc.ABC):
    """x^{t+1} from x^t and g^t. prox: it needs `penalty` and `prox` of the problem. shadow: the theorem speaks of z."""

    prox: bool = False
    shadow: bool = False

    def init(self, g: jax.Array) -> Any:
        """Memory before the first step; g: (d,)."""
        return ()

    @abc.abstractmethod
    def step(self, problem: Any, gamma: jax.Array, x: jax.Array, g: jax.Array, memory: Any) -> tuple[jax.Array, Any]:
        """The next iterate and memory."""

    def measure(self, problem: Any, gamma: jax.Array, x: jax.Array, grad: jax.Array) -> jax.Array:
        """What is zero at a solution, squared: |grad f(x)|^2 where nothing else is said."""
        return sq(grad)

    def z(self, gamma: jax.Array, x: jax.Array, memory: Any) -> jax.Array:
        """The shadow point of the theorem: x where there is none."""
        return x


@module
class Descent(Server):
    """x^{t+1} = x^t - gamma g^t."""

    def step(self, problem: Any, gamma: jax.Array, x: jax.Array, g: jax.Array, memory: Any) -> tuple[jax.Array, Any]:
        """A step."""
        return x - gamma * g, memory


@module
class HeavyBall(Server):
    """x^{t+1} = x^t - gamma v^t, v^{t+1} = eta v^t + g^{t+1}, v^0 = g^0: EF21-HB where g is EF21's.

    Its theorem speaks of z^t = x^t - gamma eta/(1 - eta) v^{t-1} (theory.md 3.5). Memory: v^{t-1}.
    """

    eta: jax.Array
    shadow = True

    def init(self, g: jax.Array) -> jax.Array:
        """v^{-1} = 0."""
        return jnp.zeros_like(g)

    def step(self, problem: Any, gamma: jax.Array, x: jax.Array, g: jax.Array, memory: Any) -> tuple[jax.Array, Any]:
        """A step along v."""
        v = self.eta * memory + g
        return x - gamma * v, v

    def z(self, gamma: jax.Array, x: jax.Array, memory: Any) -> jax.Array:
        """x - gamma eta/(1 - eta) v."""
        return x - gamma * self.eta / (1 - self.eta) * memory


@module
class ProximalDescent(Server):
    """x^{t+1} = prox_{gamma r}(x^t - gamma g^t), for f + r: EF21-Prox where g is EF21's.

    Measured by M(x) = (x - prox_{gamma r}(x - gamma grad f(x)))/gamma, which is grad f where r = 0.
    """

    prox = True

    def step(self, problem: Any, gamma: jax.Array, x: jax.Array, g: jax.Array, memory: Any) -> tuple[jax.Array, Any]:
        """A step, and the prox."""
        return problem.prox(gamma, x - gamma * g), memory

    def measure(self, problem: Any, gamma: jax.Array, x: jax.Array, grad: jax.Array) -> jax.Array:
        """|M(x)|^2."""
        return sq((x - problem.prox(gamma, x - gamma * grad)) / gamma)
