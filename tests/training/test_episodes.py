"""Episodes and the meta-loss against slow, obvious versions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.conftest import Tiny, some_cells
from tests.algebra.test_sparse import lines_of
from torch.distributions import Bernoulli, Normal

from headstart.adapters import adapter_config, build_adapter
from headstart.adapters.chn import CHNConfig
from headstart.core.predictive import Predictive, predict_cells
from headstart.core.types import FeatureBatch, RowStates
from headstart.table.kinds import KindType
from headstart.training.episodes import Episode, draw_episode, draw_shots, episode_loss, predict_targets


def batch_of(counts: list[int], seed: int) -> FeatureBatch:
    kinds = torch.full((len(counts),), KindType.RATING)
    cells = some_cells(kinds, torch.tensor(counts), 40, torch.Generator().manual_seed(seed))
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
