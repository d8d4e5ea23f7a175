"""What fresh draws and exact enumeration say of an input: the mean of a law with its error, and whether Q is unbiased.

A claim falls only when it is broken twice, on independent draws: an interval of four standard errors is not one of
certainty where the error is skew, and a court that sits often must acquit the honest every time.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.base import Unbiased
from adacgd.laws import Law, judge, panel, values

DRAWS = 4096  # fresh ones at a time
MOST_DRAWS = 1 << 19
SIGMAS = 4.0  # of a mean on fresh draws
BIAS_BLOCKS = 16  # of DRAWS, for the mean of each coordinate
BIAS_SIGMAS = 6.0  # of one coordinate's mean: there are many coordinates
RARE = 30  # draws in which a coordinate must move before its deviation is believed
MARGIN = 1e-9  # a claim is broken only beyond it


def is_deterministic(law: Law, key: jax.Array, dim: int) -> bool:
    """Whether the starts measure the same on DRAWS draws: two of few may agree by chance."""
    starts = law.starts(key, dim)
    some = starts[:: max(len(starts) // 16, 1)]
    return all(len(np.unique(np.asarray(judge(law, key, z, DRAWS)))) == 1 for z in some)


class Measured(NamedTuple):
    """The mean of a law at one input."""

    mean: float
    stderr: float  # 0 where every draw says the same, and where all outcomes were enumerated
    draws: int

    def above(self, claimed: float) -> bool:
        """Whether SIGMAS standard errors and the margin separate it from the claim; what is no number is above it."""
        return not self.mean - SIGMAS * self.stderr <= claimed + MARGIN * max(1.0, abs(claimed))


def best_of(law: Law, key: jax.Array, candidates: np.ndarray) -> np.ndarray:
    """The candidate whose mean is surely large: by its lower bound of two standard errors on DRAWS fresh draws."""
    sample = np.stack([np.asarray(judge(law, key, z, DRAWS)) for z in candidates])
    sure = sample.mean(1) - 2 * sample.std(1) / math.sqrt(DRAWS)
    return candidates[int(np.argmax(np.nan_to_num(sure, nan=np.inf)))]


def weigh(law: Law, key: jax.Array, z: np.ndarray, claimed: float, resolution: float) -> Measured:
    """The mean at one input, on as many draws as the verdict needs.

    Drawing ends when the claim is broken, or is met by more than the interval, or when the interval is narrower than
    `resolution`, so that what exceeds the claim by more would have been seen; at MOST_DRAWS at the latest.
    """
    count, total, squares = 0, 0.0, 0.0
    while True:
        sample = np.asarray(judge(law, jax.random.fold_in(key, count), z, DRAWS))
        count, total, squares = count + DRAWS, total + float(sample.sum()), squares + float(np.sum(sample**2))
        mean = total / count
        deviation = 0.0 if np.ptp(sample) == 0 and count == DRAWS else math.sqrt(max(squares / count - mean**2, 0.0))
        found = Measured(mean, deviation / math.sqrt(count), count)
        width = SIGMAS * found.stderr
        done = found.above(claimed) or mean + width < claimed or width <= resolution
        if done or count >= MOST_DRAWS:
            return found


def bias(target: Unbiased, key: jax.Array, dim: int, variance: float, workers: int) -> str:
    """What of the panel has a mean that is off beyond chance, a coordinate or the length along x, in words; or "".

    Beyond chance: by BIAS_SIGMAS standard errors where the coordinate moved often enough to know them; else by as many
    of what the variance |x|^2 * variance allows, of which no single coordinate can have more.
    """
    rows = panel(key, dim)
    right = np.array([_with_length(x, x) for x in rows])
    mean, deviation, moves = (np.stack(v) for v in zip(*(_moments(target, key, x, workers) for x in rows), strict=True))
    claimed = np.sqrt(variance * np.sum(rows**2, axis=1))[:, None]
    error = np.where(moves >= RARE, deviation, claimed) / math.sqrt(BIAS_BLOCKS * DRAWS)
    excess = np.abs(mean - right) - BIAS_SIGMAS * error - MARGIN * np.abs(rows).max(axis=1, keepdims=True)
    if not np.any(~(excess <= 0)):
        return ""
    i, j = np.unravel_index(int(np.argmax(np.nan_to_num(excess, nan=np.inf))), excess.shape)
    what = f"coordinate {j}" if j < dim else "the length along x"
    return f"biased: {what} is {right[i, j]:.6g} and averages {mean[i, j]:.6g}"


def _with_length(sent: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Behind the entries their length along x, <sent, x>/|x|^2 at the scale of x: many small faults that agree."""
    length = sent @ x * (np.abs(x).max() / np.sum(x**2))
    return np.concatenate([sent, length[..., None]], axis=-1)


