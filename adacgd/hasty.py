"""Programs that run a few times only: compiled in a third of the time or less, and as fast as others when they run.

Most of what a court does is compile: a search and a judge for each target. XLA's CPU compiler spends its time on
fusions and on LLVM's second level of optimisation, from which programs on vectors of some hundred numbers have nothing.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}


def hasty(*static: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As `jax.jit` with these static arguments, compiled in haste. Not for what is called inside a compiled program."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.cache
        def program(backend: str) -> Callable[..., Any]:  # late: importing initialises no backend
            return jax.jit(function, static_argnames=static, compiler_options=known(backend))

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            return program(jax.default_backend())(*arguments, **named)

        return call

    return decorated


@functools.cache
def known(backend: str) -> dict[str, Any]:
    """The options that the compiler of this backend takes, all or none: their names are XLA's own and may go."""
    if backend != "cpu":
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=OPTIONS).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return OPTIONS
