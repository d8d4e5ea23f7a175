"""Whether a program hands an infinite matrix to a singular value decomposition, on which LAPACK may never return.

A court that ran it would hang with it. So the program is walked step by step, with numbers, up to that decomposition.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call")


class _Met(Exception):
    """It does."""


def svd_of_infinity(function: Callable[..., Any], *arguments: Any) -> bool | None:
    """Whether `function(*arguments)` comes to one; None where the decomposition stands in a loop and cannot be seen."""
    closed = jax.make_jaxpr(function)(*arguments)
    if not _has_svd(closed.jaxpr):
        return False
    try:
        _walk(closed.jaxpr, closed.consts, jax.tree.leaves(arguments))
    except _Met:
        return True
    except NotImplementedError:
        return None
    return False


def _walk(jaxpr: Jaxpr, consts: Any, arguments: Any) -> list[Any]:
    """The results of the program, equation by equation."""
    known: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))
    read = lambda v: v.val if isinstance(v, Literal) else known[v]
    for equation in jaxpr.eqns:
        values, inner = [read(v) for v in equation.invars], list(_inner(equation.params))
        name = equation.primitive.name
        if name == "svd" and np.any(np.isinf(values[0])):
            raise _Met
        if not any(_has_svd(body) for body, _ in inner):
            bound: Any = equation.primitive.get_bind_params(equation.params)
            parts, parameters = bound if isinstance(bound, tuple) else ((), bound)  # by version of jax
            found = equation.primitive.bind(*parts, *values, **parameters)
        elif name == "cond":
            body, own = inner[int(values[0])]
            found = _walk(body, own, values[1:])
        elif name in _CALLS:
            body, own = inner[0]
            found = _walk(body, own, values)
        else:
            raise NotImplementedError(name)
        several = equation.primitive.multiple_results
        known.update(zip(equation.outvars, found if several else [found], strict=True))
    return [read(v) for v in jaxpr.outvars]


def _inner(parameters: dict[str, Any]) -> Iterator[tuple[Jaxpr, Any]]:
    """The programs inside an equation, with their constants, in order."""
    for value in parameters.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr):
                yield one.jaxpr, one.consts
            elif isinstance(one, Jaxpr):
                yield one, ()


def _has_svd(jaxpr: Jaxpr) -> bool:
    """At any depth."""
    return any(
        equation.primitive.name == "svd" or any(_has_svd(body) for body, _ in _inner(equation.params))
        for equation in jaxpr.eqns
    )
