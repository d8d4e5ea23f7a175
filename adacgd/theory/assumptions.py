"""What the theorems assume, asked one by one: each request outside is refused with the assumption that fails."""

import math
from typing import Any

import numpy as np

REGIMES = ("nonconvex", "pl", "strongly_convex", "convex", "tight")


def require_smoothness(owner: str, smoothness: Any) -> None:
    """An object with the fields L_minus, L_plus, ... Raises TypeError."""
    if not hasattr(smoothness, "L_minus"):
        remedy = "; pass problem.smoothness" if hasattr(smoothness, "smoothness") else ""
        raise TypeError(f"{owner}(smoothness=...) needs L_minus and L_plus, got {type(smoothness).__name__}{remedy}.")


def require_name(owner: str, argument: str, value: Any, allowed: tuple[str, ...]) -> None:
    """One of the names. Raises ValueError."""
    if value not in allowed:
        raise ValueError(f"{owner}({argument}=...) must be one of {', '.join(allowed)}; got {value!r}.")


def require_pair(owner: str, name: str, constants: Any) -> None:
    """Constants of a three point compressor. Raises TypeError, ValueError."""
    if not (hasattr(constants, "A") and hasattr(constants, "B")):
        remedy = "; pass its .constants(dim)" if hasattr(constants, "constants") else ""
        raise TypeError(f"{owner}({name}=...) must be constants such as AB(A, B), got {constants!r}{remedy}.")
    if not (0 < constants.A <= 1 and 0 <= constants.B < math.inf):
        raise ValueError(
            f"a three point compressor has 0 < A <= 1 and 0 <= B; got A = {constants.A}, B = {constants.B}."
        )


def require_mu(owner: str, smoothness: Any, regime: str) -> float:
    """The PL constant, or an error that says why there is none. Raises ValueError.

    Where strong convexity is assumed, a problem that says that its mu is no more than a PL constant is refused.
    """
    if smoothness.mu is None or not smoothness.mu > 0:
        raise ValueError(
            f"{owner}(regime={regime!r}) assumes a constant mu > 0; this problem has mu = {smoothness.mu} "
            f"({_how(smoothness, 'mu')}). Use regime='nonconvex'."
        )
    if regime == "strongly_convex" and getattr(smoothness, "strongly", None) is False:
        raise ValueError(
            f"{owner}(regime='strongly_convex') assumes a strongly convex f; mu = {smoothness.mu:.6g} of this "
            "problem is a PL constant, its Hessian is singular. Use regime='pl'."
        )
    return float(smoothness.mu)


def require_convex(owner: str, smoothness: Any) -> None:
    """f is convex: mu is a number (0 where no more is known). Raises ValueError."""
    if smoothness.mu is None:
        raise ValueError(
            f"{owner}(regime='convex') assumes a convex f, where smoothness.mu is a number, 0 at least; this problem "
            f"has mu = None ({_how(smoothness, 'mu')}). Use regime='nonconvex'."
        )


def require_convex_workers(owner: str, smoothness: Any, who: str) -> np.ndarray:
    """Each f_i is convex: mu_i, (n,), known and none below 0. Raises ValueError."""
    mu_i = getattr(smoothness, "mu_i", None)
    if mu_i is None or not np.all(np.asarray(mu_i) >= 0):
        raise ValueError(
            f"{owner}: {who} assumes that each f_i is convex, smoothness.mu_i >= 0; this problem has "
            f"mu_i {'= None' if mu_i is None else f'down to {float(np.min(mu_i))}'} ({_how(smoothness, 'mu_i')})."
        )
    return np.asarray(mu_i, float)


def mean_L(smoothness: Any) -> float:
    """Lbar = mean L_i; each must be above 0, for its inverse is a weight. Raises ValueError."""
    L_i = np.asarray(smoothness.L_i, float)
    if not np.all(L_i > 0):
        raise ValueError(f"gains=('weighted',) weighs worker i by 1/L_i and needs each L_i > 0; got {L_i.min()}.")
    return float(L_i.mean())


def _how(smoothness: Any, name: str) -> str:
    return (getattr(smoothness, "how", None) or {}).get(name, "not given")
