"""The mean head of known features, shrunk towards the direction of row means.

Without metadata and observations, the head of a new feature is the mean head of the known features. With few
known features its weights are uncertain in most directions of the activations. The direction of row means
has one free number only. Let t be the weights with which the activations predict the mean residual of a row,
w̄ the weights of the mean head, M the covariance of activations over rows, and C that of the weights over J
features. With α = tᵀMw̄ / tᵀMt and δ = w̄ − α·t, the shrunk weights are those of James and Stein,

    α·t + max(0, 1 − tr(MC)/J / δᵀMδ)·δ.

The judge uses them if they predict held-out features better.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.core.types import Knowledge
from headstart.linalg.packed import make_positive_definite
from headstart.linalg.row_sharded import global_count, global_sum

# Of the variance of a row's activation, added to its square: factors that no row has need a small weight.
_UNCERTAINTY_SHARE = 0.05


@torch.no_grad()
def mean_head_change(knowledge: Knowledge, mean: Tensor, covariance: Tensor, features: float) -> Tensor:
    """Return the change of the mean head (w̄, b) by the shrinkage: (size,).

    ``mean`` (size,) and ``covariance`` (size, size) are those of the heads of ``features`` known features.
    The mean prediction of all rows does not change.
    """
    direction, centre, moment = row_mean_direction(knowledge)
    weight = mean[:-1].double()
    length = direction @ moment @ direction
    if not float(length) > 0:  # rows do not differ
        return torch.zeros_like(mean)
    difference = weight - (direction @ moment @ weight) / length * direction
    by_chance = (moment * covariance[:-1, :-1].double()).sum() / features
    share = (by_chance / (difference @ moment @ difference).clamp(min=1e-30)).clamp(max=1)
    change = -share * difference
    return torch.cat([change, -(centre @ change)[None]]).to(mean.dtype)


def row_mean_direction(knowledge: Knowledge) -> tuple[Tensor, Tensor, Tensor]:
    """Regress the mean residuals of rows on their activations.

    A residual is a value less the mean of its feature; a row counts by the number of its observations. Return
    the weights t (width,), the mean of the activations (width,) and their covariance (width, width), which
    includes the uncertainty of rows.
    """
    cells, activation = knowledge.cells, knowledge.states.activation.double()
    values, features = cells.values.double(), len(knowledge.kinds)
    counts = global_sum(torch.bincount(cells.index, minlength=features)).clamp(min=1)
    means = global_sum(torch.bincount(cells.index, values, minlength=features)) / counts
    residuals = torch.bincount(cells.lines, values - means[cells.index], minlength=len(activation))
    rows = max(1, global_count(len(activation)))
    centre = global_sum(activation.sum(0)) / rows
    centred = activation - centre
    row_counts, variance = cells.counts.double(), knowledge.states.variance
    moment, weighted = centred.T @ centred, centred.T @ (row_counts[:, None] * centred)
    if variance is not None:
        uncertain = _UNCERTAINTY_SHARE * variance.double()
        moment, weighted = (
            moment + torch.diag(uncertain.sum(0)),
            weighted + torch.diag(row_counts @ uncertain),
        )
    moment, weighted = global_sum(moment) / rows, global_sum(weighted)
    products = global_sum(centred.T @ residuals)
    return torch.linalg.solve(make_positive_definite(weighted), products), centre, moment
