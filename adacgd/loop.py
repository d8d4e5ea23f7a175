"""The one loop: n simulated workers by `vmap`, rounds in compiled stretches, everything counted exactly.

    x^{t+1} = x^t - gamma g^t                                                    (`servers`: momentum, prox)
    g_i^{t+1} = C_{g_i^t, grad f_i(x^t)}(grad f_i(x^{t+1})),   u^{t+1} = (1/n) sum_i g_i^{t+1}
    g^{t+1} = C^M_{g^t, u^t}(u^{t+1})

(theory.md section 2; the dual form of 3.4 with a downlink, g = u without one.) In the primal form the server
compresses the model: g = u, w^{t+1} = C^M_{w^t, x^t}(x^{t+1}), and gradients are taken at w. An oracle puts v_i in the
place of the gradients that are compressed. `simulate` is the public face; the compiled part is `advance` (one round)
inside `stretch` (rounds up to the next recorded rows). A sweep maps `stretch` over settings, so every scalar condition
here is made with `anywhere`, which stays one number under `vmap`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from adacgd.compressors.base import Draw, Message, sq
from adacgd.cost import Cost
from adacgd.estimators import Estimator
from adacgd.form import checked
from adacgd.records import (
    CONVERGED,
    DIVERGED,
    RUNNING,
    Carry,
    Count,
    Row,
    Setting,
    Slack,
    State,
    Tally,
    anywhere,
    keep,
)
from adacgd.workers import Workers, tree_sum

BLOW_UP = 1e12  # diverged is |grad f|^2 above this times max(1, |grad f(x^0)|^2); no run that recovers comes near it
LONGEST_STRETCH = 32768  # rounds whose counts, as low 16 bits and the rest, fit two int32 whatever a message costs
BEFORE = 2**32 - 1  # the round of the messages before round 0, for their keys; no round is so late


class Keys(NamedTuple):
    """The randomness of one round: key -> round -> link or oracle -> worker."""

    up: jax.Array
    down: jax.Array
    common: jax.Array
    oracle: jax.Array
    coin: jax.Array


def keys_of(key: jax.Array, t: Any) -> Keys:
    """Those of round t, absolute."""
    return Keys(*(jax.random.fold_in(jax.random.fold_in(key, t), i) for i in range(5)))


def each(key: jax.Array, workers: Workers) -> jax.Array:
    """A key for each worker here."""
    return jax.vmap(lambda worker: jax.random.fold_in(key, worker))(workers.ids)


def draw_of_server(keys: Keys, t: Any, moved: jax.Array, gamma: jax.Array) -> Draw:
    """The randomness of the downlink: what is common is common to the server alone, independent of the workers'."""
    server = jnp.zeros((), jnp.int32)
    return Draw(jax.random.fold_in(keys.down, server), jax.random.fold_in(keys.down, 1), t, server, 1, moved, gamma)


def look(
    problem: Any, setting: Setting, keys: Keys, x: jax.Array, w: Any, s: State, with_loss: bool
) -> tuple[Any, ...]:
    """f(x) (NaN without), the gradients at the workers' model, grad f(x) and v."""
    primal, workers = setting.form == "primal", setting.workers
    if with_loss:
        loss, grads = loss_and_grads(problem, workers, x)
    else:
        loss, grads = jnp.full((), jnp.nan, x.dtype), problem.grads(x)
    grad = workers.mean(grads)
    grads = problem.grads(w) if primal else grads
    model = w if primal else x
    v = setting.oracle.step(problem, each(keys.oracle, workers), keys.coin, s.model, model, s.v, grads)
    return loss, grads, grad, v


