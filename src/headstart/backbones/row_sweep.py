"""A sweep over all rows in blocks: rows are updated, then what features need of them adds up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headstart.algebra.blocks import PER_CELL, PER_NUMBER, line_blocks
from headstart.algebra.sparse import DENSE_FROM, Backwards
from headstart.algebra.symmetric import with_one
from headstart.backbones.rows import Readings, RowPosterior, RowSums
from headstart.crew import crew
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.workers import in_parallel

if TYPE_CHECKING:
    from headstart.backbones.factorisation import Factorisation

_PARTS = 4  # of a block, in which its rows are updated

Errors = dict[int, tuple[float, float]]  # by kind: the sum of squared errors, and how much it counts


@dataclass(frozen=True)
class FeatureSums:
    """Sums over the observations of each feature.

    Ratings count by how exact their rows are, others by the weights that their rows give them.
    """

    total: Tensor  # (features, packed): second moments of rows' factors
    linear: Tensor  # (features, latent + 1): value × factors
    squares: Tensor  # (features,): of values, in double precision


@dataclass(frozen=True)
class RowBlock:
    """Some rows that follow each other, with their observations, as every sweep takes them."""

    place: slice
    whole: Cells  # of all rows

    @property
    def cells(self) -> Cells:
        """The observations of these rows, not copied.

        Made anew each time: what cells remember of themselves would add up over the blocks.
        """
        return self.whole.block(self.place.start, self.place.stop)

    def parts(self) -> list[RowBlock]:
        """The same rows in smaller blocks, of which several are taken at a time."""
        held = int(self.whole.indptr[self.place.stop] - self.whole.indptr[self.place.start])
        # Each reads all features once: it should have several times as many observations.
        parts = max(1, min(_PARTS, held // (4 * self.whole.width)))
        step = -(-(self.place.stop - self.place.start) // parts)
        starts = range(self.place.start, self.place.stop, max(1, step))
        return [RowBlock(slice(start, min(self.place.stop, start + step)), self.whole) for start in starts]

    @cached_property
    def back(self) -> Backwards:
        """The observations in the order of features.

        They are put into it once for all sweeps and kept, in 8 bytes for each.
        """
        return Backwards(self.cells)


def row_blocks(backbone: Factorisation, cells: Cells) -> list[RowBlock]:
    """Cut rows into blocks, the same for every sweep as long as kinds and cells stay what they are."""
    # Where weights depend on rows, a dense product of their rows and all features may be the cheapest.
    per_cell = PER_CELL + (int(8 / DENSE_FROM) if backbone.readings().weighs else 0)
    blocks = line_blocks(cells, PER_NUMBER * (backbone.latent + 1) ** 2, per_cell=per_cell)
    return [RowBlock(place, cells) for place, _ in blocks]


def sweep_rows(
    backbone: Factorisation, blocks: list[RowBlock], signatures: Tensor, rows: RowPosterior
) -> Errors:
    """Update the posteriors of all rows once, and return how far their observations are off.

    ``rows`` is changed. What is of the size of rows × latent² is held for one block at a time.
    """
    readings = backbone.readings()

    def update(each: RowBlock) -> list[tuple[int, float, float]]:
        place, block = each.place, each.cells
        sums = readings.sums(block)
        now = backbone.posterior_from(block, readings, sums, signatures[place], rows.at(place), passes=1)
        rows.put(place, now)
        return list(_errors(readings, block, now, sums))

    errors: Errors = {}
    for found in in_parallel(update, [part for each in blocks for part in each.parts()]):
        for kind, squared, count in found:
            before = errors.get(kind, (0.0, 0.0))
            errors[kind] = (before[0] + squared, before[1] + count)
    if not crew().alone:
        errors = _total_errors(errors)
    if KindType.RATING in errors:  # these errors are weighted by the precision
        squared, count = errors[KindType.RATING]
        errors[KindType.RATING] = (squared / float(backbone.precision[KindType.RATING]), max(1.0, count))
    return {kind: (squared, count) for kind, (squared, count) in errors.items() if count > 0}


def _total_errors(errors: Errors) -> Errors:
    """The errors of the rows that all processes have."""
    every = torch.tensor([errors.get(kind, (0.0, 0.0)) for kind in KindType], dtype=torch.float64)
    found = crew().total(every).tolist()
    return {int(kind): (each[0], each[1]) for kind, each in zip(KindType, found, strict=True) if each[1] > 0}


def _errors(
    readings: Readings, cells: Cells, rows: RowPosterior, sums: RowSums | None
) -> Iterator[tuple[int, float, float]]:
    """By kind, the expected squared errors of a block's ratings and reals, and how much they count."""
    if sums is not None:
        squared = sums.squared_errors(rows, rows.moments()).double().sum()
        yield KindType.RATING, float(squared), float(sums.counts.double().sum())
    real = (readings.kinds == KindType.REAL)[cells.index]
    if bool(real.any()):
        mean, second = readings.outputs(cells, rows)
        squared = (cells.values - mean) ** 2 + (second - mean**2).clamp(min=0)
        weights = readings.weighted(cells, rows)[0] / readings.precision[cells.index]
        counted = cells.weighted(torch.ones_like(squared))[real]
        yield KindType.REAL, float((weights * squared)[real].double().sum()), float(counted.double().sum())


def feature_sums(backbone: Factorisation, blocks: list[RowBlock], rows: RowPosterior) -> FeatureSums:
    """Add up what the update of features needs of all rows, block by block."""
    readings, size = backbone.readings(), backbone.latent + 1
    total = torch.zeros(backbone.features, size * (size + 1) // 2)
    linear = torch.zeros(backbone.features, size)
    squares = torch.zeros(backbone.features, dtype=torch.float64)
    for each in blocks:
        now, block = rows.at(each.place), each.cells
        weights, values = _weights(readings, block, now)
        each.back.add(total, now.moments(), weights)
        each.back.add(linear, with_one(now.mean), values)
        squared = (weights * block.values**2).double()
        squares += torch.bincount(block.index, squared, minlength=backbone.features)
    return FeatureSums(*(crew().total(each) for each in (total, linear, squares)))


def _weights(readings: Readings, cells: Cells, rows: RowPosterior) -> tuple[Tensor, Tensor]:
    """The weight of each observation in its feature's sums, and weight × value: two of (n,)."""
    weights = cells.weighted(rows.exactness[cells.lines])
    linear = weights * cells.values
    if not readings.weighs:
        return weights, linear
    own, values = readings.weighted(cells, rows)
    rated = readings.kinds[cells.index] == KindType.RATING
    return torch.where(rated, weights, own), torch.where(rated, linear, values)
