"""How tight the linear rates are: theorem, exact worst case and a trajectory of the real method, side by side.

The trajectories run on f_i = x'diag(mu, L)x/2 - b_i'x, where the worst case of EF21, EF14 and compressed gradient
descent lives (docs/theory-tight.md), with compressors that lose all they may: C(v) = v + e R v, R a rotation.
"""

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import adacgd as ac
import problems
from adacgd import theory

PACKAGES = ("PEPit", "cvxpy", "clarabel")  # what it needs beyond the library
MUS, ALPHAS = (0.1, 0.01), (0.1, 0.3, 0.5, 0.7, 0.9)
QUICK_MUS, QUICK_ALPHAS = (0.1,), (0.1, 0.5, 0.9)
SEVERAL = 3  # rounds of the longer worst case
TURNS = 8  # rotations tried: multiples of pi/4, so 0, C(v) = (1 + e)v, and pi, C(v) = (1 - e)v, are among them
ROUNDS = 2048
LEAST = 1e-16  # of V^0: below it a trajectory is rounding (theory.md pitfall 19)
SOLVER = 1e-5  # relative, by which a worst case or a trajectory may pass what bounds it
Progress = Callable[[str, int, int], None]


@ac.module
class Turned(ac.Compressor):
    """C(v) = v + e R v on R^2, R the rotation by `turn`: |C(v) - v| = e|v| for every v, the most that alpha allows."""

    e: float | jax.Array
    turn: float | jax.Array
    equality = True

    def __call__(self, key: jax.Array, x: jax.Array) -> ac.Message:
        """Both numbers are sent."""
        cos, sin = jnp.cos(self.turn), jnp.sin(self.turn)
        turned = jnp.stack([cos * x[0] - sin * x[1], sin * x[0] + cos * x[1]])
        return ac.Message(x + self.e * turned, ac.Cost(2))

    def alpha(self, dim: int) -> float:
        """1 - e^2."""
        return 1 - float(self.e) ** 2


@ac.module
class Direct(ac.ThreePoint):
    """g_i = C(grad f_i): compressed gradient descent in the form of a map. It obeys no three point law: B = inf."""

    compressor: ac.Compressor

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array) -> ac.Message:
        """C(x), whatever is held."""
        return self.compressor(key, x)

    def constants(self, dim: int) -> ac.AB:
        """None that mean anything (theory.md 2)."""
        return ac.AB(1.0, math.inf)


@dataclass(frozen=True)
class Row:
    """One comparison. Factors are of V, a round; L = 1."""

    statement: str  # "tight", "general" or "descent"
    mechanism: str
    n: int
    mu: float
    alpha: float
    zeta: float | None
    stepsize: float
    potential: str
    theorem: float
    worst: float  # of one round, exact
    several: float | None  # of SEVERAL rounds, exact, per round
    measured: float  # of the worst trajectory, the mean over its second half
    measured_round: float  # the largest of a single round of any trajectory
    turn: float  # of that worst trajectory's compressor
    gap: float  # between the solver's ends

    def rates(self) -> dict[str, float | None]:
        """-log of each factor."""
        factors = {"theorem": self.theorem, "worst": self.worst, "several": self.several, "measured": self.measured}
        return {name: None if factor is None else -math.log(factor) for name, factor in factors.items()}

    def times(self, name: str) -> float:
        """That log-rate over the theorem's: 1 is tight, above 1 the theorem gives away."""
        rate, promised = self.rates()[name], self.rates()["theorem"]
        assert rate is not None and promised is not None
        return rate / promised

    @property
    def verdict(self) -> str:
        """Whether trajectories <= worst cases <= theorem."""
        more = 1 + SOLVER
        ordered = self.measured <= (self.several or self.worst) * more and self.measured_round <= self.worst * more
        longer = self.several is None or self.several <= self.worst * more
        return "holds" if ordered and longer and self.worst <= self.theorem * more else "does not hold"

    def as_dict(self) -> dict[str, Any]:
        """Everything, for files."""
        rates = {f"log_rate_{name}": rate for name, rate in self.rates().items()}
        return asdict(self) | rates | {"verdict": self.verdict}


@dataclass(frozen=True)
class Case:
    """What is compared: a statement about a mechanism."""

    statement: str
    mechanism: str
    n: int
    mu: float
    alpha: float

    @property
    def e(self) -> float:
        """sqrt(1 - alpha)."""
        return math.sqrt(1 - self.alpha)

    @property
    def zeta(self) -> float | None:
        """CLAG's: beta(alpha), the most that costs nothing in the step."""
        return theory.beta(self.alpha) if self.mechanism == "CLAG" else None

    def promise(self) -> tuple[float, float]:
        """The step of the theorem and its factor."""
        if self.statement == "tight":
            return theory.tight_stepsize(self.mu, 1, self.alpha), theory.tight_rate(self.mu, 1, self.alpha)
        if self.statement == "descent":
            return 1.0, 1 - self.alpha * self.mu
        pair = ac.AB(theory.theta(self.alpha), theory.beta(self.alpha))
        gamma = theory.stepsize(_Equal(self.mu), pair, regime="pl")
        return gamma, 1 - gamma * self.mu


def promised(statement: str, mu: float, alpha: float) -> float:
    """The factor of a theorem at its own step, which depends on neither n nor, at zeta <= beta, on the mechanism."""
    return Case(statement, "EF21", 1, mu, alpha).promise()[1]


class _Equal:
    """The smoothness of n functions in one class with L = 1."""

    L_minus = L_plus = 1.0

    def __init__(self, mu: float) -> None:
        self.mu = mu


