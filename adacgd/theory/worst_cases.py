"""Exact worst cases: how much a potential can grow in T rounds, over every problem of a class and every compressor.

A semidefinite program over the Gram matrix of all points and gradients finds it (performance estimation; PEPit with
Clarabel, the extra `pep`). It knows nothing of the theorems: it is what they are compared with.

The class: n functions f_i, each mu_i-strongly convex and L_i-smooth, in any dimension, x* the minimiser of their mean
(grad f_i(x*) need not vanish). The compressor: |C(v) - v|^2 <= (1 - alpha)|v|^2, at each call. That is exact for
compressors that may differ from call to call, worker to worker; one map for all calls satisfies one thing more, that
equal inputs give equal outputs, which matters only where two inputs of the worst case coincide. A random C whose
*expected* error obeys the bound is covered for one step of EF21, CLAG and EF14 with the potentials "tight" and "pl",
which are linear in that error; not for more steps, and not where x^+ already depends on what C sends ("late", CGD).
"""

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from adacgd.theory.constants import theta

POTENTIALS = {  # method: what can be measured, the default first
    "ef21": ("tight", "late", "pl"),
    "ef14": ("tight",),
    "clag": ("pl", "tight"),
    "cgd": ("loss", "distance", "gradient"),
}
WORDS = {
    ("ef21", "tight"): "e |grad f(x^t)|^2 + mean |grad f_i(x^t) - g_i^t|^2",
    ("ef21", "late"): "e |grad f(x^t)|^2 + mean |grad f_i(x^t) - g_i^{t-1}|^2",
    ("ef21", "pl"): "f(x^t) - f* + (gamma/theta) mean |grad f_i(x^t) - g_i^t|^2",
    ("ef14", "tight"): "|x^t - x* - mean err_i^t|^2 + (1/e) mean |err_i^t|^2",
    ("cgd", "loss"): "f(x^t) - f*",
    ("cgd", "distance"): "|x^t - x*|^2",
    ("cgd", "gradient"): "|grad f(x^t)|^2",
}
WORDS |= {("clag", name): WORDS["ef21", name] for name in POTENTIALS["clag"]}
LEAVES = "unbounded: from x*, err = 0, where V = 0, the errors of C at grad f_i(x*) need not cancel"
GAP = 1e-6  # between the solver's upper and lower end, relative, beyond which there is no answer
SHARP = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
# of Clarabel, tried in turn
SETTINGS: tuple[dict[str, Any], ...] = (SHARP | {"equilibrate_max_iter": 50}, SHARP, {}, {"equilibrate_max_iter": 50})
EXTRA = 'worst_case needs PEPit and Clarabel: pip install "adacgd[pep]"'


class WorstCase(NamedTuple):
    """The largest V^T/V^0, and how it was found."""

    factor: float  # sup V^T / V^0, the solver's upper end; inf where V^T > 0 is possible from V^0 = 0
    steps: int  # T
    potential: str  # V, as a formula
    branch: tuple[str, ...]  # of CLAG's worst case: a word a worker, 's' silent or 'c' compressed in each round
    programs: int  # how many were solved, one a pattern of silence
    status: str  # the solver's word for the worst of them
    gap: float  # its upper end minus its lower end; NaN where the factor is inf

    @property
    def per_step(self) -> float:
        """factor^(1/T)."""
        return self.factor ** (1 / self.steps)


