"""Leave-one-out ridge regression."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.linalg.ridge import LooRidge


def loo_predictions(regression: LooRidge, columns: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Each line predicted by a ridge regression that never saw it."""
    parts, ridge = [], []
    for group, strength in zip(regression.groups, regression.strengths.tolist(), strict=True):
        if strength > 0:
            parts.append(group.design(columns))
            ridge += [1 / strength] * group.width
    design = torch.cat([*parts, torch.ones(len(columns), 1, dtype=torch.float64)], dim=1)
    penalty = torch.diag(torch.tensor([*ridge, 1e-6], dtype=torch.float64))
    weights = weights / weights.mean()
    predicted = torch.zeros_like(targets)
    for line in range(len(columns)):
        rest = torch.arange(len(columns)) != line
        near = design[rest] * weights[rest][:, None]
        beta = torch.linalg.solve(near.T @ design[rest] + penalty, near.T @ targets[rest])
        predicted[line] = design[line] @ beta
    return predicted