def cases(quick: bool) -> list[Case]:
    """All comparisons, in the order of the table."""
    found = []
    for mu in QUICK_MUS if quick else MUS:
        several = mu == 0.1
        workers = {
            ("tight", "EF21"): (1, 2) if quick else (1, 2, 3) if several else (1,),
            ("tight", "EF14"): (1,),
            ("general", "EF21"): (1,),
            ("general", "CLAG"): (1, 2) if several and not quick else (1,),
            ("descent", "CGD"): (1,),
        }
        found += [
            Case(*key, n=n, mu=mu, alpha=alpha)
            for key, counts in workers.items()
            for n in counts
            for alpha in (QUICK_ALPHAS if quick else ALPHAS)
        ]
    return found


def run(quick: bool = False, progress: Progress | None = None) -> list[Row]:
    """Every row. Raises ImportError without the extra `pep`; needs 64-bit mode."""
    asked, rows = cases(quick), []
    for done, case in enumerate(asked):
        if progress is not None:
            progress("worst cases", done, len(asked))
        rows.append(compare(case))
    return rows


def compare(case: Case) -> Row:
    """One row: the theorem's step, two semidefinite programs or more, and TURNS trajectories."""
    gamma, promised = case.promise()
    potential = {"tight": "tight", "general": "pl", "descent": "loss"}[case.statement]

    def exact(steps: int) -> theory.WorstCase:
        return theory.worst_case(
            case.mechanism.lower(),
            mu=case.mu,
            L=1.0,
            alpha=case.alpha,
            stepsize=gamma,
            n=case.n,
            steps=steps,
            zeta=case.zeta,
            potential=potential,
        )

    one = exact(1)
    long = exact(SEVERAL).per_step if case.mechanism != "CLAG" or case.n == 1 else None  # 8^n patterns of silence
    trajectory = ef14_potentials if case.mechanism == "EF14" else simulated_potentials
    found = []
    for k in range(TURNS):
        turn = 2 * math.pi * k / TURNS
        mean, most = factors(trajectory(case, gamma, turn))
        found.append((mean, most, turn))
    measured, _, turn = max(found)
    return Row(
        case.statement,
        case.mechanism,
        case.n,
        case.mu,
        case.alpha,
        case.zeta,
        gamma,
        one.potential,
        promised,
        one.factor,
        long,
        measured,
        max(most for _, most, _ in found),
        turn,
        one.gap,
    )


def factors(V: np.ndarray) -> tuple[float, float]:
    """The mean factor a round over the second half, and the largest of one round, while V is above rounding."""
    stop = int(np.argmax(V <= LEAST * V[0])) or len(V)
    V = V[:stop]
    half = len(V) // 2
    return float((V[-1] / V[half]) ** (1 / (len(V) - 1 - half))), float(np.max(V[1:] / V[:-1]))


def simulated_potentials(case: Case, gamma: float, turn: float) -> np.ndarray:
    """V along a run of `adacgd.simulate` from g_i^0 = grad f_i(x^0); the workers' minimisers differ."""
    shift = np.linspace(-1.0, 1.0, case.n) if case.n > 1 else np.zeros(1)
    A = np.broadcast_to(np.diag([case.mu, 1.0]), (case.n, 2, 2))
    problem = problems.general_quadratic(A, shift[:, None] * np.ones(2), x0=np.ones(2))
    compressor = Turned(case.e, turn)
    uplink = {
        "EF21": lambda: ac.EF21(compressor),
        "CLAG": lambda: ac.CLAG(compressor, case.zeta or 0.0),
        "CGD": lambda: Direct(compressor),
    }[case.mechanism]()
    trace = ac.simulate(problem, uplink, stepsize=gamma, rounds=ROUNDS)
    if case.statement == "tight":
        return case.e * trace.grad_sq + trace.G
    weight = gamma / theory.theta(case.alpha) if case.statement == "general" else 0.0
    return trace.loss - problem.f_star + weight * trace.G


def ef14_potentials(case: Case, gamma: float, turn: float) -> np.ndarray:
    """V along classic error feedback with one worker, in plain NumPy: its error stands in no trace."""
    c, s = math.cos(turn), math.sin(turn)
    C = np.eye(2) + case.e * np.array([[c, -s], [s, c]])
    x, err, V = np.ones(2), np.zeros(2), []
    for _ in range(ROUNDS + 1):
        V.append(theory.ef14_potential(float(np.sum((x - err) ** 2)), float(np.sum(err**2)), case.alpha))
        p = err + gamma * np.array([case.mu, 1.0]) * x
        x, err = x - C @ p, p - C @ p
    return np.array(V)


def finding(rows: Sequence[Row]) -> list[str]:
    """What the numbers say, a sentence a statement."""
    words = []
    for statement, name in (
        ("tight", "The tight rate"),
        ("general", "The general PL rate"),
        ("descent", "1 - gamma alpha mu"),
    ):
        chosen = [row for row in rows if row.statement == statement]
        if not chosen:
            continue
        exact, run = ([row.times(key) for row in chosen] for key in ("worst", "measured"))
        words.append(
            f"{name}: the worst case is {spread(exact)} times as fast as promised (in log-rate), "
            f"trajectories are {spread(run)} times."
        )
    return words


def spread(values: Sequence[float]) -> str:
    """Least to largest."""
    low, high = min(values), max(values)
    return f"{low:.3f}" if high - low < 5e-4 else f"{low:.2f} to {high:.2f}"


def table(rows: Sequence[Row]) -> str:
    """The rows as CSV, floats so that they read back as the same bits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0].as_dict()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.as_dict() for row in rows)
    return text.getvalue()