def worst_case(
    method: str,
    *,
    mu: float | Sequence[float],
    L: float | Sequence[float],
    alpha: float,
    stepsize: float,
    n: int = 1,
    steps: int = 1,
    zeta: float | None = None,
    potential: str | None = None,
    shared_minimiser: bool = False,
) -> WorstCase:
    """sup V^T / V^0 over all problems, starts, states and contractive compressors, T = steps.

    method: "ef21", "ef14" (classic error feedback), "clag" (with zeta; alpha = 1 is LAG) or "cgd", compressed gradient
    descent x^+ = x - gamma mean C(grad f_i(x)). potential: for ef21 "tight" (theory.md 3.3), "late" (the same weight
    on the pair (x^t, g^{t-1})) or "pl" (theory.md 3.1); for clag "pl" or "tight"; for cgd "loss", "distance" or
    "gradient". The state (g_i or err_i) is free at the start. mu, L: of every f_i, or one number a worker.
    CLAG: the largest over all patterns of silence (up to the order of equal workers), each with its inequality,
    |x - h|^2 <= zeta|x - y|^2 where silent and >= where not; a tie is allowed in both.
    shared_minimiser: every grad f_i(x*) = 0. Without it cgd and ef14 with n > 1 can start at V^0 = 0 (x = x*, err = 0)
    and leave it at once, since the errors of C at grad f_i(x*) need not cancel: the factor is inf, and no program runs.
    PEPit keeps its state in classes: not for two threads at once, and not amid a PEP of your own. Raises ValueError,
    ImportError without the extra, RuntimeError where the solver fails.
    """
    mus, Ls = _constants(mu, L, n)
    potential = _require(method, potential, alpha, stepsize, n, steps, zeta)
    if method in ("cgd", "ef14") and n > 1 and alpha < 1 and not shared_minimiser:
        return WorstCase(math.inf, steps, WORDS[method, potential], (), 0, LEAVES, math.nan)
    workers = list(zip(mus, Ls, strict=True))
    found = []
    for pattern in _patterns(method, workers, steps, zeta):
        game = _Game(workers, alpha, shared_minimiser)
        found.append((game.play(method, potential, stepsize, zeta, pattern), pattern))
    (factor, status, gap), pattern = max(found, key=lambda each: each[0][0])
    branch = pattern if method == "clag" else ()
    return WorstCase(factor, steps, WORDS[method, potential], branch, len(found), status, gap)


class _State(NamedTuple):
    x: Any
    held: list[Any]  # g_i of EF21 and CLAG, err_i of EF14, nothing of CGD


