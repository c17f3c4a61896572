"""Lists of observations of rows and features, with their order of arrival.

Rows and features store their observations in the same form: a row by the numbers of features, a feature by
the positions of rows. ``reference_part`` chooses the observations of a reference, which ``updates`` explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FITTED, CORRECTED = -2, -1  # arrivals of observations of the fitted table: unchanged, and corrected since


class ObservationList(NamedTuple):
    """Observations of one row or one feature, each cell once, in ascending order of ``keys``."""

    keys: NDArray[Any]  # (n,): numbers of features (of a row), or positions of rows (of a feature)
    values: NDArray[np.float64]  # (n,): numbers of the kind (``Margin``)
    # (n,): the order in which cells first arrived, negative for cells of the table. None: all are FITTED.
    arrivals: NDArray[np.int64] | None = None
    times: NDArray[np.float64] | None = None  # (n,): None if observations do not age
    weights: NDArray[np.float64] | None = None  # (n,): as given; None: all 1

    @classmethod
    def empty(cls, *, timed: bool = False) -> ObservationList:
        """Return an empty list of observations, of a row or feature that is not in the table."""
        none = np.zeros(0, np.int64)
        return cls(none, np.zeros(0), none, np.zeros(0) if timed else None)

    @property
    def since_fit(self) -> bool:
        """Whether any observation arrived or was corrected after ``fit``."""
        return self.arrivals is not None and bool((self.arrivals > FITTED).any())

    def take(self, chosen: NDArray[Any] | slice) -> ObservationList:
        """Return the observations at the positions or in the mask ``chosen``."""
        return ObservationList(
            self.keys[chosen],
            self.values[chosen],
            None if self.arrivals is None else self.arrivals[chosen],
            None if self.times is None else self.times[chosen],
            None if self.weights is None else self.weights[chosen],
        )

    def merge(self, other: ObservationList) -> ObservationList:
        """Merge these observations with ``other``, whose values replace those of the same keys.

        A replaced value does not change the position of its cell in the order of arrival.
        """
        arrivals = np.full(len(self.keys), FITTED) if self.arrivals is None else self.arrivals
        other_arrivals = np.full(len(other.keys), FITTED) if other.arrivals is None else other.arrivals
        at = self.keys.searchsorted(other.keys.astype(self.keys.dtype, copy=False))
        inside = at < len(self.keys)
        known = np.zeros(len(at), dtype=bool)
        known[inside] = self.keys[at[inside]] == other.keys[inside]
        timed = self.times is not None and other.times is not None
        values, times = self.values, self.times if timed else None
        weights, other_weights = fill_weights(self, other)
        if known.any():
            where = at[known]
            arrivals, values = arrivals.copy(), values.copy()
            arrivals[where] = np.maximum(arrivals[where], CORRECTED)
            values[where] = other.values[known]
            if times is not None and other.times is not None:
                times = times.copy()
                times[where] = other.times[known]
            if weights is not None and other_weights is not None:
                weights = weights.copy()
                weights[where] = other_weights[known]
        if known.all():
            return ObservationList(self.keys, values, arrivals, times, weights)
        new = ~known
        at = at[new]
        return ObservationList(
            _insert(self.keys, at, other.keys[new]),
            _insert(values, at, other.values[new]),
            _insert(arrivals, at, other_arrivals[new]),
            None if times is None or other.times is None else _insert(times, at, other.times[new]),
            None if weights is None or other_weights is None else _insert(weights, at, other_weights[new]),
        )

    def same_as(self, other: ObservationList) -> bool:
        """Return whether both have the same cells, values, times and weights."""
        if not (np.array_equal(self.keys, other.keys) and np.array_equal(self.values, other.values)):
            return False
        weights, other_weights = fill_weights(self, other)
        return (self.times is None or other.times is None or np.array_equal(self.times, other.times)) and (
            weights is None or other_weights is None or np.array_equal(weights, other_weights)
        )


def fill_weights(*lists: ObservationList) -> list[NDArray[np.float64]] | list[None]:
    """Return the weights of each list, 1 where it has none; None for each if no list has any."""
    if all(line.weights is None for line in lists):
        return [None] * len(lists)
    return [np.ones(len(line.keys)) if line.weights is None else line.weights for line in lists]


def _insert(array: NDArray[Any], at: NDArray[np.int64], new: NDArray[Any]) -> NDArray[Any]:
    """Return the array with the entries ``new`` inserted before the positions ``at``."""
    if len(at) == 1:  # several times as fast as np.insert
        return np.concatenate([array[: at[0]], new, array[at[0] :]])
    return np.insert(array, at, new)


def reference_size(count: int) -> int:
    """Return the number of observations that a reference uses if there are ``count``.

    It is the largest of 0, 1, 2, 3, 4, 6, 8, 12, 16, … (2ᵏ and 3·2ᵏ) that is at most ``count``. So the number
    of times that a reference is computed grows with the logarithm of ``count``, at a constant cost per
    observation, and a reference uses at least two thirds of the observations.

    >>> [reference_size(count) for count in range(10)]
    [0, 1, 2, 3, 4, 4, 6, 6, 8, 8]
    """
    if count < 2:
        return count
    power = 1 << (count.bit_length() - 1)
    return power + power // 2 if count >= power + power // 2 else power


def reference_part(observations: ObservationList, *, fitted: bool) -> ObservationList | None:
    """Return the observations that a reference uses: those of the table, then the first that arrived.

    Returns None if the reference is that of the fit.

    Parameters
    ----------
    observations : ObservationList
        The observations that the reference may use.
    fitted : bool
        Whether there is a reference of the fit. It is used until another one would use more observations.
    """
    arrivals = observations.arrivals
    if arrivals is None:
        return None if fitted else observations
    count, in_table = len(arrivals), int((arrivals < 0).sum())
    size = max(reference_size(count), in_table)
    if fitted and size == in_table:
        return None
    if size == count:
        return observations
    last = np.partition(arrivals, size - 1)[size - 1] if size else FITTED - 1
    return observations.take(arrivals <= last)


def references_differ(before: ObservationList | None, after: ObservationList | None) -> bool:
    """Return whether the references of ``before`` and ``after`` differ; None is the reference of the fit."""
    if before is None or after is None:
        return before is not after
    return not before.same_as(after)


class ObservationLists(NamedTuple):
    """Observations of several rows or features, line by line."""

    counts: NDArray[np.int64]  # (lines,)
    keys: NDArray[np.int64]  # (n,): ascending within a line
    values: NDArray[np.float64]  # (n,): numbers of the kind (``Margin``)
    times: NDArray[np.float64] | None = None  # (n,): None if observations do not age
    weights: NDArray[np.float64] | None = None  # (n,): as given; None: all 1

    @classmethod
    def of(cls, lists: Sequence[ObservationList]) -> ObservationLists:
        """Concatenate lists, with their times if all lists have times, and weights if any has weights."""
        counts = np.array([len(line.keys) for line in lists], dtype=np.int64)
        keys = np.concatenate([np.zeros(0, np.int64), *(line.keys for line in lists)])
        values = np.concatenate([np.zeros(0), *(line.values for line in lists)])
        times = [line.times for line in lists if line.times is not None]
        timed = bool(times) and len(times) == len(lists)
        weights = [line for line in fill_weights(*lists) if line is not None]
        return cls(
            counts,
            keys,
            values,
            np.concatenate(times) if timed else None,
            np.concatenate(weights) if weights else None,
        )

    @property
    def lines(self) -> NDArray[np.int64]:
        """The line of each observation: (n,)."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


def split_by_line(
    lines: NDArray[np.int64],
    keys: NDArray[np.int64],
    values: NDArray[np.float64],
    arrivals: NDArray[np.int64],
    times: NDArray[np.float64] | None,
    weights: NDArray[np.float64] | None,
) -> dict[int, ObservationList]:
    """Split unordered observations into one list per line; a line must not have a key twice."""
    if not len(lines):
        return {}
    if len(lines) == 1:
        return {int(lines[0]): ObservationList(keys, values, arrivals, times, weights)}
    order = np.lexsort((keys, lines))
    lines, keys, values, arrivals = lines[order], keys[order], values[order], arrivals[order]
    times = None if times is None else times[order]
    weights = None if weights is None else weights[order]
    starts = np.flatnonzero(np.append(True, np.diff(lines) != 0))
    ends = [*starts[1:].tolist(), len(lines)]
    return {
        line: ObservationList(
            keys[begin:end],
            values[begin:end],
            arrivals[begin:end],
            None if times is None else times[begin:end],
            None if weights is None else weights[begin:end],
        )
        for line, begin, end in zip(lines[starts].tolist(), starts.tolist(), ends, strict=True)
    }
