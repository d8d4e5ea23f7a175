"""Uplinks with a memory of their own: DCGD (none), classic error feedback, EControl, DIANA (theory.md 2 and 3.5)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from adacgd.compressors.base import (
    Compressor,
    Draw,
    Message,
    NoFormat,
    Unbiased,
    alpha_of,
    brief,
    omega_of,
    require_contractive,
    require_nonnegative,
    settled,
    shared_with,
)
from adacgd.compressors.combinators import require_unbiased
from adacgd.compressors.correlated import require_workers
from adacgd.compressors.thresholds import require_share
from adacgd.estimators import Estimator
from adacgd.form import checked
from adacgd.mechanisms import added, compressed, compressor_of, fresh, single
from adacgd.module import module
from adacgd.steps import Sent
from adacgd.theory.constants import ContractiveDCGD, DCGDConstants, DianaConstants, EF14Constants, NoTheorem


def sent_by(owner: Any, part: Any, draw: Draw, x: jax.Array) -> Message:
    """C(x) with the randomness that C asks for, checked."""
    return checked(owner, compressed(part, draw.private, x, **shared_with(part, draw.shared())), x)


@module
class DCGD(Estimator):
    """g_i = C(grad f_i(x)): the gradient itself is compressed, and what is lost is lost.

    With unbiased C it converges to a neighbourhood; with a biased one and several workers it may diverge at every step
    (theory.md 2, "Not 3PC"): a method to compare with.
    """

    compressor: Any
    shares_randomness = True
    starts = ("exact", "compressed")

    def __post_init__(self) -> None:
        if isinstance(self.compressor, type) or isinstance(self.compressor, str | list | tuple | dict):
            raise TypeError(f"DCGD(compressor=...) must be a compressor such as RandK(3), got {self.compressor!r}.")

    def init(self, h: jax.Array) -> tuple[()]:
        """Nothing."""
        return ()

    def step(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> tuple[Message, Any]:
        """C(x)."""
        return sent_by(self, self.compressor, draw, x), memory

    def sends(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> Sent:
        """C(x)."""
        return Sent((fresh(self.compressor, draw.private, x, shared_with(self.compressor, draw.shared())),))

    def shift(self, memory: Any, h: jax.Array) -> jax.Array:
        """It has none."""
        return jnp.zeros_like(h)

    def constants(self, dim: int, workers: int | None = None) -> Any:
        """omega of an unbiased compressor; alpha of a contractive one, which a theorem covers for one worker alone."""
        if isinstance(self.compressor, Unbiased):
            if self.compressor.shares_randomness:
                return NoTheorem("DCGD", "its Q_i must be independent, and these share their draws.")
            return DCGDConstants(omega_of(self.compressor, dim, workers), require_workers(self, workers))
        alpha = alpha_of(compressor_of("DCGD", "compressor", self.compressor), dim, workers)
        if require_workers(self, workers) > 1:
            return NoTheorem(
                "DCGD",
                "with a biased compressor and several workers it can diverge at every step (theory.md 2); use "
                f"EF21({self.compressor!r}), or an unbiased compressor.",
            )
        return ContractiveDCGD(alpha)


@module
class EF14(Estimator):
    """Classic error feedback (Seide et al.; Stich et al.; theory.md 2): what was not sent is added to the next step.

        w_i = C(e_i + gamma grad f_i(x)),   x^+ = x - mean w_i,   e_i^+ = e_i + gamma grad f_i(x) - w_i,   e_i^0 = 0

    Here g_i = w_i/gamma, so that x^+ = x - gamma mean g_i as for all others. `simulate(init="compressed")` is the
    method as published; from the exact start the first step is that of gradient descent, and e_i is still 0.
    """

    compressor: Compressor
    shares_randomness = True
    starts = ("exact", "compressed")

    def __post_init__(self) -> None:
        require_contractive("EF14", "compressor", self.compressor)

    def init(self, h: jax.Array) -> jax.Array:
        """e = 0."""
        return jnp.zeros_like(h)

    def step(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> tuple[Message, Any]:
        """C(e + gamma x)/gamma."""
        compensated = memory + settled(draw.stepsize * x)
        sent = sent_by(self, self.compressor, draw, compensated)
        return sent._replace(value=sent.value / draw.stepsize), compensated - sent.value

    def sends(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> Sent:
        """Refused: w_i travels, and the receiver divides it by the gamma it knows."""
        raise NoFormat("EF14 sends what its compressor makes of e + gamma x: encode that, and divide by gamma.")

    def constants(self, dim: int, workers: int | None = None) -> Any:
        """alpha, for the tight rate of one worker (theory.md 3.3); more have no theorem."""
        alpha = alpha_of(compressor_of("EF14", "compressor", self.compressor), dim, workers)
        if require_workers(self, workers) > 1:
            return NoTheorem("EF14", "its exact rate is one for a single worker (theory.md 3.3); use EF21.")
        return EF14Constants(alpha)


@module
class EControl(Estimator):
    """EControl (Gao, Islamov, Stich): error feedback whose strength eta is a parameter (theory.md 3.5).

        D_i = C(eta e_i + g_i - h_i),   e_i^+ = e_i + g_i - h_i - D_i,   h_i^+ = h_i + D_i,   x^+ = x - gamma mean h_i^+

    eta = 0 is EF21. e_i^+ = e_i + g_i - h_i^+, so that x - gamma mean e_i moves by -gamma mean g_i exactly.
    """

    compressor: Compressor
    eta: float | jax.Array
    shares_randomness = True

    def __post_init__(self) -> None:
        require_contractive("EControl", "compressor", self.compressor)
        require_nonnegative("EControl", "eta", self.eta)

    def init(self, h: jax.Array) -> jax.Array:
        """e = 0."""
        return jnp.zeros_like(h)

    def step(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> tuple[Message, Any]:
        """h + D."""
        sent = sent_by(self, self.compressor, draw, self._owed(memory, h, x))
        moved = settled(sent.value)
        return sent._replace(value=h + moved), memory + (x - h) - moved

    def _owed(self, memory: jax.Array, h: jax.Array, x: jax.Array) -> jax.Array:
        return settled(self.eta * memory) + (x - h)

    def sends(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> Sent:
        """D."""
        own = shared_with(self.compressor, draw.shared())
        return Sent((added(self.compressor, draw.private, self._owed(memory, h, x), own),))

    def constants(self, dim: int, workers: int | None = None) -> Any:
        """None: the rate is the paper's and was not proved again here."""
        alpha_of(compressor_of("EControl", "compressor", self.compressor), dim, workers)
        return NoTheorem("EControl", "its rate is the paper's: eta of order alpha, gamma of order alpha/L.")


