"""Values far beyond all others, brought back to where they can do no harm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.table.cells import Cells

_MAX_DISTANCE = 10.0  # robust standard deviations from the median that are still believed
_SMALL_SAMPLE = 8.0  # of few values the deviation is uncertain: they may lie (1 + this / n) times as far
_MIN_VALUES = 4  # with fewer values none can be said to be far
_TO_DEVIATION = 1.4826  # from the median distance to the standard deviation of a normal


def tame_outliers(cells: Cells, lines: Tensor) -> Cells:
    """Bring values of the ``lines`` in a mask back to the farthest value within 10·(1 + 8/n) deviations.

    Distances are taken from the line's median. The deviation is that of the median distance or, if it is
    larger, the root mean square distance of all but the farthest value, so that a line of zeros and a few
    counts is left as it is.
    """
    chosen = torch.nonzero(lines & (cells.counts >= _MIN_VALUES))[:, 0]
    if len(chosen) == 0:
        return cells
    part = cells.take(chosen)
    values, counts, owner = part.values.double(), part.counts, part.lines
    distance = (values - _medians(values, part)[owner]).abs()
    deviation = torch.maximum(_TO_DEVIATION * _medians(distance, part), _deviation_of_others(distance, part))
    reach = torch.where(deviation > 0, _MAX_DISTANCE * (1 + _SMALL_SAMPLE / counts) * deviation, torch.inf)
    inside = distance <= reach[owner]
    if bool(inside.all()):
        return cells
    low = deviation.new_full((len(part),), torch.inf)
    low.scatter_reduce_(0, owner[inside], values[inside], "amin")
    high = deviation.new_full((len(part),), -torch.inf)
    high.scatter_reduce_(0, owner[inside], values[inside], "amax")
    tamed = torch.minimum(torch.maximum(values, low[owner]), high[owner])
    changed = cells.values.clone()
    mask = torch.zeros(len(cells), dtype=torch.bool)
    mask[chosen] = True
    changed[mask[cells.lines]] = tamed.to(changed.dtype)  # the chosen lines are in ascending order
    return replace(cells, values=changed)


def tame_one(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """``tame_outliers`` of a single line, in numpy."""
    count = len(values)
    if count < _MIN_VALUES:
        return values
    middle = (count - 1) // 2
    distance = np.abs(values - np.partition(values, middle)[middle])
    squared = distance**2
    far = squared == squared.max()
    others = (squared[~far].sum() + (far.sum() - 1) * squared.max()) / (count - 1)
    deviation = max(_TO_DEVIATION * np.partition(distance, middle)[middle], others**0.5)
    inside = distance <= _MAX_DISTANCE * (1 + _SMALL_SAMPLE / count) * deviation
    if deviation == 0 or inside.all():
        return values
    return np.clip(values, values[inside].min(), values[inside].max())


def _deviation_of_others(distance: Tensor, cells: Cells) -> Tensor:
    """The root mean square distance of all but the farthest value of each line: (lines,)."""
    owner, squared = cells.lines, distance**2
    farthest = squared.new_zeros(len(cells)).scatter_reduce_(0, owner, squared, "amax")
    # Small distances beside a very large one would be lost if it were added first and then subtracted.
    far = squared == farthest[owner]
    sums = farthest.new_zeros(len(cells)).index_add_(0, owner, torch.where(far, 0.0, squared))
    ties = farthest.new_zeros(len(cells)).index_add_(0, owner, far.to(squared.dtype)) - 1
    return ((sums + ties * farthest) / (cells.counts - 1)).sqrt()


def _medians(values: Tensor, cells: Cells) -> Tensor:
    """The lower median of each line's values: (lines,)."""
    order = torch.argsort(values)
    order = order[torch.argsort(cells.lines[order], stable=True)]
    return values[order][cells.indptr[:-1] + (cells.counts - 1) // 2]
