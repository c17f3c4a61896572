"""The posterior of a head whose prior has a peak at each known head, written out component by component."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

Floats = NDArray[np.float64]


def posterior_of(
    mean: Floats, covariance: Floats, rows: Floats, values: Floats, noise: Floats
) -> tuple[Floats, Floats, float]:
    """Mean, covariance and log evidence of one Gaussian prior, given observations with these variances."""
    if not len(values):
        return mean, covariance, 0.0
    marginal = rows @ covariance @ rows.T + np.diag(noise)
    gain = covariance @ rows.T @ np.linalg.inv(marginal)
    evidence = multivariate_normal.logpdf(values, rows @ mean, marginal)
    return mean + gain @ (values - rows @ mean), covariance - gain @ rows @ covariance, float(evidence)


def probabilities(
    heads: Floats,
    given: tuple[Floats, Floats],
    plain: tuple[Floats, Floats],
    p_informative: float,
) -> Floats:
    """How likely each known head is the one that a new feature resembles, before it is observed."""
    ratios = np.array(
        [multivariate_normal.pdf(head, *given) / multivariate_normal.pdf(head, *plain) for head in heads]
    )
    return p_informative * ratios / ratios.sum() + (1 - p_informative) / len(heads)


def mixture(parts: list[tuple[float, Floats, Floats]]) -> tuple[Floats, Floats]:
    """Mean and covariance of a mixture of (weight, mean, covariance), by its moments."""
    mean = sum(weight * centre for weight, centre, _ in parts)
    second = sum(weight * (spread + np.outer(centre, centre)) for weight, centre, spread in parts)
    return mean, second - np.outer(mean, mean)
