"""Cross-fitted heads: heads of known features as if they were new, from which adapters learn priors.

The rows' factors are fitted to the same observations as the backbone's own heads. Compared with a new
feature, the noise around these heads is too small and the heads are too large. Cross-fitting computes the
heads of the features of each fold from row states that do not depend on these features.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from headstart.adapters.head_prior import (
    EmpiricalPrior,
    click_zeros,
    empirical_noise,
    empirical_prior,
    mean_squared_weights,
)
from headstart.backbones.row_posterior import NOISE_SHOTS
from headstart.core.clicks import weigh_clicks
from headstart.core.types import Description, Heads, Knowledge, RowStates
from headstart.linalg.gaussian import condition_on_rows, condition_on_sums, mix, sum_block
from headstart.linalg.packed import append_one, make_positive_definite, pack, packed_size
from headstart.linalg.ragged import groups_of_similar_counts, pad
from headstart.linalg.row_sharded import gather_cells, global_count
from headstart.parallel import parallel_map
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.table.outliers import winsorise
from headstart.training.episodes import Tasks

_ROUNDS = 4

_BLOCK = 1 << 18  # numbers in one padded block


@torch.no_grad()
def cross_fit_heads(knowledge: Knowledge, tasks: Tasks) -> Knowledge:
    """Return the knowledge with cross-fitted heads and noise, computed from ``tasks``.

    Features with a logistic link have the heads of the backbone.
    """
    squashed = knowledge.likelihood.squashes(knowledge.kinds)
    if bool(squashed.all()) or len(tasks.states) < 2:
        return knowledge
    plain = Description.of(knowledge.metadata, knowledge.widths)
    description = plain.with_nonlinear_terms(plain.nonlinear_columns()).with_group(
        knowledge.count_shots().log1p()[:, None]
    )
    positions = tasks.batch.positions
    positions = torch.arange(len(knowledge.kinds)) if positions is None else positions
    sampled = len(positions) < len(knowledge.kinds)
    if sampled:
        description = Description(description.numbers[positions], description.groups)
    backbone_heads = knowledge.heads.detach().take(positions)
    kinds, squashed = knowledge.kinds[positions], squashed[positions]
    rows = global_count(len(knowledge.states))
    if any(len(states) != rows for states in tasks.states):  # each fold has its own row positions
        cells = winsorise(tasks.batch.cells, kinds == KindType.REAL)
    else:
        cells = gather_cells(knowledge.cells.transpose(), len(knowledge.cells))
    tasks = Tasks(tasks.batch.observing(cells), tasks.fold, tasks.states)
    counts = cells.counts.double()
    kind_noise = empirical_noise(knowledge)[kinds].double()
    one_kind = len(torch.unique(knowledge.kinds)) == 1
    noise, heads = kind_noise.clone(), backbone_heads
    clicks = kinds == KindType.CLICK
    tasks = Tasks(tasks.batch.observing(weigh_clicks(cells, kinds, by_line=True)), tasks.fold, tasks.states)
    zeros: list[Tensor | None] = [None] * len(tasks.states)
    if bool(clicks.any()):
        zeros = [_fold_zeros(knowledge, states) for states in tasks.states]
    else:
        tasks = tasks.merge_folds()
    for _ in range(_ROUNDS):
        prior = empirical_prior(knowledge, heads, description)
        mean_squares = mean_squared_weights(knowledge, heads, positions).double()
        means, covariances, variance = _update_heads(tasks, backbone_heads, prior, noise, mean_squares, zeros)
        mean_noise = (variance * counts).sum() / counts.sum() if one_kind else kind_noise
        noise = ((NOISE_SHOTS * mean_noise + counts * variance) / (NOISE_SHOTS + counts)).clamp(min=1e-8)
        noise = torch.where(clicks, kind_noise, noise)
        heads = Heads(
            torch.where(squashed[:, None], backbone_heads.weight, means[:, :-1]),
            torch.where(squashed, backbone_heads.bias, means[:, -1]),
            torch.where(squashed[:, None], backbone_heads.packed_covariance, covariances),
            noise.to(means.dtype),
        )
    if not sampled:
        return replace(knowledge, new_heads=heads)
    all_heads = knowledge.heads.detach()
    mean_noise = empirical_noise(replace(knowledge, new_heads=heads, cross_fitted=positions))[knowledge.kinds]
    new = replace(all_heads, covariance=all_heads.packed_covariance, noise=mean_noise)
    return replace(knowledge, new_heads=new.replace_at(positions, heads), cross_fitted=positions)


def _update_heads(
    tasks: Tasks,
    backbone_heads: Heads,
    prior: EmpiricalPrior,
    noise: Tensor,
    mean_squares: Tensor,
    zeros: list[Tensor | None],
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute means, packed covariances and residual variances of the heads of all tasks."""
    root = torch.linalg.cholesky(make_positive_definite(prior.covariance.double()))
    means = backbone_heads.stacked
    size = means.shape[1]
    covariances = means.new_zeros(len(means), packed_size(size))
    variance = torch.zeros_like(noise)

    def update_fold(fold: int) -> None:
        features = torch.nonzero(tasks.fold == fold)[:, 0]
        rows = _Rows.of(tasks.states[fold], mean_squares)
        cells = tasks.batch.cells.take(features)
        for group in groups_of_similar_counts(cells.counts, size, budget=_BLOCK):
            part = features[group]
            mean, covariance, variance[part] = _group_heads(
                cells.take(group),
                rows,
                prior.loo_means[part].double(),
                root,
                noise[part],
                zeros[fold],
                tasks.batch.kinds[part] == KindType.CLICK,
            )
            means[part] = mean.to(means.dtype)
            covariances[part] = pack(covariance).to(means.dtype)

    for _ in parallel_map(update_fold, range(len(tasks.states)), each_takes=2**28):
        pass
    return means, covariances, variance


