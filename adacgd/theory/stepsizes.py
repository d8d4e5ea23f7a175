"""What the theorems allow and promise, a function each: one-liners over `theorem` (choice.py)."""

import itertools
from typing import Any, NamedTuple

import numpy as np

from adacgd.theory.assumptions import require_smoothness
from adacgd.theory.choice import choose
from adacgd.theory.statement import Start, Theorem


def stepsize(
    smoothness: Any,
    constants: Any,
    regime: str = "nonconvex",
    downlink: Any = None,
    *,
    form: str = "dual",
    gains: tuple[str, ...] = (),
    momentum: float = 0.0,
    prox: bool = False,
    start: Start | None = None,
) -> float:
    """The largest gamma that the theorem of `regime` allows; arguments as in `theorem`.

    One link, "nonconvex": 1/(L_minus + L_plus sqrt(B/A)) (3PC; theory.md 3.1). Both links, dual form: 1/(L_minus +
    L_plus (sqrt u + sqrt v)), u = B/A, v = (B_M/A_M)(Q + P u) (derived, theory.md 3.4). "pl" and "strongly_convex":
    sqrt 2 before the roots, 2 P for P, and at most A/(2 mu) of each link that loses something. "convex": the same
    without those caps. "tight": (2/(L + mu))(1 - e)/(1 + e) (3.3), the one step that its rate speaks of.
    Constants whose `spread` is "L_pm" (MARINA with Perm-K) have that in the place of L_plus, without a downlink (3.2).
    EF21-SGDM: the step is recalled and untested.
    start: None is an exact one, G = H = W = 0; only one with an error on a link without loss asks for less.
    Raises ValueError that names the assumption that fails.
    """
    require_smoothness("stepsize", smoothness)
    own = choose("stepsize", regime, constants, downlink, form=form, gains=gains, momentum=momentum, prox=prox)
    return own.stepsize(smoothness, start)


def rate(
    smoothness: Any,
    constants: Any,
    regime: str = "pl",
    downlink: Any = None,
    *,
    form: str = "dual",
    gains: tuple[str, ...] = (),
    momentum: float = 0.0,
    prox: bool = False,
    stepsize: float | None = None,
) -> float | None:
    """The factor a round by which the bound contracts, at `stepsize` (None: the largest); None if not linear."""
    require_smoothness("rate", smoothness)
    own = choose("rate", regime, constants, downlink, form=form, gains=gains, momentum=momentum, prox=prox)
    return own.rate(smoothness, _allowed("rate", own, smoothness, stepsize, None))


def bound(
    smoothness: Any,
    constants: Any,
    regime: str = "nonconvex",
    downlink: Any = None,
    *,
    start: Start,
    rounds: Any,
    form: str = "dual",
    gains: tuple[str, ...] = (),
    momentum: float = 0.0,
    prox: bool = False,
    stepsize: float | None = None,
) -> np.ndarray:
    """The right-hand side after each of `rounds`, an array of its shape; what it bounds is `theorem(...).left_side`.

    stepsize: None is the largest allowed. Raises ValueError for a larger one.
    """
    require_smoothness("bound", smoothness)
    own = choose("bound", regime, constants, downlink, form=form, gains=gains, momentum=momentum, prox=prox)
    _require_start("bound", start)
    if np.any(~(np.asarray(rounds, float) >= 0)):
        raise ValueError(f"bound(rounds=...) counts rounds, 0 at least; got {rounds!r}.")
    return own.bound(smoothness, _allowed("bound", own, smoothness, stepsize, start), start, rounds)


def iterations_to(
    eps: float,
    smoothness: Any,
    constants: Any,
    regime: str = "nonconvex",
    downlink: Any = None,
    *,
    start: Start,
    form: str = "dual",
    gains: tuple[str, ...] = (),
    momentum: float = 0.0,
    prox: bool = False,
    stepsize: float | None = None,
) -> int | float:
    """The least T for which the bound guarantees eps; math.inf if no T does (DCGD stops at a distance from x*).

    eps: of |grad f| in the root mean square over rounds, "nonconvex"; of f - f*, "pl", "strongly_convex", "convex",
    "tight"; of E|x - x*|^2, DCGD, DIANA, EF14.
    """
    require_smoothness("iterations_to", smoothness)
    own = choose("iterations_to", regime, constants, downlink, form=form, gains=gains, momentum=momentum, prox=prox)
    _require_start("iterations_to", start)
    gamma = _allowed("iterations_to", own, smoothness, stepsize, start)
    return own.iterations(smoothness, gamma, start, eps)


