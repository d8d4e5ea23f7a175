"""A run or a sweep driven from the host: compiled stretches one after another, rows planned and fetched."""

import math
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.experimental import multihost_utils

from adacgd.loop import LONGEST_STRETCH, Programs
from adacgd.records import RUNNING, Carry, Setting
from adacgd.trace import Columns, columns

PATIENCE = 0.2  # seconds that one compiled call should take, so that progress and Ctrl-C are prompt
BUFFER = 2**22  # entries of the widest column that one call may hold back
Progress: TypeAlias = Callable[[int, int], None]


class Drive:
    """Compiled stretches, one after another, of one run (lead ()) or of a sweep (lead (S,))."""

    def __init__(self, programs: Programs, problem: Any, setting: Setting, carry: Carry, lead: tuple[int, ...]):
        self.programs, self.problem, self.setting, self.carry, self.lead = programs, problem, setting, carry, lead
        widest = problem.n * math.prod(lead)
        self.capacity = int(2 ** np.clip(np.floor(np.log2(BUFFER / widest)), 3, 9))

    def run(
        self, done: int, rounds: int, record_every: int, past: Columns | None, progress: Progress | None = None
    ) -> Columns:
        """From round `done` to `rounds`, or until no run is alive; the columns so far (row 0 where `past` is None)."""
        ends = stretch_ends(done, rounds, record_every, self.stops(rounds))
        whole = self._first_row() if past is None else past
        parts, at, few, t = [], 0, 1, np.int32(done)
        while at < len(ends) and self._alive():
            few = min(few, self.capacity, self._before_next_stop(ends, at))
            chunk = np.zeros(self.capacity, np.int32)
            chunk[:few] = ends[at : at + few]
            began = time.perf_counter()
            self.carry, t, row = self.programs.stretch(self.problem, self.setting, self.carry, t, chunk, np.int32(few))
            t = np.int32(t)
            written = min(int(np.searchsorted(chunk[:few], t)) + 1, few)
            parts.append(self._columns(np.minimum(chunk[:written], t), jax.device_get(row), written))
            at += few
            self.between(int(t), rounds)
            if progress is not None:
                progress(int(t), rounds)
            few = _agreed(few * 2 if time.perf_counter() - began < PATIENCE else max(few // 2, 1))
        return whole.join(*parts)

    def stops(self, rounds: int) -> np.ndarray:
        """The rounds, ascending, at which `between` may do something: fixed ones, whatever a clock says."""
        return np.zeros(0, np.int64)

    def between(self, t: int, rounds: int) -> None:
        """What is done between two compiled calls, at round t of so many."""

    def _before_next_stop(self, ends: np.ndarray, at: int) -> int:
        """How many of the ends from number `at` on one call may take."""
        stops = self.stops(int(ends[-1]))
        return int(np.searchsorted(ends, [*stops[stops >= ends[at]], ends[-1]][0])) + 1 - at

    def _alive(self) -> bool:
        return bool(np.any(np.asarray(self.carry.status) == RUNNING))

    def _first_row(self) -> Columns:
        row = self.programs.record(self.problem, self.setting, self.carry)
        row = jax.tree.map(lambda leaf: np.expand_dims(np.asarray(leaf), len(self.lead)), row)
        return self._columns(np.zeros(1), row, 1)

    def _columns(self, rounds: np.ndarray, row: Any, written: int) -> Columns:
        if not self.lead:
            row = jax.tree.map(lambda leaf: leaf[None], row)
        return columns(rounds, jax.tree.map(lambda leaf: leaf[:, :written], row))


def _agreed(few: int) -> int:
    """What the first process measured: clocks differ, and all must call the same programs with the same lengths."""
    if jax.process_count() == 1:
        return few
    return int(multihost_utils.broadcast_one_to_all(np.int32(few)))


def stretch_ends(done: int, rounds: int, record_every: int, stops: np.ndarray | None = None) -> np.ndarray:
    """Where compiled stretches end: at every row, at `stops`, and so often that no stretch is too long to count."""
    rows = np.append(np.arange(done // record_every + 1, rounds // record_every + 1) * record_every, rounds)
    starts = np.insert(rows[:-1], 0, done)
    split = [np.arange(a, b, LONGEST_STRETCH)[1:] for a, b in zip(starts, rows, strict=True)]
    ends = np.unique(np.concatenate([rows, *split])) if record_every > LONGEST_STRETCH else np.unique(rows)
    ends = ends if stops is None else np.union1d(ends, stops[stops < rounds])
    return ends[ends > done].astype(np.int64)
