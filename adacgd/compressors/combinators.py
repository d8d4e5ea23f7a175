"""Compressors made of compressors (theory.md 1.1). Parts draw independently of each other: all rules need that."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors import codes
from adacgd.compressors.base import (
    Coded,
    Compressor,
    Message,
    Unbiased,
    alpha_of,
    brief,
    fetch,
    format_of,
    omega_of,
    refuse_state,
    require_contractive,
    require_count,
    require_fits,
    shared_with,
)
from adacgd.compressors.codes import Format, scatter
from adacgd.compressors.nested import Maybe, Pair, Scaled
from adacgd.compressors.nested import OnSupport as SupportFormat
from adacgd.compressors.sparsifiers import TopK, require_coding, sparse_cost, top
from adacgd.compressors.thresholds import require_share
from adacgd.cost import Cost, total
from adacgd.module import module, static

Numbers = tuple[np.ndarray, ...]


def require_unbiased(owner: str, name: str, part: Any) -> None:
    """An unbiased compressor. Raises TypeError for anything that cannot be one."""
    if isinstance(part, Compressor):
        raise TypeError(f"{owner}({name}={part!r}) is for unbiased compressors; that one is contractive already.")
    refuse_state(f"{owner}({name}=...)", part)
    if isinstance(part, type | str):
        raise TypeError(f"{owner}({name}=...) must be an Unbiased compressor, got {part!r}.")


class _Combined(Coded):
    """What combinators have in common: parts with draws of their own, told what they ask for."""

    @abc.abstractmethod
    def _parts(self) -> tuple[Any, ...]:
        """The compressors that it is made of."""

    @property
    def shares_randomness(self) -> bool:
        """As any of the parts."""
        return any(part.shares_randomness for part in self._parts())

    def _send(self, i: int, key: jax.Array, x: jax.Array, shared: dict[str, Any]) -> Message:
        part = self._parts()[i]
        return part(jax.random.fold_in(key, i), x, **shared_with(part, shared, i))

    def _numbers(self, i: int, key: jax.Array, x: jax.Array, shared: dict[str, Any]) -> Numbers:
        part = self._parts()[i]
        return part.numbers(jax.random.fold_in(key, i), x, **shared_with(part, shared, i))

    def _format(self, i: int, dim: int, float_width: int, workers: int | None) -> Format:
        return format_of(self._parts()[i], dim, float_width, workers)


@module
class Shrunk(_Combined, Compressor):  # type: ignore[override]
    """Q / (1 + omega): the contractive form of an unbiased Q, alpha = 1 / (1 + omega) (theory.md 1.1).

    Equality holds exactly where the variance bound of Q is an equality.
    """

    inner: Unbiased

    def __post_init__(self) -> None:
        require_unbiased("Shrunk", "inner", self.inner)

    def _parts(self) -> tuple[Any, ...]:
        return (self.inner,)

    @property
    def equality(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.inner.equality

    def _factor(self, dim: int, workers: int | None) -> float:
        return 1 / (1 + omega_of(self.inner, dim, workers))

    def __call__(self, key: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """Q(x) / (1 + omega)."""
        sent = self.inner(key, x, **shared_with(self.inner, shared))
        return sent._replace(value=sent.value * self._factor(x.size, shared.get("workers")))

    def alpha(self, dim: int, workers: int | None = None) -> float:
        """1 / (1 + omega)."""
        return self._factor(dim, workers)

    def worst(self, dim: int) -> np.ndarray | None:
        """As the inner one."""
        return self.inner.worst(dim)

    def attained(self, dim: int) -> bool:
        """As the inner one."""
        return self.inner.attained(dim)

    def format(self, dim: int, float_width: int, workers: int | None = None) -> Format:
        """The inner format, and the factor in the header."""
        return Scaled(self._format(0, dim, float_width, workers), self._factor(dim, workers).hex())

    def numbers(self, key: jax.Array, x: jax.Array, **shared: Any) -> Numbers:
        """Those of the inner one."""
        return self.inner.numbers(key, x, **shared_with(self.inner, shared))  # type: ignore[attr-defined]


@module
class Induced(_Combined, Unbiased):  # type: ignore[override]
    """C(x) + Q(x - C(x)): unbiased with omega (1 - alpha); both messages are sent (theory.md 1.1).

    (Horvath, Richtarik, A better alternative to error feedback.) Attained at the worst x of C where Q loses alike of
    every x.
    """

    compressor: Compressor
    unbiased: Unbiased

    def __post_init__(self) -> None:
        require_contractive("Induced", "compressor", self.compressor)
        require_unbiased("Induced", "unbiased", self.unbiased)

    def _parts(self) -> tuple[Any, ...]:
        return self.compressor, self.unbiased

    def __call__(self, key: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """The sum of both."""
        return _both(self, key, x, shared)

    def omega(self, dim: int, workers: int | None = None) -> float:
        """omega (1 - alpha)."""
        return omega_of(self.unbiased, dim, workers) * (1 - alpha_of(self.compressor, dim, workers))

    def worst(self, dim: int) -> np.ndarray | None:
        """As the contractive part."""
        return self.compressor.worst(dim)

    def attained(self, dim: int) -> bool:
        """Where the contractive part's is, if the other loses alike of every x."""
        return self.unbiased.equality and self.compressor.attained(dim)

    def format(self, dim: int, float_width: int, workers: int | None = None) -> Format:
        """Both."""
        return Pair(self._format(0, dim, float_width, workers), self._format(1, dim, float_width, workers))

    def numbers(self, key: jax.Array, x: jax.Array, **shared: Any) -> Numbers:
        """Those of both."""
        return _both_numbers(self, key, x, shared)


