"""Episodes: features treated as new, part of their observations revealed, the rest to be predicted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.adapters.protocol import Adapter, FeatureBatch, Knowledge
from headstart.backbones.heads import Heads
from headstart.backbones.sparse import products_at
from headstart.table.cells import Cells


@dataclass(frozen=True)
class Episode:
    """A batch of features with their contexts, and the targets kept back: a line a feature."""

    context: FeatureBatch
    targets: Cells


def draw_episode(batch: FeatureBatch, shots: Tensor, generator: torch.Generator) -> Episode:
    """Reveal ``shots`` (features,) of each feature's observations, chosen at random.

    One argsort of (feature, random key); a feature with fewer observations reveals all of them.
    """
    cells = batch.cells
    revealed = random_ranks(cells, generator) < shots[cells.lines]
    return Episode(batch.observing(cells.keep(revealed)), cells.keep(~revealed))


def random_ranks(cells: Cells, generator: torch.Generator) -> Tensor:
    """The place of each observation in a random order of its line: (n,). No value is looked at."""
    lines = cells.lines
    keys = torch.rand(len(lines), generator=generator, dtype=torch.float64)
    order = torch.argsort(lines + keys)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - cells.indptr[lines]
    return rank


def draw_shots(batch: FeatureBatch, most: int, generator: torch.Generator) -> Tensor:
    """Shots ~ Uniform{0..most} for each feature, leaving it at least one target: (features,)."""
    shots = torch.randint(most + 1, (len(batch),), generator=generator)
    return torch.minimum(shots, (batch.shots - 1).clamp(min=0))


def target_logits(heads: Heads, activation: Tensor, targets: Cells) -> Tensor:
    """What each feature's head says of its target rows, before the link: (n,)."""
    return products_at(heads.weight, activation, targets) + heads.bias[targets.lines]


def episode_loss(adapter: Adapter, knowledge: Knowledge, episode: Episode) -> Tensor:
    """The paper's meta-loss: negative log-likelihood averaged over the targets of the whole batch."""
    heads = adapter.adapt(episode.context, knowledge.states)
    targets = episode.targets
    logits = target_logits(heads, knowledge.states.activation, targets)
    codes = episode.context.codes[targets.lines]
    return knowledge.likelihood.nll(logits, targets.values, codes).mean()
