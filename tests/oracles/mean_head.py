"""The shrinkage of the mean head, one row and one observation at a time."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh
from scipy.stats import chi2

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
    # Generalised eigenvectors: columns v with vᵀM⁻¹v = 1 that diagonalise C.
    variances, basis = eigh(covariance[:-1, :-1] / features, np.linalg.inv(moment))
    errors = np.sqrt(np.maximum(variances, 0))
    parts = [float(vector @ delta) for vector in basis.T]
    ratios = sorted((part / error) ** 2 for part, error in zip(parts, errors, strict=True))
    share = min(1.0, chi2.ppf(0.5, df=1) / ratios[(len(ratios) - 1) // 2])
    change = np.zeros(width)
    for part, error, vector in zip(parts, errors, basis.T, strict=True):
        moved = np.sign(part) * min(share * abs(part), error)
        change -= moved * (np.linalg.inv(moment) @ vector)
    return np.append(change, -centre @ change)
