"""Episodes: features treated as new, part of their observations revealed, the rest to be predicted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headstart.adapters.protocol import Adapter
from headstart.core.batch import FeatureBatch
from headstart.core.dropout import of_a_batch
from headstart.core.likelihood import Likelihood
from headstart.core.predictive import Predictive, predict_cells
from headstart.core.states import RowStates
from headstart.crew import crew
from headstart.table.cells import Cells
from headstart.training.sampling import random_ranks


@dataclass(frozen=True)
class Episode:
    """A batch of features with their contexts, the targets kept back (one line per feature), and the rows."""

    context: FeatureBatch
    targets: Cells
    states: RowStates  # of rows that know nothing of these features
    weights: Tensor | None = None  # (features,): how much each counts; None: as much as it has targets

    def compact(self) -> Episode:
        """The same episode, knowing only the rows that occur in it."""
        every = torch.cat([self.context.cells.index, self.targets.index])
        rows, places = torch.unique(every, return_inverse=True)
        near, far = places.split([len(self.context.cells.index), len(self.targets.index)])

        def renamed(cells: Cells, index: Tensor) -> Cells:
            return replace(cells, index=index, width=len(rows))

        context = self.context.observing(renamed(self.context.cells, near))
        return Episode(context, renamed(self.targets, far), self.states.take(rows), self.weights)


def draw_episode(
    batch: FeatureBatch,
    states: RowStates,
    shots: Tensor,
    generator: torch.Generator,
    max_targets: int | None = None,
    weights: Tensor | None = None,
) -> Episode:
    """Reveal ``shots`` (features,) of each feature's observations, chosen at random.

    One argsort of (feature, random key); a feature with fewer observations reveals all of them. Of
    the rest at most ``max_targets`` are targets.
    """
    cells = batch.cells
    rank, first = random_ranks(cells, generator), shots[cells.lines]
    revealed = rank < first
    asked = ~revealed if max_targets is None else ~revealed & (rank < first + max_targets)
    return Episode(batch.observing(cells.keep(revealed)), cells.keep(asked), states, weights)


def predict_targets(adapter: Adapter, likelihood: Likelihood, episode: Episode) -> Predictive:
    """What the adapter's heads say of the targets: (n,)."""
    if adapter.refines:
        episode = episode.compact()  # only rows that occur are worth refining
    states = adapter.refine(episode.states)
    heads = adapter.adapt(episode.context, states)
    return predict_cells(heads, states, episode.targets, episode.context.kinds, likelihood)


def shared_loss(adapter: Adapter, likelihood: Likelihood, episode: Episode, seed: int) -> Tensor:
    """This process's share of ``episode_loss``: the losses of all processes add up to it.

    Every process has the whole episode and makes the heads of some of its features. ``seed`` is that of
    dropout, which is the same for any number of processes.
    """
    features = torch.arange(len(episode.context)).tensor_split(crew().size)[crew().rank]
    if len(features) == 0:
        return torch.zeros((), requires_grad=True)
    targets = episode.targets.take(features)
    if episode.weights is None:
        share = torch.full((len(features),), 1 / len(episode.targets.index))
    else:
        share = episode.weights[features] / episode.weights.sum() / targets.counts.clamp(min=1)
    part = Episode(episode.context.take(features), targets, episode.states)
    with of_a_batch(int(features[0]), len(episode.context), seed):
        losses = predict_targets(adapter, likelihood, part).nll(targets.values)
    return (losses * share[targets.lines]).sum()


def episode_loss(adapter: Adapter, likelihood: Likelihood, episode: Episode) -> Tensor:
    """Negative log-likelihood of the targets; the paper's meta-loss where features carry no weights."""
    targets = episode.targets
    losses = predict_targets(adapter, likelihood, episode).nll(targets.values)
    if episode.weights is None:
        return losses.mean()
    share = (episode.weights / episode.weights.sum() / targets.counts.clamp(min=1))[targets.lines]
    return (losses * share).sum()
