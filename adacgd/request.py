"""What a run was asked to be: checked before anything is compiled, and what follows from it."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.base import as_key
from adacgd.estimators import Estimator, Lifted, in_precision, lifted, rehearse
from adacgd.mechanisms import AB, GD, ThreePoint
from adacgd.oracles import Exact, Oracle
from adacgd.records import Setting
from adacgd.servers import Descent, HeavyBall, ProximalDescent, Server
from adacgd.workers import Workers


class Request(NamedTuple):
    """What a run was asked to be; `simulate(start=...)` compares it by these names."""

    problem: Any
    uplink: Any
    downlink: Any
    stepsize: float
    key: Any
    form: str = "dual"
    init: str = "exact"
    momentum: float = 0.0
    oracle: Any = None


class Asked(NamedTuple):
    """A request with all that follows from it before the first round."""

    request: Request
    constants: tuple[Any, Any]  # of both links; None: no downlink compression
    setting: Setting
    tolerance: float | None
    verify: bool

    def over(self, workers: Workers) -> "Asked":
        """The same with its workers spread so."""
        return self._replace(setting=dataclasses.replace(self.setting, workers=workers))


def starting_point(problem: Any, x0: Any, owner: str = "simulate") -> jax.Array:
    """x^0 as a fresh array in the problem's precision: a run may give its buffers away, never the caller's."""
    if x0 is None:
        return jnp.array(problem.x0, copy=True)
    given = np.asarray(x0)
    if given.shape != (problem.dim,) or not np.issubdtype(given.dtype, np.number) or np.iscomplexobj(given):
        raise ValueError(f"{owner}(x0=...) must be {problem.dim} real numbers, got shape {given.shape} {given.dtype}.")
    first = jnp.array(given, dtype=problem.x0.dtype, copy=True)
    if hasattr(problem, "penalty") and not math.isfinite(problem.penalty(first)):
        raise ValueError(f"{owner}(x0=...) lies where r is infinite, outside the box of {problem.name}; start inside.")
    return first


def require_run(owner: str, rounds: Any, record_every: Any, tolerance: Any) -> None:
    """Integers and a tolerance that make sense. Raises ValueError."""
    for name, value, least in (("rounds", rounds, 0), ("record_every", record_every, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**31 - 1:
            raise ValueError(f"{owner}({name}=...) must be an integer in [{least}, 2**31 - 1), got {value!r}.")
    is_number = isinstance(tolerance, int | float | np.number) and not isinstance(tolerance, bool)
    if tolerance is not None and not (is_number and 0 < tolerance < math.inf):
        raise ValueError(f"{owner}(tolerance=...) must be a finite number > 0 or None, got {tolerance!r}.")


def ask(
    request: Request,
    tolerance: float | None = None,
    verify: bool = False,
    owner: str = "simulate",
    step: str = "stepsize",
) -> Asked:
    """The request made ready for the compiled loop, or an error that names what is wrong with it.

    owner, step: the function that was called and its argument that holds the step.
    """
    problem, uplink, downlink, stepsize = request.problem, request.uplink, request.downlink, request.stepsize
    for name in ("n", "dim", "loss", "grads", "x0", "smoothness"):
        if not hasattr(problem, name):
            raise TypeError(f"{owner}(problem=...) needs `{name}`; got {type(problem).__name__}. See problems.Problem.")
    if isinstance(stepsize, bool) or not isinstance(stepsize, int | float | np.number | jax.Array) or np.ndim(stepsize):
        raise TypeError(f"{owner}({step}=...): a step is one number > 0, got {stepsize!r}.")
    if not (math.isfinite(stepsize) and stepsize > 0):
        raise ValueError(f"{owner}({step}=...): a step is finite and > 0, got {float(stepsize)}.")
    _require_kind(owner, request)
    request = request._replace(stepsize=float(stepsize), key=as_key(request.key))

    dim, dtype = problem.dim, problem.x0.dtype
    up = lifted(uplink, "uplink", dim, dtype, owner)
    down = Lifted(GD()) if downlink is None else lifted(downlink, "downlink", dim, dtype, owner)
    constants = (_constants(uplink, dim, problem.n), None if downlink is None else _constants(downlink, dim, 1))
    x_star = getattr(problem, "x_star", None)
    setting = Setting(
        uplink=up,
        downlink=down,
        stepsize=jnp.asarray(request.stepsize, dtype),
        key=request.key,
        tolerance_sq=jnp.asarray(-1.0 if tolerance is None else float(tolerance) ** 2, dtype),
        expected=tuple(jnp.asarray(v, dtype) for v in _expected(problem, constants)) if verify else (),
        oracle=in_precision(_oracle(owner, request), dtype),
        server=_server(owner, request),
        star=() if x_star is None else (jnp.asarray(x_star, dtype),),
        workers=Workers(problem.n),
        form=request.form,
    )
    return Asked(request, constants, setting, tolerance, verify)


def _require_kind(owner: str, request: Request) -> None:
    """Names and a momentum that exist. Raises ValueError."""
    for name, allowed in (("form", ("dual", "primal")), ("init", ("exact", "compressed", "zero"))):
        if getattr(request, name) not in allowed:
            raise ValueError(
                f"{owner}({name}=...) must be one of {', '.join(allowed)}; got {getattr(request, name)!r}."
            )
    for where in ("uplink", "downlink"):
        link = getattr(request, where)
        starts = getattr(link, "starts", (request.init,))
        if request.init not in starts:
            raise ValueError(
                f"{owner}(init={request.init!r}): {type(link).__name__} presumes a first message; "
                f"use init={' or '.join(repr(start) for start in starts)}."
            )
    if request.form == "primal" and isinstance(request.downlink, Estimator):
        raise ValueError(
            f"{owner}(downlink={request.downlink!r}, form='primal') compresses the model, as a three point map does; "
            "the memories and triggers of other links are made for gradients. Use one such as EF21(TopK(3))."
        )
    eta = request.momentum
    if isinstance(eta, bool) or not isinstance(eta, int | float | np.number) or not 0 <= eta < 1:
        raise ValueError(f"{owner}(momentum=...) must be a number in [0, 1), got {eta!r}.")


def _oracle(owner: str, request: Request) -> Oracle:
    """What the workers compress. Raises TypeError where the problem has no rows for it."""
    oracle = request.oracle
    if oracle is None:
        return Exact()
    if not isinstance(oracle, Oracle):
        raise TypeError(f"{owner}(oracle=...) must be an oracle such as Minibatch(8), got {oracle!r}.")
    if oracle.needs_rows:
        if not hasattr(request.problem, "batch_grads"):
            name = getattr(request.problem, "name", type(request.problem).__name__)
            raise TypeError(f"{owner}(oracle={oracle!r}): {name} has no rows to draw a batch from; leave out oracle.")
        sizes = np.asarray(request.problem.sizes)
        if getattr(oracle, "batch", 1) > sizes.min():
            raise ValueError(
                f"{owner}(oracle={oracle!r}): batches of more rows than the {sizes.min()} of the smallest shard; use "
                f"batch <= {sizes.min()}, or leave out oracle for exact gradients."
            )
    return oracle


def _server(owner: str, request: Request) -> Server:
    """How x moves: with a prox where the problem has one, else with momentum where there is some."""
    if hasattr(request.problem, "prox"):
        if request.momentum:
            raise ValueError(f"{owner}(momentum={request.momentum:g}): not with a prox; use momentum=0.")
        return ProximalDescent()
    dtype = request.problem.x0.dtype
    return HeavyBall(jnp.asarray(request.momentum, dtype)) if request.momentum else Descent()


def _expected(problem: Any, constants: tuple[Any, Any]) -> tuple[float, ...]:
    """What `verify` holds a run against. Raises ValueError where a link has no (A, B)."""
    links = [AB(1.0, 0.0) if found is None else found for found in constants]
    for link in links:
        if not isinstance(link, AB):
            raise ValueError(
                f"simulate(verify=True) checks the three point inequality of each link, and one of them has none: "
                f"{getattr(link, 'why', link)} Leave out verify."
            )
    (A, B, *_), (A_M, B_M, *_) = links
    return A, B, A_M, B_M, problem.smoothness.L_minus, problem.smoothness.L_plus


def _constants(link: Any, dim: int, workers: int) -> Any:
    shares = getattr(link, "shares_randomness", False)
    found = link.constants(dim, workers=workers) if shares else link.constants(dim)
    if not isinstance(found, AB if isinstance(link, ThreePoint) else tuple):
        raise TypeError(f"{type(link).__name__}.constants(dim) must return ac.AB(A, B), got {found!r}.")
    return found


def rehearse_links(asked: Asked, owner: str) -> None:
    """`rehearse` both links of a request."""
    problem, setting, key = asked.request.problem, asked.setting, asked.request.key
    for where, link, workers in (("uplink", setting.uplink, problem.n), ("downlink", setting.downlink, 1)):
        shown = f"{owner}({where}={getattr(asked.request, where)!r})"
        rehearse(link, shown, key, problem.dim, problem.x0.dtype, workers)


def in_words(request: Request) -> str:
    """The method as legends name it."""
    defaults = Request._field_defaults
    options = [f"{name}={getattr(request, name)!r}" for name in defaults if getattr(request, name) != defaults[name]]
    down = [] if request.downlink is None else [f"down {request.downlink!r}"]
    return " ".join([repr(request.uplink), *down, *options])
