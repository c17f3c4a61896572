"""Winsorise values that lie far beyond all others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.table.cells import Cells
from headstart.table.sharding import FeatureExchange, gather

_MAX_DISTANCE = 10.0  # robust standard deviations from the median that are still believed

_SMALL_SAMPLE = 24.0  # of few values the deviation is uncertain: they may lie (1 + this / n) times as far

_MIN_VALUES = 4  # with fewer values none can be said to be far

LEAST_DEVIATION = 0.25  # of a feature's scale, if it is known: few values may be alike by chance

_TO_DEVIATION = 1.4826  # from the median distance to the standard deviation of a normal


def winsorise(
    cells: Cells, lines: Tensor, extent: Tensor | None = None, least: Tensor | None = None
) -> Cells:
    """Bring values of the ``lines`` in a mask back to the farthest value within 10·(1 + 24/n) deviations.

    Distances are taken from the line's median, in units of ``extent`` (n,) if it is given: how far from
    usual each value may be expected to lie. The deviation is that of the median distance or, if it is
    larger, the root mean square distance of all but the farthest value, so that a line of zeros and a few
    counts is left as it is; and ``least`` (lines,) at least, if it is given.
    """
    mask = lines & (cells.counts >= _MIN_VALUES)
    chosen = torch.nonzero(mask)[:, 0]
    if len(chosen) == 0:
        return cells
    part = cells.take(chosen)
    counts, owner, at = part.counts, part.lines, mask[cells.lines]
    middle = _medians(part.values.double(), part)[owner]
    unit = torch.ones_like(middle) if extent is None else extent[at].double()
    values = (part.values.double() - middle) / unit
    distance = values.abs()
    deviation = _deviations(distance, part)
    if least is not None:
        deviation = torch.maximum(deviation, least[chosen].double())
    reach = torch.where(deviation > 0, _MAX_DISTANCE * (1 + _SMALL_SAMPLE / counts) * deviation, torch.inf)
    inside = distance <= reach[owner]
    if bool(inside.all()):
        return cells
    low = deviation.new_full((len(part),), torch.inf)
    low.scatter_reduce_(0, owner[inside], values[inside], "amin")
    high = deviation.new_full((len(part),), -torch.inf)
    high.scatter_reduce_(0, owner[inside], values[inside], "amax")
    tamed = middle + torch.minimum(torch.maximum(values, low[owner]), high[owner]) * unit
    changed = cells.values.clone()
    # The chosen lines are in ascending order; what is inside keeps its value to the last bit.
    changed[at] = torch.where(inside, part.values, tamed.to(changed.dtype))
    return replace(cells, values=changed)


def winsorise_one(
    values: NDArray[np.float64], extent: NDArray[np.float64] | float = 1.0, least: float = 0.0
) -> NDArray[np.float64]:
    """``winsorise`` of a single line, in numpy."""
    count = len(values)
    if count < _MIN_VALUES:
        return values
    half = (count - 1) // 2
    middle = np.partition(values, half)[half]
    relative = (values - middle) / extent
    distance = np.abs(relative)
    squared = distance**2
    far = squared == squared.max()
    others = (squared[~far].sum() + (far.sum() - 1) * squared.max()) / (count - 1)
    deviation = max(_TO_DEVIATION * np.partition(distance, half)[half], others**0.5, least)
    inside = distance <= _MAX_DISTANCE * (1 + _SMALL_SAMPLE / count) * deviation
    if deviation == 0 or inside.all():
        return values
    tamed = middle + np.clip(relative, relative[inside].min(), relative[inside].max()) * extent
    return np.where(inside, values, tamed)


def row_scales(cells: Cells, lines: Tensor) -> Tensor:
    """How extreme the row of each observation is: at least 1, (n,). ``cells`` has one line per feature.

    It is the median distance of the row's values from the medians of their features (those of ``lines``
    in a mask), in their deviations. One value of a row does not move it, so an error of the data has no
    excuse; a country of a billion is far off in every year.
    """
    by_row = replace(cells, values=robust_distances(cells, lines), weights=None).transpose()
    return typical_row_scales(by_row, by_row.values)[cells.index]


def robust_distances(cells: Cells, lines: Tensor) -> Tensor:
    """How many deviations of its line each value lies from the median, for ``lines`` in a mask: (n,)."""
    values, owner = cells.values.double(), cells.lines
    distance = (values - _medians(values, cells)[owner]).abs()
    deviation = torch.maximum(
        _TO_DEVIATION * _medians(distance, cells), _deviation_of_others(distance, cells)
    )
    counted = (lines & (cells.counts >= _MIN_VALUES) & (deviation > 0))[owner]
    return torch.where(counted, distance / deviation.clamp(min=1e-300)[owner], 0.0)


def typical_row_scales(by_row: Cells, away: Tensor) -> Tensor:
    """The median of each row's distances ``away`` (n,), at least 1, and 1 of a single one: (rows,)."""
    several = by_row.counts > 1
    usual = torch.where(several, _medians(away, by_row), 0.0) if len(away) else by_row.counts.double()
    return usual.clamp(min=1.0)


def _deviations(distance: Tensor, cells: Cells) -> Tensor:
    """The deviation of each line, whatever its farthest value is: (lines,)."""
    return torch.maximum(_TO_DEVIATION * _medians(distance, cells), _deviation_of_others(distance, cells))


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


def winsorise_by_feature(
    index: Tensor, values: Tensor, features: Tensor, extent: Tensor | None, least: Tensor
) -> Tensor:
    """``winsorise`` of the ``features`` in a mask, whose observations several processes have: (n,).

    ``index``, ``values`` and ``extent`` (n,) are of this process's observations, ``least`` (features,) is of
    all features.
    """
    exchange = FeatureExchange(index, len(features))
    part = exchange.features
    far = None if extent is None else exchange.send(extent)
    cells = exchange.cells(exchange.send(values))
    return exchange.send_back(winsorise(cells, features[part], far, least[part]).values)


def global_row_scales(cells: Cells, features: Tensor) -> Tensor:
    """``row_scales`` of ``cells`` with one line per row of this process: (n,)."""
    exchange = FeatureExchange(cells.index, cells.width)
    away = robust_distances(exchange.cells(exchange.send(cells.values)), features[exchange.features])
    return typical_row_scales(cells, exchange.send_back(away))[cells.lines]


def moments_by_feature(
    index: Tensor, values: Tensor, width: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the sum of squares around it of each feature, without outliers: two of (width,)."""
    exchange = FeatureExchange(index, width)
    cells = exchange.cells(exchange.send(values))
    ordered = winsorise(cells, torch.ones(len(cells), dtype=torch.bool)).values
    first = torch.cat([ordered, ordered.new_zeros(1)])[cells.indptr[:-1]]
    lines = cells.lines
    sums = torch.zeros(len(cells), dtype=torch.float64).index_add_(0, lines, ordered - first[lines])
    mean = first + sums / cells.counts.clamp(min=1)
    squares = torch.zeros_like(mean).index_add_(0, lines, (ordered - mean[lines]) ** 2)
    return gather(mean.numpy()), gather(squares.numpy())
