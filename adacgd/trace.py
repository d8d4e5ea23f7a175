"""What a run leaves behind: one record of columns, exact counts, and all that a check of theory needs."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from adacgd.cost import Cost, bits


class InitialCost(NamedTuple):
    """What was sent before the first round and stands in no row: the full gradients, and their mean broadcast."""

    up: Cost  # of each worker; (n,) counts where their first messages were compressed
    down: Cost  # of the one broadcast


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """A run, row by row: rows 0, k, 2k, ... and the last, or the one where the run was decided.

    Row t counts every message up to the one that forms g^t from the gradients at x^t, so bits to a tolerance include
    the message sent at the hit. Row 0 is x^0, before any message; `initial_cost` says what came before it.
    """

    rounds: np.ndarray  # (R,) int64
    loss: np.ndarray  # (R,) f(x)
    grad_sq: np.ndarray  # (R,) |grad f(x)|^2; with a prox |M(x)|^2 of theory.md 3.5
    grad_sq_sum: np.ndarray  # (R,) float64, |grad f(x^s)|^2 summed over *every* round s before the row's
    shadow_sq_sum: np.ndarray  # (R,) float64, |grad f(z^s)|^2 likewise, of the heavy ball; 0 of others
    errors: np.ndarray  # (R, n) |g_i - grad f_i|^2, in the primal form at w; (R, 1) |mean g_i - grad f|^2 of MARINA
    H: np.ndarray  # (R,) |g - mean g_i|^2
    W: np.ndarray  # (R,) |w - x|^2, in the primal form how far the workers' model is from x
    S: np.ndarray  # (R,) mean |shift_i - grad f_i(x*)|^2 of DIANA and DCGD; NaN of others, and where no x* is known
    distance_sq: np.ndarray  # (R,) |x - x*|^2; NaN where no x* is known
    farthest_sq: np.ndarray  # (R,) the largest |x^s - x*|^2 over *every* round s up to the row's
    level: np.ndarray  # (R, n) int32, of the last round before the row; 0: nothing sent
    best_grad_sq: np.ndarray  # (R,) the smallest |grad f(x^s)|^2 over *every* round s up to the row's
    best_round: np.ndarray  # (R,) int32, where it was first seen
    scalars_up: np.ndarray  # (R, n) int64, cumulative since row 0
    extra_bits_up: np.ndarray  # (R, n) int64
    scalars_down: np.ndarray  # (R,) int64, one broadcast counted once
    extra_bits_down: np.ndarray  # (R,) int64
    status: str  # "completed" | "converged" | "diverged"
    outcome_round: int  # where the status was decided: the first hit, the first bad round, or the last round
    x: np.ndarray  # (d,) the last iterate
    stepsize: float
    tolerance: float | None
    uplink_constants: Any  # AB, or what else the method's theorem asks for
    downlink_constants: Any  # None: no downlink compression
    smoothness: Any  # of the problem
    f_star: float | None
    f_lower: float
    precision: str  # "float32" | "float64", what the run really had
    initial_cost: InitialCost
    form: str = "dual"
    init: str = "exact"
    momentum: float = 0.0
    prox: bool = False
    exact_gradients: bool = True
    slack: Any = None  # with verify=True: worst left over right of each inequality that a run can see
    slack_rounds: Any = None  # where each was seen
    method: str = ""  # the uplink and downlink in words
    resume: Any = dataclasses.field(default=None, repr=False)  # what `simulate(start=...)` needs

    @property
    def G(self) -> np.ndarray:
        """(R,) (1/n) sum |g_i - grad f_i(x)|^2; |mean g_i - grad f(x)|^2 of MARINA."""
        return self.errors.mean(axis=1)

    @property
    def n(self) -> int:
        """The number of workers."""
        return self.level.shape[1]

    @property
    def dim(self) -> int:
        """The dimension of x."""
        return self.x.shape[0]

    def bits(
        self,
        direction: str = "up",
        convention: str = "floats",
        float_width: int = 32,
        per: str = "worker",
        broadcast: str = "once",
    ) -> np.ndarray:
        """Bits sent since row 0, (R,).

        direction: "up" or "down". convention, float_width: as in `adacgd.cost.bits`.
        per: "worker" is the exact total over all workers divided by n, float64; "sum" is that total, int64.
        broadcast: a downlink message is counted "once" or for "each" worker; it is not divided by n.
        Raises ValueError for another name.
        """
        for name, value, allowed in (
            ("direction", direction, ("up", "down")),
            ("per", per, ("worker", "sum")),
            ("broadcast", broadcast, ("once", "each")),
        ):
            if value not in allowed:
                raise ValueError(f"bits({name}=...) must be one of {', '.join(allowed)}; got {value!r}.")
        if direction == "down":
            total = bits(self.scalars_down, self.extra_bits_down, convention, float_width)
            total = total * (self.n if broadcast == "each" else 1)
            return total if per == "sum" else total.astype(np.float64)
        total = bits(self.scalars_up.sum(axis=1), self.extra_bits_up.sum(axis=1), convention, float_width)
        return total if per == "sum" else total / self.n

    def __repr__(self) -> str:
        return (
            f"<Trace {self.method}: {self.status} at round {self.outcome_round}, "
            f"|grad f| = {np.sqrt(self.grad_sq[-1]):.3g}, {self.bits()[-1]:.6g} bits a worker, {self.precision}>"
        )


class Columns(NamedTuple):
    """Columns of runs on their way to traces, each (S, R, ...); what is summed is not summed up yet."""

    rounds: np.ndarray  # (R,) where each row ends, whatever became of the single runs
    loss: np.ndarray
    grad_sq: np.ndarray
    errors: np.ndarray
    H: np.ndarray
    W: np.ndarray
    S: np.ndarray
    distance_sq: np.ndarray
    level: np.ndarray
    best_grad_sq: np.ndarray
    best_round: np.ndarray
    grad_sq_sum: np.ndarray
    shadow_sq_sum: np.ndarray
    farthest_sq: np.ndarray
    scalars_up: np.ndarray
    extra_bits_up: np.ndarray
    scalars_down: np.ndarray
    extra_bits_down: np.ndarray

    def join(self, *later: "Columns") -> "Columns":
        """These rows and then those of each of `later`."""
        together = zip(self, *later, strict=True)
        return Columns(*(np.concatenate(column, axis=min(i, 1)) for i, column in enumerate(together)))

    def of(self, run: int, keep: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of one run but `rounds`: summed up, then the rows where `keep`, (R,) bool, is true."""
        own = {name: getattr(self, name)[run] for name in self._fields if name != "rounds"}
        return {name: (ALONG[name](c, axis=0) if name in ALONG else c)[keep] for name, c in own.items()}


