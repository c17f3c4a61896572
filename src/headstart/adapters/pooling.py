"""Means that several adapters share: of values by kind, of contexts, and of the backbone's heads."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.table.kinds import KindType

# What to expect of a kind that the backbone has no feature of: the middle of its scale.
_MIDDLE = (0.5, 0.5, 0.0)


def kind_means(knowledge: Knowledge) -> Tensor:
    """The mean of all observed values of each kind, on the models' scale: (kinds,), in double precision."""
    kinds = knowledge.kinds[knowledge.cells.index]
    counts = torch.bincount(kinds, minlength=len(KindType))
    totals = torch.bincount(kinds, weights=knowledge.cells.values.double(), minlength=len(KindType))
    middle = torch.tensor(_MIDDLE, dtype=torch.float64)
    return torch.where(counts > 0, totals / counts.clamp(min=1), middle)


def context_means(batch: FeatureBatch, means: Tensor) -> Tensor:
    """The mean of each feature's context, or that of its kind (``means``) at zero shots: (features,)."""
    shots = batch.shots
    totals = torch.bincount(batch.cells.lines, weights=batch.cells.values.double(), minlength=len(batch))
    return torch.where(shots > 0, totals / shots.clamp(min=1), means[batch.kinds])


def constant_heads(means: Tensor, kinds: Tensor, knowledge: Knowledge) -> Heads:
    """Heads that predict ``means`` (features,) of kinds ``kinds`` for every row: w = 0."""
    bias = knowledge.likelihood.logit(means.to(knowledge.heads.bias.dtype), kinds)
    return Heads(bias.new_zeros(len(bias), knowledge.heads.weight.shape[1]), bias)


def pooled_heads(chosen: Tensor, otherwise: Heads, knowledge: Knowledge) -> Heads:
    """The mean of the backbone's heads that each line of ``chosen`` (lines, features) marks.

    A line that marks none gets its head from ``otherwise``.
    """
    heads, count = knowledge.heads.detach(), chosen.sum(1)
    share = chosen.to(heads.weight.dtype) / count.clamp(min=1)[:, None]
    weight = torch.where(count[:, None] > 0, share @ heads.weight, otherwise.weight)
    return Heads(weight, torch.where(count > 0, share @ heads.bias, otherwise.bias))


def parts(work: Tensor, budget: int = 1 << 22, apart: Tensor | None = None) -> tuple[Tensor, ...]:
    """Split features into consecutive parts whose ``work`` (features,) adds up to about ``budget``.

    What is computed over a part stays in bounded memory, whatever the size of the batch. No part
    spans two values of ``apart`` (features,). There is always at least one part, if an empty one.

    >>> parts(torch.tensor([3, 3, 3, 9]), budget=7)
    (tensor([0, 1, 2]), tensor([3]))
    """
    # A feature goes where its work begins, so that a part exceeds the budget by at most one feature.
    cut = ((work.cumsum(0) - work) // budget).diff() != 0
    if apart is not None:
        cut = cut | (apart.diff() != 0)
    return torch.tensor_split(torch.arange(len(work)), (torch.nonzero(cut).squeeze(1) + 1).tolist())
