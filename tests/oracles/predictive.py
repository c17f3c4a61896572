"""Variances of predictions."""

from __future__ import annotations

import numpy as np

from headstart.core.types import Heads, RowStates


def grid_variances(heads: Heads, states: RowStates) -> np.ndarray:
    """Cell by cell, from the definition of the variance of a product of uncertain vectors."""
    matrices = heads.covariances(heads.weight.shape[1] + 1).double().numpy()
    found = np.zeros((len(states), len(heads)))
    for i, j in np.ndindex(*found.shape):
        row = np.append(states.activation[i].double().numpy(), 1.0)
        found[i, j] = row @ matrices[j] @ row
        if states.variance is not None:
            squares = heads.weight[j].double().numpy() ** 2 + np.diag(matrices[j])[:-1]
            found[i, j] += squares @ states.variance[i].double().numpy()
    return found
