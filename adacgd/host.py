"""The host's side of a run: requests checked before anything is compiled, and what comes back made a `Trace`."""

import math
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adacgd import loop
from adacgd.compressors.base import as_key
from adacgd.cost import Cost
from adacgd.drive import Drive, Progress
from adacgd.estimators import Estimator, Lifted, in_precision, lifted, rehearse
from adacgd.mechanisms import AB, GD, ThreePoint
from adacgd.oracles import Exact, Oracle
from adacgd.records import CONVERGED, DIVERGED, RUNNING, Carry, Setting, Slack
from adacgd.servers import Descent, HeavyBall, ProximalDescent, Server
from adacgd.trace import Columns, InitialCost, Trace
from adacgd.workers import Workers

STATUS = {RUNNING: "completed", CONVERGED: "converged", DIVERGED: "diverged"}


class Request(NamedTuple):
    """What a run was asked to be; `simulate(start=...)` compares it by these names."""

    problem: Any
    uplink: Any
    downlink: Any
    stepsize: float
    key: Any
    form: str = "dual"
    init: str = "exact"
    momentum: float = 0.0
    oracle: Any = None


class Asked(NamedTuple):
    """A request with all that follows from it before the first round."""

    request: Request
    constants: tuple[Any, Any]  # of both links; None: no downlink compression
    setting: Setting
    tolerance: float | None
    verify: bool


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
    progress: called on the host with (rounds done, rounds) now and then; it cannot touch the result.
    Raises ValueError or TypeError that names the argument before anything is compiled.
    """
    require_run("simulate", rounds, record_every, tolerance)
    asked = ask(Request(problem, uplink, downlink, stepsize, key, form, init, momentum, oracle), tolerance, verify)
    past, done = None, 0
    if start is None:
        first = starting_point(problem, x0)
        rehearse_links(asked, "simulate")
        carry, *costs = loop.ONE.begin(problem, asked.setting, first, init=init)
        initial = initial_cost(asked, *jax.device_get(costs))
    else:
        if x0 is not None:
            raise ValueError("simulate(start=..., x0=...): a continued run starts where the trace ended; leave out x0.")
        carry, past = _continued(asked, start, rounds, record_every)
        initial = start.initial_cost
        done = int(past.rounds[-1])
    drive = Drive(loop.ONE, problem, asked.setting, carry, ())
    whole = drive.run(done, rounds, record_every, past, progress)
    resume = Resume(asked.request, drive.carry, initial, whole, record_every, tolerance)
    return make_trace(asked, whole, 0, outcome_of(drive.carry), initial, record_every, resume)


def starting_point(problem: Any, x0: Any, owner: str = "simulate") -> jax.Array:
    """x^0 as a fresh array in the problem's precision: a run may give its buffers away, never the caller's."""
    if x0 is None:
        return jnp.array(problem.x0, copy=True)
    given = np.asarray(x0)
    if given.shape != (problem.dim,) or not np.issubdtype(given.dtype, np.number) or np.iscomplexobj(given):
        raise ValueError(f"{owner}(x0=...) must be {problem.dim} real numbers, got shape {given.shape} {given.dtype}.")
    first = jnp.array(given, dtype=problem.x0.dtype, copy=True)
    if hasattr(problem, "penalty") and not math.isfinite(problem.penalty(first)):
        raise ValueError(f"{owner}(x0=...) lies where r is infinite, outside the box of {problem.name}; start inside.")
    return first


def require_run(owner: str, rounds: Any, record_every: Any, tolerance: Any) -> None:
    """Integers and a tolerance that make sense. Raises ValueError."""
    for name, value, least in (("rounds", rounds, 0), ("record_every", record_every, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**31 - 1:
            raise ValueError(f"{owner}({name}=...) must be an integer in [{least}, 2**31 - 1), got {value!r}.")
    is_number = isinstance(tolerance, int | float | np.number) and not isinstance(tolerance, bool)
    if tolerance is not None and not (is_number and 0 < tolerance < math.inf):
        raise ValueError(f"{owner}(tolerance=...) must be a finite number > 0 or None, got {tolerance!r}.")


def ask(
    request: Request,
    tolerance: float | None = None,
    verify: bool = False,
    owner: str = "simulate",
    step: str = "stepsize",
) -> Asked:
    """The request made ready for the compiled loop, or an error that names what is wrong with it.

    owner, step: the function that was called and its argument that holds the step.
    """
    problem, uplink, downlink, stepsize = request.problem, request.uplink, request.downlink, request.stepsize
    for name in ("n", "dim", "loss", "grads", "x0", "smoothness"):
        if not hasattr(problem, name):
            raise TypeError(f"{owner}(problem=...) needs `{name}`; got {type(problem).__name__}. See problems.Problem.")
    if isinstance(stepsize, bool) or not isinstance(stepsize, int | float | np.number | jax.Array) or np.ndim(stepsize):
        raise TypeError(f"{owner}({step}=...): a step is one number > 0, got {stepsize!r}.")
    if not (math.isfinite(stepsize) and stepsize > 0):
        raise ValueError(f"{owner}({step}=...): a step is finite and > 0, got {float(stepsize)}.")
    _require_kind(owner, request)
    request = request._replace(stepsize=float(stepsize), key=as_key(request.key))

    dim, dtype = problem.dim, problem.x0.dtype
    up = lifted(uplink, "uplink", dim, dtype, owner)
    down = Lifted(GD()) if downlink is None else lifted(downlink, "downlink", dim, dtype, owner)
    constants = (_constants(uplink, dim, problem.n), None if downlink is None else _constants(downlink, dim, 1))
    x_star = getattr(problem, "x_star", None)
    setting = Setting(
        uplink=up,
        downlink=down,
        stepsize=jnp.asarray(request.stepsize, dtype),
        key=request.key,
        tolerance_sq=jnp.asarray(-1.0 if tolerance is None else float(tolerance) ** 2, dtype),
        expected=tuple(jnp.asarray(v, dtype) for v in _expected(problem, constants)) if verify else (),
        oracle=in_precision(_oracle(owner, request), dtype),
        server=_server(owner, request),
        star=() if x_star is None else (jnp.asarray(x_star, dtype),),
        workers=Workers(problem.n),
        form=request.form,
    )
    return Asked(request, constants, setting, tolerance, verify)


def _require_kind(owner: str, request: Request) -> None:
    """Names and a momentum that exist. Raises ValueError."""
    for name, allowed in (("form", ("dual", "primal")), ("init", ("exact", "compressed", "zero"))):
        if getattr(request, name) not in allowed:
            raise ValueError(
                f"{owner}({name}=...) must be one of {', '.join(allowed)}; got {getattr(request, name)!r}."
            )
    for where in ("uplink", "downlink"):
        link = getattr(request, where)
        starts = getattr(link, "starts", (request.init,))
        if request.init not in starts:
            raise ValueError(
                f"{owner}(init={request.init!r}): {type(link).__name__} presumes a first message; "
                f"use init={' or '.join(repr(start) for start in starts)}."
            )
    if request.form == "primal" and isinstance(request.downlink, Estimator):
        raise ValueError(
            f"{owner}(downlink={request.downlink!r}, form='primal') compresses the model, as a three point map does; "
            "the memories and triggers of other links are made for gradients. Use one such as EF21(TopK(3))."
        )
    eta = request.momentum
    if isinstance(eta, bool) or not isinstance(eta, int | float | np.number) or not 0 <= eta < 1:
        raise ValueError(f"{owner}(momentum=...) must be a number in [0, 1), got {eta!r}.")


def _oracle(owner: str, request: Request) -> Oracle:
    """What the workers compress. Raises TypeError where the problem has no rows for it."""
    oracle = request.oracle
    if oracle is None:
        return Exact()
    if not isinstance(oracle, Oracle):
        raise TypeError(f"{owner}(oracle=...) must be an oracle such as Minibatch(8), got {oracle!r}.")
    if oracle.needs_rows:
        if not hasattr(request.problem, "batch_grads"):
            name = getattr(request.problem, "name", type(request.problem).__name__)
            raise TypeError(f"{owner}(oracle={oracle!r}): {name} has no rows to draw a batch from; leave out oracle.")
        sizes = np.asarray(request.problem.sizes)
        if getattr(oracle, "batch", 1) > sizes.min():
            raise ValueError(
                f"{owner}(oracle={oracle!r}): batches of more rows than the {sizes.min()} of the smallest shard; use "
                f"batch <= {sizes.min()}, or leave out oracle for exact gradients."
            )
    return oracle


def _server(owner: str, request: Request) -> Server:
    """How x moves: with a prox where the problem has one, else with momentum where there is some."""
    if hasattr(request.problem, "prox"):
        if request.momentum:
            raise ValueError(f"{owner}(momentum={request.momentum:g}): not with a prox; use momentum=0.")
        return ProximalDescent()
    dtype = request.problem.x0.dtype
    return HeavyBall(jnp.asarray(request.momentum, dtype)) if request.momentum else Descent()


def _expected(problem: Any, constants: tuple[Any, Any]) -> tuple[float, ...]:
    """What `verify` holds a run against. Raises ValueError where a link has no (A, B)."""
    links = [AB(1.0, 0.0) if found is None else found for found in constants]
    for link in links:
        if not isinstance(link, AB):
            raise ValueError(
                f"simulate(verify=True) checks the three point inequality of each link, and one of them has none: "
                f"{getattr(link, 'why', link)} Leave out verify."
            )
    (A, B, *_), (A_M, B_M, *_) = links
    return A, B, A_M, B_M, problem.smoothness.L_minus, problem.smoothness.L_plus


def _constants(link: Any, dim: int, workers: int) -> Any:
    shares = getattr(link, "shares_randomness", False)
    found = link.constants(dim, workers=workers) if shares else link.constants(dim)
    if not isinstance(found, AB if isinstance(link, ThreePoint) else tuple):
        raise TypeError(f"{type(link).__name__}.constants(dim) must return ac.AB(A, B), got {found!r}.")
    return found


def rehearse_links(asked: Asked, owner: str) -> None:
    """`rehearse` both links of a request."""
    problem, setting, key = asked.request.problem, asked.setting, asked.request.key
    for where, link, workers in (("uplink", setting.uplink, problem.n), ("downlink", setting.downlink, 1)):
        shown = f"{owner}({where}={getattr(asked.request, where)!r})"
        rehearse(link, shown, key, problem.dim, problem.x0.dtype, workers)


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
    carry = jax.tree.map(jnp.copy, then.carry)  # the loop gives its buffers away; the trace keeps its own
    if int(carry.status) != DIVERGED:
        carry = carry._replace(status=loop.status_of(carry.grad_sq, carry.ceiling, asked.setting.tolerance_sq))
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
        method=_in_words(request),
        resume=resume,
    )


def _in_words(request: Request) -> str:
    """The method as legends name it."""
    defaults = Request._field_defaults
    options = [f"{name}={getattr(request, name)!r}" for name in defaults if getattr(request, name) != defaults[name]]
    down = [] if request.downlink is None else [f"down {request.downlink!r}"]
    return " ".join([repr(request.uplink), *down, *options])
