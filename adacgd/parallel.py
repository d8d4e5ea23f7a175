"""The same compiled loop with its workers, and the runs of a sweep, spread over devices by `shard_map`.

A mesh has the axes RUNS and AXIS (workers). What belongs to a worker lives on the worker's device: its data, gradients
and memories; the model and all scalars are everywhere alike. Only `Workers` knows how a sum travels. Several processes,
started by `jax.distributed`, are more devices of one mesh; everything that the host reads is whole on each of them.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from adacgd import loop
from adacgd.records import Carry, Row, Setting, State, Tally
from adacgd.workers import AXIS, Workers

RUNS = "runs"
AGGREGATIONS = ("exact", "fast")


def mesh_of(owner: str, devices: Any, n: int, runs: bool = False) -> Mesh | None:
    """The mesh that `devices` asks for; None for one device, where nothing is to be spread.

    devices: None; a number; "all"; a list of jax devices; and with `runs` a pair of numbers, (over runs, over workers).
    Raises ValueError or TypeError where there are not so many, or the n workers do not fit evenly.
    """
    if devices is None:
        return None
    across, parts, chosen = _wanted(owner, devices, runs)
    if n % parts:
        fitting = [k for k in range(1, len(jax.devices()) + 1) if n % k == 0]
        raise ValueError(
            f"{owner}(devices={devices!r}): {n} workers cannot stand in {parts} equal parts; use one of {fitting}."
        )
    return Mesh(np.array(chosen).reshape(across, parts), (RUNS, AXIS))


def _wanted(owner: str, devices: Any, runs: bool) -> tuple[int, int, Sequence[Any]]:
    """How many over runs, how many over workers, and which."""
    at_hand = jax.devices()
    if isinstance(devices, str) and devices == "all":
        return 1, len(at_hand), at_hand
    if isinstance(devices, list) and devices and all(isinstance(d, jax.Device) for d in devices):
        return 1, len(devices), devices
    counts = devices if runs and isinstance(devices, tuple) and len(devices) == 2 else (1, devices)
    if not all(isinstance(k, int | np.integer) and not isinstance(k, bool) and k >= 1 for k in counts):
        pair = ", a pair (over runs, over workers)" if runs else ""
        raise TypeError(f"{owner}(devices=...) must be a number >= 1, 'all', a list of devices{pair}; got {devices!r}.")
    across, parts = (int(k) for k in counts)
    if across * parts > len(at_hand):
        raise ValueError(
            f"{owner}(devices={devices!r}): jax sees {len(at_hand)}. On a CPU ask for more before jax starts: "
            f'jax.config.update("jax_num_cpu_devices", {across * parts}).'
        )
    if jax.process_count() > 1 and across * parts < len(at_hand):
        raise ValueError(f"{owner}(devices={devices!r}): of several processes every device takes part; use 'all'.")
    if jax.process_count() > 1 and across > 1:
        raise ValueError(f"{owner}(devices={devices!r}): over several processes only workers are spread; use 'all'.")
    return across, parts, at_hand[: across * parts]


def workers_of(owner: str, problem: Any, mesh: Mesh | None, aggregate: str) -> Workers:
    """How the workers of a problem are spread. Raises ValueError or TypeError where they cannot be."""
    if aggregate not in AGGREGATIONS:
        raise ValueError(f"{owner}(aggregate=...) must be one of {', '.join(AGGREGATIONS)}; got {aggregate!r}.")
    if mesh is None and aggregate != "exact":
        raise ValueError(
            f"{owner}(aggregate={aggregate!r}) is a choice of several devices; give devices, or leave it out."
        )
    if mesh is None:
        return Workers(problem.n)
    if not getattr(problem, "by_worker", ()) or not hasattr(problem, "losses"):
        raise TypeError(
            f"{owner}(devices=...): {type(problem).__name__} does not say what belongs to which worker; give it "
            "`by_worker` and `losses` as in problems.Problem, or leave out devices."
        )
    return Workers(problem.n, mesh.shape[AXIS], aggregate == "exact")


def specs_of(problem: Any) -> Any:
    """A tree like the problem: where each of its arrays is cut."""
    return jax.tree_util.tree_map_with_path(lambda path, _: _cut(_by_worker(problem, path)), problem)


def _by_worker(part: Any, path: tuple[Any, ...]) -> bool:
    """Whether the array at a path has an entry for each worker; a problem inside another says so itself."""
    own, inner = path[0].name in part.by_worker, getattr(part, path[0].name)
    return _by_worker(inner, path[1:]) if own and hasattr(inner, "by_worker") else own


def _cut(own: bool, lead: tuple[Any, ...] = ()) -> PartitionSpec:
    return PartitionSpec(*lead, AXIS) if own else PartitionSpec(*lead)


def carry_specs(lead: tuple[Any, ...]) -> Carry:
    """Where a carry is cut; lead: the axes before a worker's, (RUNS,) in a sweep."""
    own, alike = _cut(True, lead), _cut(False, lead)
    state = dict.fromkeys(State._fields, alike) | dict.fromkeys(("grads", "v", "g_i", "up_memory"), own)
    tally = dict.fromkeys(Tally._fields, alike) | {"up": own}
    rest: Any = {"state": State(**state), "level": own, "tally": Tally(**tally)}  # type: ignore[arg-type]
    return Carry(**(dict.fromkeys(Carry._fields, alike) | rest))


