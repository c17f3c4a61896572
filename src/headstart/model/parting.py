"""The features of a table that is to be fitted: what each of them teaches, and what is kept of it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.crew import crew
from headstart.errors import InputError
from headstart.model.parts.feature import Feature
from headstart.table import Table

MIN_FEATURES = 4


def part_features(
    table: Table, meta_share: float | None, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw which features train the backbone and which meta-train the adapter; empty ones do neither.

    Without a share, all of them do both.
    """
    observed = np.flatnonzero(crew().total(torch.from_numpy(table.counts)))
    if len(observed) < MIN_FEATURES:
        raise InputError(
            f"the table has {len(observed)} features with observations; at least {MIN_FEATURES} are "
            "needed, some to train the backbone and some to learn how to add new ones"
        )
    if meta_share is None:
        return observed, observed
    order = np.random.default_rng(seed).permutation(observed)
    meta = min(max(2, round(meta_share * len(observed))), len(observed) - 2)
    return np.sort(order[meta:]), np.sort(order[:meta])


def features_of(table: Table, in_backbone: set[int], *, fixed: bool) -> list[Feature]:
    """All features of a table; if the backbone's own heads are ``fixed``, these without their contexts."""
    rows, found = table.by_feature(table.values)
    values = found.astype(np.float64)  # single values are computed with, so that they must not round
    del found
    ends = np.cumsum(table.counts)
    times = None if table.times is None or table.weights is None else table.by_feature(table.times)[1]
    metadata = table.encoded_metadata()
    records = [{}] * len(table.features) if table.metadata is None else table.metadata.to_pylist()
    features = []
    for i, (name, kind) in enumerate(zip(table.features, table.kinds, strict=True)):
        count = int(table.counts[i])
        held = slice(0, 0) if fixed and i in in_backbone else slice(ends[i] - count, ends[i])
        features.append(
            Feature(
                name,
                kind,
                i in in_backbone,
                count,
                metadata[i],
                rows[held],
                values[held],
                record={key: value for key, value in records[i].items() if value is not None},
                times=None if times is None else times[held],
            )
        )
    return features
