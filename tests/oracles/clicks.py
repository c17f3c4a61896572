"""Slow regressions on clicks: every cell without a click is an observation of 0, written out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def exposure(clicks: float, usual: float) -> float:
    """Return the exposure of a row or feature with this number of clicks, one added."""
    return min(1.0, (clicks + 1) / (usual + 1))


def dense_row_posterior(
    confidence: Array, heads: Array, covariances: Array, precision: float, zero_weight: float,
    exposed: float, prior_mean: Array, prior_covariance: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Return mean and covariance of a row's factors u, given uncertain heads (v, b).

    ``confidence`` (features,) is 0 at cells without a click, ``heads`` (features, latent + 1) and
    ``covariances`` (features, latent + 1, latent + 1) are the posteriors of the heads. Each cell is an
    observation of 0 of the weight ``zero_weight · exposed``, and each click one more observation of 1.
    """
    latent = len(prior_mean)
    total, linear = np.linalg.inv(prior_covariance), np.linalg.solve(prior_covariance, prior_mean)
    for j in range(len(heads)):
        second = covariances[j] + np.outer(heads[j], heads[j])
        for value, weight in ((0.0, zero_weight * exposed), (1.0, confidence[j])):
            total = total + precision * weight * second[:latent, :latent]
            linear = linear + precision * weight * (value * heads[j, :latent] - second[:latent, latent])
    return np.linalg.solve(total, linear), np.linalg.inv(total)


def dense_head_posterior(
    confidence: Array, activation: Array, variance: Array, noise: float, click_noise: Array,
    zero_weights: Array, prior_mean: Array, prior_covariance: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Return mean and covariance of a head (w, b), given rows with ``activation`` (rows, width).

    ``confidence`` (rows,) is 0 at rows without a click. Row i is an observation of 0 with the precision
    ``zero_weights[i] / noise``, at an uncertain activation of ``variance`` (rows, width); a click is one more
    observation of 1 with the precision ``confidence[i] / click_noise[i]``.
    """
    total, linear = np.linalg.inv(prior_covariance), np.linalg.solve(prior_covariance, prior_mean)
    for i in range(len(activation)):
        row = np.append(activation[i], 1.0)
        total = total + zero_weights[i] / noise * (np.outer(row, row) + np.diag(np.append(variance[i], 0.0)))
        total = total + confidence[i] / click_noise[i] * np.outer(row, row)
        linear = linear + confidence[i] / click_noise[i] * row
    return np.linalg.solve(total, linear), np.linalg.inv(total)
