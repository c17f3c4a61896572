"""Arrays of observations in as few bytes as hold them exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError

AT_ONCE = 2**20  # observations that are looked at together, so that little is held in between
MOST_POSITIONS = 2**31 - 1  # rows or features that a table may have: positions take 4 bytes

Positions = NDArray[np.int32]
Floats = NDArray[np.float32] | NDArray[np.float64]  # single precision only where it holds every value exactly


def parts_of(count: int) -> Iterator[slice]:
    """Stretches of so many observations, each short enough to be computed with at once."""
    for start in range(0, count, AT_ONCE):
        yield slice(start, min(count, start + AT_ONCE))


def require_positions(count: int, what: str) -> None:
    """Refuse more rows or features than positions of 4 bytes can tell apart."""
    if count > MOST_POSITIONS:
        raise InputError(
            f"the table has {count} {what}; at most {MOST_POSITIONS} are possible, so part it into several"
        )


def exact(values: NDArray[Any]) -> Floats:
    """The values in single precision if it holds each of them exactly, otherwise in double precision.

    >>> exact(np.array([0.5, 4.0])).dtype, exact(np.array([0.5, 0.1])).dtype
    (dtype('float32'), dtype('float64'))
    """
    values = np.asarray(values)
    if values.dtype == np.float32:
        return values
    values = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore"):  # what single precision cannot hold becomes infinite, and differs
        for part in parts_of(len(values)):
            if not np.array_equal(values[part].astype(np.float32), values[part]):
                return values
        return values.astype(np.float32)


def counts_of(index: NDArray[Any], count: int) -> NDArray[np.int64]:
    """How often each position below ``count`` occurs, as ``np.bincount`` counts, which copies the index.

    >>> counts_of(np.array([2, 0, 2], np.int32), 3)
    array([1, 0, 2])
    """
    counts = np.zeros(count, np.int64)
    for part in parts_of(len(index)):
        counts += np.bincount(index[part], minlength=count)
    return counts


def taken(array: NDArray[Any], order: NDArray[Any]) -> NDArray[Any]:
    """``array[order]``; numpy would first make an index of 8 bytes for each of the order's 4."""
    found = np.empty(len(order), array.dtype)
    for part in parts_of(len(order)):
        found[part] = array[order[part]]
    return found


def ascends(rows: NDArray[Any], features: NDArray[Any]) -> bool:
    """Whether observations are sorted by (row, feature), each pair once.

    >>> ascends(np.array([0, 0, 1]), np.array([0, 2, 1])), ascends(np.array([0, 0]), np.array([1, 1]))
    (True, False)
    """
    for part in parts_of(len(rows) - 1):
        after = slice(part.start + 1, part.stop + 1)
        same, later = rows[after] == rows[part], rows[after] > rows[part]
        if not (later | (same & (features[after] > features[part]))).all():
            return False
    return True
