"""P5 and P6: the choice of a level alone, d = 1000, n = 100."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import adacgd as ac
from adacgd.adaptive import tabulated
from benchmarks.timing import Ratio, interleaved, ratio

N, DIM = 100, 1000


@jax.jit
def select(uplink: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> Any:
    """The messages of all workers."""
    return jax.vmap(lambda h, y, x: uplink(None, h, y, x))(h, y, x)


@jax.jit
def by_float_sort(h: jax.Array, x: jax.Array) -> jax.Array:
    """The yardstick: a sort of floats and a cumulative sum, without the mask and the price."""
    magnitudes = jnp.sort(jnp.abs(x - h), axis=-1)
    return jnp.cumsum(magnitudes**2, axis=-1)


def measure(data_dir: str | None, repeats: int) -> Iterator[Ratio]:
    rng = np.random.default_rng(0)
    h, x, move = (jnp.asarray(rng.standard_normal((N, DIM))) for _ in range(3))
    y = x + 0.1 * move

    def of(ks: list[int]) -> Callable[[], Any]:
        uplink = tabulated(ac.AdaCGD([ac.TopK(k) for k in ks], zeta=30.0), DIM, x.dtype)
        return lambda: select(uplink, h, y, x)

    seconds = interleaved(
        {
            "m=8": of([10, 20, 40, 80, 160, 320, 500, 800]),
            "m=1": of([160]),
            "float sort": lambda: by_float_sort(h, x),
        },
        2 * repeats,
    )
    yield ratio("P5", "m=8 / m=1 selection alone, d=1000 n=100", 1.2, seconds, "m=8", "m=1")
    yield ratio("P6", "selection / float sort + cumsum, d=1000 n=100", 0.5, seconds, "m=8", "float sort")