def _both(owner: _Combined, key: jax.Array, x: jax.Array, shared: dict[str, Any]) -> Message:
    """C1(x) + C2(x - C1(x)), both sent."""
    first = owner._send(0, key, x, shared)
    second = owner._send(1, key, x - first.value, shared)
    return Message(codes.plus(jnp, first.value, second.value), total([first.cost, second.cost]))


def _both_numbers(owner: _Combined, key: jax.Array, x: jax.Array, shared: dict[str, Any]) -> Numbers:
    rest = x - owner._send(0, key, x, shared).value
    return owner._numbers(0, key, x, shared) + owner._numbers(1, key, rest, shared)


@module
class Residual(_Combined, Compressor):  # type: ignore[override]
    """C1(x) + C2(x - C1(x)), both sent: alpha = 1 - (1 - alpha1)(1 - alpha2) (theory.md 1.1).

    Attained at the worst x of C1 where C2 loses alike of every x. Top-K1 and then Top-K2 is exactly Top-(K1 + K2),
    whose larger alpha is claimed: it is attained by a flat x.
    """

    first: Compressor
    second: Compressor

    def __post_init__(self) -> None:
        require_contractive("Residual", "first", self.first)
        require_contractive("Residual", "second", self.second)

    def _parts(self) -> tuple[Any, ...]:
        return self.first, self.second

    @property
    def _nested(self) -> bool:
        return isinstance(self.first, TopK) and isinstance(self.second, TopK)

    def __call__(self, key: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """The sum of both."""
        return _both(self, key, x, shared)

    def alpha(self, dim: int, workers: int | None = None) -> float:
        """The rule, or the exact (K1 + K2)/d."""
        a1, a2 = alpha_of(self.first, dim, workers), alpha_of(self.second, dim, workers)
        return min(a1 + a2, 1.0) if self._nested else 1 - (1 - a1) * (1 - a2)

    def worst(self, dim: int) -> np.ndarray | None:
        """As the first part."""
        return self.first.worst(dim)

    def attained(self, dim: int) -> bool:
        """Where the first part's is, if the second loses alike of every x; for Top-K twice always."""
        return self._nested or (self.second.equality and self.first.attained(dim))

    def format(self, dim: int, float_width: int, workers: int | None = None) -> Format:
        """Both."""
        return Pair(self._format(0, dim, float_width, workers), self._format(1, dim, float_width, workers))

    def numbers(self, key: jax.Array, x: jax.Array, **shared: Any) -> Numbers:
        """Those of both."""
        return _both_numbers(self, key, x, shared)


@module
class OnSupport(_Combined, Compressor):  # type: ignore[override]
    """Top-K, then another compressor on the K values alone, as a vector of length K (theory.md 1.1, 1.2).

    An unbiased Q is scaled by 1/(1 + omega): alpha = (K/d)/(1 + omega). With `scaled=False` it is not, which needs
    omega < 1 at length K: alpha = (1 - omega) K/d. A contractive C: alpha = (K/d) alpha_C. (Basu et al.,
    Qsparse-local-SGD.) Attained by a flat x where the K values are worst for the inner one.
    """

    k: int = static()
    inner: Compressor | Unbiased
    scaled: bool = static(default=True)
    coding: str = static(default="fixed")
    __repr__ = brief

    def __post_init__(self) -> None:
        require_count("OnSupport", "k", self.k)
        require_coding("OnSupport", self.coding)
        refuse_state("OnSupport(inner=...)", self.inner)
        if isinstance(self.inner, type | str):
            raise TypeError(f"OnSupport(inner=...) must be a compressor, got {self.inner!r}.")

    def _parts(self) -> tuple[Any, ...]:
        """The compressor of the values."""
        shrinks = self.scaled and isinstance(self.inner, Unbiased)
        return (Shrunk(self.inner) if shrinks else self.inner,)  # type: ignore[arg-type]

    def _support(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        require_fits("OnSupport", "k", self.k, x.size)
        kept = top(x, jnp.int32(self.k))
        return kept, jnp.nonzero(kept, size=self.k)[0]

    def __call__(self, key: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """The K largest as the inner one sends them, zeros elsewhere."""
        kept, indices = self._support(x)
        sent = self._send(0, key, x[indices], shared)
        places = sparse_cost(self.k, x.size, self.coding, kept)._replace(scalars=0)
        return Message(scatter(jnp, indices, sent.value, x.size, x.dtype), total([sent.cost, places]))

    def alpha(self, dim: int, workers: int | None = None) -> float:
        """K/d of the inner one's."""
        require_fits("OnSupport", "k", self.k, dim)
        part = self._parts()[0]
        if isinstance(part, Compressor):
            return self.k / dim * alpha_of(part, self.k, workers)
        omega = omega_of(part, self.k, workers)
        if omega >= 1:
            raise ValueError(f"{self!r}: unscaled needs omega < 1 at length {self.k}, got {omega:g}; use scaled=True.")
        return (1 - omega) * self.k / dim

    def worst(self, dim: int) -> np.ndarray | None:
        """Flat, at the magnitude that is worst for the inner one."""
        values = self.inner.worst(self.k)
        return None if values is None else np.full(dim, np.max(np.abs(values)))

    def attained(self, dim: int) -> bool:
        """Where the worst values of the inner one are flat."""
        values = self.inner.worst(self.k)
        return self.inner.attained(self.k) and values is not None and bool(np.ptp(np.abs(values)) == 0)

    def format(self, dim: int, float_width: int, workers: int | None = None) -> Format:
        """Indices, and the inner format at length K."""
        return SupportFormat(self.k, self.coding, self._format(0, self.k, float_width, workers))

    def numbers(self, key: jax.Array, x: jax.Array, **shared: Any) -> Numbers:
        """The indices, and the numbers of the inner one."""
        indices = self._support(x)[1]
        return fetch(indices) + self._numbers(0, key, x[indices], shared)


@module
class Composed(_Combined, Unbiased):  # type: ignore[override]
    """Q2(Q1(x)), of which the message of Q2 is sent: unbiased with (1 + omega1)(1 + omega2) - 1 (theory.md 1.1).

    Attained at the worst x of Q1 where Q2 loses alike of every x. Rand-K after Perm-K: omega = (d/K) n - 1.
    """

    inner: Unbiased
    outer: Unbiased

    def __post_init__(self) -> None:
        require_unbiased("Composed", "inner", self.inner)
        require_unbiased("Composed", "outer", self.outer)

    def _parts(self) -> tuple[Any, ...]:
        return self.inner, self.outer

    def __call__(self, key: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """The outer message of the inner value."""
        return self._send(1, key, self._send(0, key, x, shared).value, shared)

    def omega(self, dim: int, workers: int | None = None) -> float:
        """(1 + omega1)(1 + omega2) - 1."""
        return (1 + omega_of(self.inner, dim, workers)) * (1 + omega_of(self.outer, dim, workers)) - 1

    def worst(self, dim: int) -> np.ndarray | None:
        """As the inner one."""
        return self.inner.worst(dim)

    def attained(self, dim: int) -> bool:
        """Where the inner one's is, if the outer loses alike of every x."""
        return self.outer.equality and self.inner.attained(dim)

    def format(self, dim: int, float_width: int, workers: int | None = None) -> Format:
        """That of the outer one."""
        return self._format(1, dim, float_width, workers)

    def numbers(self, key: jax.Array, x: jax.Array, **shared: Any) -> Numbers:
        """Those of the outer one."""
        return self._numbers(1, key, self._send(0, key, x, shared).value, shared)


@module
class Participation(_Combined, Compressor):  # type: ignore[override]
    """C(x) with probability p, else nothing at all, level 0: alpha = p alpha_C (theory.md 1.1).

    Attained where C's is. Silence costs nothing: the receiver sees that no message came. In a mechanism y must still be
    the gradient at the previous iterate, not at the last active round.
    """

    compressor: Compressor
    p: float | jax.Array

    def __post_init__(self) -> None:
        require_contractive("Participation", "compressor", self.compressor)
        require_share("Participation", "p", self.p)

    def _parts(self) -> tuple[Any, ...]:
        return (self.compressor,)

    @property
    def nonexpansive(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.compressor.nonexpansive

    @property
    def equality(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.compressor.equality

    @property
    def verbatim(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return getattr(self.compressor, "verbatim", False)

    def _active(self, key: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(key, 1)) < self.p

    def __call__(self, key: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """C(x) or zeros."""
        sent = self._send(0, key, x, shared)
        silent = Message(jnp.zeros_like(x), Cost(0, 0), 0)
        return jax.tree.map(lambda a, b: jnp.where(self._active(key), a, b), sent, silent)

    def alpha(self, dim: int, workers: int | None = None) -> float:
        """p alpha_C."""
        return float(self.p) * alpha_of(self.compressor, dim, workers)

    def worst(self, dim: int) -> np.ndarray | None:
        """As the inner one."""
        return self.compressor.worst(dim)

    def attained(self, dim: int) -> bool:
        """As the inner one."""
        return self.compressor.attained(dim)

    def format(self, dim: int, float_width: int, workers: int | None = None) -> Format:
        """The inner format or nothing."""
        return Maybe(self._format(0, dim, float_width, workers))

    def numbers(self, key: jax.Array, x: jax.Array, **shared: Any) -> Numbers:
        """Whether, and those of the inner one, which stand empty if not."""
        active = fetch(self._active(key))[0].astype(np.uint8)[None]
        if active[0]:
            return (active, *self._numbers(0, key, x, shared))
        inner = self._format(0, x.size, 8 * x.dtype.itemsize, shared.get("workers"))
        return (active, *(np.zeros(0) for _ in range(inner.arity(x.size))))
