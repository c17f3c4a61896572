"""Expectations by numerical integration."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import invgamma, multivariate_normal


def moments_behind_link(
    link: Callable[[NDArray], NDArray], mean: float, variance: float
) -> tuple[float, float]:
    """Mean and variance of link(N(mean, variance)), by a fine sum."""
    steps = np.linspace(-9, 9, 20_001)
    weights = np.exp(-0.5 * steps**2)
    weights /= weights.sum()
    values = link(mean + np.sqrt(variance) * steps)
    first = float(weights @ values)
    return first, float(weights @ (values - first) ** 2)


def posterior_of_scale(
    made: tuple[np.ndarray, np.ndarray, np.ndarray],
    covariance: np.ndarray,
    reach: float,
    freedom: float,
    square: float,
) -> tuple[float, float, np.ndarray, np.ndarray]:
    """log p(x), E[s²], and mean and covariance of (s·w, c) by a sum over a fine grid of log s²."""
    rows, values, weights = made
    grid = np.linspace(np.log(square) - 12, np.log(square) + 14, 4001)
    logs = invgamma(freedom / 2, scale=freedom * square / 2).logpdf(np.exp(grid)) + grid
    size = rows.shape[1]
    prior = np.zeros((size, size))
    prior[:-1, :-1], prior[-1, -1] = covariance, reach
    spread = rows @ prior @ rows.T + np.diag(1 / weights)
    if len(values):  # the density of x under s²·spread is that of x / s under spread, divided by s per value
        unit = multivariate_normal(np.zeros(len(values)), spread)
        logs += unit.logpdf(values / np.exp(grid[:, None] / 2)) - len(values) * grid / 2
    belief = np.exp(logs - logs.max())
    evidence = np.log(belief.sum() * (grid[1] - grid[0])) + logs.max()
    belief /= belief.sum()
    gain = prior @ rows.T @ np.linalg.inv(spread) if len(values) else np.zeros((size, 0))
    expected = float((belief * np.exp(grid)).sum())
    return evidence, expected, gain @ values, expected * (prior - gain @ rows @ prior)
