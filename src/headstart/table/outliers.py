"""Winsorise outliers: replace values far beyond all others by the farthest value that is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.table.cells import Cells
from headstart.table.shards import FeatureExchange, gather

_MAX_DISTANCE = 10.0  # robust standard deviations from the median; values farther away are outliers

_SMALL_SAMPLE = 24.0  # the limit is (1 + this / n) times as far: the deviation of few values is uncertain

_MIN_VALUES = 4  # fewer values have no outliers

LEAST_DEVIATION = 0.25  # share of a feature's scale, if it is known: few values may be close by chance

_MAD_TO_STD = 1.4826  # from the median absolute deviation to the standard deviation of a normal


def winsorise(
    cells: Cells, lines: Tensor, extent: Tensor | None = None, least: Tensor | None = None
) -> Cells:
    """Replace values beyond 10·(1 + 24/n) deviations from the line's median by the farthest value within.

    ``lines`` (lines,) is a mask of the lines to winsorise. Distances are divided by ``extent`` (n,), the
    expected distance of each value in deviations. The deviation is the larger of 1.48 times the median
    distance and the root mean square distance of all but the farthest value, so that a line of zeros and a
    few counts stays unchanged; it is at least ``least`` (lines,).
    """
    mask = lines & (cells.counts >= _MIN_VALUES)
    chosen = torch.nonzero(mask)[:, 0]
    if len(chosen) == 0:
        return cells
    part = cells.take(chosen)
    counts, line, selected = part.counts, part.lines, mask[cells.lines]
    middle = _medians(part.values.double(), part)[line]
    unit = torch.ones_like(middle) if extent is None else extent[selected].double()
    values = (part.values.double() - middle) / unit
    distance = values.abs()
    deviation = _deviations(distance, part)
    if least is not None:
        deviation = torch.maximum(deviation, least[chosen].double())
    limit = torch.where(deviation > 0, _MAX_DISTANCE * (1 + _SMALL_SAMPLE / counts) * deviation, torch.inf)
    inside = distance <= limit[line]
    if bool(inside.all()):
        return cells
    low = deviation.new_full((len(part),), torch.inf)
    low.scatter_reduce_(0, line[inside], values[inside], "amin")
    high = deviation.new_full((len(part),), -torch.inf)
    high.scatter_reduce_(0, line[inside], values[inside], "amax")
    clipped = middle + torch.minimum(torch.maximum(values, low[line]), high[line]) * unit
    result = cells.values.clone()
    # The chosen lines are in ascending order. A value inside the limits keeps its exact bits.
    result[selected] = torch.where(inside, part.values, clipped.to(result.dtype))
    return replace(cells, values=result)


def winsorise_one(
    values: NDArray[np.float64], extent: NDArray[np.float64] | float = 1.0, least: float = 0.0
) -> NDArray[np.float64]:
    """Winsorise a single line, in numpy; see ``winsorise``."""
    count = len(values)
    if count < _MIN_VALUES:
        return values
    half = (count - 1) // 2
    middle = np.partition(values, half)[half]
    relative = (values - middle) / extent
    distance = np.abs(relative)
    squared = distance**2
    farthest = squared == squared.max()
    others = (squared[~farthest].sum() + (farthest.sum() - 1) * squared.max()) / (count - 1)
    deviation = max(_MAD_TO_STD * np.partition(distance, half)[half], others**0.5, least)
    inside = distance <= _MAX_DISTANCE * (1 + _SMALL_SAMPLE / count) * deviation
    if deviation == 0 or inside.all():
        return values
    clipped = middle + np.clip(relative, relative[inside].min(), relative[inside].max()) * extent
    return np.where(inside, values, clipped)


def row_scales(cells: Cells, lines: Tensor) -> Tensor:
    """Return the scale of the row of each observation: (n,), at least 1. ``cells`` has one line per feature.

    The scale is the median distance of the row's values from the medians of their features, in deviations;
    only features in the mask ``lines`` count. A single wrong value does not change it, whereas all values of
    a large country are far from the medians.
    """
    by_row = replace(cells, values=robust_distances(cells, lines), weights=None).transpose()
    return typical_row_scales(by_row, by_row.values)[cells.index]


def robust_distances(cells: Cells, lines: Tensor) -> Tensor:
    """Compute the distance of each value from its line's median, in deviations; 0 outside the mask: (n,)."""
    values, line = cells.values.double(), cells.lines
    distance = (values - _medians(values, cells)[line]).abs()
    deviation = _deviations(distance, cells)
    counted = (lines & (cells.counts >= _MIN_VALUES) & (deviation > 0))[line]
    return torch.where(counted, distance / deviation.clamp(min=1e-300)[line], 0.0)


