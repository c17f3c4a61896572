"""Episodes and the meta-loss against slow, obvious versions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.conftest import Tiny
from tests.adapters.conftest import some_cells as cells_of_kinds
from tests.backbones.conftest import random_cells
from tests.limits import Limits
from tests.linalg.test_sparse import lines_of
from torch.distributions import Bernoulli, Normal

from headstart.adapters import adapter_config, build_adapter
from headstart.adapters.chn import CHNConfig
from headstart.backbones import Backbone, backbone_config, build_backbone
from headstart.core.predictive import Predictive, predict_cells
from headstart.core.types import Description, FeatureBatch, Knowledge, RowStates
from headstart.progress import Reporter
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.training import episodes as tasks
from headstart.training.episodes import (
    Episode,
    EpisodeDrawer,
    Tasks,
    cross_fitted_tasks,
    disjoint_tasks,
    draw_episode,
    draw_features,
    draw_shots,
    episode_loss,
    feature_weights,
    mean_weights,
    predict_targets,
    sample_features,
    sample_shuffled,
    shuffle_observations,
)
from headstart.training.meta_training import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig, pretrain


def batch_of(counts: list[int], seed: int) -> FeatureBatch:
    kinds = torch.full((len(counts),), KindType.RATING)
    cells = cells_of_kinds(kinds, torch.tensor(counts), 40, torch.Generator().manual_seed(seed))
    return FeatureBatch(cells, torch.zeros(len(counts), 0), kinds)


def no_states(rows: int = 40) -> RowStates:
    return RowStates(torch.zeros(rows, 1), torch.ones(rows, 1), torch.zeros(rows, 1))


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=8), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_an_episode_parts_every_observation_once(counts: list[int], seed: int) -> None:
    batch = batch_of(counts, seed)
    generator = torch.Generator().manual_seed(seed)
    shots = draw_shots(batch, 32, generator)
    episode = draw_episode(batch, no_states(), shots, generator)
    assert torch.equal(episode.context.shots, shots)
    assert all(len(line) >= 1 for line, n in zip(lines_of(episode.targets), counts, strict=True) if n)
    contexts, targets = lines_of(episode.context.cells), lines_of(episode.targets)
    for whole, context, target in zip(lines_of(batch.cells), contexts, targets, strict=True):
        assert sorted(whole) == sorted(context + target)


def test_shots_are_uniform_and_so_are_contexts() -> None:
    batch = batch_of([40] * 300, seed=0)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.cat([draw_shots(batch, 32, generator) for _ in range(30)])
    counts = torch.bincount(drawn, minlength=33).double()
    expected = len(drawn) / 33
    assert len(counts) == 33
    assert float(((counts - expected) ** 2 / expected).sum()) < 70  # chi², 32 degrees: 0.01 % tail
    episode = draw_episode(batch, no_states(), torch.full((300,), 10), generator)
    chosen = torch.bincount(episode.context.cells.index, minlength=40).double()
    assert float(((chosen - 75) ** 2 / 75).sum()) < 90


def test_meta_loss_equals_the_slow_one(tiny: Callable[..., Tiny]) -> None:
    world = tiny(shots=(8, 5, 7, 6, 9, 4))
    knowledge = world.knowledge
    adapter = build_adapter(CHNConfig(), knowledge)
    generator = torch.Generator().manual_seed(0)
    episode = draw_episode(world.batch, knowledge.states, torch.tensor([3, 0, 4, 2, 5, 1]), generator)
    total, count = 0.0, 0
    for n, line in enumerate(lines_of(episode.targets)):
        one = episode.context.take(torch.tensor([n]))
        head = adapter.adapt(one, knowledge.states)
        kind = int(one.kinds[0])
        for row, x in line:
            output = head.weight[0] @ knowledge.states.activation[row] + head.bias[0]
            if kind == KindType.BINARY:
                likelihood = Bernoulli(logits=output)
            elif kind == KindType.RATING:
                likelihood = Normal(output.sigmoid(), math.sqrt(0.1))
            else:
                likelihood = Normal(output, math.exp(0.5 * float(knowledge.likelihood.real_log_variance)))
            total -= float(likelihood.log_prob(torch.tensor(x)).detach())
            count += 1
    assert abs(episode_loss(adapter, knowledge.likelihood, episode).item() - total / count) < 1e-5


def test_the_loss_averaged_over_features_is_the_mean_of_their_losses(tiny: Callable[..., Tiny]) -> None:
    world = tiny(shots=(8, 5, 7, 6, 9, 4))
    likelihood, adapter = world.knowledge.likelihood, build_adapter(CHNConfig(), world.knowledge)
    every = tasks.Tasks(world.batch, torch.zeros(6, dtype=torch.int64), (world.knowledge.states,))
    config = MetaTrainingConfig(average="features", max_shots=3, batch_size=6, min_steps=1)
    (episode,) = tasks.EpisodeDrawer(every, config, seed=0).epoch(torch.Generator().manual_seed(0))
    losses = [
        episode_loss(
            adapter,
            likelihood,
            tasks.Episode(
                episode.context.take(torch.tensor([n])),
                episode.targets.take(torch.tensor([n])),
                episode.states,
            ),
        )
        for n in range(6)
    ]
    assert episode.targets.counts.unique().numel() > 1
    torch.testing.assert_close(episode_loss(adapter, likelihood, episode), torch.stack(losses).mean())


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    most=st.integers(1, 12),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_at_most_so_many_targets_are_asked(counts: list[int], most: int, seed: int) -> None:
    batch = batch_of(counts, seed)
    shots = draw_shots(batch, 8, torch.Generator().manual_seed(seed))
    drawn = [
        draw_episode(batch, no_states(), shots, torch.Generator().manual_seed(seed), limit)
        for limit in (None, most)
    ]
    assert lines_of(drawn[0].context.cells) == lines_of(drawn[1].context.cells)
    for every, some in zip(lines_of(drawn[0].targets), lines_of(drawn[1].targets), strict=True):
        assert len(some) == min(most, len(every))
        assert set(some) <= set(every)


@pytest.mark.parametrize("name", ["chn", "chn-bayes", "bayes"])
@pytest.mark.parametrize("link", ["sigmoid", "identity"])
def test_knowing_only_the_rows_that_occur_changes_no_loss(
    name: str, link: str, tiny: Callable[..., Tiny]
) -> None:
    world = tiny(shots=(3, 2, 4, 3, 2, 3), link=link)
    knowledge = world.knowledge
    torch.manual_seed(0)
    adapter = build_adapter(adapter_config(name), knowledge).eval()
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0, 0.1])
    episode = draw_episode(
        world.batch, knowledge.states, torch.tensor([1, 0, 2, 2, 1, 1]), torch.Generator().manual_seed(0),
        weights=weights,
    )  # fmt: skip
    small = episode.compact()
    assert len(small.states) == len(
        set(torch.cat([episode.context.cells.index, episode.targets.index]).tolist())
    )

    def told(given: Episode) -> Predictive:
        states = adapter.refine(given.states)
        heads = adapter.adapt(given.context, states)
        return predict_cells(heads, states, given.targets, given.context.kinds, knowledge.likelihood)

    whole = told(episode)
    for other in (told(small), predict_targets(adapter, knowledge.likelihood, episode)):
        torch.testing.assert_close(other.logits, whole.logits)
        torch.testing.assert_close(other.variance, whole.variance)
        torch.testing.assert_close(other.noise, whole.noise)
        assert torch.equal(other.kinds, whole.kinds)
    found = episode_loss(adapter, knowledge.likelihood, episode)
    torch.testing.assert_close(found, episode_loss(adapter, knowledge.likelihood, small))

    # and the loss is the features' mean losses, weighted
    values, kinds = episode.targets.values, world.batch.kinds[episode.targets.lines]
    if adapter.gives_uncertainty:
        losses = knowledge.likelihood.predictive_nll(whole.logits, whole.variance, whole.noise, values, kinds)
    else:
        losses = knowledge.likelihood.nll(whole.logits, values, kinds)
    total = sum(
        float(weights[n] * losses[episode.targets.lines == n].mean().detach()) for n in range(len(weights))
    )
    assert abs(float(found.detach()) - total / float(weights.sum())) < 1e-4


# -- Features treated as new


FEATURES = 20
NOTHING = Description(torch.zeros(FEATURES, 0), [])  # is known of the features


def world(cells: Cells, name: str = "factorisation") -> tuple[FeatureBatch, Backbone, Knowledge]:
    torch.manual_seed(0)
    kinds = torch.full((FEATURES,), KindType.RATING)
    # With fewer factors than the default, the noise within the table is smaller than that of new features.
    config = backbone_config({"name": name, "latent": 6} if name == "factorisation" else name)
    backbone = build_backbone(config, kinds, torch.zeros(0))
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
    others = Cells(cells.indptr, cells.index, values, FEATURES)
    changed = replace(knowledge, cells=others, states=backbone.states(others))
    after = cross_fitted_tasks(batch, backbone, changed, seed=0)
    for fold, (one, other) in enumerate(zip(before.states, after.states, strict=True)):
        assert torch.equal(one.code, other.code) == (fold == mine)


@pytest.mark.parametrize("name", ["factorisation", "pvae"])
def test_folds_computed_together_or_alone_have_the_same_states(name: str, limits: Limits) -> None:
    """Also rows that observed no feature of a fold, whose states are not computed again."""
    cells = random_cells(40, FEATURES, 0.15, seed=1)
    batch, backbone, knowledge = world(cells, name)
    together = cross_fitted_tasks(batch, backbone, knowledge, seed=0)
    limits(rows_of_folds_together=1)
    alone = cross_fitted_tasks(batch, backbone, knowledge, seed=0)
    for fold, (one, other) in enumerate(zip(together.states, alone.states, strict=True)):
        expected = backbone.states(knowledge.cells, hidden=together.fold == fold)
        for part, same, wanted in zip(one.parts(), other.parts(), expected.parts(), strict=True):
            torch.testing.assert_close(part, wanted)
            torch.testing.assert_close(same, wanted)


def test_merged_folds_index_the_same_states(limits: Limits) -> None:
    batch, backbone, knowledge = world(some_cells())
    found = cross_fitted_tasks(batch, backbone, knowledge, seed=0)
    limits(rows_of_folds_together=70)  # two folds of 30 rows
    merged = found.merge_folds()
    assert len(merged.states) == -(-len(found.states) // 2)
    for feature in range(FEATURES):
        (part, states), (other, others) = (
            each.with_states(torch.tensor([feature])) for each in (found, merged)
        )
        assert torch.equal(part.cells.values, other.cells.values)
        assert torch.equal(states.code[part.cells.index], others.code[other.cells.index])
    limits(rows_of_folds_together=59)
    assert found.merge_folds() is found


def sampled(limits: Limits, most: int = 70, each: int = 5) -> tuple[Tasks, Knowledge]:
    """Tasks of sampled features, with few of their observations, and what they were sampled from."""
    batch, backbone, knowledge = world(some_cells())
    own = knowledge.states
    numbers = 2 * own.code.shape[1] + 2 * own.activation.shape[1]
    limits(cross_fit_numbers=most * numbers, cross_fit_observations=each)
    some = sample_features(knowledge, seed=0)
    batch = replace(batch.take(some), positions=some)
    return cross_fitted_tasks(batch, backbone, knowledge, seed=0), knowledge


def test_all_features_teach_where_memory_allows(limits: Limits) -> None:
    batch, backbone, knowledge = world(some_cells())
    assert sample_features(knowledge, seed=0) is None
    assert len(cross_fitted_tasks(batch, backbone, knowledge, seed=0).states) == tasks.MOST_FOLDS
    limits(cross_fit_numbers=1)
    assert len(sample_features(knowledge, seed=0)) == tasks.MOST_FOLDS


def test_sampled_features_have_states_of_the_rows_that_observed_them(limits: Limits) -> None:
    """As many folds as ever; each knows the rows of its features, as if these were hidden from all rows."""
    found, knowledge = sampled(limits)
    _, backbone, _ = world(some_cells())
    assert len(found.states) == tasks.MOST_FOLDS
    assert len(found) == 14
    assert sum(map(len, found.states)) <= 70
    by_feature = knowledge.cells.transpose()
    for feature, position in enumerate(found.batch.positions.tolist()):
        batch, states = found.with_states(torch.tensor([feature]))
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


def test_no_share_holds_nothing_back() -> None:
    batch, backbone, knowledge = world(some_cells())
    every = cross_fitted_tasks(batch, backbone, knowledge, seed=0)
    teaching, validating = every.hold_out(0.0, seed=1)
    assert (len(teaching), len(validating)) == (FEATURES, 0)


# -- Which episodes an epoch of meta-training goes over


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


# -- What meta-training draws at random, against slow, obvious versions


def test_shots_drawn_by_their_logarithm_favour_few() -> None:
    batch = batch_of([40] * 300, seed=0)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.cat([draw_shots(batch, 32, generator, "log") for _ in range(40)])
    assert int(drawn.min()) == 0
    assert int(drawn.max()) == 32
    for most in range(32):  # P(shots ≤ k) = log(k + 2) / log(34)
        share = float((drawn <= most).double().mean())
        assert abs(share - math.log(most + 2) / math.log(34)) < 0.02
    few = draw_shots(batch_of([0, 1, 5], seed=0), 32, generator, "log")
    assert bool((few <= torch.tensor([0, 0, 4])).all())


def test_feature_weights_go_from_popularity_to_evenness() -> None:
    counts = torch.tensor([1, 10, 100, 1000])
    for power in (0.0, 0.5, 1.0):
        for shots in (0, 1, 15, 10_000):
            usual = mean_weights(counts.repeat(2), shots, power)
            found = feature_weights(torch.full((4,), shots), counts, usual, power)
            exponent = power + (1 - power) / math.sqrt(1 + shots)
            mean = sum(n**exponent for n in counts.tolist()) / 4
            for weight, n in zip(found.tolist(), counts.tolist(), strict=True):
                drawn = n**power  # how often, in proportion
                assert abs(drawn * weight - n**exponent / mean) < 1e-4 * max(1, drawn * weight)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_features_are_drawn_in_proportion_to_a_power_of_their_counts(power: float) -> None:
    counts = torch.tensor([400, 1, 9, 100, 0 if power else 1, 25])
    generator = torch.Generator().manual_seed(0)
    shares = counts.double() ** power / (counts.double() ** power).sum()
    drawn = [draw_features(counts, 10, power, generator) for _ in range(2000)]
    found = torch.stack([torch.bincount(each, minlength=6) for each in drawn])
    assert bool((found.sum(1) == 10).all())
    torch.testing.assert_close(found.double().mean(0) / 10, shares, atol=0.01, rtol=0)
    # in each draw every feature occurs about as often as it should
    assert bool(((found - 10 * shares).abs() < 2).all())
    first = torch.bincount(torch.stack(drawn)[:, 0], minlength=6) / 2000
    torch.testing.assert_close(first.double(), shares, atol=0.05, rtol=0)


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    most=st.integers(1, 12),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_a_part_of_each_line_is_drawn(counts: list[int], most: int, seed: int) -> None:
    cells, generator = batch_of(counts, seed).cells, torch.Generator().manual_seed(seed)
    mixed = shuffle_observations(cells, generator)
    whole = lines_of(cells)
    assert [sorted(line) for line in lines_of(mixed)] == [sorted(line) for line in whole]
    lines = torch.tensor([len(counts) - 1, 0, 0])
    part = lines_of(sample_shuffled(mixed, lines, most, generator))
    for line, own in zip(lines.tolist(), part, strict=True):
        assert len(own) == len(set(own)) == min(most, counts[line])
        assert set(own) <= set(whole[line])


def test_every_part_is_as_likely() -> None:
    cells, generator = batch_of([5], 0).cells, torch.Generator().manual_seed(0)
    pairs = Counter(
        frozenset(
            lines_of(
                sample_shuffled(shuffle_observations(cells, generator), torch.tensor([0]), 2, generator)
            )[0]
        )
        for _ in range(2000)
    )
    assert len(pairs) == 10
    assert all(150 < times < 250 for times in pairs.values())
