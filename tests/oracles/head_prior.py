"""The prior of heads."""

from __future__ import annotations

import numpy as np

from headstart.core.types import Knowledge
from headstart.linalg.packed import unpack


def metadata_weights(knowledge: Knowledge) -> tuple[np.ndarray, np.ndarray]:
    """How much of each head comes from its own observations, and the metric of predictions."""
    states = knowledge.states
    rows, width = states.activation.shape
    metric = np.zeros((width + 1, width + 1))
    for row, variance in zip(
        states.activation.double().numpy(), states.variance.double().numpy(), strict=True
    ):
        d = np.r_[row, 1]
        metric += (np.outer(d, d) + np.diag(np.r_[variance, 0])) / rows
    theta = knowledge.heads.stacked.double().numpy()
    spread = unpack(knowledge.heads.covariance.double(), width + 1).numpy()
    deviation = theta - theta.mean(0)
    prior = deviation.T @ deviation / len(theta) + spread.mean(0)
    known = [1 - np.trace(each @ metric) / np.trace(prior @ metric) for each in spread]
    return np.clip(known, 1e-3, 1), metric