def advance(problem: Any, setting: Setting, t: jax.Array, s: State, row_ends_here: jax.Array) -> tuple[Any, ...]:
    """Round t: from x^t to x^{t+1}. Returns the new state, f (NaN unless the row ends here) and both messages.

    The gradient stands in a `cond` that no compiler can look through, so that the vector that is sent, the one that is
    measured and the one kept as y are the same bits.
    """
    keys, gamma = keys_of(setting.key, t), setting.stepsize
    x, server_memory = setting.server.step(problem, gamma, s.x, s.direction, s.server_memory)
    draw = draw_of_server(keys, t, x - s.x, gamma)
    primal = setting.form == "primal"
    if primal:
        down, down_memory = sent(setting.downlink, draw, s.down_memory, s.w, s.x, x)
    w = down.value if primal else ()
    loss, grads, grad, v = jax.lax.cond(
        row_ends_here,
        lambda x, w: look(problem, setting, keys, x, w, s, True),
        lambda x, w: look(problem, setting, keys, x, w, s, False),
        x,
        w,
    )
    moved = w - s.w if primal else x - s.x
    up, up_memory = send_all(problem, setting, keys, t, s, grads if isinstance(v, tuple) else v, moved)
    u = setting.workers.mean(up.value)
    if not primal:
        down, down_memory = sent(setting.downlink, draw, s.down_memory, s.g, s.u, u)
    g = () if primal else down.value
    new = State(x, w, grads, grad, v, up.value, u, g, up_memory, down_memory, server_memory)
    return new, loss, up, down


def sent(link: Estimator, draw: Draw, memory: Any, h: Any, y: Any, x: Any) -> tuple[Message, Any]:
    """One step of a link, its counts int32 scalars; an error where an own one breaks the form."""
    message, memory = link.step(draw, memory, h, y, x)
    return checked(link, message, x), memory


def send_all(
    problem: Any, setting: Setting, keys: Keys, t: Any, s: State, targets: jax.Array, moved: jax.Array
) -> tuple[Message, Any]:
    """The messages of the workers here, and their memories. moved: (d,) how the model that they hold moved."""

    def send(worker: jax.Array, memory: Any, h: jax.Array, y: jax.Array, new: jax.Array) -> tuple[Message, Any]:
        private = jax.random.fold_in(keys.up, worker)
        draw = Draw(private, keys.common, t, worker, setting.workers.n, moved, setting.stepsize)
        return sent(setting.uplink, draw, memory, h, y, new)

    return jax.vmap(send)(setting.workers.ids, s.up_memory, s.g_i, s.targets, targets)


def loss_of(problem: Any, workers: Workers, x: jax.Array) -> jax.Array:
    """f(x): the mean of the f_i where the problem tells them apart."""
    return workers.mean(problem.losses(x)) if hasattr(problem, "losses") else problem.loss(x)


