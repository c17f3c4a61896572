"""How far off predictions are at each number of shots, measured on features nobody trained on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.adapters.protocol import Adapter
from headstart.core.likelihood import Likelihood
from headstart.table.kinds import KindType
from headstart.training.episodes import Episode, predict_targets
from headstart.training.metatraining import VALIDATION_SHOTS, validation_episodes
from headstart.training.tasks import Tasks

_FEATURES_TO_BELIEVE = 10
LEVEL, QUANTILE = 0.9, 1.6448536269514722  # the interval that is made to hold, and its normal quantile


@dataclass(frozen=True)
class Calibration:
    """By what to multiply the standard deviation of a prediction, by kind and shots.

    For heads with a covariance it is the factor with which 90 % intervals held that share of the
    measured values; for other heads it makes the standard deviation that of the measured errors.
    Between the measured numbers of shots (``marks``) it is interpolated in log(1 + shots); past the last
    it stays. A binary prediction needs none: its probability says everything.
    """

    marks: Tensor  # (measured,): numbers of shots, ascending
    factors: Tensor  # (kinds, measured)

    def factor(self, shots: Tensor, kinds: Tensor) -> Tensor:
        """The factor for features of these shots and kinds: (features,)."""
        marks = self.marks.to(torch.float32).log1p()
        at = shots.to(torch.float32).log1p().clamp(max=float(marks[-1]))
        right = torch.bucketize(at, marks).clamp(1, len(marks) - 1)
        share = (at - marks[right - 1]) / (marks[right] - marks[right - 1])
        return torch.lerp(self.factors[kinds, right - 1], self.factors[kinds, right], share)

    @classmethod
    @torch.no_grad()
    def fit(cls, adapter: Adapter, likelihood: Likelihood, tasks: Tasks, *, seed: int) -> Calibration:
        """Measure the errors of the adapter's heads on these features."""
        factors = torch.ones(len(KindType), len(VALIDATION_SHOTS))
        measured = validation_episodes(tasks, VALIDATION_SHOTS[-1], seed)
        for column, shots in enumerate(VALIDATION_SHOTS):
            parts = [_errors(adapter, likelihood, episode) for episode in measured.get(shots, [])]
            if not parts:
                continue  # where no feature has so many shots, what was measured last still holds
            features = sum(len(episode.context) for episode in measured[shots])
            ratios, kinds = (torch.cat(part) for part in zip(*parts, strict=True))
            for kind in set(kinds.tolist()) - {KindType.BINARY}:
                own = ratios[kinds == kind]
                factor = _widening(own, features) if adapter.gives_uncertainty else (own**2).mean().sqrt()
                factors[kind, column:] = factor
        return cls(torch.tensor(VALIDATION_SHOTS), factors)


def _errors(adapter: Adapter, likelihood: Likelihood, episode: Episode) -> tuple[Tensor, Tensor]:
    """The errors at the targets in standard deviations, and the kinds: two of (n,)."""
    predictive = predict_targets(adapter, likelihood, episode)
    return (predictive.mean - episode.targets.values).abs() / predictive.std, predictive.kinds


def _widening(ratios: Tensor, features: int) -> Tensor:
    """By what to multiply standard deviations so that the share LEVEL of ``ratios`` lies within.

    Few features say little about it, so it is drawn towards 1.
    """
    rank = max(1, min(len(ratios), round(LEVEL * len(ratios))))
    believed = features / (features + _FEATURES_TO_BELIEVE)
    factor: Tensor = (ratios.kthvalue(rank).values / QUANTILE) ** believed
    return factor
