"""Read censored values, such as <0.1 below a limit of detection and >1000 above the range of a scale.

Of a censored value only a limit is known. It is replaced by its expected value, and its weight is the share
of the information of an exact value that the limit has. Both follow from a normal distribution, of the
logarithm if all values of the feature are positive, whose mean and variance have the highest likelihood
(Tobit model).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.table.cells import Floats

_LIMIT = re.compile(r"([<>≤≥])\s*=?\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")

_ROUNDS = 200  # of expectation maximisation, at most

_CONVERGED = 1e-9  # largest change of mean and deviation, in deviations

LEAST_WEIGHT = 0.01  # of a censored value, so that its row and feature count as observed

MIN_EXACT = 2  # values of a feature that are not censored, to estimate the distribution


class Limit(NamedTuple):
    """A censored value: above (1) or below (−1) a limit."""

    side: int
    limit: float


def parse_limit(text: str) -> Limit | None:
    """Read a censored value; None if the text is none.

    >>> parse_limit("<0.1"), parse_limit(">= 1000"), parse_limit("0.1")
    (Limit(side=-1, limit=0.1), Limit(side=1, limit=1000.0), None)
    """
    match = _LIMIT.fullmatch(text.strip())
    return None if match is None else Limit(1 if match[1] in ">≥" else -1, float(match[2]))


def expected_values(
    exact: Floats, sides: NDArray[np.int64], limits: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the expected values of censored values, and their weights: (n,) each.

    Parameters
    ----------
    exact : ndarray of shape (m,)
        The values of the same feature that are not censored.
    sides, limits : ndarray of shape (n,)
        The side of each limit, −1 for a value below it and 1 for one above it, and the limit.
    """
    exact = np.asarray(exact, np.float64)
    logarithmic = bool((exact > 0).all() and (limits > 0).all())
    if logarithmic:
        exact, limits = np.log(exact), np.log(limits)
    mean, deviation = float(exact.mean()), max(float(exact.std()), 1e-9 * (1 + abs(float(exact.mean()))))
    for _ in range(_ROUNDS):
        values, shares = _truncated_moments(mean, deviation, sides, limits)
        total = len(exact) + len(values)
        new_mean = (exact.sum() + values.sum()) / total
        squares = ((exact - new_mean) ** 2).sum() + ((values - new_mean) ** 2 + shares * deviation**2).sum()
        new_deviation = max(float(np.sqrt(squares / total)), 1e-12)
        change = max(abs(new_mean - mean), abs(new_deviation - deviation)) / deviation
        mean, deviation = float(new_mean), new_deviation
        if change < _CONVERGED:
            break
    values, shares = _truncated_moments(mean, deviation, sides, limits)
    weights = np.clip(1 - shares, LEAST_WEIGHT, 1.0)
    return (np.exp(values) if logarithmic else values), weights


def _truncated_moments(
    mean: float, deviation: float, sides: NDArray[np.int64], limits: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the means of normal variables beyond their limits, and their variances relative to the whole."""
    from scipy.special import log_ndtr

    distance = sides * (limits - mean) / deviation  # how far beyond the mean the limit is
    hazard = np.exp(-(distance**2) / 2 - 0.5 * np.log(2 * np.pi) - log_ndtr(-distance))
    return mean + sides * deviation * hazard, np.clip(1 + distance * hazard - hazard**2, 0.0, 1.0)
