"""Whether a refit would pay, from how well a model foresaw what arrived since its fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SURE = 3.0  # standard errors
_MUCH = 0.05  # nats per observation
_MOST = 50.0  # nats of one observation: a single impossible value must not decide
_DOUBLED = 1.0  # observations since fit, relative to those of the fit


class Arrived(NamedTuple):
    """Sums over the observations since fit, each judged before it was taken."""

    observations: int = 0
    excess: float = 0.0  # of the negative log-likelihood over what was expected of it
    squares: float = 0.0

    def joined(self, excess: NDArray[np.float64]) -> Arrived:
        """Return the sums with those of more observations."""
        count, total = self.observations + len(excess), self.excess + float(excess.sum())
        return Arrived(count, total, self.squares + float((excess**2).sum()))


NOTHING = Arrived()


@dataclass(frozen=True)
class Staleness:
    """How much worse than expected a model foresaw what arrived since its fit.

    Attributes
    ----------
    observations : int
        How many observations were taken since fit, each judged by the model as it was just before.
    growth : float
        How many these are, relative to those it was fitted on.
    excess : float
        The mean negative log-likelihood of these observations less what the model itself expected, in nats;
        0 for a model whose uncertainty is right, more for one that is surprised too often.
    standard_error : float
        Of the excess.
    """

    observations: int
    growth: float
    excess: float
    standard_error: float

    @property
    def refit(self) -> bool:
        """Whether a refit is likely to pay: surely surprised too often, or as much arrived as was fitted."""
        surprised = self.excess > max(_MUCH, _SURE * self.standard_error)
        return surprised or self.growth >= _DOUBLED

    def __str__(self) -> str:
        if not self.observations:
            return "nothing was observed since fit"
        advice = "a refit is likely to pay" if self.refit else "a refit is not likely to pay yet"
        way = "worse" if self.excess > 0 else "better"
        return (
            f"{self.observations} observations since fit ({self.growth:.0%} of the fit), each "
            f"{abs(self.excess):.3f} ± {self.standard_error:.3f} nats {way} than expected; {advice}"
        )


def staleness_of(arrived: Arrived, fitted_on: int) -> Staleness:
    """Sum up what arrived since a model was fitted on so many observations."""
    count = max(1, arrived.observations)
    mean = arrived.excess / count
    variance = max(0.0, arrived.squares / count - mean**2)
    error = math.sqrt(variance / count) if arrived.observations > 1 else math.inf
    return Staleness(
        arrived.observations,
        arrived.observations / max(1, fitted_on),
        mean,
        error if arrived.observations else 0.0,
    )


def excess_of(
    values: NDArray[np.float64],
    mean: NDArray[np.float64],
    std: NDArray[np.float64],
    binary: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """The negative log-likelihood of values less the entropy of their predictive: (n,).

    ``mean`` and ``std`` (n,) are those of the predictive, on the models' scale as the values.
    """
    gaussian = 0.5 * (((values - mean) / np.maximum(std, 1e-12)) ** 2 - 1)
    chance = np.clip(mean, 1e-4, 1 - 1e-4)
    bernoulli = (chance - values) * np.log(chance / (1 - chance))  # -log p(x) - entropy
    return np.minimum(np.where(binary, bernoulli, gaussian), _MOST)
