"""What a compressor may be called with, checked in one place around the methods of every class, own ones too.

The checks look at Python types and shapes alone, so that a compiled program is the same with and without them.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def with_checks(cls: type) -> None:
    """Put the checks around the call, `alpha` and `omega` of a class, where they are not there already."""
    for name, guard in (("__call__", _call), ("alpha", _constant), ("omega", _constant)):
        method = getattr(cls, name, None)
        done = getattr(method, "_is_checked", False) or getattr(method, "__isabstractmethod__", False)
        if method is not None and not done and not isinstance(cls.__dict__.get(name), staticmethod | classmethod):
            checked = guard(method)
            checked._is_checked = True  # type: ignore[attr-defined]
            setattr(cls, name, checked)


def _call(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, key: Any, x: Any, *more: Any, **shared: Any) -> Any:
        _require_vector(self, x)
        try:
            return method(self, key, x, *more, **shared)
        except TypeError as error:
            for name, value in {"key": key, "common": shared.get("common")}.items():
                if isinstance(value, int | np.integer):
                    raise TypeError(
                        f"{self!r}({name}=...) must be a JAX key, got the integer {value!r}; "
                        f"pass jax.random.key({value!r})."
                    ) from error
            raise

    return call


def _require_vector(owner: Any, x: Any) -> None:
    """A (d,) array of floats. Raises TypeError or ValueError."""
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if shape is None or dtype is None:
        raise TypeError(
            f"{owner!r}(x=...) must be a (d,) array, got {type(x).__name__} {x!r:.60}; pass jnp.asarray(x)."
        )
    if len(shape) != 1:
        raise ValueError(
            f"{owner!r}(x=...) must be a vector (d,), got shape {tuple(shape)}; flatten it or map over its rows."
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        remedy = "compress real and imaginary part apart" if jnp.issubdtype(dtype, jnp.complexfloating) else "cast it"
        raise TypeError(f"{owner!r}(x=...) must hold real floats, got {dtype}; {remedy}.")


def _constant(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def constant(self: Any, dim: int, *more: Any, **told: Any) -> Any:
        if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
            raise ValueError(
                f"{self!r}.{method.__name__}(dim=...) must be an integer of at least 1, got {dim!r}; "
                "pass how many coordinates x has."
            )
        return method(self, dim, *more, **told)

    return constant


def number(part: Any, name: str, dim: int, value: Any) -> float:
    """What `part.alpha(dim)` or `.omega(dim)` returned, as one number. Raises TypeError."""
    is_number = isinstance(value, int | float | np.number | np.ndarray | jax.Array)
    if isinstance(value, bool) or not is_number or np.ndim(value):
        raise TypeError(f"{part!r}.{name}({dim}) must return one number, got {type(value).__name__} {value!r}.")
    return float(value)
