"""Probabilities and intervals of the levels of one answer."""

from __future__ import annotations

import numpy as np


def log_score(chances: np.ndarray, counts: np.ndarray, observed: int, strength: float) -> float:
    """The logarithm of the probability of one observed level, straight from the formula."""
    total = sum(chances)
    weights = []
    for chance, count in zip(chances, counts, strict=True):
        share = chance / total
        frequency = (count + 5 * share) / (sum(counts) + 5)
        weights.append(frequency ** (1 - strength) * share**strength)
    return float(np.log(weights[observed] / sum(weights)))


def fewest_levels(levels: list[float], chances: list[float], level: float) -> tuple[float, float]:
    """The shortest run of levels with enough probability, of equally long ones the most probable."""
    runs = [
        (last - first, -sum(chances[first : last + 1]), levels[first], levels[last])
        for first in range(len(levels))
        for last in range(first, len(levels))
        if sum(chances[first : last + 1]) >= level
    ]
    return min(runs)[2:]
