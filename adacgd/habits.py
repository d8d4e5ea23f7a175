"""Habits that users rely on beside the constant: each is tried, and told with what was found."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adacgd import wire
from adacgd.compressors.base import Message, NoFormat
from adacgd.estimators import Estimator
from adacgd.infinities import svd_of_infinity
from adacgd.laws import ask, panel, told
from adacgd.mechanisms import ThreePoint

CALLS = 64  # with one key
ROWS = 64  # that are mapped over at once


class Finding(NamedTuple):
    """One habit: kept (True), broken (False), or only told (None)."""

    habit: str
    ok: bool | None
    words: str

    def __str__(self) -> str:
        mark = {True: "ok", False: "BROKEN", None: "told"}[self.ok]
        return f"{mark:8} {self.habit}" + (f": {self.words}" if self.words else "")


@functools.partial(jax.jit, static_argnames="workers")
def _compiled(target: Any, key: jax.Array, vectors: tuple[jax.Array, ...], workers: int) -> Message:
    return ask(target, key, vectors, workers)


@functools.partial(jax.jit, static_argnames="workers")
def _mapped(target: Any, keys: jax.Array, vectors: tuple[jax.Array, ...], workers: int) -> Message:
    return jax.vmap(lambda key, vectors: ask(target, key, vectors, workers))(keys, vectors)


@jax.jit
def _repeated(key: jax.Array) -> jax.Array:
    """(ROWS,)"""
    return jnp.broadcast_to(key, ROWS)


class _Court(NamedTuple):
    """The target, asked in three ways; a map is asked at h = y = 0, where it meets x bare."""

    target: Any
    key: jax.Array
    inputs: np.ndarray  # (count, d); on the host, where an operation on them is no program to compile
    workers: int

    def vectors(self, x: np.ndarray) -> tuple[jax.Array, ...]:
        """(x,), or (h, y, x) of any leading shape."""
        zero = np.zeros_like(x)
        return tuple(jnp.asarray(v) for v in ((zero, zero, x) if self.is_map else (x,)))

    def with_first(self, value: float) -> np.ndarray:
        """A random input with another first entry."""
        return np.concatenate([[value], self.inputs[5, 1:]])

    @property
    def is_map(self) -> bool:
        """Whether it takes h and y too."""
        return isinstance(self.target, ThreePoint | Estimator)

    def plain(self, x: np.ndarray) -> Message:
        """Operation by operation."""
        return ask(self.target, self.key, self.vectors(x), self.workers)

    def compiled(self, x: np.ndarray) -> Message:
        """By one program."""
        return _compiled(self.target, self.key, self.vectors(x), self.workers)

    def mapped(self, keys: jax.Array, rows: np.ndarray) -> Message:
        """All rows at once."""
        return _mapped(self.target, keys, self.vectors(rows), self.workers)


def of(target: Any, key: jax.Array, dim: int, workers: int = 4) -> tuple[Finding, ...]:
    """All habits of a compressor or a map."""
    court = _Court(target, key, panel(key, dim), workers)
    return (_zero(court), _same_key(court), _routes(court), _not_finite(court), _support(court), _price(court),
            _homogeneity(court))  # fmt: skip


def _zero(court: _Court) -> Finding:
    value = np.asarray(court.compiled(np.zeros(court.inputs.shape[1])).value)
    good = bool(np.all(value == 0))
    return Finding("zero goes to zero", good, "" if good else f"it becomes {value.ravel()[:4]}")


def _same_key(court: _Court) -> Finding:
    """Called CALLS times, compiled not at all: a part that looks at global state answers otherwise some time."""
    first = np.asarray(court.plain(court.inputs[5]).value)
    for i in range(2, CALLS + 1):
        if not np.array_equal(np.asarray(court.plain(court.inputs[5]).value), first, equal_nan=True):
            words = f"call {i} differs from the first, with the same key: it depends on other state"
            return Finding("the key decides", False, words)
    return Finding("the key decides", True, "")


def _routes(court: _Court) -> Finding:
    """Plain, compiled and mapped: equal to rounding, with the same price."""
    rows = np.resize(court.inputs, (ROWS, court.inputs.shape[1]))
    mapped = jax.device_get(court.mapped(_repeated(court.key), rows))
    for i, x in enumerate(court.inputs):
        first = court.compiled(x)
        routes = [jax.tree.map(lambda leaf, i=i: leaf[i], mapped)]
        if i == len(court.inputs) - 1:
            routes.append(court.plain(x))
        for other in routes:
            if not _close(other.value, first.value):
                return Finding("plain, compiled and mapped agree", False, f"they differ on input {i} of the panel")
            if [int(c) for c in other.cost] != [int(c) for c in first.cost]:
                return Finding("plain, compiled and mapped agree", False, f"their prices differ on input {i}")
    return Finding("plain, compiled and mapped agree", True, "")


def _close(a: Any, b: Any) -> bool:
    """Equal to rounding at the scale of the vector: an entry near zero may be what two large ones leave."""
    scale = np.max(np.abs(np.asarray(b)), initial=0.0)
    return np.allclose(a, b, rtol=1e-12, atol=1e-12 * scale if np.isfinite(scale) else 0, equal_nan=True)


def _not_finite(court: _Court) -> Finding:
    """NaN or infinity in x must be seen in the value on some of ROWS draws, or the coordinate not be sent at all."""
    keys = jax.random.split(court.key, ROWS)
    for bad in (np.nan, np.inf):
        rows = np.tile(court.with_first(bad), (ROWS, 1))
        met = svd_of_infinity(
            lambda *vectors: _mapped(court.target, keys, vectors, court.workers), *court.vectors(rows)
        )
        if met:
            remedy = "decompose jnp.where(jnp.all(jnp.isfinite(x)), x, 0) and return NaN where x was not finite"
            return Finding("NaN and infinity are shown", False, f"an SVD of {bad} may never return; {remedy}")
        if met is None:
            return Finding("NaN and infinity", None, "not tried: an SVD in a loop might never return from them")
        sent = np.asarray(court.mapped(keys, rows).value)
        if np.all(np.isfinite(sent)) and np.any(sent[:, 0] != 0):
            return Finding("NaN and infinity are shown", False, f"{bad} arrives as {sent[:, 0].max():.3g}")
    return Finding("NaN and infinity are shown", True, "")


def _support(court: _Court) -> Finding:
    """At most k entries of what has a k and keeps entries as they are, ties or not; others' k may mean what it will."""
    k = getattr(court.target, "k", None)
    values = np.stack([np.asarray(court.compiled(x).value) for x in court.inputs])
    if not isinstance(k, int) or np.any((values != 0) & (values != court.inputs)):
        return Finding("support", None, "it does not keep k entries as they are")
    most = int(np.count_nonzero(values, axis=1).max())
    return Finding("at most k entries are sent", most <= k, "" if most <= k else f"{most} are sent where k = {k}")


