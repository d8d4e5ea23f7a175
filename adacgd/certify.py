"""A claimed constant put to the test: search the worst input, then judge it on fresh randomness.

Each input is judged on its own, in expectation over the key: averaging over inputs would let an overclaimed constant
through, since Top-K contracts a Gaussian far better than k/d.
"""

import abc
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.base import Compressor, Unbiased, alpha_of, as_key, omega_of, sq
from adacgd.mechanisms import ThreePoint
from adacgd.module import module, static

SEARCH_DRAWS = 64  # of a random target, the same for every input while searching
JUDGE_DRAWS = 4096  # fresh ones for the witness
STEPS = 300
MARGIN = 1e-9  # a claim is broken only beyond it
SIGMAS = 4.0  # of the mean on fresh draws
BIAS_SIGMAS = 6.0  # of one coordinate's mean: there are many coordinates


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """The verdict with its evidence; `str()` is a report."""

    ok: bool
    target: str
    law: str
    claimed: float  # 1 - alpha, omega, or 1 for left over right of a three point inequality
    worst: float  # the largest found: the mean over fresh draws at the witness
    stderr: float  # of `worst`; 0 where the target is deterministic
    witness: Any  # the input that attains it: x, or (h, y, x)
    reason: str  # "" where ok
    inputs: int  # how many were tried
    draws: int  # how many fresh draws judged the witness

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        noise = f" +- {SIGMAS * self.stderr:.2g} ({self.draws} draws)" if self.stderr else " (deterministic)"
        return "\n".join(
            [
                f"{self.target}: {self.law}",
                f"  claimed  {self.claimed:.9g}",
                f"  worst    {self.worst:.9g}{noise}, of {self.inputs} inputs tried",
                f"  verdict  {'the claim stands' if self.ok else 'CONVICTED: ' + self.reason}",
            ]
        )


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


@functools.partial(jax.jit, static_argnames=("dim", "draws", "steps"))
def search(law: Law, key: jax.Array, dim: int, draws: int, steps: int) -> tuple[jax.Array, jax.Array]:
    """Hill climbing from every start at once; the best input found, (size,), and its mean over the common draws."""
    start_key, draw_key, climb_key = (jax.random.fold_in(key, i) for i in range(3))
    keys = jax.random.split(draw_key, draws)
    mean = lambda z: jnp.mean(jax.vmap(lambda k: law.measure(k, z))(keys))
    score = lambda z: jnp.nan_to_num(jax.vmap(mean)(z), nan=jnp.inf, posinf=jnp.inf)
    inputs = law.starts(start_key, dim)
    size = jnp.sqrt(jnp.mean(inputs**2, axis=1, keepdims=True))

    def climb(i: jax.Array, best: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        z, value, reach = best
        noise_key, mask_key = jax.random.split(jax.random.fold_in(climb_key, i))
        few = jax.random.bernoulli(mask_key, jnp.where(i % 2 == 0, 1.0, 2.0 / z.shape[1]), z.shape)
        tried = z + reach * size * few * jax.random.normal(noise_key, z.shape)
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


def certify(target: Any, dim: int = 20, key: Any = 0) -> Certificate:
    """Try the constant that a compressor, an unbiased compressor or a three point map claims on R^dim.

    The witness of the search is judged on fresh draws; the claim is convicted only when the lower end of a 4-standard-
    error interval lies above it by 1e-9. An unbiased compressor must also be unbiased. Raises ValueError without
    64-bit mode: rounding of float32 is of the size of what is certified.
    """
    if not jax.config.read("jax_enable_x64"):
        raise ValueError(
            "certify works in double precision only: in float32 rounding would decide. "
            'Call jax.config.update("jax_enable_x64", True) at the start of the program.'
        )
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
        raise ValueError(f"certify(dim=...) must be an integer of at least 1, got {dim!r}.")
    law, claimed, words = _law_of(target, dim)
    search_key, judge_key, bias_key = (jax.random.fold_in(as_key(key), i) for i in range(3))
    deterministic = _is_deterministic(law, search_key, dim)
    z, _ = search(law, search_key, dim, 1 if deterministic else SEARCH_DRAWS, STEPS)
    draws = 1 if deterministic else JUDGE_DRAWS
    sample = np.asarray(judge(law, judge_key, z, draws))
    worst, stderr = float(sample.mean()), float(sample.std() / math.sqrt(draws))
    reason = ""
    if not worst - SIGMAS * stderr <= claimed + MARGIN:
        reason = f"{worst:.6g} found where {claimed:.6g} is claimed"
    elif isinstance(target, Unbiased):
        reason = _bias(target, bias_key, dim)
    starts = law.starts(search_key, dim).shape[0]
    witness = tuple(np.asarray(z).reshape(3, dim)) if isinstance(target, ThreePoint) else np.asarray(z)
    return Certificate(
        not reason, repr(target), words, claimed, worst, stderr, witness, reason, starts * (STEPS + 1), draws
    )


def _law_of(target: Any, dim: int) -> tuple[Law, float, str]:
    if isinstance(target, Compressor):
        return Relative(target), 1 - alpha_of(target, dim), "E|C(x) - x|^2 <= (1 - alpha) |x|^2"
    if isinstance(target, Unbiased):
        return Relative(target), omega_of(target, dim), "E Q(x) = x, E|Q(x) - x|^2 <= omega |x|^2"
    if isinstance(target, ThreePoint):
        A, B, *_ = target.constants(dim)
        law = ThreePointLaw(target, jnp.asarray(A, float), jnp.asarray(B, float), dim)
        return law, 1.0, f"E|C_(h,y)(x) - x|^2 <= (1 - A)|h - y|^2 + B|x - y|^2, A = {A:.6g}, B = {B:.6g}"
    raise TypeError(
        f"certify takes a Compressor, an Unbiased compressor or a ThreePoint map, got {type(target).__name__}."
    )


def _is_deterministic(law: Law, key: jax.Array, dim: int) -> bool:
    """Whether the starts measure the same on 64 draws: two of few may agree by chance."""
    inputs = law.starts(key, dim)
    drawn = np.asarray(jax.vmap(lambda k: jax.vmap(lambda z: law.measure(k, z))(inputs))(jax.random.split(key, 64)))
    return all(np.array_equal(drawn[0], other, equal_nan=True) for other in drawn[1:])


def _bias(target: Unbiased, key: jax.Array, dim: int) -> str:
    """The first coordinate of the panel whose mean is off by more than BIAS_SIGMAS standard errors, in words."""
    for row in np.asarray(panel(key, dim)):
        sent = np.asarray(values(target, key, jnp.asarray(row), JUDGE_DRAWS))
        off = np.abs(sent.mean(axis=0) - row)
        allowed = BIAS_SIGMAS * sent.std(axis=0) / math.sqrt(JUDGE_DRAWS) + MARGIN * np.abs(row).max()
        if np.any(~(off <= allowed)):
            j = int(np.argmax(off - allowed))
            return f"biased: coordinate {j} of {np.array2string(row[: j + 1][-3:])} averages {sent[:, j].mean():.6g}"
    return ""
