"""AdaCGD: ladders of levels and the trigger that chooses among them (AdaCGD paper; theory.md section 2)."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from adacgd.compressors.base import (
    Compressor,
    Message,
    alpha_of,
    brief,
    level_index,
    require_nonnegative,
    shared_with,
    sq,
)
from adacgd.compressors.selection import first_within, rows
from adacgd.compressors.sparsifiers import Identity, TopK, sparse_cost
from adacgd.cost import Cost, level_bits
from adacgd.mechanisms import (
    AB,
    EF21,
    Ladder,
    ThreePoint,
    accurate,
    allowed,
    choose,
    compressor_of,
    level_of,
    non_expansive,
    require_compressor,
    require_flag,
    silent_pair,
    single,
)
from adacgd.module import Aside, module, static
from adacgd.steps import Code, Sent


def cheapest(messages: Sequence[Message], zeta: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> Message:
    """The trigger: silence if it is accurate, else the first message that is, else the last; the level is paid for."""
    m, moved = len(messages), sq(x - y)
    best = Message(h, Cost(0, level_bits(m)), 0)
    for j, sent in enumerate(messages, 1):
        enough = accurate(sq(x - best.value), zeta, moved)
        cost = Cost(sent.cost.scalars, sent.cost.extra_bits + level_bits(m))
        best = choose(enough, best, Message(sent.value, cost, j))
    return best


def drawing(levels: Sequence[Any], key: jax.Array, shared: dict[str, Any]) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Each level with its key and its shared randomness: levels of one worker draw independently of each other."""
    keys, m = jax.random.split(key, len(levels)), len(levels)
    return [(level, keys[j], shared_with(level, shared, level_index(j, m))) for j, level in enumerate(levels)]


def chosen(
    level: int, drawn: Sequence[tuple[ThreePoint, Any, dict[str, Any]]], h: jax.Array, y: jax.Array, x: jax.Array
) -> Sent:
    """The code of one of the levels of `drawing`, or of silence, 0; and what it sends."""
    sent = Sent()
    if level:
        one, key, own = drawn[level - 1]
        sent = one.sends(key, h, y, x, **own)
    return sent.behind(Code(level, len(drawn) + 1))


@module
class AdaCGD(ThreePoint):
    """Send the cheapest level that is accurate enough; silence is level 0, and the finest level always goes through.

        h                   if |h - x|^2 <= zeta |x - y|^2,
        h + C^j(x - h)      for the smallest j < m with |h + C^j(x - h) - x|^2 <= zeta |x - y|^2,
        h + C^m(x - h)      otherwise

    A = theta(alpha_m), B = max(beta(alpha_m), zeta): only the finest level and zeta enter the theory, and zeta up to
    beta(alpha_m) costs nothing in the step. Levels draw independently of each other: with shared masks the law is
    false (theory.md section 2). Sends the level and ceil(log2(m + 1)) bits that name it, silence included.

    levels: contractive compressors, cheapest first. zeta: finite, >= 0. sharp: claim the sharper pair where zeta >
    beta(alpha_m) (derived, theory.md 2), which allows a step up to sqrt 2 longer; the map is the same.
    """

    levels: Sequence[Compressor]
    zeta: float | jax.Array
    sharp: bool = static(default=False)
    __repr__ = brief

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", _checked_levels(self.levels))
        require_nonnegative("AdaCGD", "zeta", self.zeta)
        require_flag("AdaCGD", "sharp", self.sharp)

    @property
    def shares_randomness(self) -> bool:  # type: ignore[override]
        """As any of the levels."""
        return any(c.shares_randomness for c in self.levels)

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """Silence, then level after level until the error is within zeta |x - y|^2."""
        messages = [EF21(c)(k, h, y, x, **own) for c, k, own in drawing(self.levels, key, shared)]
        return cheapest(messages, self.zeta, h, y, x)

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """The level, and what it sends."""
        level = level_of(self, key, h, y, x, shared)
        levels = [(EF21(c), k, own) for c, k, own in drawing(self.levels, key, shared)]
        return chosen(level, levels, h, y, x)

    def constants(self, dim: int, workers: int | None = None) -> AB:
        """(theta(alpha_m), max(beta(alpha_m), zeta)), the standard pair; or the sharper one."""
        levels = self.ladder().levels
        return silent_pair(alpha_of(levels[-1], dim, workers), float(self.zeta), self.sharp, non_expansive(*levels))

    def ladder(self) -> Ladder:
        """All its levels."""
        levels = tuple(compressor_of("AdaCGD", f"levels[{j}]", c) for j, c in enumerate(self.levels))
        return Ladder(levels, single("AdaCGD", "zeta", self.zeta), True, level_bits(len(levels)))


