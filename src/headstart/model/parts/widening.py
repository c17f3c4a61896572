"""Intervals that widen if observations lie far outside what a head holds possible."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.likelihood import Likelihood
from headstart.core.predictive import predict_cells
from headstart.core.states import RowStates
from headstart.crew import crew

SURPRISING = 8.0  # standard deviations: of a normal distribution, one value in 10^15 lies further
_USUAL_SHOTS = 5.0  # what is surprising is averaged with so many observations that are not


@torch.no_grad()
def widened(
    heads: Heads, batch: FeatureBatch, states: RowStates, factors: Tensor, likelihood: Likelihood
) -> Heads:
    """Make heads less sure of themselves if some of their own observations lie far from what they predict.

    Their variances are multiplied by 1 + Σ 8·log(z² / 64) / (n + 5), the sum over the observations whose
    distance z is more than 8 standard deviations; so other heads do not change at all, and one wrong value
    is not believed more the further it lies. ``factors`` (features,) are those of the calibration.
    """
    if heads.noise is None or (len(batch.cells.index) == 0 and crew().alone):
        return heads
    # The full variance costs more and is larger, so it is needed only where this one finds anything.
    plain = replace(heads, covariance=None)
    near = _squares(plain, batch, replace(states, variance=None), factors, likelihood)
    far = near > SURPRISING**2
    surprised = torch.bincount(batch.cells.lines[far], minlength=len(batch))
    which = torch.nonzero(crew().total(surprised))[:, 0]
    if len(which) == 0:
        return heads
    part = batch.take(which)
    squares = _squares(heads.take(which), part, states, factors[which], likelihood)
    excess = SURPRISING * (squares / SURPRISING**2).clamp(min=1).log()
    total = crew().total(excess.new_zeros(len(which)).index_add_(0, part.cells.lines, excess))
    ratio = heads.noise.new_ones(len(heads))
    ratio[which] = (1 + total / (crew().total(part.shots) + _USUAL_SHOTS)).to(ratio.dtype)
    covariance = None if heads.covariance is None else heads.covariance * ratio[:, None]
    return replace(heads, covariance=covariance, noise=heads.noise * ratio)


def _squares(
    heads: Heads, batch: FeatureBatch, states: RowStates, factors: Tensor, likelihood: Likelihood
) -> Tensor:
    """The squared distances of the observations in standard deviations; 0 behind a logistic link: (n,)."""
    cells, lines = batch.cells, batch.cells.lines
    predictive = predict_cells(heads, states, cells, batch.kinds, likelihood)
    variance = (predictive.variance + predictive.noise).double() * factors.double()[lines] ** 2
    squares = (cells.values.double() - predictive.logits.double()) ** 2 / variance.clamp(min=1e-30)
    return torch.where(likelihood.squashes(batch.kinds)[lines], 0.0, squares)
