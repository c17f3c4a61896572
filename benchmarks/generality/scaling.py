"""Standardise features with scales of their own, from known features and contexts only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from problem import Context
from scipy.special import digamma, polygamma

from generality.ordered import Floats
from generality.trial import Trial, deviations
from headstart.table.kinds import KindType


@dataclass(frozen=True)
class Scaling:
    """Centre and scale of every known feature, and estimates for new features from their contexts.

    A table of one binary or rating kind is not changed. Otherwise features of a kind that share a
    scale get one centre and scale, and reals with scales of their own are standardised each by its own
    observations. The centre of such a new feature is the mean of its context, shrunk towards the
    typical centre of known features according to their variance; the logarithm of its scale likewise.
    """

    centre: Floats  # (known,)
    scale: Floats  # (known,)
    binary: NDArray[np.bool_]  # (known,)
    new_binary: NDArray[np.bool_]  # (new,)
    own: bool

    @classmethod
    def of(cls, trial: Trial) -> Scaling:
        """Estimate the scaling from the known features."""
        known = trial.known
        count, values = len(known.features), known.values.astype(float)
        binary, new_binary = (table.kinds.types == KindType.BINARY for table in (known, trial.new))
        centre, scale = np.zeros(count), np.ones(count)
        for group in (binary, ~binary) if trial.one_kind == "real" else ():
            mine = values[group[known.feature_index]]
            if len(mine):
                centre[group], scale[group] = mine.mean(), mine.std() or 1.0
        if trial.own_scales:
            means = np.bincount(known.feature_index, values, count) / np.maximum(known.counts, 1)
            centre, scale = np.where(binary, centre, means), np.where(binary, scale, deviations(known))
        return cls(centre, scale, binary, new_binary, trial.own_scales)

    def new(self, context: Context) -> tuple[Floats, Floats, Floats]:
        """Return centre, scale and shrunken scale of new features given their contexts: (new,) each.

        A scale is uncertain, and one too large costs more than one too small. Predictions therefore use the
        shrunken scale, which minimises the expected squared error in units of the true standard deviation:
        exp(m - 1.5 v) for a Gaussian log scale with mean m and variance v.
        """
        centre, scale = np.zeros(context.features), np.ones(context.features)
        for code in (True, False):
            if (self.binary == code).any():
                first = int(np.argmax(self.binary == code))
                centre[self.new_binary == code] = self.centre[first]
                scale[self.new_binary == code] = self.scale[first]
        if not self.own:
            return centre, scale, scale
        like, of = ~self.binary, ~self.new_binary
        number = context.counts[of]
        mean = np.bincount(context.feature, context.value, context.features) / np.maximum(context.counts, 1)
        gap = (context.value - mean[context.feature]) ** 2
        free = np.maximum(number - 1, 1e-9)  # degrees of freedom
        sample = np.sqrt(np.bincount(context.feature, gap, context.features)[of] / np.maximum(free, 1))
        typical, spread = _typical(np.log(self.scale[like]))
        error = polygamma(1, free / 2) / 4  # the variance of the logarithm of a sample's deviation …
        shift = (digamma(free / 2) - np.log(free / 2)) / 2  # … and its bias
        weight = spread**2 / (spread**2 + error)
        said = np.log(np.where(sample > 0, sample, self.scale[like].min())) - shift
        middle = np.where(number > 1, typical + weight * (said - typical), typical)
        scale[of] = np.exp(middle)
        cautious = scale.copy()
        cautious[of] = np.exp(middle - 1.5 * np.where(number > 1, weight * error, spread**2))
        # If all values of a context are equal, predict this value: its scale is 0.
        cautious[of] *= (sample > 0) | (number < 2)
        usual, wide = _typical(self.centre[like])
        doubt = scale[of] ** 2 / np.maximum(number, 1e-9)
        centre[of] = usual + wide**2 / (wide**2 + doubt) * (mean[of] - usual)
        return centre, scale, cautious


def _typical(values: Floats) -> tuple[float, float]:
    """Return the median, and the standard deviation around it."""
    median = float(np.median(values))
    return median, max(float(np.sqrt(np.mean((values - median) ** 2))), 1e-9)