class _Game:
    """One program in the making. Points and inner products are PEPit's: x ** 2 is |x|^2, x * y is <x, y>."""

    def __init__(self, workers: Sequence[tuple[float, float]], alpha: float, shared: bool) -> None:
        pepit, smooth_strongly_convex = _pepit()
        self.new_point = pepit.Point
        self.pep, self.alpha, self.n = pepit.PEP(), alpha, len(workers)
        self.f = [self.pep.declare_function(smooth_strongly_convex, mu=mu, L=L) for mu, L in workers]
        if shared:
            self.minimiser = self.f[0].stationary_point()
            for f in self.f[1:]:
                f.add_point((self.minimiser, pepit.Point(is_leaf=False, decomposition_dict={}), pepit.Expression()))
        else:
            self.minimiser = self.mean(self.f).stationary_point()

    def mean(self, terms: Iterable[Any]) -> Any:
        """(1/n) sum."""
        first, *rest = terms
        return sum(rest, first) / self.n

    def grads(self, x: Any) -> list[Any]:
        """grad f_i(x)."""
        return [f.gradient(x) for f in self.f]

    def compressed(self, v: Any) -> Any:
        """C(v): anything within sqrt(1 - alpha)|v| of v."""
        if self.alpha == 1:
            return v
        sent = self.new_point()
        self.pep.add_constraint((sent - v) ** 2 <= (1 - self.alpha) * v**2)
        return sent

    def play(
        self, method: str, potential: str, gamma: float, zeta: float | None, pattern: Sequence[str]
    ) -> tuple[float, str, float]:
        """(factor, status, gap) of sup V^T subject to V^0 <= 1, with the pattern of silence."""
        V, step = self._potential(method, potential, gamma), self._step(method, potential, gamma, zeta)
        state = _State(self.pep.set_initial_point(), [])
        if method != "cgd":
            state = state._replace(held=[self.pep.set_initial_point() for _ in self.f])
        self.pep.set_initial_condition(V(state) <= 1)
        for moves in zip(*pattern, strict=True):  # of each worker, a round
            state = step(state, moves)
        self.pep.set_performance_metric(V(state))
        return _solve(self.pep)

    def _step(self, method: str, potential: str, gamma: float, zeta: float | None) -> Callable[..., _State]:
        def three_point(s: _State, moves: Sequence[str]) -> _State:
            """EF21 and CLAG: x^+ = x - gamma mean g_i, then g_i^+ = g_i + C(grad f_i(x^+) - g_i), or g_i in silence."""
            x = s.x - gamma * self.mean(s.held)
            held = []
            for move, g, old, new in zip(moves, s.held, self.grads(s.x), self.grads(x), strict=True):
                if zeta is not None and zeta > 0:
                    error, allowed = (new - g) ** 2, zeta * (new - old) ** 2
                    self.pep.add_constraint(error <= allowed if move == "s" else error >= allowed)
                held.append(g if move == "s" else g + self.compressed(new - g))
            return _State(x, held)

        def late(s: _State, moves: Sequence[str]) -> _State:
            """EF21 from (x, g_i^{t-1}): g_i = g_i^{t-1} + C(grad f_i(x) - g_i^{t-1}), then x^+ = x - gamma mean g_i."""
            held = [g + self.compressed(grad - g) for g, grad in zip(s.held, self.grads(s.x), strict=True)]
            return _State(s.x - gamma * self.mean(held), held)

        def ef14(s: _State, moves: Sequence[str]) -> _State:
            """p_i = err_i + gamma grad f_i(x), x^+ = x - mean C(p_i), err_i^+ = p_i - C(p_i)."""
            p = [err + gamma * grad for err, grad in zip(s.held, self.grads(s.x), strict=True)]
            sent = [self.compressed(v) for v in p]
            return _State(s.x - self.mean(sent), [v - w for v, w in zip(p, sent, strict=True)])

        def cgd(s: _State, moves: Sequence[str]) -> _State:
            """x^+ = x - gamma mean C(grad f_i(x))."""
            return _State(s.x - gamma * self.mean([self.compressed(grad) for grad in self.grads(s.x)]), [])

        return {"ef14": ef14, "cgd": cgd}.get(method, late if potential == "late" else three_point)

    def _potential(self, method: str, potential: str, gamma: float) -> Callable[[_State], Any]:
        e = math.sqrt(1 - self.alpha)

        def loss(s: _State) -> Any:
            return self.mean(f(s.x) for f in self.f) - self.mean(f(self.minimiser) for f in self.f)

        def G(s: _State) -> Any:
            return self.mean((grad - g) ** 2 for grad, g in zip(self.grads(s.x), s.held, strict=True))

        if method == "ef14":
            return lambda s: (
                (s.x - self.minimiser - self.mean(s.held)) ** 2 + self.mean(err**2 for err in s.held) * (1 / e)
            )
        found: dict[str, Callable[[_State], Any]] = {
            "tight": lambda s: e * self.mean(self.grads(s.x)) ** 2 + G(s),
            "late": lambda s: e * self.mean(self.grads(s.x)) ** 2 + G(s),
            "pl": lambda s: loss(s) + gamma / theta(self.alpha) * G(s),
            "loss": loss,
            "distance": lambda s: (s.x - self.minimiser) ** 2,
            "gradient": lambda s: self.mean(self.grads(s.x)) ** 2,
        }
        return found[potential]


def _patterns(
    method: str, workers: Sequence[tuple[float, float]], steps: int, zeta: float | None
) -> Iterator[tuple[str, ...]]:
    """A word of `steps` letters a worker. At zeta = 0 silence means g = x, as does what is sent then."""
    if method != "clag" or zeta == 0:
        yield ("c" * steps,) * len(workers)
        return
    words = ["".join(letters) for letters in itertools.product("cs", repeat=steps)]
    if len(set(workers)) == 1:
        yield from itertools.combinations_with_replacement(words, len(workers))
    else:
        yield from itertools.product(words, repeat=len(workers))


