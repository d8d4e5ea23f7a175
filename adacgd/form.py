"""The form that an own compressor or map must have, told in its own terms before anything is compiled."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.base import Compressor, Message, Unbiased
from adacgd.cost import Cost
from adacgd.mechanisms import ThreePoint

NOT_TRACEABLE = (
    jax.errors.ConcretizationTypeError,  # of which a Python `if` is one kind
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


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


def require_modules(link: Any, place: str) -> None:
    """Nothing in the tree that jax cannot carry into a compiled program. Raises TypeError."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(link)[0]:
        if isinstance(leaf, Compressor | Unbiased | ThreePoint):
            raise TypeError(f"{place}: {type(leaf).__name__} is not a module; write @ac.module above its class.")
        if not isinstance(leaf, bool | int | float | complex | np.ndarray | np.generic | jax.Array):
            raise TypeError(
                f"{place}: {type(link).__name__}{jax.tree_util.keystr(path)} is {leaf!r}; a field holds numbers, "
                "arrays or modules, and anything else is declared with `= ac.static()`."
            )


def traceable(place: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Call the function without numbers; raises TypeError where its code needs them while jax traces it."""
    try:
        jax.eval_shape(function, *arguments)
    except NOT_TRACEABLE as error:
        raise TypeError(
            f"{place}: its code treats a value of the run as a Python or NumPy number (`if`, `and`, `float`, `np.`), "
            "and values are known only when the compiled program runs; use jnp.where(condition, a, b) and jax.numpy, "
            "and declare a field that decides a shape with `= ac.static()`."
        ) from error
