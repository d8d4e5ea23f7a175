"""Which worker holds which rows.

Every partition is a tuple of integer index arrays, one a worker, none empty, no row twice. The same request gives the
same answer on every machine and with every version of NumPy.
"""

import difflib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

NAMES = ("contiguous", "contiguous-drop", "contiguous-spread", "shuffled", "sorted", "dirichlet")


def partition(
    rows_or_labels: Any,
    workers: int,
    how: str | Sequence[int] | np.ndarray = "contiguous",
    *,
    alpha: float | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, ...]:
    """Split rows among workers: a tuple of `workers` index arrays.

    `rows_or_labels` is the number of rows N, or the labels (N,), which "sorted" and "dirichlet" need. `how` is

    - "contiguous": N // n rows each, in order, and the left-over rows to the last worker;
    - "contiguous-drop": the same, left-over rows are not used;
    - "contiguous-spread": in order, the first N mod n workers get one row more;
    - "shuffled": the rows in a random order (`seed`), then as "contiguous-spread";
    - "sorted": the rows by label, equal labels in their order, then as "contiguous-spread";
    - "dirichlet": each label's rows are shuffled and cut in proportions drawn from a symmetric Dirichlet law of
      parameter `alpha` (small: each worker sees few labels; large: all see the same mix). A worker left without rows
      is given one, the last of the worker that then has most (ties: the first such); the first empty worker comes
      first. Indices of a worker ascend;
    - offsets [o_0, ..., o_n]: worker i has rows o_i to o_{i+1} - 1; rows before o_0 and from o_n on are not used.

    Raises ValueError for an unknown name, more workers than rows, or offsets that leave a worker empty.
    """
    rows, labels = _rows(rows_or_labels)
    workers = _whole(workers, "workers", 1)
    seed = _whole(seed, "seed", 0)
    if seed > 2**32 - 1:
        raise ValueError(f"seed must be below 2^32, not {seed}")
    if isinstance(how, str) and how not in NAMES:
        near = difflib.get_close_matches(how, NAMES, n=1, cutoff=0.0)[0]
        raise ValueError(f"no partition is called {how!r}; the nearest is {near!r}, all are {', '.join(NAMES)}")
    if workers > rows:
        raise ValueError(f"{workers} workers need at least {workers} rows, and there are {rows}")
    if alpha is not None and how != "dirichlet":
        raise ValueError(f"alpha belongs to 'dirichlet' and has no effect on {how!r}")
    if not isinstance(how, str):
        return _offsets(how, rows, workers)
    order = np.arange(rows)
    if how == "contiguous":
        return _cut(order, [*range(0, workers * (rows // workers), rows // workers), rows])
    if how == "contiguous-drop":
        return _cut(order, range(0, rows + 1, rows // workers)[: workers + 1])
    if how == "contiguous-spread":
        return _spread(order, workers)
    # The legacy generator: its streams are frozen by NumPy's policy, those of default_rng are not.
    random = np.random.RandomState(seed)
    if how == "shuffled":
        return _spread(random.permutation(rows), workers)
    if labels is None:
        raise ValueError(f"{how!r} goes by the labels: give them in place of the number of rows")
    if how == "sorted":
        return _spread(np.argsort(labels, kind="stable"), workers)
    return _dirichlet(labels, workers, _positive(alpha), random)


def _rows(rows_or_labels: Any) -> tuple[int, np.ndarray | None]:
    if np.ndim(rows_or_labels) == 0:
        return _whole(rows_or_labels, "the number of rows", 1), None
    labels = np.asarray(rows_or_labels)
    if labels.ndim != 1 or labels.size == 0:
        raise ValueError(f"labels must have shape (N,), N at least 1, not {labels.shape}")
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise ValueError("labels hold nan")
    return labels.size, labels


def _whole(number: Any, what: str, least: int) -> int:
    if isinstance(number, bool | np.bool_) or not isinstance(number, int | np.integer) or number < least:
        raise ValueError(f"{what} must be a whole number, {least} or more, not {number!r}")
    return int(number)


def _positive(alpha: Any) -> float:
    if alpha is None:
        raise ValueError("'dirichlet' needs alpha, a positive number")
    real = isinstance(alpha, int | float | np.integer | np.floating) and not isinstance(alpha, bool)
    if not real or not 0 < alpha < np.inf:
        raise ValueError(f"alpha must be a positive finite number, not {alpha!r}")
    return float(alpha)


def _cut(order: np.ndarray, offsets: Sequence[int]) -> tuple[np.ndarray, ...]:
    return tuple(order[start:stop] for start, stop in itertools.pairwise(offsets))


def _spread(order: np.ndarray, workers: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array_split(order, workers))


def _offsets(offsets: Any, rows: int, workers: int) -> tuple[np.ndarray, ...]:
    cuts = np.asarray(offsets)
    if cuts.ndim != 1 or cuts.dtype.kind not in "iu":
        raise ValueError(f"a partition is a name ({', '.join(NAMES)}) or a sequence of whole numbers, not {offsets!r}")
    if cuts.size != workers + 1:
        raise ValueError(f"{workers} workers need {workers + 1} offsets, and there are {cuts.size}")
    listed = cuts.tolist()
    if listed[0] < 0 or listed[-1] > rows:
        raise ValueError(
            f"offsets must lie between 0 and the number of rows, {rows}; they go from {listed[0]} to {listed[-1]}"
        )
    for worker, (start, stop) in enumerate(itertools.pairwise(listed)):
        if stop <= start:
            told = "descend" if stop < start else "leave it without rows"
            raise ValueError(f"offsets of worker {worker} (counted from 0) {told}: {start}, {stop}")
    return _cut(np.arange(rows), listed)


def _dirichlet(labels: np.ndarray, workers: int, alpha: float, random: np.random.RandomState) -> tuple[np.ndarray, ...]:
    shards: list[list[int]] = [[] for _ in range(workers)]
    for label in np.unique(labels):
        mine = random.permutation(np.flatnonzero(labels == label))
        share = np.cumsum(_proportions(alpha, workers, random))[:-1]
        cuts = np.minimum(np.round(share * mine.size).astype(int), mine.size)
        for shard, part in zip(shards, np.split(mine, cuts), strict=True):
            shard.extend(part.tolist())
    for shard in shards:
        shard.sort()
    for shard in shards:
        if not shard:
            shard.append(max(shards, key=len).pop())
    return tuple(np.array(shard, dtype=np.intp) for shard in shards)


def _proportions(alpha: float, workers: int, random: np.random.RandomState) -> np.ndarray:
    """Draw (workers,) from Dirichlet(alpha, ..., alpha), in logarithms.

    NumPy's own draw is 0/0 for small alpha. A gamma variable of parameter alpha is one of parameter alpha + 1 times
    U^(1/alpha) with U uniform, and only ratios matter, so that the largest U may be divided out first.
    """
    log_uniform = np.log(1.0 - random.random_sample(workers))  # 1 - U lies in (0, 1]
    log_gamma = np.log(random.standard_gamma(min(alpha, 1e100) + 1.0, workers))
    with np.errstate(over="ignore"):  # to -inf, a proportion of 0
        log_weight = log_gamma + (log_uniform - log_uniform.max()) / alpha
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()
