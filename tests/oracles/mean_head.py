"""The shrinkage of the mean head, one row and one observation at a time."""

from __future__ import annotations

import numpy as np

from headstart.core.types import Knowledge

UNCERTAINTY_SHARE = 0.05


def slow_change(
    knowledge: Knowledge, mean: np.ndarray, covariance: np.ndarray, features: float
) -> np.ndarray:
    """Return the change of the mean head (w, b)."""
    activation = knowledge.states.activation.double().numpy()
    variance = knowledge.states.variance
    spread = np.zeros_like(activation) if variance is None else UNCERTAINTY_SHARE * variance.double().numpy()
    cells, rows = knowledge.cells, len(activation)
    own: list[list[tuple[int, float]]] = []
    for row in range(rows):
        line = slice(int(cells.indptr[row]), int(cells.indptr[row + 1]))
        own.append(list(zip(cells.index[line].tolist(), cells.values[line].tolist(), strict=True)))
    by_feature: dict[int, list[float]] = {}
    for observations in own:
        for feature, value in observations:
            by_feature.setdefault(feature, []).append(value)
    usual = {feature: np.mean(values) for feature, values in by_feature.items()}
    centre = activation.mean(0)
    width = activation.shape[1]
    moment, weighted, products = np.zeros((width, width)), np.zeros((width, width)), np.zeros(width)
    for row in range(rows):
        d = activation[row] - centre
        square = np.outer(d, d) + np.diag(spread[row])
        moment += square / rows
        for feature, value in own[row]:
            weighted += square
            products += d * (value - usual[feature])
    t, w = np.linalg.solve(weighted, products), mean[:-1]
    alpha = (t @ moment @ w) / (t @ moment @ t)
    delta = w - alpha * t
    kept = max(0.0, 1 - np.trace(moment @ covariance[:-1, :-1]) / features / (delta @ moment @ delta))
    change = alpha * t + kept * delta - w
    return np.append(change, -centre @ change)
