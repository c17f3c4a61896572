"""What several rows observed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.model.roster import RowObservations


class RowCells(NamedTuple):
    """Observations of some rows: for each its line, the number of its feature and its value, line by line."""

    counts: NDArray[np.int64]  # (lines,)
    numbers: NDArray[np.int64]  # (n,): of features, ascending within a line
    values: NDArray[np.float64]  # (n,): in the data's own units

    def observations(self) -> list[RowObservations]:
        """What each line holds."""
        ends = np.cumsum(self.counts)[:-1]
        parts = zip(np.split(self.numbers, ends), np.split(self.values, ends), strict=True)
        return [RowObservations(*part) for part in parts]

    @classmethod
    def of(cls, observations: list[RowObservations]) -> RowCells:
        """The observations of these rows, one after the other."""
        counts = np.array([len(each.numbers) for each in observations], dtype=np.int64)
        numbers = np.concatenate([np.zeros(0, np.int64), *(each.numbers for each in observations)])
        return cls(counts, numbers, np.concatenate([np.zeros(0), *(each.values for each in observations)]))

    def joined(
        self, lines: NDArray[np.int64], numbers: NDArray[np.int64], values: NDArray[np.float64]
    ) -> RowCells:
        """Return them with more observations, in any order; one of the same cell replaces the earlier one."""
        every = np.concatenate([np.repeat(np.arange(len(self.counts)), self.counts), lines])
        both, all_values = np.concatenate([self.numbers, numbers]), np.concatenate([self.values, values])
        order = np.lexsort((np.arange(len(both)), both, every))
        last = np.ones(len(order), dtype=bool)
        last[:-1] = (np.diff(every[order]) != 0) | (np.diff(both[order]) != 0)
        kept = order[last]
        return RowCells(np.bincount(every[kept], minlength=len(self.counts)), both[kept], all_values[kept])
