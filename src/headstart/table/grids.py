"""Whether values lie on a grid, as ratings do."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

STEPS = 100  # a grid with more steps between its ends is none


def few_distinct(values: NDArray[np.float64], limit: int) -> NDArray[np.float64] | None:
    """Return the distinct values in order, or None where there are more than ``limit``.

    >>> few_distinct(np.array([2.0, 1.0, 2.0]), limit=2)
    array([1., 2.])
    """
    if len(np.unique(values[:1000])) > limit:
        return None
    distinct = np.unique(pc.unique(pa.array(values)).to_numpy())  # hashing first beats sorting all
    return distinct if len(distinct) <= limit else None


def on_grid(owner: NDArray[np.int64], value: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
    """Whether the values of each owner are whole numbers or evenly spaced, with gaps: (count,).

    ``owner`` (n,) and ``value`` (n,) hold each owner's distinct values, sorted by owner, then value.

    >>> on_grid(np.array([0, 0, 0, 1, 1, 1]), np.array([0.5, 1.0, 2.5, 0.1, 0.5, 0.6001]), 2)
    array([ True, False])
    """
    low, high, step = np.full(count, np.inf), np.full(count, -np.inf), np.full(count, np.inf)
    np.minimum.at(low, owner, value)
    np.maximum.at(high, owner, value)
    same = owner[1:] == owner[:-1]
    gap, whose = np.diff(value)[same], owner[1:][same]
    np.minimum.at(step, whose, gap)
    integers = np.bincount(owner, value != np.round(value), count) == 0
    with np.errstate(over="ignore", invalid="ignore"):  # of numbers so large that they fit no grid
        times = gap / step[whose]
        even = np.bincount(whose, np.abs(times - np.round(times)) > 1e-4, count) == 0
        fits = high - low <= STEPS * np.where(even, step, 1.0) * (1 + 1e-9)
    return np.asarray((even | integers) & fits)
