"""Distributions of values with Gaussian numbers, by integration over many quantiles of the number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from headstart.table.kinds import Kind

QUANTILES = (np.arange(400_000) + 0.5) / 400_000


def values_of(kind: Kind, mean: float, std: float) -> NDArray[np.float64]:
    """Return the values at evenly spaced quantiles of a Gaussian number."""
    numbers = np.clip(norm.ppf(QUANTILES, mean, std), kind.low, kind.high)
    return np.array([kind.margin.to_value(part) for part in np.split(numbers, 8)]).ravel()
