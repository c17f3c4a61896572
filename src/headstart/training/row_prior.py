"""Whether the metadata of rows says something of them, and what: judged on rows left out."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.backbones.base import Backbone
from headstart.core.types import Description, Knowledge, RowPrior
from headstart.linalg.packed import positive, unpack
from headstart.linalg.ridge import LooRidge, make_groups

_LEAST_KNOWN = 0.05  # of a row's activation, for it to say what the row is like

_LEAST_GAIN = 0.01  # share of the error that is removed; less is often chance, and of no use if it is not

_LEAST_LEFT = 0.05  # of the variance of rows, whatever metadata seems to explain


@torch.no_grad()
def fit_row_prior(
    backbone: Backbone, knowledge: Knowledge, encoded: Tensor, widths: tuple[int, ...]
) -> RowPrior | None:
    """Regress what observations say of rows on ``encoded`` (rows, columns); None if it helps no row left out.

    Each metadata column is let in only if it lowers the leave-one-out error by more than the best of so many
    useless ones would by chance, as for features (``LooRidge``).
    """
    states = knowledge.states
    if states.variance is None or len(encoded) < 2 or encoded.shape[1] == 0:
        return None
    # A posterior mean is drawn to the prior by the share of it that is not known: this undoes it.
    known = (1 - states.variance).clamp(_LEAST_KNOWN, 1)
    targets = (states.activation - backbone.prior_means(knowledge.cells)) / known
    weights = (1 - states.variance).mean(1).clamp(min=1e-6)
    plain = Description.of(encoded, widths)
    bends = plain.nonlinear_columns()
    description = plain.with_cubic_terms(bends)
    size = states.activation.shape[1]
    heads = knowledge.heads
    stacked = torch.cat([heads.weight, heads.bias[:, None]], dim=1)
    second = stacked.T @ stacked / max(1, len(stacked)) + unpack(heads.packed_covariance.mean(0), size + 1)
    root = torch.linalg.cholesky(positive(second[:-1, :-1].double()))
    regression = LooRidge(make_groups(description.numbers, description.groups))
    regression.choose(description.numbers, targets, weights, root)
    if float(regression.gains.sum()) < _LEAST_GAIN:
        return None
    predicted = regression.fit(description.numbers, targets, weights)
    matrix, constant = regression.map(description.numbers.shape[1])
    dtype = targets.dtype
    gains = torch.zeros(len(plain.groups))
    for members, gain in zip(regression.members, regression.gains.tolist(), strict=True):
        for member in members:
            place = member if member < len(plain.groups) else _owner(plain, bends, member - len(plain.groups))
            gains[place] += gain / len(members)
    return RowPrior(matrix.to(dtype), constant.to(dtype), _left(predicted, weights).to(dtype), bends, gains)


def _owner(plain: Description, bends: Tensor, pair: int) -> int:
    """The metadata column that a pair of bends belongs to."""
    column = int(torch.nonzero(bends)[pair, 0])
    return next(place for place, group in enumerate(plain.groups) if bool((group == column).any()))


def _left(predicted: Tensor, weights: Tensor) -> Tensor:
    """The covariance of rows around what is predicted of each from the others; 1 in all is the backbone's."""
    share = (weights / weights.sum()).double()
    centred = predicted.double() - share @ predicted.double()
    explained = (centred * share[:, None]).T @ centred
    values, turn = torch.linalg.eigh(torch.eye(len(explained), dtype=torch.float64) - explained)
    left: Tensor = (turn * values.clamp(_LEAST_LEFT, 1.0)) @ turn.T
    return left
