"""Observations brought into a table's order, each (row, feature) once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.table.names import Names

DUPLICATES = ("error", "last", "mean")


class Arranged(NamedTuple):
    """Observations sorted by (row, feature)."""

    row_index: NDArray[np.int64]  # (n,)
    feature_index: NDArray[np.int64]  # (n,)
    values: NDArray[np.float64]  # (n,)


def arrange(keys: NDArray[np.int64], values: NDArray[np.float64], width: int) -> Arranged:
    """Sort observations by their keys, row * width + feature; of one key, they stay in order.

    >>> arrange(np.array([4, 1]), np.array([0.5, 2.0]), width=3)
    Arranged(row_index=array([0, 1]), feature_index=array([1, 1]), values=array([2. , 0.5]))
    """
    if not (keys[1:] > keys[:-1]).all():
        order = np.argsort(keys, kind="stable")
        values = values[order]
        keys = keys[order]
        del order  # each of these is as large as a column of the table
    return Arranged(*np.divmod(keys, np.int64(max(width, 1))), values)


def merge_duplicates(
    found: Arranged, rows: Names, features: Names, duplicates: str
) -> tuple[Arranged, tuple[str, ...]]:
    """Keep one observation a (row, feature); refuse contradictions unless told how to settle them."""
    row_index, feature_index, values = found
    again = (row_index[1:] == row_index[:-1]) & (feature_index[1:] == feature_index[:-1])
    if not again.any():
        return found, ()
    differs = again & (values[1:] != values[:-1])
    if differs.any() and duplicates == "error":
        first = int(np.argmax(differs))
        row, feature = rows[row_index[first]], features[feature_index[first]]
        raise InputError(
            f"row {row!r}, feature {feature!r} is observed twice, as {values[first]:.12g} and"
            f" {values[first + 1]:.12g}; mend the data or pass duplicates='last' or duplicates='mean'"
        )
    begins = np.flatnonzero(np.concatenate([[True], ~again]))
    ends = np.append(begins[1:], len(values)) - 1
    merged = values[ends]
    if differs.any() and duplicates == "mean":
        # Equal values are left alone, lest their mean be off by a rounding.
        mixed = np.add.reduceat(np.append(differs, False), begins) > 0
        means = np.add.reduceat(values, begins) / (ends - begins + 1)
        merged = np.where(mixed, means, merged)
    note = f"{int(again.sum())} repeated observations were merged into one a (row, feature)"
    if differs.any():
        note += f", {int(differs.sum())} of them contradictory (duplicates={duplicates!r})"
    return Arranged(row_index[begins], feature_index[begins], merged), (note,)
