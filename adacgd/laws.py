"""Inequalities as measurable numbers, and the search for the input on which each is worst.

Each input is judged on its own, in expectation over the key: averaging over inputs would let an overclaimed constant
through, since Top-K contracts a Gaussian far better than k/d.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.base import Compressor, Draw, Message, Unbiased, sq
from adacgd.estimators import Estimator
from adacgd.form import checked
from adacgd.hasty import hasty
from adacgd.mechanisms import ThreePoint
from adacgd.module import module, static

CLIMBERS = 32  # of the starts, the best, that climb
SMOOTH_STEPS = 1000  # in the smoothed landscape
AT_ONCE = 50  # of them: a divisor
STEPS = 300  # of climbing after it
COPIES = 4  # of each climber, around it, whose gradients are averaged
WIDEST, NARROWEST = 0.3, 1e-4  # how far around, in units of the root mean square of the input


def ask(target: Any, key: jax.Array, vectors: tuple[jax.Array, ...], workers: int) -> Message:
    """The message of a compressor or a map, as worker 0 of `workers` where the target shares randomness."""
    if isinstance(target, Estimator):
        private, common = jax.random.split(key)
        return said(target, private, common, jnp.int32(0), workers, vectors)
    private, shared = told(target, key, workers)
    return checked(target, target(private, *vectors, **shared), vectors[-1])


def said(
    target: Estimator, private: jax.Array, common: jax.Array, worker: Any, workers: int, vectors: tuple[jax.Array, ...]
) -> Message:
    """The message of an estimator that remembers nothing but what h tells."""
    h, y, x = vectors
    draw = Draw(private, common, jnp.int32(0), worker, workers, jnp.zeros_like(x), jnp.ones((), x.dtype))
    return checked(target, target.step(draw, target.init(h), h, y, x)[0], x)


def told(target: Any, key: jax.Array, workers: int) -> tuple[jax.Array, dict[str, Any]]:
    """The private key and the keywords with which `ask` calls."""
    if not isinstance(target, Estimator) and not target.shares_randomness:
        return key, {}
    private, common = jax.random.split(key)
    return private, {"common": common, "round": jnp.int32(0), "worker": jnp.int32(0), "workers": workers}


class Law(abc.ABC):
    """An inequality as a number: left over right without the claimed constant, largest where it is tight."""

    @abc.abstractmethod
    def measure(self, key: jax.Array, z: jax.Array) -> jax.Array:
        """() of one input, flattened, (size,)."""

    @abc.abstractmethod
    def starts(self, key: jax.Array, dim: int) -> np.ndarray:
        """Structured and random inputs, (count, size)."""


LEVELS = 12  # of the two-level inputs between flat and one-hot


# Inputs are made on the host: there are many shapes of them, and each operation on each would be a program to compile.
def two_level(dim: int) -> np.ndarray:
    """One entry 1 and the rest c, and the rest 1 and one entry c, for some c in (0, 1): (2 LEVELS, dim)."""
    c = (np.arange(LEVELS)[:, None] + 0.5) / LEVELS
    first = (np.arange(dim) == 0)[None, :]
    return np.concatenate([np.where(first, 1.0, c), np.where(first, c, 1.0)])


@hasty("dim")
def _random_rows(key: jax.Array, dim: int) -> jax.Array:
    """(2, dim): Gaussian, Cauchy."""
    return jnp.stack([jax.random.normal(key, (dim,)), jax.random.cauchy(jax.random.fold_in(key, 1), (dim,))])


@hasty("shape")
def _normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jax.random.normal(key, shape)


def panel(key: jax.Array, dim: int) -> np.ndarray:
    """Inputs on which contraction is tight or fragile, (8, dim): flat, one-hot, two-level, alternating, ties, ..."""
    normal, cauchy = np.asarray(_random_rows(key, dim))
    place = np.arange(dim)
    rows = [
        np.ones(dim),
        (place == 0) * 1.0,
        np.where(place < (dim + 1) // 2, 1.0, 1e-3),
        np.where(place % 2 == 0, 1.0, -1.0),
        2.0 ** -(place % 40),
        normal,
        cauchy,
        np.round(normal),
    ]
    return np.stack([row + (np.sum(row * row) == 0) * 1.0 for row in rows])


@module
class Relative(Law):
    """E|C(x) - x|^2 / |x|^2."""

    target: Compressor | Unbiased
    hints: jax.Array  # (count, d), inputs that are tried besides the panel
    workers: int = static()

    def measure(self, key: jax.Array, z: jax.Array) -> jax.Array:
        """Of one draw."""
        return sq(ask(self.target, key, (z,), self.workers).value - z) / sq(z)

    def starts(self, key: jax.Array, dim: int) -> np.ndarray:
        """The hints, and the panel at three scales."""
        rows = panel(key, dim)
        return np.concatenate([self.hints, rows, 1e6 * rows, 1e-6 * rows, two_level(dim)])


@module
class ThreePointLaw(Law):
    """E|C_{h,y}(x) - x|^2 / ((1 - A)|h - y|^2 + B|x - y|^2); z is h, y, x in a row."""

    target: ThreePoint
    A: jax.Array
    B: jax.Array
    hints: jax.Array  # (count, d), differences x - h that are tried besides the panel
    shares: jax.Array  # (count,), where y stands between h (0) and x (1)
    dim: int = static()
    workers: int = static()

    def measure(self, key: jax.Array, z: jax.Array) -> jax.Array:
        """Of one draw, with the relative slack on B that the trigger has."""
        h, y, x = z.reshape(3, self.dim)
        left = sq(ask(self.target, key, (h, y, x), self.workers).value - x)
        right = (1 - self.A) * sq(h - y) + self.B * (1 + 64 * jnp.finfo(z.dtype).eps) * sq(x - y)
        floor = (8 * jnp.finfo(z.dtype).eps) ** 2 * (sq(h) + sq(y) + sq(x))  # what rounding leaves of an exact send
        return jnp.where(left <= floor, 0, left / right)

    def starts(self, key: jax.Array, dim: int) -> np.ndarray:
        """x - h a hint, from the panel or two-level, y on the line through h and x; and x - y such a row with h - y
        against its last entries, as much as makes Young's inequality tight for maps that compress x - y."""
        rows = np.concatenate([self.hints, panel(key, dim), two_level(dim)])
        A, shares = float(self.A), np.asarray(self.shares)
        h = np.asarray(_normal(jax.random.fold_in(key, 2), (dim,))) * 0.1
        on_lines = [np.concatenate([h, h + s * row, h + row]) for row in rows for s in shares]
        firsts = np.unique(np.linspace(0, dim - 1, 8).astype(int))
        firsts = np.append(firsts, np.zeros(8 - len(firsts), int))
        against = lambda row, first: -np.where(np.arange(dim) >= first, row, 0) * (1 - A) / A
        off_them = [np.concatenate([h + against(row, first), h, h + row]) for row in rows for first in firsts]
        return np.stack([*on_lines, *off_them])


