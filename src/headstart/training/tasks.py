"""Features to meta-train on, each with rows that know nothing of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headstart.backbones.protocol import Backbone
from headstart.core.batch import FeatureBatch
from headstart.core.knowledge import Knowledge
from headstart.core.states import RowStates

MOST_STATES = 2**28  # numbers kept of all folds: 1 GiB
FEWEST_FOLDS, MOST_FOLDS = 2, 12


@dataclass(frozen=True)
class Tasks:
    """Features treated as new. Each belongs to a fold, whose row states were computed without it."""

    batch: FeatureBatch
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
        return [
            (self.batch.take(torch.nonzero(self.fold == fold)[:, 0]), states)
            for fold, states in enumerate(self.states)
            if bool((self.fold == fold).any())
        ]


def disjoint_tasks(batch: FeatureBatch, knowledge: Knowledge) -> Tasks:
    """Features the backbone was not trained on, as the paper has it: one fold, its states as they are."""
    return Tasks(batch, torch.zeros(len(batch), dtype=torch.int64), (knowledge.states,))


def cross_fitted_tasks(batch: FeatureBatch, backbone: Backbone, knowledge: Knowledge, *, seed: int) -> Tasks:
    """The backbone's own features, in folds; each fold's rows are encoded with its features masked.

    So backbone and adapter both learn from all features instead of sharing them out.
    """
    own = knowledge.states
    numbers = len(own) * (2 * own.code.shape[1] + 2 * own.activation.shape[1])
    most = max(FEWEST_FOLDS, min(MOST_FOLDS, MOST_STATES // max(1, numbers), len(batch)))
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(batch)) % most
    states = tuple(backbone.states(knowledge.cells, fold == each) for each in range(most))
    return Tasks(replace(batch, positions=torch.arange(len(batch))), fold, states)