def typical_row_scales(by_row: Cells, distances: Tensor) -> Tensor:
    """Compute the median of each row's ``distances`` (n,), at least 1, and 1 for a single one: (rows,)."""
    if len(distances) == 0:
        return by_row.counts.double().clamp(min=1.0)
    return torch.where(by_row.counts > 1, _medians(distances, by_row), 0.0).clamp(min=1.0)


def _deviations(distance: Tensor, cells: Cells) -> Tensor:
    """Compute the robust deviation of each line; its farthest value has no influence: (lines,)."""
    return torch.maximum(_MAD_TO_STD * _medians(distance, cells), _deviation_of_others(distance, cells))


def _deviation_of_others(distance: Tensor, cells: Cells) -> Tensor:
    """Compute the root mean square distance of all but the farthest value of each line: (lines,)."""
    line, squared = cells.lines, distance**2
    farthest = squared.new_zeros(len(cells)).scatter_reduce_(0, line, squared, "amax")
    # Adding the farthest and subtracting it again would lose the small distances.
    far = squared == farthest[line]
    sums = farthest.new_zeros(len(cells)).index_add_(0, line, torch.where(far, 0.0, squared))
    ties = farthest.new_zeros(len(cells)).index_add_(0, line, far.to(squared.dtype)) - 1
    return ((sums + ties * farthest) / (cells.counts - 1)).sqrt()


def _medians(values: Tensor, cells: Cells) -> Tensor:
    """Compute the lower median of each line's values: (lines,)."""
    order = torch.argsort(values)
    order = order[torch.argsort(cells.lines[order], stable=True)]
    return values[order][cells.indptr[:-1] + (cells.counts - 1) // 2]


# -- features whose observations are divided among processes -----------------------------------------


def winsorise_by_feature(
    index: Tensor, values: Tensor, features: Tensor, extent: Tensor | None, least: Tensor
) -> Tensor:
    """Winsorise features whose observations are divided among processes: (n,); see ``winsorise``.

    ``index``, ``values`` and ``extent`` (n,) belong to this process's observations; the mask ``features`` and
    ``least`` (features,) to all features.
    """
    exchange = FeatureExchange(index, len(features))
    part = exchange.features
    extent = None if extent is None else exchange.send(extent)
    cells = exchange.cells(exchange.send(values))
    return exchange.send_back(winsorise(cells, features[part], extent, least[part]).values)


def global_row_scales(cells: Cells, features: Tensor) -> Tensor:
    """Compute ``row_scales`` from ``cells`` with one line per row of this process: (n,)."""
    exchange = FeatureExchange(cells.index, cells.width)
    distances = robust_distances(exchange.cells(exchange.send(cells.values)), features[exchange.features])
    return typical_row_scales(cells, exchange.send_back(distances))[cells.lines]


def moments_by_feature(
    index: Tensor, values: Tensor, width: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the mean and the centred sum of squares of each feature, winsorised: two of (width,)."""
    exchange = FeatureExchange(index, width)
    cells = exchange.cells(exchange.send(values))
    values = winsorise(cells, torch.ones(len(cells), dtype=torch.bool)).values
    # Sums of differences from the first value are exact enough for large values of a small spread.
    first = torch.cat([values, values.new_zeros(1)])[cells.indptr[:-1]]
    line = cells.lines
    sums = torch.zeros(len(cells), dtype=torch.float64).index_add_(0, line, values - first[line])
    mean = first + sums / cells.counts.clamp(min=1)
    squares = torch.zeros_like(mean).index_add_(0, line, (values - mean[line]) ** 2)
    return gather(mean.numpy()), gather(squares.numpy())