def _fold_zeros(knowledge: Knowledge, states: RowStates) -> Tensor:
    """Return the zeros of a click feature, from the states of a fold if it has those of all rows."""
    if len(states) == global_count(len(knowledge.states)):  # every process has all rows
        return click_zeros(states, shared=False)
    return click_zeros(knowledge.states)


class _Rows(NamedTuple):
    """Row states as inputs of the regression of heads, in double precision."""

    factors: Tensor  # (rows, size): activations and a 1
    noise: Tensor  # (rows,): relative to the average row
    variance: Tensor  # (rows,): variance of an observation from the row's uncertainty

    @classmethod
    def of(cls, states: RowStates, mean_squares: Tensor) -> _Rows:
        """Convert ``states``; ``mean_squares`` (width,) are the mean E[w²] over heads."""
        factors = append_one(states.activation).double()
        noise = factors.new_ones(len(factors)) if states.noise is None else states.noise.double()
        if states.variance is None:
            return cls(factors, noise, torch.zeros_like(noise))
        return cls(factors, noise, states.variance.double() @ mean_squares)


def _group_heads(
    cells: Cells,
    rows: _Rows,
    prior_means: Tensor,
    root: Tensor,
    noise: Tensor,
    zeros: Tensor | None,
    clicks: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute mean, covariance and noise of heads; the noise by one step of expectation maximisation.

    ``cells`` are the observations of features of similar shots, ``prior_means`` (features, size) and ``root``
    (size, size) define their prior, and ``noise`` (features,) is the current estimate.
    """
    index, row_noise = cells.index, rows.noise[cells.index]
    value_variance, row_variance = noise[cells.lines] * row_noise, rows.variance[index]
    variance = value_variance + row_variance
    share = value_variance / variance  # fraction of the variance of a residual due to the value's noise
    columns = torch.stack(
        [
            cells.weighted(1 / variance),
            cells.values.double(),
            share,
            row_variance,
            cells.weighted(1 / row_noise),
        ],
        dim=1,
    )
    weights, values, share, row_variance, precision = pad(columns, cells).unbind(2)  # 0 where padded
    factors = pad(rows.factors.index_select(0, index), cells)
    if zeros is None:
        posterior = condition_on_rows(factors, values, weights, prior_means[:, None], root[None])
    else:
        sums = sum_block(factors, values, weights, cells.counts.double())
        sums = sums.add_zeros(torch.where(clicks, 1 / noise, 0.0), zeros)
        posterior = condition_on_sums(sums, prior_means[:, None], root[None])
    mean, covariance = mix(posterior, None, cells.counts)
    residuals = values - (factors @ mean[:, :, None])[:, :, 0]
    squared = residuals**2 + ((factors @ covariance) * factors).sum(2)
    expected = (share * row_variance + share**2 * squared) * precision
    counts = cells.weighted_counts.double()
    return mean, covariance, expected.sum(1) / torch.where(cells.counts > 0, counts, 1.0)
