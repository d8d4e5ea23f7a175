"""3PCv1 to 3PCv5, EF21+ and Ada3PC (3PC paper; AdaCGD paper; theory.md section 2).

v1 to v4 are one idea: a first guess b of x, and then what a contractive C says of the rest, b + C(x - b). Parts draw
independently of each other, as all constants here need.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.adaptive import cheapest, chosen, drawing
from adacgd.compressors.base import (
    Compressor,
    Message,
    Unbiased,
    alpha_of,
    brief,
    omega_of,
    require_nonnegative,
    settled,
    shared_with,
    sq,
)
from adacgd.compressors.combinators import require_unbiased
from adacgd.compressors.thresholds import require_share
from adacgd.cost import Cost, index_bits, total
from adacgd.mechanisms import (
    AB,
    EF21,
    ThreePoint,
    added,
    choose,
    compressed,
    compressor_of,
    fresh,
    level_of,
    received,
    require_compressor,
    require_flag,
    single,
    towards,
    whole,
)
from adacgd.module import module, static
from adacgd.steps import Code, Sent, Step, after
from adacgd.theory.constants import beta, theta

FIRST, SECOND = 0, 1  # which part of a map draws


def draw_of(part: Any, i: int, key: jax.Array, shared: dict[str, Any]) -> tuple[jax.Array, dict[str, Any]]:
    """Key and keywords of part i, apart from those of the other."""
    return jax.random.fold_in(key, i), shared_with(part, shared, i)


def refined(b: Message, compressor: Compressor, key: jax.Array, x: jax.Array, shared: dict[str, Any]) -> Message:
    """b + C(x - b), both sent."""
    own_key, own = draw_of(compressor, SECOND, key, shared)
    sent = compressed(compressor, own_key, x - b.value, **own)
    return Message(received(compressor, b.value, sent.value, x), total([b.cost, sent.cost]))


def refined_sent(
    b: tuple[Step, ...], compressor: Compressor, key: jax.Array, h: jax.Array, x: jax.Array, shared: dict[str, Any]
) -> tuple[Step, ...]:
    """The steps that make b of h, and what C says of x - b, where b is what a receiver has made of them."""
    own_key, own = draw_of(compressor, SECOND, key, shared)
    held = jnp.asarray(functools.reduce(lambda h, step: after(step, h), b, np.asarray(h)))
    return (*b, towards(compressor, own_key, held, x, own))


def constants_of(inner: ThreePoint, dim: int, workers: int | None) -> AB:
    """`inner.constants(dim)`, told the number of workers where the map shares randomness. Raises TypeError."""
    if not isinstance(inner, ThreePoint):
        raise TypeError(f"a three point map such as EF21(TopK(3)) is wanted here, got {inner!r}.")
    return inner.constants(dim, **({"workers": workers} if inner.shares_randomness else {}))


def require_map(owner: str, name: str, part: Any) -> None:
    """A three point map, or an error that says what to wrap. Raises TypeError.

    What jax may put in the place of a subtree passes, as in `require_contractive`.
    """
    if isinstance(part, Compressor | Unbiased):
        wrapped = f"EF21({part!r})" if isinstance(part, Compressor) else f"EF21(Shrunk({part!r}))"
        raise TypeError(f"{owner}({name}={part!r}) takes a three point map, and this is a compressor; use {wrapped}.")
    if isinstance(part, type):
        raise TypeError(f"{owner}({name}=...) takes an object, got the class {part.__name__}; call it first.")
    if isinstance(part, str | bytes | list | tuple | dict | set) or callable(part) != isinstance(part, ThreePoint):
        raise TypeError(f"{owner}({name}=...) must be a three point map such as EF21(TopK(3)), got {part!r}.")


@module
class ThreePCv1(ThreePoint):
    """C_{h,y}(x) = y + C(x - y) (3PC, v1). A = 1, B = 1 - alpha.

    The receiver must know y, which costs d scalars before those of C: a method to compare with, not one to use.
    """

    compressor: Compressor

    def __post_init__(self) -> None:
        require_compressor("ThreePCv1", "compressor", self.compressor)

    @property
    def shares_randomness(self) -> bool:  # type: ignore[override]
        """As the compressor."""
        return self.compressor.shares_randomness

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """y + C(x - y)."""
        return refined(Message(y, Cost(x.size)), self.compressor, key, x, shared)

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """y, C(x - y)."""
        return Sent(refined_sent((whole(y),), self.compressor, key, h, x, shared))

    def constants(self, dim: int, workers: int | None = None) -> AB:
        """(1, 1 - alpha): h is forgotten."""
        return AB(1.0, 1 - alpha_of(compressor_of("ThreePCv1", "compressor", self.compressor), dim, workers))


@module
class ThreePCv2(ThreePoint):
    """C_{h,y}(x) = b + C(x - b), b = h + Q(x - y) (3PC, v2). A = alpha, B = (1 - alpha) omega.

    Sends Q and C: E|x - b|^2 = |y - h|^2 + E|Q(x - y) - (x - y)|^2.
    """

    unbiased: Unbiased
    compressor: Compressor

    def __post_init__(self) -> None:
        require_unbiased("ThreePCv2", "unbiased", self.unbiased)
        require_compressor("ThreePCv2", "compressor", self.compressor)

    @property
    def shares_randomness(self) -> bool:  # type: ignore[override]
        """As either part."""
        return self.unbiased.shares_randomness or self.compressor.shares_randomness

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """b + C(x - b)."""
        own_key, own = draw_of(self.unbiased, FIRST, key, shared)
        moved = self.unbiased(own_key, x - y, **own)
        return refined(Message(h + settled(moved.value), moved.cost), self.compressor, key, x, shared)

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """Q(x - y), C(x - b)."""
        own_key, own = draw_of(self.unbiased, FIRST, key, shared)
        moved = added(self.unbiased, own_key, x - y, own)
        return Sent(refined_sent((moved,), self.compressor, key, h, x, shared))

    def constants(self, dim: int, workers: int | None = None) -> AB:
        """(alpha, (1 - alpha) omega)."""
        alpha = alpha_of(compressor_of("ThreePCv2", "compressor", self.compressor), dim, workers)
        return AB(alpha, (1 - alpha) * omega_of(self.unbiased, dim, workers))


@module
class ThreePCv3(ThreePoint):
    """C_{h,y}(x) = b + C(x - b), b = C1_{h,y}(x) with a three point map C1 (3PC, v3).

    A = 1 - (1 - alpha)(1 - A1), B = (1 - alpha) B1. Sends what C1 sends, its level bits too, and C.
    """

    inner: ThreePoint
    compressor: Compressor

    def __post_init__(self) -> None:
        require_map("ThreePCv3", "inner", self.inner)
        require_compressor("ThreePCv3", "compressor", self.compressor)

    @property
    def shares_randomness(self) -> bool:  # type: ignore[override]
        """As either part."""
        return self.inner.shares_randomness or self.compressor.shares_randomness

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """b + C(x - b)."""
        own_key, own = draw_of(self.inner, FIRST, key, shared)
        return refined(self.inner(own_key, h, y, x, **own), self.compressor, key, x, shared)

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """What C1 sends, its codes too; C(x - b)."""
        own_key, own = draw_of(self.inner, FIRST, key, shared)
        b = self.inner.sends(own_key, h, y, x, **own)
        return b._replace(steps=refined_sent(b.steps, self.compressor, key, h, x, shared))

    def constants(self, dim: int, workers: int | None = None) -> AB:
        """(1 - (1 - alpha)(1 - A1), (1 - alpha) B1)."""
        A1, B1, *_ = constants_of(self.inner, dim, workers)
        alpha = alpha_of(compressor_of("ThreePCv3", "compressor", self.compressor), dim, workers)
        return AB(1 - (1 - alpha) * (1 - A1), (1 - alpha) * B1)


@module
class ThreePCv4(ThreePoint):
    """C_{h,y}(x) = b + C1(x - b), b = h + C2(x - h) (3PC, v4): C2 first, then C1 on what it left.

    A = theta(abar), B = beta(abar), abar = 1 - (1 - alpha1)(1 - alpha2). Sends C1 and C2. EF21 with `Residual(c2, c1)`
    is the same map in one message; of two Top-K it knows a sharper abar.
    """

    c1: Compressor
    c2: Compressor

    def __post_init__(self) -> None:
        require_compressor("ThreePCv4", "c1", self.c1)
        require_compressor("ThreePCv4", "c2", self.c2)

    @property
    def shares_randomness(self) -> bool:  # type: ignore[override]
        """As either part."""
        return self.c1.shares_randomness or self.c2.shares_randomness

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """b + C1(x - b)."""
        own_key, own = draw_of(self.c2, FIRST, key, shared)
        return refined(EF21(self.c2)(own_key, h, y, x, **own), self.c1, key, x, shared)

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """C2(x - h), C1(x - b)."""
        own_key, own = draw_of(self.c2, FIRST, key, shared)
        return Sent(refined_sent((towards(self.c2, own_key, h, x, own),), self.c1, key, h, x, shared))

    def constants(self, dim: int, workers: int | None = None) -> AB:
        """(theta(abar), beta(abar)): Young with its best parameter, as for EF21."""
        parts = (compressor_of("ThreePCv4", "c1", self.c1), compressor_of("ThreePCv4", "c2", self.c2))
        a1, a2 = (alpha_of(c, dim, workers) for c in parts)
        abar = 1 - (1 - a1) * (1 - a2)
        return AB(theta(abar), beta(abar))


def full_or_moved(
    part: Any, p: Any, key: jax.Array, coin_key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, shared: Any
) -> Message:
    """x, d scalars at level 2, with probability p; else h + C(x - y) at level 1: 3PCv5, and MARINA with Q for C.

    The receiver adds to h what it is sent of x - y, so that no coordinate is x_j itself before the next full vector.
    """
    own_key, own = draw_of(part, SECOND, key, shared)
    moved = compressed(part, own_key, x - y, **own)
    coin = jax.random.bernoulli(jax.random.fold_in(coin_key, FIRST), p)
    return choose(coin, Message(x, Cost(x.size), 2), Message(h + settled(moved.value), moved.cost, 1))


def full_or_moved_sent(
    part: Any, level: int, key: jax.Array, y: jax.Array, x: jax.Array, shared: dict[str, Any]
) -> Sent:
    """x, or C(x - y) which is added to h, by the level of `full_or_moved`."""
    own_key, own = draw_of(part, SECOND, key, shared)
    return Sent((whole(x) if level == 2 else added(part, own_key, x - y, own),))


@module
class ThreePCv5(ThreePoint):
    """C_{h,y}(x) = x with probability p, else h + C(x - y) (3PC, v5).

    A = 1 - sqrt(1 - p), B = (1 - p)(1 - alpha)/(1 - sqrt(1 - p)): Young with s = 1/sqrt(1 - p) - 1, which minimises
    B/A. Sends d scalars, level 2, or C, level 1: p d + (1 - p) cost of C on average.

    common_coin: one coin for all workers of a round, as in the paper's code, which every end knows and nobody sends; a
    map that is called without `common=` is alone and throws its own. With False each worker throws its own in every
    round, (A, B) are the same, and one bit tells how it fell.
    """

    compressor: Compressor
    p: float | jax.Array
    common_coin: bool = static(default=True)
    __repr__ = brief

    def __post_init__(self) -> None:
        require_compressor("ThreePCv5", "compressor", self.compressor)
        require_share("ThreePCv5", "p", self.p)
        require_flag("ThreePCv5", "common_coin", self.common_coin)

    @property
    def shares_randomness(self) -> bool:  # type: ignore[override]
        """With a common coin, or as the compressor."""
        return self.common_coin or self.compressor.shares_randomness

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """x or h + C(x - y)."""
        coin_key = shared.get("common", key) if self.common_coin else key
        sent = full_or_moved(self.compressor, self.p, key, coin_key, h, y, x, shared)
        told = Cost(sent.cost.scalars, sent.cost.extra_bits + (0 if self.common_coin else index_bits(2)))
        return sent._replace(cost=told)

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """x or C(x - y), and a bit that tells which, unless the coin is common."""
        level = level_of(self, key, h, y, x, shared)
        sent = full_or_moved_sent(self.compressor, level, key, y, x, shared)
        return sent if self.common_coin else sent.behind(Code(level - 1, 2))

    def constants(self, dim: int, workers: int | None = None) -> AB:
        """(1 - sqrt(1 - p), (1 - p)(1 - alpha)/(1 - sqrt(1 - p)))."""
        p = float(single("ThreePCv5", "p", self.p))
        alpha = alpha_of(compressor_of("ThreePCv5", "compressor", self.compressor), dim, workers)
        return AB(theta(p), beta(p) * (1 - alpha))


@module
class EF21Plus(ThreePoint):
    """The better of C(x) and h + C(x - h), by the error that it really has (EF21 paper, EF21+). (A, B) of EF21.

    The paper has it for deterministic C. As the choice looks at what was drawn, the error is never above that of EF21,
    and (A, B) hold for a random C too. Sends C, and one bit that tells which: level 1 h + C(x - h), level 2 C(x).
    """

    compressor: Compressor

    def __post_init__(self) -> None:
        require_compressor("EF21Plus", "compressor", self.compressor)

    @property
    def shares_randomness(self) -> bool:  # type: ignore[override]
        """As the compressor."""
        return self.compressor.shares_randomness

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """C(x) where it is strictly better, else h + C(x - h)."""
        own_key, own = draw_of(self.compressor, FIRST, key, shared)
        other_key, other = draw_of(self.compressor, SECOND, key, shared)
        moved = EF21(self.compressor)(own_key, h, y, x, **own)
        anew = compressed(self.compressor, other_key, x, **other)
        sent = choose(sq(x - anew.value) < sq(x - moved.value), anew._replace(level=2), moved._replace(level=1))
        return sent._replace(cost=Cost(sent.cost.scalars, sent.cost.extra_bits + index_bits(2)))

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """A bit, and the C that it tells."""
        level = level_of(self, key, h, y, x, shared)
        own_key, own = draw_of(self.compressor, SECOND if level == 2 else FIRST, key, shared)
        step = fresh(self.compressor, own_key, x, own) if level == 2 else towards(self.compressor, own_key, h, x, own)
        return Sent((step,), (Code(level - 1, 2),))

    def constants(self, dim: int, workers: int | None = None) -> AB:
        """(theta(alpha), beta(alpha))."""
        A, B, *_ = EF21(self.compressor).constants(dim, workers)
        return AB(A, B)


@module
class Ada3PC(ThreePoint):
    """AdaCGD's trigger over any three point maps C^1, ..., C^m, cheapest first (AdaCGD paper, Ada3PC).

        h                   if |h - x|^2 <= zeta |x - y|^2,
        C^j_{h,y}(x)        for the smallest j < m with |C^j_{h,y}(x) - x|^2 <= zeta |x - y|^2,
        C^m_{h,y}(x)        otherwise

    A = A_m, B = max(B_m, zeta). Levels draw independently of each other. Sends what the level sends, and
    ceil(log2(m + 1)) bits that name it, silence included.
    """

    levels: Sequence[ThreePoint]
    zeta: float | jax.Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", _checked_maps(self.levels))
        require_nonnegative("Ada3PC", "zeta", self.zeta)

    @property
    def shares_randomness(self) -> bool:  # type: ignore[override]
        """As any of the levels."""
        return any(level.shares_randomness for level in self.levels)

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """Silence, then level after level until the error is within zeta |x - y|^2."""
        messages = [level(k, h, y, x, **own) for level, k, own in drawing(self.levels, key, shared)]
        return cheapest(messages, self.zeta, h, y, x)

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """The level, and what it sends, with codes of its own."""
        return chosen(level_of(self, key, h, y, x, shared), drawing(self.levels, key, shared), h, y, x)

    def constants(self, dim: int, workers: int | None = None) -> AB:
        """(A_m, max(B_m, zeta))."""
        A, B, *_ = constants_of(self.levels[-1], dim, workers)
        return AB(A, max(B, float(single("Ada3PC", "zeta", self.zeta))))


def _checked_maps(levels: Any) -> Any:
    if isinstance(levels, ThreePoint | Compressor | Unbiased | type | str | Iterator):
        raise TypeError(f"Ada3PC(levels=...) must be a list of three point maps, cheapest first; got {levels!r}.")
    if not isinstance(levels, Sequence):
        return levels  # jax, rebuilding the instance with something that stands for a subtree
    if not levels:
        raise ValueError("Ada3PC(levels=...) needs at least one level; give three point maps, cheapest first.")
    for j, level in enumerate(levels):
        require_map("Ada3PC", f"levels[{j}]", level)
    return tuple(levels)
