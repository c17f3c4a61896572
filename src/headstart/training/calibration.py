"""How far off predictions are at each number of shots, measured on features that were held out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headstart.core.predictive import Predictive
from headstart.core.types import interpolate
from headstart.table.kinds import KindType

# Few features say little about how predictions are off: so many count half.
_FEATURES_TO_BELIEVE = 10

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)  # of intervals that are made to hold

USUAL_LEVEL = LEVELS.index(0.9)

_QUANTILES = [
    0.6744897501960817,
    1.2815515655446004,
    1.6448536269514722,
    1.959963984540054,
    2.5758293035489004,
]

_NEWTON_STEPS = 25


@dataclass(frozen=True)
class Outcome:
    """Predictions of held-out features at some number of shots, beside the truth."""

    predictive: Predictive  # (n,)
    truth: Tensor  # (n,), on the models' scale
    feature: Tensor  # (n,): which feature each belongs to
    binary: Tensor  # (n,): whether the value is 0 or 1, whichever way it is modelled

    @property
    def features(self) -> int:
        """How many features there are."""
        return len(torch.unique(self.feature))


@dataclass(frozen=True)
class Calibration:
    """Corrections of predictions by kind and shots, measured at some numbers of shots (``marks``).

    The standard deviation of a rating or real is multiplied by a factor; for intervals there is one for
    each of the ``LEVELS``, with which they held that share of the measured values. The logit of a binary
    prediction is multiplied by a slope and shifted. Between marks all is interpolated in log(1 + shots);
    past the last it stays.
    """

    marks: Tensor  # (measured,): numbers of shots, ascending
    factors: Tensor  # (kinds, measured, levels)
    slopes: Tensor  # (measured,)
    shifts: Tensor  # (measured,)

    @classmethod
    def none(cls, marks: tuple[int, ...]) -> Calibration:
        """A calibration that changes nothing."""
        factors = torch.ones(len(KindType), len(marks), len(LEVELS))
        return cls(torch.tensor(marks), factors, torch.ones(len(marks)), torch.zeros(len(marks)))

    def factor(self, shots: Tensor, kinds: Tensor) -> Tensor:
        """The factors for features of these shots and kinds: (features, levels)."""
        left, right, share = interpolate(self.marks, shots)
        return torch.lerp(self.factors[kinds, left], self.factors[kinds, right], share[:, None])

    def one_factor(self, shots: int, kind: int) -> float:
        """The factor of the usual level for one feature, in numpy."""
        marks, factors = self.marks.numpy(), self.factors[kind, :, USUAL_LEVEL].numpy()
        return float(np.interp(math.log1p(shots), np.log1p(marks), factors))

    def logit_terms(self, shots: Tensor) -> tuple[Tensor, Tensor]:
        """Return slope and shift of the logits of binary features of these shots: two of (features,)."""
        left, right, share = interpolate(self.marks, shots)
        slope, shift = (torch.lerp(part[left], part[right], share) for part in (self.slopes, self.shifts))
        return slope, shift

    def probability(self, chance: Tensor, shots: Tensor) -> Tensor:
        """Correct probabilities of binary features of these shots (features,): (…, features)."""
        slope, shift = self.logit_terms(shots)
        return torch.sigmoid(torch.logit(chance, eps=1e-4) * slope + shift)

    @classmethod
    @torch.no_grad()
    def fit(cls, outcomes: Mapping[int, Outcome], marks: tuple[int, ...], *, by_level: bool) -> Calibration:
        """Measure errors at the numbers of shots there are outcomes of.

        ``by_level`` makes intervals hold; without it the standard deviation becomes that of the errors,
        for heads that say nothing of their own uncertainty.
        """
        made = cls.none(marks)
        for column, shots in enumerate(marks):
            outcome = outcomes.get(shots)
            if outcome is None:
                continue  # where no feature has so many shots, what was measured last still holds
            kinds = outcome.predictive.kinds
            believed = outcome.features / (outcome.features + _FEATURES_TO_BELIEVE)
            ratios = (outcome.predictive.mean - outcome.truth).abs() / outcome.predictive.std
            for kind in set(kinds[~outcome.binary].tolist()):
                own = ratios[(kinds == kind) & ~outcome.binary]
                made.factors[kind, column:] = (
                    _interval_factors(own, believed) if by_level else (own**2).mean().sqrt()
                )
            if bool(outcome.binary.any()):
                chance, truth = outcome.predictive.mean[outcome.binary], outcome.truth[outcome.binary]
                made.slopes[column:], made.shifts[column:] = _platt(chance, truth, believed)
        return made


def _interval_factors(ratios: Tensor, believed: float) -> Tensor:
    """By what to multiply the reach of each level so that its share of ``ratios`` lies within: (levels,)."""
    ordered = ratios.sort().values
    ranks = [max(1, min(len(ratios), round(level * len(ratios)))) for level in LEVELS]
    factors = ordered[torch.tensor(ranks) - 1] / ratios.new_tensor(_QUANTILES)
    return factors.clamp(0.2, 5.0) ** believed


def _platt(chance: Tensor, truth: Tensor, believed: float) -> tuple[float, float]:
    """Slope and shift of the logit with which predictions are likeliest, by Newton's method."""
    logit = torch.logit(chance.double(), eps=1e-4)
    inputs = torch.stack([logit, torch.ones_like(logit)], dim=1)
    weights = torch.tensor([1.0, 0.0], dtype=torch.float64)
    ridge = torch.eye(2, dtype=torch.float64)  # as if a little had been seen that agrees with no change
    start = weights.clone()
    for _ in range(_NEWTON_STEPS):
        expected = torch.sigmoid(inputs @ weights)
        gradient = inputs.T @ (truth.double() - expected) - ridge @ (weights - start)
        curvature = (inputs * (expected * (1 - expected))[:, None]).T @ inputs + ridge
        weights = weights + torch.linalg.solve(curvature, gradient)
    slope = float(weights[0].clamp(0.2, 3.0)) ** believed
    return slope, believed * float(weights[1])
