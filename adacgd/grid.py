"""Grids of runs in one compiled program: step sizes, zetas, keys and whole methods as data."""

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd import parallel
from adacgd.drive import Progress
from adacgd.host import Outcome, initial_cost, make_trace
from adacgd.pool import Pool, padded
from adacgd.records import Setting
from adacgd.request import Asked, Request, ask, rehearse_links, require_run, starting_point
from adacgd.theory.statement import Start
from adacgd.theory.stepsizes import stepsize as theory_stepsize
from adacgd.trace import Columns, InitialCost

STATE = 6  # arrays n x d that a run takes: g_i, gradients before and after, and what selection needs besides
MEMORY = 2.0**32
BLOCK = 64  # runs in one compiled program: beyond some 16 a run costs no less, and memory grows with their number


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """The runs of a sweep: `grid[i, j]` is a `Trace`, cut at its own outcome; `grid.axes` says what i and j count.

    As in NumPy, fewer indices than axes give the grid of the other axes, and iteration goes along the first axis.
    """

    axes: dict[str, list[Any]]
    _runs: list[tuple[Asked, Columns, int, Outcome, InitialCost]] = dataclasses.field(repr=False)
    _record_every: int = dataclasses.field(repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return tuple(len(values) for values in self.axes.values())

    def __getitem__(self, index: int | tuple[int, ...]) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        if len(index) > len(self.shape):
            raise IndexError(f"this grid has axes {', '.join(self.axes)}: {len(index)} indices are too many.")
        left, runs = dict(self.axes), self._runs
        for i in index:
            name, length = next(iter(left)), len(left.pop(next(iter(left))))
            runs = _part(name, runs, length, i)
        if left:
            return Grid(left, runs, self._record_every)
        return make_trace(*runs[0], self._record_every)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        return self.shape[0]


def _part(name: str, runs: list[Any], length: int, index: Any) -> list[Any]:
    """Entry `index` of the first axis, of so many entries, of runs in row-major order."""
    try:
        at = range(length)[operator.index(index)]
    except TypeError:
        raise TypeError(f"grid[...] takes whole numbers, one an axis; got {index!r} for the axis {name}.") from None
    except IndexError:
        raise IndexError(f"grid[...]: the axis {name} has {length} entries, there is none at {index}.") from None
    each = len(runs) // length
    return runs[at * each : (at + 1) * each]


def sweep(
    problem: Any,
    uplink: Any,
    downlink: Any = None,
    *,
    stepsizes: Sequence[float] | None = None,
    multiples: Sequence[float] | None = None,
    regime: str = "nonconvex",
    zetas: Sequence[float] | None = None,
    keys: Sequence[Any] | None = None,
    rounds: int = 1000,
    x0: Any = None,
    record_every: int = 1,
    tolerance: float | None = None,
    form: str = "dual",
    init: str = "exact",
    momentum: float = 0.0,
    oracle: Any = None,
    devices: Any = None,
    aggregate: str = "exact",
    memory: float = MEMORY,
    progress: Progress | None = None,
) -> Grid:
    """`simulate` over a grid, in one compiled program for each kind of method and block of runs.

    uplink: a method, or a list of them, which is then the first axis. Axes follow in the order uplinks, stepsizes (or
    multiples), zetas, keys, those given. stepsizes: steps. multiples: instead, steps as multiples of what the theorem
    of `regime` allows each method with each zeta. zetas: replace the method's zeta; one that has none is an error.
    devices: as in `simulate`, or a pair of numbers: over so many the runs are spread, and the workers of each over so
        many. memory: bytes that the states of runs side by side may take; more runs than fit go in blocks.
    progress: called with (runs done, runs); the rounds done of a block under way count as so many of its runs.
    The rest as in `simulate`. A run that has ended is frozen, and left behind where that pays.
    A sweep and a single run are two programs: equal to rounding while the step is stable; publish rows of `simulate`.
    Raises ValueError or TypeError before anything is compiled.
    """
    require_run("sweep", rounds, record_every, tolerance)
    kind = Request(problem, None, downlink, 1.0, 0, form, init, momentum, oracle)
    axes, requests = _requests(kind, uplink, stepsizes, multiples, regime, zetas, keys)
    asked = [_ask(request, tolerance) for request in requests]
    mesh = parallel.mesh_of("sweep", devices, problem.n, runs=True)
    workers = parallel.workers_of("sweep", problem, mesh, aggregate)
    asked, least = [one.over(workers) for one in asked], 1 if mesh is None else mesh.shape[parallel.RUNS]
    start, most = starting_point(problem, x0, "sweep"), _most_runs(memory, problem)
    runs: list[Any] = [None] * len(asked)
    blocks, done = _blocks(asked, most), 0
    for block in blocks:
        rehearse_links(asked[block[0]], "sweep")
    for block in blocks:
        size = padded(len(block), least)
        site = parallel.ready(mesh, problem, _stacked([asked[i].setting for i in block], size), many=True)
        carry, *costs = site.programs.begin(site.problem, site.setting, site.point(start), init=init)
        costs = jax.device_get(costs)
        pool = Pool(site, carry, len(block), least)
        whole = pool.run(0, rounds, record_every, None, _share(progress, done, len(block), len(asked)))
        for place, i in enumerate(block):
            outcome, first = jax.tree.map(lambda leaf, place=place: leaf[place], (pool.outcomes, costs))
            runs[i] = (asked[i], whole, place, outcome, initial_cost(asked[i], *first))
        done += len(block)
        if progress is not None:
            progress(done, len(asked))
    return Grid(axes, runs, record_every)


def _requests(
    kind: Request, uplink: Any, stepsizes: Any, multiples: Any, regime: str, zetas: Any, keys: Any
) -> tuple[dict[str, list[Any]], list[Request]]:
    """The axes given, in order, and the request at each point of their product; kind: what all of them share."""
    if (stepsizes is None) == (multiples is None):
        raise ValueError("sweep takes either stepsizes=[...] or multiples=[...] (of the theorem's step), one of them.")
    given = {
        "uplinks": uplink if isinstance(uplink, list | tuple) else None,
        "stepsizes": stepsizes,
        "multiples": multiples,
        "zetas": zetas,
        "keys": keys,
    }
    axes = {name: _axis(name, values) for name, values in given.items() if values is not None}
    requests = []
    for point in itertools.product(*axes.values()):
        at = dict(zip(axes, point, strict=True))
        method = _with_zeta(at.get("uplinks", uplink), at["zetas"]) if "zetas" in at else at.get("uplinks", uplink)
        request = kind._replace(uplink=method, key=at.get("keys", 0))
        gamma = at.get("stepsizes")
        if gamma is None:
            gamma = _multiple(at["multiples"]) * _theory(request, regime)
        requests.append(request._replace(stepsize=gamma))
    return axes, requests


def _ask(request: Request, tolerance: float | None = None) -> Asked:
    return ask(request, tolerance, owner="sweep", step="stepsizes")


def _axis(name: str, values: Any) -> list[Any]:
    if isinstance(values, str) or (np.ndim(values) == 0 and not isinstance(values, list | tuple)):
        raise TypeError(f"sweep({name}=...) must be a sequence, got {values!r}; for a single one use [{values!r}].")
    if len(values) == 0:
        raise ValueError(f"sweep({name}=...) is empty: there is nothing to run.")
    return list(values)


def _with_zeta(method: Any, zeta: float) -> Any:
    if not dataclasses.is_dataclass(method) or "zeta" not in {field.name for field in dataclasses.fields(method)}:
        raise ValueError(
            f"sweep(zetas=...): {type(method).__name__} has no zeta; leave out zetas, or sweep LAG, CLAG, AdaCGD."
        )
    return dataclasses.replace(method, zeta=zeta)  # type: ignore[type-var]


def _multiple(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
        raise ValueError(f"sweep(multiples=...) must be finite numbers > 0, got {value!r}.")
    return float(value)


def _theory(request: Request, regime: str) -> float:
    unit = _ask(request)
    kind: Any = {"form": request.form, "momentum": request.momentum, "prox": unit.setting.server.prox}
    off = float(request.init != "exact")  # a start with an error on a link that loses nothing asks for a smaller step
    start = Start(gap=0.0, G=off, H=off if request.init == "compressed" and unit.constants[1] is not None else 0.0)
    return theory_stepsize(
        request.problem.smoothness, unit.constants[0], regime, unit.constants[1], start=start, **kind
    )


def _share(progress: Progress | None, before: int, block: int, runs: int) -> Progress | None:
    """Tells of a block on its way: its rounds done, as so many of its runs."""
    return None if progress is None else lambda t, rounds: progress(before + (block - 1) * t // rounds, runs)


def _most_runs(memory: Any, problem: Any) -> int:
    """How many runs stand side by side in so many bytes, a power of two. Raises ValueError where none fits."""
    if isinstance(memory, bool) or not isinstance(memory, int | float | np.number) or not 0 < memory < math.inf:
        raise ValueError(f"sweep(memory=...) must be a finite number of bytes > 0, got {memory!r}.")
    each = STATE * problem.n * problem.dim * problem.x0.dtype.itemsize
    if memory < each:
        raise ValueError(
            f"sweep(memory={memory:g}): one run of {problem.n} workers in d = {problem.dim} takes some {each:g} bytes "
            f"({STATE} n d words); allow it more, or use fewer workers."
        )
    return int(min(BLOCK, 2 ** int(math.log2(memory / each))))


def _blocks(asked: list[Asked], most: int) -> list[list[int]]:
    """Runs that share a program, in blocks of at most so many: the same structure and the same shapes."""
    groups: dict[Any, list[int]] = {}
    for i, one in enumerate(asked):
        leaves = tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(one.setting))
        groups.setdefault((jax.tree.structure(one.setting), leaves), []).append(i)
    return [group[at : at + most] for group in groups.values() for at in range(0, len(group), most)]


def _stacked(settings: list[Setting], size: int) -> Setting:
    """One setting whose leaves have a first axis, filled up to `size` with the last."""
    settings = settings + settings[-1:] * (size - len(settings))

    def stack(*leaves: Any) -> Any:
        if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
            return jnp.stack(leaves)
        return np.stack([np.asarray(leaf) for leaf in leaves])

    return jax.tree.map(stack, *settings)
