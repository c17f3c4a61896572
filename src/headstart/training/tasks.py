"""Features to meta-train on, each with rows that know nothing of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headstart.algebra.shared import chosen_here
from headstart.backbones.protocol import Backbone
from headstart.core.batch import FeatureBatch
from headstart.core.knowledge import Knowledge
from headstart.core.states import RowStates
from headstart.crew import crew
from headstart.training.gathering import gathered_cells, gathered_sample, gathered_states
from headstart.training.sampling import random_part, random_ranks, shuffled

MOST_STATES = 2**28  # numbers kept of all folds: 1 GiB
MOST_FOLDS = 12
# Of a feature, where not all can be kept: enough for its head, and for episodes to draw from.
_LEAST_OBSERVATIONS = 512


@dataclass(frozen=True)
class Tasks:
    """Features treated as new. Each belongs to a fold, whose row states were computed without it."""

    batch: FeatureBatch  # its cells point at the states of each feature's own fold
    fold: Tensor  # (features,): which of ``states`` goes with each
    states: tuple[RowStates, ...]

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, features: Tensor) -> Tasks:
        """Return these features, in this order."""
        return Tasks(self.batch.take(features), self.fold[features], self.states)

    def hold_back(self, share: float, seed: int) -> tuple[Tasks, Tasks]:
        """Part the features into those that teach and those that validate, at least one of each."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        kept = min(max(1, round(share * len(self))), len(self) - 1)
        return self.take(order[kept:]), self.take(order[:kept])

    def split(self) -> list[tuple[FeatureBatch, RowStates]]:
        """The features of each fold that has any, with its states."""
        members = [torch.nonzero(self.fold == fold)[:, 0] for fold in range(len(self.states))]
        return [self.together(features) for features in members if len(features)]

    def together(self, features: Tensor) -> tuple[FeatureBatch, RowStates]:
        """These features, which must be of one fold, with its states."""
        return self._with_states(self.batch.take(features), features)

    def shuffled(self, seed: int) -> Tasks:
        """The same features, the observations of each in a random order: see ``sampled``."""
        cells = shuffled(self.batch.cells, torch.Generator().manual_seed(seed))
        return replace(self, batch=self.batch.observing(cells))

    def sampled(
        self, features: Tensor, most: int, generator: torch.Generator
    ) -> tuple[FeatureBatch, RowStates]:
        """As ``together``, with at most so many observations of each, drawn from ``shuffled`` tasks."""
        cells = random_part(self.batch.cells, features, most, generator)
        return self._with_states(self.batch.take(features, cells), features)

    def _with_states(self, batch: FeatureBatch, features: Tensor) -> tuple[FeatureBatch, RowStates]:
        states = self.states[int(self.fold[features[0]])]
        return batch.observing(replace(batch.cells, width=len(states))), states


def disjoint_tasks(batch: FeatureBatch, knowledge: Knowledge) -> Tasks:
    """Features the backbone was not trained on, as the paper has it: one fold, its states as they are.

    Of several processes each gets the states of the rows that observed these features.
    """
    if not crew().alone:
        cells = gathered_cells(batch.cells, len(knowledge.states))
        rows, index = torch.unique(cells.index, return_inverse=True)
        own = chosen_here(rows, len(knowledge.states))[1]
        states = gathered_states(knowledge.states.take(own))
        batch = batch.observing(replace(cells, index=index, width=len(rows)))
        return Tasks(batch, torch.zeros(len(batch), dtype=torch.int64), (states,))
    return Tasks(batch, torch.zeros(len(batch), dtype=torch.int64), (knowledge.states,))


def sampled_features(knowledge: Knowledge, *, seed: int) -> Tensor | None:
    """Which of the backbone's features to meta-train on, ascending; None: all of them.

    All of them if the states of all rows can be kept for every fold. Otherwise as many, drawn at random, as
    there is memory for the states of the rows that observed them: the rest could teach little more.
    """
    if MOST_FOLDS * crew().span(len(knowledge.states))[1] <= _most_states(knowledge):
        return None
    counts = knowledge.table_shots.clamp(max=_most_observations(knowledge))
    order = torch.randperm(len(counts), generator=torch.Generator().manual_seed(seed))
    fitting = int((counts[order].double().cumsum(0) <= _most_states(knowledge)).sum())
    return order[: max(MOST_FOLDS, fitting)].sort().values


def _most_states(knowledge: Knowledge) -> int:
    """The states of how many rows are kept of all folds together."""
    own = knowledge.states
    return MOST_STATES // max(1, 2 * own.code.shape[1] + 2 * own.activation.shape[1])


def _most_observations(knowledge: Knowledge) -> int:
    """How many observations of a feature are kept where features are sampled."""
    return max(_LEAST_OBSERVATIONS, _most_states(knowledge) // max(1, len(knowledge.kinds)))


def cross_fitted_tasks(batch: FeatureBatch, backbone: Backbone, knowledge: Knowledge, *, seed: int) -> Tasks:
    """The backbone's own features, in folds; each fold's rows are encoded with its features masked.

    So backbone and adapter both learn from all features instead of sharing them out. ``batch`` are all
    features of the backbone or, with their positions, those that were sampled.
    """
    generator = torch.Generator().manual_seed(seed)
    count = min(MOST_FOLDS, len(batch))
    order = torch.randperm(len(batch), generator=generator)
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(batch)) % count
    if batch.positions is None:
        cells = gathered_cells(batch.cells, len(knowledge.states))
        states = tuple(
            gathered_states(backbone.states(knowledge.cells, fold == each)) for each in range(count)
        )
        return Tasks(replace(batch, cells=cells, positions=torch.arange(len(batch))), fold, states)
    most = _most_observations(knowledge)
    if crew().alone:
        cells = batch.cells.keep(random_ranks(batch.cells, generator) < most)
    else:
        cells = gathered_sample(batch.cells, len(knowledge.states), most, generator)
    index, found, of_cell = cells.index.clone(), [], fold[cells.lines]
    for each in range(count):
        own = of_cell == each
        rows, places = torch.unique(cells.index[own], return_inverse=True)
        hidden = torch.zeros(len(knowledge.kinds), dtype=torch.bool)
        hidden[batch.positions[fold == each]] = True
        here = rows if crew().alone else chosen_here(rows, len(knowledge.states))[1]
        found.append(gathered_states(backbone.states(knowledge.cells.take(here), hidden)))
        index[own] = places.to(index.dtype)
    return Tasks(batch.observing(replace(cells, index=index)), fold, tuple(found))
