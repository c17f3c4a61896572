"""Gaussian posterior of the factors of rows, given their observations; used by the factorisation.

The model of a value x is u·v + b plus noise, with the row's factors u and the feature's uncertain head
(v, b). Given a weight ω and a weighted value t of each observation, the posterior of u has

    precision  Λ = Λ₀ + Σ ω·E[v·vᵀ]
    mean       Λ⁻¹·(Λ₀·m + Σ (t·v − ω·E[v·b]))

with the prior mean m and precision Λ₀. A rating has ω = precision · relative precision of its row, t = ω·x.
The relative precision, and the weights of binary and real observations, depend on the posterior: a few
fixed-point iterations find them.

The formulas work on tensors with a leading dimension of rows, and on numpy arrays of a single row. Only the
products over observations depend on the storage of the observations:

- ``RowBatch``: rows × features as a sparse matrix beside the moments of all features, for many rows;
- ``SparseRows``: the same with covariances beside heads, in double precision, for some rows;
- ``SingleRow``: one row in numpy, because the overhead of tensors exceeds the arithmetic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headstart.core.clicks import count_clicks, estimate_exposure, is_click, weigh_click_values, weigh_clicks
from headstart.core.types import Heads, OneRow
from headstart.linalg import packed
from headstart.linalg.array_ops import Array, at_least, jaakkola_slope, namespace
from headstart.linalg.packed import append_one, outer_products, unpack
from headstart.linalg.ragged import column_sums, sampled_products, segment_sum, segment_weighted_sum
from headstart.linalg.row_sharded import second_moment
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

AnyArray = Any
"""A tensor for a batch of rows, or a numpy array for a single row."""

NOISE_SHOTS = 5.0  # pseudo-observations of average noise in the noise estimate of a row or feature

RATING_PASSES, OTHER_PASSES = 3, 5  # more if the weights of observations depend on the row

_MAX_SQUARED_RESIDUAL = 25.0  # squared standardised residual from which the influence of a real is constant


# -- arrays of torch and numpy ----------------------------------------------------------------------
#
# Symmetric matrices of a batch are packed, for memory and for sparse products; a single row's is square.


def _traces(left: AnyArray, right: AnyArray) -> AnyArray:
    """Compute the traces tr(M·N) of symmetric matrices: (…)."""
    return packed.traces(left, right) if isinstance(left, Tensor) else np.vdot(left, right)


def _inner_and_cross(matrices: AnyArray, latent: int) -> tuple[AnyArray, AnyArray]:
    """Split matrices over (v, b) into the block of v and the column (…, latent) of v and b."""
    if isinstance(matrices, Tensor):
        bias = packed.packed_size(latent)  # the first entry of the bias in a packed matrix
        return matrices[..., :bias], matrices[..., bias:-1]
    return matrices[:-1, :-1], matrices[:-1, -1]


def _solve(precision: AnyArray, linear: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return means and covariances of Gaussians with ``precision`` and ``linear`` = precision · mean."""
    if not isinstance(precision, Tensor):
        return packed.solve(precision, linear)
    means, covariances = packed.solve(unpack(precision, linear.shape[-1]), linear)
    return means, packed.pack(covariances)


def have_row_weights(kinds: AnyArray) -> bool:
    """Return whether the weights of observations depend on the row for any of ``kinds``: not for ratings."""
    return bool((kinds != KindType.RATING).any())


# -- priors and posteriors --------------------------------------------------------------------------


