"""Predictive distributions of cells, given heads and row states.

The output of a head (w, b) with covariance C at a row with activation d and variances v is Gaussian with

    mean      w·d + b
    variance  [d; 1]ᵀ·C·[d; 1] + Σ v·(w² + diagonal of C)

and the kind's link and noise determine the distribution of the value. ``moments`` computes the output for
the cells of a ``Layout``: some cells of each head, all cells of a grid, or a single cell in numpy. The output
of a click feature is multiplied by the root of the row's exposure: a row that sees little clicks little.

``draw_outputs`` and ``draw_scores`` draw all cells of a grid together. With (w_j, b_j) ~ N(m_j, C_j),
independent for each head j, and d_i ~ N(d̂_i, diag v_i), independent for each row i, the outputs have these
moments and the covariances

    of one head at rows i and k       [d̂_i; 1]ᵀ·C_j·[d̂_k; 1]
    of heads j and l at one row       Σ_a v_ia·w_ja·w_la

Cells of different rows and different heads are uncorrelated; so is the noise of all cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.clicks import is_click
from headstart.core.likelihood import Likelihood
from headstart.core.types import Heads, OneHead, RowStates
from headstart.linalg.array_ops import Array, probit_scale
from headstart.linalg.compact import StoredMatrices
from headstart.linalg.packed import (
    affine_quadratic_form,
    append_one,
    diagonals,
    make_positive_definite,
    quadratic_forms,
    unpack,
)
from headstart.linalg.ragged import sampled_products
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

_ONE = np.ones(1)

_MOST_DEVIATIONS = 4.0  # of a residual

_LEAST_SLOPE = 0.01  # of a logistic link: the variance of a binary value with the probability 0.01

_LEAST_NOISE = 1e-12

_PROBIT_NOISE = 8 / math.pi  # the variance of the normal noise whose probit link is close to the logistic one

_HEADS_AT_ONCE = 1024  # heads whose covariances are decomposed together, which bounds the memory


@dataclass(frozen=True)
class Predictive:
    """Distributions of cells' values on the models' scale: Gaussian outputs behind the links of the kinds."""

    logits: Tensor  # (…): the mean of the output w·d + b
    variance: Tensor  # (…): of the output, from the uncertainty of head and row
    noise: Tensor  # the variance of an observation; broadcasts to (…)
    kinds: Tensor  # the kind of each cell; broadcasts to (…)
    likelihood: Likelihood

    def at(self, cells: slice | Tensor) -> Predictive:
        """Return the distributions of some ``cells``, a slice or a mask of their one dimension."""
        parts = (self.logits[cells], self.variance[cells], self.noise[cells], self.kinds[cells])
        return Predictive(*parts, self.likelihood)

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

    def residuals(self, values: Tensor) -> Tensor:
        """Return values less their means, in standard deviations of an observation, at most ±4."""
        return ((values - self.mean) / self._deviations()[0]).clamp(-_MOST_DEVIATIONS, _MOST_DEVIATIONS)

    def shifted(self, residuals: Tensor) -> Predictive:
        """Return the distributions whose means are moved by ``residuals`` standard deviations.

        Behind a logistic link, the output moves by as much as the mean would along its tangent.
        """
        deviation, slope = self._deviations()
        return replace(self, logits=self.logits + residuals * (deviation / slope))

    def _deviations(self) -> tuple[Tensor, Tensor]:
        """Return the standard deviation of an observation, and the slope of the mean in the output."""
        binary, squashed = self.kinds == KindType.BINARY, self.likelihood.squashes(self.kinds)
        slope = (self.mean * (1 - self.mean)).clamp(min=_LEAST_SLOPE)
        deviation = torch.where(binary, slope, self.noise.clamp(min=_LEAST_NOISE)).sqrt()
        uncertain = self.variance + torch.where(binary, self.noise, 0.0)
        return deviation, torch.where(squashed, slope * probit_scale(uncertain), 1.0)

    def output_noise(self) -> Tensor:
        """Return the variance of an observation on the scale of the output: 1 / slope of a logistic link."""
        probability = torch.sigmoid(self.logits)
        logistic = 1 / (probability * (1 - probability)).clamp(min=1e-4)
        return torch.where(self.likelihood.squashes(self.kinds), logistic, self.noise)


class SingleState(Protocol):
    """Inputs of a head at one row, in numpy."""

    @property
    def activation(self) -> Array:
        """The activation: (width,)."""

    @property
    def noise(self) -> float | None:
        """The noise of the row's observations, relative to the average row."""

    @property
    def variance(self) -> Array | None:
        """The variances of the activation: (width,)."""

    @property
    def exposure(self) -> float | None:
        """The exposure of the row to click features."""


