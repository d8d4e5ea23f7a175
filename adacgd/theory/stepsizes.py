"""The step that each theorem allows, from plain numbers.

`smoothness` is read by its fields L_minus, L_plus, L_pm, mu; the constants of a link by A, B, P, Q.
"""

import math
from typing import Any, NamedTuple

from adacgd.theory.constants import movement

REGIMES = ("nonconvex", "pl", "strongly_convex")


class Coupling(NamedTuple):
    """How strongly the two links disturb the step: u for the uplink, v for the downlink (theory.md 3.4, dual form)."""

    u: float  # B / A
    v: float  # (B_M / A_M)(Q + c P u), c = 1 nonconvex, 2 PL; 0 without a downlink


def stepsize(smoothness: Any, constants: Any, regime: str = "nonconvex", downlink: Any = None) -> float:
    """The largest gamma that the theorem of `regime` allows.

    constants: (A, B) of the uplink; downlink: those of the server's map, None where it sends everything.

    "nonconvex": gamma = 1 / (L_minus + L_plus (sqrt u + sqrt v)), u = B/A, v = (B_M/A_M)(Q + P u). With v = 0 this is
    the 3PC paper's nonconvex theorem (theory.md 3.1); with a downlink, derived in theory.md 3.4 (I).
    "pl" (f satisfies the PL inequality with mu) and "strongly_convex" (which implies it):
    gamma = min{1 / (L_minus + sqrt2 L_plus (sqrt u + sqrt v2)), A/(2 mu), A_M/(2 mu)}, v2 = (B_M/A_M)(Q + 2 P u). A cap
    belongs to a link that loses something: with B = 0 (and the exact start of every run) it is not needed.
    Constants whose `spread` is "L_pm" (MARINA with Perm-K) have that in the place of L_plus, and without a downlink
    only: there L_plus, which is never smaller, stands in for it (theory.md 3.2).
    Raises ValueError that names the assumption that fails.
    """
    _require_regime("stepsize", regime)
    if not hasattr(smoothness, "L_minus"):
        remedy = "; pass problem.smoothness" if hasattr(smoothness, "smoothness") else ""
        raise TypeError(f"stepsize(smoothness=...) needs L_minus and L_plus, got {type(smoothness).__name__}{remedy}.")
    _require_constants("constants", constants)
    u, v = coupling(constants, downlink, regime)
    L = getattr(smoothness, "L_plus" if downlink is not None else getattr(constants, "spread", "L_plus"))
    spread = L * (math.sqrt(u) + math.sqrt(v))
    if regime == "nonconvex":
        return 1 / (smoothness.L_minus + spread)
    mu = require_mu("stepsize", smoothness, regime)
    caps = [link.A / (2 * mu) for link in (constants, downlink) if link is not None and link.B > 0]
    return min([1 / (smoothness.L_minus + math.sqrt(2) * spread), *caps])


def coupling(constants: Any, downlink: Any, regime: str) -> Coupling:
    """u and v (v2 in the PL regimes) of theory.md 3.4 (I)."""
    u = constants.B / constants.A
    if downlink is None:
        return Coupling(u, 0.0)
    _require_constants("downlink", downlink)
    P, Q = movement(*constants)
    factor = 1 if regime == "nonconvex" else 2
    return Coupling(u, downlink.B / downlink.A * (Q + factor * P * u))


def require_mu(owner: str, smoothness: Any, regime: str) -> float:
    """The PL constant, or an error that says why there is none. Raises ValueError."""
    if smoothness.mu is None or not smoothness.mu > 0:
        how = getattr(smoothness, "how", {}).get("mu", "not given")
        raise ValueError(
            f"{owner}(regime={regime!r}) assumes a constant mu > 0; this problem has mu = {smoothness.mu} ({how}). "
            "Use regime='nonconvex'."
        )
    return float(smoothness.mu)


def _require_regime(owner: str, regime: str) -> None:
    if regime not in REGIMES:
        raise ValueError(f"{owner}(regime=...) must be one of {', '.join(REGIMES)}; got {regime!r}.")


def _require_constants(name: str, constants: Any) -> None:
    if not (hasattr(constants, "A") and hasattr(constants, "B")):
        remedy = "; pass its .constants(dim)" if hasattr(constants, "constants") else ""
        raise TypeError(f"stepsize({name}=...) must be constants such as AB(A, B), got {constants!r}{remedy}.")
    if not (0 < constants.A <= 1 and 0 <= constants.B < math.inf):
        raise ValueError(
            f"a three point compressor has 0 < A <= 1 and 0 <= B; got A = {constants.A}, B = {constants.B}."
        )
