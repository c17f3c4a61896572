"""The covariance of the outputs of heads at rows, cell by cell."""

from __future__ import annotations

import numpy as np

from headstart.core.types import Heads, RowStates
from headstart.linalg.packed import unpack


def output_covariance(heads: Heads, states: RowStates) -> np.ndarray:
    """Covariance of all pairs of cells (row, head), by expanding (w + δw)·(d + δd) + b + δb term by term."""
    rows, count, width = len(states), len(heads), heads.weight.shape[1]
    weight = heads.weight.double().numpy()
    activation = states.activation.double().numpy()
    variance = states.variance.double().numpy()
    matrices = [unpack(packed.double(), width + 1).numpy() for packed in heads.covariance]
    result = np.zeros((rows, count, rows, count))
    for i in range(rows):
        for j in range(count):
            for k in range(rows):
                for m in range(count):
                    total = 0.0
                    if j == m:  # the head is the same: δw·d_i + δb against δw·d_k + δb
                        one, other = np.append(activation[i], 1), np.append(activation[k], 1)
                        total += one @ matrices[j] @ other
                    if i == k:  # the row is the same: w_j·δd against w_m·δd
                        total += sum(variance[i, a] * weight[j, a] * weight[m, a] for a in range(width))
                    if i == k and j == m:  # δw·δd, whose parts are independent
                        total += sum(variance[i, a] * matrices[j][a, a] for a in range(width))
                    result[i, j, k, m] = total
    return result
