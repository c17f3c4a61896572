"""Outliers and the scales of rows."""

from __future__ import annotations

import numpy as np


def winsorised(line: list[float]) -> list[float]:
    """As documented, one line at a time."""
    values = np.array(line, dtype=np.float64)
    n = len(values)
    if n < 4:
        return line
    distance = np.abs(values - np.sort(values)[(n - 1) // 2])
    others = np.sqrt((np.sort(distance)[:-1] ** 2).sum() / (n - 1))
    deviation = max(1.4826 * np.sort(distance)[(n - 1) // 2], others)
    if deviation == 0:
        return line
    inside = values[distance <= 10 * (1 + 24 / n) * deviation]
    return np.clip(values, inside.min(), inside.max()).tolist()


def scales_of_rows(values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """The median distance of each row's values from the medians of their columns, in their deviations."""
    away = np.full(values.shape, np.nan)
    for j in range(values.shape[1]):
        own = values[seen[:, j], j]
        n = len(own)
        distance = np.abs(own - np.sort(own)[(n - 1) // 2]) if n else own
        others = np.sqrt((np.sort(distance)[:-1] ** 2).sum() / max(1, n - 1))
        deviation = max(1.4826 * np.sort(distance)[(n - 1) // 2], others) if n else 0.0
        away[seen[:, j], j] = distance / deviation if n >= 4 and deviation > 0 else 0.0
    found = np.ones(len(values))
    for i, line in enumerate(away):
        own = np.sort(line[~np.isnan(line)])
        if len(own) > 1:
            found[i] = max(1.0, own[(len(own) - 1) // 2])
    return found
