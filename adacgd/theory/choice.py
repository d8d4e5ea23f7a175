"""Which theorem speaks of a method, a regime and its gains; what none covers is refused with the reason."""

from typing import Any

from adacgd.theory.assumptions import REGIMES, require_name, require_pair
from adacgd.theory.constants import (
    ContractiveDCGD,
    DCGDConstants,
    DianaConstants,
    EF14Constants,
    NoTheorem,
    SGDMConstants,
)
from adacgd.theory.extensions import SGDM, HeavyBall, Prox
from adacgd.theory.gradients import DCGD, ContractiveGD, Diana
from adacgd.theory.links import Dual, OneLink, Primal
from adacgd.theory.residual import EF14Tight, EF21Tight
from adacgd.theory.statement import Theorem

FORMS = ("dual", "primal")
GAINS = ("weighted", "split", "root", "shadow")


def theorem(
    regime: str,
    constants: Any,
    downlink: Any = None,
    *,
    form: str = "dual",
    gains: tuple[str, ...] = (),
    momentum: float = 0.0,
    prox: bool = False,
) -> Theorem:
    """The theorem of `regime` for a method with these constants, as an object that knows its step, bound and source.

    regime: "nonconvex", "pl", "strongly_convex", "convex", or "tight" (EF21 and EF14, every f_i strongly convex).
    constants: AB(A, B) of the uplink, `DianaConstants`, `DCGDConstants`, `ContractiveDCGD`, `EF14Constants`,
    `SGDMConstants`. downlink: AB of the server's map, None where it sends everything.
    form: the server compresses the aggregate, "dual", or the model, "primal".
    gains: "weighted", mean L_i and a weighted G in the place of L_plus; "split", the free split of the PL step;
    "root", the root of the proof's quadratic inequality as the step, up to 5/4 times 1/(b + sqrt a); "shadow", heavy
    ball with its bound at z and twice the step. The tight rate is a regime, the sharper pair of CLAG
    and AdaCGD a pair of constants (`sharper`).
    momentum: eta of heavy ball. prox: with a proximal term.
    Raises ValueError that names what no theorem covers, TypeError for constants that are none.
    """
    return choose("theorem", regime, constants, downlink, form=form, gains=gains, momentum=momentum, prox=prox)


def choose(
    owner: str,
    regime: str,
    constants: Any,
    downlink: Any = None,
    *,
    form: str = "dual",
    gains: tuple[str, ...] = (),
    momentum: float = 0.0,
    prox: bool = False,
) -> Theorem:
    """`theorem` in the name of `owner`, which its errors give."""
    gains = (gains,) if isinstance(gains, str) else tuple(gains)
    require_name(owner, "regime", regime, REGIMES)
    require_name(owner, "form", form, FORMS)
    for gain in gains:
        require_name(owner, "gains", gain, GAINS)
    if isinstance(momentum, bool | str) or not 0 <= momentum < 1:
        raise ValueError(f"{owner}(momentum=...) must be in [0, 1), got {momentum!r}.")
    if isinstance(constants, NoTheorem):
        raise ValueError(f"{owner}: no theorem on {constants.method} is proved here: {constants.why}")
    if downlink is not None and not (hasattr(downlink, "A") and hasattr(downlink, "B")):
        if isinstance(downlink, NoTheorem):
            raise ValueError(f"{owner}: no theorem on {downlink.method} as a downlink is proved here: {downlink.why}")
        if type(downlink) in (DianaConstants, DCGDConstants, ContractiveDCGD, EF14Constants, SGDMConstants):
            raise ValueError(f"{owner}: no theorem here covers {type(downlink).__name__} on the downlink.")
    extras = _named(downlink=downlink is not None, gains=bool(gains), momentum=momentum > 0, prox=prox)
    other = _not_three_point(owner, regime, constants, extras)
    if other is not None:
        return other
    require_pair(owner, "constants", constants)
    if downlink is not None:
        require_pair(owner, "downlink", downlink)
    if regime == "tight":
        return _tight(owner, constants, extras)
    _require_gains(owner, regime, constants, gains, momentum, prox)
    spread = "weighted" if "weighted" in gains else getattr(constants, "spread", "L_plus")
    if momentum > 0 or prox:
        return _extension(owner, regime, constants, downlink, gains, momentum, prox, spread)
    chosen = (spread, "split" in gains, "root" in gains)
    if downlink is None:
        return OneLink(regime, *chosen, A=constants.A, B=constants.B)
    # With two links L_plus stands for L_pm, which is never larger (theory.md 3.2).
    chosen = ("L_plus" if spread == "L_pm" else spread, *chosen[1:])
    own: list[Any] = [getattr(link, name, None) for link in (constants, downlink) for name in "ABPQ"]
    return (Dual if form == "dual" else Primal)(regime, *chosen, *own)


