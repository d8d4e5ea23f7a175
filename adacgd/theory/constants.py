"""Constants of three point compressors as plain numbers (3PC paper; theory.md section 2)."""

import math


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