# -- layouts ----------------------------------------------------------------------------------------


class Layout(Protocol):
    """Arrangement of the cells to predict, which combines heads and rows at each cell."""

    def per_head(self, numbers: Any) -> Any:
        """Expand one number per head to the cells."""

    def per_row(self, numbers: Any) -> Any:
        """Expand one number per row to the cells."""

    def products(self, of_heads: Any, of_rows: Any) -> Any:
        """Compute the dot product of a vector per head and a vector per row at each cell."""

    def moments(self, heads: Any, states: Any) -> tuple[Any, Any]:
        """Return the mean and the variance of the output at each cell."""


class CellLayout(Layout):
    """Some cells of each head: the observations of ``cells``, with one line per head."""

    def __init__(self, cells: Cells) -> None:
        self.cells, self.lines = cells, cells.lines

    def per_head(self, numbers: Tensor) -> Tensor:
        """Expand (heads,) to (n,)."""
        return numbers[self.lines]

    def per_row(self, numbers: Tensor) -> Tensor:
        """Expand (rows,) to (n,)."""
        return numbers.index_select(0, self.cells.index)

    def products(self, of_heads: Tensor, of_rows: Tensor) -> Tensor:
        """Compute the dot products of (heads, width) and (rows, width) at each cell: (n,)."""
        return sampled_products(of_heads, of_rows, self.cells)

    def moments(self, heads: Heads, states: RowStates) -> tuple[Tensor, Tensor]:
        """Return means and variances of outputs: two of (n,)."""
        mean, variance = heads.outputs_at(states.activation, self.cells)
        if states.variance is not None:
            variance = variance + self.products(heads.mean_squares(), states.variance)
        return mean, variance


class GridLayout(Layout):
    """All rows at all heads: (rows, heads).

    ``positions`` (heads,) say where the heads' covariances are in a larger tensor, so that they need not be
    copied; None if the tensor has no others.
    """

    def __init__(self, positions: Tensor | None = None) -> None:
        self.positions = positions

    def per_head(self, numbers: Tensor) -> Tensor:
        """Return (heads,), which broadcasts over rows."""
        return numbers

    def per_row(self, numbers: Tensor) -> Tensor:
        """Return (rows, 1), which broadcasts over heads."""
        return numbers[:, None]

    def products(self, of_heads: Tensor, of_rows: Tensor) -> Tensor:
        """Compute the dot products of (heads, width) and (rows, width): (rows, heads)."""
        return of_rows @ of_heads.T

    def means(self, heads: Heads, activation: Tensor) -> Tensor:
        """Compute the means of outputs: (rows, heads)."""
        if len(activation) == 1:  # matrix · vector reads the weights in their memory order
            return torch.addmv(heads.bias, heads.weight, activation[0])[None]
        if len(heads) == 1:
            return (activation @ heads.weight[0] + heads.bias)[:, None]
        return torch.addmm(heads.bias, activation, heads.weight.T)

    def moments(self, heads: Heads, states: RowStates) -> tuple[Tensor, Tensor]:
        """Return means and variances of outputs: two of (rows, heads)."""
        activation, row_variance, size = states.activation, states.variance, heads.weight.shape[1] + 1
        mean, packed, positions = self.means(heads, activation), heads.covariance, self.positions
        few = 0 < len(heads) <= size // 2
        if isinstance(packed, StoredMatrices):
            stored = packed if positions is None else packed.index_select(0, positions)
            packed, positions = stored.to(activation.dtype).packed() if few else None, None
        if packed is None and isinstance(heads.covariance, StoredMatrices):
            variance = stored.forms(append_one(activation), row_variance)
        elif packed is None:
            variance = torch.zeros_like(mean)
        elif few and len(activation) > 1:  # avoid the squares of all rows
            packed = packed if positions is None else packed.index_select(0, positions)
            matrices = unpack(packed, size).to(activation.dtype)
            variance = torch.stack([affine_quadratic_form(activation, matrix) for matrix in matrices], dim=1)
            if row_variance is not None:
                weight_variance = diagonals(packed, size)[:, :-1].to(row_variance)
                variance = variance + self.products(weight_variance, row_variance)
        else:
            variance = quadratic_forms(append_one(activation), packed, row_variance, positions)
        variance = variance.clamp(min=0)
        if row_variance is None:
            return mean, variance
        return mean, variance + self.products(heads.weight**2, row_variance)


