"""A frozen dataclass that is a pytree: the ground on which every object of the library stands.

Three rules go with it. A *static* field decides a shape or a Python branch; every other field is a leaf, so that it can
be swept by `vmap` and changed without compiling again. Classes are abstract or final, never both. A constructor checks
concrete numbers only, since jax rebuilds instances through it and may hand it tracers.
"""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

_T = TypeVar("_T")


def static(**kwargs: Any) -> Any:
    """A field that decides a shape or a Python branch: part of the program, not of the data."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def module(cls: type[_T]) -> type[_T]:
    """Make `cls` a frozen dataclass registered as a pytree: each field that is not `static` is a leaf or a subtree."""
    made = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(made)  # type: ignore[arg-type]
    fixed = tuple(f.name for f in fields if f.metadata.get("static"))
    leaves = tuple(f.name for f in fields if f.name not in fixed)

    def with_keys(one: Any) -> tuple[Any, Any]:
        children = [(jax.tree_util.GetAttrKey(name), getattr(one, name)) for name in leaves]
        return children, tuple(getattr(one, name) for name in fixed)

    def flat(one: Any) -> tuple[Any, Any]:
        return [getattr(one, name) for name in leaves], tuple(getattr(one, name) for name in fixed)

    def rebuilt(values: Any, children: Any) -> Any:
        return made(**dict(zip(fixed, values, strict=True)), **dict(zip(leaves, children, strict=True)))

    # Not `register_dataclass`: in jaxlib 0.10 two such trees compare equal whatever their classes, so that `jit` would
    # run the program of RandK(3) for ContractiveRandK(3). Registered like this they are told apart.
    jax.tree_util.register_pytree_with_keys(made, with_keys, rebuilt, flat)
    return made


class Aside:
    """What a module carries but no program reads: it compares equal to every other, so that it never retraces."""

    def __init__(self, **facts: Any) -> None:
        self.__dict__.update(facts)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"nothing is noted here under {name!r}; noted are {sorted(self.__dict__)}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Aside)

    def __hash__(self) -> int:
        return hash(Aside)

    def __repr__(self) -> str:
        return f"Aside({', '.join(sorted(self.__dict__))})"


def concrete(value: Any) -> bool:
    """Whether `value` is a number that can be checked now: not a tracer, not a placeholder of a tree."""
    return isinstance(value, bool | int | float | np.ndarray | np.generic) or (
        isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
    )
