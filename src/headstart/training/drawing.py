"""What an epoch of meta-training goes over: which features, and which of their observations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headstart.training.episodes import Episode, draw_episode
from headstart.training.sampling import draw_features, draw_shots, feature_weights, usual_weights
from headstart.training.tasks import Tasks

if TYPE_CHECKING:
    from headstart.training.metatraining import MetaTrainingConfig


class EpisodeDrawer:
    """Draws the episodes of each epoch from the features that teach.

    With ``weighting`` features are drawn in proportion to what they should count, as far as it is the same
    at all numbers of shots: a batch of features that all count teaches more than one of which most count
    little. Without it an epoch goes over the features in a random order.
    """

    def __init__(self, tasks: Tasks, config: MetaTrainingConfig, *, seed: int) -> None:
        self.config = config
        self.teaching = torch.nonzero(tasks.batch.shots >= 1)[:, 0]  # the others have no target
        # What is drawn of a feature must not cost what all of its observations cost.
        self.most = None if config.max_targets is None else config.max_shots + config.max_targets
        self.tasks = tasks if self.most is None else tasks.shuffled(seed)
        self.usual = None
        if config.weighting is not None and len(self.teaching):
            counts = tasks.batch.shots[self.teaching]
            self.usual = usual_weights(counts, config.max_shots, config.weighting)

    def epoch(self, generator: torch.Generator) -> Iterator[Episode]:
        """The episodes of one epoch."""
        for features in self._batches(self._order(generator), generator):
            if len(features):
                yield self._episode(features, generator)

    def _order(self, generator: torch.Generator) -> Tensor:
        """The features of an epoch."""
        weighting, most = self.config.weighting, self.config.epoch_features
        if weighting is None or len(self.teaching) == 0:
            return self.teaching[torch.randperm(len(self.teaching), generator=generator)][:most]
        number = min(len(self.teaching), most or len(self.teaching))
        counts = self.tasks.batch.shots[self.teaching]
        return self.teaching[draw_features(counts, number, weighting, generator)]

    def _batches(self, order: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Cut an order of features into batches, each within one fold, the folds in turn at random."""
        if len(self.tasks.states) == 1:
            yield from self.config.batches(order)
            return
        size = self.config.batch_for(len(order))
        cut = [
            batch
            for fold in range(len(self.tasks.states))
            for batch in torch.split(order[self.tasks.fold[order] == fold], size)
        ]
        for turn in torch.randperm(len(cut), generator=generator).tolist():
            yield cut[turn]

    def _episode(self, features: Tensor, generator: torch.Generator) -> Episode:
        config = self.config
        if self.most is None:
            batch, states = self.tasks.together(features)
        else:
            batch, states = self.tasks.sampled(features, self.most, generator)
        shots = draw_shots(batch, config.max_shots, generator, config.shots)
        weights = None
        if config.weighting is not None and self.usual is not None:
            counts = self.tasks.batch.shots[features]
            weights = feature_weights(shots, counts, self.usual, config.weighting)
        return draw_episode(batch, states, shots, generator, config.max_targets, weights)
