"""Detection of values that lie on a grid, such as ratings."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.table.compact import Floats

MAX_STEPS = 100  # values that span more steps do not count as a grid


def few_distinct(values: Floats, limit: int) -> NDArray[np.float64] | None:
    """Return the distinct values in order, or None if there are more than ``limit``.

    >>> few_distinct(np.array([2.0, 1.0, 2.0]), limit=2)
    array([1., 2.])
    """
    if len(np.unique(values[:1000])) > limit:
        return None
    distinct = np.unique(pc.unique(pa.array(values)).to_numpy())  # hashing first is faster than sorting all
    distinct = distinct.astype(np.float64)  # differences of values in single precision would be rounded
    return distinct if len(distinct) <= limit else None


def on_grid(features: NDArray[np.int64], values: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
    """Return whether each feature's values are whole numbers or multiples of one step: (count,).

    ``features`` (n,) and ``values`` (n,) are the distinct values of each feature, sorted by feature and
    then by value.

    >>> on_grid(np.array([0, 0, 0, 1, 1, 1]), np.array([0.5, 1.0, 2.5, 0.1, 0.5, 0.6001]), 2)
    array([ True, False])
    """
    low, high, step = np.full(count, np.inf), np.full(count, -np.inf), np.full(count, np.inf)
    np.minimum.at(low, features, values)
    np.maximum.at(high, features, values)
    same = features[1:] == features[:-1]
    gaps, gap_features = np.diff(values)[same], features[1:][same]
    np.minimum.at(step, gap_features, gaps)
    integers = np.bincount(features, values != np.round(values), count) == 0
    with np.errstate(over="ignore", invalid="ignore"):  # very large numbers, which are on no grid
        multiples = gaps / step[gap_features]
        even = np.bincount(gap_features, np.abs(multiples - np.round(multiples)) > 1e-4, count) == 0
        fits = high - low <= MAX_STEPS * np.where(even, step, 1.0) * (1 + 1e-9)
    return np.asarray((even | integers) & fits)