def _price(court: _Court) -> Finding:
    """The bytes of a message, less header and padding, are its claimed cost; and they tell its value, bit for bit."""
    try:
        return _priced(court)
    except NoFormat:
        return Finding("price", None, "taken as claimed: it has no byte format" + _unpriced(court))


def _priced(court: _Court) -> Finding:
    private, shared = told(court.target, court.key, court.workers)
    dim = court.inputs.shape[1]
    for x in (np.zeros(dim), *court.inputs, court.with_first(np.nan)):
        message = court.compiled(x)
        held: dict[str, Any] = {"h": np.zeros(dim), "y": np.zeros(dim)} if court.is_map else {}
        blob = wire.encode(court.target, private, x, **held, **shared)
        claimed = 64 * int(message.cost.scalars) + int(message.cost.extra_bits)
        written = 8 * len(blob) - wire.header_bits(blob) - wire.padding_bits(blob)
        if claimed != written:
            return Finding("the price is that of the bytes", False, f"{claimed} bits claimed, {written} written")
        value = wire.decode(blob, h=np.zeros(dim)) if court.is_map else wire.decode(blob)
        if not np.array_equal(value, np.asarray(message.value), equal_nan=True):
            return Finding("the bytes tell the value", False, "the receiver makes another vector of them")
    return Finding("the price is that of the bytes", True, "")


def _unpriced(court: _Court) -> str:
    """What an own price should be asked: how more different numbers than it has scalars fit into its bits; or ""."""
    for i, x in enumerate(court.inputs):
        message = court.compiled(x)
        scalars, bits = (int(c) for c in message.cost)
        numbers = len(np.unique(np.abs(value := np.asarray(message.value))[value != 0]))
        if numbers > scalars and not court.is_map:
            return f"; of input {i} of the panel {numbers} different numbers arrive for {scalars} scalars, {bits} bits"
    return ""


def _homogeneity(court: _Court) -> Finding:
    """C(4 x) = 4 C(x): many have it, none must."""
    for x in court.inputs:
        a, b = (np.asarray(court.compiled(v).value) for v in (x, 4.0 * x))
        if not _close(4 * a, b):
            return Finding("positively homogeneous", None, "no")
    return Finding("positively homogeneous", None, "yes")
