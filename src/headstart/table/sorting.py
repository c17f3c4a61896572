"""Observations sorted by (row, feature), with one value for each pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError, argument
from headstart.table.names import Names

DUPLICATES = ("error", "last", "mean")


class SortedObservations(NamedTuple):
    """Observations sorted by (row, feature)."""

    row_index: NDArray[np.int64]  # (n,)
    feature_index: NDArray[np.int64]  # (n,)
    values: NDArray[np.float64]  # (n,)
    times: NDArray[np.float64] | None = None  # (n,)


def sort_observations(
    keys: NDArray[np.int64],
    values: NDArray[np.float64],
    width: int,
    times: NDArray[np.float64] | None = None,
) -> SortedObservations:
    """Sort observations by their keys, row * width + feature. Equal keys keep their order.

    >>> sort_observations(np.array([4, 1]), np.array([0.5, 2.0]), width=3)[:3]
    (array([0, 1]), array([1, 1]), array([2. , 0.5]))
    """
    if not (keys[1:] > keys[:-1]).all():
        order = np.argsort(keys, kind="stable")
        values = values[order]
        keys = keys[order]
        times = None if times is None else times[order]
        del order  # each of these arrays is as large as a column of the table
    return SortedObservations(*np.divmod(keys, np.int64(max(width, 1))), values, times)


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
    row_index, feature_index, values, times = observations
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
        means = np.add.reduceat(values, starts) / (ends - starts + 1)
        merged = np.where(mixed, means, merged)
    note = f"{int(repeated.sum())} repeated observations were merged into one per (row, feature)"
    if differs.any():
        note += f", {int(differs.sum())} of them contradictory ({argument('duplicates', duplicates)})"
    latest = None if times is None else np.maximum.reduceat(times, starts)
    return SortedObservations(row_index[starts], feature_index[starts], merged, latest), (note,)


def _in_brackets(texts: list[str]) -> str:
    return f" ({'; '.join(texts)})" if texts else ""
