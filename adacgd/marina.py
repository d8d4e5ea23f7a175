"""MARINA: unbiased compression without a worker-wise law; its (A, B) speak of the average (theory.md 3.2)."""

from typing import Any

import jax

from adacgd.compressors.base import Draw, Message, Unbiased, omega_of
from adacgd.compressors.combinators import require_unbiased
from adacgd.compressors.correlated import PermK, require_workers
from adacgd.compressors.thresholds import require_share
from adacgd.estimators import Estimator
from adacgd.form import checked
from adacgd.mechanisms import AB, single
from adacgd.module import module
from adacgd.steps import Sent
from adacgd.three_point import full_or_moved, full_or_moved_sent


class MeanAB(AB):
    """(A, B) of the error of the mean: theorems that weigh single workers do not read it."""

    of_mean = True


class VarianceAB(MeanAB):
    """(A, B) whose B stands before the Hessian variance L_pm^2, not L_plus^2: what all workers share is not lost."""

    spread = "L_pm"


@module
class MARINA(Estimator):
    """g^{t+1} = grad f(x^{t+1}) with probability p, else g^t + (1/n) sum_i Q_i(grad f_i(x^{t+1}) - grad f_i(x^t)).

    (Gorbunov, Burlachenko, Li, Richtarik, MARINA.) Worker by worker g_i = x with probability p, else h + Q_i(x - y);
    one coin for all workers of a round, known to every end. No single g_i obeys a law, their mean does:

        E|g^{t+1} - grad f(x^{t+1})|^2 <= (1 - A)|g^t - grad f(x^t)|^2 + B mean_i |x_i - y_i|^2

    A = p, B = (1 - p) omega/n where the Q_i are independent. With Perm-K B = (1 - p) joint, and L_pm takes the place of
    L_plus in the step (Szlendak, Tyurin, Richtarik). Sends d scalars, level 2, or Q, level 1: p d + (1 - p) cost of Q
    on average.
    """

    unbiased: Unbiased
    p: float | jax.Array
    shares_randomness = True
    of_mean = True

    def __post_init__(self) -> None:
        require_unbiased("MARINA", "unbiased", self.unbiased)
        require_share("MARINA", "p", self.p)

    def init(self, h: jax.Array) -> tuple[()]:
        """Nothing."""
        return ()

    def step(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> tuple[Message, Any]:
        """x or h + Q(x - y)."""
        sent = full_or_moved(self.unbiased, self.p, draw.private, draw.common, h, y, x, draw.shared())
        return checked(self, sent, x), memory

    def sends(self, draw: Draw, memory: Any, h: jax.Array, y: jax.Array, x: jax.Array) -> Sent:
        """x or Q(x - y); every end knows the coin."""
        level = int(self.step(draw, memory, h, y, x)[0].level)
        return full_or_moved_sent(self.unbiased, level, draw.private, y, x, draw.shared())

    def constants(self, dim: int, workers: int | None = None) -> AB:
        """(p, (1 - p) omega/n); with Perm-K (p, (1 - p) joint) for L_pm.

        Of other compressors that share randomness only what holds for any coupling is known: (p, (1 - p) omega).
        """
        n, p = require_workers(self, workers), float(single("MARINA", "p", self.p))
        if isinstance(self.unbiased, PermK):
            return VarianceAB(p, (1 - p) * self.unbiased.joint(dim, n))
        omega = omega_of(self.unbiased, dim, n)
        return MeanAB(p, (1 - p) * (omega if self.unbiased.shares_randomness else omega / n))
