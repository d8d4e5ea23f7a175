"""The triggers of LAG and LAQ as their papers have them: silence is measured against how the model moved of late.

The three point form of LAG (`adacgd.LAG`) compares with zeta |grad f_i(x^{t+1}) - grad f_i(x^t)|^2 and has a theorem
here. These have none: they are for comparison (theory.md section 4). With gamma the step and M workers, the right side
of all of them is (1/(gamma^2 M^2)) sum_{d=1..D} xi |x^{t+1-d} - x^{t-d}|^2, a sum, not a mean.
"""

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.base import (
    Compressor,
    Draw,
    Message,
    require_contractive,
    require_count,
    require_nonnegative,
    shared_with,
    sq,
)
from adacgd.cost import Cost
from adacgd.estimators import Estimator
from adacgd.feedback import sent_by
from adacgd.mechanisms import accurate, received, silent_or, towards, whole
from adacgd.module import module, static
from adacgd.steps import Code, Sent, Step
from adacgd.theory.constants import NoTheorem


def remembered(history: jax.Array, draw: Draw) -> jax.Array:
    """|x^{t+1} - x^t|^2/gamma^2 put before the last D - 1 of them, (D,)."""
    return jnp.concatenate([(sq(draw.moved) / draw.stepsize**2)[None], history[:-1]])


class _Lazy(Estimator):
    """What the three rules share: D, xi, a flag before what is sent, and that no theorem here covers them."""

    xi: Any
    window: int
    shares_randomness = True

    def _threshold(self, history: jax.Array, draw: Draw) -> jax.Array:
        return self.xi * jnp.sum(history) / draw.workers**2

    def sends(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> Sent:
        """A flag, and what is sent where it is up."""
        level = int(self.step(draw, memory, h, y, x)[0].level)
        return Sent((self._spoken(draw, h, x),) if level else ()).behind(Code(level, 2))

    def _spoken(self, draw: Draw, h: jax.Array, x: jax.Array) -> Step:
        """x, unless the rule compresses."""
        return whole(x)

    def _require(self) -> None:
        require_nonnegative(type(self).__name__, "xi", self.xi)
        require_count(type(self).__name__, "window", self.window)

    def constants(self, dim: int, workers: int | None = None) -> Any:
        """None."""
        return NoTheorem(type(self).__name__, "the theorem here is that of the three point form, LAG(zeta).")

    @abc.abstractmethod
    def init(self, h: jax.Array) -> Any:
        """See the class."""


@module
class LAGWorker(_Lazy):
    """LAG-WK (Chen, Giannakis, Sun, Yin): worker m is silent if |grad f_m(last sent) - grad f_m(x)|^2 <= right side.

    xi: 0.1 and window D = 10 are the paper's. Sends d scalars or nothing, and one flag bit.
    """

    xi: float | jax.Array = 0.1
    window: int = static(default=10)

    def __post_init__(self) -> None:
        self._require()

    def init(self, h: jax.Array) -> jax.Array:
        """The model has not moved yet: zeros, (D,)."""
        return jnp.zeros(self.window, h.dtype)

    def step(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> tuple[Message, Any]:
        """x or silence."""
        history = remembered(memory, draw)
        skip = accurate(sq(x - h), 1.0, self._threshold(history, draw))
        return silent_or(Message(x, Cost(x.size)), h, skip), history


class _Server(NamedTuple):
    history: jax.Array  # (D,)
    displacement: jax.Array  # (d,) x now less x when the worker last spoke


@module
class LAGServer(_Lazy):
    """LAG-PS: the server asks worker m unless L_m^2 |x_m - x|^2 <= the right side, x_m the model it last answered at.

    L_i: (n,), the smoothness constants. xi = 1 is the paper's 10/D with D = 10. Priced as LAG-WK: one flag bit.
    """

    L_i: jax.Array
    xi: float | jax.Array = 1.0
    window: int = static(default=10)
    starts = ("exact",)

    def __post_init__(self) -> None:
        self._require()
        require_nonnegative("LAGServer", "L_i", self.L_i)

    def constants(self, dim: int, workers: int | None = None) -> Any:
        """None. Raises ValueError where L_i does not have an entry for every worker."""
        if workers is not None and np.shape(self.L_i) != (workers,):
            raise ValueError(
                f"LAGServer(L_i=...) must hold one constant for each of the {workers} workers, got shape "
                f"{np.shape(self.L_i)}; pass problem.smoothness.L_i."
            )
        return super().constants(dim, workers)

    def init(self, h: jax.Array) -> _Server:
        """No movement, no displacement."""
        return _Server(jnp.zeros(self.window, h.dtype), jnp.zeros_like(h))

    def step(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> tuple[Message, Any]:
        """x or silence."""
        history, displacement = remembered(memory.history, draw), memory.displacement + draw.moved
        L = jnp.asarray(self.L_i, x.dtype)[draw.worker]
        skip = accurate(L**2 * sq(displacement), 1.0, self._threshold(history, draw))
        message = silent_or(Message(x, Cost(x.size)), h, skip)
        return message, _Server(history, jnp.where(skip, displacement, 0))


class _Quantised(NamedTuple):
    history: jax.Array  # (D,)
    error_sq: jax.Array  # () |eps|^2 of the last message
    silent: jax.Array  # () int32, rounds since


@module
class LAQ(_Lazy):
    """LAQ (Sun, Chen, Giannakis, Yang): LAG on quantised gradients, h + C(x - h).

    Silent if |h + C(x - h) - h|^2 <= right side + 3(|eps|^2 + |eps_last|^2), eps = x - (h + C(x - h)), and not for more
    than `longest` rounds on end. The paper's C rounds x - h to a grid as wide as its largest entry: `MaxRounding`.
    """

    compressor: Compressor
    xi: float | jax.Array = 0.1
    window: int = static(default=10)
    longest: int = static(default=100)

    def __post_init__(self) -> None:
        self._require()
        require_count("LAQ", "longest", self.longest)
        require_contractive("LAQ", "compressor", self.compressor)

    def init(self, h: jax.Array) -> _Quantised:
        """No movement, no error, no silence."""
        return _Quantised(jnp.zeros(self.window, h.dtype), jnp.zeros((), h.dtype), jnp.zeros((), jnp.int32))

    def step(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> tuple[Message, Any]:
        """h + C(x - h) or silence."""
        history = remembered(memory.history, draw)
        sent = sent_by(self, self.compressor, draw, x - h)
        value = received(self.compressor, h, sent.value, x)
        error_sq = sq(x - value)
        right = self._threshold(history, draw) + 3 * (error_sq + memory.error_sq)
        skip = accurate(sq(value - h), 1.0, right) & (memory.silent < self.longest)
        kept = _Quantised(history, jnp.where(skip, memory.error_sq, error_sq), jnp.where(skip, memory.silent + 1, 0))
        return silent_or(sent._replace(value=value), h, skip), kept

    def _spoken(self, draw: Draw, h: jax.Array, x: jax.Array) -> Step:
        return towards(self.compressor, draw.private, h, x, shared_with(self.compressor, draw.shared()))
