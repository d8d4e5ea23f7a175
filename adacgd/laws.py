"""Inequalities as measurable numbers, and the search for the input on which each is worst.

Each input is judged on its own, in expectation over the key: averaging over inputs would let an overclaimed constant
through, since Top-K contracts a Gaussian far better than k/d.
"""

import abc
import functools
from typing import Any

import jax
import jax.numpy as jnp

from adacgd.compressors.base import Compressor, Unbiased, sq
from adacgd.mechanisms import ThreePoint
from adacgd.module import module, static


class Law(abc.ABC):
    """An inequality as a number: left over right without the claimed constant, largest where it is tight."""

    @abc.abstractmethod
    def measure(self, key: jax.Array, z: jax.Array) -> jax.Array:
        """() of one input, flattened, (size,)."""

    @abc.abstractmethod
    def starts(self, key: jax.Array, dim: int) -> jax.Array:
        """Structured and random inputs, (count, size)."""


def panel(key: jax.Array, dim: int) -> jax.Array:
    """Inputs on which contraction is tight or fragile, (8, dim): flat, one-hot, two-level, alternating, ties, ..."""
    normal, cauchy = jax.random.normal(key, (dim,)), jax.random.cauchy(jax.random.fold_in(key, 1), (dim,))
    place = jnp.arange(dim)
    rows = [
        jnp.ones(dim),
        (place == 0) * 1.0,
        jnp.where(place < (dim + 1) // 2, 1.0, 1e-3),
        jnp.where(place % 2 == 0, 1.0, -1.0),
        2.0 ** -(place % 40),
        normal,
        cauchy,
        jnp.round(normal),
    ]
    return jnp.stack([row + (jnp.sum(row * row) == 0) * 1.0 for row in rows])


@module
class Relative(Law):
    """E|C(x) - x|^2 / |x|^2."""

    target: Compressor | Unbiased

    def measure(self, key: jax.Array, z: jax.Array) -> jax.Array:
        """Of one draw."""
        return sq(self.target(key, z).value - z) / sq(z)

    def starts(self, key: jax.Array, dim: int) -> jax.Array:
        """The panel, at three scales."""
        rows = panel(key, dim)
        return jnp.concatenate([rows, 1e6 * rows, 1e-6 * rows])


@module
class ThreePointLaw(Law):
    """E|C_{h,y}(x) - x|^2 / ((1 - A)|h - y|^2 + B|x - y|^2); z is h, y, x in a row."""

    target: ThreePoint
    A: jax.Array
    B: jax.Array
    dim: int = static()

    def measure(self, key: jax.Array, z: jax.Array) -> jax.Array:
        """Of one draw, with the relative slack on B that the trigger has."""
        h, y, x = z.reshape(3, self.dim)
        left = sq(self.target(key, h, y, x).value - x)
        right = (1 - self.A) * sq(h - y) + self.B * (1 + 64 * jnp.finfo(z.dtype).eps) * sq(x - y)
        floor = (8 * jnp.finfo(z.dtype).eps) ** 2 * (sq(h) + sq(y) + sq(x))  # what rounding leaves of an exact send
        return jnp.where(left <= floor, 0, left / right)

    def starts(self, key: jax.Array, dim: int) -> jax.Array:
        """x - h from the panel, y on the line through them: for EF21 Young is tight at the share 1/(1 + s*) = 1 - A."""
        rows = panel(key, dim)
        h = jax.random.normal(jax.random.fold_in(key, 2), (dim,)) * 0.1
        shares = [1 - self.A, self.A, jnp.array(0.0), jnp.array(0.5), jnp.array(0.9), jnp.array(1.5)]
        return jnp.stack([jnp.concatenate([h, h + s * row, h + row]) for row in rows for s in shares])


def is_differentiable(law: Law, key: jax.Array, dim: int) -> bool:
    """Whether jax can differentiate `measure`: if not, the search climbs without gradients."""
    z = law.starts(key, dim)[0]
    try:
        jax.eval_shape(jax.grad(lambda z: law.measure(key, z)), z)
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


@functools.partial(jax.jit, static_argnames=("dim", "draws", "steps", "ascend"))
def search(
    law: Law, key: jax.Array, dim: int, draws: int, steps: int, ascend: bool = True
) -> tuple[jax.Array, jax.Array]:
    """The best input found from every start at once, (size,), and its mean over the common draws.

    Steps go in turn along the gradient (with `ascend`), in a random direction, and along a few coordinates; each is
    kept only if it climbs, and its reach adapts.
    """
    start_key, draw_key, climb_key = (jax.random.fold_in(key, i) for i in range(3))
    keys = jax.random.split(draw_key, draws)
    mean = lambda z: jnp.mean(jax.vmap(lambda k: law.measure(k, z))(keys))
    score = lambda z: jnp.nan_to_num(jax.vmap(mean)(z), nan=jnp.inf, posinf=jnp.inf)
    inputs = law.starts(start_key, dim)
    size = jnp.sqrt(jnp.mean(inputs**2, axis=1, keepdims=True))

    def direction(i: jax.Array, z: jax.Array) -> jax.Array:
        noise_key, few_key = jax.random.split(jax.random.fold_in(climb_key, i))
        noise = jax.random.normal(noise_key, z.shape)
        few = noise * jax.random.bernoulli(few_key, 2.0 / z.shape[1], z.shape)
        if not ascend:
            return jnp.where(i % 2 == 0, noise, few)
        slope = jax.lax.cond(i % 3 == 0, lambda z: jnp.nan_to_num(jax.vmap(jax.grad(mean))(z)), jnp.zeros_like, z)
        steep = slope / (jnp.sqrt(jnp.mean(slope**2, axis=1, keepdims=True)) + jnp.finfo(z.dtype).tiny)
        return jnp.where(i % 3 == 0, steep, jnp.where(i % 3 == 1, noise, few))

    def climb(i: jax.Array, best: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        z, value, reach = best
        tried = z + reach * size * direction(i, z)
        found = score(tried)
        better = found > value
        reach = jnp.where(better[:, None], reach * 1.5, reach * 0.9)
        return jnp.where(better[:, None], tried, z), jnp.where(better, found, value), jnp.clip(reach, 1e-6, 1.0)

    z, value, _ = jax.lax.fori_loop(0, steps, climb, (inputs, score(inputs), jnp.full((len(inputs), 1), 0.3)))
    return z[jnp.argmax(value)], jnp.max(value)


@functools.partial(jax.jit, static_argnames="draws")
def judge(law: Law, key: jax.Array, z: jax.Array, draws: int) -> jax.Array:
    """`measure` at one input on `draws` fresh draws, (draws,)."""
    return jax.vmap(lambda k: law.measure(k, z))(jax.random.split(key, draws))


@functools.partial(jax.jit, static_argnames="draws")
def values(target: Any, key: jax.Array, x: jax.Array, draws: int) -> jax.Array:
    """What arrives of x on fresh draws, (draws, d)."""
    return jax.vmap(lambda k: target(k, x).value)(jax.random.split(key, draws))
