"""Meta-training: which settings hold, and batches that stay within a fold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.adapters.conftest import Tiny
from tests.training.test_episodes import FEATURES, some_cells, world

from headstart.adapters import adapter_config, build_adapter
from headstart.adapters.chn_bayes import CHNBayes
from headstart.core.types import VALIDATION_SHOTS, FeatureBatch, Heads, RowStates
from headstart.progress import Reporter
from headstart.training.episodes import cross_fitted_tasks
from headstart.training.meta_training import MetaTrainingConfig, meta_train, validation_episodes


def test_the_user_overrules_what_suits_an_adapter_but_not_what_it_is(tiny: Callable[..., Tiny]) -> None:
    adapter = build_adapter(adapter_config("chn-bayes"), tiny().knowledge)
    suits: dict[str, Any] = adapter.meta_defaults
    plain = MetaTrainingConfig().complete_for(adapter)
    for name, value in suits.items():
        assert getattr(plain, name) == value
    assert suits["epochs"] != 7
    mine = MetaTrainingConfig(epochs=7).complete_for(adapter)
    assert mine == plain.revised(epochs=7)
    maml = build_adapter(adapter_config("maml-3"), tiny().knowledge)
    assert maml.meta_settings
    wishes = {**dict.fromkeys(maml.meta_settings, 1), "average": "targets"}
    wished = MetaTrainingConfig(**wishes).complete_for(maml)
    for name, value in maml.meta_settings.items():
        assert getattr(wished, name) == value


@pytest.mark.parametrize("weighting", [None, 0.5])
def test_an_epoch_sees_the_features_each_with_rows_that_do_not_know_it(weighting: float | None) -> None:
    """Every feature once, or as often as it counts."""
    batch, backbone, knowledge = world(some_cells())
    names = torch.arange(FEATURES).float()[:, None]
    named, knowledge = replace(batch, metadata=names), replace(knowledge, metadata=names)
    tasks = cross_fitted_tasks(named, backbone, knowledge, seed=0)
    teaching, validation = tasks.hold_out(0.2, seed=0)
    seen: list[list[int]] = []

    class Watched(CHNBayes):
        def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
            if torch.is_grad_enabled():  # it is being trained
                features = batch.metadata[:, 0].long()
                folds = set(tasks.fold[features].tolist())
                assert len(folds) == 1
                known = tasks.states[folds.pop()].code  # of all rows; those that are needed are taken
                assert bool((states.code[:, None] == known).all(2).any(1).all())
                seen.append(features.tolist())
            return super().adapt(batch, states)

    adapter = build_adapter(adapter_config("chn-bayes"), knowledge)
    adapter.__class__ = Watched
    config = MetaTrainingConfig(epochs=3, batch_size=4, weighting=weighting).complete_for(adapter)
    meta_train(adapter, knowledge, teaching, validation, config, seed=0, reporter=Reporter(quiet=True))
    every = sorted(teaching.batch.metadata[:, 0].long().tolist())
    drawn = Counter(name for batch in seen for name in batch)
    if weighting is None:
        assert drawn == Counter(every * 3)
    else:
        often = teaching.batch.shots.double().sqrt()
        often = 3 * len(every) * often / often.sum()
        for feature, expected in zip(
            teaching.batch.metadata[:, 0].long().tolist(), often.tolist(), strict=True
        ):
            assert abs(drawn[feature] - expected) < 6
        assert drawn.total() == 3 * len(every)
    assert not adapter.learns


def test_validation_asks_the_same_of_every_fold_and_leaves_something_to_predict() -> None:
    batch, backbone, knowledge = world(some_cells())
    tasks = cross_fitted_tasks(batch, backbone, knowledge, seed=0)
    episodes = validation_episodes(tasks, max_shots=8, seed=0)
    assert list(episodes) == [shots for shots in VALIDATION_SHOTS if shots <= 8]
    for shots, same in episodes.items():
        for episode in same:
            assert bool((episode.context.shots == shots).all())
            assert bool((episode.targets.counts >= 1).all())
        assert sum(len(e.context) for e in same) == int((batch.shots > shots).sum())
