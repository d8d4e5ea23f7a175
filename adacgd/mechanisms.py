"""Three point compressors C_{h,y}(x): how a worker updates what the server holds of it (3PC paper; theory.md 2).

    E|C_{h,y}(x) - x|^2 <= (1 - A) |h - y|^2 + B |x - y|^2    for all h, y, x

h: what the receiver holds now; y: the sender's previous vector; x: its new one, all (d,). In a run h = g_i^t,
y = grad f_i(x^t), x = grad f_i(x^{t+1}). A map has no state, so its law can be tested on the bare function.
"""

import abc
import functools
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.base import (
    Compressor,
    Message,
    alpha_of,
    brief,
    fetch,
    format_of,
    no_bytes,
    require_contractive,
    require_nonnegative,
    settled,
    sq,
)
from adacgd.compressors.codes import Dense
from adacgd.compressors.sparsifiers import Identity
from adacgd.cost import Cost, level_bits
from adacgd.module import module, static
from adacgd.steps import ADDED, FRESH, REPLACING, Code, Sent, Step
from adacgd.theory.constants import beta, sharper, theta


class AB(NamedTuple):
    """The constants of a three point compressor.

    P, Q bound the movement of the average: E|g^{t+1} - g^t|^2 <= P G^t + Q L_plus^2 R^t (theory.md 3.4). None stands
    for what holds for any map: P = 2 (1 + sqrt(1 - A))^2, Q = 2 (1 + sqrt B)^2.
    """

    A: float
    B: float
    P: float | None = None
    Q: float | None = None


class ResidualAB(AB):
    """(A, B) of h + C(x - h) and nothing else: A = theta(alpha), so that sqrt(1 - alpha) = 1 - A (theory.md 3.3)."""

    residual = True


class ThreePoint(abc.ABC):
    """A three point compressor; an own one is a `module` with these two methods.

    With `shares_randomness` the call takes `common=, round=, worker=, workers=` as keywords, and `constants` takes
    `workers=`.
    """

    shares_randomness: bool = False

    @abc.abstractmethod
    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array) -> Message:
        """The new estimate of x as `Message.value`, (d,)."""

    @abc.abstractmethod
    def constants(self, dim: int) -> AB:
        """(A, B) on R^dim, and P, Q where they are sharper than the general form."""

    def ladder(self) -> "Ladder | None":
        """Levels, zeta and whether it may be silent, for the maps that are such a choice; None for all others."""
        return None

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """What travels in the message of the call with the same arguments. Raises TypeError where no bytes are known.

        An own map that has bytes builds it of `towards`, `added`, `fresh` and `whole`, with the draws of its call.
        """
        no_bytes(self)


class Ladder(NamedTuple):
    """What GD, EF21, LAG, CLAG and AdaCGD have in common: a choice among levels of h + C^j(x - h), cheapest first."""

    levels: tuple[Compressor, ...]
    zeta: Any
    may_be_silent: bool
    level_bits: int


def require_compressor(owner: str, name: str, part: Any) -> None:
    """What a constructor can refuse: not what jax may put there (None, numbers), which `compressor_of` meets later."""
    require_contractive(owner, name, part)
    if isinstance(part, ThreePoint):
        raise TypeError(
            f"{owner}({name}={part!r}) takes a compressor such as TopK(3), and this is a mechanism already."
        )
    if isinstance(part, types.FunctionType | types.MethodType | functools.partial):
        raise TypeError(
            f"{owner}({name}=...) takes a Compressor, got a function; a class with `__call__` and `alpha` makes it one "
            "(docs/adding-a-compressor.md)."
        )


def compressor_of(owner: str, name: str, part: Any) -> Compressor:
    """`part`, if it is a contractive compressor. Raises TypeError."""
    require_compressor(owner, name, part)
    if not isinstance(part, Compressor):
        raise TypeError(f"{owner}({name}=...) must be a Compressor such as TopK(3), got {part!r}.")
    return part


def single(owner: str, name: str, value: Any) -> Any:
    """`value`, if it is one number and no array of them. Raises ValueError."""
    if np.ndim(value):
        raise ValueError(
            f"{owner}({name}=...) must be one number, got an array of shape {np.shape(value)}; "
            f"sweep(..., {name}s=[...]) runs several."
        )
    return value


def compressed(compressor: Compressor, key: jax.Array, x: jax.Array, **shared: Any) -> Message:
    """The message of a compressor, or a TypeError where an own one returns something else."""
    sent = compressor(key, x, **shared)
    if not isinstance(sent, Message):
        raise TypeError(
            f"{type(compressor).__name__} must return Message(value, Cost(scalars, extra_bits)), got {sent!r}."
        )
    return sent


