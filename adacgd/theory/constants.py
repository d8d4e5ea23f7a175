"""Constants of methods as plain numbers: three point compressors (3PC paper; theory.md 2) and what is none."""

import math
from typing import NamedTuple


def theta(alpha: float) -> float:
    """theta(alpha) = 1 - sqrt(1 - alpha), the A of EF21; written so that nothing cancels for small alpha."""
    return alpha / (1 + math.sqrt(1 - alpha))


def beta(alpha: float) -> float:
    """beta(alpha) = (1 - alpha) / (1 - sqrt(1 - alpha)), the B of EF21.

    With theta it minimises B/A over the Young parameter s: A = 1 - (1-alpha)(1+s), B = (1-alpha)(1 + 1/s), at
    s* = 1/sqrt(1-alpha) - 1.
    """
    return (1 - alpha) / theta(alpha)


def sharper(alpha: float, zeta: float) -> tuple[float, float]:
    """(A, B) of CLAG and AdaCGD with a larger A where zeta > beta(alpha) (derived here, docs/theory-extensions.md).

    The standard pair is (theta, max(beta, zeta)). Where zeta > beta the Young parameter s = (1 - alpha)/(zeta - 1 +
    alpha) lifts the branch that sends to B = zeta exactly, with A = 1 - (1 - alpha) zeta/(zeta - 1 + alpha), which
    grows from theta to alpha with zeta. Elsewhere it is the standard pair.
    """
    if zeta <= beta(alpha):
        return theta(alpha), beta(alpha)
    return (alpha * zeta - (1 - alpha)) / (zeta - (1 - alpha)), zeta


def participating(A: float, B: float, p: float) -> tuple[float, float]:
    """(A', B') of a 3PC(A, B) map whose worker takes part with probability p (derived, docs/theory-extensions.md).

    A' = p A - q s, B' = p B + q (1 + 1/s), q = 1 - p, for any 0 < s < p A/q; s = p A/(q + sqrt(q^2 + p A (p B + q)))
    minimises B'/A'. The coin is independent of all else. Of EF21 the rule alpha' = p alpha is sharper.
    Raises ValueError unless 0 < p <= 1.
    """
    if not 0 < p <= 1:
        raise ValueError(f"participating(p=...) must be a probability in (0, 1], got {p!r}.")
    q = 1 - p
    if q == 0:
        return A, B
    s = p * A / (q + math.sqrt(q * q + p * A * (p * B + q)))
    return p * A - q * s, p * B + q * (1 + 1 / s)


def movement(A: float, B: float, P: float | None = None, Q: float | None = None) -> tuple[float, float]:
    """(P, Q) with E|g^{t+1} - g^t|^2 <= P G^t + Q L_plus^2 R^t, for the averages g (theory.md 3.4).

    As given, or what holds for any three point compressor: P = 2 (1 + sqrt(1 - A))^2, Q = 2 (1 + sqrt B)^2.
    """
    return (
        2 * (1 + math.sqrt(1 - A)) ** 2 if P is None else P,
        2 * (1 + math.sqrt(B)) ** 2 if Q is None else Q,
    )


class DCGDConstants(NamedTuple):
    """g = mean Q_i(grad f_i(x)) with independent unbiased Q_i in U(omega), nothing remembered."""

    omega: float
    workers: int


class DianaConstants(NamedTuple):
    """DIANA: q_i = Q_i(grad f_i(x) - h_i), g = mean(h + q), h_i moves by eta q_i; independent Q_i in U(omega)."""

    omega: float
    eta: float
    workers: int


class ContractiveDCGD(NamedTuple):
    """g = C(grad f(x)) of a *single* worker with C in B(alpha). With more workers biased C can diverge at any step."""

    alpha: float


class EF14Constants(NamedTuple):
    """Classic error feedback with C in B(alpha): a theorem for one worker, strongly convex, and none for more."""

    alpha: float


class SGDMConstants(NamedTuple):
    """EF21-SGDM with C in B(alpha) and momentum eta in (0, 1]: a step that is recalled, and no bound."""

    alpha: float
    eta: float


class NoTheorem(NamedTuple):
    """The constants of a method of which nothing is proved here: `why` is what a request for a step is told."""

    method: str
    why: str
