"""Signatures of rows: vectors that summarise which features a row observed, for the factorisation's prior."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from headstart.core.networks import initial_tensor
from headstart.linalg.array_ops import Array
from headstart.linalg.ragged import TransposedSum, line_blocks, ranks_in_line, segment_weighted_sum
from headstart.linalg.row_sharded import (
    column_moments,
    draw_uniform_at,
    feature_counts,
    fix_signs,
    gather_random_rows,
    global_count,
    global_mean,
    global_sum,
    right_singular_vectors,
    sample_rows,
    tall_qr,
)
from headstart.table.cells import Cells

_ROUNDS = 4  # of subspace iteration

_TAIL = 0.02  # fraction of rows at each end of the distribution of counts whose counts are clamped

_MAX_SHRINKAGE_COUNT = 100.0  # observations; with more, the signature is not used

_QUANTILE_ROWS = 1_000_000  # rows sampled to find the quantiles of counts, at most

_SHRINKAGE_ROWS = 200_000  # rows sampled to choose ``shrinkage_count``, at most

_ONE = np.ones(1)


class Signature(nn.Module):
    """Compute Σ_j y_j / √n over the n features j that a row observed, regardless of their values.

    The y_j come from the leading right singular vectors of the table's 0/1 pattern of observations, with rows
    and features scaled to unit length. A constant 1 and the logarithm of n precede the sum. All but the
    constant are differences from the mean row, shrunk by n / (n + ``shrinkage_count``): a row without
    observations has the signature of the mean row, and with the largest ``shrinkage_count`` every row has it.
    """

    def __init__(self, features: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.table: Tensor  # (features, length): the y_j
        self.register_buffer("table", initial_tensor(lambda: torch.zeros(features, length), features, length))
        self.centre: Tensor
        self.register_buffer("centre", torch.zeros(length + 1))
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(length + 1))
        self.ends: Tensor  # (2,): limits for the logarithms of counts
        self.register_buffer("ends", torch.tensor([0.0, 20.0]))
        self.shrinkage_count: Tensor  # (): the count with a shrinkage factor of one half
        self.register_buffer("shrinkage_count", torch.tensor(1.0))
        # The buffers in numpy, with the versions that they are views of.
        self._arrays: tuple[list[tuple[int, int]], list[Array]] | None = None

    @property
    def size(self) -> int:
        """Length of a row's signature, with the constant and the count."""
        return self.length + 2

    def forward(self, cells: Cells) -> Tensor:
        """Compute the signatures of rows: (rows, 2 + length)."""
        return self.shrink(self.differences(cells), cells.counts)

    def of_one(self, features: Array) -> Array:
        """Compute the signature of one row that observed the ``features``, in numpy: (2 + length,)."""
        buffers = (self.table, self.centre, self.scale, self.ends, self.shrinkage_count)
        versions = [(id(buffer), buffer._version) for buffer in buffers]
        if self._arrays is None or self._arrays[0] != versions:
            self._arrays = versions, [buffer.numpy() for buffer in buffers]
        table, centre, scale, (low, high), shrinkage_count = self._arrays[1]
        count, raw = len(features), np.empty(self.length + 1)
        raw[0] = min(max(math.log1p(count), low), high)
        np.divide(table.take(features, axis=0).sum(0, dtype=np.float64), max(1, count) ** 0.5, out=raw[1:])
        share = count / (count + float(shrinkage_count))
        return np.concatenate([_ONE, (raw - centre) / scale * share])

    def differences(self, cells: Cells) -> Tensor:
        """Compute standardised differences from the mean row, without shrinkage: (rows, 1 + length)."""
        return (self._raw(cells) - self.centre) / self.scale

    def shrink(self, differences: Tensor, counts: Tensor) -> Tensor:
        """Return the signatures of rows with ``differences`` and ``counts`` (rows,) of observations."""
        number = counts.to(self.table.dtype)[:, None]
        return torch.cat(
            [torch.ones_like(number), differences * (number / (number + self.shrinkage_count))], dim=1
        )

    def _raw(self, cells: Cells) -> Tensor:
        """Compute log(1 + count), clamped to ``ends``, and Σ y / √count: (rows, 1 + length)."""
        counts = cells.counts.to(self.table.dtype)
        logarithms = counts.log1p().clamp(self.ends[0], self.ends[1])
        sums = _sums_by_row(self.table, cells) / counts.clamp(min=1).sqrt()[:, None]
        return torch.cat([logarithms[:, None], sums], dim=1)

    # -- fitting ----------------------------------------------------------------------------------

    @torch.no_grad()
    def fit(self, cells: Cells, generator: torch.Generator) -> None:
        """Compute the y_j by randomised subspace iteration, then centre and scale."""
        if self.length:
            self._decompose(cells, generator)
        observed = cells.counts > 0
        if global_count(int(observed.sum())) < 2:
            return
        logarithms = cells.counts[observed].to(self.table.dtype).log1p()
        sample = gather_random_rows(logarithms, _QUANTILE_ROWS, generator)
        self.ends.copy_(torch.quantile(sample, sample.new_tensor([_TAIL, 1 - _TAIL])))
        raw = self._raw(cells)
        if not bool(observed.all()):
            raw = raw[observed]
        mean, deviation, size = column_moments(raw)
        self.centre.copy_(mean)
        # If all rows have the same signature, dividing by its deviation would amplify rounding errors.
        self.scale.copy_(torch.maximum(deviation, 0.05 * size).clamp(min=1e-3))

    def _decompose(self, cells: Cells, generator: torch.Generator) -> None:
        """Set ``table`` to the leading singular vectors of the scaled pattern of observations."""
        row_scale = cells.counts.clamp(min=1).to(self.table.dtype).rsqrt()[:, None]
        feature_scale = feature_counts(cells).clamp(min=1).to(self.table.dtype).rsqrt()[:, None]
        basis = torch.randn(cells.width, self.length + 8, generator=generator)
        for _ in range(_ROUNDS):
            rows, _ = tall_qr(row_scale * _sums_by_row(feature_scale * basis, cells))
            sums = global_sum(_sums_by_feature(row_scale * rows, cells))
            basis = torch.linalg.qr(feature_scale * sums).Q
        rotation = right_singular_vectors(row_scale * _sums_by_row(feature_scale * basis, cells))
        leading = fix_signs((basis @ rotation.T)[:, : self.length])
        self.table[:, : leading.shape[1]] = feature_scale * leading

    @torch.no_grad()
    def choose_shrinkage(
        self, cells: Cells, means: Tensor, row_map: Tensor, metric: Tensor, generator: torch.Generator
    ) -> None:
        """Choose the ``shrinkage_count`` with which signatures of few observations predict factors best.

        The signatures are those of a few randomly drawn observations of each row; the targets are the factors
        inferred from all of its observations.

        Parameters
        ----------
        cells : Cells
            The observations by row.
        means : Tensor
            (rows, latent): the factors inferred from all observations.
        row_map : Tensor
            (size, latent): the map from signatures to factors.
        metric : Tensor
            (latent, latent): the quadratic form that turns errors of factors into errors of predictions.
        generator : torch.Generator
            Draws the observations.
        """
        if not bool((row_map[1:] != 0).any()):
            return
        cells, means, positions, total = sample_rows(cells, means, _SHRINKAGE_ROWS, generator)
        rank = ranks_in_line(cells, draw_uniform_at(positions, total, generator))
        # If the best count is large, signatures are informative only for rows with many observations,
        # whose values determine the factors anyway: then the signature is not used.
        choices = torch.cat([torch.logspace(-0.5, 2.75, 14), torch.tensor([torch.inf])])
        errors = torch.zeros(len(choices))
        targets = means - row_map[0]
        for count in (1, 2, 4, 8, 16, 32, 64):
            enough = cells.counts >= 2 * count
            if global_count(int(enough.sum())) < 10:
                break
            predicted = (self.differences(cells.keep(rank < count)) @ row_map[1:])[enough]
            size = global_mean(((predicted @ metric) * predicted).sum(1))
            agreement = global_mean(((predicted @ metric) * targets[enough]).sum(1))
            share = count / (count + choices)
            errors += share**2 * size - 2 * share * agreement
        best = float(choices[int(errors.argmin())])
        # The largest finite number gives every row the mean signature and, unlike inf, can be saved.
        self.shrinkage_count.fill_(
            best if best <= _MAX_SHRINKAGE_COUNT else torch.finfo(self.shrinkage_count.dtype).max
        )


def _sums_by_row(table: Tensor, cells: Cells) -> Tensor:
    """Sum ``table`` (features, size) over the features that each row observed, in blocks: (rows, size)."""
    parts = [segment_weighted_sum(table, block) for _, block in line_blocks(cells, 4 * table.shape[1])]
    return parts[0] if len(parts) == 1 else torch.cat([table.new_zeros(0, table.shape[1]), *parts])


def _sums_by_feature(table: Tensor, cells: Cells) -> Tensor:
    """Sum ``table`` (rows, size) over the rows that observed each feature, in blocks: (features, size)."""
    total = table.new_zeros(cells.width, table.shape[1])
    for rows, block in line_blocks(cells, 0):
        TransposedSum(block).add(total, table[rows])
    return total
