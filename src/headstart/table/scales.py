"""Centers and scales of real features, from their values."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.crew import crew
from headstart.table.cells import Cells, offsets
from headstart.table.compact import Floats, Positions
from headstart.table.outliers import tame_outliers
from headstart.table.regrouping import moments_by_feature

ROUNDING = 4 * np.finfo(np.float64).eps  # a smaller spread, relative to the values, is no spread
_LEAST_SHARE = 1e-15  # of a scale in the distance of the value furthest off, whose square must be possible


def real_scales(
    index: Positions, values: Floats, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """Return the center and scale of each of ``count`` features, and whether all share one pair.

    ``index`` is the feature of each value. Features of similar center and scale share one pair; otherwise
    each feature has its own. Values far beyond all others of their feature do not enlarge its scale.
    """
    number = crew().total(torch.from_numpy(np.bincount(index, minlength=count))).numpy()
    given = values = np.asarray(values, dtype=np.float64)
    if crew().alone:
        values = _without_outliers(index, values, number)
        mean, squares = _moments(index, values, number)
    else:
        mean, squares = moments_by_feature(torch.from_numpy(index), torch.from_numpy(values), count)
    deviation = np.sqrt(squares / np.maximum(number, 1))
    deviation[deviation <= ROUNDING * np.abs(mean)] = 0.0  # a constant feature, up to rounding
    # The deviation of two or three values says little: if possible, compare features with five or more.
    compared = number >= min(5, number.max())
    deviations = deviation[compared & (deviation > 0)]
    pooled = np.sqrt(squares.sum() / number.sum())
    similar = bool(
        (np.abs(mean[compared] - np.median(mean[compared])) <= 10 * pooled).all()
        and (len(deviations) == 0 or (np.abs(np.log10(deviations / np.median(deviations))) <= 1).all())
    )
    least = _least_scales(index, given, mean)
    if not similar:
        magnitude = np.where(np.abs(mean) > 0, np.abs(mean), 1.0)
        return mean, np.maximum(np.where(deviation > 0, deviation, magnitude), least), False
    if crew().alone:
        center = float(values[0] + (values - values[0]).mean())
        scale = float((values - center).std())
    else:
        share = number / number.sum()
        center = float(share @ mean)
        scale = float(np.sqrt(squares.sum() / number.sum() + share @ (mean - center) ** 2))
    scale = scale if scale > ROUNDING * abs(center) else abs(center) or 1.0
    return np.full(count, center), np.full(count, max(scale, float(least.max(initial=0)))), True


def _least_scales(
    index: Positions, values: NDArray[np.float64], mean: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The scale below which the value furthest off, which is no part of a scale, would overflow."""
    with np.errstate(over="ignore", invalid="ignore"):  # values that are too large are found at the end
        distance = np.nan_to_num(np.abs(values - mean[index]))
    furthest = np.zeros(len(mean))
    np.maximum.at(furthest, index, distance)
    return _LEAST_SHARE * crew().largest(torch.from_numpy(furthest)).numpy()


def _moments(
    index: Positions, values: NDArray[np.float64], number: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean of each feature, and the sum of squares around it."""
    # Sums of values near 0 are exact enough also if the values are large and their spread is small.
    count, first = len(number), np.zeros(len(number))
    first[index[::-1]] = values[::-1]
    with np.errstate(over="ignore", invalid="ignore"):  # values that are too large are found at the end
        mean = first + np.bincount(index, values - first[index], count) / np.maximum(number, 1)
        squares = np.bincount(index, (values - mean[index]) ** 2, count)
    return mean, np.asarray(squares, dtype=np.float64)


def _without_outliers(
    index: Positions, values: NDArray[np.float64], number: NDArray[np.int64]
) -> NDArray[np.float64]:
    order = np.argsort(index, kind="stable")
    ordered = torch.from_numpy(values[order])
    cells = Cells(offsets(torch.from_numpy(number)), torch.zeros(len(order), dtype=torch.int64), ordered, 1)
    tamed = np.empty_like(values)
    tamed[order] = tame_outliers(cells, torch.ones(len(number), dtype=torch.bool)).values.numpy()
    return tamed
