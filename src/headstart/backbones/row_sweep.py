"""One pass of training over all rows, in blocks: rows are updated, and features' sums add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headstart.algebra.blocks import PER_CELL, line_blocks
from headstart.algebra.sparse import DENSE_FROM, Backwards
from headstart.algebra.symmetric import with_one
from headstart.backbones.rows import Readings, RowPosterior, RowSums
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

if TYPE_CHECKING:
    from headstart.backbones.factorisation import Factorisation

_MATRICES = 48  # bytes that a number of a row's matrices takes: about six of them, some in double precision


@dataclass
class SweepSums:
    """What all rows add up to. A feature's observations count by how exact their rows are.

    Binary observations count by the weights of their bound instead.
    """

    total: Tensor  # (features, packed): second moments of rows' factors
    linear: Tensor  # (features, latent + 1): value × factors
    squares: Tensor  # (features,): of values, in double precision
    squared_errors: dict[int, float]  # by kind, weighted by the kind's precision
    counts: dict[int, float]  # by kind

    @classmethod
    def zeros(cls, features: int, size: int) -> SweepSums:
        """Sums over nothing."""
        packed = size * (size + 1) // 2
        squares = torch.zeros(features, dtype=torch.float64)
        return cls(torch.zeros(features, packed), torch.zeros(features, size), squares, {}, {})


def sweep_rows(backbone: Factorisation, cells: Cells, signatures: Tensor, rows: RowPosterior) -> SweepSums:
    """Update the posteriors of all rows once, and add up what the update of features needs.

    ``rows`` is changed. What is of the size of rows × latent² is held for one block at a time.
    """
    readings, size = backbone.readings(), backbone.latent + 1
    sums = SweepSums.zeros(backbone.features, size)
    # Of binary observations a dense product of their rows and all features may be the cheapest.
    per_cell = PER_CELL + (int(8 / DENSE_FROM) if readings.binary else 0)
    for place, block in line_blocks(cells, _MATRICES * size**2, per_cell=per_cell):
        row_sums = readings.sums(block)
        signature = signatures[place]
        now = backbone.posterior_from(block, readings, row_sums, signature, rows.at(place), passes=1)
        rows.put(place, now)
        moments = now.moments()
        _add_errors(sums, row_sums, now, moments)
        weights, linear = _weights(readings, block, now)
        back = Backwards(block)
        back.add(sums.total, moments, weights)
        back.add(sums.linear, with_one(now.mean), linear)
        squares = (weights * block.values**2).double()
        sums.squares += torch.bincount(block.index, squares, minlength=backbone.features)
    return sums


def _add_errors(sums: SweepSums, row_sums: list[RowSums], rows: RowPosterior, moments: Tensor) -> None:
    for each in row_sums:
        squared = float(each.squared_errors(rows, moments).double().sum())
        sums.squared_errors[each.kind] = sums.squared_errors.get(each.kind, 0.0) + squared
        sums.counts[each.kind] = sums.counts.get(each.kind, 0.0) + float(each.counts.double().sum())


def _weights(readings: Readings, cells: Cells, rows: RowPosterior) -> tuple[Tensor, Tensor]:
    """The weight of each observation in its feature's sums, and weight × value: two of (n,)."""
    weights = rows.exactness[cells.lines]
    linear = weights * cells.values
    if not readings.binary:
        return weights, linear
    bound, signs = readings.logistic_bound(cells, rows)
    binary = readings.kinds[cells.index] == KindType.BINARY
    return torch.where(binary, bound, weights), torch.where(binary, signs, linear)