def loss_and_grads(problem: Any, workers: Workers, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """f(x) and the gradients of the workers here, in one pass where the problem offers it."""
    if hasattr(problem, "losses_and_grads"):
        losses, grads = problem.losses_and_grads(x)
        return workers.mean(losses), grads
    return loss_of(problem, workers, x), problem.grads(x)


def status_of(grad_sq: jax.Array, ceiling: jax.Array, tolerance_sq: jax.Array) -> jax.Array:
    """Diverged comes before converged; NaN is diverged."""
    diverged = ~(grad_sq <= ceiling)
    return jnp.where(diverged, DIVERGED, jnp.where(grad_sq <= tolerance_sq, CONVERGED, RUNNING)).astype(jnp.int32)


def begin(problem: Any, setting: Setting, x0: jax.Array, init: str) -> tuple[Carry, Cost, Cost]:
    """The run at x^0 after what `init` sends, which stands in no row: the cost of each worker and of the server.

    exact: g_i^0 = v_i^0, d scalars each, and their mean, d scalars. compressed: g_i^0 and g^0 are what the links make
    of it from h = y = 0. zero: nothing. In the primal form everybody is given x^0 whole.
    """
    workers, d, primal = setting.workers, x0.shape[0], setting.form == "primal"
    keys = keys_of(setting.key, jnp.uint32(BEFORE))
    loss, grads = loss_and_grads(problem, workers, x0)
    v = setting.oracle.init(problem, each(keys.oracle, workers), x0, grads)
    targets = grads if isinstance(v, tuple) else v
    grad, w = workers.mean(grads), x0 if primal else ()

    whole, nothing = jnp.int32(d), jnp.int32(0)
    h = targets if init == "exact" else jnp.zeros_like(targets)
    memory = jax.vmap(setting.uplink.init)(h)
    up = Cost(*(jnp.full(workers.here, count) for count in (whole if init == "exact" else nothing, nothing)))
    if init == "compressed":
        past = State(x0, w, jnp.zeros_like(grads), grad, (), h, h[0], (), memory, (), ())
        messages, memory = send_all(problem, setting, keys, jnp.uint32(BEFORE), past, targets, jnp.zeros_like(x0))
        h, up = messages.value, messages.cost
    u = workers.mean(h)

    g = () if primal else u
    down_memory = setting.downlink.init(x0 if primal else u)
    down = Cost(whole if primal or init == "exact" else nothing, nothing)
    if init == "compressed" and not primal:
        still = jnp.zeros_like(u)
        draw = draw_of_server(keys, jnp.uint32(BEFORE), still, setting.stepsize)
        first, down_memory = sent(setting.downlink, draw, setting.downlink.init(still), still, still, u)
        g, down = first.value, first.cost

    state = State(x0, w, grads, grad, v, h, u, g, memory, down_memory, setting.server.init(u))
    grad_sq = setting.server.measure(problem, setting.stepsize, x0, state.grad)
    loss = loss + problem.penalty(x0) if setting.server.prox else loss
    # minimum propagates a NaN of the loss, and infinity * 0 is one too: then no gradient norm passes the ceiling
    ceiling = BLOW_UP * jnp.maximum(1, jnp.where(jnp.isfinite(grad_sq), grad_sq, jnp.nan)) + 0 * loss
    status = status_of(grad_sq, ceiling, setting.tolerance_sq)
    zero, first_round = jnp.zeros((), x0.dtype), jnp.zeros((), jnp.int32)
    carry = Carry(
        state=state,
        loss=loss,
        loss_known=jnp.array(True),
        grad_sq=grad_sq,
        ceiling=ceiling,
        level=jnp.zeros(workers.here, jnp.int32),
        status=status,
        outcome_round=first_round,
        best_sq=grad_sq,
        best_round=first_round,
        tally=_no_tally(workers.here, x0.dtype, distance_sq(setting, x0)),
        slack=Slack(zero, zero, zero, zero) if setting.expected else None,
        slack_rounds=Slack(*[first_round] * 4) if setting.expected else None,
    )
    return carry, up, down


def distance_sq(setting: Setting, x: jax.Array) -> jax.Array:
    """|x - x*|^2, NaN where no minimiser is known."""
    return sq(x - setting.star[0]) if setting.star else jnp.full((), jnp.nan, x.dtype)


def _no_tally(workers: int, dtype: Any, farthest_sq: jax.Array) -> Tally:
    nothing = lambda *shape: Count(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32))
    zero = jnp.zeros((), dtype)
    return Tally(nothing(workers, 2), nothing(2), zero, zero, farthest_sq)


def record(problem: Any, setting: Setting, carry: Carry) -> Row:
    """The row of the round that was just done."""
    s = carry.state
    return Row(
        carry.loss,
        carry.grad_sq,
        _errors(setting, s, s.grads),
        sq(s.direction - s.u),
        sq(s.model - s.x),
        _shift_error(problem, setting, s),
        distance_sq(setting, s.x),
        carry.level,
        carry.best_sq,
        carry.best_round,
        carry.tally,
    )


def _shift_error(problem: Any, setting: Setting, s: State) -> jax.Array:
    """mean |shift_i - grad f_i(x*)|^2."""
    shifts = jax.vmap(setting.uplink.shift)(s.up_memory, s.g_i)
    if shifts is None or not setting.star:
        return jnp.full((), jnp.nan, s.x.dtype)
    return setting.workers.mean(sq(shifts - problem.grads(setting.star[0])))


