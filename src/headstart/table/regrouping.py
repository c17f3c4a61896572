"""Observations of rows shared out over processes, brought together by feature for a while."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.crew import crew
from headstart.table.cells import Cells, offsets
from headstart.table.outliers import deviations_away, tame_outliers, usual_extents


class ByFeature:
    """Lets each process have all observations of some features, which follow those of the one before.

    ``index`` (n,) are the features of this process's observations, of ``width`` there are. Medians and
    the like need this; what adds up does not.
    """

    def __init__(self, index: Tensor, width: int) -> None:
        counts = crew().total(torch.bincount(index, minlength=width))
        # A feature belongs to the process in whose share of all observations its own begin.
        begin = (counts.cumsum(0) - counts).double() / max(1, int(counts.sum()))
        owner = (begin * crew().size).long().clamp(max=crew().size - 1)
        own = torch.nonzero(owner == crew().rank)[:, 0]
        self.features = slice(int(own[0]), int(own[-1]) + 1) if len(own) else slice(0, 0)
        target = owner[index]
        self._order = torch.argsort(target, stable=True)
        self._sizes = torch.bincount(target, minlength=crew().size).tolist()
        arrived = crew().exchanged(torch.split(index[self._order], self._sizes))
        self._arrived = [len(part) for part in arrived]
        # Stable: rows of a feature stay in the order of the processes, which is that of all rows.
        self._sorting = torch.argsort(torch.cat(arrived), stable=True)
        self.counts = counts[self.features]

    def sent(self, numbers: Tensor) -> Tensor:
        """Numbers of this process's observations (n,) to those of its features, sorted by (feature, row)."""
        arrived = crew().exchanged(torch.split(numbers[self._order], self._sizes))
        return torch.cat(arrived)[self._sorting]

    def returned(self, numbers: Tensor) -> Tensor:
        """The way back: numbers of its features' observations to those of its rows' (n,)."""
        unsorted = torch.empty_like(numbers)
        unsorted[self._sorting] = numbers
        back = torch.cat(crew().exchanged(torch.split(unsorted, self._arrived)))
        found = torch.empty_like(back)
        found[self._order] = back
        return found

    def cells(self, values: Tensor) -> Cells:
        """One line per feature of this process, with these values; the cells have no row numbers."""
        return Cells(offsets(self.counts), torch.zeros(len(values), dtype=torch.int64), values, 1)


def tamed(index: Tensor, values: Tensor, features: Tensor, extent: Tensor | None, least: Tensor) -> Tensor:
    """``tame_outliers`` of the ``features`` in a mask, whose observations several processes have: (n,).

    ``index``, ``values`` and ``extent`` (n,) are of this process's observations, ``least`` (features,) is of
    all features.
    """
    grouped = ByFeature(index, len(features))
    part = grouped.features
    far = None if extent is None else grouped.sent(extent)
    cells = grouped.cells(grouped.sent(values))
    return grouped.returned(tame_outliers(cells, features[part], far, least[part]).values)


def shared_extents(cells: Cells, features: Tensor) -> Tensor:
    """``extents`` of ``cells`` with one line per row of this process: (n,)."""
    grouped = ByFeature(cells.index, cells.width)
    away = deviations_away(grouped.cells(grouped.sent(cells.values)), features[grouped.features])
    return usual_extents(cells, grouped.returned(away))[cells.lines]


def moments_by_feature(
    index: Tensor, values: Tensor, width: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the sum of squares around it of each feature, without outliers: two of (width,)."""
    grouped = ByFeature(index, width)
    cells = grouped.cells(grouped.sent(values))
    ordered = tame_outliers(cells, torch.ones(len(cells), dtype=torch.bool)).values
    first = torch.cat([ordered, ordered.new_zeros(1)])[cells.indptr[:-1]]
    lines = cells.lines
    sums = torch.zeros(len(cells), dtype=torch.float64).index_add_(0, lines, ordered - first[lines])
    mean = first + sums / cells.counts.clamp(min=1)
    squares = torch.zeros_like(mean).index_add_(0, lines, (ordered - mean[lines]) ** 2)
    return crew().gathered(mean).numpy(), crew().gathered(squares).numpy()
