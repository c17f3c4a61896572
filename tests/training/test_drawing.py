"""Which episodes an epoch of meta-training goes over."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.training.test_episodes import batch_of, no_states

from headstart.training.episodes import EpisodeDrawer, Tasks
from headstart.training.meta_training import MetaTrainingConfig


def drawer(counts: list[int], folds: int = 1, **settings: object) -> EpisodeDrawer:
    batch = batch_of(counts, seed=0)
    names = torch.arange(len(counts)).float()[:, None]
    fold = torch.arange(len(counts)) % folds
    tasks = Tasks(replace(batch, metadata=names), fold, tuple(no_states() for _ in range(folds)))
    return EpisodeDrawer(tasks, MetaTrainingConfig(min_steps=1, **settings), seed=0)


@pytest.mark.parametrize("weighting", [None, 0.5])
@pytest.mark.parametrize("most", [None, 6])
def test_episodes_take_no_more_than_they_may(weighting: float | None, most: int | None) -> None:
    own = drawer([30, 2, 0, 9], weighting=weighting, max_targets=most, max_shots=4, batch_size=3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        for episode in own.epoch(generator):
            names = episode.context.metadata[:, 0].long()
            counts = torch.tensor([30, 2, 0, 9])[names]
            shots, targets = episode.context.shots, episode.targets.counts
            assert bool((counts > 0).all())
            assert bool((shots <= 4).all())
            assert bool((targets >= 1).all())
            expected = counts - shots if most is None else torch.minimum(counts - shots, torch.tensor(most))
            assert torch.equal(targets, expected)
            assert (episode.weights is None) == (weighting is None)


def test_a_batch_has_features_of_one_fold_with_its_states() -> None:
    own = drawer([5] * 12, folds=3, weighting=0.5, max_targets=4, max_shots=2, batch_size=2)
    for episode in own.epoch(torch.Generator().manual_seed(0)):
        folds = set((episode.context.metadata[:, 0].long() % 3).tolist())
        assert len(folds) == 1
        assert episode.states is own.tasks.states[folds.pop()]


@pytest.mark.parametrize("weighting", [None, 0.5])
def test_features_without_observations_teach_nothing(weighting: float | None) -> None:
    own = drawer([0, 0], weighting=weighting, max_targets=4)
    assert list(own.epoch(torch.Generator().manual_seed(0))) == []
