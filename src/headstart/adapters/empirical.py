"""What the backbone's own heads say about a new head: where priors start."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.algebra.regression import popularity_weights, weighted_ridge
from headstart.algebra.sparse import products_at
from headstart.core.knowledge import Knowledge
from headstart.table.kinds import KindType

_BINARY_NOISE = 0.1  # of the output: a row that now and then answers at random


def empirical_prior(knowledge: Knowledge, described: Tensor) -> tuple[Tensor, Tensor]:
    """Regress the backbone's heads (w, b) on what describes their features.

    Returns the coefficients (descriptions, size) and the covariance (size, size) of what they leave
    unexplained. Features weigh by how much they were observed.
    """
    heads = knowledge.heads.detach()
    stacked = torch.cat([heads.weight, heads.bias[:, None]], dim=1)
    counts = torch.bincount(knowledge.cells.index, minlength=len(stacked)).to(stacked.dtype)
    share = popularity_weights(counts)
    base = weighted_ridge(described, stacked, share)
    rest = stacked - described @ base
    covariance = (share * rest).T @ rest / len(rest)
    # Few heads span few directions: between them only the variances are believed.
    size = len(covariance)
    believed = len(rest) / (len(rest) + size)
    covariance = believed * covariance + (1 - believed) * torch.diag(covariance.diagonal())
    covariance = covariance + heads.mean_covariance(share, size)
    floor = 1e-3 * covariance.diagonal().mean() + 1e-6
    return base, covariance + floor * torch.eye(size)


def empirical_noise(knowledge: Knowledge) -> Tensor:
    """How far observations lie from the backbone's own predictions: a variance by kind, (kinds,)."""
    likelihood, cells = knowledge.likelihood, knowledge.cells
    kinds = knowledge.kinds[cells.index]
    heads = knowledge.heads.detach()
    logits = products_at(knowledge.states.activation, heads.weight, cells) + heads.bias[cells.index]
    squared = (likelihood.mean(logits, kinds) - cells.values) ** 2
    noise = torch.tensor([_BINARY_NOISE, likelihood.config.output_variance, 1.0])
    for kind in set(range(len(KindType))) - {KindType.BINARY}:
        if bool((kinds == kind).any()):
            noise[kind] = squared[kinds == kind].mean().clamp(min=1e-4)
    return noise


def empirical_doubt(knowledge: Knowledge) -> Tensor:
    """How much the variance of each part of a row's code adds to that of an output: (code,).

    Where heads read the code itself it is the mean square of their weights; elsewhere nothing is known.
    """
    states, heads = knowledge.states, knowledge.heads.detach()
    width = heads.weight.shape[1]
    doubt = states.code.new_zeros(states.code.shape[1])
    if knowledge.heads_read_code:
        counts = torch.bincount(knowledge.cells.index, minlength=len(heads)).to(doubt.dtype) + 1e-3
        doubt[:width] = (counts / counts.sum()) @ heads.weight**2
    return doubt
