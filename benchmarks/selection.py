"""The choice of a level alone: P5, P6 and P18 of short vectors, counting beside sorting of long ones, and memory.

`python -m benchmarks.selection` prints them as docs/selection.md has them.
"""

import functools
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import adacgd as ac
from adacgd.adaptive import tabulated
from adacgd.compressors import bisection, selection
from benchmarks.table import Row, compared, judged
from benchmarks.timing import interleaved

N, DIM = 100, 1000
KS = [10, 20, 40, 80, 160, 320, 500, 800]  # of 1000
LONG = [
    (100, 1024, "float64"),
    (50, 4096, "float32"),
    (20, 47236, "float64"),
    (20, 47236, "float32"),
    (4, 10**6, "float32"),
]
WORKERS, HUGE = 20, 10**6  # whose memory is measured
_FLUSH, _PEAK, _NOW = Path("/proc/self/clear_refs"), "VmHWM", "VmRSS"


@jax.jit
def select(uplink: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> Any:
    """The messages of all workers."""
    return jax.vmap(lambda h, y, x: uplink(None, h, y, x))(h, y, x)


@jax.jit
def by_float_sort(h: jax.Array, x: jax.Array) -> jax.Array:
    """The yardstick: a sort of floats and a cumulative sum, without the mask and the price."""
    magnitudes = jnp.sort(jnp.abs(x - h), axis=-1)
    return jnp.cumsum(magnitudes**2, axis=-1)


@jax.jit
def by_separate_sorts(h: jax.Array, x: jax.Array) -> list[jax.Array]:
    """What levels that know nothing of each other do: a sort each, of operands that no compiler can find equal."""
    magnitudes = jnp.abs(x - h)
    return [jnp.cumsum(jnp.sort(magnitudes * (1 + j * 1e-9), axis=-1) ** 2, axis=-1) for j in range(len(KS))]


def ladder(ks: list[int], dim: int, dtype: Any) -> Any:
    """AdaCGD over Top-K levels, as a run has it."""
    return tabulated(ac.AdaCGD([ac.TopK(k) for k in ks], zeta=30.0), dim, dtype)


def rows(data_dir: str | None, repeats: int) -> Iterator[Row]:
    """All of them; the data are drawn."""
    yield from short(repeats)
    for n, dim, dtype in LONG:
        yield from long(n, dim, dtype, repeats)
    yield memory()


def short(repeats: int) -> Iterator[Row]:
    """d = 1000, n = 100, float64."""
    rng = np.random.default_rng(0)
    h, x, move = (jnp.asarray(rng.standard_normal((N, DIM))) for _ in range(3))
    y = x + 0.1 * move
    eight, one = ladder(KS, DIM, x.dtype), ladder([160], DIM, x.dtype)
    work: dict[str, Callable[[], Any]] = {
        "m=8": lambda: select(eight, h, y, x),
        "m=1": lambda: select(one, h, y, x),
        "float sort": lambda: by_float_sort(h, x),
        "8 sorts": lambda: by_separate_sorts(h, x),
    }
    seconds = interleaved(work, 2 * repeats, time.process_time)
    yield compared("P5", "m=8 / m=1 selection alone, d=1000 n=100", 1.2, seconds, "m=8", "m=1")
    yield compared("P6", "selection / float sort + cumsum, d=1000 n=100", 0.5, seconds, "m=8", "float sort")
    yield compared("P18", "8 separate float sorts / selection, d=1000 n=100", 10, seconds, "8 sorts", "m=8", True)


def long(n: int, dim: int, dtype: str, repeats: int) -> Iterator[Row]:
    """Counting over sorting: one mask, and eight levels with the mask of the one chosen."""
    rng = np.random.default_rng(0)
    x = jnp.asarray((rng.standard_normal((n, dim)) * rng.exponential(size=(n, dim))).astype(dtype))
    ks = jnp.asarray(np.broadcast_to(np.array(KS) * dim // 1000, (n, len(KS))), jnp.int32)
    allowed = jnp.sum(x * x, axis=-1) * jnp.linspace(0.02, 0.5, n).astype(dtype)  # a different level for each
    grouped = lambda f: jax.jit(functools.partial(bisection.by_groups, f))
    work = {name: (grouped(getattr(selection, name)), args) for name, args in (
        ("_sorted", (x, ks[:, 3])), ("_counted", (x, ks[:, 3])),
        ("_first_sorted", (x, ks, allowed)), ("_first_counted", (x, ks, allowed)))}  # fmt: skip
    calls = {name: functools.partial(f, *args) for name, (f, args) in work.items()}
    seconds = interleaved(calls, repeats, time.process_time)
    where = f"d={dim} n={n} {dtype}"
    yield compared("mask", f"Top-K by counting / by sorting, {where}", 1.0, seconds, "_counted", "_sorted")
    what = f"8 levels by counting / by sorting, {where}"
    yield compared("levels", what, 1.0, seconds, "_first_counted", "_first_sorted")


def memory() -> Row:
    """Words for each coordinate of each worker, h, y and x among them: the peak of a fresh process."""
    what = f"words per n d, AdaCGD of 8 Top-K levels, d={HUGE} n={WORKERS} float32"
    if not _FLUSH.exists():
        return Row("words", what, "<= 6.0", "-", "not judged (no /proc/self/clear_refs)")
    call = [sys.executable, "-c", "from benchmarks import selection; print(selection.words())"]
    printed = subprocess.run(call, check=True, capture_output=True, text=True).stdout
    return judged("words", what, float(printed.split()[-1]), 6.0, "VmHWM of a fresh process")


def words() -> float:
    """Of this process, which should have done nothing else; h, y, x and the message are four of them."""
    uplink, shape = ladder([k * HUGE // 1000 for k in KS], HUGE, jnp.float32), (WORKERS, HUGE)
    spec = jax.ShapeDtypeStruct(shape, jnp.float32)
    compiled = select.lower(uplink, spec, spec, spec).compile()
    before = status(_NOW)
    rng = np.random.default_rng(0)
    h, x = (jax.block_until_ready(jnp.asarray(rng.standard_normal(shape, dtype=np.float32))) for _ in range(2))
    y = jax.block_until_ready(jnp.asarray(x + np.float32(0.1) * rng.standard_normal(shape, dtype=np.float32)))
    _FLUSH.write_text("5")  # what was needed to draw them is not counted
    sent = jax.block_until_ready(compiled(uplink, h, y, x))
    if not np.all(np.asarray(sent.level) > 0):
        raise RuntimeError("a worker was silent: no level was chosen, so that nothing was measured.")
    return (status(_PEAK) - before) / (4 * WORKERS * HUGE)


def status(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise RuntimeError(f"/proc/self/status has no line {name}.")
    return 1024 * int(found[1])


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    for row in rows(None, 7):
        print(f"| {row.id} | {row.what} | {row.target} | {row.measured} | {row.detail} | {row.verdict} |", flush=True)
