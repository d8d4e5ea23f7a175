"""Habits that users rely on beside the constant: each is tried, and told with what was found."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.base import Message
from adacgd.laws import panel
from adacgd.mechanisms import ThreePoint


class Finding(NamedTuple):
    """One habit: kept (True), broken (False), or only told (None)."""

    habit: str
    ok: bool | None
    words: str

    def __str__(self) -> str:
        mark = {True: "ok", False: "BROKEN", None: "told"}[self.ok]
        return f"{mark:8} {self.habit}" + (f": {self.words}" if self.words else "")


@jax.jit
def _compiled(target: Any, key: jax.Array, vectors: tuple[jax.Array, ...]) -> Message:
    return target(key, *vectors)


@jax.jit
def _mapped(target: Any, keys: jax.Array, vectors: tuple[jax.Array, ...]) -> Message:
    return jax.vmap(target)(keys, *vectors)


def of(target: Any, key: jax.Array, dim: int) -> tuple[Finding, ...]:
    """All habits of a compressor or a map; a map is asked at h = y = 0, where it meets x bare."""
    ask = lambda x: (jnp.zeros_like(x), jnp.zeros_like(x), x) if isinstance(target, ThreePoint) else (x,)
    inputs = panel(key, dim)
    return (
        _zero(target, key, ask(jnp.zeros(dim))),
        _same_key(target, key, ask(inputs[5])),
        _routes(target, key, [ask(x) for x in inputs]),
        _not_finite(target, key, ask, inputs[5]),
        _support(target, key, [ask(x) for x in inputs]),
        _homogeneity(target, key, [(ask(x), ask(4.0 * x)) for x in inputs]),
    )


def _zero(target: Any, key: jax.Array, vectors: tuple[jax.Array, ...]) -> Finding:
    value = np.asarray(_compiled(target, key, vectors).value)
    good = bool(np.all(value == 0))
    return Finding("zero goes to zero", good, "" if good else f"it becomes {value.ravel()[:4]}")


def _same_key(target: Any, key: jax.Array, vectors: tuple[jax.Array, ...]) -> Finding:
    """Called twice, compiled not at all: a part that looks at global state answers otherwise the second time."""
    first, second = (np.asarray(target(key, *vectors).value) for _ in range(2))
    good = np.array_equal(first, second, equal_nan=True)
    return Finding("the key decides", good, "" if good else "two calls with one key differ: it depends on other state")


def _routes(target: Any, key: jax.Array, inputs: list[tuple[jax.Array, ...]]) -> Finding:
    """Plain, compiled and mapped: equal to rounding, with the same price."""
    rows = tuple(jnp.stack(column) for column in zip(*inputs, strict=True))
    mapped = _mapped(target, jnp.stack([key] * len(inputs)), rows)
    for i, vectors in enumerate(inputs):
        routes = [_compiled(target, key, vectors), jax.tree.map(lambda leaf, i=i: _row(leaf, i, len(inputs)), mapped)]
        if i == len(inputs) - 1:
            routes.append(target(key, *vectors))
        for other in routes[1:]:
            if not np.allclose(other.value, routes[0].value, rtol=1e-12, atol=0, equal_nan=True):
                return Finding("plain, compiled and mapped agree", False, f"they differ on input {i} of the panel")
            if [int(c) for c in other.cost] != [int(c) for c in routes[0].cost]:
                return Finding("plain, compiled and mapped agree", False, f"their prices differ on input {i}")
    return Finding("plain, compiled and mapped agree", True, "")


def _row(leaf: Any, i: int, length: int) -> Any:
    return leaf[i] if jnp.ndim(leaf) and jnp.shape(leaf)[0] == length else leaf


def _not_finite(target: Any, key: jax.Array, ask: Any, x: jax.Array) -> Finding:
    """NaN or infinity in x must be seen in the value on some draw in 64, or the coordinate not be sent at all."""
    for bad in (jnp.nan, jnp.inf):
        vectors = ask(x.at[0].set(bad))
        keys = jax.random.split(key, 64)
        rows = tuple(jnp.broadcast_to(v, (64, *v.shape)) for v in vectors)
        sent = np.asarray(_mapped(target, keys, rows).value)
        if np.all(np.isfinite(sent)) and np.any(sent[:, 0] != 0):
            return Finding("NaN and infinity are shown", False, f"{bad} arrives as {sent[:, 0].max():.3g}")
    return Finding("NaN and infinity are shown", True, "")


def _support(target: Any, key: jax.Array, inputs: list[tuple[jax.Array, ...]]) -> Finding:
    """At most k entries of what says that it keeps k, ties or not."""
    k = getattr(target, "k", None)
    if not isinstance(k, int):
        return Finding("support", None, "it names no k")
    most = max(int(np.count_nonzero(np.asarray(_compiled(target, key, v).value))) for v in inputs)
    return Finding("at most k entries are sent", most <= k, "" if most <= k else f"{most} are sent where k = {k}")


def _homogeneity(target: Any, key: jax.Array, pairs: list[Any]) -> Finding:
    """C(4 x) = 4 C(x): many have it, none must."""
    for one, four in pairs:
        a, b = (np.asarray(_compiled(target, key, v).value) for v in (one, four))
        if not np.allclose(4 * a, b, rtol=1e-12, atol=0, equal_nan=True):
            return Finding("positively homogeneous", None, "no")
    return Finding("positively homogeneous", None, "yes")
