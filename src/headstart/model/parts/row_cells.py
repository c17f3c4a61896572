"""What several rows observed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.model.parts.roster import RowObservations


class RowCells(NamedTuple):
    """Observations of some rows: for each its line, the number of its feature and its value, line by line."""

    counts: NDArray[np.int64]  # (lines,)
    numbers: NDArray[np.int64]  # (n,): of features, ascending within a line
    values: NDArray[np.float64]  # (n,): in the data's own units
    times: NDArray[np.float64] | None = None  # (n,): in a model where observations age

    def observations(self, now: float | None = None) -> list[RowObservations]:
        """What each line holds, for states that are computed at this time."""
        ends = np.cumsum(self.counts)[:-1]
        numbers, values = np.split(self.numbers, ends), np.split(self.values, ends)
        times = [None] * len(numbers) if self.times is None else np.split(self.times, ends)
        return [RowObservations(*each, now) for each in zip(numbers, values, times, strict=True)]

    @classmethod
    def of(cls, observations: list[RowObservations]) -> RowCells:
        """The observations of these rows, one after the other; with times if all of them have some."""
        counts = np.array([len(each.numbers) for each in observations], dtype=np.int64)
        numbers = np.concatenate([np.zeros(0, np.int64), *(each.numbers for each in observations)])
        values = np.concatenate([np.zeros(0), *(each.values for each in observations)])
        times = [each.times for each in observations if each.times is not None]
        known = bool(times) and len(times) == len(observations)
        return cls(counts, numbers, values, np.concatenate(times) if known else None)

    def joined(
        self,
        lines: NDArray[np.int64],
        numbers: NDArray[np.int64],
        values: NDArray[np.float64],
        times: NDArray[np.float64] | None = None,
    ) -> RowCells:
        """Return them with more observations, in any order; one of the same cell replaces the earlier one."""
        every = np.concatenate([np.repeat(np.arange(len(self.counts)), self.counts), lines])
        both, all_values = np.concatenate([self.numbers, numbers]), np.concatenate([self.values, values])
        order = np.lexsort((np.arange(len(both)), both, every))
        last = np.ones(len(order), dtype=bool)
        last[:-1] = (np.diff(every[order]) != 0) | (np.diff(both[order]) != 0)
        kept = order[last]
        when = None if self.times is None or times is None else np.concatenate([self.times, times])[kept]
        counts = np.bincount(every[kept], minlength=len(self.counts))
        return RowCells(counts, both[kept], all_values[kept], when)