SUMS = ("grad_sq_sum", "shadow_sq_sum", "scalars_up", "extra_bits_up", "scalars_down", "extra_bits_down")
ALONG: dict[str, Any] = {name: np.cumsum for name in SUMS} | {"farthest_sq": np.maximum.accumulate}


def columns(rounds: np.ndarray, row: Any) -> Columns:
    """Rows as the compiled loop gave them, leaves (S, R, ...), with every count joined in int64."""
    up, down = (
        np.asarray(low, np.int64) + (np.asarray(high, np.int64) << 16) for low, high in (row.tally.up, row.tally.down)
    )
    return Columns(
        rounds=np.asarray(rounds, np.int64),
        loss=np.asarray(row.loss),
        grad_sq=np.asarray(row.grad_sq),
        errors=np.asarray(row.errors),
        H=np.asarray(row.H),
        W=np.asarray(row.W),
        S=np.asarray(row.S),
        distance_sq=np.asarray(row.distance_sq),
        level=np.asarray(row.level),
        best_grad_sq=np.asarray(row.best_sq),
        best_round=np.asarray(row.best_round),
        grad_sq_sum=np.asarray(row.tally.grad_sq, np.float64),
        shadow_sq_sum=np.asarray(row.tally.shadow_sq, np.float64),
        farthest_sq=np.asarray(row.tally.farthest_sq, np.float64),
        scalars_up=up[..., 0],
        extra_bits_up=up[..., 1],
        scalars_down=down[..., 0],
        extra_bits_down=down[..., 1],
    )
