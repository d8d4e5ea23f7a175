"""The court: a claimed constant put to the test, with the habits that users rely on, and a verdict with evidence."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adacgd import habits
from adacgd.compressors.base import Compressor, Unbiased, alpha_of, as_key, omega_of
from adacgd.habits import Finding
from adacgd.laws import Law, Relative, ThreePointLaw, is_differentiable, judge, panel, search, values
from adacgd.mechanisms import ThreePoint

SEARCH_DRAWS = 64  # of a random target, the same for every input while searching
JUDGE_DRAWS = 4096  # fresh ones for the witness
STEPS = 300
MARGIN = 1e-9  # a claim is broken only beyond it
SIGMAS = 4.0  # of the mean on fresh draws
BIAS_SIGMAS = 6.0  # of one coordinate's mean: there are many coordinates


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """The verdict with its evidence; `str()` is a report."""

    ok: bool
    target: str
    law: str
    claimed: float  # 1 - alpha, omega, or 1 for left over right of a three point inequality
    worst: float  # the largest found: the mean over fresh draws at the witness
    stderr: float  # of `worst`; 0 where the target is deterministic
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

    def __str__(self) -> str:
        low, high = self.interval
        noise = f" in [{low:.6g}, {high:.6g}] ({self.draws} draws)" if self.stderr else " (deterministic)"
        with np.printoptions(precision=4, threshold=12, linewidth=90):
            witness = " | ".join(str(v) for v in (self.witness if isinstance(self.witness, tuple) else (self.witness,)))
        return "\n".join(
            [
                f"{self.target}: {self.law}",
                f"  claimed  {self.claimed:.9g}",
                f"  worst    {self.worst:.9g}{noise}",
                f"  at       {witness}",
                f"  sought   {self.how}: {self.inputs} inputs",
                *[f"  {finding}" for finding in self.habits],
                f"  verdict  {'the claim stands' if self.ok else 'CONVICTED: ' + self.reason}",
            ]
        )


def certify(target: Any, dim: int = 20, key: Any = 0) -> Certificate:
    """Try what a compressor, an unbiased compressor or a three point map claims on R^dim.

    The witness of the search is judged on fresh draws; the claim is convicted only when the lower end of a 4-standard-
    error interval lies above it by 1e-9. An unbiased compressor must also be unbiased, and all must keep the habits of
    `adacgd.habits`. Raises ValueError without 64-bit mode: rounding of float32 is of the size of what is certified.
    """
    if not jax.config.read("jax_enable_x64"):
        raise ValueError(
            "certify works in double precision only: in float32 rounding would decide. "
            'Call jax.config.update("jax_enable_x64", True) at the start of the program.'
        )
    if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
        raise ValueError(f"certify(dim=...) must be an integer of at least 1, got {dim!r}.")
    law, claimed, words = _law_of(target, int(dim))
    search_key, judge_key, bias_key, habit_key = (jax.random.fold_in(as_key(key), i) for i in range(4))
    deterministic = _is_deterministic(law, search_key, dim)
    ascend = is_differentiable(law, search_key, dim)
    z, _ = search(law, search_key, dim, 1 if deterministic else SEARCH_DRAWS, STEPS, ascend)
    draws = 1 if deterministic else JUDGE_DRAWS
    sample = np.asarray(judge(law, judge_key, z, draws))
    worst, stderr = float(sample.mean()), float(sample.std() / math.sqrt(draws))
    kept = habits.of(target, habit_key, dim)
    reason = ""
    if not worst - SIGMAS * stderr <= claimed + MARGIN:
        reason = f"{worst:.6g} found where {claimed:.6g} is claimed"
    elif isinstance(target, Unbiased):
        reason = _bias(target, bias_key, dim)
    reason = reason or next((f"{f.habit}: {f.words}" for f in kept if f.ok is False), "")
    return Certificate(
        ok=not reason,
        target=repr(target),
        law=words,
        claimed=claimed,
        worst=worst,
        stderr=stderr,
        witness=tuple(np.asarray(z).reshape(3, dim)) if isinstance(target, ThreePoint) else np.asarray(z),
        reason=reason,
        inputs=law.starts(search_key, dim).shape[0] * (STEPS + 1),
        draws=draws,
        how="structured panel, then " + ("gradient ascent, " if ascend else "") + "hill and coordinate climbing",
        habits=kept,
    )


def _law_of(target: Any, dim: int) -> tuple[Law, float, str]:
    if isinstance(target, Compressor):
        return Relative(target), 1 - alpha_of(target, dim), "E|C(x) - x|^2 <= (1 - alpha) |x|^2"
    if isinstance(target, Unbiased):
        return Relative(target), omega_of(target, dim), "E Q(x) = x, E|Q(x) - x|^2 <= omega |x|^2"
    if isinstance(target, ThreePoint):
        A, B, *_ = target.constants(dim)
        law = ThreePointLaw(target, jnp.asarray(A, float), jnp.asarray(B, float), dim)
        return law, 1.0, f"E|C_(h,y)(x) - x|^2 <= (1 - A)|h - y|^2 + B|x - y|^2, A = {A:.6g}, B = {B:.6g}"
    raise TypeError(
        f"certify takes a Compressor, an Unbiased compressor or a ThreePoint map, got {type(target).__name__}."
    )


def _is_deterministic(law: Law, key: jax.Array, dim: int) -> bool:
    """Whether the starts measure the same on 64 draws: two of few may agree by chance."""
    inputs = law.starts(key, dim)
    drawn = np.asarray(jax.vmap(lambda k: jax.vmap(lambda z: law.measure(k, z))(inputs))(jax.random.split(key, 64)))
    return all(np.array_equal(drawn[0], other, equal_nan=True) for other in drawn[1:])


def _bias(target: Unbiased, key: jax.Array, dim: int) -> str:
    """The first coordinate of the panel whose mean is off by more than BIAS_SIGMAS standard errors, in words."""
    for row in np.asarray(panel(key, dim)):
        sent = np.asarray(values(target, key, jnp.asarray(row), JUDGE_DRAWS))
        off = np.abs(sent.mean(axis=0) - row)
        allowed = BIAS_SIGMAS * sent.std(axis=0) / math.sqrt(JUDGE_DRAWS) + MARGIN * np.abs(row).max()
        if np.any(~(off <= allowed)):
            j = int(np.argmax(off - allowed))
            return f"biased: coordinate {j} is {row[j]:.6g} and averages {sent[:, j].mean():.6g}"
    return ""
