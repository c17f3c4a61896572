"""How far off predictions are at each number of shots, measured on features nobody trained on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.adapters.protocol import Adapter, FeatureBatch, Knowledge
from headstart.table.kinds import BINARY, RATING, REAL
from headstart.training.episodes import target_logits
from headstart.training.metatraining import VALIDATION_SHOTS, validation_episodes


@dataclass(frozen=True)
class Calibration:
    """The standard deviation of a prediction, by kind and shots, on the models' scale.

    Between the measured numbers of shots it is interpolated in log(1 + shots); past the last it stays.
    A binary prediction needs none: its probability says all.
    """

    deviations: Tensor  # (3 kinds, len(VALIDATION_SHOTS))

    def std(self, shots: Tensor, codes: Tensor) -> Tensor:
        """The standard deviation for features of these shots and kinds: (features,)."""
        marks = torch.tensor(VALIDATION_SHOTS, dtype=torch.float32).log1p()
        at = shots.to(torch.float32).log1p().clamp(max=float(marks[-1]))
        right = torch.bucketize(at, marks).clamp(1, len(marks) - 1)
        share = (at - marks[right - 1]) / (marks[right] - marks[right - 1])
        return torch.lerp(self.deviations[codes, right - 1], self.deviations[codes, right], share)

    @classmethod
    @torch.no_grad()
    def fit(cls, adapter: Adapter, knowledge: Knowledge, features: FeatureBatch, *, seed: int) -> Calibration:
        """Measure root mean squared residuals of the adapter's heads on these features."""
        likelihood = knowledge.likelihood
        deviations = torch.ones(3, len(VALIDATION_SHOTS))
        deviations[RATING] = likelihood.config.output_variance**0.5
        deviations[REAL] = torch.exp(0.5 * likelihood.real_log_variance)
        for column, episode in enumerate(validation_episodes(features, VALIDATION_SHOTS[-1], seed)):
            targets = episode.targets
            codes = episode.context.codes[targets.lines]
            heads = adapter.adapt(episode.context, knowledge.states)
            logits = target_logits(heads, knowledge.states.activation, targets)
            squared = (likelihood.mean(logits, codes) - targets.values) ** 2
            for code in set(codes.tolist()) - {BINARY}:
                # Where fewer features reach this many shots, what was measured last still holds.
                deviations[code, column:] = squared[codes == code].mean().sqrt()
        return cls(deviations)
