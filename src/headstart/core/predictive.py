"""Predict the distribution of a cell's value from a head and a row state.

The output of a head (w, b) with covariance C at a row with activation d and variances v is Gaussian with

    mean      w·d + b
    variance  [d; 1]ᵀ·C·[d; 1] + Σ v·(w² + diagonal of C)

and the value's distribution follows by its kind's link and noise. ``moments`` computes the output for the
cells of a ``Layout``: some cells of each head, all cells of a grid, or a single cell in numpy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headstart.core.likelihood import Likelihood
from headstart.core.types import Heads, OneHead, RowStates
from headstart.linalg.array_ops import Array
from headstart.linalg.packed import affine_form, append_one, quadratic_forms, unpack
from headstart.linalg.ragged import outputs_at, sampled_products
from headstart.table.cells import Cells

_ONE = np.ones(1)

_CELLS_AT_ONCE = 2**24  # bounds the memory of a dense product of heads and rows


@dataclass(frozen=True)
class Predictive:
    """The distribution of each value on the models' scale: a Gaussian output behind its kind's link."""

    logits: Tensor  # the mean of the output w·d + b; any shape
    variance: Tensor  # of the output, because head and row are uncertain; same shape
    noise: Tensor  # the variance of an observation; broadcasts to that shape
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
        """Return the negative log-likelihood of ``values``."""
        return self.likelihood.predictive_nll(self.logits, self.variance, self.noise, values, self.kinds)

    def output_noise(self) -> Tensor:
        """Return the variance of an observation about the output: 1 / slope behind a logistic link."""
        chance = torch.sigmoid(self.logits)
        logistic = 1 / (chance * (1 - chance)).clamp(min=1e-4)
        return torch.where(self.likelihood.squashes(self.kinds), logistic, self.noise)


class SingleState(Protocol):
    """The numbers of one row that a head reads, in numpy."""

    @property
    def activation(self) -> Array:
        """The activation: (width,)."""

    @property
    def noise(self) -> float | None:
        """The noise of the row's observations, relative to the usual."""

    @property
    def variance(self) -> Array | None:
        """The variances of the activation: (width,)."""


# -- layouts ----------------------------------------------------------------------------------------


class Layout(Protocol):
    """The cells to predict: how numbers of heads and of rows are combined at each of them."""

    def per_head(self, numbers: Any) -> Any:
        """Bring one number per head to the cells."""

    def per_row(self, numbers: Any) -> Any:
        """Bring one number per row to the cells."""

    def products(self, of_heads: Any, of_rows: Any) -> Any:
        """Compute the dot product of a vector per head and a vector per row at each cell."""

    def outputs(self, heads: Any, activation: Any) -> tuple[Any, Any]:
        """Compute w·d + b and [d; 1]ᵀ·C·[d; 1] at each cell."""