class Shifts(NamedTuple):
    """What DIANA remembers, (d,) each."""

    next: jax.Array  # h_i of the next message
    last: jax.Array  # h_i of the last one, which stands in V beside the x of that message


@module
class DIANA(Estimator):
    """DIANA (Mishchenko, Gorbunov, Takac, Richtarik): unbiased compression of what a shift does not know yet.

        q_i = Q(grad f_i(x) - h_i),   g = mean(h_i + q_i),   h_i^+ = h_i + eta q_i,   eta <= 1/(1 + omega)

    eta: 1/(1 + omega) where not given. h_i^0 = grad f_i(x^0) from the exact start of a run, 0 with init="compressed".
    """

    unbiased: Unbiased
    eta: float | jax.Array | None = None
    __repr__ = brief
    shares_randomness = True
    starts = ("exact", "compressed")

    def __post_init__(self) -> None:
        require_unbiased("DIANA", "unbiased", self.unbiased)
        if self.eta is not None:
            require_share("DIANA", "eta", self.eta)

    def _eta(self, dim: int, workers: int) -> Any:
        return 1 / (1 + omega_of(self.unbiased, dim, workers)) if self.eta is None else self.eta

    def init(self, h: jax.Array) -> Shifts:
        """The shift is h."""
        return Shifts(h, h)

    def step(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> tuple[Message, Any]:
        """shift + q."""
        shift = memory.next
        sent = sent_by(self, self.unbiased, draw, x - shift)
        q = settled(sent.value)
        return sent._replace(value=shift + q), Shifts(shift + settled(self._eta(x.size, draw.workers) * q), shift)

    def sends(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> Sent:
        """q, which is added to the shift: that is what the receiver holds, not h."""
        return Sent((added(self.unbiased, draw.private, x - memory.next, shared_with(self.unbiased, draw.shared())),))

    def shift(self, memory: Any, h: jax.Array) -> jax.Array:
        """h_i of the message at this x."""
        return memory.last

    def constants(self, dim: int, workers: int | None = None) -> Any:
        """(omega, eta, n) of theory.md 2. Raises ValueError where eta > 1/(1 + omega)."""
        if self.unbiased.shares_randomness:
            return NoTheorem("DIANA", "its Q_i must be independent, and these share their draws.")
        n = require_workers(self, workers)
        omega = omega_of(self.unbiased, dim, n)
        eta = float(single("DIANA", "eta", self._eta(dim, n)))
        if eta > (1 + 1e-12) / (1 + omega):
            raise ValueError(
                f"DIANA(eta={eta:g}) must be at most 1/(1 + omega) = {1 / (1 + omega):g}; or leave it out."
            )
        return DianaConstants(omega, eta, n)
