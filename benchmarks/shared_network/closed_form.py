"""The closed form to compare with: a ridge regression, and the similarity of metadata.

    a = ρ·m + s·(Rᵀ·R + I/t)⁻¹·Rᵀ·r

The regression reads the 32 known features with the largest gain. ρ and s depend on the number of shots.
"""

from __future__ import annotations

from typing import Any

import numpy as np

CHOSEN, PRIOR_SHARE = 32, 0.3


def closed_form_shifts(residuals: Any, similarity: Any, contexts: Any, observed: Any, targets: Any) -> Any:
    """Return the shifts at targets by both terms, at strengths of 1: (targets, 2).

    Parameters
    ----------
    residuals : ndarray
        Of known features, 0 where not observed: (rows, known).
    similarity : ndarray
        m of each new feature: (features, known).
    contexts, observed : ndarray
        The rows of the contexts, and the residuals there: two of (features, shots).
    targets : list of ndarray
        The rows of the targets of each feature.
    """
    found = []
    for rows, context, similar, there in zip(contexts, observed, similarity, targets, strict=True):
        matrix, weights = residuals[rows].astype(float), np.zeros(residuals.shape[1])
        squares, products = (matrix**2).sum(0), matrix.T @ context
        if squares.any():
            precision = squares.sum() / (PRIOR_SHARE * len(rows))
            index = np.argsort(-(products**2) / (squares + precision), kind="stable")[:CHOSEN]
            system = matrix[:, index].T @ matrix[:, index] + precision * np.eye(len(index))
            weights[index] = np.linalg.solve(system, products[index])
        found.append(residuals[there] @ np.stack([similar, weights], 1))
    return np.concatenate(found)
