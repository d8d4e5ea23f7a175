"""What the loop runs on each link: an estimator with a memory, and the adapter that makes one of a three point map."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.adaptive import TopKLadder, tabulated
from adacgd.compressors.base import Compressor, Draw, Message, Unbiased
from adacgd.cost import Cost
from adacgd.mechanisms import AB, ThreePoint
from adacgd.module import module

NOT_TRACEABLE = (
    jax.errors.ConcretizationTypeError,  # of which a Python `if` is one kind
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class Estimator(abc.ABC):
    """How one sender keeps its receiver informed. The receiver holds h; `memory` is what else the sender remembers.

    of_mean: (A, B) speak of the mean over workers, E|g^+ - grad f(x^+)|^2 <= (1 - A)|g - grad f(x)|^2 + B mean_i
    |x_i - y_i|^2, and of no single one; then |g - grad f|^2 is what `Trace.G` holds and `verify` looks at.
    """

    of_mean: bool = False

    @abc.abstractmethod
    def init(self, x: jax.Array) -> Any:
        """The memory (a pytree) after the receiver was given x, (d,), whole."""

    @abc.abstractmethod
    def step(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> tuple[Message, Any]:
        """The message whose value the receiver holds next, and the new memory. h, y, x: (d,) as in `ThreePoint`."""

    @abc.abstractmethod
    def constants(self, dim: int) -> AB:
        """(A, B) of theory.md section 2."""


@module
class Lifted(Estimator):
    """A three point map as an estimator: it remembers nothing but what the loop holds anyway."""

    map: ThreePoint

    def init(self, x: jax.Array) -> tuple[()]:
        """Nothing."""
        return ()

    def step(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> tuple[Message, Any]:
        """C_{h,y}(x), told no more of the randomness than it asks for."""
        shared = draw.shared() if self.map.shares_randomness else {}
        return checked(self.map, self.map(draw.private, h, y, x, **shared), x), memory

    def constants(self, dim: int) -> AB:
        """Those of the map."""
        return self.map.constants(dim)


def checked(origin: Any, message: Any, x: jax.Array) -> Message:
    """The message with counts as int32 scalars, or an error that says how an own map broke the form."""
    name = type(origin).__name__
    if not isinstance(message, Message) or not isinstance(message.cost, Cost):
        raise TypeError(f"{name} must return Message(value, Cost(scalars, extra_bits), level), got {message!r}.")
    if jnp.shape(message.value) != x.shape or message.value.dtype != x.dtype:
        raise TypeError(
            f"{name} must return a value of shape {x.shape} and dtype {x.dtype}, "
            f"got {jnp.shape(message.value)} {message.value.dtype}."
        )
    scalars, extra_bits = (_count(name, part, value) for part, value in message.cost._asdict().items())
    return Message(message.value, Cost(scalars, extra_bits), jnp.asarray(message.level, jnp.int32))


def _count(name: str, part: str, value: Any) -> jax.Array:
    """A count as () int32; an error where it is no integer or too large for one message."""
    if isinstance(value, int) and not 0 <= value < 2**31:
        raise ValueError(f"{name}: Cost({part}={value}) must lie in [0, 2**31) for one message.")
    if not jnp.issubdtype(jnp.result_type(value), jnp.integer) or jnp.shape(value) != ():
        raise TypeError(f"{name}: Cost({part}=...) must be one integer, got {value!r}.")
    return jnp.asarray(value, jnp.int32)


def in_precision(link: Estimator, dtype: Any) -> Estimator:
    """Its Python numbers as arrays, floats in the precision of the run, so that a sweep can stack them."""

    def array(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype) if isinstance(leaf, float) else jnp.asarray(leaf)

    return jax.tree.map(array, link)


def lifted(link: Any, where: str, dim: int, dtype: Any, owner: str = "simulate") -> Estimator:
    """An uplink or downlink in the form the loop knows; `owner(where=...)` is its name in errors. Raises TypeError."""
    if isinstance(link, Compressor | Unbiased):
        wrapped = f"EF21({link!r})" if isinstance(link, Compressor) else f"EF21(Shrunk({link!r}))"
        raise TypeError(f"{owner}({where}={link!r}) is a compressor, not a mechanism; use {wrapped}.")
    if isinstance(link, type):
        raise TypeError(f"{owner}({where}=...) takes an object, got the class {link.__name__}; call it first.")
    if not isinstance(link, Estimator | ThreePoint):
        raise TypeError(f"{owner}({where}=...) must be a three point map such as EF21(TopK(3)), got {link!r}.")
    _require_modules(link, f"{owner}({where}=...)")
    if isinstance(link, Estimator):
        return in_precision(link, dtype)
    return in_precision(Lifted(tabulated(link, dim, dtype)), dtype)


def _require_modules(link: Any, place: str) -> None:
    """Nothing in the tree that jax cannot carry into a compiled program. Raises TypeError."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(link)[0]:
        if isinstance(leaf, Compressor | Unbiased | ThreePoint | Estimator):
            raise TypeError(f"{place}: {type(leaf).__name__} is not a module; write @ac.module above its class.")
        if not isinstance(leaf, bool | int | float | complex | np.ndarray | np.generic | jax.Array):
            raise TypeError(
                f"{place}: {type(link).__name__}{jax.tree_util.keystr(path)} is {leaf!r}; a field holds numbers, "
                "arrays or modules, and anything else is declared with `= ac.static()`."
            )


def rehearse(link: Estimator, place: str, key: jax.Array, dim: int, dtype: Any, workers: int) -> None:
    """One message made without numbers, so that what an own map breaks is told before anything is compiled."""
    if isinstance(link, Lifted) and isinstance(link.map, TopKLadder):
        return  # nothing in it is the caller's own

    def message(link: Estimator, key: jax.Array, count: jax.Array, x: jax.Array) -> Any:
        return link.step(Draw(key, key, count, count, workers), link.init(x), x, x, x)

    count, x = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((dim,), dtype)
    try:
        jax.eval_shape(message, link, key, count, x)
    except NOT_TRACEABLE as error:
        raise TypeError(
            f"{place}: its code treats a value of the run as a Python or NumPy number (`if`, `and`, `float`, `np.`), "
            "and values are known only when the compiled program runs; use jnp.where(condition, a, b) and jax.numpy."
        ) from error
