"""Which features the backbone learns from, which adapters learn from, and which are held out as new."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.errors import InputError, UnknownNameError, did_you_mean
from headstart.table import Table


@dataclass(frozen=True)
class FeatureSplit:
    """Positions of a table's features, in ascending order."""

    train: NDArray[np.int64]  # the backbone sees these
    meta_train: NDArray[np.int64]  # adapters learn on these; the same ones where they are cross-fitted
    meta_test: NDArray[np.int64]  # nobody sees these before they are adapted to


def split_features(
    table: Table,
    test_share: float = 0.1,
    meta_share: float | None = None,
    seed: int = 0,
    by: str | None = None,
) -> FeatureSplit:
    """Split a table's features at random, or from old to new by the metadata column ``by``.

    ``test_share`` of them are held out as new. Of the others, the ``meta_share`` teaches only adapters;
    without it, all of them teach both backbone and adapters. Features equal in ``by`` are put in a
    random order. A feature without a value in ``by`` counts as oldest, so that whatever is tested is
    known to be newest.
    """
    for name, share in (("test_share", test_share), ("meta_share", meta_share)):
        if share is not None and not 0 < share < 1:
            raise InputError(f"{name} must lie between 0 and 1; got {share!r}")
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
            further = "" if meta_share is None else f" and a meta_share of {meta_share:g}"
            raise InputError(
                f"a test_share of {test_share:g}{further} of {len(order)} features leaves none for {name}; "
                "use other shares or a table with more features"
            )
    return FeatureSplit(*(np.sort(part).astype(np.int64) for part in parts.values()))


def _count(number: float) -> int:
    """Round to whole features; first to six decimals, because 0.9 · 10 may come out as 8.999…"""
    return int(np.rint(np.round(number, 6)))


def _times(table: Table, by: str) -> NDArray[np.float64]:
    """The column ``by`` of the feature metadata as numbers; what is missing comes before everything."""
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
