"""From numbers on the models' scale to predictions in the data's own units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import InputError
from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted
from headstart.table.kinds import Kinds, KindType
from headstart.training.calibration import LEVELS, USUAL_LEVEL, Calibration

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Units:
    """What predictions of some features are brought to the data's own units by.

    The methods take cells of any shape (…, n); ``which`` (n,) are the positions of their features.
    """

    kinds: Kinds
    shots: Tensor  # (features,)
    factors: Tensor  # (features, levels): by what calibration multiplies intervals
    calibration: Calibration

    @classmethod
    def of(cls, fitted: Fitted, features: list[Feature]) -> Units:
        """The units of these features."""
        shots = torch.tensor([feature.shots for feature in features], dtype=torch.int64)
        factors = fitted.calibration.factor(shots, fitted.kinds_of(features)).double()
        return cls(Kinds([feature.kind for feature in features]), shots, factors, fitted.calibration)

    @property
    def reach(self) -> Numbers:
        """Of intervals of each level, relative to that of the usual level: (features, levels)."""
        return (self.factors / self.factors[:, USUAL_LEVEL, None]).numpy()

    def applied(self, mean: Tensor, std: Tensor, which: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
        """Calibrated means and standard deviations, from those on the models' scale."""
        factor = self.factors[torch.from_numpy(which), USUAL_LEVEL]
        means: Numbers = mean.float().cpu().double().numpy()
        stds: Numbers = (factor * std.float().cpu()).float().double().numpy() * self.kinds.spans[which]
        binary = self.kinds.types[which] == KindType.BINARY
        if binary.any():
            shots = self.shots[torch.from_numpy(which[binary])]
            chances = self.calibration.probability(torch.from_numpy(means[..., binary]), shots).numpy()
            means[..., binary] = chances
            stds[..., binary] = np.sqrt(chances * (1 - chances))
        means = self.kinds.unscale(means, which)
        lows, highs = ends_of(self.kinds)
        return np.clip(means, lows[which], highs[which], out=means), stds


def ends_of(kinds: Kinds) -> tuple[Numbers, Numbers]:
    """The least and the largest value of each kind: two of (features,)."""
    return np.array([kind.low for kind in kinds]), np.array([kind.high for kind in kinds])


def interval(
    mean: Numbers,
    std: Numbers,
    kinds: Kinds,
    reach: Numbers | None,
    level: float,
    which: NDArray[np.int64],
) -> tuple[Numbers, Numbers]:
    """Low and high ends that hold the value with this probability: two of the shape of ``mean``.

    ``reach`` (features, levels) says how much wider intervals are than the normal's. The other parameters
    are as in ``Units``.
    """
    if not isinstance(level, (int, float)) or not 0 < level < 1:
        raise InputError(f"an interval's level must lie between 0 and 1; got {level!r}")
    from scipy.special import ndtri  # imported here: few uses of a model need SciPy

    half = ndtri(0.5 + level / 2) * std
    if reach is not None:  # by which intervals of other levels are wider or narrower than the normal's
        half = half * np.array([np.interp(level, LEVELS, own) for own in reach])[which]
    lows, highs = (ends[which] for ends in ends_of(kinds))
    low, high = np.clip(mean - half, lows, highs), np.clip(mean + half, lows, highs)
    binary, tail = kinds.types[which] == KindType.BINARY, 0.5 - level / 2
    low[..., binary] = mean[..., binary] > 1 - tail
    high[..., binary] = mean[..., binary] >= tail
    return low, high