class SingleLayout(Layout):
    """One cell in numpy, because the overhead of tensors exceeds the arithmetic."""

    def per_head(self, numbers: Any) -> Any:
        """Return the head's number."""
        return numbers

    def per_row(self, numbers: Any) -> Any:
        """Return the row's number."""
        return numbers

    def products(self, of_heads: Array, of_rows: Array) -> Any:
        """Compute the dot product of two vectors (width,)."""
        return of_heads @ of_rows

    def moments(self, heads: OneHead, states: SingleState) -> tuple[Any, Any]:
        """Return mean and variance of the output."""
        vector = np.concatenate([states.activation, _ONE])
        variance = max(0.0, vector @ unpack(heads.covariance.astype(np.float64)) @ vector)
        if states.variance is not None:
            variance = variance + self.products(heads.mean_squares(), states.variance)
        return heads.weight.astype(np.float64) @ vector[:-1] + heads.bias, variance


GRID, SINGLE = GridLayout(), SingleLayout()


# -- predictions ------------------------------------------------------------------------------------


def observation_noise(layout: Layout, head_noise: Any, states: Any) -> Any:
    """Return the variance of an observation at each cell: the noise of the head times that of the row."""
    noise = layout.per_head(head_noise)
    return noise if states.noise is None else noise * layout.per_row(states.noise)


def _predict(
    layout: Layout, heads: Heads, states: RowStates, kinds: Tensor, likelihood: Likelihood
) -> Predictive:
    """Predict the cells of ``layout``."""
    noise = likelihood.noise(kinds) if heads.noise is None else heads.noise
    mean, variance = layout.moments(heads, states)
    if states.exposure is not None:
        exposure = torch.where(is_click(layout.per_head(kinds)), layout.per_row(states.exposure), 1.0)
        mean, variance = exposure.sqrt() * mean, exposure * variance
    noise = observation_noise(layout, noise.to(mean.dtype), states)
    return Predictive(mean, variance, noise, layout.per_head(kinds), likelihood)


def predict_cells(
    heads: Heads, states: RowStates, cells: Cells, kinds: Tensor, likelihood: Likelihood
) -> Predictive:
    """Predict some cells of each head: (n,).

    ``cells`` has one line per head and indexes rows of ``states``; ``kinds`` (heads,) are the kinds of the
    features.
    """
    return _predict(CellLayout(cells), heads, states, kinds, likelihood)


def predict_grid(
    heads: Heads,
    states: RowStates,
    kinds: Tensor,
    likelihood: Likelihood,
    dtype: torch.dtype = torch.float64,
    positions: Tensor | None = None,
) -> Predictive:
    """Predict all rows at all heads: (rows, heads), by default in double precision.

    In double precision the prediction of a cell does not depend on the other cells of the grid. ``positions``
    (heads,) say where the heads' covariances are in ``heads.covariance``, by default in the order of the
    heads.
    """
    parts = (states.noise, states.variance, states.exposure)
    noise, variance, exposure = (None if part is None else part.to(dtype) for part in parts)
    activation = states.activation.to(dtype)
    states = replace(states, activation=activation, noise=noise, variance=variance, exposure=exposure)
    # A copy of all covariances in double precision would take most of the time.
    weight, bias = heads.weight.to(dtype), heads.bias.to(dtype)
    noise = None if heads.noise is None else heads.noise.to(dtype)
    heads = Heads(weight, bias, heads.covariance, noise)
    layout = GRID if positions is None else GridLayout(positions)
    return _predict(layout, heads, states, kinds, likelihood)


def predict_cell(head: OneHead, state: SingleState, kind: int, likelihood: Likelihood) -> tuple[float, float]:
    """Return mean and standard deviation of a single cell, as ``predict_grid`` does."""
    mean, variance = SINGLE.moments(head, state)
    if state.exposure is not None and is_click(kind):
        mean, variance = math.sqrt(state.exposure) * mean, state.exposure * variance
    noise = observation_noise(SINGLE, head.noise, state)
    mean, total = likelihood.predictive_of_kind(mean, variance, noise, kind)
    return float(mean), math.sqrt(total)


def grid_logits(heads: Heads, states: RowStates, dtype: torch.dtype = torch.float64) -> Tensor:
    """Compute the mean outputs of all heads at all rows, without variances: (rows, heads)."""
    return GRID.means(heads.to(dtype), states.activation.to(dtype))


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
