"""Splits of the features: some train the backbone, some train the adapters, some are held out as new."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.errors import InputError, UnknownNameError, did_you_mean
from headstart.table import Table


@dataclass(frozen=True)
class FeatureSplit:
    """Positions of a table's features in ascending order."""

    train: NDArray[np.int64]  # these train the backbone
    meta_train: NDArray[np.int64]  # these train the adapters; without a meta_share, the same as ``train``
    meta_test: NDArray[np.int64]  # these are held out as new


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
        train the backbone, those with the largest are held out. Features with equal values are in
        random order. A feature without a value counts as the oldest.

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
    order = np.random.default_rng(seed).permutation(len(table.features))
    if by is not None:
        order = order[np.argsort(_times(table, by)[order], kind="stable")]
    kept = _count((1 - test_share) * len(order))
    train = kept if meta_share is None else _count((1 - test_share) * (1 - meta_share) * len(order))
    parts = {"train": order[:train], "meta-train": order[train:kept], "meta-test": order[kept:]}
    if meta_share is None:
        parts["meta-train"] = parts["train"]
    for name, part in parts.items():
        if len(part) == 0:
            second = "" if meta_share is None else f", meta_share {meta_share:g}"
            raise InputError(
                f"test_share {test_share:g}{second}: of {len(order)} features none is left for {name}; "
                "use other shares or a table with more features"
            )
    return FeatureSplit(*(np.sort(part).astype(np.int64) for part in parts.values()))


def _count(number: float) -> int:
    """Round to whole features; first to six decimals, because 0.9 · 10 can be computed as 8.999…"""
    return int(np.rint(np.round(number, 6)))


def _times(table: Table, by: str) -> NDArray[np.float64]:
    """Return the metadata column ``by`` as numbers; a missing value is smaller than all others."""
    if table.metadata is None:
        raise InputError(f"cannot split by {by!r}: the table has no feature metadata")
    names = table.metadata.column_names
    if by not in names:
        raise UnknownNameError(
            f"cannot split by {by!r}: there is no such metadata column{did_you_mean(by, names)}"
        )
    column = table.metadata.column(by)
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.timestamp("us")).cast(pa.int64())
    elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InputError(f"cannot split by {by!r}: it holds {column.type}, not numbers or dates")
    times = column.cast(pa.float64()).to_numpy()
    return np.where(np.isnan(times), -np.inf, times)
