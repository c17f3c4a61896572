"""Predict the distribution of a cell's value from a head and a row state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from headstart.core.likelihood import Likelihood
from headstart.core.types import Heads, OneHead, OneState, RowStates
from headstart.linalg.packed import affine_form, append_one, diagonals, quadratic_forms, unpack
from headstart.linalg.ragged import outputs_at, sampled_products
from headstart.table.cells import Cells

_CELLS_AT_ONCE = 2**24  # bounds the memory that a dense product of heads and rows may take


@dataclass(frozen=True)
class Predictive:
    """The distribution of each value on the models' scale: a Gaussian output seen through its kind's link."""

    logits: Tensor  # the mean of the output w·d + b; any shape
    variance: Tensor  # of the output, because head and row are uncertain; same shape
    noise: Tensor  # the variance that an observation adds; broadcasts to that shape
    kinds: Tensor  # the kind of each cell; broadcasts to that shape
    likelihood: Likelihood

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        return self.likelihood.predictive(self.logits, self.variance, self.noise, self.kinds)

    @property
    def mean(self) -> Tensor:
        """The expected value of each cell."""
        return self._moments[0]

    @property
    def std(self) -> Tensor:
        """The standard deviation of each cell's value."""
        return self._moments[1].sqrt()

    def nll(self, values: Tensor) -> Tensor:
        """The negative log-likelihood of these values."""
        return self.likelihood.predictive_nll(self.logits, self.variance, self.noise, values, self.kinds)

    def output_noise(self) -> Tensor:
        """The variance of an observation about the output: behind a logistic link, 1 / slope there."""
        chance = torch.sigmoid(self.logits)
        logistic = 1 / (chance * (1 - chance)).clamp(min=1e-4)
        return torch.where(self.likelihood.squashes(self.kinds), logistic, self.noise)


def predict_cells(
    heads: Heads, states: RowStates, cells: Cells, kinds: Tensor, likelihood: Likelihood
) -> Predictive:
    """The predictive of the cells of each head: one number per observation, (n,).

    ``cells`` has one line per head and points at rows of ``states``; ``kinds`` (heads,) are their kinds.
    """
    lines = cells.lines
    if heads.covariance is None:
        logits = _outputs(heads, states, cells)
        variance = torch.zeros_like(logits)
    else:
        stacked = torch.cat([heads.weight, heads.bias[:, None]], dim=1)
        logits, variance = outputs_at(stacked, heads.covariance, states.activation, cells)
    kinds = kinds[lines]
    noise = likelihood.noise(kinds) if heads.noise is None else heads.noise[lines]
    if states.noise is not None:
        noise = noise * states.noise.index_select(0, cells.index)
    if states.variance is not None:
        variance = variance + sampled_products(heads.mean_squares(), states.variance, cells)
    return Predictive(logits, variance, noise, kinds, likelihood)


def _outputs(heads: Heads, states: RowStates, cells: Cells) -> Tensor:
    """The mean output of each cell: (n,)."""
    every = torch.arange(len(heads), device=cells.index.device)
    parts = torch.split(every, max(1, _CELLS_AT_ONCE // max(1, len(states))))
    products = [
        sampled_products(heads.weight[part], states.activation, cells.take(part) if len(parts) > 1 else cells)
        for part in parts
    ]
    return torch.cat([states.activation.new_zeros(0), *products]) + heads.bias[cells.lines]


def predict_one(head: OneHead, state: OneState, *, binary: bool) -> tuple[float, float]:
    """The mean and the standard deviation of a single cell whose value is binary or has an identity link."""
    one = np.append(state.activation, 1.0).astype(np.float64)
    matrix = unpack(head.covariance.astype(np.float64))
    output, variance = float(head.weight @ one[:-1] + head.bias), max(0.0, float(one @ matrix @ one))
    if state.variance is not None:
        variance += float((head.weight**2 + matrix.diagonal()[:-1]) @ state.variance)
    noise = float(head.noise) * (1.0 if state.noise is None else float(state.noise))
    if not binary:
        return output, math.sqrt(variance + noise)
    chance = 1 / (1 + math.exp(-output / math.sqrt(1 + math.pi / 8 * (variance + noise))))
    return chance, math.sqrt(chance * (1 - chance))


def predict_grid(
    heads: Heads,
    states: RowStates,
    kinds: Tensor,
    likelihood: Likelihood,
    dtype: torch.dtype = torch.float64,
) -> Predictive:
    """The predictive of every row at every head: (rows, heads), by default in double precision.

    In double precision the numbers of a cell do not depend on which other cells are asked for with it.
    """
    logits = grid_logits(heads, states, dtype)
    noise = (likelihood.noise(kinds) if heads.noise is None else heads.noise).to(dtype).expand_as(logits)
    if states.noise is not None:
        noise = noise * states.noise.to(dtype)[:, None]
    return Predictive(logits, grid_variance(heads, states, dtype), noise, kinds, likelihood)


def grid_logits(heads: Heads, states: RowStates, dtype: torch.dtype = torch.float64) -> Tensor:
    """The mean output of every head at every row: (rows, heads)."""
    activation, weight, bias = (part.to(dtype) for part in (states.activation, heads.weight, heads.bias))
    if len(activation) == 1:  # a product with one vector reads the weights as they lie
        return torch.addmv(bias, weight, activation[0])[None]
    if len(weight) == 1:
        return (activation @ weight[0] + bias)[:, None]
    return torch.addmm(bias, activation, weight.T)


def grid_variance(heads: Heads, states: RowStates, dtype: torch.dtype = torch.float64) -> Tensor:
    """The variance of every head's output at every row, because both are uncertain: (rows, heads).

    It is [d; 1]ᵀ·C·[d; 1] + Σ v·(w² + C's diagonal), where v is the variance of the row's activation d.
    """
    activation, size = states.activation.to(dtype), heads.weight.shape[1] + 1
    doubt = None if states.variance is None else states.variance.to(dtype)
    variance = activation.new_zeros(len(states), len(heads))
    if doubt is not None:
        variance = doubt @ (heads.weight.to(dtype) ** 2).T
    if heads.covariance is None:
        return variance
    packed = heads.covariance.to(dtype)
    if len(activation) > 1 and 0 < len(heads) <= size // 2:  # few heads: no need to write all squares
        own = torch.stack([affine_form(activation, matrix) for matrix in unpack(packed, size)], dim=1)
        if doubt is not None:
            own = own + doubt @ diagonals(packed, size)[:, :-1].T
    else:
        own = quadratic_forms(append_one(activation), packed, doubt)
    return variance + own.clamp(min=0)
