"""Sums over contexts, from which closed forms make heads."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.adapters.posterior import ContextSums
from headstart.algebra.blocks import stretches
from headstart.algebra.padding import padded
from headstart.algebra.sparse import segment_sum
from headstart.algebra.symmetric import squares, unpack, with_one
from headstart.table.cells import Cells

_MAX_PADDING = 4  # times as many places as observations, at most


def sums_over(cells: Cells, activation: Tensor, weights: Tensor) -> ContextSums:
    """The sums over the contexts of features, in double precision.

    ``cells`` has one line per feature and points at rows of ``activation`` (rows, size − 1); ``weights``
    (n,) are those of the observations. Products of matrices are faster than many of vectors: one for a
    single feature, in blocks if it is long, and a padded block for features of similar shots.
    """
    values, counts = cells.values.double(), cells.weighted_counts.double()
    if len(cells) == 1:
        total, linear = _one_feature(cells, activation, weights)
        return ContextSums(counts, total[None], linear[None], (weights * values**2).sum()[None])
    rows = with_one(activation.index_select(0, cells.index)).double()
    if len(cells) and int(cells.counts.max()) * len(cells) <= _MAX_PADDING * len(weights):
        block = padded(rows, cells)
        weighted = block * padded(weights, cells)[:, :, None]
        linear = (padded(values, cells)[:, None] @ weighted)[:, 0]
        square = segment_sum((weights * values**2)[:, None], cells.indptr)[:, 0]
        return ContextSums(counts, weighted.mT @ block, linear, square)
    linear = rows * (weights * values)[:, None]
    each = torch.cat([squares(rows) * weights[:, None], linear, (weights * values**2)[:, None]], dim=1)
    return sums_of(segment_sum(each, cells.indptr), counts, rows.shape[1])


def _one_feature(cells: Cells, activation: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    size = activation.shape[1] + 1
    total, linear = weights.new_zeros(size, size), weights.new_zeros(size)
    for part in stretches(len(weights), 32 * size):
        rows = with_one(activation.index_select(0, cells.index[part])).double()
        weighted = weights[part, None] * rows
        total, linear = total + weighted.T @ rows, linear + cells.values[part].double() @ weighted
    return total, linear


def sums_of(kept: Tensor, counts: Tensor, size: int) -> ContextSums:
    """Part what is kept of contexts of so many observations into their sums: see ``evidence``."""
    packed, linear, square = kept.tensor_split([kept.shape[1] - size - 1, kept.shape[1] - 1], dim=1)
    return ContextSums(counts.double(), unpack(packed, size), linear, square[:, 0])
