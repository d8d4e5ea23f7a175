"""The runs of a sweep side by side: those that have ended are frozen, and now and then left behind.

A frozen run still costs its place in every array. At fixed rounds, so that no clock decides what is computed, the runs
that go on are gathered into as few places as hold them, a power of two, if what is left to do pays for compiling that.
"""

from typing import Any

import jax
import numpy as np

from adacgd.drive import Drive
from adacgd.host import Outcome, outcome_of
from adacgd.parallel import Site
from adacgd.records import RUNNING, Carry
from adacgd.trace import Columns

FIRST, LAST = 64, 1024  # rounds: gathered at 64, 128, ..., 1024, and at every 1024th from there on
WORTH = 2**31  # words that need no longer be touched, above which a smaller program is worth its seconds of compilation


def padded(runs: int, parts: int = 1) -> int:
    """Sizes that share a program: the next power of two, or what stands above it in so many equal parts."""
    return -(-(1 << (runs - 1).bit_length()) // parts) * parts


class Pool(Drive):
    """Runs in places; `where[k]` is the number of the run in place k, the places beyond repeat the last.

    parts: over how many devices the places are spread. `outcomes`: how the runs ended, with a first axis (runs,).
    """

    def __init__(self, site: Site, carry: Carry, runs: int, parts: int = 1):
        super().__init__(site.programs, site.problem, site.setting, carry, (padded(runs, parts),))
        self.site, self.runs, self.parts = site, runs, parts
        self.where = np.arange(runs)
        self.outcomes: Outcome | None = None
        self.words = sum(np.size(leaf) for leaf in jax.tree.leaves(site.problem)) + site.problem.n * site.problem.dim

    def run(self, *arguments: Any) -> Columns:
        """As `Drive.run`; row r of run s beyond the round where it ended says nothing."""
        whole = super().run(*arguments)
        self._note_outcomes()
        return whole

    def stops(self, rounds: int) -> np.ndarray:
        """Where runs may be left behind."""
        early = FIRST * 2 ** np.arange(int(np.log2(LAST // FIRST)))
        stops = np.concatenate([early, np.arange(LAST, max(rounds, LAST), LAST)])
        return stops[stops < rounds]

    def between(self, t: int, rounds: int) -> None:
        """Leave behind the runs that have ended, if it is time and worth it."""
        if t not in self.stops(rounds) or jax.process_count() > 1:
            return
        alive = np.flatnonzero(np.asarray(self.carry.status)[: len(self.where)] == RUNNING)
        places = padded(max(len(alive), 1), self.parts)
        if not alive.size or (self.lead[0] - places) * self.words * (rounds - t) < WORTH:
            return
        self._note_outcomes()
        chosen = np.append(alive, np.full(places - len(alive), alive[-1]))
        self.setting, self.carry = self.site.gathered(self.setting, self.carry, chosen)
        self.where, self.lead = self.where[alive], (places,)

    def _note_outcomes(self) -> None:
        """Of the runs that are in places now."""
        now = outcome_of(self.carry)
        if self.outcomes is None:
            self.outcomes = jax.tree.map(lambda leaf: np.array(leaf[: self.runs]), now)
            return
        for all_runs, leaf in zip(jax.tree.leaves(self.outcomes), jax.tree.leaves(now), strict=True):
            all_runs[self.where] = leaf[: len(self.where)]

    def _columns(self, rounds: np.ndarray, row: Any, written: int) -> Columns:
        """With a row for every run, also for those left behind."""
        found = super()._columns(rounds, row, written)

        def back(column: np.ndarray) -> np.ndarray:
            whole = np.zeros((self.runs, *column.shape[1:]), column.dtype)
            whole[self.where] = column[: len(self.where)]
            return whole

        return Columns(found.rounds, *(back(column) for column in found[1:]))
