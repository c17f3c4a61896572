"""Heads of known features as if they were new: from rows that know nothing of them.

A backbone's own heads come from rows whose factors were fitted to the very observations that the heads
explain: noise measured there is too small for a new feature, and heads reach too far. So the features of
each fold get heads anew on states computed with them hidden, and priors are learned from these.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from headstart.adapters.empirical import empirical_noise, empirical_prior, mean_squared_weights
from headstart.algebra.padding import forms_at
from headstart.algebra.sparse import segment_sum
from headstart.algebra.symmetric import inverse, pack, solved, squares, unpack, with_one
from headstart.core.description import Description
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.states import RowStates
from headstart.table.cells import Cells
from headstart.training.tasks import Tasks

_ROUNDS = 4
_NOISE_SHOTS = 5.0  # a feature's own noise is believed as if so many observations had shown the usual one


@torch.no_grad()
def with_new_heads(knowledge: Knowledge, tasks: Tasks) -> Knowledge:
    """Return the knowledge with the heads and noise that rows of cross-fitted tasks give.

    Heads behind a logistic link stay as the backbone has them.
    """
    squashed = knowledge.likelihood.squashes(knowledge.kinds)
    if bool(squashed.all()) or len(tasks.states) < 2:
        return knowledge
    plain = Description.of(knowledge.metadata, knowledge.widths)
    description = plain.with_bends(plain.bendable()).with_more(knowledge.table_shots.log1p()[:, None])
    own = knowledge.heads.detach()
    by_feature = knowledge.cells.transpose()
    counts = by_feature.counts.double()
    usual = empirical_noise(knowledge)[knowledge.kinds].double()
    one_kind = len(torch.unique(knowledge.kinds)) == 1
    noise, heads = usual.clone(), own
    for _ in range(_ROUNDS):
        prior = empirical_prior(knowledge, heads, description)
        precision = inverse(prior.covariance.double())
        mean_squares = mean_squared_weights(knowledge, heads).double()
        means = torch.cat([own.weight, own.bias[:, None]], dim=1)
        size = means.shape[1]
        covariances = means.new_zeros(len(means), size * (size + 1) // 2)
        variance = torch.zeros_like(noise)
        for fold, states in enumerate(tasks.states):
            features = torch.nonzero(tasks.fold == fold)[:, 0]
            mean, covariance, variance[features] = _fold_heads(
                by_feature.take(features),
                states,
                prior.loo_means[features].double(),
                precision,
                noise[features],
                mean_squares,
            )
            means[features] = mean.to(means.dtype)
            covariances[features] = pack(covariance).to(means.dtype)
        overall = (variance * counts).sum() / counts.sum() if one_kind else usual
        noise = ((_NOISE_SHOTS * overall + counts * variance) / (_NOISE_SHOTS + counts)).clamp(min=1e-8)
        kept = squashed[:, None]
        heads = Heads(
            torch.where(kept, own.weight, means[:, :-1]),
            torch.where(squashed, own.bias, means[:, -1]),
            torch.where(kept, own.packed_covariance, covariances),
            noise.to(means.dtype),
        )
    return replace(knowledge, new_heads=heads)


def _fold_heads(
    cells: Cells,
    states: RowStates,
    prior_means: Tensor,
    precision: Tensor,
    noise: Tensor,
    mean_squares: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Heads of one fold's features, and their noise by one step of expectation maximisation."""
    lines, index = cells.lines, cells.index
    rows = with_one(states.activation).double()
    row_noise = torch.ones(len(rows), dtype=torch.float64) if states.noise is None else states.noise.double()
    of_row = (
        torch.zeros_like(row_noise) if states.variance is None else states.variance.double() @ mean_squares
    )
    own, other = noise[lines] * row_noise[index], of_row[index]
    variance = own + other
    near, values = rows[index], cells.values.double()
    each = torch.cat([squares(near) / variance[:, None], near * (values / variance)[:, None]], dim=1)
    sums, size = segment_sum(each, cells.indptr), rows.shape[1]
    linear = sums[:, -size:] + prior_means @ precision
    mean, covariance = solved(unpack(sums[:, :-size], size) + precision, linear)
    residual = values - (near * mean[lines]).sum(1)
    squared = residual**2 + forms_at(pack(covariance), rows[:, :-1], cells)
    kept = own / variance
    expected = (kept * other + kept**2 * squared) / row_noise[index]
    return mean, covariance, segment_sum(expected[:, None], cells.indptr)[:, 0] / cells.counts.clamp(min=1)