def _moments(target: Unbiased, key: jax.Array, x: np.ndarray, workers: int) -> tuple[np.ndarray, ...]:
    """Of what arrives of x the mean, the deviation and how often it was not what it mostly is, (d + 1,) each."""
    right, middle = _with_length(x, x), None
    total, squares, moves = np.zeros(x.size + 1), np.zeros(x.size + 1), np.zeros(x.size + 1)
    for block in range(BIAS_BLOCKS):
        sent = _with_length(np.asarray(values(target, jax.random.fold_in(key, block), x, DRAWS, workers)), x)
        middle = np.median(sent, axis=0) if middle is None else middle
        moves += np.sum(sent != middle, axis=0)
        total, squares = total + sent.sum(0), squares + np.sum((sent - right) ** 2, axis=0)
    count = BIAS_BLOCKS * DRAWS
    mean = total / count
    return mean, np.sqrt(np.maximum(squares / count - (mean - right) ** 2, 0)), moves


class Exact(NamedTuple):
    """Every outcome of a compressor at one input, each with its probability: what it tells of the law, and its mean."""

    error: float  # E|C(x) - x|^2 / |x|^2
    bias: float  # max_j |E C(x)_j - x_j| / max |x|
    size: int  # how many outcomes
    words: str  # "" where the draws agree with the outcomes


def enumerated(target: Any, key: jax.Array, x: np.ndarray, workers: int) -> Exact | None:
    """By `target.outcomes(x)`, where it has one and they are few enough; its draws must follow it."""
    found = target.outcomes(x) if hasattr(target, "outcomes") else None
    if found is None:
        return None
    chance, rows = found
    mean = chance @ rows
    error = float(chance @ np.sum((rows - x) ** 2, axis=1) / np.sum(x**2))
    sent = np.asarray(values(target, key, jnp.asarray(x), DRAWS, workers))
    return Exact(error, float(np.abs(mean - x).max() / np.abs(x).max()), len(rows), _follows(sent, chance, rows))


def _follows(sent: np.ndarray, chance: np.ndarray, rows: np.ndarray) -> str:
    """Whether draws, (n, d), are among the outcomes and as frequent as they should be; "" or what is wrong."""
    scale = np.abs(rows).max() or 1.0
    code = lambda a: [row.tobytes() for row in np.round(a / scale, 9) + 0.0]
    weight: dict[bytes, float] = {}
    for name, p in zip(code(rows), chance, strict=True):
        weight[name] = weight.get(name, 0.0) + float(p)
    seen: dict[bytes, int] = dict.fromkeys(weight, 0)
    for name in code(sent):
        if name not in seen:
            return "a draw is none of the outcomes that it enumerates"
        seen[name] += 1
    n = len(sent)
    for name, p in weight.items():
        variance = max(n * p * (1 - p), 0.0)  # chances that sum to 1 may sum to a rounding more
        if abs(seen[name] - n * p) > BIAS_SIGMAS * math.sqrt(variance) + BIAS_SIGMAS:
            return f"an outcome of probability {p:.4g} came {seen[name]} times in {n} draws"
    return ""
