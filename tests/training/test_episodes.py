"""Episodes and the meta-loss against slow, obvious versions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.conftest import Tiny, some_cells
from tests.backbones.test_sparse import lines_of
from torch.distributions import Bernoulli, Normal

from headstart.adapters import CHNConfig, ContextualHypernetwork, FeatureBatch
from headstart.table.kinds import BINARY, RATING
from headstart.training.episodes import draw_episode, draw_shots, episode_loss


def batch_of(counts: list[int], seed: int) -> FeatureBatch:
    codes = torch.full((len(counts),), RATING)
    cells = some_cells(codes, torch.tensor(counts), 40, torch.Generator().manual_seed(seed))
    return FeatureBatch(cells, torch.zeros(len(counts), 0), codes)


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=8), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_an_episode_parts_every_observation_once(counts: list[int], seed: int) -> None:
    batch = batch_of(counts, seed)
    generator = torch.Generator().manual_seed(seed)
    shots = draw_shots(batch, 32, generator)
    episode = draw_episode(batch, shots, generator)
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
    episode = draw_episode(batch, torch.full((300,), 10), generator)
    chosen = torch.bincount(episode.context.cells.index, minlength=40).double()
    assert float(((chosen - 75) ** 2 / 75).sum()) < 90


def test_meta_loss_equals_the_slow_one(tiny: Callable[..., Tiny]) -> None:
    world = tiny(shots=(8, 5, 7, 6, 9, 4))
    knowledge = world.knowledge
    adapter = ContextualHypernetwork(CHNConfig(), knowledge)
    generator = torch.Generator().manual_seed(0)
    episode = draw_episode(world.batch, torch.tensor([3, 0, 4, 2, 5, 1]), generator)
    total, count = 0.0, 0
    for n, line in enumerate(lines_of(episode.targets)):
        one = episode.context.take(torch.tensor([n]))
        head = adapter.adapt(one, knowledge.states)
        code = int(one.codes[0])
        for row, x in line:
            output = head.weight[0] @ knowledge.states.activation[row] + head.bias[0]
            if code == BINARY:
                likelihood = Bernoulli(logits=output)
            elif code == RATING:
                likelihood = Normal(output.sigmoid(), math.sqrt(0.1))
            else:
                likelihood = Normal(output, math.exp(0.5 * float(knowledge.likelihood.real_log_variance)))
            total -= float(likelihood.log_prob(torch.tensor(x)).detach())
            count += 1
    assert abs(episode_loss(adapter, knowledge, episode).item() - total / count) < 1e-5