def received(compressor: Compressor, h: jax.Array, sent: jax.Array, x: jax.Array) -> jax.Array:
    """h + sent, except that a coordinate that arrives without loss is x_j itself: h_j + (x_j - h_j) may round away.

    It is the vector that a receiver makes, bit for bit: a compressor with a byte format either sends coordinates of x
    as they are (`verbatim`), or numbers that do not tell x, where a sum that happens to be exact earns no exception.
    Of own compressors without a format it is not known, and each coordinate is judged by its value.
    """
    if not getattr(compressor, "verbatim", True):
        return h + settled(sent)
    whole = (sent == x - h) | (jnp.isnan(sent) & jnp.isnan(x - h))  # NaN in h does not outlive a full send
    return jnp.where(whole & (sent != 0), x, jnp.where(sent == 0, h, h + sent))


def added(part: Any, key: jax.Array, v: jax.Array, shared: dict[str, Any], kind: int = ADDED) -> Step:
    """h + C(v) as a step."""
    layout = format_of(part, v.size, 8 * v.dtype.itemsize, shared.get("workers"))
    return Step(kind, layout, part.numbers(key, v, **shared))


def fresh(part: Any, key: jax.Array, x: jax.Array, shared: dict[str, Any]) -> Step:
    """C(x) in the place of h as a step."""
    return added(part, key, x, shared, FRESH)


def towards(compressor: Any, key: jax.Array, h: jax.Array, x: jax.Array, shared: dict[str, Any]) -> Step:
    """h + C(x - h) as a step, with the x_j that travel as they are in the place of h_j: what `received` makes."""
    step = added(compressor, key, x - h, shared)
    if not compressor.verbatim:
        return step
    (values,) = fetch(jnp.where(x - h != 0, x, h))
    return Step(REPLACING, step.format, step.format.carrying(step.numbers, values))


def whole(x: jax.Array) -> Step:
    """x in the place of h as a step: d scalars."""
    return Step(FRESH, Dense(), fetch(x))


def level_of(one: ThreePoint, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, shared: dict[str, Any]) -> int:
    """The level that a map chooses, by its own call."""
    return int(one(key, h, y, x, **shared).level)


def accurate(error: jax.Array, zeta: Any, moved: jax.Array) -> jax.Array:
    """The trigger: is the squared error within zeta |x - y|^2? A tie means yes, hence *skip* at level 0.

    moved: |x - y|^2. Not a number is never accurate and infinity no measure, so a run that blows up keeps sending and
    is seen.
    """
    return error <= allowed(zeta, moved)


def allowed(zeta: Any, moved: jax.Array) -> jax.Array:
    """The largest squared error that is accurate: zeta |x - y|^2 (1 + 64 eps); NaN, which none is, where |x - y|^2 is
    no measure.

    The factor covers different orders of summation and nothing else, so that rounding never decides a tie.
    """
    return jnp.where(moved < jnp.inf, zeta * moved * (1 + 64 * jnp.finfo(moved.dtype).eps), jnp.nan)


def choose(which: jax.Array, one: Message, other: Message) -> Message:
    """The first message where `which`, () bool, else the other: value, price and level."""
    return jax.tree.map(lambda a, b: jnp.where(which, a, b), one, other)


def silent_or(sent: Message, h: jax.Array, skip: jax.Array) -> Message:
    """Nothing but the flag bit where `skip`, else the message and the flag bit."""
    flag = level_bits(1)
    flagged = Message(sent.value, Cost(sent.cost.scalars, sent.cost.extra_bits + flag), 1)
    return choose(skip, Message(h, Cost(0, flag), 0), flagged)


def non_expansive(*compressors: Compressor) -> dict[str, float]:
    """P = Q = 2 where no compressor expands: the increment is 0 or C(x - h) (theory.md 3.4)."""
    return {"P": 2.0, "Q": 2.0} if all(c.nonexpansive for c in compressors) else {}


def silent_pair(alpha: float, zeta: float, sharp: bool, moves: dict[str, float]) -> AB:
    """(A, B) of h where |x - h|^2 <= zeta |x - y|^2, else h + C(x - h); moves: P and Q where they are known."""
    A, B = sharper(alpha, zeta) if sharp else (theta(alpha), max(beta(alpha), zeta))
    return AB(A, B, **moves)


