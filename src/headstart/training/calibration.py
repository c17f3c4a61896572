"""How far off predictions are at each number of shots, measured on features nobody trained on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.adapters.protocol import Adapter, Knowledge
from headstart.table.kinds import BINARY, RATING, REAL
from headstart.training.episodes import Episode, target_logits, target_noise
from headstart.training.metatraining import VALIDATION_SHOTS, validation_episodes
from headstart.training.tasks import Tasks

_FEATURES_TO_BELIEVE = 10
LEVEL, QUANTILE = 0.9, 1.6448536269514722  # the interval that is made to hold, and its normal quantile


@dataclass(frozen=True)
class Calibration:
    """The standard deviation of a prediction by kind and shots, on the models' scale.

    For heads that know how sure they are it is a factor on what they say (``relative``), such that
    90 % intervals held that share of the measured values. Between the measured numbers of shots it is
    interpolated in log(1 + shots); past the last it stays. A binary prediction needs none: its
    probability says all.
    """

    deviations: Tensor  # (3 kinds, measured shots)
    relative: bool = False

    def factor(self, shots: Tensor, codes: Tensor) -> Tensor:
        """The standard deviation, or what to multiply it by, of features of these shots: (features,)."""
        marks = torch.tensor(VALIDATION_SHOTS[: self.deviations.shape[1]], dtype=torch.float32).log1p()
        at = shots.to(torch.float32).log1p().clamp(max=float(marks[-1]))
        right = torch.bucketize(at, marks).clamp(1, len(marks) - 1)
        share = (at - marks[right - 1]) / (marks[right] - marks[right - 1])
        return torch.lerp(self.deviations[codes, right - 1], self.deviations[codes, right], share)

    @classmethod
    @torch.no_grad()
    def fit(cls, adapter: Adapter, knowledge: Knowledge, tasks: Tasks, *, seed: int) -> Calibration:
        """Measure the residuals of the adapter's heads on these features."""
        likelihood = knowledge.likelihood
        deviations = torch.ones(3, len(VALIDATION_SHOTS))
        deviations[RATING] = likelihood.config.output_variance**0.5
        deviations[REAL] = torch.exp(0.5 * likelihood.real_log_variance)
        relative = False
        measured = validation_episodes(tasks, VALIDATION_SHOTS[-1], seed)
        for column, shots in enumerate(VALIDATION_SHOTS):
            found = [_residuals(adapter, knowledge, episode) for episode in measured.get(shots, [])]
            if not found:
                continue  # where no feature reaches so many shots, what was measured last still holds
            features = sum(len(episode.context) for episode in measured[shots])
            squared, variance, codes = (torch.cat(part) for part in zip(*found, strict=True))
            relative = not bool(torch.isnan(variance).any())
            if column == 0 and relative:
                deviations[:] = 1.0
            for code in set(codes.tolist()) - {BINARY}:
                of = codes == code
                deviation = squared[of].mean().sqrt()
                if relative:
                    deviation = _widening((squared[of] / variance[of]).sqrt(), features)
                deviations[code, column:] = deviation
        return cls(deviations, relative)


def _residuals(adapter: Adapter, knowledge: Knowledge, episode: Episode) -> tuple[Tensor, Tensor, Tensor]:
    """Squared errors at the targets, what the heads think of them (NaN if nothing), and the kinds."""
    states, targets = adapter.refine(episode.states), episode.targets
    codes = episode.context.codes[targets.lines]
    heads = adapter.adapt(episode.context, states)
    logits = target_logits(heads, states.activation, targets)
    if heads.covariance is None:
        mean = knowledge.likelihood.mean(logits, codes)
        variance = torch.full_like(mean, torch.nan)
    else:
        mean, variance = knowledge.likelihood.predictive(logits, *target_noise(heads, states, targets), codes)
    return (mean - targets.values) ** 2, variance, codes


def _widening(ratios: Tensor, features: int) -> Tensor:
    """By what to multiply standard deviations so that the share LEVEL of ``ratios`` lies within.

    Few features say little about it, so it is drawn towards 1.
    """
    rank = max(1, min(len(ratios), round(LEVEL * len(ratios))))
    believed = features / (features + _FEATURES_TO_BELIEVE)
    factor: Tensor = (ratios.kthvalue(rank).values / QUANTILE) ** believed
    return factor
