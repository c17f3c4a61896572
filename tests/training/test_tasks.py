"""Features treated as new: folds that know nothing of their own features."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.backbones.conftest import random_cells

from headstart.backbones import Backbone, backbone_config, build_backbone
from headstart.core.types import Description, FeatureBatch, Knowledge
from headstart.progress import Reporter
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.training import episodes as tasks
from headstart.training.episodes import Tasks, cross_fitted_tasks, disjoint_tasks, sample_features
from headstart.training.pretraining import PretrainingConfig, pretrain

FEATURES = 20
NOTHING = Description(torch.zeros(FEATURES, 0), [])  # is known of the features


def world(cells: Cells, name: str = "factorisation") -> tuple[FeatureBatch, Backbone, Knowledge]:
    torch.manual_seed(0)
    kinds = torch.full((FEATURES,), KindType.RATING)
    backbone = build_backbone(backbone_config(name), kinds, torch.zeros(0))
    pretrain(
        backbone, some_cells(), NOTHING, PretrainingConfig(epochs=1), seed=0, reporter=Reporter(quiet=True)
    )
    none = torch.zeros(FEATURES, 0)
    knowledge = Knowledge(
        backbone.states(cells), cells, backbone.heads.detach(), none, kinds, backbone.likelihood
    )
    return FeatureBatch(cells.transpose(), none, kinds), backbone, knowledge


def some_cells() -> Cells:
    return random_cells(30, FEATURES, 0.5, seed=0)


@pytest.mark.parametrize("name", ["factorisation", "pvae"])
def test_a_folds_rows_are_encoded_with_its_features_masked(name: str) -> None:
    batch, backbone, knowledge = world(some_cells(), name)
    found = cross_fitted_tasks(batch, backbone, knowledge, seed=3)
    assert torch.equal(torch.unique(found.fold), torch.arange(len(found.states)))
    sizes = torch.bincount(found.fold)
    assert int(sizes.max() - sizes.min()) <= 1
    for fold, states in enumerate(found.states):
        expected = backbone.states(knowledge.cells, hidden=found.fold == fold)
        assert torch.equal(states.code, expected.code)
        assert torch.equal(states.activation, expected.activation)
    assert torch.equal(found.batch.positions, torch.arange(FEATURES))  # so that priors leave each out
    shares = found.split()
    assert [states for _, states in shares] == list(found.states)
    assert sum(len(part) for part, _ in shares) == FEATURES
    again = cross_fitted_tasks(batch, backbone, knowledge, seed=3)
    assert torch.equal(again.fold, found.fold)
    assert not torch.equal(cross_fitted_tasks(batch, backbone, knowledge, seed=4).fold, found.fold)


@pytest.mark.parametrize("name", ["factorisation", "pvae"])
def test_a_features_values_do_not_reach_the_rows_of_its_fold(name: str) -> None:
    cells = some_cells()
    batch, backbone, knowledge = world(cells, name)
    before = cross_fitted_tasks(batch, backbone, knowledge, seed=0)
    mine = int(before.fold[7])
    values = torch.where(cells.index == 7, 1 - cells.values, cells.values)
    changed = replace(knowledge, cells=Cells(cells.indptr, cells.index, values, FEATURES))
    after = cross_fitted_tasks(batch, backbone, changed, seed=0)
    for fold, (one, other) in enumerate(zip(before.states, after.states, strict=True)):
        assert torch.equal(one.code, other.code) == (fold == mine)


def sampled(monkeypatch: pytest.MonkeyPatch, most: int = 70, each: int = 5) -> tuple[Tasks, Knowledge]:
    """Tasks of sampled features, with few of their observations, and what they were sampled from."""
    batch, backbone, knowledge = world(some_cells())
    own = knowledge.states
    numbers = 2 * own.code.shape[1] + 2 * own.activation.shape[1]
    monkeypatch.setattr(tasks, "MOST_STATES", most * numbers)
    monkeypatch.setattr(tasks, "_LEAST_OBSERVATIONS", each)
    some = sample_features(knowledge, seed=0)
    batch = replace(batch.take(some), positions=some)
    return cross_fitted_tasks(batch, backbone, knowledge, seed=0), knowledge


def test_all_features_teach_where_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, backbone, knowledge = world(some_cells())
    assert sample_features(knowledge, seed=0) is None
    assert len(cross_fitted_tasks(batch, backbone, knowledge, seed=0).states) == tasks.MOST_FOLDS
    monkeypatch.setattr(tasks, "MOST_STATES", 1)
    assert len(sample_features(knowledge, seed=0)) == tasks.MOST_FOLDS


def test_sampled_features_have_states_of_the_rows_that_observed_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many folds as ever; each knows the rows of its features, as if these were hidden from all rows."""
    found, knowledge = sampled(monkeypatch)
    _, backbone, _ = world(some_cells())
    assert len(found.states) == tasks.MOST_FOLDS
    assert len(found) == 14
    assert sum(map(len, found.states)) <= 70
    by_feature = knowledge.cells.transpose()
    for feature, position in enumerate(found.batch.positions.tolist()):
        batch, states = found.together(torch.tensor([feature]))
        hidden = torch.zeros(FEATURES, dtype=torch.bool)
        hidden[found.batch.positions[found.fold == found.fold[feature]]] = True
        expected = backbone.states(knowledge.cells, hidden)
        whole = by_feature.take(torch.tensor([position]))
        assert batch.cells.width == len(states)
        assert len(batch.cells.index) == 5
        for place, value in zip(batch.cells.index.tolist(), batch.cells.values.tolist(), strict=True):
            row = whole.index[whole.values == value]
            codes = expected.code[row]
            assert bool((codes - states.code[place]).abs().amax(1).min() < 1e-5)


def test_disjoint_features_share_the_states_there_are() -> None:
    batch, _, knowledge = world(some_cells())
    found = disjoint_tasks(batch, knowledge)
    assert found.states == (knowledge.states,)
    assert not found.fold.any()


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.999])
def test_holding_back_parts_the_features(share: float) -> None:
    batch, backbone, knowledge = world(some_cells())
    every = cross_fitted_tasks(batch, backbone, knowledge, seed=0)
    named = tasks.Tasks(
        FeatureBatch(batch.cells, torch.arange(FEATURES, dtype=torch.float32)[:, None], batch.kinds),
        every.fold,
        every.states,
    )
    teaching, validating = named.hold_out(share, seed=1)
    names = [part.batch.metadata[:, 0].long() for part in (teaching, validating)]
    assert sorted(torch.cat(names).tolist()) == list(range(FEATURES))
    assert len(validating) == min(max(1, round(share * FEATURES)), FEATURES - 1)
    for part, who in zip((teaching, validating), names, strict=True):
        assert torch.equal(part.fold, every.fold[who])
        assert torch.equal(part.batch.shots, batch.shots[who])
