"""Constants of three point compressors as plain numbers (3PC paper; theory.md section 2)."""

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


def movement(A: float, B: float, P: float | None = None, Q: float | None = None) -> tuple[float, float]:
    """(P, Q) with E|g^{t+1} - g^t|^2 <= P G^t + Q L_plus^2 R^t, for the averages g (theory.md 3.4).

    As given, or what holds for any three point compressor: P = 2 (1 + sqrt(1 - A))^2, Q = 2 (1 + sqrt B)^2.
    """
    return (
        2 * (1 + math.sqrt(1 - A)) ** 2 if P is None else P,
        2 * (1 + math.sqrt(B)) ** 2 if Q is None else Q,
    )


def sharper(alpha: float, zeta: float) -> tuple[float, float]:
    """(A, B) of CLAG and AdaCGD that is sharper than (theta, max(beta, zeta)) where zeta > beta (theory.md 2).

    Young with s = (1 - alpha)/(zeta - 1 + alpha), which makes B = zeta: A = 1 - (1 - alpha) zeta/(zeta - 1 + alpha).
    """
    if zeta <= beta(alpha):
        return theta(alpha), beta(alpha)
    return 1 - (1 - alpha) * zeta / (zeta - 1 + alpha), zeta


def participating(A: float, B: float, p: float) -> tuple[float, float]:
    """(A', B') of a three point map whose sender takes part with probability p, by a coin of its own (theory.md 1.1).

    A' = p A - (1 - p) s, B' = p B + (1 - p)(1 + 1/s), 0 < s < p A/(1 - p), at the s that makes B'/A' least: with q = 1
    - p the derivative of B'/A' vanishes where q (p B + q) s^2 + 2 q^2 s - q p A = 0.
    """
    q = 1 - p
    if q == 0:
        return A, B
    a, b, c = p * B + q, 2 * q, -p * A
    s = (-b + math.sqrt(b * b - 4 * a * c)) / (2 * a)
    return p * A - q * s, p * B + q * (1 + 1 / s)


class DCGDConstants(NamedTuple):
    """Of compressed gradients, unbiased and independent: omega and the number of workers (theory.md 2)."""

    omega: float
    workers: int


class ContractiveDCGD(NamedTuple):
    """Of compressed gradients of one worker, contractive: alpha (theory.md 2)."""

    alpha: float


class DianaConstants(NamedTuple):
    """Of DIANA: omega, the step eta of the shift, and the number of workers (theory.md 2)."""

    omega: float
    eta: float
    workers: int


class Unproved(NamedTuple):
    """In the place of constants, of a method that no theorem here covers: why."""

    why: str
