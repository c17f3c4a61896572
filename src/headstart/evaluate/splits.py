"""Split the features and rows of a table: some train, the others are held out as new."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.errors import InputError, UnknownNameError, did_you_mean, for_user, join_names
from headstart.evaluate.kshot import check_shots
from headstart.table import Table

_TIME = "time"  # the name that splits features by their first observation

MAX_TEST_ROWS = 500  # held out; more would take observations from training, with little gain in precision

MIN_TRAINING_ROWS = 4  # that are not held out


@dataclass(frozen=True)
class FeatureSplit:
    """Positions of a table's features in ascending order, all levels of a category in one part."""

    train: NDArray[np.int64]  # train the backbone
    meta_train: NDArray[np.int64]  # train the adapters; without a meta_share, the same as ``train``
    meta_test: NDArray[np.int64]  # held out as new


def split_features(
    table: Table,
    test_share: float = 0.1,
    meta_share: float | None = None,
    seed: int = 0,
    by: str | None = None,
) -> FeatureSplit:
    """Split the features of a table, at random or in the order of a metadata column.

    Parameters
    ----------
    table : Table
        The table whose features are split.
    test_share : float
        Share of the features that is held out as new.
    meta_share : float, optional
        Share of the other features that trains only the adapters. By default all of them train both
        the backbone and the adapters.
    seed : int
        Seed of the random order.
    by : str, optional
        Metadata column of numbers or dates, such as the year. The features with the smallest values
        train the backbone, features with the largest are held out. Features with equal values are in
        random order. A feature without a value counts as the oldest. ``"time"`` is the time of a feature's
        first observation, unless a metadata column has this name.

    Returns
    -------
    FeatureSplit
        Positions of the features in each part.

    Raises
    ------
    InputError
        If a share is not between 0 and 1 or leaves a part empty, or if ``by`` cannot be used.

    Examples
    --------
    >>> from headstart.datasets import synthetic_ratings
    >>> split = split_features(synthetic_ratings(20, 10, 0.5), test_share=0.2, meta_share=0.5)
    >>> len(split.train), len(split.meta_train), len(split.meta_test)
    (4, 4, 2)
    """
    for name, share in (("test_share", test_share), ("meta_share", meta_share)):
        if share is not None and not 0 < share < 1:
            raise InputError(f"{name} must be between 0 and 1; got {share!r}")
    features, first = np.unique(table.groups, return_index=True)  # the levels of a category stay together
    order = np.random.default_rng(seed).permutation(len(features))
    if by is not None:
        order = order[np.argsort(_column_numbers(table, by)[first][order], kind="stable")]
    known = _count((1 - test_share) * len(order))
    train = known if meta_share is None else _count((1 - test_share) * (1 - meta_share) * len(order))
    parts = {"train": order[:train], "meta-train": order[train:known], "meta-test": order[known:]}
    if meta_share is None:
        parts["meta-train"] = parts["train"]
    for name, part in parts.items():
        if len(part) == 0:
            second = "" if meta_share is None else f", meta_share {meta_share:g}"
            raise InputError(
                f"test_share {test_share:g}{second}: of {len(order)} features none is left for {name}; "
                "use other shares or a table with more features"
            )
    return FeatureSplit(*(np.flatnonzero(np.isin(table.groups, part)) for part in parts.values()))


def _count(number: float) -> int:
    """Round a number of features to a whole number.

    It is first rounded to six decimals, because a product such as 0.7 · 10 is not exact in floating point.
    """
    return int(np.rint(np.round(number, 6)))