class CellLayout(Layout):
    """Some cells of each head: one number per observation of ``cells``, whose lines are heads."""

    def __init__(self, cells: Cells) -> None:
        self.cells, self.lines = cells, cells.lines

    def per_head(self, numbers: Tensor) -> Tensor:
        """Return (heads,) at each cell: (n,)."""
        return numbers[self.lines]

    def per_row(self, numbers: Tensor) -> Tensor:
        """Return (rows,) at each cell: (n,)."""
        return numbers.index_select(0, self.cells.index)

    def products(self, of_heads: Tensor, of_rows: Tensor) -> Tensor:
        """Multiply (heads, width) and (rows, width) at each cell: (n,)."""
        return sampled_products(of_heads, of_rows, self.cells)

    def outputs(self, heads: Heads, activation: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the outputs' means, and their variances because of the heads: two of (n,)."""
        if heads.covariance is not None:
            stacked = torch.cat([heads.weight, heads.bias[:, None]], dim=1)
            mean, variance = outputs_at(stacked, heads.covariance, activation, self.cells)
            return mean, variance.clamp(min=0)
        every = torch.arange(len(heads), device=self.cells.index.device)
        parts = torch.split(every, max(1, _CELLS_AT_ONCE // max(1, len(activation))))
        products = [
            sampled_products(
                heads.weight[part], activation, self.cells.take(part) if len(parts) > 1 else self.cells
            )
            for part in parts
        ]
        mean = torch.cat([activation.new_zeros(0), *products]) + self.per_head(heads.bias)
        return mean, torch.zeros_like(mean)


class GridLayout(Layout):
    """Every row at every head: (rows, heads)."""

    def per_head(self, numbers: Tensor) -> Tensor:
        """Return (heads,), which broadcasts over rows."""
        return numbers

    def per_row(self, numbers: Tensor) -> Tensor:
        """Return (rows, 1), which broadcasts over heads."""
        return numbers[:, None]

    def products(self, of_heads: Tensor, of_rows: Tensor) -> Tensor:
        """Multiply (heads, width) and (rows, width): (rows, heads)."""
        return of_rows @ of_heads.T

    def means(self, heads: Heads, activation: Tensor) -> Tensor:
        """Compute the outputs' means: (rows, heads)."""
        if len(activation) == 1:  # a product with one vector reads the weights in their order in memory
            return torch.addmv(heads.bias, heads.weight, activation[0])[None]
        if len(heads) == 1:
            return (activation @ heads.weight[0] + heads.bias)[:, None]
        return torch.addmm(heads.bias, activation, heads.weight.T)

    def outputs(self, heads: Heads, activation: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the outputs' means, and their variances because of the heads: two of (rows, heads)."""
        mean, packed, size = self.means(heads, activation), heads.covariance, heads.weight.shape[1] + 1
        if packed is None:
            return mean, torch.zeros_like(mean)
        if len(activation) > 1 and 0 < len(heads) <= size // 2:  # few heads: no need to write all squares
            forms = [affine_form(activation, matrix) for matrix in unpack(packed, size)]
            variance = torch.stack(forms, dim=1)
        else:
            variance = quadratic_forms(append_one(activation), packed)
        return mean, variance.clamp(min=0)


class SingleLayout(Layout):
    """One cell in numpy: the overhead of tensors would cost more than the arithmetic."""

    def per_head(self, numbers: Any) -> Any:
        """Return the head's number."""
        return numbers

    def per_row(self, numbers: Any) -> Any:
        """Return the row's number."""
        return numbers

    def products(self, of_heads: Array, of_rows: Array) -> Any:
        """Multiply two vectors (width,)."""
        return of_heads @ of_rows

    def outputs(self, heads: OneHead, activation: Array) -> tuple[Any, Any]:
        """Compute the output's mean, and its variance because of the head."""
        vector = np.concatenate([activation, _ONE])
        variance = vector @ unpack(heads.covariance.astype(np.float64)) @ vector
        return heads.weight.astype(np.float64) @ vector[:-1] + heads.bias, max(0.0, variance)


GRID, SINGLE = GridLayout(), SingleLayout()


# -- predictions ------------------------------------------------------------------------------------


def moments(layout: Layout, heads: Any, states: Any) -> tuple[Any, Any]:
    """Return the mean and the variance of the output at each cell of a layout."""
    mean, variance = layout.outputs(heads, states.activation)
    if states.variance is not None:
        variance = variance + layout.products(heads.mean_squares(), states.variance)
    return mean, variance


def observation_noise(layout: Layout, head_noise: Any, states: Any) -> Any:
    """Return the variance of an observation at each cell: that of the head, scaled by that of the row."""
    noise = layout.per_head(head_noise)
    return noise if states.noise is None else noise * layout.per_row(states.noise)


def _predict(
    layout: Layout, heads: Heads, states: RowStates, kinds: Tensor, likelihood: Likelihood
) -> Predictive:
    noise = likelihood.noise(kinds) if heads.noise is None else heads.noise
    mean, variance = moments(layout, heads, states)
    noise = observation_noise(layout, noise.to(mean.dtype), states)
    return Predictive(mean, variance, noise, layout.per_head(kinds), likelihood)


def predict_cells(
    heads: Heads, states: RowStates, cells: Cells, kinds: Tensor, likelihood: Likelihood
) -> Predictive:
    """Predict some cells of each head: one number per observation, (n,).

    ``cells`` has one line per head and points at rows of ``states``; ``kinds`` (heads,) are their kinds.
    """
    return _predict(CellLayout(cells), heads, states, kinds, likelihood)


def predict_grid(
    heads: Heads,
    states: RowStates,
    kinds: Tensor,
    likelihood: Likelihood,
    dtype: torch.dtype = torch.float64,
) -> Predictive:
    """Predict every row at every head: (rows, heads), by default in double precision.

    In double precision the prediction of a cell does not depend on the other cells of the grid.
    """
    return _predict(GRID, heads.to(dtype), _converted(states, dtype), kinds, likelihood)


def predict_cell(head: OneHead, state: SingleState, kind: int, likelihood: Likelihood) -> tuple[float, float]:
    """Return mean and standard deviation of a single cell, as ``predict_grid`` does."""
    mean, variance = moments(SINGLE, head, state)
    noise = observation_noise(SINGLE, head.noise, state)
    mean, total = likelihood.predictive_of_kind(mean, variance, noise, kind)
    return float(mean), math.sqrt(total)


def grid_logits(heads: Heads, states: RowStates, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the mean output of every head at every row, without its variance: (rows, heads)."""
    return GRID.means(heads.to(dtype), states.activation.to(dtype))


def grid_variance(heads: Heads, states: RowStates, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the variance of every head's output at every row: (rows, heads)."""
    variance: Tensor = moments(GRID, heads.to(dtype), _converted(states, dtype))[1]
    return variance


def _converted(states: RowStates, dtype: torch.dtype) -> RowStates:
    """Return the states with the parts that heads read in another precision."""
    noise, variance = (None if part is None else part.to(dtype) for part in (states.noise, states.variance))
    return replace(states, activation=states.activation.to(dtype), noise=noise, variance=variance)
