"""Prior of rows given their metadata, by a leave-one-out ridge regression."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.backbones.base import Backbone
from headstart.core.types import Description, Knowledge, RowPrior
from headstart.linalg.packed import make_positive_definite, unpack
from headstart.linalg.ridge import LooRidge, make_groups

_MIN_RELIABILITY = 0.05  # of a row's activation; avoids division by almost zero

_MIN_GAIN = 0.01  # fraction of the leave-one-out error that metadata must explain; less is often chance

_MIN_VARIANCE = 0.05  # lower limit of the variance of rows around their predictions


@torch.no_grad()
def fit_row_prior(
    backbone: Backbone, knowledge: Knowledge, encoded: Tensor, widths: tuple[int, ...]
) -> RowPrior | None:
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
    bends = linear.nonlinear_columns()
    description = linear.with_cubic_terms(bends)
    # The second moments of heads turn errors of activations into errors of predictions.
    size = states.activation.shape[1]
    heads = knowledge.heads
    stacked = torch.cat([heads.weight, heads.bias[:, None]], dim=1)
    moments = stacked.T @ stacked / max(1, len(stacked)) + unpack(heads.packed_covariance.mean(0), size + 1)
    root = torch.linalg.cholesky(make_positive_definite(moments[:-1, :-1].double()))
    regression = LooRidge(make_groups(description.numbers, description.groups))
    regression.choose(description.numbers, targets, weights, root)
    if float(regression.gains.sum()) < _MIN_GAIN:
        return None
    predicted = regression.fit(description.numbers, targets, weights)
    matrix, constant = regression.linear_map(description.numbers.shape[1])
    dtype = targets.dtype
    gains = torch.zeros(len(linear.groups))  # by metadata column
    for members, gain in zip(regression.members, regression.gains.tolist(), strict=True):
        for member in members:
            if member < len(linear.groups):
                column = member
            else:
                column = _column_of_cubic_terms(linear, bends, member - len(linear.groups))
            gains[column] += gain / len(members)
    covariance = _residual_covariance(predicted, weights).to(dtype)
    return RowPrior(matrix.to(dtype), constant.to(dtype), covariance, bends, gains)


def _column_of_cubic_terms(linear: Description, bends: Tensor, pair: int) -> int:
    """Return the metadata column of a pair of cubic terms."""
    encoded_column = int(torch.nonzero(bends)[pair, 0])
    return next(i for i, group in enumerate(linear.groups) if bool((group == encoded_column).any()))


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
