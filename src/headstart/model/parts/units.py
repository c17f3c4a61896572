"""The units of features whose centre and scale are found from their observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headstart.model.parts.feature import Feature
from headstart.table import Kind

_FEWEST_OUTLIERS = 4  # values from which on one can be recognised as an outlier
_SMALLEST_UNIT = 1e-6  # of a feature of one value, in usual scales
_MOST_DIGITS = 1e-15  # the least units relative to the value furthest off, whose square must be possible


def in_own_units(features: Sequence[Feature], middle: Kind | None) -> list[Feature]:
    """Return features that find their scale in units that fit their observations, whatever their size.

    The units only keep numbers exact: the scale itself is found by the adapter. Features of equally many
    observations are computed together, with the same result as each by itself.

    Parameters
    ----------
    features : sequence of Feature
        Any features; those that do not find their scale are returned as they are.
    middle : Kind, optional
        The usual kind of such features.
    """
    found = list(features)
    if middle is None:
        return found
    by_count: dict[int, list[int]] = {}
    for place, feature in enumerate(features):
        if feature.finds_scale and len(feature.values):
            by_count.setdefault(len(feature.values), []).append(place)
    for places in by_count.values():
        centers, scales = _units(np.stack([features[place].values for place in places]), middle.span)
        for place, center, scale in zip(places, centers.tolist(), scales.tolist(), strict=True):
            found[place] = replace(features[place], kind=Kind.real(center, scale))
    return found


def _units(values: NDArray[np.float64], usual: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The centers and scales of values (features, n): two of (features,)."""
    center, spread = values.mean(1), values.std(1)
    if values.shape[1] >= _FEWEST_OUTLIERS:
        # One value far off must not cost the others their digits in single precision.
        robust = np.median(values, axis=1)
        distance = np.abs(values - robust[:, None])
        wide = np.maximum(np.median(distance, axis=1), _MOST_DIGITS * distance.max(1))
        varied = spread > 0
        center, spread = np.where(varied, robust, center), np.where(varied, wide, spread)
    size = np.abs(center)
    # One number does not tell a scale: in units that are far too small, the doubt about it would overflow.
    unknown = np.where(size > 0, np.maximum(size, _SMALLEST_UNIT * usual), usual)
    return center, np.where(spread > 1e-12 * size, spread, unknown)
