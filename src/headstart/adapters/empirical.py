"""What the heads of known features say about a new head: where priors start."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.algebra.groups import make_groups
from headstart.algebra.honest import HonestRegression, loo_covariance, reliability
from headstart.algebra.sparse import products_at
from headstart.algebra.symmetric import positive, squares, triangle, unpack, with_one
from headstart.core.description import Description
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.table.kinds import KindType

_USUAL_MISLEADING, _FEATURES_TO_BELIEVE = 0.25, 10.0
_BINARY_NOISE = 0.1  # of the output: a row that now and then answers at random


@dataclass(frozen=True)
class EmpiricalPrior:
    """A regression of known heads on metadata, in which no head is predicted from itself."""

    matrix: Tensor  # (columns, size)
    constant: Tensor  # (size,)
    loo_means: Tensor  # (features, size): what the other features say of each known one
    covariance: Tensor  # (size, size): of heads around these
    regression: HonestRegression


def empirical_prior(
    knowledge: Knowledge, heads: Heads, description: Description, importance: Tensor | None = None
) -> EmpiricalPrior:
    """Regress heads (w, b) of the backbone's features on what describes these features.

    A feature counts by what its observations say of its head, and by its ``importance`` (features,).
    """
    stacked = stacked_heads(heads)
    size = stacked.shape[1]
    metric = activation_metric(knowledge)
    own, deviation = heads.packed_covariance, stacked - stacked.mean(0)
    prior = deviation.T @ deviation / max(1, len(deviation)) + unpack(own.mean(0), size)
    weights = reliability(own, prior, metric)
    if importance is not None:
        weights = weights * (importance / importance.mean()).double()
    spread = unpack((weights / weights.sum()).to(stacked.dtype) @ own, size)
    regression = HonestRegression(make_groups(description.numbers, description.groups))
    regression.choose(description.numbers, stacked, weights, torch.linalg.cholesky(positive(metric)))
    loo_means = regression.fit(description.numbers, stacked, weights)
    matrix, constant = regression.map(description.numbers.shape[1])
    covariance = loo_covariance(stacked - loo_means, spread, weights)
    dtype = stacked.dtype
    return EmpiricalPrior(matrix.to(dtype), constant.to(dtype), loo_means, covariance.to(dtype), regression)


def misleading_share(heads: Heads, with_metadata: EmpiricalPrior, without: EmpiricalPrior) -> Tensor:
    """The share of features that metadata misleads about: whose heads are likelier without it.

    Expectation maximisation over a mixture of the two priors, each head predicted from the others; a
    quarter is assumed where features are few.
    """
    stacked = stacked_heads(heads).double()

    def log_likelihood(prior: EmpiricalPrior) -> Tensor:
        lower = torch.linalg.cholesky(positive(prior.covariance.double()))
        residual = (stacked - prior.loo_means.double()).T
        white: Tensor = torch.linalg.solve_triangular(lower, residual, upper=False)
        determinant: Tensor = lower.diagonal().log().sum()
        return -0.5 * (white**2).sum(0) - determinant

    better = log_likelihood(without) - log_likelihood(with_metadata)
    share: Tensor = torch.tensor(_USUAL_MISLEADING, dtype=torch.float64)
    for _ in range(50):
        belongs = torch.sigmoid(better + torch.logit(share))
        assumed = _FEATURES_TO_BELIEVE * _USUAL_MISLEADING
        share = (belongs.sum() + assumed) / (len(better) + _FEATURES_TO_BELIEVE)
    return share


def activation_metric(knowledge: Knowledge) -> Tensor:
    """What a difference of heads does to predictions, squared: E[(d, 1)(d, 1)ᵀ] over rows, (size, size)."""
    states = knowledge.states
    rows = with_one(states.activation).double()
    metric = rows.T @ rows / max(1, len(rows))
    if states.variance is not None:
        metric[:-1, :-1] += torch.diag(states.variance.double().mean(0))
    return metric


def empirical_noise(knowledge: Knowledge) -> Tensor:
    """How far observations lie from the backbone's own predictions: a variance by kind, (kinds,).

    What is uncertain of rows and heads is part of it: a fit lies closer to what it was fitted to.
    """
    likelihood, cells, states = knowledge.likelihood, knowledge.cells, knowledge.states
    kinds = knowledge.kinds[cells.index]
    heads = knowledge.heads.detach()
    logits = products_at(states.activation, heads.weight, cells) + heads.bias[cells.index]
    squared = (likelihood.mean(logits, kinds) - cells.values) ** 2
    down, across = triangle(heads.weight.shape[1] + 1)
    twice = torch.where(down == across, 1.0, 2.0)
    rows = squares(with_one(states.activation)) * twice
    squared = squared + products_at(rows, heads.packed_covariance, cells)
    if states.variance is not None:
        squared = squared + products_at(states.variance, heads.mean_squares(), cells)
    if states.noise is not None:
        squared = squared / states.noise[cells.lines]
    new = knowledge.new_heads
    if new is not None and new.noise is not None:
        squared = new.noise[cells.index]
    noise = torch.tensor([_BINARY_NOISE, likelihood.config.output_variance, 1.0])
    for kind in set(KindType) - {KindType.BINARY}:
        if bool((kinds == kind).any()):
            noise[kind] = squared[kinds == kind].mean().clamp(min=1e-6)
    return noise


def mean_squared_weights(knowledge: Knowledge, heads: Heads) -> Tensor:
    """E[w²] of the usual head: by what an uncertain activation enters the variance of an output, (width,)."""
    counts = torch.bincount(knowledge.cells.index, minlength=len(heads)).to(heads.weight.dtype) + 1e-3
    return (counts / counts.sum()) @ heads.mean_squares()


def stacked_heads(heads: Heads) -> Tensor:
    """(w, b) of each head: (features, size)."""
    return torch.cat([heads.weight, heads.bias[:, None]], dim=1)
