"""Clicks: observations that are recorded only where they are positive.

Every cell of a click feature is a weak zero, and a click is one more observation of 1, weighted by its
``confidence``. Over all cells the zeros are sums of second moments, so that nothing of the size of the table
is computed:

    row i      Σ over its clicks  +  α · e_i · Σ_j E[(v_j, b_j)(v_j, b_j)ᵀ]
    feature j  Σ over its clicks  +  α · e_j · Σ_i e_i · E[(u_i, 1)(u_i, 1)ᵀ]

with the weight α of a zero. The exposure e of a row or feature is 1 if it has been shown to all, and less if
it is new: a cell without a click that was never shown is no zero. It is estimated by the number of clicks,
relative to the usual number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headstart.linalg.array_ops import Array
from headstart.linalg.row_sharded import global_sum
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

ZERO_WEIGHT = 1.0  # α, the weight of a zero relative to a click


def is_click(kinds: Any) -> Any:
    """Return the mask of click features among ``kinds``, a tensor or a numpy array."""
    return kinds == KindType.CLICK


def confidence(values: Any) -> Any:
    """Return the weights of clicks: 1 for a value of 1, 2 for 3, 3 for 7; of a tensor or a numpy array.

    >>> confidence(torch.tensor([1.0, 3.0, 7.0]))
    tensor([1., 2., 3.])
    """
    return torch.log2(1 + values) if isinstance(values, Tensor) else np.log2(1 + values)


def weigh_clicks(cells: Cells, kinds: Tensor, *, by_line: bool = False) -> Cells:
    """Replace clicks by ones with the weights of their confidence.

    ``kinds`` are the kinds of the features: of the index of ``cells`` or, if ``by_line``, of its lines.
    """
    clicks = is_click(kinds)
    if not bool(clicks.any()):
        return cells
    observed = clicks[cells.lines if by_line else cells.index]
    weights = torch.ones_like(cells.values) if cells.weights is None else cells.weights
    return replace(
        cells,
        values=torch.where(observed, 1.0, cells.values),
        weights=torch.where(observed, weights * confidence(cells.values.clamp(min=0)), weights),
    )


def weigh_click_values(values: Array, weights: Array | None, kinds: Any) -> tuple[Array, Array | None]:
    """Return values and weights (n,) of observations in numpy, as ``weigh_clicks`` does."""
    clicks = np.broadcast_to(is_click(np.asarray(kinds)), values.shape)
    if not clicks.any():
        return values, weights
    ones = np.ones_like(values) if weights is None else weights
    return np.where(clicks, 1.0, values), np.where(clicks, ones * confidence(np.maximum(values, 0)), ones)


def count_clicks(cells: Cells, kinds: Tensor) -> Tensor:
    """Count the clicks of each line of ``cells``, whose index is the features of ``kinds``: (lines,)."""
    clicks = is_click(kinds)
    if bool(clicks.all()):
        return cells.counts
    return torch.bincount(cells.lines[clicks[cells.index]], minlength=len(cells))


def usual_count(counts: Tensor, *, shared: bool = True) -> Tensor:
    """Return the mean number of clicks of the row or feature of a click: Σ n² / Σ n, at least 1.

    If ``shared``, the ``counts`` are divided among the processes.

    >>> usual_count(torch.tensor([1, 1, 10]))
    tensor(8.5000, dtype=torch.float64)
    """
    counts = counts.double()
    sums = torch.stack([(counts**2).sum(), counts.sum()])
    squares, total = (global_sum(sums) if shared else sums).unbind()
    return (squares / total.clamp(min=1)).clamp(min=1)


def estimate_exposure(counts: Any, usual: Any) -> Any:
    """Return the exposure of rows or features with ``counts`` of clicks: tensors, arrays or numbers.

    One click is added to both numbers, so that the exposure is never 0.

    >>> estimate_exposure(torch.tensor([0.0, 4.0, 20.0]), 9.0)
    tensor([0.1000, 0.5000, 1.0000])
    """
    share = (counts + 1) / (usual + 1)
    return share.clamp(max=1.0) if isinstance(share, Tensor) else np.minimum(share, 1.0)


def click_probability(output: Any) -> tuple[Any, Any]:
    """Return the probability of a click and its slope, given the output s of a click feature.

    With a probability p, the weighted mean of a click and a zero is s = p / (p + α), so p = α·s / (1 − s).
    Below 0 and above p = 1 the function continues as straight lines, so that it is strictly increasing.

    >>> click_probability(torch.tensor([0.0, 0.2, 0.5]))[0]
    tensor([0.0000, 0.2500, 1.0000])
    """
    highest = 1 / (1 + ZERO_WEIGHT)
    inside = output.clamp(0, highest) if isinstance(output, Tensor) else np.clip(output, 0, highest)
    slope = ZERO_WEIGHT / (1 - inside) ** 2
    return ZERO_WEIGHT * inside / (1 - inside) + slope * (output - inside), slope


_MOST_CHANCE = 0.9  # above, log-odds continue as a straight line

_LEAST_RATIO = -30.0  # of a probability to the least one; below, the logarithm of softplus is linear

LEAST_CHANCE = 1e-4  # of a click, by default: see ``click_log_odds``

_MOST_LEAST = 0.5  # the largest least probability, with which no probability becomes 1 or more


def click_log_odds(probability: Any, least: Any) -> tuple[Any, Any]:
    """Return the log-odds of ``click_probability`` and their slope: strictly increasing in any number.

    Far below ``least`` an output says nothing but that the probability is small. So a probability p is
    replaced by least·log(1 + exp(p / least)), which is p above and positive everywhere.

    >>> click_log_odds(torch.tensor([0.5, 1.0]), LEAST_CHANCE)[0]
    tensor([0.0000, 3.3083])
    """
    if isinstance(probability, Tensor):
        least = least.clamp(max=_MOST_LEAST) if isinstance(least, Tensor) else min(least, _MOST_LEAST)
        inside = probability.clamp(max=_MOST_CHANCE)
        ratio = inside / least
        bounded = ratio.clamp(min=_LEAST_RATIO)
        softplus, sigmoid = torch.nn.functional.softplus(bounded), torch.sigmoid(bounded)
        positive = least * softplus
        log_odds = torch.log(positive / (1 - positive))
    else:
        least, inside = np.minimum(least, _MOST_LEAST), np.minimum(probability, _MOST_CHANCE)
        ratio = inside / least
        bounded = np.maximum(ratio, _LEAST_RATIO)
        softplus, sigmoid = np.logaddexp(bounded, 0.0), np.exp(-np.logaddexp(-bounded, 0.0))
        positive = least * softplus
        log_odds = np.log(positive / (1 - positive))
    slope = sigmoid / (positive * (1 - positive))
    log_odds = log_odds + (ratio - bounded)  # far below they are linear
    return log_odds + slope * (probability - inside), slope
