"""Compute the posterior of rows' factors from their observations, in batches and one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headstart.core.types import Heads, RowBelief, RowStates
from headstart.distributed import process_group
from headstart.linalg.packed import append_one, squares, traces, triangle_indices, unpack
from headstart.linalg.ragged import (
    blocks,
    column_sums,
    gram,
    pad,
    places,
    sampled_products,
    segment_sum,
    segment_weighted_sum,
)
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

if TYPE_CHECKING:
    from headstart.backbones.factorisation import Factorisation


# The noise of a row or feature is believed as if so many observations had shown the usual one.
NOISE_SHOTS = 5.0

PASSES, MORE_PASSES = 3, 5  # more where the weights of observations depend on the row

BELIEVED = 25.0  # squared: a real farther off than 5 standard deviations counts as if it were there


@dataclass(frozen=True)
class RowPosterior:
    """Gaussian posteriors of rows' factors, and how exact a row's observations are."""

    mean: Tensor  # (rows, latent)
    spread: Tensor  # (rows, packed): the covariance, packed
    relative_precision: Tensor  # (rows,): precision of a row's observations relative to the usual one

    @property
    def covariance(self) -> Tensor:
        """The covariances as matrices: (rows, latent, latent)."""
        return unpack(self.spread, self.mean.shape[1])

    def moments(self) -> Tensor:
        """E[(u, 1)(u, 1)ᵀ] of each row, packed: (rows, packed)."""
        moments = squares(append_one(self.mean))
        moments[:, : self.spread.shape[1]] += self.spread  # the bias comes last
        return moments

    def doubled_moments(self) -> Tensor:
        """The same with what is off the diagonal twice: its product with a packed matrix is a trace."""
        down, across = triangle_indices(self.mean.shape[1] + 1, self.mean.device)
        return self.moments() * torch.where(down == across, 1.0, 2.0)

    def at(self, rows: slice) -> RowPosterior:
        """The posteriors of some rows, not copied."""
        return RowPosterior(self.mean[rows], self.spread[rows], self.relative_precision[rows])

    def put(self, rows: slice, posterior: RowPosterior) -> None:
        """Write over the posteriors of some rows; training alone may do so."""
        self.mean[rows] = posterior.mean
        self.spread[rows] = posterior.spread
        self.relative_precision[rows] = posterior.relative_precision

    def mean_moment(self) -> Tensor:
        """The mean of E[(u, 1)(u, 1)ᵀ] over rows, in double precision: (latent + 1, latent + 1)."""
        (_, whole), latent = process_group().span(len(self.mean)), self.mean.shape[1]
        moment = torch.zeros(latent + 1, latent + 1, dtype=torch.float64)
        moment[:-1, :-1] = gram(self.mean, self.mean) + unpack(column_sums(self.spread), latent)
        moment[:-1, -1] = moment[-1, :-1] = column_sums(self.mean)
        moment[-1, -1] = len(self.mean)
        return process_group().all_reduce_sum(moment) / max(1, whole)


@dataclass(frozen=True)
class HeadMoments:
    """The heads by which rows are read: all that the posterior of a row needs of the features it observed."""

    heads: Tensor  # (features, latent + 1): the means of (v, b)
    second: Tensor  # (features, packed): E[(v, b)(v, b)ᵀ]
    kinds: Tensor  # (features,)
    precision: Tensor  # (features,): of an observation that is not binary, at a row of usual exactness

    @classmethod
    def of(cls, heads: Heads, kinds: Tensor) -> HeadMoments:
        """Read rows by heads that know their covariance and noise."""
        stacked = torch.cat([heads.weight, heads.bias[:, None]], dim=1)
        noise = torch.ones_like(heads.bias) if heads.noise is None else heads.noise
        return cls(stacked, heads.packed_covariance + squares(stacked), kinds, 1 / noise)

    def double(self) -> HeadMoments:
        """The same in double precision."""
        return HeadMoments(self.heads.double(), self.second.double(), self.kinds, self.precision.double())

    @property
    def size(self) -> int:
        """The length of a head with its bias."""
        return int(self.heads.shape[-1])

    @property
    def weighs(self) -> bool:
        """Whether any observation's weight depends on what is known of the row: all but those of ratings."""
        return bool((self.kinds != KindType.RATING).any())

    @property
    def passes(self) -> int:
        """How many passes the fixed point between a row's factors and its observations' weights takes."""
        return MORE_PASSES if self.weighs else PASSES

    def sums(self, cells: Cells) -> RowSums | None:
        """What a row's ratings add up to; None where there are none."""
        rating = self.kinds == KindType.RATING
        if not bool(rating.any()):
            return None
        rated = cells.weighted(rating[cells.index].to(self.precision.dtype))
        weights = self.precision[cells.index] * rated
        both = segment_sum(torch.stack([weights * cells.values**2, rated], dim=1), cells.indptr)
        total, linear = self.summed(cells, weights, weights * cells.values)
        return RowSums(both[:, 1], both[:, 0], linear, total)

    def summed(self, cells: Cells, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Σ weight · second moment and Σ value · head over each row's observations, of two of (n,)."""
        return segment_weighted_sum(self.second, cells, weights), segment_weighted_sum(
            self.heads, cells, values
        )

    def weighted(self, cells: Cells, now: RowPosterior, *, new: bool = False) -> tuple[Tensor, Tensor]:
        """Observations that are no ratings as Gaussian ones: weight, and weight × value, two of (n,).

        A binary one gets the weight of Jaakkola and Jordan's bound. A real one that is far off loses weight,
        so that it moves a row no more than one at the border would: it may be an error of the data. How far
        it is off is measured against the noise or, if the rows are ``new`` and ``now`` is their prior,
        against all that the prior leaves open. So a row of which all observations are large is believed.
        Ratings get 0.
        """
        kinds = self.kinds[cells.index]
        mean, second = self.outputs(cells, now)
        bound = second.clamp(min=1e-6).sqrt()  # the root of E[(u·v + b)²] makes the bound tightest
        binary = torch.tanh(bound / 2) / (2 * bound)
        precision = self.precision[cells.index]
        doubt = (second - mean**2).clamp(min=0)
        squared = (cells.values - mean) ** 2
        squared = squared / (1 / precision + doubt) if new else (squared + doubt) * precision
        real = precision * (BELIEVED / squared.clamp(min=BELIEVED))
        zero = torch.zeros_like(real)
        weights = torch.where(
            kinds == KindType.REAL, real, torch.where(kinds == KindType.BINARY, binary, zero)
        )
        signs = torch.where(kinds == KindType.BINARY, cells.values - 0.5, zero)
        values = torch.where(kinds == KindType.REAL, real * cells.values, signs)
        return cells.weighted(weights), cells.weighted(values)

    def outputs(self, cells: Cells, now: RowPosterior) -> tuple[Tensor, Tensor]:
        """E[u·v + b] and E[(u·v + b)²] of each observation: two of (n,)."""
        mean = sampled_products(append_one(now.mean), self.heads, cells)
        return mean, sampled_products(now.doubled_moments(), self.second, cells)


@dataclass(frozen=True)
class RowSums:
    """Sums over each row's ratings, weighted by their usual precision."""

    counts: Tensor  # (rows,): how much the observations count together, by their age
    squares: Tensor  # (rows,): of values
    linear: Tensor  # (rows, latent + 1): value × head
    total: Tensor  # (rows, packed): second moments of heads

    def squared_errors(self, rows: RowPosterior, moments: Tensor) -> Tensor:
        """The expected squared errors of the row's own predictions: (rows,)."""
        twice = 2 * (self.linear * append_one(rows.mean)).sum(1)
        return self.squares - twice + traces(self.total, moments)


_CACHED = 1 << 20  # numbers that one block reads in every pass


def read_rows(
    backbone: Factorisation, cells: Cells, known: Cells, readings: HeadMoments, belief: RowBelief | None
) -> RowStates:
    """The states of rows, in double precision until the end.

    Rows of ratings alone need fewer passes than others, so they are read apart: a row must be the same
    whatever others are described with it.

    Parameters
    ----------
    backbone : Factorisation
        What the rows are read by.
    cells : Cells
        Observations by row, of the features of ``readings``.
    known : Cells
        Those of the backbone's own features, by their numbers there.
    readings : Readings
        The heads that read them.
    belief : RowBelief, optional
        What is believed of the rows before they are observed.
    """
    other = (readings.kinds != KindType.RATING)[cells.index]
    weighed = torch.zeros(len(cells), dtype=torch.bool).index_fill_(0, cells.lines[other], True)
    groups = [torch.nonzero(each)[:, 0] for each in (~weighed, weighed)]
    parts = [
        _read(
            backbone,
            cells.take(group),
            known.take(group),
            readings,
            None if belief is None else belief.take(group),
        )
        for group in groups
        if len(group)
    ]
    return RowStates.concatenate(parts).take(torch.argsort(torch.cat(groups)))


def _read(
    backbone: Factorisation, cells: Cells, known: Cells, readings: HeadMoments, belief: RowBelief | None
) -> RowStates:
    """Rows that need equally many passes, those of similarly many observations together."""
    parts, order = [], []
    for group in blocks(cells.counts, readings.second.shape[1], budget=_CACHED):
        few = cells.take(group)
        few = replace(few, values=few.values.double())
        signature = backbone.signature(known.take(group)).double()
        here = PaddedHeadMoments.of(readings, few)
        few = replace(few, index=torch.arange(len(few.index)), width=len(few.index))
        own = None if belief is None else belief.take(group).double()
        posterior = backbone.posterior_from(few, here, here.sums(few), signature, None, belief=own)
        parts.append(backbone.states_of(posterior, signature).to(backbone.weight.dtype))
        order.append(group)
    return RowStates.concatenate(parts).take(torch.argsort(torch.cat(order)))


@dataclass(frozen=True)
class PaddedHeadMoments(HeadMoments):
    """The heads of each observation of some rows, gathered once, so that all passes find them in the cache.

    ``kinds`` and ``precision`` have one number for each observation, so cells point at themselves.
    """

    heads: Tensor  # (rows, most, latent + 1)
    second: Tensor  # (rows, most, packed)
    place: Tensor  # (n,): of each observation in its row

    @classmethod
    def of(cls, readings: HeadMoments, cells: Cells) -> PaddedHeadMoments:  # type: ignore[override]
        """Gather what these rows read, in double precision."""
        heads, second, kinds, precision = (
            each.index_select(0, cells.index)
            for each in (readings.heads, readings.second, readings.kinds, readings.precision)
        )
        return cls(
            pad(heads.double(), cells),
            pad(second.double(), cells),
            kinds,
            precision.double(),
            places(cells),
        )

    def summed(self, cells: Cells, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As of ``HeadMoments``, by one product for each row."""
        return (
            (pad(weights, cells)[:, None] @ self.second)[:, 0],
            (pad(values, cells)[:, None] @ self.heads)[:, 0],
        )

    def outputs(self, cells: Cells, now: RowPosterior) -> tuple[Tensor, Tensor]:
        """As of ``HeadMoments``, by one product for each row.

        A vector from the left takes a sixth of the time of the same from the right.
        """
        mean = append_one(now.mean)[:, None] @ self.heads.mT
        second = now.doubled_moments()[:, None] @ self.second.mT
        return mean[cells.lines, 0, self.place], second[cells.lines, 0, self.place]