def bits_to(eps: float, *args: Any, per_round: float, initial: float = 0.0, **options: Any) -> float:
    """initial + per_round * iterations_to(eps, ...): bits of a worker that the bound needs for eps.

    per_round: mean bits of a worker in a round; initial: those before the first, b d for exact starts. Nothing here
    bounds how often LAG, CLAG or AdaCGD are silent: with the finest level and the flag it is an upper bound for them.
    The other arguments are those of `iterations_to`.
    """
    return initial + per_round * iterations_to(eps, *args, **options)


class Gain(NamedTuple):
    """What one option is worth: the step, and how much larger it is than the standard one; the same of -log(rate)."""

    stepsize: float
    step: float  # stepsize over the standard stepsize
    speed: float | None  # log rate over the standard log rate: rounds saved; None where the regime is not linear


def gain_factors(
    smoothness: Any,
    constants: Any,
    regime: str = "pl",
    downlink: Any = None,
    *,
    form: str = "dual",
    pairs: dict[str, Any] | None = None,
) -> dict[str, Gain]:
    """How much larger a step each gain allows on a problem: name -> Gain; "standard" is 1 by definition.

    Gains that `regime` or the constants do not admit are absent. pairs: other constants of the same map by name, such
    as {"sharper": AB(*sharper(alpha, zeta))}; each is tried alone and with every other gain. "tight" stands where the
    uplink is EF21 alone and every f_i strongly convex; its rate, not its step, is what it gains.
    """
    require_smoothness("gain_factors", smoothness)
    found: dict[str, Gain] = {}
    standard = choose("gain_factors", regime, constants, downlink, form=form)
    step = standard.stepsize(smoothness)
    base = _log_rate(standard, smoothness, step)

    def add(name: str, asked: str, own: Any, gains: tuple[str, ...] = (), down: Any = downlink) -> None:
        try:
            one = choose("gain_factors", asked, own, down, form=form, gains=gains)
            gamma = one.stepsize(smoothness)
        except ValueError:  # outside its assumptions here
            return
        speed = _log_rate(one, smoothness, gamma)
        found[name] = Gain(gamma, gamma / step, speed / base if speed is not None and base else None)

    for pair, own in {"": constants, **(pairs or {})}.items():
        for gains in _subsets(("weighted", "split", "root")):
            add(" + ".join([name for name in (pair, *gains) if name]) or "standard", regime, own, gains)
    if regime in ("pl", "strongly_convex"):
        add("tight", "tight", constants)
    return found


def _subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [some for k in range(len(names) + 1) for some in itertools.combinations(names, k)]


def _log_rate(own: Theorem, smoothness: Any, gamma: float) -> float | None:
    factor = own.rate(smoothness, gamma)
    return None if factor is None else float(-np.log(max(factor, 1e-300)))


def _require_start(owner: str, start: Any) -> None:
    """Plain numbers that a run can have. Raises TypeError, ValueError."""
    if not isinstance(start, Start):
        raise TypeError(f"{owner}(start=...) must be a theory.Start(gap=...), got {start!r}.")
    wrong = [f"{name}={value!r}" for name, value in start._asdict().items() if value is not None and not value >= 0]
    if wrong:
        raise ValueError(
            f"{owner}(start=...): Start({', '.join(wrong)}) must be 0 at least; none of them can be negative."
        )


def _allowed(owner: str, own: Theorem, smoothness: Any, gamma: float | None, start: Start | None) -> float:
    """The step asked for, or the largest. Raises ValueError for one that the theorem does not cover."""
    largest = own.stepsize(smoothness, start)
    if gamma is None:
        return largest
    if not 0 < gamma <= largest * (1 + 1e-12) or (own.only_at_the_step and gamma < largest * (1 - 1e-12)):
        rule = "speaks of the step" if own.only_at_the_step else "assumes a step of at most"
        raise ValueError(f"{owner}(stepsize={gamma!r}): the theorem {rule} {largest!r} ({own.source}).")
    return gamma
