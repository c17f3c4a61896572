"""Joint draws of cells: the uncertainty of heads and of rows is shared, the noise of observations is not.

The output of head j at row i is w_j·d_i + b_j. With (w_j, b_j) ~ N(m_j, C_j), independent for each head, and
d_i ~ N(d̂_i, diag v_i), independent for each row, the outputs have the moments of ``predictive``, and the
covariances

    of one head at rows i and k       [d̂_i; 1]ᵀ·C_j·[d̂_k; 1]
    of heads j and l at one row       Σ_a v_ia·w_ja·w_la

Cells of different rows and different heads are uncorrelated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.likelihood import Likelihood
from headstart.core.predictive import predict_grid
from headstart.core.types import Heads, RowStates
from headstart.linalg.packed import make_positive_definite, unpack
from headstart.table.kinds import KindType

_PROBIT_NOISE = 8 / math.pi  # the variance of the normal noise whose probit link is close to the logistic one

_HEADS_AT_ONCE = 1024  # heads whose covariances are decomposed together, which bounds the memory


@torch.no_grad()
def draw_outputs(
    heads: Heads, states: RowStates, n: int, generator: np.random.Generator
) -> Iterator[NDArray[np.float64]]:
    """Yield ``n`` joint draws of the outputs of all heads at all rows: (rows, heads) each.

    A head without covariance and a row without variance are certain.
    """
    mean = heads.stacked.double().numpy()
    roots = None if heads.covariance is None else _roots(heads.covariance, mean.shape[1])
    activation = states.activation.double().numpy()
    deviation = None if states.variance is None else states.variance.double().clamp(min=0).sqrt().numpy()
    for _ in range(n):
        drawn, rows = mean, activation
        if roots is not None:
            drawn = mean + (roots @ generator.standard_normal((*mean.shape, 1)))[:, :, 0]
        if deviation is not None:
            rows = activation + deviation * generator.standard_normal(activation.shape)
        yield rows @ drawn[:, :-1].T + drawn[:, -1]


def _roots(packed: Tensor, size: int) -> NDArray[np.float64]:
    """Return the lower triangular roots of packed covariances: (heads, size, size)."""
    blocks = torch.split(packed.double(), _HEADS_AT_ONCE)
    roots = [torch.linalg.cholesky(make_positive_definite(unpack(block, size), 1e-9)) for block in blocks]
    return torch.cat([packed.new_zeros(0, size, size, dtype=torch.float64), *roots]).numpy()


@torch.no_grad()
def draw_scores(
    heads: Heads,
    states: RowStates,
    kinds: Tensor,
    likelihood: Likelihood,
    n: int,
    generator: np.random.Generator,
) -> Iterator[NDArray[np.float64]]:
    """Yield ``n`` joint draws of the values of all cells, in standard normal units: (rows, heads) each.

    A score is the deviation of a value from its predicted mean, divided by its standard deviation. The score
    of a binary value is that of the normal variable that decides it: a 1 if it exceeds a threshold.
    """
    predictive = predict_grid(heads, states, kinds, likelihood)
    logits, variance = predictive.logits.numpy(), predictive.variance.numpy()
    noise = predictive.noise.expand_as(predictive.logits).numpy()
    binary = ((kinds == KindType.BINARY) & likelihood.squashes(kinds)).numpy()
    slope = np.ones_like(logits)
    squashed = likelihood.squashes(kinds).numpy() & ~binary
    if squashed.any():
        mean = predictive.mean.numpy()
        slope[:, squashed] = (mean * (1 - mean))[:, squashed]
    noise = noise + _PROBIT_NOISE * binary
    total = np.sqrt(np.maximum(slope**2 * variance + noise, np.finfo(float).tiny))
    for outputs in draw_outputs(heads, states, n, generator):
        drawn = slope * (outputs - logits) + np.sqrt(noise) * generator.standard_normal(logits.shape)
        yield drawn / total