def require_flag(owner: str, name: str, value: Any) -> None:
    """True or False, nothing that counts as one. Raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{owner}({name}=...) must be True or False, got {value!r}.")


@module
class GD(ThreePoint):
    """C_{h,y}(x) = x: gradient descent. A = 1, B = 0. Sends d scalars."""

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array) -> Message:
        """x."""
        return Message(x, Cost(x.size))

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """x."""
        return Sent((whole(x),))

    def constants(self, dim: int) -> AB:
        """(1, 0); the average moves as the gradient does: P = 0, Q = 1."""
        return AB(1.0, 0.0, P=0.0, Q=1.0)

    def ladder(self) -> Ladder:
        """One level, the identity, always sent."""
        return Ladder((Identity(),), 0.0, False, 0)


@module
class EF21(ThreePoint):
    """C_{h,y}(x) = h + C(x - h) (Richtarik, Sokolov, Fatkhullin: EF21). A = theta(alpha), B = beta(alpha)."""

    compressor: Compressor

    def __post_init__(self) -> None:
        require_compressor("EF21", "compressor", self.compressor)

    @property
    def shares_randomness(self) -> bool:  # type: ignore[override]
        """As the compressor."""
        return self.compressor.shares_randomness

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """h + C(x - h)."""
        sent = compressed(self.compressor, key, x - h, **shared)
        return Message(received(self.compressor, h, sent.value, x), sent.cost)

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """h + C(x - h)."""
        return Sent((towards(self.compressor, key, h, x, shared),))

    def constants(self, dim: int, workers: int | None = None) -> AB:
        """(theta(alpha), beta(alpha)): Young with s* = 1/sqrt(1 - alpha) - 1, which minimises B/A."""
        alpha = alpha_of(compressor_of("EF21", "compressor", self.compressor), dim, workers)
        return ResidualAB(theta(alpha), beta(alpha), **non_expansive(self.compressor))

    def ladder(self) -> Ladder:
        """One level, always sent."""
        return Ladder((compressor_of("EF21", "compressor", self.compressor),), 0.0, False, 0)


@module
class LAG(ThreePoint):
    """C_{h,y}(x) = h if |x - h|^2 <= zeta |x - y|^2, else x: lazy aggregation in its 3PC form. A = 1, B = zeta.

    Sends d scalars or nothing, and one flag bit.
    """

    zeta: float | jax.Array

    def __post_init__(self) -> None:
        require_nonnegative("LAG", "zeta", self.zeta)

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array) -> Message:
        """h or x."""
        return silent_or(Message(x, Cost(x.size)), h, accurate(sq(x - h), self.zeta, sq(x - y)))

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """A flag, and x where it is up."""
        level = level_of(self, key, h, y, x, shared)
        return (Sent((whole(x),)) if level else Sent()).behind(Code(level, 2))

    def constants(self, dim: int) -> AB:
        """(1, zeta)."""
        return AB(1.0, float(single("LAG", "zeta", self.zeta)), P=2.0, Q=2.0)

    def ladder(self) -> Ladder:
        """Silence or the identity."""
        return Ladder((Identity(),), single("LAG", "zeta", self.zeta), True, level_bits(1))


@module
class CLAG(ThreePoint):
    """C_{h,y}(x) = h if |x - h|^2 <= zeta |x - y|^2, else h + C(x - h). A = theta(alpha), B = max(beta(alpha), zeta).

    Sends the cost of C or nothing, and one flag bit. sharp: claim the sharper pair where zeta > beta(alpha) (derived,
    theory.md 2), which allows a step up to sqrt 2 longer; the map is the same.
    """

    compressor: Compressor
    zeta: float | jax.Array
    sharp: bool = static(default=False)
    __repr__ = brief

    def __post_init__(self) -> None:
        require_compressor("CLAG", "compressor", self.compressor)
        require_nonnegative("CLAG", "zeta", self.zeta)
        require_flag("CLAG", "sharp", self.sharp)

    @property
    def shares_randomness(self) -> bool:  # type: ignore[override]
        """As the compressor."""
        return self.compressor.shares_randomness

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """h or h + C(x - h)."""
        sent = EF21(self.compressor)(key, h, y, x, **shared)
        return silent_or(sent, h, accurate(sq(x - h), self.zeta, sq(x - y)))

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """A flag, and C(x - h) where it is up."""
        level = level_of(self, key, h, y, x, shared)
        return (EF21(self.compressor).sends(key, h, y, x, **shared) if level else Sent()).behind(Code(level, 2))

    def constants(self, dim: int, workers: int | None = None) -> AB:
        """(theta(alpha), max(beta(alpha), zeta)), the standard pair; or the sharper one."""
        compressor = compressor_of("CLAG", "compressor", self.compressor)
        zeta = float(single("CLAG", "zeta", self.zeta))
        return silent_pair(alpha_of(compressor, dim, workers), zeta, self.sharp, non_expansive(compressor))

    def ladder(self) -> Ladder:
        """Silence or the one level."""
        compressor = compressor_of("CLAG", "compressor", self.compressor)
        return Ladder((compressor,), single("CLAG", "zeta", self.zeta), True, level_bits(1))
