"""The court: a claimed constant put to the test, with the habits that users rely on, and a verdict with evidence."""

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd import habits
from adacgd.compressors.base import Compressor, Unbiased, alpha_of, as_key, omega_of, refuse_state
from adacgd.estimators import Estimator
from adacgd.evidence import MARGIN, SIGMAS, Exact, Measured, best_of, bias, enumerated, is_deterministic, weigh
from adacgd.form import require_modules, traceable
from adacgd.habits import Finding
from adacgd.laws import SMOOTH_STEPS, STEPS, Law, MeanLaw, Relative, ThreePointLaw, ask, is_differentiable, search
from adacgd.mechanisms import AB, ThreePoint

SEARCH_DRAWS = 64  # of a random target, the same for every input while searching
RESOLUTION = 0.02  # of alpha or omega: an interval so narrow shows a constant that is 5 % better than the truth
RESOLUTION_OF_MAPS = 0.001  # of left over right, in which 5 % of A or B may be less than 1 %
GRID = {1: 2, 2: 6, 3: 2}  # of x of so many coordinates all are tried with integer entries up to this


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """The verdict with its evidence; `str()` is a report."""

    ok: bool
    target: str
    dim: int
    law: str
    claimed: float  # 1 - alpha, omega, or 1 for left over right of a three point inequality
    worst: float  # the largest found: the mean over fresh draws at the witness, exact where it could be enumerated
    stderr: float  # of `worst`; 0 where the target is deterministic or its outcomes were enumerated
    witness: Any  # the input that attains it: x, or (h, y, x)
    reason: str  # "" where ok
    inputs: int  # how many were tried
    draws: int  # how many fresh draws judged the witness
    how: str  # how the witness was sought
    habits: tuple[Finding, ...]  # the other laws that users rely on

    def __bool__(self) -> bool:
        return self.ok

    @property
    def interval(self) -> tuple[float, float]:
        """Where the mean at the witness lies: SIGMAS standard errors on both sides."""
        return self.worst - SIGMAS * self.stderr, self.worst + SIGMAS * self.stderr

    @property
    def tightness(self) -> float:
        """worst / claimed: 1 where the claim is attained; also where nothing is claimed to be lost and nothing is."""
        return self.worst / self.claimed if self.claimed > 0 else 1.0 + max(self.worst, 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, words and lists, as `adacgd certify --json` prints them."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        parts = self.witness if isinstance(self.witness, tuple) else (self.witness,)
        plain["witness"] = [np.asarray(v).tolist() for v in parts]
        plain["habits"] = [f._asdict() for f in self.habits]
        return {**plain, "interval": list(self.interval), "tightness": self.tightness}

    def __str__(self) -> str:
        low, high = self.interval
        noise = f" in [{low:.6g}, {high:.6g}] ({self.draws} draws)" if self.stderr else " (exactly)"
        with np.printoptions(precision=4, threshold=12, linewidth=90):
            witness = " | ".join(str(v) for v in (self.witness if isinstance(self.witness, tuple) else (self.witness,)))
        return "\n".join(
            [
                f"{self.target}, dim {self.dim}: {self.law}",
                f"  claimed  {self.claimed:.9g}",
                f"  worst    {self.worst:.9g}{noise}",
                f"  at       {witness}",
                f"  sought   {self.how}: {self.inputs} inputs",
                *[f"  {finding}" for finding in self.habits],
                f"  verdict  {'the claim stands' if self.ok else 'CONVICTED: ' + self.reason}",
            ]
        )


@dataclasses.dataclass(frozen=True)
class _Case:
    """What is claimed of a target, and how finely it must be measured."""

    target: Any
    dim: int
    workers: int
    law: Law
    claimed: float
    resolution: float
    words: str

    @property
    def of_three(self) -> bool:
        """Whether an input is h, y, x."""
        return isinstance(self.target, ThreePoint | Estimator)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of h, y, x together; of all workers where the law is one of their mean."""
        return (3, self.workers, self.dim) if isinstance(self.target, Estimator) else (3, self.dim)


def certify(
    target: Any, dim: int = 20, key: Any = 0, *, claim: Any = None, workers: int = 4, hints: bool = True
) -> Certificate:
    """Try what a compressor, an unbiased compressor, a three point map or MARINA claims on R^dim.

    Structured inputs, those that the target itself names as its worst and, up to three coordinates, all small integer
    ones are climbed from, first in a smoothed landscape, by gradients where there are any. The witness is judged on
    fresh draws, or exactly where the target enumerates its outcomes. The claim is convicted only when the lower end of
    a 4-standard-error interval lies above it by 1e-9, twice. An unbiased compressor must also be unbiased, and all must
    keep the habits of `adacgd.habits`.

    claim: an alpha, an omega or an `AB` to be tried in place of the target's own. workers: how many share the
    randomness, for targets that do (Perm-K), and how many there are where the law is one of their mean (MARINA).
    hints: whether the search may start where the target itself, by `worst`, says that it is worst; without, a verdict
    says what the search can find alone. Raises ValueError without 64-bit mode: rounding of float32 is of the size of
    what is certified.
    """
    if not jax.config.read("jax_enable_x64"):
        raise ValueError(
            "certify works in double precision only: in float32 rounding would decide. "
            'Call jax.config.update("jax_enable_x64", True) at the start of the program.'
        )
    for name, value in {"dim": dim, "workers": workers}.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"certify({name}=...) must be an integer of at least 1, got {value!r}.")
    dim = int(dim)
    case = _case(target, dim, workers, claim, hints)
    require_modules(target, "certify(target=...)")
    vectors = (jnp.asarray(np.zeros(dim)),) * (3 if case.of_three else 1)
    traceable(f"certify({target!r})", lambda k: ask(target, k, vectors, workers), as_key(key))
    search_key, judge_key, appeal_key, habit_key = (jax.random.fold_in(as_key(key), i) for i in range(4))
    deterministic = is_deterministic(case.law, search_key, dim)
    ascend = is_differentiable(case.law, search_key, dim)
    candidates = search(case.law, search_key, dim, 1 if deterministic else SEARCH_DRAWS, ascend)
    z = best_of(case.law, judge_key, candidates)
    found, exact = _judged(case, jax.random.fold_in(judge_key, 1), z)
    kept = habits.of(target, habit_key, dim, workers)
    reason = _objection(case, found, exact, judge_key, deterministic)
    if reason:  # an appeal: the same question on other draws
        again, _ = _judged(case, appeal_key, z)
        reason = _objection(case, again, exact, appeal_key, deterministic)
        found = again if again.draws >= found.draws else found
    reason = reason or next((f"{f.habit}: {f.words}" for f in kept if f.ok is False), "")
    sought = "structured panel, " + ("its own worst case, " if hints and len(case.law.hints) else "")  # type: ignore[attr-defined]
    climbed = f"smoothed {'gradient' if ascend else 'random'} ascent, hill and coordinate climbing"
    return Certificate(
        ok=not reason,
        target=repr(target),
        dim=dim,
        law=case.words,
        claimed=case.claimed,
        worst=found.mean,
        stderr=found.stderr,
        witness=tuple(z.reshape(case.shape)) if case.of_three else z,
        reason=reason,
        inputs=case.law.starts(search_key, dim).shape[0] + len(candidates) // 2 * (SMOOTH_STEPS + STEPS),
        draws=found.draws,
        how=sought + climbed + (f"; all {exact.size} outcomes of the witness" if exact else ""),
        habits=kept,
    )


def _case(target: Any, dim: int, workers: int, claim: Any, hints: bool = True) -> _Case:
    if isinstance(target, Compressor):
        alpha = alpha_of(target, dim, workers) if claim is None else _claimed(claim, "an alpha in (0, 1]", 0, 1)
        law = Relative(target, _hints([target], dim, hints), workers)
        return _Case(target, dim, workers, law, 1 - alpha, RESOLUTION * alpha, "E|C(x) - x|^2 <= (1 - alpha) |x|^2")
    if isinstance(target, Unbiased):
        omega = omega_of(target, dim, workers) if claim is None else _claimed(claim, "an omega >= 0", -1e-300)
        law = Relative(target, _hints([target], dim, hints), workers)
        return _Case(target, dim, workers, law, omega, RESOLUTION * omega, "E Q(x) = x, E|Q(x) - x|^2 <= omega |x|^2")
    if isinstance(target, ThreePoint) or (isinstance(target, Estimator) and target.of_mean):
        told = {"workers": workers} if getattr(target, "shares_randomness", False) else {}
        if claim is not None and not isinstance(claim, AB):
            raise ValueError(f"certify(claim=...) must be an AB(A, B) for a three point map, got {claim!r}.")
        A, B, *_ = target.constants(dim, **told) if claim is None else claim
        parts = [p for p in jax.tree.leaves(target, is_leaf=_is_part) if _is_part(p)]
        A_, B_ = jnp.asarray(A, float), jnp.asarray(B, float)
        if isinstance(target, Estimator):
            apart = getattr(target.constants(dim, **told), "spread", "L_plus") == "L_pm"
            of_mean = MeanLaw(target, A_, B_, _hints(parts, dim, hints), apart, dim, workers)
            spread = "(mean|x_i - y_i|^2 - |mean(x_i - y_i)|^2)" if apart else "mean|x_i - y_i|^2"
            words = f"E|g^+ - mean x_i|^2 <= (1 - A)|g - mean y_i|^2 + B {spread}, A = {A:.6g}, B = {B:.6g}"
            return _Case(target, dim, workers, of_mean, 1.0, RESOLUTION_OF_MAPS, words)
        shares = jnp.array(_shares(target, A))
        of_three: Law = ThreePointLaw(target, A_, B_, _hints(parts, dim, hints), shares, dim, workers)
        words = f"E|C_(h,y)(x) - x|^2 <= (1 - A)|h - y|^2 + B|x - y|^2, A = {A:.6g}, B = {B:.6g}"
        return _Case(target, dim, workers, of_three, 1.0, RESOLUTION_OF_MAPS, words)
    refuse_state("certify(target=...)", target)
    why = " (an estimator with a memory of its own has no law of one message)" if isinstance(target, Estimator) else ""
    raise TypeError(
        f"certify takes a Compressor, an Unbiased compressor or a ThreePoint map, got {type(target).__name__}{why}."
    )


def _claimed(claim: Any, words: str, low: float, high: float = math.inf) -> float:
    if isinstance(claim, bool) or not isinstance(claim, int | float | np.number) or not low < claim <= high:
        raise ValueError(f"certify(claim=...) must be {words}, got {claim!r}.")
    return float(claim)


def _is_part(value: Any) -> bool:
    return isinstance(value, Compressor | Unbiased)


def _hints(parts: list[Any], dim: int, told: bool) -> jax.Array:
    """(count, d): what the parts call their worst case, and all small integer vectors of few coordinates."""
    rows = [worst for part in parts if (worst := part.worst(dim)) is not None and np.any(worst)]
    rows = rows if told else [np.ones(dim)] * len(rows)  # which the panel has too: no program is compiled anew
    most = GRID.get(dim, 0)
    rows += [np.array(x, float) for x in itertools.product(range(-most, most + 1), repeat=dim if most else 0) if any(x)]
    return jnp.asarray(np.array(rows, float).reshape(-1, dim))


def _shares(target: ThreePoint, A: float) -> list[float]:
    """Where y may stand between h (0) and x (1) when a law is tight: where Young's inequality is for EF21, 1/(1 + s*) =
    1 - A, some others, and where a trigger of zeta just says *skip* or just does not."""
    inside = jax.tree.leaves(target, is_leaf=lambda v: isinstance(v, ThreePoint) and v is not target)
    ladders = [part.ladder() for part in (target, *inside) if isinstance(part, ThreePoint)]
    zetas = [float(found.zeta) for found in ladders if found is not None and found.may_be_silent and found.zeta > 0]
    edges = [1 / math.sqrt(zeta) for zeta in dict.fromkeys(zetas)] or [0.5]
    at_edge = [1 + side * edge * (1 + nudge) for edge in edges for side, nudge in ((-1, 1e-9), (-1, -1e-9), (1, 1e-9))]
    return [1 - A, A, 0.0, 0.5, 0.9, 1.5, *at_edge]


def _judged(case: _Case, key: jax.Array, z: np.ndarray) -> tuple[Measured, Exact | None]:
    found = weigh(case.law, key, z, case.claimed, case.resolution)
    if case.of_three:
        return found, None
    exact = enumerated(case.target, key, z, case.workers)
    return (found if exact is None or exact.words else Measured(exact.error, 0.0, found.draws)), exact


def _objection(case: _Case, found: Measured, exact: Exact | None, key: jax.Array, deterministic: bool) -> str:
    """What speaks against the claim, "" for nothing."""
    if found.above(case.claimed):
        return f"{found.mean:.6g} found where {case.claimed:.6g} is claimed"
    if exact and exact.words:
        return exact.words
    if not isinstance(case.target, Unbiased):
        return ""
    if exact and exact.bias > MARGIN:
        return f"biased: by {exact.bias:.3g} of the largest entry, over all {exact.size} outcomes"
    variance = 0.0 if deterministic else case.claimed
    return bias(case.target, jax.random.fold_in(key, 2), case.dim, variance, case.workers)
