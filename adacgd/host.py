"""The host's side of a run: requests checked before anything is compiled, rows planned, fetched and made a `Trace`."""

import difflib
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adacgd import loop
from adacgd.compressors.base import as_key
from adacgd.cost import Cost
from adacgd.estimators import lifted
from adacgd.mechanisms import AB, GD
from adacgd.trace import Columns, InitialCost, Trace, columns

PATIENCE = 0.2  # seconds that one compiled call should take, so that progress and Ctrl-C are prompt
BUFFER = 2**22  # entries of the widest column that one call may hold back
STATUS = {loop.RUNNING: "completed", loop.CONVERGED: "converged", loop.DIVERGED: "diverged"}


class Request(NamedTuple):
    """What a run was asked to be; `simulate(start=...)` compares it by these names."""

    problem: Any
    uplink: Any
    downlink: Any
    stepsize: float
    key: jax.Array


class Resume(NamedTuple):
    """What a finished trace keeps so that it can be continued."""

    request: Request
    carry: loop.Carry
    columns: Columns


def simulate(
    problem: Any,
    uplink: Any,
    downlink: Any = None,
    *,
    stepsize: float,
    rounds: int = 1000,
    x0: Any = None,
    key: Any = 0,
    record_every: int = 1,
    tolerance: float | None = None,
    start: Trace | None = None,
    verify: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Run compressed gradient descent: every worker applies `uplink`, the server `downlink` (without one it sends u).

    problem: has `n`, `dim`, `loss(x)`, `grads(x)`, `x0`, `smoothness`. uplink, downlink: three point maps or estimators.
    stepsize: gamma > 0. rounds: T >= 0, counted from x^0 also when `start` is given. x0: (d,), the problem's if None.
    key: a JAX key or an int in [0, 2^32). record_every: rows 0, k, 2k, ... and the last; it changes nothing else.
    tolerance: stop, "converged", at the first |grad f(x)| <= tolerance (not squared).
    start: a trace of the same problem, uplink, downlink, stepsize and key to continue up to round `rounds`; the result
        is the uninterrupted run. verify: carry the worst slack of the three point and smoothness inequalities.
    progress: called on the host with (rounds done, rounds) now and then; it cannot touch the result.
    Raises ValueError or TypeError that names the argument before anything is compiled.
    """
    request = checked(problem, uplink, downlink, stepsize, key)
    require_run("simulate", rounds, record_every, tolerance)
    setting, constants = setting_of(request, tolerance, verify)
    if start is None:
        carry = loop.begin_one(problem, setting, starting_point(problem, x0))
        done, past = 0, None
    else:
        if x0 is not None:
            raise ValueError("simulate(start=..., x0=...): a continued run starts where the trace ended; leave out x0.")
        carry, past = _continued(request, start, rounds, record_every, setting)
        done = int(past.rounds[-1])
        if rounds == done or STATUS[int(carry.status)] != "completed":
            return _trace(request, constants, past, carry, tolerance, verify, record_every)
    drive = Drive(loop.stretch_one, problem, setting, carry, ())
    later = drive.run(done, rounds, record_every, past is None, progress)
    whole = later if past is None else past.join(later)
    return _trace(request, constants, whole, drive.carry, tolerance, verify, record_every)


class Drive:
    """Compiled stretches, one after another, of one run (lead ()) or of a sweep (lead (S,))."""

    def __init__(self, stretch: Any, problem: Any, setting: loop.Setting, carry: loop.Carry, lead: tuple[int, ...]):
        self.stretch, self.problem, self.setting, self.carry, self.lead = stretch, problem, setting, carry, lead
        widest = problem.n * math.prod(lead)
        self.capacity = int(2 ** np.clip(np.floor(np.log2(BUFFER / widest)), 3, 9))

    def run(
        self, done: int, rounds: int, record_every: int, first_row: bool, progress: Callable[[int, int], None] | None
    ) -> Columns:
        """Rounds done..rounds; the columns of all stretches, row `done` in front where `first_row`."""
        ends = stretch_ends(done, rounds, record_every)
        parts = [self._first_row(done)] if first_row else []
        at, few, t = 0, 1, np.int32(done)
        while at < len(ends) and self._alive():
            few = min(few, self.capacity, len(ends) - at)
            chunk = np.zeros(self.capacity, np.int32)
            chunk[:few] = ends[at : at + few]
            began = time.perf_counter()
            self.carry, reached, row = self.stretch(self.problem, self.setting, self.carry, t, chunk, np.int32(few))
            t = np.int32(reached)
            written = min(int(np.searchsorted(chunk[:few], t)) + 1, few)
            parts.append(self._columns(np.minimum(chunk[:written], t), jax.device_get(row), written))
            at += few
            if progress is not None:
                progress(int(t), rounds)
            few = few * 2 if time.perf_counter() - began < PATIENCE else max(few // 2, 1)
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.join(part)
        return whole

    def _alive(self) -> bool:
        return bool(np.any(np.asarray(self.carry.status) == loop.RUNNING))

    def _first_row(self, done: int) -> Columns:
        row = loop.record(self.carry) if not self.lead else jax.vmap(loop.record)(self.carry)
        row = jax.tree.map(lambda leaf: np.expand_dims(np.asarray(leaf), len(self.lead)), row)
        return self._columns(np.array([done]), row, 1)

    def _columns(self, rounds: np.ndarray, row: Any, written: int) -> Columns:
        if not self.lead:
            row = jax.tree.map(lambda leaf: leaf[None], row)
        return columns(rounds, jax.tree.map(lambda leaf: leaf[:, :written], row))


def stretch_ends(done: int, rounds: int, record_every: int) -> np.ndarray:
    """Where compiled stretches end: every row, and enough points between that no stretch is too long to count."""
    rows = np.arange(done // record_every + 1, rounds // record_every + 1) * record_every
    longest = np.arange(done, rounds, loop.LONGEST_STRETCH)[1:] if record_every > loop.LONGEST_STRETCH else []
    between = [p for r in ([] if record_every <= loop.LONGEST_STRETCH else rows) for p in _split(r, record_every, done)]
    ends = np.unique(np.concatenate([rows, np.asarray(longest, int), np.asarray(between, int), [rounds]]))
    return ends[ends > done].astype(np.int64)


def _split(end: int, length: int, done: int) -> list[int]:
    return [p for p in range(end - length, end, loop.LONGEST_STRETCH) if p > done]


def starting_point(problem: Any, x0: Any) -> jax.Array:
    """x^0 as a fresh array in the problem's precision: a run may give its buffers away, never the caller's."""
    own = problem.x0
    if x0 is None:
        return jnp.array(own, copy=True)
    given = np.asarray(x0)
    if given.shape != (problem.dim,) or not np.issubdtype(given.dtype, np.number) or np.iscomplexobj(given):
        raise ValueError(f"simulate(x0=...) must be {problem.dim} real numbers, got shape {given.shape} {given.dtype}.")
    return jnp.array(given, dtype=own.dtype, copy=True)


def checked(problem: Any, uplink: Any, downlink: Any, stepsize: Any, key: Any) -> Request:
    """The request, or an error that names what is wrong with it."""
    for name in ("n", "dim", "loss", "grads", "x0", "smoothness"):
        if not hasattr(problem, name):
            raise TypeError(f"simulate(problem=...) needs `{name}`; got {type(problem).__name__}. See problems.Problem.")
    if isinstance(stepsize, bool) or not isinstance(stepsize, int | float | np.number | jax.Array) or np.ndim(stepsize):
        raise TypeError(f"simulate(stepsize=...) must be one number > 0, got {stepsize!r}.")
    if not (math.isfinite(stepsize) and stepsize > 0):
        raise ValueError(f"simulate(stepsize=...) must be finite and > 0, got {float(stepsize)}.")
    return Request(problem, uplink, downlink, float(stepsize), as_key(key))


def require_run(owner: str, rounds: Any, record_every: Any, tolerance: Any) -> None:
    """Integers and a tolerance that make sense. Raises ValueError."""
    for name, value, least in (("rounds", rounds, 0), ("record_every", record_every, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**31 - 1:
            raise ValueError(f"{owner}({name}=...) must be an integer in [{least}, 2**31 - 1), got {value!r}.")
    if tolerance is not None and not (isinstance(tolerance, int | float | np.number) and 0 < tolerance < math.inf):
        raise ValueError(f"{owner}(tolerance=...) must be a finite number > 0 or None, got {tolerance!r}.")


def setting_of(request: Request, tolerance: float | None, verify: bool) -> tuple[loop.Setting, tuple[AB, AB | None]]:
    """The setting that the compiled loop takes, and the constants of both links."""
    problem, dtype = request.problem, request.problem.x0.dtype
    dim = problem.dim
    up = lifted(request.uplink, "uplink", dim, dtype)
    down = lifted(GD() if request.downlink is None else request.downlink, "downlink", dim, dtype)
    constants = (_constants(request.uplink, dim, problem.n), None)
    if request.downlink is not None:
        constants = (constants[0], _constants(request.downlink, dim, 1))
    expected: tuple[Any, ...] = ()
    if verify:
        s = problem.smoothness
        expected = tuple(np.asarray(v, dtype) for v in (constants[0].A, constants[0].B, s.L_minus, s.L_plus))
    setting = loop.Setting(
        uplink=up,
        downlink=down,
        stepsize=np.asarray(request.stepsize, dtype),
        key=request.key,
        tolerance_sq=np.asarray(-1.0 if tolerance is None else float(tolerance) ** 2, dtype),
        expected=expected,
    )
    return setting, constants


def _constants(link: Any, dim: int, workers: int) -> AB:
    return link.constants(dim, workers=workers) if getattr(link, "shares_randomness", False) else link.constants(dim)


def _continued(
    request: Request, start: Trace, rounds: int, record_every: int, setting: loop.Setting
) -> tuple[loop.Carry, Columns]:
    """The carry and rows of `start`, if it is a run of the same request that has not gone further."""
    if not isinstance(start, Trace) or start.resume is None:
        raise TypeError(f"simulate(start=...) must be a Trace from simulate, got {type(start).__name__}.")
    then: Resume = start.resume
    for name in Request._fields:
        old, new = getattr(then.request, name), getattr(request, name)
        if not _same(old, new):
            shown = f": {old!r} then, {new!r} now" if name not in ("problem", "key") else ""
            raise ValueError(f"simulate(start=...) was run with another {name}{shown}; continue with the same.")
    reached = int(then.columns.rounds[-1])
    if rounds < reached:
        raise ValueError(f"simulate(rounds={rounds}, start=...) counts from x^0 and the trace is at {reached} already.")
    carry = jax.tree.map(jnp.copy, then.carry)
    if start.status != "diverged":
        status = loop.status_of(carry.grad_sq, carry.ceiling, setting.tolerance_sq)
        carry = carry._replace(status=jnp.asarray(status))
    return carry, then.columns


def _same(old: Any, new: Any) -> bool:
    """Equal as data: the same structure and bitwise the same leaves."""
    if old is new:
        return True
    leaves, others = jax.tree.leaves(old), jax.tree.leaves(new)
    if jax.tree.structure(old) != jax.tree.structure(new):
        return False
    return all(np.array_equal(_raw(a), _raw(b)) for a, b in zip(leaves, others, strict=True))


def _raw(leaf: Any) -> Any:
    is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _trace(
    request: Request,
    constants: tuple[AB, AB | None],
    whole: Columns,
    carry: loop.Carry,
    tolerance: float | None,
    verify: bool,
    record_every: int,
) -> Trace:
    return cut_trace(request, constants, whole, 0, carry, tolerance, verify, record_every, keep=True)


def cut_trace(
    request: Request,
    constants: tuple[AB, AB | None],
    whole: Columns,
    run: int,
    carry: loop.Carry,
    tolerance: float | None,
    verify: bool,
    record_every: int,
    keep: bool,
) -> Trace:
    """The trace of one run, cut at its own outcome; `carry` is that run's."""
    problem = request.problem
    status = STATUS[int(carry.status)]
    last = int(whole.rounds[-1]) if status == "completed" else int(carry.outcome_round)
    stop = int(np.searchsorted(whole.rounds, last)) + 1
    asked = (whole.rounds % record_every == 0) | (np.arange(len(whole.rounds)) == stop - 1)
    asked[stop:] = False
    rows = whole.take(asked)
    rounds = np.minimum(rows.rounds, last)
    one = {name: getattr(rows, name)[run] for name in rows._fields if name != "rounds"}
    d, slack = problem.dim, None
    if verify:
        slack = loop.Slack(*(float(v) for v in carry.slack))
    return Trace(
        rounds=rounds,
        **one,
        status=status,
        outcome_round=last,
        x=np.asarray(carry.state.x),
        stepsize=request.stepsize,
        tolerance=tolerance,
        uplink_constants=constants[0],
        downlink_constants=constants[1],
        smoothness=problem.smoothness,
        f_star=getattr(problem, "f_star", None),
        f_lower=getattr(problem, "f_lower", -math.inf),
        precision=str(problem.x0.dtype),
        initial_cost=InitialCost(Cost(d), Cost(d)),
        slack=slack,
        method=repr(request.uplink) + ("" if request.downlink is None else f" down {request.downlink!r}"),
        resume=Resume(request, carry, whole) if keep else None,
    )


def nearest(word: str, known: Any) -> str:
    """"; did you mean ...?" for the nearest known name, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