def _checked_levels(levels: Any) -> Any:
    if isinstance(levels, Compressor | type | str | Iterator):
        raise TypeError(f"AdaCGD(levels=...) must be a list of compressors, cheapest first; got {levels!r}.")
    if not isinstance(levels, Sequence):
        return levels  # jax, rebuilding the instance with something that stands for a subtree
    levels = tuple(levels)
    if not levels:
        raise ValueError("AdaCGD(levels=...) needs at least one level; give compressors, cheapest first.")
    for j, compressor in enumerate(levels):
        require_compressor("AdaCGD", f"levels[{j}]", compressor)
    ks = [c.k for c in levels if isinstance(c, TopK)]
    if ks != sorted(set(ks)):
        raise ValueError(
            f"AdaCGD(levels=...) must go from cheapest to finest, each k once; got Top-K with k = {ks}, "
            f"use {sorted(set(ks))}."
        )
    if any(isinstance(c, Identity) for c in levels[:-1]):
        raise ValueError("AdaCGD(levels=...): Identity is the finest level there is and stands last.")
    return levels


@module
class TopKLadder(ThreePoint):
    """Any of GD, EF21, LAG, CLAG, AdaCGD whose levels are all Top-K or the identity: one table, one sort, one program.

    The nested levels leave the tails of one sorted vector, so that m of them cost what one does. Everything that tells
    the methods apart is data: they, and every K, zeta and ladder, share one compiled program. `tabulated` builds it; it
    is the same map as the method it was made from, to the last bit.
    """

    ks: jax.Array  # (m_padded,) int32, coordinates kept by each level; padded with the last
    scalars: jax.Array  # (m_padded,) int32, its price
    extra_bits: jax.Array  # (m_padded,) int32
    m: jax.Array  # () int32, the true number of levels
    zeta: jax.Array  # ()
    may_be_silent: jax.Array  # () bool
    level_bits: jax.Array  # () int32, what naming the level costs
    stands_for: Aside = static()  # .method, whose constants are this map's

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array) -> Message:
        """The message of the method it stands for."""
        kept, level = _select(x - h, sq(x - y), self.ks, self.m, self.zeta, self.may_be_silent)
        sends, j = level > 0, jnp.maximum(level - 1, 0)
        cost = Cost(jnp.where(sends, self.scalars[j], 0), jnp.where(sends, self.extra_bits[j], 0) + self.level_bits)
        return Message(jnp.where(kept & (x != h), x, h), cost, level)

    def constants(self, dim: int) -> AB:
        """Those of the method it stands for."""
        return self.stands_for.method.constants(dim)


@custom_vmap
def _select(
    difference: jax.Array, moved: jax.Array, ks: jax.Array, m: jax.Array, zeta: jax.Array, may_be_silent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """AdaCGD's choice for every row at once: which coordinates arrive, (..., d) bool, and the level, (...) int32.

    difference: x - h, (..., d). moved: |x - y|^2, (...). ks: (..., m_padded). The rest: (...). Written over rows, with
    scalar conditions, because under `vmap` every branch would run: a batch of full sends never sorts.
    """
    d = difference.shape[-1]
    silent = accurate(sq(difference), zeta, moved) & may_be_silent

    def by_norms() -> tuple[jax.Array, jax.Array]:
        level = jnp.where(silent, 0, 1).astype(jnp.int32)
        return jnp.broadcast_to((level > 0)[..., None], difference.shape), level

    def by_sorting() -> tuple[jax.Array, jax.Array]:
        index, kept = first_within(difference, ks, allowed(zeta, moved))
        level = jnp.where(silent, 0, jnp.minimum(index + 1, m)).astype(jnp.int32)
        return kept & (level > 0)[..., None], level

    return jax.lax.cond(jnp.all(ks[..., 0] >= d), by_norms, by_sorting)


@_select.def_vmap
def _select_batched(size: int, batched: list[bool], *arrays: jax.Array) -> tuple[Any, Any]:
    return _select(*rows(size, batched, *arrays)), (True, True)


def _is_plain_top_k(c: Any) -> bool:
    return type(c) is Identity or (type(c) is TopK and c.coding == "fixed")


def tabulated(mechanism: ThreePoint, dim: int, dtype: Any) -> ThreePoint:
    """The one-sort table of a method over Top-K levels; any other method as it is."""
    ladder = mechanism.ladder()
    if ladder is None or not all(_is_plain_top_k(c) for c in ladder.levels):
        return mechanism
    ks = [c.k if isinstance(c, TopK) else dim for c in ladder.levels]
    prices = [sparse_cost(c.k, dim) if isinstance(c, TopK) else Cost(dim) for c in ladder.levels]
    padding = -len(ks) % 8

    def table(entries: list[Any]) -> jax.Array:
        return jnp.asarray(np.array(entries + entries[-1:] * padding, np.int32))

    return TopKLadder(
        ks=table(ks),
        scalars=table([p.scalars for p in prices]),
        extra_bits=table([p.extra_bits for p in prices]),
        m=jnp.int32(len(ks)),
        zeta=jnp.asarray(ladder.zeta, dtype),
        may_be_silent=jnp.bool_(ladder.may_be_silent),
        level_bits=jnp.int32(ladder.level_bits),
        stands_for=Aside(method=mechanism),
    )
