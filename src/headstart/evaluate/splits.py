"""Which features the backbone learns from, which adapters learn from, and which are held out as new."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.errors import InputError, UnknownNameError, did_you_mean
from headstart.table import Table

PARTS = ("train", "meta-train", "meta-test")


@dataclass(frozen=True)
class FeatureSplit:
    """Positions of a table's features, each in exactly one of three parts, in ascending order."""

    train: NDArray[np.int64]  # the backbone sees these
    meta_train: NDArray[np.int64]  # adapters learn on these
    meta_test: NDArray[np.int64]  # nobody sees these before they are adapted to


def split_features(
    table: Table,
    fractions: Sequence[float] = (0.6, 0.3, 0.1),
    seed: int = 0,
    by: str | None = None,
) -> FeatureSplit:
    """Split a table's features at random, or from old to new by the metadata column ``by``.

    ``fractions`` are the shares of train, meta-train and meta-test. Features equal in ``by`` are put
    in a random order. A feature without a value in ``by`` counts as oldest, so that whatever is
    tested is known to be newest.
    """
    check_fractions(fractions)
    order = np.random.default_rng(seed).permutation(len(table.features))
    if by is not None:
        order = order[np.argsort(_times(table, by)[order], kind="stable")]
    # Rounded first, because 0.6 + 0.3 of ten features is 8.999… of them.
    bounds = np.rint(np.round(np.cumsum(fractions)[:-1] * len(order), 6)).astype(np.int64)
    parts = [np.sort(part).astype(np.int64) for part in np.split(order, bounds)]
    for name, fraction, part in zip(PARTS, fractions, parts, strict=True):
        if len(part) == 0:
            raise InputError(
                f"fraction {fraction:g} of {len(order)} features leaves none for {name}; "
                "use larger fractions or a table with more features"
            )
    return FeatureSplit(*parts)


def check_fractions(fractions: Sequence[float]) -> None:
    """Refuse fractions that are not three positive shares of one whole.

    >>> check_fractions((0.5, 0.3, 0.1))
    Traceback (most recent call last):
    headstart.errors.InputError: fractions 0.5, 0.3, 0.1 add up to 0.9; train, meta-train and meta-test ...
    """
    told = ", ".join(f"{fraction:g}" for fraction in fractions)
    if len(fractions) != len(PARTS):
        raise InputError(f"fractions must be three: train, meta-train and meta-test; got {told or 'none'}")
    if not all(math.isfinite(fraction) and fraction > 0 for fraction in fractions):
        raise InputError(f"fractions must each be above 0; got {told}")
    if abs(sum(fractions) - 1) > 1e-6:
        raise InputError(
            f"fractions {told} add up to {sum(fractions):g}; train, meta-train and meta-test must add up to 1"
        )


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
