"""Prior of rows given their metadata, by a leave-one-out ridge regression."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.adapters.head_prior import column_gains
from headstart.backbones.base import Backbone
from headstart.core.types import Description, Knowledge, RowPriorRegression
from headstart.linalg.packed import make_positive_definite
from headstart.linalg.ridge import LooRidge, make_groups

_MIN_RELIABILITY = 0.05  # of a row's activation; avoids division by almost zero

_MIN_GAIN = 0.01  # fraction of the leave-one-out error that metadata must explain; less is often chance

_MIN_VARIANCE = 0.05  # lower limit of the variance of rows around their predictions


@torch.no_grad()
def fit_row_prior(
    backbone: Backbone, knowledge: Knowledge, encoded: Tensor, widths: tuple[int, ...]
) -> RowPriorRegression | None:
    """Regress the activations of rows on their ``encoded`` metadata (rows, columns).

    Return None if metadata does not lower the leave-one-out error. ``LooRidge`` uses a metadata column only
    if it lowers this error by more than uninformative columns would by chance. ``widths`` are the numbers of
    encoded columns of each metadata column.
    """
    states = knowledge.states
    if states.variance is None or len(encoded) < 2 or encoded.shape[1] == 0:
        return None
    # The posterior mean of a row is shrunk to its prior mean by its reliability: undo the shrinkage.
    reliability = (1 - states.variance).clamp(_MIN_RELIABILITY, 1)
    targets = (states.activation - backbone.prior_means(knowledge.cells)) / reliability
    weights = (1 - states.variance).mean(1).clamp(min=1e-6)
    linear = Description.of(encoded, widths)
    nonlinear = linear.nonlinear_columns()
    description = linear.with_cubic_terms(nonlinear)
    root = torch.linalg.cholesky(make_positive_definite(knowledge.heads.mean_weight_moment().double()))
    regression = LooRidge(make_groups(description.numbers, description.groups))
    regression.choose(description.numbers, targets, weights, root)
    if float(regression.gains.sum()) < _MIN_GAIN:
        return None
    predicted = regression.fit(description.numbers, targets, weights)
    matrix, constant = regression.linear_map(description.numbers.shape[1])
    dtype = targets.dtype
    gains = column_gains(regression, widths, nonlinear)
    covariance = _residual_covariance(predicted, weights).to(dtype)
    return RowPriorRegression(matrix.to(dtype), constant.to(dtype), covariance, nonlinear, gains)


def _residual_covariance(predicted: Tensor, weights: Tensor) -> Tensor:
    """Return the covariance of rows around their leave-one-out predictions: (size, size).

    The covariance of rows under the backbone's prior is the identity.
    """
    share = (weights / weights.sum()).double()
    centred = predicted.double() - share @ predicted.double()
    explained = (centred * share[:, None]).T @ centred
    values, vectors = torch.linalg.eigh(torch.eye(len(explained), dtype=torch.float64) - explained)
    covariance: Tensor = (vectors * values.clamp(_MIN_VARIANCE, 1.0)) @ vectors.T
    return covariance