@dataclass(frozen=True)
class RowPosterior:
    """Gaussian posteriors of rows' factors, and the precision of the rows' observations."""

    mean: AnyArray  # (…, latent)
    covariance: AnyArray  # (rows, packed) of a batch, (latent, latent) of a single row
    relative_precision: AnyArray  # (…): precision of a row's observations relative to the average row

    @property
    def variance(self) -> AnyArray:
        """The variances of the factors: (…, latent)."""
        if isinstance(self.covariance, Tensor):
            return packed.diagonals(self.covariance, self.mean.shape[1])
        return self.covariance.diagonal()

    def moments(self) -> AnyArray:
        """Return E[(u, 1)(u, 1)ᵀ] of each row, packed as ``covariance`` is."""
        if isinstance(self.mean, Tensor):
            packed_moments = outer_products(append_one(self.mean))
            packed_moments[:, : self.covariance.shape[-1]] += self.covariance  # the bias comes last
            return packed_moments
        moments = np.empty((len(self.mean) + 1, len(self.mean) + 1))
        moments[:-1, :-1] = self.mean[:, None] * self.mean + self.covariance
        moments[:-1, -1] = moments[-1, :-1] = self.mean
        moments[-1, -1] = 1.0
        return moments

    def at(self, rows: slice) -> RowPosterior:
        """Return the posteriors of some rows as views."""
        return RowPosterior(self.mean[rows], self.covariance[rows], self.relative_precision[rows])

    def put(self, rows: slice, posterior: RowPosterior) -> None:
        """Overwrite the posteriors of some ``rows`` in place; used in training only."""
        self.mean[rows] = posterior.mean
        self.covariance[rows] = posterior.covariance
        self.relative_precision[rows] = posterior.relative_precision

    def mean_moment(self) -> Tensor:
        """Compute the mean of E[(u, 1)(u, 1)ᵀ] over the rows of all processes: (latent + 1, latent + 1)."""
        covariances = unpack(column_sums(self.covariance), self.mean.shape[1])
        return second_moment(self.mean, covariances)


class FactorPrior(NamedTuple):
    """Gaussian prior of rows' factors: a mean for each row, and one covariance."""

    mean: AnyArray  # (…, latent)
    covariance: AnyArray  # (packed,) for a batch, (latent, latent) for a single row
    precision: AnyArray  # (latent, latent)

    def as_posterior(self) -> RowPosterior:
        """Return the prior as the posterior of rows without observations."""
        return RowPosterior(self.mean, self.covariance, namespace(self.mean).ones_like(self.mean[..., 0]))


def relative_precision(counts: AnyArray, squared_errors: AnyArray) -> AnyArray:
    """Estimate the precision of observations relative to the average, shrunk to 1: (…).

    ``squared_errors`` are sums over ``counts`` observations, weighted by the average precision.
    """
    return (NOISE_SHOTS + counts) / (NOISE_SHOTS + at_least(squared_errors, 0.0))


class RatingSums(NamedTuple):
    """Sums over each row's ratings, weighted by their precision ω at a row of average noise."""

    counts: AnyArray  # (…): the number of ratings, or the sum of their weights
    squares: AnyArray  # (…): Σ ω·x²
    linear: AnyArray  # (…, latent + 1): Σ ω·x·(v, b)
    total: AnyArray  # Σ ω·E[(v, b)(v, b)ᵀ]: (rows, packed), or (latent + 1, latent + 1)

    def squared_errors(self, now: RowPosterior) -> AnyArray:
        """Compute the expected squared error of each row's predictions, weighted by precision: (…)."""
        if isinstance(now.mean, Tensor):
            explained = (self.linear * append_one(now.mean)).sum(1)
        else:
            explained = self.linear[:-1] @ now.mean + self.linear[-1]
        return self.squares - 2 * explained + _traces(self.total, now.moments())

    def relative_precision(self, now: RowPosterior) -> AnyArray:
        """Estimate the relative precision of each row's ratings, shrunk to 1: (…)."""
        return relative_precision(self.counts, self.squared_errors(now))


# -- observations -----------------------------------------------------------------------------------


class Zeros(NamedTuple):
    """Zeros of a row that has been shown all click features; see ``core.clicks``."""

    moments: Tensor  # (packed,): Σ weight · E[(v, b)(v, b)ᵀ] over click features
    usual_clicks: Tensor  # (): of a row, at which its exposure is 1


@dataclass(frozen=True)
class HeadMoments:
    """First and second moments of the heads of some features, with kinds and precisions."""

    heads: Tensor  # (features, latent + 1): the means of (v, b)
    second: Tensor  # (features, packed): E[(v, b)(v, b)ᵀ]
    kinds: Tensor  # (features,)
    precision: Tensor  # (features,): of an observation that is not binary, at a row of average noise
    zeros: Zeros | None = None  # None without clicks

    @classmethod
    def of(cls, heads: Heads, kinds: Tensor, zeros: Zeros | None = None) -> HeadMoments:
        """Compute the moments of heads that have a covariance and a noise."""
        stacked = heads.stacked
        noise = torch.ones_like(heads.bias) if heads.noise is None else heads.noise
        return cls(stacked, heads.packed_covariance + outer_products(stacked), kinds, 1 / noise, zeros)

    @property
    def has_row_weights(self) -> bool:
        """Whether the weight of any observation depends on its row, as for all kinds but ratings."""
        return have_row_weights(self.kinds)


