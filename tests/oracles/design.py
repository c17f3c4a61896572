"""The rows that would tell most about a feature."""

from __future__ import annotations

import numpy as np

from headstart.core.types import Heads, RowStates
from headstart.table.kinds import KindType


def best_rows(heads: Heads, states: RowStates, among: list[int], kind: int, n: int) -> list[int]:
    """Recompute the posterior from scratch for every candidate, keep the best, repeat."""
    count, width = states.activation.shape
    rows = np.c_[states.activation.numpy(), np.ones(count)].astype(float)
    lower = np.tril_indices(width + 1)
    start = np.zeros((width + 1, width + 1))
    start[lower] = heads.covariance[0].numpy()
    start = start + np.tril(start, -1).T
    logits = rows @ np.r_[heads.weight[0].numpy(), heads.bias[0].numpy()]
    usual = np.ones(count) if states.noise is None else states.noise.numpy()
    chance = 1 / (1 + np.exp(-logits))
    precision = chance * (1 - chance) if kind == KindType.BINARY else 1 / (usual * float(heads.noise[0]))

    def left(seen: list[int]) -> float:
        """The mean variance over all rows once these are observed."""
        total = np.linalg.inv(start) + sum(precision[i] * np.outer(rows[i], rows[i]) for i in seen)
        return float(np.mean([a @ np.linalg.inv(total) @ a for a in rows]))

    chosen: list[int] = []
    for _ in range(n):
        chosen.append(min((i for i in among if i not in chosen), key=lambda i: left([*chosen, i])))
    return chosen
