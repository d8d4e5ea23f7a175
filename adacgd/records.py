"""What a run carries from round to round, what it records of them, and what it was set to do."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from adacgd.estimators import Estimator
from adacgd.module import module, static
from adacgd.oracles import Oracle
from adacgd.servers import Server
from adacgd.workers import Workers

RUNNING, CONVERGED, DIVERGED = 0, 1, 2


class State(NamedTuple):
    """What the next round needs. () stands for what is the same as another entry."""

    x: jax.Array  # (d,)
    w: Any  # (d,) what the workers hold of x in the primal form; () in the dual form: x
    grads: jax.Array  # (n, d) grad f_i(w)
    grad: jax.Array  # (d,) grad f(x); in the dual form the mean of `grads`
    v: Any  # (n, d) what the workers compress; () with exact gradients: `grads`
    g_i: jax.Array  # (n, d) what the server holds of each
    u: jax.Array  # (d,) their mean
    g: Any  # (d,) what everybody holds of u and steps along; () in the primal form: u
    up_memory: Any  # pytree of (n, ...), what the uplink remembers besides
    down_memory: Any
    server_memory: Any

    @property
    def model(self) -> jax.Array:
        """Where the workers take gradients, (d,)."""
        return self.x if isinstance(self.w, tuple) else self.w

    @property
    def targets(self) -> jax.Array:
        """What the workers compress, (n, d)."""
        return self.grads if isinstance(self.v, tuple) else self.v

    @property
    def direction(self) -> jax.Array:
        """What the server steps along, (d,)."""
        return self.u if isinstance(self.g, tuple) else self.g


class Count(NamedTuple):
    """A sum of counts that cannot overflow in a stretch: the low 16 bits of each, and the rest. int32."""

    low: jax.Array
    high: jax.Array

    def add(self, value: jax.Array) -> "Count":
        """One round more."""
        return Count(self.low + (value & 0xFFFF), self.high + (value >> 16))


class Tally(NamedTuple):
    """What is summed from one recorded row to the next."""

    up: Count  # (n, 2): scalars and extra bits of each worker
    down: Count  # (2,) of the server
    grad_sq: jax.Array  # () |grad f(x^t)|^2 summed over the rounds begun
    shadow_sq: jax.Array  # () |grad f(z^t)|^2 likewise, of a server whose theorem speaks of z; else 0
    farthest_sq: jax.Array  # () the largest |x - x*|^2 since the last row; NaN where no x* is known


class Slack(NamedTuple):
    """Left over right of each assumption that a run can see, the worst so far; at most 1 where it holds."""

    three_point: jax.Array  # () |g_i^+ - grad_i^+|^2 against (1-A)|g_i - grad_i|^2 + B|grad_i^+ - grad_i|^2
    downlink: jax.Array  # () the same of the server's map; 0 without one
    L_minus: jax.Array  # () |grad f(x^+) - grad f(x)| against L_minus |x^+ - x|
    L_plus: jax.Array  # () root mean square over workers against L_plus |x^+ - x|


class Carry(NamedTuple):
    """A run in mid-flight."""

    state: State
    loss: jax.Array  # () f(x), if it was due this round
    loss_known: jax.Array  # () bool
    grad_sq: jax.Array  # () |grad f(x)|^2, or what else the server measures
    ceiling: jax.Array  # () |grad f|^2 above which the run counts as diverged
    level: jax.Array  # (n,) int32 of the last round
    status: jax.Array  # () int32: RUNNING, CONVERGED, DIVERGED
    outcome_round: jax.Array  # () int32: where the status was decided
    best_sq: jax.Array  # () the smallest |grad f(x)|^2 of all rounds so far
    best_round: jax.Array  # () int32: where it was first seen
    tally: Tally
    slack: Slack | None  # None unless asked for
    slack_rounds: Slack | None  # the rounds where the worst of each was seen, () int32


class Row(NamedTuple):
    """What is recorded of a round."""

    loss: jax.Array  # ()
    grad_sq: jax.Array  # ()
    errors: jax.Array  # (n,) |g_i - grad f_i(w)|^2; (1,) |u - grad f(w)|^2 of an uplink with `of_mean`
    H: jax.Array  # () |g - u|^2
    W: jax.Array  # () |w - x|^2
    S: jax.Array  # () mean |shift_i - grad f_i(x*)|^2; NaN of an uplink without `shift`, and where no x* is known
    distance_sq: jax.Array  # () |x - x*|^2; NaN where no x* is known
    level: jax.Array  # (n,)
    best_sq: jax.Array  # ()
    best_round: jax.Array  # ()
    tally: Tally


@module
class Setting:
    """All of a run but its problem: every leaf can be swept."""

    uplink: Estimator
    downlink: Estimator
    stepsize: jax.Array  # ()
    key: jax.Array  # ()
    tolerance_sq: jax.Array  # (), negative: none
    expected: tuple[jax.Array, ...]  # (A, B, A_M, B_M, L_minus, L_plus) that `verify` holds the run against; () without
    oracle: Oracle
    server: Server
    star: tuple[jax.Array, ...]  # (x*,), (d,), where a minimiser is known; () otherwise
    workers: Workers
    form: str = static()  # "dual" | "primal"


@custom_vmap
def anywhere(flag: jax.Array) -> jax.Array:
    """Whether the flag is up in any run of a sweep: () bool that stays one number under `vmap`."""
    return flag


@anywhere.def_vmap
def _anywhere_batched(size: int, batched: list[bool], flag: jax.Array) -> tuple[jax.Array, bool]:
    return anywhere(jnp.any(flag, axis=0)), False


@custom_vmap
def keep(alive: jax.Array, new: Any, old: Any) -> Any:
    """`new` where the run is alive: a run that has ended in a sweep is frozen. Alone, it does not get here."""
    return new


@keep.def_vmap
def _keep_batched(size: int, batched: list[Any], alive: jax.Array, new: Any, old: Any) -> tuple[Any, Any]:
    def frozen(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(alive.reshape(alive.shape + (1,) * (max(a.ndim, b.ndim) - alive.ndim)), a, b)

    spread = [
        jax.tree.map(lambda leaf, b: leaf if b else jnp.broadcast_to(leaf, (size, *leaf.shape)), tree, flags)
        for tree, flags in ((new, batched[1]), (old, batched[2]))
    ]
    kept = jax.tree.map(frozen, *spread)
    return kept, jax.tree.map(lambda _: True, kept)