def row_zeros(cells: Cells, kinds: Tensor, zeros: Zeros) -> Tensor:
    """Return Σ weight · E[(v, b)(v, b)ᵀ] over the zeros of each row: (rows, packed)."""
    exposure = estimate_exposure(count_clicks(cells, kinds), zeros.usual_clicks)
    total: Tensor = exposure[:, None].to(zeros.moments.dtype) * zeros.moments
    return total


class ObservedRows(ABC):
    """Observations of some rows, each with the moments of its feature's head.

    Subclasses implement the two products over observations, ``sums`` and ``outputs``, and ``by_row``.
    """

    values: AnyArray  # (n,): on the models' scale
    weights: AnyArray | None  # (n,): of the observations; None: all 1
    kinds: AnyArray  # (n,): of the features
    precision: AnyArray  # (n,): of an observation that is not binary, at a row of average noise
    has_row_weights: bool  # whether the weight of any observation depends on its row
    zeros: AnyArray | None = None  # Σ weight · E[(v, b)(v, b)ᵀ] over all zeros of a row's clicks

    @abstractmethod
    def sums(self, weights: AnyArray, values: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Compute Σ weight · E[(v, b)(v, b)ᵀ], and Σ value · (v, b) (…, latent + 1), of each row."""

    @abstractmethod
    def outputs(self, now: RowPosterior) -> tuple[AnyArray, AnyArray]:
        """Compute E[u·v + b] and E[(u·v + b)²] of each observation: two arrays (n,)."""

    @abstractmethod
    def by_row(self, *numbers: AnyArray) -> tuple[AnyArray, ...]:
        """Sum each array of ``numbers`` (n,) over the observations of each row: (…)."""

    def weigh(self, numbers: AnyArray) -> AnyArray:
        """Multiply ``numbers`` (n,) of the observations by their weights."""
        return numbers if self.weights is None else numbers * self.weights

    @cached_property
    def ratings(self) -> RatingSums | None:
        """The sums over each row's ratings; None if no feature is a rating."""
        if self.has_row_weights:
            rated = self.kinds == KindType.RATING
            if not bool(rated.any()):
                return None
        xp = namespace(self.values)
        counted = xp.ones_like(self.precision)
        if self.has_row_weights:
            counted = xp.where(rated, counted, 0.0)
        counted = self.weigh(counted)
        weights = self.precision * counted
        total, linear = self.sums(weights, weights * self.values)
        squared, counts = self.by_row(weights * self.values**2, counted)
        return RatingSums(counts, squared, linear, total)

    def relative_precision(self, now: RowPosterior, *, noisy: bool) -> AnyArray:
        """Estimate the relative precision of each row's ratings; if not ``noisy``, return 1: (…).

        Reals do not count: a row of large values has large errors although its values are right.
        """
        if not noisy or self.ratings is None:
            return namespace(now.mean).ones_like(now.relative_precision)
        return self.ratings.relative_precision(now)

    def total_terms(self, now: RowPosterior, relative: AnyArray, *, new: bool) -> tuple[AnyArray, AnyArray]:
        """Compute ``sums`` over all observations; ``relative`` (…) scales the weights of ratings."""
        total, linear = None, None
        if self.ratings is not None:
            scale = relative[..., None]  # for a single row (1,), which broadcasts to its matrix
            total, linear = scale * self.ratings.total, scale * self.ratings.linear
        if self.has_row_weights:
            others = self.sums(*self.gaussian_terms(now, new=new))
            total, linear = others if total is None else (total + others[0], linear + others[1])
        return total if self.zeros is None else total + self.zeros, linear

    def gaussian_terms(self, now: RowPosterior, *, new: bool = False) -> tuple[AnyArray, AnyArray]:
        """Approximate binary and real observations by Gaussian ones: weight and weight · value, each (n,).

        A binary observation has the weight of Jaakkola and Jordan's bound. A real one beyond five standard
        deviations loses weight (winsorising), because it can be an error in the data. The standard
        deviation is that of the noise or, if ``now`` is a prior (``new``), that of noise and prior together,
        so that a row of only large values does not count as a row of errors. A click is an observation of 1.
        Ratings get 0.
        """
        xp, (binary, real, weights) = namespace(self.values), self.masks
        values = weights
        if binary is None and real is None:
            weights = self.weigh(weights)
            return weights, weights
        mean, second = self.outputs(now)
        if binary is not None:
            bound = jaakkola_slope(xp.sqrt(at_least(second, 0.0)))  # tightest at √E[(u·v + b)²]
            weights = xp.where(binary, bound, weights)
            values = xp.where(binary, self.values - 0.5, values)
        if real is not None:
            uncertainty, squared = at_least(second - mean**2, 0.0), (self.values - mean) ** 2
            if new:
                squared = squared / (1 / self.precision + uncertainty)
            else:
                squared = (squared + uncertainty) * self.precision
            winsorised = self.precision * (_MAX_SQUARED_RESIDUAL / at_least(squared, _MAX_SQUARED_RESIDUAL))
            weights = xp.where(real, winsorised, weights)
            values = xp.where(real, winsorised * self.values, values)
        return self.weigh(weights), self.weigh(values)

    @cached_property
    def masks(self) -> tuple[AnyArray | None, AnyArray | None, AnyArray]:
        """The masks of binary and of real observations, None if there are none, and the weights of clicks.

        The weights (n,) are 0 for other kinds.
        """
        xp = namespace(self.values)
        binary, real = self.kinds == KindType.BINARY, self.kinds == KindType.REAL
        clicks = xp.where(is_click(self.kinds), self.precision, xp.zeros_like(self.precision))
        return binary if bool(binary.any()) else None, real if bool(real.any()) else None, clicks

    def terms(self, now: RowPosterior, rating_weights: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Return weight and weight · value of all observations; ratings have the ``rating_weights`` (n,)."""
        rating_weights = self.weigh(rating_weights)
        rating_values = rating_weights * self.values
        if not self.has_row_weights:
            return rating_weights, rating_values
        xp, rated = namespace(self.values), self.kinds == KindType.RATING
        weights, values = self.gaussian_terms(now)
        return xp.where(rated, rating_weights, weights), xp.where(rated, rating_values, values)


class RowBatch(ObservedRows):
    """Rows × features as a sparse matrix, beside a table of the features' moments."""

    def __init__(self, cells: Cells, moments: HeadMoments) -> None:
        cells = weigh_clicks(cells, moments.kinds)
        self.cells, self.moments, self.values = cells, moments, cells.values
        self.zeros = None if moments.zeros is None else row_zeros(cells, moments.kinds, moments.zeros)
        self.weights = None if cells.weights is None else cells.weights.to(moments.precision.dtype)
        self.has_row_weights = moments.has_row_weights

    @cached_property
    def kinds(self) -> Tensor:
        """Kinds of the observations' features: (n,)."""
        return self.moments.kinds[self.cells.index]

    @cached_property
    def precision(self) -> Tensor:
        """Precisions of the observations at a row of average noise: (n,)."""
        return self.moments.precision[self.cells.index]

    def sums(self, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Compute sums by sparse products."""
        return (
            segment_weighted_sum(self.moments.second, self.cells, weights),
            segment_weighted_sum(self.moments.heads, self.cells, values),
        )

    def outputs(self, now: RowPosterior) -> tuple[Tensor, Tensor]:
        """Compute outputs by a dense or a sampled product, whichever costs less."""
        return (
            sampled_products(append_one(now.mean), self.moments.heads, self.cells),
            sampled_products(_doubled_moments(now), self.moments.second, self.cells),
        )

    def by_row(self, *numbers: Tensor) -> tuple[Tensor, ...]:
        """Sum each array of ``numbers`` (n,) over the observations of each row: (rows,)."""
        return segment_sum(torch.stack(numbers, dim=1), self.cells.indptr).unbind(1)


class SparseRows(ObservedRows):
    """Some rows × features as a sparse matrix, beside the heads of the features, in double precision.

    Second moments stay separated into covariances, in their own precision, and products of heads, which saves
    memory accesses: the covariances are read by one sparse product, and never gathered.
    """

    def __init__(self, cells: Cells, heads: Heads, kinds: Tensor, zeros: Zeros | None = None) -> None:
        cells = weigh_clicks(cells, kinds)
        self.cells, self.values = cells, cells.values.double()
        self.zeros = None if zeros is None else row_zeros(cells, kinds, zeros).double()
        self.weights = None if cells.weights is None else cells.weights.double()
        self.kinds = kinds.index_select(0, cells.index)
        noise = torch.ones_like(heads.bias) if heads.noise is None else heads.noise
        self.precision = 1 / noise.index_select(0, cells.index).double()
        self.covariance = heads.packed_covariance  # (features, packed)
        self.heads = heads.stacked.index_select(0, cells.index).double()  # (n, latent + 1)
        ends = cells.indptr.tolist()
        self.parts = [slice(start, end) for start, end in pairwise(ends)]  # the observations of each row
        self.has_row_weights = have_row_weights(self.kinds)

    def sums(self, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Compute sums by Gram matrices of the heads, and a sparse product with the covariances."""
        rows, size = len(self.parts), self.heads.shape[1]
        heads, numbers = self.heads.numpy(), values.numpy()
        scaled = (self.heads * weights.sqrt()[:, None]).numpy()
        total, linear = np.empty((rows, size, size)), np.empty((rows, size))
        for row, part in enumerate(self.parts):
            np.matmul(scaled[part].T, scaled[part], out=total[row])
            np.matmul(numbers[part], heads[part], out=linear[row])
        from_covariances = segment_weighted_sum(
            self.covariance, self.cells, weights.to(self.covariance.dtype)
        )
        return torch.from_numpy(packed.pack(total)) + from_covariances, torch.from_numpy(linear)

    def outputs(self, now: RowPosterior) -> tuple[Tensor, Tensor]:
        """Compute outputs by products of the heads with the rows' moments."""
        mean = (self.heads * append_one(now.mean)[self.cells.lines]).sum(1)
        heads, moments = self.heads.numpy(), unpack(now.moments(), self.heads.shape[1]).numpy()
        products = np.empty(heads.shape)
        for row, part in enumerate(self.parts):
            np.matmul(heads[part], moments[row], out=products[part])
        doubled = _doubled_moments(now).to(self.covariance.dtype)
        second = torch.from_numpy((products * heads).sum(1))
        return mean, second + sampled_products(doubled, self.covariance, self.cells)

    def by_row(self, *numbers: Tensor) -> tuple[Tensor, ...]:
        """Sum each array of ``numbers`` (n,) over the observations of each row: (rows,)."""
        return segment_sum(torch.stack(numbers, dim=1), self.cells.indptr).unbind(1)


class SingleRow(ObservedRows):
    """One row in numpy.

    Second moments stay separated into covariances and products of heads, which saves memory accesses.
    """

    def __init__(self, row: OneRow, zeros: tuple[Array, float] | None = None) -> None:
        self.values, self.weights, self.kinds = row.values, row.weights, row.kinds
        self.has_row_weights = have_row_weights(row.kinds)
        if self.has_row_weights:
            self.values, self.weights = weigh_click_values(row.values, row.weights, row.kinds)
        if zeros is not None:
            self.zeros = estimate_exposure(is_click(row.kinds).sum(), zeros[1]) * zeros[0]
        self.heads, self.covariance = row.heads, row.covariance
        self.precision = 1 / row.noise.astype(np.float64)

    def sums(self, weights: Array, values: Array) -> tuple[Array, Array]:
        """Compute sums by a Gram matrix of the heads and a product with their covariances."""
        scaled = self.heads * np.sqrt(weights)[:, None]
        from_covariances = packed.unpack(weights.astype(self.covariance.dtype) @ self.covariance)
        return scaled.T @ scaled + from_covariances, values @ self.heads

    def outputs(self, now: RowPosterior) -> tuple[Array, Array]:
        """Compute outputs by products of the heads with the row's moments."""
        moments = now.moments()
        doubled = (packed.pack(moments) * packed.trace_weights_one(len(moments))).astype(
            self.covariance.dtype
        )
        second = ((self.heads @ moments) * self.heads).sum(1) + self.covariance @ doubled
        return self.heads[:, :-1] @ now.mean + self.heads[:, -1], second

    def by_row(self, *numbers: Array) -> tuple[Array, ...]:
        """Sum each array of ``numbers`` (n,) over the observations: ()."""
        return tuple(part.sum() for part in numbers)


def _doubled_moments(now: RowPosterior) -> Tensor:
    """Return packed moments whose dot product with a packed matrix M is tr(moments·M): (rows, packed)."""
    moments: Tensor = now.moments()
    return moments * packed.trace_weights(now.mean.shape[1] + 1, moments.device, moments.dtype)


# -- the posterior ----------------------------------------------------------------------------------


def count_passes(kinds: Tensor, *, noisy: bool) -> int:
    """Return the number of passes for rows of a table whose features have these ``kinds``.

    It does not depend on the row, so that a row has the same state in every batch. One pass over clicks, or
    over ratings if rows are not ``noisy``, is exact.
    """
    if bool(is_click(kinds).all()):
        return 1
    return OTHER_PASSES if have_row_weights(kinds) else RATING_PASSES if noisy else 1


def row_posterior(
    rows: ObservedRows,
    prior: FactorPrior,
    passes: int,
    start: RowPosterior | None = None,
    *,
    noisy: bool = True,
) -> RowPosterior:
    """Compute the posteriors of rows' factors by a few fixed-point iterations.

    Parameters
    ----------
    rows : ObservedRows
        The observations.
    prior : FactorPrior
        The prior of the rows' factors.
    passes : int
        The number of passes; see ``count_passes``.
    start : RowPosterior, optional
        The posterior to begin with, by default the prior.
    noisy : bool, default=True
        Whether to estimate the precision of each row's ratings.
    """
    now = prior.as_posterior() if start is None else start
    latent = now.mean.shape[-1]
    prior_linear = prior.mean @ prior.precision
    prior_precision = prior.precision
    if isinstance(prior_linear, Tensor):
        prior_precision = packed.pack(prior_precision)
    before: tuple[AnyArray, AnyArray] | None = None  # the terms of the last pass
    for turn in range(passes):
        new = turn == 0 and start is None
        relative = now.relative_precision if new else rows.relative_precision(now, noisy=noisy)
        terms = rows.total_terms(now, relative, new=new)
        if before is not None and _equal(terms, before):  # further passes would change nothing, either
            return replace(now, relative_precision=relative)
        (total, linear), before = terms, terms
        inner, cross = _inner_and_cross(total, latent)
        mean, covariance = _solve(prior_precision + inner, prior_linear + (linear[..., :-1] - cross))
        now = RowPosterior(mean, covariance, relative)
    return now


def _equal(terms: tuple[AnyArray, AnyArray], others: tuple[AnyArray, AnyArray]) -> bool:
    """Return whether two sums of terms are equal, as those of reals without outliers are after one pass."""
    (total, linear), (other_total, other_linear) = terms, others
    return bool((linear == other_linear).all()) and bool((total == other_total).all())


def row_contributions(
    rows: RowBatch, prior: FactorPrior, passes: int, usual: Tensor, shifts: Tensor, *, noisy: bool = True
) -> Tensor:
    """Decompose the posterior mean of one row minus ``usual`` (latent,): (shifts + n, latent).

    Given the weights ω of the observations, the mean u solves Λ·u = Λ₀·m + Σ (t·v − ω·E[v·b]). Subtracting
    Λ·m₀ with the mean m₀ = ``usual`` of a row without observations,

        u − m₀ = Λ⁻¹·Λ₀·(m − m₀) + Σ Λ⁻¹·(t·v − ω·(E[v·b] + E[v·vᵀ]·m₀)),

    so the contribution of an observation depends on its difference from the value expected for a row without
    observations. The ``shifts`` (shifts, latent) are the parts of m − m₀; the zeros of clicks, a part of the
    choice of features, add to the first. The result is in double precision.
    """
    before = row_posterior(rows, prior, passes - 1, noisy=noisy)
    relative = rows.relative_precision(before, noisy=noisy)  # the value of the last pass
    terms = rows.terms(before, relative.double() * rows.precision.double())
    weights, values = (part.double()[:, None] for part in terms)
    heads = rows.moments.heads[rows.cells.index].double()
    second = unpack(rows.moments.second[rows.cells.index].double(), heads.shape[1])
    inner, cross = second[:, :-1, :-1], second[:, :-1, -1]
    prior_precision = prior.precision.double()
    precision = prior_precision + (weights[..., None] * inner).sum(0)
    observation_terms = values * heads[:, :-1] - weights * (cross + inner @ usual)
    shift_terms = shifts @ prior_precision
    if rows.zeros is not None:
        zeros = unpack(rows.zeros.double(), heads.shape[1])[0]
        precision = precision + zeros[:-1, :-1]
        shift_terms[0] -= zeros[:-1, -1] + zeros[:-1, :-1] @ usual
    contributions: Tensor = torch.linalg.solve(precision, torch.cat([shift_terms, observation_terms]).T).T
    return contributions
