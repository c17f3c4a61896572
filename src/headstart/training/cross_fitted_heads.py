"""Heads of known features as if they were new: from rows that know nothing of them.

A backbone's own heads come from rows whose factors were fitted to the very observations that the heads
explain: noise measured there is too small for a new feature, and heads reach too far. So the features of
each fold get heads anew on states computed with them hidden, and priors are learned from these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from headstart.adapters.head_prior import (
    EmpiricalPrior,
    empirical_noise,
    empirical_prior,
    mean_squared_weights,
)
from headstart.core.types import Description, Heads, Knowledge, RowStates
from headstart.distributed import process_group
from headstart.linalg.packed import append_one, inverse, pack, solve
from headstart.linalg.ragged import blocks, pad
from headstart.linalg.row_sharded import gather_cells
from headstart.parallel import parallel_map
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.table.outliers import winsorise
from headstart.training.episodes import Tasks

_ROUNDS = 4

_BLOCK = 1 << 18  # numbers whose heads are made at a time

_NOISE_SHOTS = 5.0  # a feature's own noise is believed as if so many observations had shown the usual one


@torch.no_grad()
def cross_fit_heads(knowledge: Knowledge, tasks: Tasks) -> Knowledge:
    """Return the knowledge with the heads and noise that rows of cross-fitted tasks give.

    Heads behind a logistic link stay as the backbone has them.
    """
    squashed = knowledge.likelihood.squashes(knowledge.kinds)
    if bool(squashed.all()) or len(tasks.states) < 2:
        return knowledge
    plain = Description.of(knowledge.metadata, knowledge.widths)
    description = plain.with_cubic_terms(plain.nonlinear_columns()).with_more(
        knowledge.table_shots.log1p()[:, None]
    )
    every = torch.arange(len(knowledge.kinds))
    some = every if tasks.batch.positions is None else tasks.batch.positions
    sampled = len(some) < len(every)
    if sampled:
        description = Description(description.numbers[some], description.groups)
    own, kinds, squashed = knowledge.heads.detach().take(some), knowledge.kinds[some], squashed[some]
    _, rows = process_group().span(len(knowledge.states))
    if any(len(states) != rows for states in tasks.states):  # each fold numbers its rows
        cells = winsorise(tasks.batch.cells, kinds == KindType.REAL)
    else:
        cells = gather_cells(knowledge.cells.transpose(), len(knowledge.cells))
    tasks = Tasks(tasks.batch.observing(cells), tasks.fold, tasks.states)
    counts = cells.counts.double()
    usual = empirical_noise(knowledge)[kinds].double()
    one_kind = len(torch.unique(knowledge.kinds)) == 1
    noise, heads = usual.clone(), own
    for _ in range(_ROUNDS):
        prior = empirical_prior(knowledge, heads, description)
        mean_squares = mean_squared_weights(knowledge, heads, some).double()
        means, covariances, variance = _round(tasks, own, prior, noise, mean_squares)
        overall = (variance * counts).sum() / counts.sum() if one_kind else usual
        noise = ((_NOISE_SHOTS * overall + counts * variance) / (_NOISE_SHOTS + counts)).clamp(min=1e-8)
        kept = squashed[:, None]
        heads = Heads(
            torch.where(kept, own.weight, means[:, :-1]),
            torch.where(squashed, own.bias, means[:, -1]),
            torch.where(kept, own.packed_covariance, covariances),
            noise.to(means.dtype),
        )
    if not sampled:
        return replace(knowledge, new_heads=heads)
    all_heads = knowledge.heads.detach()
    mean_noise = empirical_noise(replace(knowledge, new_heads=heads, trained_on=some))[knowledge.kinds]
    new = replace(all_heads, covariance=all_heads.packed_covariance, noise=mean_noise)
    return replace(knowledge, new_heads=new.replaced(some, heads), trained_on=some)


def _round(
    tasks: Tasks, own: Heads, prior: EmpiricalPrior, noise: Tensor, mean_squares: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The heads of all tasks given a prior: means, packed covariances, and the noise that they leave."""
    precision = inverse(prior.covariance.double())
    means = torch.cat([own.weight, own.bias[:, None]], dim=1)
    size = means.shape[1]
    covariances = means.new_zeros(len(means), size * (size + 1) // 2)
    variance = torch.zeros_like(noise)

    def make(fold: int) -> None:
        features = torch.nonzero(tasks.fold == fold)[:, 0]
        rows = _Rows.of(tasks.states[fold], mean_squares)
        cells = tasks.batch.cells.take(features)
        for group in blocks(cells.counts, size, budget=_BLOCK):
            here = features[group]
            mean, covariance, variance[here] = _group_heads(
                cells.take(group), rows, prior.loo_means[here].double(), precision, noise[here]
            )
            means[here] = mean.to(means.dtype)
            covariances[here] = pack(covariance).to(means.dtype)

    for _ in parallel_map(make, range(len(tasks.states)), each_takes=2**28):
        pass
    return means, covariances, variance


class _Rows(NamedTuple):
    """Rows as heads are made from them."""

    factors: Tensor  # (rows, size): activations and a 1
    noise: Tensor  # (rows,): relative to the usual
    variance: Tensor  # (rows,): what their uncertainty adds to that of an observation

    @classmethod
    def of(cls, states: RowStates, mean_squares: Tensor) -> _Rows:
        factors = append_one(states.activation).double()
        noise = factors.new_ones(len(factors)) if states.noise is None else states.noise.double()
        if states.variance is None:
            return cls(factors, noise, torch.zeros_like(noise))
        return cls(factors, noise, states.variance.double() @ mean_squares)


def _group_heads(
    cells: Cells, rows: _Rows, prior_means: Tensor, precision: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Heads of features of similar shots, and their noise by one step of expectation maximisation."""
    index, row_noise = cells.index, rows.noise[cells.index]
    own, other = noise[cells.lines] * row_noise, rows.variance[index]
    whole = own + other
    each = torch.stack([1 / whole, cells.values.double(), own / whole, other, 1 / row_noise], dim=1)
    # All are 0 where there is no observation.
    weights, values, kept, doubt, exact = pad(each, cells).unbind(2)
    near = pad(rows.factors.index_select(0, index), cells)
    weighted = weights[:, :, None] * near
    linear = (values[:, None] @ weighted)[:, 0] + prior_means @ precision
    mean, covariance = solve(weighted.mT @ near + precision, linear)
    residual = values - (near @ mean[:, :, None])[:, :, 0]
    squared = residual**2 + ((near @ covariance) * near).sum(2)
    expected = (kept * doubt + kept**2 * squared) * exact
    return mean, covariance, expected.sum(1) / cells.counts.clamp(min=1)
