"""The host's side of a run: where it runs, what it goes on from, and what comes back made a `Trace`."""

import math
import operator
from typing import Any, NamedTuple

import jax
import numpy as np

from adacgd import loop, parallel
from adacgd.cost import Cost
from adacgd.drive import Drive, Progress
from adacgd.oracles import Oracle
from adacgd.records import CONVERGED, DIVERGED, RUNNING, Carry, Slack
from adacgd.request import Asked, Request, ask, in_words, rehearse_links, require_run, starting_point
from adacgd.trace import Columns, InitialCost, Trace

STATUS = {RUNNING: "completed", CONVERGED: "converged", DIVERGED: "diverged"}


class Resume(NamedTuple):
    """What a finished trace keeps so that it can be continued."""

    request: Request
    carry: Carry
    initial_cost: InitialCost
    columns: Columns
    record_every: int
    tolerance: float | None  # every round before the last was above it


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
    form: str = "dual",
    init: str = "exact",
    momentum: float = 0.0,
    oracle: Oracle | None = None,
    devices: Any = None,
    aggregate: str = "exact",
    progress: Progress | None = None,
) -> Trace:
    """Run compressed gradient descent: every worker applies `uplink`, the server `downlink` (without one it sends u).

    problem: has `n`, `dim`, `loss(x)`, `grads(x)`, `x0`, `smoothness`; with a `prox` (`problems.composite`) every step
        is followed by it, the trace's loss is f + r and its |grad f|^2 is |M(x)|^2 of theory.md 3.5.
    uplink, downlink: maps or estimators.
    stepsize: gamma > 0. rounds: T >= 0, counted from x^0 also when `start` is given. x0: (d,), the problem's if None.
    key: a JAX key or an int in [0, 2^32). record_every: rows 0, k, 2k, ... and the last; it changes nothing else.
    tolerance: stop, "converged", at the first |grad f(x)| <= tolerance (not squared).
    start: a trace of the same problem, links, stepsize, key, verify, form, init, momentum and oracle to continue up to
        round `rounds`; the result is the uninterrupted run, and what would make it another is refused.
    verify: carry the worst slack of the three point and smoothness inequalities, and where it was seen.
    form: "dual", the downlink compresses the aggregate g; or "primal", it compresses the model x, and gradients are
        taken at what arrives (theory.md 3.4). init: "exact", every worker's first gradient is sent whole; "compressed",
        what the links make of it from h = y = 0 (a trigger with zeta >= 1 is then silent); or "zero". momentum: eta of
        the heavy ball, in [0, 1).
    oracle: `Minibatch`, `Momentum` or `PAGE`, which take the place of the exact gradients that are compressed.
    devices: a number, "all" or a list of jax devices, over which the workers are spread in equal parts. aggregate:
        "exact", the same bits on any number of them; or "fast", equal to rounding, one reduction a round.
    progress: called on the host with (rounds done, rounds) now and then; it cannot touch the result.
    Raises ValueError or TypeError that names the argument before anything is compiled.
    """
    require_run("simulate", rounds, record_every, tolerance)
    asked = ask(Request(problem, uplink, downlink, stepsize, key, form, init, momentum, oracle), tolerance, verify)
    mesh = parallel.mesh_of("simulate", devices, problem.n)
    asked = asked.over(parallel.workers_of("simulate", problem, mesh, aggregate))
    site = parallel.ready(mesh, problem, asked.setting)
    past, done = None, 0
    if start is None:
        first = starting_point(problem, x0)
        rehearse_links(asked, "simulate")
        carry, *costs = site.programs.begin(site.problem, site.setting, site.point(first), init=init)
        initial = initial_cost(asked, *jax.device_get(costs))
    else:
        if x0 is not None:
            raise ValueError("simulate(start=..., x0=...): a continued run starts where the trace ended; leave out x0.")
        carry, past = _continued(asked, start, rounds, record_every)
        carry = site.carry(carry)
        initial = start.initial_cost
        done = int(past.rounds[-1])
    drive = Drive(site.programs, site.problem, site.setting, carry, ())
    whole = drive.run(done, rounds, record_every, past, progress)
    resume = Resume(asked.request, drive.carry, initial, whole, record_every, tolerance)
    return make_trace(asked, whole, 0, outcome_of(drive.carry), initial, record_every, resume)