def _errors(setting: Setting, s: State, targets: jax.Array) -> jax.Array:
    """The squared errors that the law of the uplink speaks of: of the workers here, or (1,) of the mean over all."""
    error = s.g_i - targets
    if not setting.uplink.of_mean:
        return sq(error)
    of_mean = setting.workers.mean(error)
    return tree_sum(of_mean * of_mean)[None]  # in one order: of a single row compilers reduce as they please


def one_round(problem: Any, setting: Setting, t: jax.Array, carry: Carry, row_ends_here: jax.Array) -> Carry:
    """`advance`, counted, judged and, in a sweep, undone for the runs that have ended."""
    old = carry.state
    state, loss, up, down = advance(problem, setting, t, old, row_ends_here)
    grad_sq = setting.server.measure(problem, setting.stepsize, state.x, state.grad)
    loss = loss + problem.penalty(state.x) if setting.server.prox else loss
    status = status_of(grad_sq, carry.ceiling, setting.tolerance_sq)
    tally = Tally(
        carry.tally.up.add(jnp.stack(up.cost, axis=1)),
        carry.tally.down.add(jnp.stack(down.cost)),
        carry.tally.grad_sq + carry.grad_sq,
        carry.tally.shadow_sq + _shadow_sq(problem, setting, old),
        jnp.maximum(carry.tally.farthest_sq, distance_sq(setting, state.x)),
    )
    slack, slack_rounds, reached = carry.slack, carry.slack_rounds, (t + 1).astype(jnp.int32)
    if setting.expected:
        seen = _slack(setting, old, state)
        slack_rounds = jax.tree.map(lambda a, b, r: jnp.where(b > a, reached, r), slack, seen, slack_rounds)
        slack = jax.tree.map(jnp.maximum, slack, seen)
    new = Carry(
        state,
        loss,
        row_ends_here,
        grad_sq,
        carry.ceiling,
        up.level,
        status,
        reached,
        jnp.where(grad_sq < carry.best_sq, grad_sq, carry.best_sq),
        jnp.where(grad_sq < carry.best_sq, reached, carry.best_round),
        tally,
        slack,
        slack_rounds,
    )
    return keep(carry.status == RUNNING, new, carry)


def _shadow_sq(problem: Any, setting: Setting, s: State) -> jax.Array:
    """|grad f(z)|^2 of a server whose theorem speaks of z; else 0."""
    if not setting.server.shadow:
        return jnp.zeros((), s.x.dtype)
    return sq(setting.workers.mean(problem.grads(setting.server.z(setting.stepsize, s.x, s.server_memory))))


def _slack(setting: Setting, old: State, new: State) -> Slack:
    """Left over right of this round's inequalities; the right side allows for rounding, as the trigger does."""
    A, B, A_M, B_M, L_minus, L_plus = setting.expected
    workers = setting.workers
    of_link = lambda squares: workers.mean(squares)[None] if setting.uplink.of_mean else squares
    up = _three_point(
        A,
        B,
        _errors(setting, old, old.targets),
        _errors(setting, new, new.targets),
        of_link(sq(new.targets - old.targets)),
        of_link(sq(new.targets) + sq(old.targets)),
    )
    primal = setting.form == "primal"
    h, y, x, held = (old.w, old.x, new.x, new.w) if primal else (old.g, old.u, new.u, new.g)
    down = _three_point(A_M, B_M, sq(h - y), sq(held - x), sq(x - y), sq(x) + sq(y))

    eps, tiny = jnp.finfo(old.x.dtype).eps, jnp.finfo(old.x.dtype).tiny
    step, moved = jnp.sqrt(sq(new.model - old.model)), new.grads - old.grads
    size = jnp.sqrt(workers.mean(sq(new.grads))) * 64 * eps + tiny
    return Slack(
        workers.largest(up),
        down,
        jnp.sqrt(sq(workers.mean(moved))) / (L_minus * step + size),
        jnp.sqrt(workers.mean(sq(moved))) / (L_plus * step + size),
    )


