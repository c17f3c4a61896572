"""What the heads of known features say about a new head: where priors start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headstart.algebra.blocks import column_sums, gram, line_blocks
from headstart.algebra.groups import make_groups
from headstart.algebra.honest import HonestRegression, loo_covariance, reliability
from headstart.algebra.sparse import products_at
from headstart.algebra.symmetric import positive, squares, triangle, unpack, with_one
from headstart.core.description import Description
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.crew import crew
from headstart.table.kinds import KindType

_USUAL_MISLEADING, _FEATURES_TO_BELIEVE = 0.25, 10.0
_NOISE_OBSERVATIONS = 2**23  # that noise is measured on, at most
_BINARY_NOISE = 0.1  # of the output: a row that now and then answers at random


@dataclass(frozen=True)
class EmpiricalPrior:
    """A regression of known heads on metadata, in which no head is predicted from itself."""

    matrix: Tensor  # (columns, size)
    constant: Tensor  # (size,)
    loo_means: Tensor  # (features, size): what the other features say of each known one
    covariance: Tensor  # (size, size): of heads around these
    regression: HonestRegression
    taught: Tensor | None = None  # the positions of the features that were regressed; None: all


def empirical_prior(
    knowledge: Knowledge, heads: Heads, description: Description, importance: Tensor | None = None
) -> EmpiricalPrior:
    """Regress heads (w, b) of the backbone's features on what describes these features.

    A feature counts by what its observations say of its head, and by its ``importance`` (features,). Where
    only some features were taught, these alone are regressed, and all are predicted.
    """
    taught = knowledge.taught
    if taught is not None and len(heads) > len(taught):
        numbers, some = description.numbers, Description(description.numbers[taught], description.groups)
        found = empirical_prior(
            knowledge, heads.take(taught), some, None if importance is None else importance[taught]
        )
        means = numbers @ found.matrix + found.constant
        means[taught] = found.loo_means
        return replace(found, loo_means=means, taught=taught)
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
    taught: Tensor | slice = slice(None) if without.taught is None else without.taught
    stacked = stacked_heads(heads)[taught].double()

    def log_likelihood(prior: EmpiricalPrior) -> Tensor:
        lower = torch.linalg.cholesky(positive(prior.covariance.double()))
        residual = (stacked - prior.loo_means[taught].double()).T
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
    states, width = knowledge.states, knowledge.states.activation.shape[1]
    metric = torch.zeros(width + 1, width + 1, dtype=torch.float64)
    metric[:-1, :-1] = gram(states.activation, states.activation)
    metric[:-1, -1] = metric[-1, :-1] = column_sums(states.activation)
    metric[-1, -1] = len(states)
    _, whole = crew().span(len(states))
    metric = crew().total(metric) / max(1, whole)
    if states.variance is not None:
        metric[:-1, :-1] += torch.diag(crew().total(column_sums(states.variance)) / max(1, whole))
    return metric


def empirical_noise(knowledge: Knowledge) -> Tensor:
    """How far observations lie from the backbone's own predictions: a variance by kind, (kinds,).

    What is uncertain of rows and heads is part of it: a fit lies closer to what it was fitted to.
    """
    kinds, new = knowledge.kinds, knowledge.new_heads
    counts = squared = torch.zeros(len(kinds), dtype=torch.float64)
    if new is not None and new.noise is not None:
        taught: Tensor | slice = slice(None) if knowledge.taught is None else knowledge.taught
        kinds, counts = kinds[taught], knowledge.table_shots[taught].double()
        squared = counts * (new.noise if len(new) == len(kinds) else new.noise[taught]).double()
    else:
        for errors, features in _squared_errors(knowledge):
            squared = squared + torch.bincount(features, errors.double(), minlength=len(kinds))
            counts = counts + torch.bincount(features, minlength=len(kinds))
        squared, counts = crew().total(squared), crew().total(counts.double())
    noise = torch.tensor([_BINARY_NOISE, knowledge.likelihood.config.output_variance, 1.0])
    for kind in set(KindType) - {KindType.BINARY}:
        own = kinds == kind
        if float(counts[own].sum()) > 0:
            noise[kind] = (squared[own].sum() / counts[own].sum()).clamp(min=1e-6)
    return noise


def _squared_errors(knowledge: Knowledge) -> Iterator[tuple[Tensor, Tensor]]:
    """The squared errors of observations and the features of these, in blocks of rows."""
    likelihood, cells, states = knowledge.likelihood, knowledge.cells, knowledge.states
    start, _ = crew().span(len(cells))
    _, observations = crew().span(len(cells.index))
    if observations > _NOISE_OBSERVATIONS:  # so many say it well enough
        step = -(-observations // _NOISE_OBSERVATIONS)
        rows = torch.arange(-start % step, len(cells), step)
        cells, states = cells.take(rows), states.take(rows)
    heads = knowledge.heads.detach()
    down, across = triangle(heads.weight.shape[1] + 1, heads.weight.device)
    twice = torch.where(down == across, 1.0, 2.0)
    covariance, mean_squares = heads.packed_covariance, heads.mean_squares()
    for place, block in line_blocks(cells, 8 * (len(heads) + len(down)), per_cell=12 * len(down)):
        own, kinds = states.take(place), knowledge.kinds[block.index]
        logits = products_at(own.activation, heads.weight, block) + heads.bias[block.index]
        squared = (likelihood.mean(logits, kinds) - block.values) ** 2
        rows_squared = squares(with_one(own.activation)) * twice
        squared = squared + products_at(rows_squared, covariance, block)
        if own.variance is not None:
            squared = squared + products_at(own.variance, mean_squares, block)
        if own.noise is not None:
            squared = squared / own.noise[block.lines]
        yield squared, block.index


def mean_squared_weights(knowledge: Knowledge, heads: Heads, features: Tensor | None = None) -> Tensor:
    """E[w²] of the usual head: by what an uncertain activation enters the variance of an output, (width,).

    ``heads`` are those of the backbone's ``features`` at these positions; None: of all.
    """
    counts = knowledge.table_shots if features is None else knowledge.table_shots[features]
    counts = counts.to(heads.weight.dtype) + 1e-3
    return (counts / counts.sum()) @ heads.mean_squares()


def stacked_heads(heads: Heads) -> Tensor:
    """(w, b) of each head: (features, size)."""
    return torch.cat([heads.weight, heads.bias[:, None]], dim=1)
