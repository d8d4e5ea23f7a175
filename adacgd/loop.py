"""The one loop: n simulated workers by `vmap`, rounds in compiled stretches, everything counted exactly.

    x^{t+1} = x^t - gamma g^t
    g_i^{t+1} = C_{g_i^t, grad f_i(x^t)}(grad f_i(x^{t+1})),   u^{t+1} = (1/n) sum_i g_i^{t+1}
    g^{t+1} = C^M_{g^t, u^t}(u^{t+1})

(theory.md section 2; the dual form of 3.4 with a downlink, g = u without one). `simulate` is the public face; the
compiled part is `advance` (one round) inside `stretch` (rounds up to the next recorded rows). A sweep maps `stretch`
over settings, so every scalar condition here is made with `anywhere`, which stays one number under `vmap`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from adacgd.compressors.base import Draw, Message, sq
from adacgd.estimators import Estimator
from adacgd.module import module

RUNNING, CONVERGED, DIVERGED = 0, 1, 2
BLOW_UP = 1e12  # diverged is |grad f|^2 above this times max(1, |grad f(x^0)|^2); no run that recovers comes near it
LONGEST_STRETCH = 32768  # rounds whose counts, as low 16 bits and the rest, fit two int32 whatever a message costs


class State(NamedTuple):
    """What the next round needs."""

    x: jax.Array  # (d,)
    grads: jax.Array  # (n, d) grad f_i(x)
    g_i: jax.Array  # (n, d) what the server holds of each
    u: jax.Array  # (d,) their mean
    g: jax.Array  # (d,) what everybody holds of u and steps along
    up_memory: Any  # pytree of (n, ...), what the uplink remembers besides
    down_memory: Any


class Count(NamedTuple):
    """A sum of counts that cannot overflow in a stretch: the low 16 bits of each, and the rest. int32."""

    low: jax.Array
    high: jax.Array

    def add(self, value: jax.Array) -> "Count":
        """One round more."""
        return Count(self.low + (value & 0xFFFF), self.high + (value >> 16))


class Tally(NamedTuple):
    """What is summed from one recorded row to the next."""

    sent: Count  # (n + 1, 2): scalars and extra bits of each worker, and in the last row of the server
    grad_sq: jax.Array  # () |grad f(x^t)|^2 summed over the rounds begun


class Slack(NamedTuple):
    """Left over right of each assumption that a run can see, the worst so far; at most 1 where it holds."""

    three_point: jax.Array  # () |g_i^+ - grad_i^+|^2 against (1-A)|g_i - grad_i|^2 + B|grad_i^+ - grad_i|^2
    L_minus: jax.Array  # () |grad f(x^+) - grad f(x)| against L_minus |x^+ - x|
    L_plus: jax.Array  # () root mean square over workers against L_plus |x^+ - x|


class Carry(NamedTuple):
    """A run in mid-flight."""

    state: State
    loss: jax.Array  # () f(x), if it was due this round
    loss_known: jax.Array  # () bool
    grad_sq: jax.Array  # () |grad f(x)|^2
    ceiling: jax.Array  # () |grad f|^2 above which the run counts as diverged
    level: jax.Array  # (n,) int32 of the last round
    status: jax.Array  # () int32: RUNNING, CONVERGED, DIVERGED
    outcome_round: jax.Array  # () int32: where the status was decided
    tally: Tally
    slack: Slack | None  # None unless asked for


class Row(NamedTuple):
    """What is recorded of a round."""

    loss: jax.Array  # ()
    grad_sq: jax.Array  # ()
    G: jax.Array  # () (1/n) sum |g_i - grad f_i(x)|^2; |u - grad f(x)|^2 of an uplink with `of_mean`
    H: jax.Array  # () |g - u|^2
    level: jax.Array  # (n,)
    tally: Tally


@module
class Setting:
    """All of a run but its problem: every leaf can be swept."""

    uplink: Estimator
    downlink: Estimator
    stepsize: jax.Array  # ()
    key: jax.Array  # ()
    tolerance_sq: jax.Array  # (), negative: none
    expected: tuple[jax.Array, ...]  # (A, B, L_minus, L_plus) that `verify` holds the run against; () without


@custom_vmap
def anywhere(flag: jax.Array) -> jax.Array:
    """Whether the flag is up in any run of a sweep: () bool that stays one number under `vmap`."""
    return flag


@anywhere.def_vmap
def _anywhere_batched(size: int, batched: list[bool], flag: jax.Array) -> tuple[jax.Array, bool]:
    return anywhere(jnp.any(flag, axis=0)), False


@custom_vmap
def _keep(alive: jax.Array, new: Any, old: Any) -> Any:
    """`new` where the run is alive: a run that has ended in a sweep is frozen. Alone, it does not get here."""
    return new


@_keep.def_vmap
def _keep_batched(size: int, batched: list[Any], alive: jax.Array, new: Any, old: Any) -> tuple[Any, Any]:
    def frozen(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(alive.reshape(alive.shape + (1,) * (max(a.ndim, b.ndim) - alive.ndim)), a, b)

    spread = [
        jax.tree.map(lambda leaf, b: leaf if b else jnp.broadcast_to(leaf, (size, *leaf.shape)), tree, flags)
        for tree, flags in ((new, batched[1]), (old, batched[2]))
    ]
    kept = jax.tree.map(frozen, *spread)
    return kept, jax.tree.map(lambda _: True, kept)


def advance(problem: Any, setting: Setting, t: jax.Array, s: State, row_ends_here: jax.Array) -> tuple[Any, ...]:
    """Round t: from x^t to x^{t+1}. Returns the new state, f (NaN unless the row ends here) and both messages.

    The gradient stands in a `cond` that no compiler can look through, so that the vector that is sent, the one that is
    measured and the one kept as y are the same bits.
    """
    up_key, down_key, common = (jax.random.fold_in(jax.random.fold_in(setting.key, t), i) for i in range(3))
    x = s.x - setting.stepsize * s.g
    loss, grads = jax.lax.cond(
        row_ends_here,
        lambda x: loss_and_grads(problem, x),
        lambda x: (jnp.full((), jnp.nan, x.dtype), problem.grads(x)),
        x,
    )

    def send(worker: jax.Array, memory: Any, h: jax.Array, y: jax.Array, new: jax.Array) -> tuple[Message, Any]:
        draw = Draw(jax.random.fold_in(up_key, worker), common, t, worker, problem.n)
        return setting.uplink.step(draw, memory, h, y, new)

    up, up_memory = jax.vmap(send)(jnp.arange(problem.n), s.up_memory, s.g_i, s.grads, grads)
    u = jnp.mean(up.value, axis=0)
    server = jnp.zeros((), jnp.int32)
    # common to the server alone: its draws are independent of the workers'
    draw = Draw(jax.random.fold_in(down_key, server), jax.random.fold_in(down_key, 1), t, server, 1)
    down, down_memory = setting.downlink.step(draw, s.down_memory, s.g, s.u, u)
    return State(x, grads, up.value, u, down.value, up_memory, down_memory), loss, up, down


def loss_and_grads(problem: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """f(x) and the gradients of all workers, in one pass where the problem offers it."""
    if hasattr(problem, "loss_and_grads"):
        return problem.loss_and_grads(x)
    return problem.loss(x), problem.grads(x)


def status_of(grad_sq: jax.Array, ceiling: jax.Array, tolerance_sq: jax.Array) -> jax.Array:
    """Diverged comes before converged; NaN is diverged."""
    diverged = ~(grad_sq <= ceiling)
    return jnp.where(diverged, DIVERGED, jnp.where(grad_sq <= tolerance_sq, CONVERGED, RUNNING)).astype(jnp.int32)


def begin(problem: Any, setting: Setting, x0: jax.Array) -> Carry:
    """The run at x^0: every worker has sent its gradient whole (`Trace.initial_cost`), nothing else is counted."""
    n = problem.n
    loss, grads = loss_and_grads(problem, x0)
    u = jnp.mean(grads, axis=0)
    grad_sq = sq(u)
    memories = jax.vmap(setting.uplink.init)(grads), setting.downlink.init(u)
    # minimum propagates a NaN of the loss, and infinity * 0 is one too: then no gradient norm passes the ceiling
    ceiling = BLOW_UP * jnp.maximum(1, jnp.where(jnp.isfinite(grad_sq), grad_sq, jnp.nan)) + 0 * loss
    status = status_of(grad_sq, ceiling, setting.tolerance_sq)
    zero = jnp.zeros((), x0.dtype)
    return Carry(
        state=State(x0, grads, grads, u, u, *memories),
        loss=loss,
        loss_known=jnp.array(True),
        grad_sq=grad_sq,
        ceiling=ceiling,
        level=jnp.zeros(n, jnp.int32),
        status=status,
        outcome_round=jnp.zeros((), jnp.int32),
        tally=_no_tally(n, x0.dtype),
        slack=Slack(zero, zero, zero) if setting.expected else None,
    )


def _no_tally(n: int, dtype: Any) -> Tally:
    nothing = jnp.zeros((n + 1, 2), jnp.int32)
    return Tally(Count(nothing, nothing), jnp.zeros((), dtype))


def record(carry: Carry, of_mean: bool) -> Row:
    """The row of the round that was just done. of_mean: as the uplink says of itself."""
    s = carry.state
    return Row(carry.loss, carry.grad_sq, jnp.mean(_errors(s, of_mean)), sq(s.g - s.u), carry.level, carry.tally)


def _errors(s: State, of_mean: bool) -> jax.Array:
    """The squared errors that the law of the uplink speaks of: (n,), or (1,) of the mean over workers."""
    error = s.g_i - s.grads
    return sq(jnp.mean(error, axis=0, keepdims=True) if of_mean else error)


def one_round(problem: Any, setting: Setting, t: jax.Array, carry: Carry, row_ends_here: jax.Array) -> Carry:
    """`advance`, counted, judged and, in a sweep, undone for the runs that have ended."""
    state, loss, up, down = advance(problem, setting, t, carry.state, row_ends_here)
    grad_sq = sq(jnp.mean(state.grads, axis=0))
    status = status_of(grad_sq, carry.ceiling, setting.tolerance_sq)
    sent = jnp.concatenate([jnp.stack(up.cost, axis=1), jnp.stack(down.cost)[None]])
    tally = Tally(carry.tally.sent.add(sent), carry.tally.grad_sq + carry.grad_sq)
    slack = None
    if setting.expected:
        seen = _slack(setting.expected, carry.state, state, setting.uplink.of_mean)
        slack = jax.tree.map(jnp.maximum, carry.slack, seen)
    new = Carry(
        state, loss, row_ends_here, grad_sq, carry.ceiling, up.level, status, (t + 1).astype(jnp.int32), tally, slack
    )
    return _keep(carry.status == RUNNING, new, carry)


def _slack(expected: tuple[jax.Array, ...], old: State, new: State, of_mean: bool) -> Slack:
    """Left over right of this round's inequalities; the right side allows for rounding, as the trigger does."""
    A, B, L_minus, L_plus = expected
    eps = jnp.finfo(old.x.dtype).eps
    step = jnp.sqrt(sq(new.x - old.x))
    moved = new.grads - old.grads
    of_link = lambda squares: jnp.mean(squares, keepdims=True) if of_mean else squares
    right = (1 - A) * _errors(old, of_mean) + B * (1 + 64 * eps) * of_link(sq(moved))
    floor = (4 * eps) ** 2 * of_link(sq(new.grads) + sq(old.grads)) + jnp.finfo(old.x.dtype).tiny
    size = jnp.sqrt(jnp.mean(sq(new.grads))) * 64 * eps + jnp.finfo(old.x.dtype).tiny
    return Slack(
        jnp.max(_errors(new, of_mean) / (right + floor)),
        jnp.sqrt(sq(jnp.mean(moved, axis=0))) / (L_minus * step + size),
        jnp.sqrt(jnp.mean(sq(moved))) / (L_plus * step + size),
    )