def _not_three_point(owner: str, regime: str, constants: Any, extras: str) -> Theorem | None:
    """The theorem of a method with constants of its own; None for a three point map."""
    own = (DianaConstants, DCGDConstants, ContractiveDCGD, EF14Constants, SGDMConstants)
    if not isinstance(constants, own):
        return None
    name = type(constants).__name__
    if extras:
        raise ValueError(f"{owner}: the theorem for {name} has no {extras}.")
    if isinstance(constants, DianaConstants | DCGDConstants):
        _require_regime(owner, regime, name, ("strongly_convex",))
        if isinstance(constants, DCGDConstants):
            return DCGD(constants.omega, constants.workers)
        return Diana(constants.omega, constants.workers, constants.eta)
    if isinstance(constants, ContractiveDCGD):
        _require_regime(owner, regime, name, ("nonconvex", "pl", "strongly_convex"))
        return ContractiveGD(constants.alpha, regime)
    if isinstance(constants, EF14Constants):
        _require_regime(owner, regime, name, ("tight",))
        return EF14Tight(constants.alpha)
    _require_regime(owner, regime, name, ("nonconvex",))
    return SGDM(constants.alpha, constants.eta)


def _tight(owner: str, constants: Any, extras: str) -> Theorem:
    if extras:
        raise ValueError(f"{owner}(regime='tight') is proved without {extras}.")
    if not getattr(constants, "residual", False):
        raise ValueError(
            f"{owner}(regime='tight') covers g + C(grad - g) alone, whose constants are ResidualAB (EF21); silence, a "
            f"choice of levels or another map is outside, and so is {constants!r}. Use regime='strongly_convex'."
        )
    return EF21Tight(constants.A * (2 - constants.A))  # A = theta(alpha) = 1 - e, alpha = 1 - e^2


def _extension(
    owner: str,
    regime: str,
    constants: Any,
    downlink: Any,
    gains: tuple[str, ...],
    momentum: float,
    prox: bool,
    spread: str,
) -> Theorem:
    """Heavy ball or prox."""
    name = "prox=True" if prox else "momentum > 0"
    if downlink is not None or (prox and momentum > 0):
        what = "a downlink" if downlink is not None else "momentum"
        raise ValueError(f"{owner}({name}): no theorem here covers it together with {what}.")
    if regime != "nonconvex":
        raise ValueError(f"{owner}({name}) has a theorem in regime='nonconvex' only, got {regime!r}.")
    if prox:
        return Prox(constants.A, constants.B, spread)
    return HeavyBall(constants.A, constants.B, spread, eta=momentum, shadow="shadow" in gains)


def _require_gains(
    owner: str, regime: str, constants: Any, gains: tuple[str, ...], momentum: float, prox: bool
) -> None:
    """Each gain where its proof stands."""
    if "weighted" in gains and (getattr(constants, "of_mean", False) or hasattr(constants, "spread")):
        raise ValueError(
            f"{owner}(gains=('weighted',)) weighs each worker; constants of their mean (MARINA) speak of none."
        )
    if "split" in gains and regime not in ("pl", "strongly_convex"):
        raise ValueError(f"{owner}(gains=('split',)) splits the PL step; regime={regime!r} has no such step.")
    if "root" in gains and (momentum > 0 or prox):
        raise ValueError(f"{owner}(gains=('root',)) is proved for links alone, without momentum or prox.")
    if "shadow" in gains and not momentum > 0:
        raise ValueError(f"{owner}(gains=('shadow',)) is the bound of heavy ball at z; it needs momentum > 0.")


def _require_regime(owner: str, regime: str, name: str, allowed: tuple[str, ...]) -> None:
    if regime not in allowed:
        raise ValueError(
            f"{owner}(regime={regime!r}): the theorem for {name} is one for {' or '.join(map(repr, allowed))}."
        )


def _named(**present: bool) -> str:
    """The names of what is there, joined."""
    return ", ".join(name for name, there in present.items() if there)
