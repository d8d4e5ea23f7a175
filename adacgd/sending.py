"""The sender's half of `adacgd.wire`: from what a caller gives to the steps and numbers that travel."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.base import Compressor, Draw, Stateful, Unbiased, as_key, fetch, format_of, no_bytes
from adacgd.cost import FLOAT_WIDTHS
from adacgd.estimators import Estimator
from adacgd.mechanisms import ThreePoint
from adacgd.steps import FRESH, Sent, Step


class Request(NamedTuple):
    """The arguments of `adacgd.wire.encode`, whose docstring says what they are."""

    key: Any
    x: Any
    float_width: int | None
    h: Any
    y: Any
    common: Any
    round: Any
    worker: Any
    workers: int | None
    state: Any


def message(what: Any, asked: Request) -> tuple[Sent, jax.Array]:
    """What `what` sends, and x as it was sent, (d,). Raises as `adacgd.wire.encode`."""
    mechanism = isinstance(what, ThreePoint | Estimator)
    x = vector("x", asked.x, asked.float_width)
    require_state(what, asked.state, x)
    if not mechanism:
        if asked.h is not None or asked.y is not None:
            raise ValueError(f"encode({what!r}, ...): h= and y= are for mechanisms; a compressor is given x alone.")
        return Sent((of_compressor(what, x, asked),)), x
    if asked.h is None or asked.y is None:
        raise ValueError(f"encode({what!r}, ...) is a mechanism: pass h=, what the receiver holds, and y=.")
    h, y = (vector(name, getattr(asked, name), asked.float_width, x) for name in ("h", "y"))
    draw, width = asked.key, 8 * x.dtype.itemsize
    if isinstance(what, ThreePoint):
        shared = shared_of(what, asked)
        require_formats(what, x.size, width, asked.workers)
        return what.sends(as_key(draw), h, y, x, **shared), x
    if not isinstance(draw, Draw):
        if asked.state is not None:
            raise ValueError(f"encode({what!r}, ..., state=...): pass as key the Draw that its step was given.")
        draw = Draw(as_key(draw), **{"round": 0, **shared_of(what, asked)})
    require_formats(what, x.size, width, draw.workers)
    return what.sends(draw, what.init(h) if asked.state is None else asked.state, h, y, x), x


def of_compressor(what: Any, x: jax.Array, asked: Request) -> Step:
    """The value itself."""
    width = 8 * x.dtype.itemsize
    if isinstance(what, Stateful):
        return Step(FRESH, what.format(x.size, width), fetch(*what.send(asked.state, x)))
    layout, shared = format_of(what, x.size, width, asked.workers), shared_of(what, asked)
    return Step(FRESH, layout, what.numbers(as_key(asked.key), x, **shared))


def require_state(what: Any, state: Any, x: jax.Array) -> None:
    """A state for those that keep one, and for no others. Raises ValueError."""
    keeps = bool(jax.tree.leaves(what.init(x))) if isinstance(what, Estimator) else isinstance(what, Stateful)
    if keeps != (state is not None):
        words = "keeps a state: pass state=, of its init or last step" if keeps else "keeps no state: leave it out"
        raise ValueError(f"encode({what!r}, ..., state=...): {type(what).__name__} {words}.")


def shared_of(what: Any, asked: Request) -> dict[str, Any]:
    """What `what` is called with besides its key. Raises ValueError for what is missing."""
    if not (isinstance(what, Estimator) or getattr(what, "shares_randomness", False)):
        return {}
    told = {"common": asked.common, "worker": asked.worker, "workers": asked.workers}
    missing = [f"{name}=" for name, value in told.items() if value is None]
    if missing:
        raise ValueError(f"encode({what!r}, ...) shares randomness among workers: pass {', '.join(missing)} too.")
    return {**told, "common": as_key(asked.common), **({} if asked.round is None else {"round": asked.round})}


def require_formats(what: Any, dim: int, width: int, workers: int | None) -> None:
    """All parts of a mechanism have one, also those that this message does not use. Raises TypeError."""
    if isinstance(what, ThreePoint) and type(what).sends is ThreePoint.sends:
        no_bytes(what)
    for f in dataclasses.fields(what) if dataclasses.is_dataclass(what) else ():
        value = getattr(what, f.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, ThreePoint):
                require_formats(part, dim, width, workers)
            elif isinstance(part, Compressor | Unbiased):
                format_of(part, dim, width, workers)


def vector(name: str, v: Any, float_width: int | None, like: Any = None) -> Any:
    """A JAX vector of the width asked for. Raises ValueError for all that is none, or that JAX would narrow."""
    v = np.asarray(v)
    if float_width is not None:
        if float_width not in FLOAT_WIDTHS or not isinstance(float_width, int | np.integer):
            raise ValueError(f"encode(float_width=...) must be 16, 32 or 64, got {float_width!r}.")
        with np.errstate(all="ignore"):
            v = v.astype(f"f{float_width // 8}")
    if v.ndim != 1 or v.size < 1 or v.dtype not in ("f2", "f4", "f8"):
        raise ValueError(f"encode({name}=...) must be a (d,) array of float16, 32 or 64, got {v.dtype} {v.shape}.")
    if like is not None and (v.shape != like.shape or v.dtype != like.dtype):
        raise ValueError(f"encode({name}=...) must be as x, {like.dtype} {like.shape}, got {v.dtype} {v.shape}.")
    there = jnp.asarray(v)
    if there.dtype != v.dtype:
        raise ValueError(f"encode({name}=...) is {v.dtype}, which needs jax_enable_x64; or pass float_width=32.")
    return there