def _solve(pep: Any) -> tuple[float, str, float]:
    """(upper end, status, upper minus lower end), by the first setting that gets through."""
    told = []
    for setting in SETTINGS:
        with warnings.catch_warnings():
            # cvxpy's "may be inaccurate": the gap says how inaccurate
            warnings.filterwarnings("ignore", message="Solution may be inaccurate", category=UserWarning)
            try:
                upper = pep.solve(wrapper="cvxpy", solver="CLARABEL", verbose=0, **setting)
            except Exception as error:  # cvxpy's SolverError, which cannot be named without importing it
                told.append(" ".join(str(error).split())[:80])
                continue
        status = str(pep.wrapper.prob.status)
        gap = math.nan if upper is None else float(upper) - float(pep.objective.eval())
        if status.startswith("optimal") and abs(gap) <= GAP * max(1.0, float(upper)):
            return float(upper), status, gap
        told.append(f"{status}, upper minus lower end {gap:.1e}")
    raise RuntimeError(f"worst_case: the solver gave no answer: {'; '.join(told)}.")


def _pepit() -> tuple[Any, Any]:
    try:
        import clarabel  # noqa: F401
        import PEPit
        from PEPit.functions import SmoothStronglyConvexFunction
    except ImportError as error:
        raise ImportError(f"{EXTRA} ({error})") from error
    return PEPit, SmoothStronglyConvexFunction


def _constants(mu: Any, L: Any, n: int) -> tuple[list[float], list[float]]:
    if not (isinstance(n, int) and n >= 1):
        raise ValueError(f"worst_case(n=...) must be an integer of at least 1, got {n!r}.")
    mus, Ls = ([float(c)] * n if isinstance(c, int | float) else [float(one) for one in c] for c in (mu, L))
    for name, values in (("mu", mus), ("L", Ls)):
        if len(values) != n:
            raise ValueError(f"worst_case({name}=...) must be one number or n = {n} of them, got {len(values)}.")
    for low, high in zip(mus, Ls, strict=True):
        if not 0 < low < high < math.inf:
            raise ValueError(f"worst_case assumes 0 < mu < L for every worker; got mu = {low}, L = {high}.")
    return mus, Ls


def _require(
    method: str, potential: str | None, alpha: float, stepsize: float, n: int, steps: int, zeta: float | None
) -> str:
    if method not in POTENTIALS:
        raise ValueError(f"worst_case(method) must be one of {', '.join(POTENTIALS)}; got {method!r}.")
    known = POTENTIALS[method]
    if potential is not None and potential not in known:
        raise ValueError(f"worst_case({method!r}, potential=...) must be one of {', '.join(known)}; got {potential!r}.")
    potential = known[0] if potential is None else potential
    if not 0 < alpha <= 1:
        raise ValueError(f"worst_case(alpha=...) is that of a contractive compressor, in (0, 1]; got {alpha}.")
    if alpha == 1 and potential in ("tight", "late"):
        raise ValueError(f"worst_case({method!r}, alpha=1): potential {potential!r} is empty at e = 0; use 'cgd'.")
    if not 0 < stepsize < math.inf:
        raise ValueError(f"worst_case(stepsize=...) must be positive and finite, got {stepsize}.")
    if not (isinstance(steps, int) and steps >= 1):
        raise ValueError(f"worst_case(steps=...) must be an integer of at least 1, got {steps!r}.")
    if (zeta is None) is (method == "clag"):
        raise ValueError(f"worst_case: zeta belongs to 'clag' and to it alone; got zeta = {zeta} with {method!r}.")
    if zeta is not None and not 0 <= zeta < math.inf:
        raise ValueError(f"worst_case(zeta=...) must be finite and at least 0, got {zeta}.")
    return potential