def _three_point(A: Any, B: Any, before: Any, after: Any, moved: Any, size: Any) -> jax.Array:
    """|h^+ - x|^2 over (1 - A)|h - y|^2 + B|x - y|^2; size: |x|^2 + |y|^2, whose rounding is allowed."""
    eps, tiny = jnp.finfo(moved.dtype).eps, jnp.finfo(moved.dtype).tiny
    return after / ((1 - A) * before + B * (1 + 64 * eps) * moved + (4 * eps) ** 2 * size + tiny)


def stretch(
    problem: Any, setting: Setting, carry: Carry, t: jax.Array, ends: jax.Array, rows: jax.Array
) -> tuple[Carry, jax.Array, Row]:
    """Rounds from t up to ends[rows - 1], recording one row at each of `ends`; stops when no run is alive.

    ends: (C,) int32 with `rows` entries that count, at most LONGEST_STRETCH apart. Returns the carry, the round
    reached, and rows stacked along a first axis of length C. The lengths are data, so that no number of rounds and no
    recording interval compiles anything again.
    """
    table = jax.tree.map(
        lambda leaf: jnp.zeros((ends.shape[0], *leaf.shape), leaf.dtype), record(problem, setting, carry)
    )

    def alive(carry: Carry) -> jax.Array:
        return anywhere(carry.status == RUNNING)

    def to_next_row(loop: tuple[Any, ...]) -> tuple[Any, ...]:
        row, t, carry, table = loop
        since = distance_sq(setting, carry.state.x)
        carry = carry._replace(tally=_no_tally(setting.workers.here, carry.grad_sq.dtype, since))

        def going(inner: tuple[jax.Array, Carry]) -> jax.Array:
            return (inner[0] < ends[row]) & alive(inner[1])

        def body(inner: tuple[jax.Array, Carry]) -> tuple[jax.Array, Carry]:
            t, carry = inner
            return t + 1, one_round(problem, setting, t, carry, t + 1 == ends[row])

        t, carry = jax.lax.while_loop(going, body, (t, carry))
        loss = jax.lax.cond(
            anywhere(~carry.loss_known),
            lambda x, loss: loss_of(problem, setting.workers, x) + (problem.penalty(x) if setting.server.prox else 0),
            lambda x, loss: loss,
            carry.state.x,
            carry.loss,
        )
        carry = carry._replace(loss=jnp.where(carry.loss_known, carry.loss, loss), loss_known=jnp.array(True))
        table = jax.tree.map(lambda all_rows, new: all_rows.at[row].set(new), table, record(problem, setting, carry))
        return row + 1, t, carry, table

    _, t, carry, table = jax.lax.while_loop(
        lambda loop: (loop[0] < rows) & alive(loop[2]), to_next_row, (jnp.zeros((), jnp.int32), t, carry, table)
    )
    return carry, t, table


class Programs(NamedTuple):
    """The compiled parts of a run; of a sweep, all leaves of setting, carry and rows have a first axis."""

    begin: Any  # (problem, setting, x0, init) -> (carry, cost of each worker, of the server)
    stretch: Any  # (problem, setting, carry, t, ends, rows) -> (carry, round reached, rows)
    record: Any  # (problem, setting, carry) -> row


def begin_many(problem: Any, setting: Setting, x0: jax.Array, init: str) -> tuple[Carry, Cost, Cost]:
    """`begin` for every setting of a sweep at once."""
    return jax.vmap(lambda setting: begin(problem, setting, x0, init))(setting)


stretch_many = jax.vmap(stretch, (None, 0, 0, None, None, None), (0, None, 0))

ONE = Programs(jax.jit(begin, static_argnames="init"), jax.jit(stretch, donate_argnames="carry"), jax.jit(record))
MANY = Programs(
    jax.jit(begin_many, static_argnames="init"),
    jax.jit(stretch_many, donate_argnums=2),
    jax.jit(jax.vmap(record, (None, 0, 0))),
)
