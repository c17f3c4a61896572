"""Weighted ridge regression, and how much a feature weighs in it."""

from __future__ import annotations

import torch
from torch import Tensor

# The head of a feature observed more often is better known, but new features are not only the popular
# ones. So a feature weighs by less than how often it was observed.
POPULARITY = 0.75
RIDGE = 0.2


def popularity_weights(counts: Tensor) -> Tensor:
    """Weights of features observed ``counts`` times, with a mean of 1: (features, 1).

    >>> popularity_weights(torch.tensor([0.0, 16.0]))[:, 0].round(decimals=3)
    tensor([0.0010, 1.9990])
    """
    weights = (counts + 1e-3) ** POPULARITY
    return (weights / weights.mean())[:, None]


def weighted_ridge(inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The coefficients β that minimise Σ weight·‖target − input·β‖² + RIDGE·‖β‖²: (inputs, outputs).

    ``inputs`` is (n, inputs), ``targets`` (n, outputs), ``weights`` (n, 1).
    """
    gram = (weights * inputs).T @ inputs + RIDGE * torch.eye(inputs.shape[1])
    coefficients: Tensor = torch.linalg.solve(gram, (weights * inputs).T @ targets)
    return coefficients
