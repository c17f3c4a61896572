"""Errors of a model on the observations since its fit, and whether a refit is likely to pay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.display import count

_MIN_STANDARD_ERRORS = 3.0  # of an excess that makes a refit worthwhile

_MIN_EXCESS = 0.05  # nats per observation that make a refit worthwhile

_MAX_EXCESS = 50.0  # nats of one observation, so that a single impossible value does not decide

_MIN_GROWTH = 1.0  # observations since fit, relative to those of the fit, that make a refit worthwhile

_MOST_FACTOR = 1_000_000  # the largest factor of a likelihood that is written as a number


class ErrorSums(NamedTuple):
    """Sums of prediction errors over the observations since fit, each predicted before it was added."""

    observations: int = 0
    excess: float = 0.0  # of the negative log-likelihood over its expectation under the model
    squares: float = 0.0  # of the excess

    def add(self, excess: NDArray[np.float64]) -> ErrorSums:
        """Return the sums with the ``excess`` (n,) of more observations."""
        return ErrorSums(
            self.observations + len(excess),
            self.excess + float(excess.sum()),
            self.squares + float((excess**2).sum()),
        )

    @property
    def mean(self) -> float:
        """The mean excess."""
        return self.excess / max(1, self.observations)

    @property
    def standard_error(self) -> float:
        """The standard error of the mean; 0 for a single observation."""
        n = max(1, self.observations)
        return math.sqrt(max(0.0, self.squares / n - self.mean**2) / n)


NO_ERRORS = ErrorSums()


@dataclass(frozen=True)
class Staleness:
    """The errors of a model on observations since its fit, relative to the errors that it expects.

    Attributes
    ----------
    observations : int
        The number of observations since fit, each predicted before it was added to the model.
    growth : float
        The number of observations since fit relative to those of the fit.
    excess : float
        The mean negative log-likelihood of these observations less its expectation under the model, in nats:
        0 if the uncertainty of the model is right, more if the model is overconfident.
    standard_error : float
        The standard error of the excess.
    """

    observations: int
    growth: float
    excess: float
    standard_error: float

    @property
    def refit(self) -> bool:
        """Whether a refit is likely to pay: errors are significantly too large, or the data has doubled."""
        surprised = self.excess > max(_MIN_EXCESS, _MIN_STANDARD_ERRORS * self.standard_error)
        return surprised or self.growth >= _MIN_GROWTH

    def __str__(self) -> str:
        if not self.observations:
            return "nothing was observed since fit"
        advice = "a refit is likely to pay" if self.refit else "a refit is not likely to pay yet"
        comparison = "less" if self.excess > 0 else "more"
        factor = math.exp(abs(self.excess))
        if factor > _MOST_FACTOR:
            times = f"more than {_MOST_FACTOR:,} times"
        elif math.isinf(self.standard_error):
            times = f"{_round(factor, 3)} times"
        else:
            times = f"{_round(factor, 3)} ± {_round(factor * self.standard_error, 2)} times"
        return (
            f"{count(self.observations, 'observation')} since fit ({self.growth:.0%} of the fit), each "
            f"{times} {comparison} likely than expected; {advice}"
        )


def _round(number: float, digits: int) -> str:
    """Write a number with ``digits`` significant digits and without an exponent."""
    return f"{float(f'{number:.{digits}g}'):,.10g}"


def staleness_of(arrived: ErrorSums, fitted_on: int) -> Staleness:
    """Summarise the errors of a model that was fitted to ``fitted_on`` observations."""
    return Staleness(
        arrived.observations,
        arrived.observations / max(1, fitted_on),
        arrived.mean,
        math.inf if arrived.observations == 1 else arrived.standard_error,
    )


def excess_of(
    values: NDArray[np.float64],
    mean: NDArray[np.float64],
    std: NDArray[np.float64],
    binary: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return the negative log-likelihood of values less the entropy of their predictive distribution: (n,).

    ``values``, and ``mean`` and ``std`` of the predictive distribution, (n,) each, are on the scale of the
    model.
    """
    excess = 0.5 * (((values - mean) / np.maximum(std, 1e-12)) ** 2 - 1)
    if binary.any():
        chance = np.clip(mean, 1e-4, 1 - 1e-4)
        bernoulli = (chance - values) * np.log(chance / (1 - chance))  # -log p(x) - entropy
        excess = np.where(binary, bernoulli, excess)
    return np.minimum(excess, _MAX_EXCESS)