def _column_numbers(table: Table, by: str) -> NDArray[np.float64]:
    """Return the metadata column ``by`` as numbers; a missing value is smaller than all others."""
    names = [] if table.metadata is None else table.metadata.column_names
    if by == _TIME and by not in names and table.times is not None:
        first = np.full(len(table.features), np.inf)
        np.minimum.at(first, table.feature_index, table.times)
        return np.where(np.isfinite(first), first, -np.inf)
    if table.metadata is None:
        times = " and no times" if by == _TIME else ""
        raise InputError(f"cannot split by {by!r}: the table has no feature metadata{times}")
    if by not in names:
        raise UnknownNameError(
            f"cannot split by {by!r}: there is no such metadata column{did_you_mean(by, names)}"
        )
    column = table.metadata.column(by)
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.timestamp("us")).cast(pa.int64())
    elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InputError(f"cannot split by {by!r}: it holds {column.type}, not numbers or dates")
    numbers = column.cast(pa.float64()).to_numpy()
    return np.where(np.isnan(numbers), -np.inf, numbers)


def split_observations(
    table: Table, share: float = 0.1, seed: int = 0, *, by_time: bool = False
) -> tuple[Table, Table]:
    """Split the observations of a table into known ones and held-out ones.

    Parameters
    ----------
    table : Table
        The table whose observations are split.
    share : float, default=0.1
        Share of the observations that is held out.
    seed : int, default=0
        Seed of the random order.
    by_time : bool, default=False
        Whether to hold out the newest observations instead of random ones.

    Returns
    -------
    known, held_out : Table
        Tables of the same rows and features.

    Raises
    ------
    InputError
        If the share is not between 0 and 1, or if ``by_time`` and the table has no times.

    Examples
    --------
    >>> from headstart.datasets import synthetic_ratings
    >>> known, held_out = split_observations(synthetic_ratings(20, 10, 0.5), share=0.2)
    >>> len(known), len(held_out)
    (78, 19)
    """
    if not 0 < share < 1:
        raise InputError(f"share must be between 0 and 1; got {share!r}")
    order = np.random.default_rng(seed).permutation(len(table))
    if by_time:
        if table.times is None:
            raise InputError("by_time needs the times of observations; read the table with time=")
        order = order[np.argsort(table.times[order], kind="stable")]
    known = np.zeros(len(table), dtype=bool)
    known[order[: len(order) - _count(share * len(order))]] = True
    return table.with_observations(known), table.with_observations(~known)


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
    count = min(round(share * len(observed)), MAX_TEST_ROWS)
    if count == 0 or len(observed) - count < MIN_TRAINING_ROWS:
        problem = "none is held out" if count == 0 else f"only {len(observed) - count} are left to train on"
        raise InputError(
            f"{for_user('test_rows', '--test-rows')} {share:g}: of {len(observed)} rows with observations "
            f"{problem}; use another share, or {for_user('test_rows=0', '--test-rows 0')} to hold out no rows"
        )
    drawn = np.random.default_rng((seed, 1)).permutation(observed)[:count]  # not the order of the features
    return np.sort(drawn).astype(np.int64)


def split_rows(table: Table, rows: NDArray[np.int64]) -> tuple[Table, Table]:
    """Return the table without these rows, and the table of these rows only; both have all features."""
    selected = np.zeros(len(table.rows), dtype=bool)
    selected[rows] = True
    return table.with_rows(~selected), table.with_rows(selected)


def usable_row_shots(table: Table, shots: tuple[int, ...], known_share: float) -> tuple[int, ...]:
    """Return the ``shots`` that leave a target to half of the rows.

    They are the same for all splits. Only observations of the backbone's features are contexts or targets;
    they are expected to be ``known_share`` of a row's observations.

    Raises
    ------
    InputError
        If ``shots`` are not valid, or if the table allows none of them.
    """
    ordered = check_shots(shots)
    first = np.isin(table.feature_index, np.unique(table.groups, return_index=True)[1])  # one per answer
    counts = np.bincount(table.row_index[first])
    median = float(np.median(counts[counts > 0])) if len(counts) else 0.0
    usable = tuple(r for r in ordered if r < known_share * median)
    if not usable:
        raise InputError(
            f"row_shots {join_names(ordered)} leave nothing to test on: half of the rows have at most "
            f"{median:g} observations, and {known_share:.0%} of the features are known; use smaller row_shots"
        )
    return usable