def _continued(asked: Asked, start: Trace, rounds: int, record_every: int) -> tuple[Carry, Columns]:
    """The carry and rows of `start`, if it is a run of the same request that has not gone further."""
    if not isinstance(start, Trace) or start.resume is None:
        raise TypeError(f"simulate(start=...) must be a Trace from simulate, got {type(start).__name__}.")
    then: Resume = start.resume
    for name in Request._fields:
        old, new = getattr(then.request, name), getattr(asked.request, name)
        if not _same(old, new):
            shown = f": {old!r} then, {new!r} now" if name not in ("problem", "key") else ""
            raise ValueError(f"simulate(start=...) was run with another {name}{shown}; continue with the same.")
    reached = int(then.columns.rounds[-1])
    if rounds < reached:
        raise ValueError(f"simulate(rounds={rounds}, start=...) counts from x^0 and the trace is at {reached} already.")
    if asked.verify != (then.carry.slack is not None):
        had, remedy = ("without", "leave it out, or run") if asked.verify else ("with", "give it again, or run")
        raise ValueError(
            f"simulate(verify={asked.verify}, start=...): the trace was run {had} verify=True and has "
            f"{'no' if asked.verify else 'a'} slack to carry on; {remedy} anew from round 0."
        )
    if reached > 0 and record_every % then.record_every:
        raise ValueError(
            f"simulate(record_every={record_every}, start=...): the trace has rows every {then.record_every} rounds; "
            f"continue with a multiple of {then.record_every}, or run anew from round 0."
        )
    _require_no_earlier_hit(asked, then)
    carry = then.carry
    if int(carry.status) != DIVERGED:
        measured = jax.device_get((carry.grad_sq, carry.ceiling, asked.setting.tolerance_sq))
        carry = carry._replace(status=loop.status_of(*measured))
    return carry, then.columns


def _require_no_earlier_hit(asked: Asked, then: Resume) -> None:
    """The uninterrupted run ends at its first hit, so a continued one must not have passed it. Raises ValueError."""
    if asked.tolerance is None or (then.tolerance is not None and then.tolerance >= asked.tolerance):
        return
    rounds, grad_sq = then.columns.rounds[:-1], then.columns.grad_sq[0, :-1]
    told = f"simulate(tolerance={asked.tolerance:g}, start=...): the trace"
    remedy = "run anew from round 0 with this tolerance, or continue without one."
    hits = rounds[grad_sq <= np.asarray(asked.setting.tolerance_sq)]
    if hits.size:
        raise ValueError(f"{told} was within it at round {hits[0]} already and went on; {remedy}")
    if len(rounds) != then.columns.rounds[-1]:
        raise ValueError(
            f"{told} ran with {then.tolerance} and does not hold every round, so may have hit it; {remedy}"
        )


def _same(old: Any, new: Any) -> bool:
    """Equal as data: the same structure and bitwise the same leaves."""
    if old is new:
        return True
    leaves, others = jax.tree.leaves(old), jax.tree.leaves(new)
    alike = bool(operator.eq(jax.tree.structure(old), jax.tree.structure(new)))
    return alike and all(np.array_equal(_raw(a), _raw(b)) for a, b in zip(leaves, others, strict=True))


def _raw(leaf: Any) -> Any:
    is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


class Outcome(NamedTuple):
    """How one run ended."""

    status: int
    round: int
    x: np.ndarray
    slack: Slack | None
    slack_rounds: Slack | None


def outcome_of(carry: Carry) -> Outcome:
    """Off the device, what a trace needs of the last carry; of a sweep, each with a first axis (S,)."""
    parts = (carry.status, carry.outcome_round, carry.state.x, carry.slack, carry.slack_rounds)
    return Outcome(*jax.device_get(parts))


def initial_cost(asked: Asked, up: Cost, down: Cost) -> InitialCost:
    """What was sent before round 0: of every worker alike, or (n,) counts where messages differ."""
    broadcast = Cost(*(int(count) for count in down))
    alike = asked.request.init != "compressed"
    each: Any = [int(count[0]) if alike else np.asarray(count, np.int64) for count in jax.device_get(up)]
    return InitialCost(Cost(*each), broadcast)


def make_trace(
    asked: Asked,
    whole: Columns,
    run: int,
    outcome: Outcome,
    initial: InitialCost,
    record_every: int,
    resume: Resume | None = None,
) -> Trace:
    """The trace of run number `run` of the columns, cut at its own outcome."""
    request, problem = asked.request, asked.request.problem
    status = STATUS[int(outcome.status)]
    last = int(whole.rounds[-1]) if status == "completed" else int(outcome.round)
    stop = int(np.searchsorted(whole.rounds, last))
    kept = (whole.rounds % record_every == 0) & (np.arange(len(whole.rounds)) < stop)
    kept[stop] = True
    return Trace(
        rounds=np.minimum(whole.rounds[kept], last),
        **whole.of(run, kept),
        status=status,
        outcome_round=last,
        x=np.asarray(outcome.x),
        stepsize=request.stepsize,
        tolerance=asked.tolerance,
        uplink_constants=asked.constants[0],
        downlink_constants=asked.constants[1],
        smoothness=problem.smoothness,
        f_star=getattr(problem, "f_star", None),
        f_lower=getattr(problem, "f_lower", -math.inf),
        precision=str(problem.x0.dtype),
        initial_cost=initial,
        form=request.form,
        init=request.init,
        momentum=float(request.momentum),
        prox=asked.setting.server.prox,
        exact_gradients=not asked.setting.oracle.needs_rows,
        slack=jax.tree.map(float, outcome.slack) if asked.verify else None,
        slack_rounds=jax.tree.map(int, outcome.slack_rounds) if asked.verify else None,
        method=in_words(request),
        resume=resume,
    )
