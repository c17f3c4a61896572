"""Kinds inferred feature by feature, and made equal for features that are alike."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.table.compact import Floats, Positions
from headstart.table.grids import MAX_STEPS, few_distinct, on_grid

FEW = 20  # a rating has at most so many distinct values, and at least so many observations
MANY_TOPS = 5  # so many different upper limits are not upper limits
MAX_RATIO = 3  # ratings with a larger upper limit than so many times the usual one are not alike


class Inferred(NamedTuple):
    """Which features are binary and which are ratings, with limits; the others are real."""

    binary: NDArray[np.bool_]  # (features,)
    rating: NDArray[np.bool_]  # (features,)
    low: NDArray[np.float64]  # (features,)
    high: NDArray[np.float64]  # (features,)


def infer_each(mask: NDArray[np.bool_], index: Positions, values: Floats) -> Inferred:
    """Judge each feature in ``mask`` by its own values, then make equal those that are alike.

    ``index`` (n,) is the position of the feature of each of the ``values`` (n,).

    Columns of whole numbers are alike in one of three ways. Their ranges go on growing past what a rating
    can be: these are counts, and real. Or their ranges differ, but all values lie on one small grid: these
    are ratings with one range. Or one range is usual, and some columns do not reach its ends: these have
    the usual range.
    """
    count = len(mask)
    order = np.lexsort((values, index))
    feature, value = index[order], values[order]
    new = np.append(True, (feature[1:] != feature[:-1]) | (value[1:] != value[:-1]))
    # The distinct values of each feature, in order; their differences need double precision.
    feature, value = feature[new], value[new].astype(np.float64)
    distinct, enough = np.bincount(feature, minlength=count), np.bincount(index, minlength=count) >= FEW
    zeros_and_ones = np.bincount(feature, ~np.isin(value, (0, 1)), count) == 0
    binary = mask & zeros_and_ones & ((distinct == 2) | enough)
    rating = mask & ~binary & enough & (distinct > 1) & (distinct <= FEW) & on_grid(feature, value, count)
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, feature, value)
    np.maximum.at(high, feature, value)
    inferred = Inferred(binary, rating, low, high)
    whole = mask & (np.bincount(feature, value != np.round(value), count) == 0)
    _make_equal(inferred, whole, feature, value)
    return inferred


def _make_equal(
    inferred: Inferred, whole: NDArray[np.bool_], feature: Positions, value: NDArray[np.float64]
) -> None:
    """Change the kinds of columns of whole numbers that are alike, in place."""
    binary, rating, low, high = inferred
    ratings = rating & whole
    if not ratings.any():
        return
    ranges = Counter(zip(low[ratings].tolist(), high[ratings].tolist(), strict=True))
    usual, number = ranges.most_common(1)[0]
    if 2 * number >= ratings.sum():
        if number > 1:
            # A rating of its own within a much larger range is not alike.
            wide = ~rating | (2 * (high - low) >= usual[1] - usual[0])
            others = whole & ~binary & (low >= usual[0]) & (high <= usual[1]) & wide
            rating |= others
            low[others], high[others] = usual
        return
    grid = few_distinct(value[ratings[feature]], FEW)
    if _are_counts(inferred, ratings, whole & ~binary & ~rating, grid is not None):
        if binary.sum() < (whole & ~binary).sum():
            binary &= ~whole  # counts that are never above 1
        rating &= ~whole
    elif (
        grid is not None
        and grid[-1] - grid[0] <= MAX_STEPS
        and high[ratings].max() <= MAX_RATIO * np.median(high[ratings])
    ):
        low[ratings], high[ratings] = grid[0], grid[-1]


def _are_counts(
    inferred: Inferred, ratings: NDArray[np.bool_], others: NDArray[np.bool_], small_grid: bool
) -> bool:
    """Return whether the ranges of ratings differ because these are counts without an upper limit.

    ``others`` are columns of whole numbers that are no ratings: one that overlaps with the ratings
    continues them.
    """
    low, high = inferred.low, inferred.high
    tops = np.unique(high[ratings])
    continued = bool((others & (low >= 0) & (low <= tops[-1])).any())
    many = not small_grid and len(tops) >= MANY_TOPS
    return bool((low[ratings] >= 0).all()) and len(tops) > 2 and (continued or many)
