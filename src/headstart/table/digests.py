"""A few values of each feature from which kinds are inferred as from all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.crew import crew
from headstart.table.alike import FEW
from headstart.table.compact import Floats, Positions
from headstart.table.regrouping import ByFeature

Pairs = tuple[Positions, Floats]


def digest(index: Positions, values: Floats, width: int) -> Pairs:
    """Features and values that stand for those of all processes: see ``resolve_kinds``.

    Of a feature there are all distinct values if they are few, and otherwise some more than a rating can
    have, with the smallest, the largest and one that is not whole, if there is one. There are as many as
    the feature has observations, but at most enough to tell a rating. A process by itself has all values.
    """
    if crew().alone:
        return index, values
    counts = crew().total(torch.from_numpy(np.bincount(index, minlength=width))).numpy()
    features, few = _few_values(index, values)
    grouped = ByFeature(torch.from_numpy(features), width)
    arrived = grouped.sent(torch.from_numpy(few)).numpy()
    owners = np.repeat(np.arange(width)[grouped.features], grouped.counts.numpy())
    features, few = _few_values(owners, arrived)
    features = crew().gathered(torch.from_numpy(features)).numpy()
    few = crew().gathered(torch.from_numpy(few)).numpy()
    distinct = np.bincount(features, minlength=width)
    more = np.maximum(0, np.minimum(counts, FEW) - distinct)
    first = np.searchsorted(features, np.flatnonzero(more))  # the first value of each, once more
    repeated = np.repeat(first, more[more > 0])
    every = np.concatenate([features, features[repeated]]).astype(np.int32)
    return every, np.concatenate([few, few[repeated]])


def _few_values(index: NDArray[Any], values: Floats) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Distinct values of each feature, sorted; of many the first ones, the last, and one not whole."""
    order = np.lexsort((values, index))
    feature, value = index[order], values[order]
    new = np.append(True, (feature[1:] != feature[:-1]) | (value[1:] != value[:-1]))[: len(feature)]
    feature, value = feature[new], value[new]
    starts = np.flatnonzero(np.append(True, feature[1:] != feature[:-1])[: len(feature)])
    ends = np.append(starts[1:], len(feature))
    place = np.arange(len(feature)) - np.repeat(starts, ends - starts)
    kept = place <= FEW  # one more than a rating has
    kept[ends - 1] = True
    fractional = np.flatnonzero(value != np.round(value))
    kept[fractional[np.append(True, np.diff(feature[fractional]) > 0)[: len(fractional)]]] = True
    return feature[kept].astype(np.int64), value[kept].astype(np.float64)  # as other processes have them
