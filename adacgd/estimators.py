"""What the loop runs on each link: an estimator with a memory, and the adapter that makes one of a three point map."""

import abc
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from adacgd.adaptive import TopKLadder, tabulated
from adacgd.compressors.base import Compressor, Draw, Message, Unbiased, no_bytes, refuse_state, shared_with
from adacgd.form import checked, require_modules, traceable
from adacgd.mechanisms import AB, ThreePoint
from adacgd.module import module
from adacgd.steps import Sent

_T = TypeVar("_T")


class Estimator(abc.ABC):
    """How one sender keeps its receiver informed. The receiver holds h; `memory` is what else the sender remembers.

    of_mean: (A, B) speak of the mean over workers, E|g^+ - grad f(x^+)|^2 <= (1 - A)|g - grad f(x)|^2 + B mean_i
    |x_i - y_i|^2, and of no single one; then |g - grad f|^2 is what `Trace.G` holds and `verify` looks at.
    starts: the values of `simulate(init=...)` for which it is the method that its paper and its theorem speak of.
    """

    of_mean: bool = False
    starts: tuple[str, ...] = ("exact", "compressed", "zero")

    @abc.abstractmethod
    def init(self, h: jax.Array) -> Any:
        """The memory (a pytree) after the receiver was given h, (d,): x itself, or zeros (`simulate(init=...)`)."""

    @abc.abstractmethod
    def step(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> tuple[Message, Any]:
        """The message whose value the receiver holds next, and the new memory. h, y, x: (d,) as in `ThreePoint`."""

    def sends(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> Sent:
        """What travels in the message of `step` with the same arguments. Raises TypeError where no bytes are known."""
        no_bytes(self)

    @abc.abstractmethod
    def constants(self, dim: int) -> Any:
        """(A, B) of theory.md section 2, or what else a theorem of `adacgd.theory` asks for, or `theory.NoTheorem`."""

    def shift(self, memory: Any, h: jax.Array) -> jax.Array | None:
        """What stands for h_i where a theorem measures mean |h_i - grad f_i(x*)|^2, (d,); None where none does."""
        return None


@module
class Lifted(Estimator):
    """A three point map as an estimator: it remembers nothing but what the loop holds anyway."""

    map: ThreePoint

    def init(self, h: jax.Array) -> tuple[()]:
        """Nothing."""
        return ()

    def step(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> tuple[Message, Any]:
        """C_{h,y}(x), told no more of the randomness than it asks for."""
        return checked(self.map, self.map(draw.private, h, y, x, **shared_with(self.map, draw.shared())), x), memory

    def sends(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> Sent:
        """What the map sends."""
        return self.map.sends(draw.private, h, y, x, **shared_with(self.map, draw.shared()))

    def constants(self, dim: int) -> AB:
        """Those of the map."""
        return self.map.constants(dim)


def in_precision(link: _T, dtype: Any) -> _T:
    """Its Python numbers as arrays, floats in the precision of the run, so that a sweep can stack them."""

    def array(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype) if isinstance(leaf, float) else jnp.asarray(leaf)

    return jax.tree.map(array, link)


def lifted(link: Any, where: str, dim: int, dtype: Any, owner: str = "simulate") -> Estimator:
    """An uplink or downlink in the form the loop knows; `owner(where=...)` is its name in errors. Raises TypeError."""
    if isinstance(link, Compressor | Unbiased):
        wrapped = f"EF21({link!r})" if isinstance(link, Compressor) else f"EF21(Shrunk({link!r}))"
        raise TypeError(f"{owner}({where}={link!r}) is a compressor, not a mechanism; use {wrapped}.")
    refuse_state(f"{owner}({where}=...)", link)
    if isinstance(link, type):
        raise TypeError(f"{owner}({where}=...) takes an object, got the class {link.__name__}; call it first.")
    if not isinstance(link, Estimator | ThreePoint):
        raise TypeError(f"{owner}({where}=...) must be a three point map such as EF21(TopK(3)), got {link!r}.")
    require_modules(link, f"{owner}({where}=...)")
    if isinstance(link, Estimator):
        return in_precision(link, dtype)
    return in_precision(Lifted(tabulated(link, dim, dtype)), dtype)


def rehearse(link: Estimator, place: str, key: jax.Array, dim: int, dtype: Any, workers: int) -> None:
    """One message made without numbers, so that what an own map breaks is told before anything is compiled."""
    if isinstance(link, Lifted) and isinstance(link.map, TopKLadder):
        return  # nothing in it is the caller's own

    def message(link: Estimator, key: jax.Array, count: jax.Array, x: jax.Array) -> Any:
        return link.step(Draw(key, key, count, count, workers, x, x[0]), link.init(x), x, x, x)

    count, x = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((dim,), dtype)
    traceable(place, message, link, key, count, x)
