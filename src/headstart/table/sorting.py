"""Observations sorted by (row, feature), with one value for each pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError, argument
from headstart.table.compact import MOST_POSITIONS, Floats, Positions, ascends, taken
from headstart.table.names import Names

DUPLICATES = ("error", "last", "mean")
_FEW = 2**16  # observations that are sorted by comparing them: SciPy need not be imported for them


class SortedObservations(NamedTuple):
    """Observations sorted by (row, feature)."""

    row_index: Positions  # (n,)
    feature_index: Positions  # (n,)
    values: Floats  # (n,)
    times: NDArray[np.float64] | None = None  # (n,)
    weights: NDArray[np.float64] | None = None  # (n,)


def sort_observations(
    rows: NDArray[Any],
    features: NDArray[Any],
    values: Floats,
    shape: tuple[int, int],
    times: NDArray[np.float64] | None = None,
    weights: NDArray[np.float64] | None = None,
) -> SortedObservations:
    """Sort observations of a table of this shape by (row, feature). Equal pairs keep their order.

    >>> sort_observations(np.array([1, 0]), np.array([1, 1]), np.array([0.5, 2.0]), (2, 3)).values
    array([2. , 0.5])
    """
    rows, features = (np.asarray(part, dtype=np.int32) for part in (rows, features))
    if ascends(rows, features):
        return SortedObservations(rows, features, values, times, weights)
    order, rows, features = _in_order(rows, features, shape)
    more = (None if part is None else taken(part, order) for part in (times, weights))
    return SortedObservations(rows, features, taken(values, order), *more)


def _in_order(
    rows: Positions, features: Positions, shape: tuple[int, int]
) -> tuple[NDArray[Any], Positions, Positions]:
    """The order by (row, feature), and the rows and features in it: three of (n,)."""
    count = len(rows)
    if count < max(_FEW, sum(shape) // 4) or count > MOST_POSITIONS:
        order = np.lexsort((features, rows))
        return order, rows[order], features[order]
    from scipy.sparse import csc_array, csr_array  # imported here: small tables do not need SciPy

    # By feature first, then by row. Each pass counts and keeps the order of what is equal: it takes less time
    # than comparing, and all that it holds are numbers of 4 bytes.
    ones = np.ones(count, np.int8)
    lines = csr_array((ones, features, np.arange(count + 1, dtype=np.int32)), shape=(count, shape[1])).tocsc()
    by_feature = csc_array((lines.indices, taken(rows, lines.indices), lines.indptr), shape=shape)
    del lines, ones
    by_row = by_feature.tocsr()
    del by_feature
    every = np.repeat(np.arange(shape[0], dtype=np.int32), np.diff(by_row.indptr))
    return by_row.data, every, by_row.indices


def merge_duplicates(
    observations: SortedObservations,
    rows: Names,
    features: Names,
    duplicates: str,
    spellings: Mapping[str, str] | None = None,
) -> tuple[SortedObservations, tuple[str, ...]]:
    """Keep one observation per (row, feature), and return notes about the merge.

    Different values for one pair are an error, or are merged as ``duplicates`` says. ``spellings`` tells
    how names are written that are written in several ways.
    """
    row_index, feature_index, values, times, _ = observations
    repeated = (row_index[1:] == row_index[:-1]) & (feature_index[1:] == feature_index[:-1])
    if not repeated.any():
        return observations, ()
    differs = repeated & (values[1:] != values[:-1])
    if differs.any() and duplicates == "error":
        first = int(np.argmax(differs))
        row, feature = rows[row_index[first]], features[feature_index[first]]
        several = [
            f"{noun} {name!r} is written as {spellings[name]}"
            for noun, name in (("row", row), ("feature", feature))
            if spellings and name in spellings
        ]
        raise InputError(
            f"row {row!r}, feature {feature!r} is observed twice, as {values[first]:.12g} and"
            f" {values[first + 1]:.12g}{_in_brackets(several)}; correct the data or use"
            f" {argument('duplicates', 'last')} or {argument('duplicates', 'mean')}"
        )
    starts = np.flatnonzero(np.concatenate([[True], ~repeated]))
    ends = np.append(starts[1:], len(values)) - 1
    merged = values[ends]
    if differs.any() and duplicates == "mean":
        # Equal values are not averaged: their mean could have a rounding error.
        mixed = np.add.reduceat(np.append(differs, False), starts) > 0
        means = np.add.reduceat(values, starts, dtype=np.float64) / (ends - starts + 1)
        merged = np.where(mixed, means, merged)
    note = f"{int(repeated.sum())} repeated observations were merged into one per (row, feature)"
    if differs.any():
        note += f", {int(differs.sum())} of them contradictory ({argument('duplicates', duplicates)})"
    latest = None if times is None else np.maximum.reduceat(times, starts)
    return SortedObservations(row_index[starts], feature_index[starts], merged, latest), (note,)


def _in_brackets(texts: list[str]) -> str:
    return f" ({'; '.join(texts)})" if texts else ""
