"""Rows that are held out from everything that is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.errors import InputError, listed, worded
from headstart.evaluate.nested import check_shots
from headstart.table import Table

MOST_ROWS = 500  # more would take observations from training, and make the numbers hardly more exact
LEAST_ROWS = 4  # that must be left to train on


def draw_rows(table: Table, share: float, seed: int) -> NDArray[np.int64]:
    """Draw the rows that are held out.

    Parameters
    ----------
    table : Table
        The table whose rows are drawn from. Rows without observations are never drawn.
    share : float
        Share of the rows, from 0 (none) to below 1. At most 500 rows are drawn.
    seed : int
        Seed of the random order.

    Returns
    -------
    ndarray
        Positions of the rows in ascending order.

    Raises
    ------
    InputError
        If the share is not from 0 to below 1, or if none or too few rows would be left for a part.

    Examples
    --------
    >>> from headstart.datasets import synthetic_ratings
    >>> len(draw_rows(synthetic_ratings(60, 20, 0.4), share=0.1, seed=0))
    6
    """
    if not 0 <= share < 1:
        raise InputError(f"test_rows must be from 0 to below 1; got {share!r}")
    if share == 0:
        return np.zeros(0, np.int64)
    observed = np.unique(table.row_index)
    count = min(round(share * len(observed)), MOST_ROWS)
    if count == 0 or len(observed) - count < LEAST_ROWS:
        problem = "none is held out" if count == 0 else f"only {len(observed) - count} are left to train on"
        raise InputError(
            f"{worded('test_rows', '--test-rows')} {share:g}: of {len(observed)} rows with observations "
            f"{problem}; use another share, or {worded('test_rows=0', '--test-rows 0')} to hold out no rows"
        )
    drawn = np.random.default_rng((seed, 1)).permutation(observed)[:count]  # not the order of the features
    return np.sort(drawn).astype(np.int64)


def part_rows(table: Table, rows: NDArray[np.int64]) -> tuple[Table, Table]:
    """Return the table without these rows, and the table of these rows only; both have all features."""
    away = np.zeros(len(table.rows), dtype=bool)
    away[rows] = True
    return _with_rows(table, ~away), _with_rows(table, away)


def usable_row_shots(table: Table, shots: tuple[int, ...], known_share: float) -> tuple[int, ...]:
    """Return those numbers of observations of a row that leave half of the rows something to test on.

    They do not depend on a split, so that all splits have the same: ``known_share`` of a row's
    observations are expected to be of features that the backbone knows. Only these describe the row.

    Raises
    ------
    InputError
        If they are not valid, or if the table allows none of them.
    """
    ordered = check_shots(shots)
    counts = np.bincount(table.row_index)
    median = float(np.median(counts[counts > 0])) if len(counts) else 0.0
    usable = tuple(r for r in ordered if r < known_share * median)
    if not usable:
        raise InputError(
            f"row_shots {listed(ordered)} leave nothing to test on: half of the rows have at most "
            f"{median:g} observations, and {known_share:.0%} of the features are known; use smaller row_shots"
        )
    return usable


def _with_rows(table: Table, kept: NDArray[np.bool_]) -> Table:
    there, positions = kept[table.row_index], np.flatnonzero(kept)
    part = replace(
        table,
        rows=table.rows.take(positions),
        row_index=(np.cumsum(kept) - 1)[table.row_index[there]],
        feature_index=table.feature_index[there],
        values=table.values[there],
        row_metadata=None if table.row_metadata is None else table.row_metadata.take(pa.array(positions)),
        times=None if table.times is None else table.times[there],
        weights=None if table.weights is None else table.weights[there],
    )
    if "_vectors" in table.__dict__:  # what an encoder made of the features' metadata
        part.__dict__["_vectors"] = table._vectors
    return part