def stretch(
    problem: Any, setting: Setting, carry: Carry, t: jax.Array, ends: jax.Array, rows: jax.Array
) -> tuple[Carry, jax.Array, Row]:
    """Rounds from t up to ends[rows - 1], recording one row at each of `ends`; stops when no run is alive.

    ends: (C,) int32 with `rows` entries that count, at most LONGEST_STRETCH apart. Returns the carry, the round
    reached, and rows stacked along a first axis of length C. The lengths are data, so that no number of rounds and no
    recording interval compiles anything again.
    """
    of_mean = setting.uplink.of_mean
    table = jax.tree.map(lambda leaf: jnp.zeros((ends.shape[0], *leaf.shape), leaf.dtype), record(carry, of_mean))

    def alive(carry: Carry) -> jax.Array:
        return anywhere(carry.status == RUNNING)

    def to_next_row(loop: tuple[Any, ...]) -> tuple[Any, ...]:
        row, t, carry, table = loop
        carry = carry._replace(tally=_no_tally(problem.n, carry.grad_sq.dtype))

        def going(inner: tuple[jax.Array, Carry]) -> jax.Array:
            return (inner[0] < ends[row]) & alive(inner[1])

        def body(inner: tuple[jax.Array, Carry]) -> tuple[jax.Array, Carry]:
            t, carry = inner
            return t + 1, one_round(problem, setting, t, carry, t + 1 == ends[row])

        t, carry = jax.lax.while_loop(going, body, (t, carry))
        loss = jax.lax.cond(
            anywhere(~carry.loss_known),
            lambda x, loss: problem.loss(x),
            lambda x, loss: loss,
            carry.state.x,
            carry.loss,
        )
        carry = carry._replace(loss=jnp.where(carry.loss_known, carry.loss, loss), loss_known=jnp.array(True))
        table = jax.tree.map(lambda all_rows, new: all_rows.at[row].set(new), table, record(carry, of_mean))
        return row + 1, t, carry, table

    _, t, carry, table = jax.lax.while_loop(
        lambda loop: (loop[0] < rows) & alive(loop[2]), to_next_row, (jnp.zeros((), jnp.int32), t, carry, table)
    )
    return carry, t, table


begin_one = jax.jit(begin)
stretch_one = jax.jit(stretch, donate_argnames="carry")
begin_many = jax.jit(jax.vmap(begin, (None, 0, None)))


@functools.partial(jax.jit, donate_argnames="carry")
def stretch_many(problem: Any, setting: Setting, carry: Carry, t: Any, ends: Any, rows: Any) -> Any:
    """`stretch` for every setting of a sweep at once: all leaves of setting and carry have a first axis."""
    return jax.vmap(stretch, (None, 0, 0, None, None, None), (0, None, 0))(problem, setting, carry, t, ends, rows)