def whole_rows(setting: Setting, row: Row) -> Row:
    """Rows, (C, here), with the entries of all workers, (C, n)."""
    table = functools.partial(setting.workers.table, axis=1)
    errors = row.errors if setting.uplink.of_mean else table(row.errors)
    return row._replace(errors=errors, level=table(row.level), tally=row.tally._replace(up=table(row.tally.up)))


def place(mesh: Mesh, tree: Any, specs: Any) -> Any:
    """The arrays of a tree where the mesh wants them; each device is handed its own part alone."""

    def put(leaf: Any, spec: PartitionSpec) -> Any:
        if isinstance(leaf, bool | int | float):
            return leaf
        sharding = NamedSharding(mesh, spec)
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf), spec), impl=jax.random.key_impl(leaf))
        if isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
            return leaf
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(lambda spec, part: jax.tree.map(lambda leaf: put(leaf, spec), part), specs, tree)


@functools.cache
def programs(mesh: Mesh, many: bool) -> loop.Programs:
    """`begin`, `stretch` and `record` of `loop` on a mesh; many: for every setting of a sweep at once."""
    lead: tuple[Any, ...] = (RUNS,) if many else ()
    alike, carried = PartitionSpec(), carry_specs(lead)
    run = PartitionSpec(*lead)  # what each run has, everywhere alike among its workers
    mapped = lambda function, axes: jax.vmap(function, axes) if many else function

    def spread(function: Any, problem: Any, arguments: tuple[Any, ...], cut: tuple[Any, ...], out: Any) -> Any:
        inner = jax.shard_map(function, mesh=mesh, in_specs=(specs_of(problem), *cut), out_specs=out, check_vma=False)
        return inner(problem, *arguments)

    @functools.partial(jax.jit, static_argnames="init")
    def begin(problem: Any, setting: Setting, x0: jax.Array, init: str) -> Any:
        def one(problem: Any, setting: Setting, x0: jax.Array) -> Any:
            carry, up, down = loop.begin(problem, setting, x0, init)
            return carry, setting.workers.table(up), down

        function = mapped(one, (None, 0, None))
        return spread(function, problem, (setting, x0), (run, alike), (carried, run, run))

    @functools.partial(jax.jit, donate_argnames="carry")
    def stretch(problem: Any, setting: Setting, carry: Carry, t: Any, ends: Any, rows: Any) -> Any:
        def one(problem: Any, setting: Setting, carry: Carry, t: Any, ends: Any, rows: Any) -> Any:
            carry, reached, table = loop.stretch(problem, setting, carry, t, ends, rows)
            return carry, reached, whole_rows(setting, table)

        def all_runs(problem: Any, setting: Setting, carry: Carry, t: Any, ends: Any, rows: Any) -> Any:
            several = jax.vmap(one, (None, 0, 0, None, None, None), (0, None, 0)) if many else one
            carry, reached, table = several(problem, setting, carry, t, ends, rows)
            return carry, jax.lax.pmax(reached, RUNS), table

        arguments = (setting, carry, t, ends, rows)
        return spread(all_runs, problem, arguments, (run, carried, alike, alike, alike), (carried, alike, run))

    @jax.jit
    def record(problem: Any, setting: Setting, carry: Carry) -> Row:
        def one(problem: Any, setting: Setting, carry: Carry) -> Row:
            row = jax.tree.map(lambda leaf: leaf[None], loop.record(problem, setting, carry))
            return jax.tree.map(lambda leaf: leaf[0], whole_rows(setting, row))

        return spread(mapped(one, (None, 0, 0)), problem, (setting, carry), (run, carried), run)

    return loop.Programs(begin, stretch, record)


class Site(NamedTuple):
    """Where a run or a sweep takes place: its programs, and its data on the devices that they are compiled for."""

    programs: loop.Programs
    problem: Any
    setting: Setting
    mesh: Mesh | None
    lead: tuple[Any, ...]

    def point(self, x: jax.Array) -> jax.Array:
        """x^0, (d,), which everybody knows."""
        return x if self.mesh is None else place(self.mesh, x, PartitionSpec())

    def carry(self, carry: Carry) -> Carry:
        """A carry of its own, copied from one that a run on any number of devices has left."""
        if self.mesh is None:
            return jax.tree.map(_here, carry)
        return jax.tree.map(jnp.copy, place(self.mesh, carry, carry_specs(self.lead)))

    def gathered(self, setting: Setting, carry: Carry, places: np.ndarray) -> tuple[Setting, Carry]:
        """Of a sweep, the runs in these places, (S',), in place of all of them."""
        setting, carry = _taken((setting, carry), places)
        if self.mesh is None:
            return setting, carry
        cut = jax.tree.map(lambda _: PartitionSpec(*self.lead), setting)
        return place(self.mesh, setting, cut), place(self.mesh, carry, carry_specs(self.lead))


@jax.jit
def _taken(runs: Any, places: jax.Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[places], runs)


def ready(mesh: Mesh | None, problem: Any, setting: Setting, many: bool = False) -> Site:
    """The site of one run, or with `many` of a sweep, on one device or on a mesh."""
    if mesh is None:
        return Site(loop.MANY if many else loop.ONE, problem, setting, None, ())
    lead = (RUNS,) if many else ()
    there = (
        place(mesh, problem, specs_of(problem)),
        place(mesh, setting, jax.tree.map(lambda _: PartitionSpec(*lead), setting)),
    )
    return Site(programs(mesh, many), *there, mesh, lead)


def _here(leaf: jax.Array) -> jax.Array:
    """A copy on one device."""
    if len(leaf.devices()) == 1:
        return jnp.copy(leaf)
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_here(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
    return jnp.asarray(jax.device_get(leaf))