@module
class MeanLaw(Law):
    """E|mean g_i^+ - mean x_i|^2 / ((1 - A)|mean h_i - mean y_i|^2 + B spread), spread = mean|x_i - y_i|^2.

    Of constants for L_pm the spread is less |mean(x_i - y_i)|^2. z is all h_i, all y_i, all x_i in a row.
    """

    target: Estimator
    A: jax.Array
    B: jax.Array
    hints: jax.Array  # (count, d), differences x_i - h_i that are tried besides the panel
    apart: bool = static()  # constants for L_pm
    dim: int = static()
    workers: int = static()

    def measure(self, key: jax.Array, z: jax.Array) -> jax.Array:
        """Of one draw of all workers."""
        h, y, x = z.reshape(3, self.workers, self.dim)
        private, common = jax.random.split(key)
        one = lambda i, *v: said(self.target, jax.random.fold_in(private, i), common, i, self.workers, v).value
        sent = jax.vmap(one)(jnp.arange(self.workers), h, y, x)
        mean = lambda v: jnp.mean(v, axis=0)
        spread = jnp.mean(sq(x - y)) - (sq(mean(x - y)) if self.apart else 0)
        right = (1 - self.A) * sq(mean(h) - mean(y)) + self.B * spread
        floor = (8 * jnp.finfo(z.dtype).eps) ** 2 * jnp.mean(sq(h) + sq(y) + sq(x))  # what rounding leaves
        left = sq(mean(sent) - mean(x))
        return jnp.where(left <= floor, 0, left / jnp.maximum(right, floor))

    def starts(self, key: jax.Array, dim: int) -> np.ndarray:
        """Each worker's x - h a hint or from the panel, turned by one place a worker; y where Young's inequality is
        tight, at h, at x and between."""
        rows = np.concatenate([self.hints, panel(key, dim)])
        h = np.asarray(_normal(jax.random.fold_in(key, 2), (self.workers, dim))) * 0.1
        turned = lambda row: np.stack([np.roll(row, i) for i in range(self.workers)])
        point = lambda row, s: np.concatenate([h, h + s * turned(row), h + turned(row)]).ravel()
        return np.stack([point(row, s) for row in rows for s in (0.0, 0.5, 0.9, 1.0)])


