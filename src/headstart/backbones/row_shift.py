"""The prior mean of rows with few observations, for the factorisation.

Where rows choose the features that they observe, an observed value is not that of the mean row: users rate
the films they like, and late weeks are observed only for songs that stayed in the charts. So the prior mean
of rows with few observations is shifted to the factors that predict the observed means of features.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from headstart.backbones.factorisation import ROW_SHIFT_MARKS, Factorisation
from headstart.backbones.row_posterior import FactorPrior, RowBatch, row_posterior
from headstart.core.predictive import predict_cells
from headstart.linalg.array_ops import jaakkola_slope, probit_scale
from headstart.linalg.packed import inverse
from headstart.linalg.ragged import ranks_in_line
from headstart.linalg.row_sharded import draw_uniform_at, feature_sums, global_sum, sample_rows
from headstart.table.cells import Cells

_STEPS = 20  # of bound optimisation, to find the factors of the means of features

_ROWS = 1000  # sampled to find the shares of the shift of rows with few observations

_TARGETS = 16  # observations to predict of each of them

_STANDARD_ERRORS = 2.0  # standard errors up to which a share is 0

_MAX_SHARE = 2.0


@torch.no_grad()
def fit_row_shift(backbone: Factorisation, cells: Cells, generator: torch.Generator) -> None:
    """Fit the shift of the prior mean of rows with few observations, and its shares.

    The shift leads to ``factors_of_means``. Its share at a number of observations has the least squared error
    if that many observations of a row predict others of the row, and is reduced by its standard error.
    """
    backbone.row_shift.zero_()
    if backbone.usual_clicks is not None:  # rows without clicks are informative
        return
    counts = feature_sums(cells, cells.weighted(torch.ones_like(cells.values)))
    means = feature_sums(cells, cells.weighted(cells.values)) / counts.clamp(min=1e-12)
    shift = factors_of_means(backbone, counts, means) - backbone.row_map[0].double()
    context, targets, sizes = _few_observations(cells, generator)
    signature = backbone.signature(context)
    plain = backbone.factor_prior(signature)
    rows, by_feature = RowBatch(context, backbone.head_moments()), targets.transpose()

    def predict(prior: FactorPrior) -> Tensor:
        posterior = row_posterior(rows, prior, backbone.row_passes, noisy=backbone.noisy_rows)
        states = backbone.states_of(posterior, signature, context, backbone.kinds)
        predictive = predict_cells(backbone.heads, states, by_feature, backbone.kinds, backbone.likelihood)
        return predictive.mean.double()

    mean = predict(plain)
    change = predict(plain._replace(mean=plain.mean + shift.to(plain.mean))) - mean
    weighted = by_feature.weighted(change)
    products = torch.stack([weighted * (by_feature.values - mean), weighted * change], 1)
    by_row = products.new_zeros(len(targets), 2).index_add_(0, by_feature.index, products)
    backbone.row_shift.copy_(shift)
    backbone.row_shift_shares.copy_(shift_shares(by_row, sizes))


def _few_observations(cells: Cells, generator: torch.Generator) -> tuple[Cells, Cells, Tensor]:
    """Draw few observations of some rows, and others of the same rows to predict.

    Returns contexts and targets with one line for each row and number of observations, and the position of
    this number in ``ROW_SHIFT_MARKS``: (lines,). The targets of a row have the weight of all its other
    observations.
    """
    drawn, _, positions, total = sample_rows(cells, cells.counts[:, None], _ROWS, generator)
    rank = ranks_in_line(drawn, draw_uniform_at(positions, total, generator))
    contexts, targets, sizes = [], [], []
    for number, size in enumerate(ROW_SHIFT_MARKS[:-1]):
        rows = torch.nonzero(drawn.counts >= max(1, 2 * size))[:, 0]
        contexts.append(drawn.keep(rank < size).take(rows))
        others = drawn.keep((rank >= size) & (rank < size + _TARGETS)).take(rows)
        share = (drawn.counts[rows] - size) / others.counts
        weights = others.weighted(share.to(others.values.dtype)[others.lines])
        targets.append(replace(others, weights=weights))
        sizes.append(torch.full_like(rows, number))
    return Cells.concatenate(contexts), Cells.concatenate(targets), torch.cat(sizes)


def shift_shares(products: Tensor, sizes: Tensor) -> Tensor:
    """Return the share of the shift at each number of observations: (marks,).

    Parameters
    ----------
    products : Tensor
        The sums of e·c and c² of each line, with the errors e and their changes c by the shift: (lines, 2).
    sizes : Tensor
        The position of the number of observations of each line: (lines,).

    Returns
    -------
    Tensor
        The best shares, reduced by their variance over rows, and 0 below ``_STANDARD_ERRORS`` standard
        errors. A number of observations that no row has gets the share of the next smaller one, and the
        last number has none.
    """
    gain, square = products.T
    moments = torch.stack([gain, square, gain**2, gain * square, square**2], 1)
    sums = moments.new_zeros(len(ROW_SHIFT_MARKS), 5).index_add_(0, sizes, moments)
    gain, square, *variances = global_sum(sums).T
    square = square.clamp(min=1e-30)
    best = gain / square
    variance = (variances[0] - 2 * best * variances[1] + best**2 * variances[2]) / square**2
    certain = 1 - _STANDARD_ERRORS**2 * variance / best.clamp(min=1e-12) ** 2
    shares: Tensor = (best * certain.clamp(0, 1)).clamp(0, _MAX_SHARE)
    last = torch.where(square > 1e-30, torch.arange(len(shares)), 0).cummax(0).values
    return shares.index_select(0, last) * (torch.arange(len(shares)) < len(shares) - 1)


def factors_of_means(backbone: Factorisation, counts: Tensor, means: Tensor) -> Tensor:
    """Return the factors of one row that best predict the ``means`` of the features: (latent,).

    They maximise the likelihood of ``counts`` (features,) observations of each feature, all equal to its mean
    (features,), under the prior of rows.
    """
    weight, bias, logistic = _flattened_heads(backbone)
    prior, centre = inverse(backbone.row_covariance.double()), backbone.row_map[0].double()
    precision = counts * torch.where(logistic, 1.0, backbone.observation_precision.double())
    factors = centre
    for _ in range(_STEPS if bool(logistic.any()) else 1):  # one step is exact without a link
        output = weight @ factors + bias
        mean = torch.where(logistic, torch.sigmoid(output), output)
        slope = torch.where(logistic, jaakkola_slope(output), 1.0)  # a bound: each step is an ascent
        gradient = weight.T @ (precision * (means - mean)) - prior @ (factors - centre)
        curvature = weight.T @ ((precision * slope)[:, None] * weight) + prior
        factors = factors + torch.linalg.solve(curvature, gradient)
    return factors


def _flattened_heads(backbone: Factorisation) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights and biases of heads, and the mask of those behind a logistic link.

    The uncertainty of a row without observations flattens a logistic link (``probit_scale``).
    """
    heads, logistic = backbone.heads, backbone.likelihood.squashes(backbone.kinds)
    variance = heads.mean_squares().double() @ backbone.row_covariance.diagonal().double()
    scale = torch.where(logistic, probit_scale(variance), 1.0)
    return heads.weight.double() * scale[:, None], heads.bias.double() * scale, logistic