def is_differentiable(law: Law, key: jax.Array, dim: int) -> bool:
    """Whether jax can differentiate `measure`: if not, the search climbs without gradients."""
    z = law.starts(key, dim)[0]
    try:
        jax.eval_shape(jax.grad(lambda z: law.measure(key, z)), z)
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


def few_of(key: jax.Array, z: jax.Array) -> jax.Array:
    """About two entries of each row, as a mask."""
    return jax.random.bernoulli(key, jnp.minimum(2.0 / z.shape[1], 0.5), z.shape)


def rms(z: jax.Array) -> jax.Array:
    """Root mean square of each row, (count, 1)."""
    return jnp.sqrt(jnp.mean(z**2, axis=1, keepdims=True))


@hasty("copies", "shape")
def _clouds(key: jax.Array, first: Any, copies: int, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Gaussian noise and keys for AT_ONCE steps. Apart from the law: one program serves all of a shape."""
    noise_key, draw_key = jax.random.split(jax.random.fold_in(key, first))
    noise = jax.random.normal(noise_key, (AT_ONCE, copies, *shape))
    return noise, jax.random.split(draw_key, (AT_ONCE, copies, shape[0]))


@hasty("ascend")
def _smooth_steps(law: Law, clouds: Any, z: jax.Array, sigmas: jax.Array, ascend: bool) -> jax.Array:
    """One step for each of sigmas, (AT_ONCE,)."""
    gradient = jax.grad(lambda z, e, k: law.measure(k, z + e))
    difference = lambda z, e, k: (law.measure(k, z + e) - law.measure(k, z - e)) * e

    def step(z: jax.Array, given: Any) -> tuple[jax.Array, None]:
        noise, draws, sigma = given
        size = rms(z)
        e = sigma * noise * size[None]
        slopes = jax.vmap(jax.vmap(gradient if ascend else difference), (None, 0, 0))(z, e, draws)
        slope = jnp.mean(jnp.nan_to_num(slopes, posinf=0, neginf=0), axis=0)
        moved = z + sigma * size * slope / (rms(slope) + jnp.finfo(z.dtype).tiny)
        return moved * size / (rms(moved) + jnp.finfo(z.dtype).tiny), None

    return jax.lax.scan(step, z, (*clouds, sigmas))[0]


def smoothed(law: Law, key: jax.Array, z: jax.Array, ascend: bool) -> jax.Array:
    """Where rows of z, (count, size), get by climbing E_e measure(z + sigma |z| e), e Gaussian, while sigma shrinks.

    The worst input of a piecewise smooth map mostly lies where pieces meet: there every single gradient leads astray
    and no step along an axis climbs, but the mean of gradients around it climbs along the ridge, whatever its axes.
    Each step is normalised and as long as sigma, on fresh draws; the gradient is jax's own (with `ascend`), else that
    of Gaussian smoothing, the mean of e (measure(z + sigma e) - measure(z - sigma e)), up to its length.
    """
    copies = COPIES if ascend else 4 * COPIES
    for first in range(0, SMOOTH_STEPS, AT_ONCE):
        share = (first + np.arange(AT_ONCE)) / SMOOTH_STEPS
        sigmas = WIDEST * (NARROWEST / WIDEST) ** share
        z = _smooth_steps(law, _clouds(key, first, copies, z.shape), z, sigmas, ascend)
    return z


@hasty("draws")
def climbed(
    law: Law, key: jax.Array, draw_key: jax.Array, z: jax.Array, draws: int, steps: Any
) -> tuple[jax.Array, jax.Array]:
    """Where rows of z, (count, size), get, and their means on common draws, (count,), by steps that are kept only if
    they climb, each with an adaptive reach: in turn in a random direction, along a few coordinates, and by scaling all
    entries up to some size together, which keeps ties. With 0 steps the means of z."""
    size, keys = rms(z), jax.random.split(draw_key, draws)
    mean = lambda z: jnp.mean(jax.vmap(lambda k: law.measure(k, z))(keys))

    def direction(i: jax.Array, z: jax.Array) -> jax.Array:
        noise_key, few_key = jax.random.split(jax.random.fold_in(key, i))
        noise = jax.random.normal(noise_key, z.shape)
        few = noise * few_of(few_key, z)
        up_to = jnp.max(jnp.abs(z) * few_of(few_key, z), axis=1, keepdims=True)
        together = jnp.where(jnp.abs(z) <= up_to, z, 0) * noise[:, :1] / size
        return jnp.stack([noise, few, together])[i % 3] * (i > 0)

    def climb(i: jax.Array, best: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        z, value, reach = best
        tried = z + reach * size * direction(i, z)
        found = jnp.nan_to_num(jax.vmap(mean)(tried), nan=jnp.inf, posinf=jnp.inf)
        better = found > value
        reach = jnp.where(better[:, None], reach * 1.5, reach * 0.9)
        return jnp.where(better[:, None], tried, z), jnp.where(better, found, value), jnp.clip(reach, 1e-6, 1.0)

    start = (z, jnp.full(len(z), -jnp.inf), jnp.full((len(z), 1), 0.2))  # the step 0 is none: it tells where z stands
    return jax.lax.fori_loop(0, steps + 1, climb, start)[:2]


def best(law: Law, draw_key: jax.Array, z: np.ndarray, draws: int) -> np.ndarray:
    """The CLIMBERS best of rows of z, again from the first where they are fewer."""
    rows = np.resize(z, (-(-len(z) // CLIMBERS) * CLIMBERS, z.shape[1]))
    parts = rows.reshape(-1, CLIMBERS, z.shape[1])  # so that one program serves any count
    value = np.concatenate([climbed(law, draw_key, draw_key, part, draws, 0)[1] for part in parts])
    return rows[np.argsort(-np.where(np.arange(len(rows)) < len(z), value, -np.inf), kind="stable")[:CLIMBERS]]


@hasty()
def _scattered(key: jax.Array, z: jax.Array) -> jax.Array:
    """Every second row of z with Gaussian noise of its size around it."""
    return z + rms(z) * jax.random.normal(key, z.shape) * (jnp.arange(len(z)) % 2)[:, None]


def search(law: Law, key: jax.Array, dim: int, draws: int, ascend: bool = True) -> np.ndarray:
    """Inputs that may be the worst, (2 CLIMBERS, size): the best of the starts as they were, and what became of them in
    a smoothed landscape and then by climbing, on common draws."""
    start_key, draw_key, climb_key, smooth_key = (jax.random.fold_in(key, i) for i in range(4))
    inputs = best(law, draw_key, law.starts(start_key, dim), draws)
    smooth = smoothed(law, smooth_key, _scattered(start_key, inputs), ascend)
    both = best(law, draw_key, np.concatenate([inputs, smooth]), draws)
    return np.concatenate([inputs, climbed(law, climb_key, draw_key, both, draws, STEPS)[0]])


@hasty("draws")
def judge(law: Law, key: jax.Array, z: jax.Array, draws: int) -> jax.Array:
    """`measure` at one input on `draws` fresh draws, (draws,)."""
    return jax.vmap(lambda k: law.measure(k, z))(jax.random.split(key, draws))


@hasty("draws", "workers")
def values(target: Any, key: jax.Array, x: jax.Array, draws: int, workers: int) -> jax.Array:
    """What arrives of x on fresh draws, (draws, d)."""
    return jax.vmap(lambda k: ask(target, k, (x,), workers).value)(jax.random.split(key, draws))
