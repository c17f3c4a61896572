"""Summarise which features a row observed: the choice of features carries information about the row."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from headstart.core.networks import initial_tensor
from headstart.distributed import process_group
from headstart.linalg.array_ops import Array
from headstart.linalg.ragged import TransposedSum, line_blocks, segment_weighted_sum
from headstart.linalg.row_sharded import draw_uniform_at, select_local, tall_qr
from headstart.table.cells import Cells, offsets, ranges

_ROUNDS = 4  # of subspace iteration

_TAIL = 0.02  # share of rows at each end of the counts whose counts are treated as equal

_MAX_SHRINKAGE = 100.0  # observations

_QUANTILE_ROWS = 1_000_000  # rows sampled to find the ends of the counts, at most

_SHRINKAGE_ROWS = 200_000  # rows sampled to choose the shrinkage, at most

_ONE = np.ones(1)


class Signature(nn.Module):
    """Σ_j y_j / √n over the n features j that a row observed; their values do not matter.

    The y_j are the leading right singular vectors of the table's 0/1 pattern of observations, with rows and
    features scaled to unit length. A constant 1 and the logarithm of the count precede them. All but the
    constant are differences from the mean row, shrunk by n / (n + ``patience``): a row without observations
    has the signature of the mean row, and with the largest ``patience`` every row has it.
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
        self.ends: Tensor  # (2,): limits of the logarithms of counts
        self.register_buffer("ends", torch.tensor([0.0, 20.0]))
        self.patience: Tensor  # (): observations at which the signature counts half
        self.register_buffer("patience", torch.tensor(1.0))

    @property
    def size(self) -> int:
        """Length of a row's signature: the constant and the count come first."""
        return self.length + 2

    def forward(self, cells: Cells) -> Tensor:
        """Compute the signatures of rows: (rows, 2 + length)."""
        return self.shrink(self.differences(cells), cells.counts)

    def of_one(self, features: Array) -> Array:
        """Compute the signature of one row that observed the ``features``, in numpy: (2 + length,)."""
        count, (low, high) = len(features), self.ends.tolist()
        sums = self.table.numpy().take(features, axis=0).sum(0, dtype=np.float64)
        logarithm = np.array([min(max(math.log1p(count), low), high)])
        raw = np.concatenate([logarithm, sums / max(1, count) ** 0.5])
        share = count / (count + self.patience.item())
        return np.concatenate([_ONE, (raw - self.centre.numpy()) / self.scale.numpy() * share])

    def differences(self, cells: Cells) -> Tensor:
        """Compute standardised differences from the mean row, without shrinkage: (rows, 1 + length)."""
        return (self._raw(cells) - self.centre) / self.scale

    def shrink(self, differences: Tensor, counts: Tensor) -> Tensor:
        """Return the signatures of rows with these ``differences`` and ``counts`` (rows,) of observations."""
        number = counts.to(self.table.dtype)[:, None]
        return torch.cat([torch.ones_like(number), differences * (number / (number + self.patience))], dim=1)

    def _raw(self, cells: Cells) -> Tensor:
        """Return log(1 + count) between the ends, and Σ y / √count: (rows, 1 + length)."""
        counts = cells.counts.to(self.table.dtype)
        logarithms = counts.log1p().clamp(self.ends[0], self.ends[1])
        sums = _sums_by_row(self.table, cells) / counts.clamp(min=1).sqrt()[:, None]
        return torch.cat([logarithms[:, None], sums], dim=1)

    # -- fitting ----------------------------------------------------------------------------------

    @torch.no_grad()
    def fit(self, cells: Cells, generator: torch.Generator) -> None:
        """Find the y_j by randomised subspace iteration, then centre and scale."""
        if self.length:
            self._decompose(cells, generator)
        filled = cells.counts > 0
        _, rows = process_group().span(int(filled.sum()))
        if rows < 2:
            return
        logarithms = cells.counts[filled].to(self.table.dtype).log1p()
        sample = torch.randperm(rows, generator=generator)[:_QUANTILE_ROWS]
        if not process_group().is_single:  # quantiles do not depend on the order
            logarithms = process_group().all_gather(logarithms[select_local(sample, len(logarithms))[1]])
            sample = torch.arange(len(logarithms))
        self.ends.copy_(torch.quantile(logarithms[sample], logarithms.new_tensor([_TAIL, 1 - _TAIL])))
        raw = self._raw(cells)
        if not bool(filled.all()):
            raw = raw[filled]
        mean, deviation, size = _column_moments(raw, rows)
        self.centre.copy_(mean)
        # Where all rows have the same signature, dividing by its deviation would amplify rounding errors.
        self.scale.copy_(torch.maximum(deviation, 0.05 * size).clamp(min=1e-3))

    def _decompose(self, cells: Cells, generator: torch.Generator) -> None:
        """Set ``table`` to the leading singular vectors of the scaled pattern of observations."""
        observed = process_group().all_reduce_sum(torch.bincount(cells.index, minlength=cells.width))
        row_scale = cells.counts.clamp(min=1).to(self.table.dtype).rsqrt()[:, None]
        feature_scale = observed.clamp(min=1).to(self.table.dtype).rsqrt()[:, None]
        basis = torch.randn(cells.width, self.length + 8, generator=generator)
        for _ in range(_ROUNDS):
            rows, _ = tall_qr(row_scale * _sums_by_row(feature_scale * basis, cells))
            sums = process_group().all_reduce_sum(_sums_by_feature(row_scale * rows, cells))
            basis = torch.linalg.qr(feature_scale * sums).Q
        rows = row_scale * _sums_by_row(feature_scale * basis, cells)
        _, _, rotation = torch.linalg.svd(
            rows if process_group().is_single else tall_qr(rows)[1], full_matrices=False
        )
        leading = (basis @ rotation.T)[:, : self.length]
        if process_group().launched:  # signs are arbitrary, but must not depend on the number of processes
            leading = leading * leading.gather(0, leading.abs().argmax(0)[None]).sign()
        self.table[:, : leading.shape[1]] = feature_scale * leading

    @torch.no_grad()
    def learn_patience(
        self, cells: Cells, means: Tensor, row_map: Tensor, metric: Tensor, generator: torch.Generator
    ) -> None:
        """Choose ``patience``, the number of observations at which the signature counts half.

        Predictions from the signatures of a few randomly drawn observations of each row are compared with the
        factors found from all of its observations.

        Parameters
        ----------
        cells : Cells
            The observations by row.
        means : Tensor
            (rows, latent): the factors found from all observations.
        row_map : Tensor
            (size, latent): the map from signatures to factors.
        metric : Tensor
            (latent, latent): the quadratic form that turns errors of factors into errors of predictions.
        generator : torch.Generator
            Draws the observations.
        """
        if not bool((row_map[1:] != 0).any()):
            return
        cells, means, positions, total = _sample_rows(cells, means, generator)
        lines = cells.lines
        keys = lines + draw_uniform_at(positions, total, generator)
        order = torch.argsort(keys)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order)) - cells.indptr[lines]
        # If much patience is needed, the choice of features is informative only about rows that their values
        # determine anyway, and misleading about the others: then the signature is not used at all.
        choices = torch.cat([torch.logspace(-0.5, 2.75, 14), torch.tensor([torch.inf])])
        errors = torch.zeros(len(choices))
        targets = means - row_map[0]
        for count in (1, 2, 4, 8, 16, 32, 64):
            enough = cells.counts >= 2 * count
            rows = process_group().sum_number(int(enough.sum()))
            if rows < 10:
                break
            predicted = (self.differences(cells.keep(rank < count)) @ row_map[1:])[enough]
            size = _mean(((predicted @ metric) * predicted).sum(1), rows)
            agreement = _mean(((predicted @ metric) * targets[enough]).sum(1), rows)
            share = count / (count + choices)
            errors += share**2 * size - 2 * share * agreement
        best = float(choices[int(errors.argmin())])
        # The largest finite number makes every signature that of the mean row and, unlike inf, can be saved.
        self.patience.fill_(best if best <= _MAX_SHRINKAGE else torch.finfo(self.patience.dtype).max)


def _sample_rows(
    cells: Cells, means: Tensor, generator: torch.Generator
) -> tuple[Cells, Tensor, Tensor, int]:
    """Sample at most ``_SHRINKAGE_ROWS`` rows of all processes.

    Returned are the observations and means of this process's rows among them, the positions of these
    observations among those of all sampled rows, and the number of the latter.
    """
    _, rows = process_group().span(len(cells))
    if rows <= _SHRINKAGE_ROWS:
        start, total = process_group().span(len(cells.index))
        return cells, means, torch.arange(start, start + len(cells.index)), total
    sample = torch.randperm(rows, generator=generator)[:_SHRINKAGE_ROWS]
    positions, local = select_local(sample, len(cells))
    counts = torch.zeros_like(sample)
    counts[positions] = cells.counts[local]
    counts = process_group().all_reduce_sum(counts)
    observations = ranges(offsets(counts)[positions], counts[positions])
    return cells.take(local), means[local], observations, int(counts.sum())


def _mean(numbers: Tensor, count: float) -> Tensor:
    """Compute the mean over all processes, which together have ``count`` numbers."""
    if process_group().is_single:
        return numbers.mean()
    return process_group().all_reduce_sum(numbers.sum()) / count


def _column_moments(raw: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, standard deviation and mean absolute value of columns, over ``rows`` of all processes."""
    if process_group().is_single:
        return raw.mean(0), raw.std(0), raw.abs().mean(0)
    exact = raw.double()
    mean, size = process_group().all_reduce_sum(torch.stack([exact.sum(0), exact.abs().sum(0)])) / rows
    squares = process_group().all_reduce_sum(((exact - mean) ** 2).sum(0))
    return mean, (squares / (rows - 1)).sqrt(), size


def _sums_by_row(table: Tensor, cells: Cells) -> Tensor:
    """Sum the lines of ``table`` (features, size) that each row observed, in blocks: (rows, size)."""
    parts = [segment_weighted_sum(table, block) for _, block in line_blocks(cells, 4 * table.shape[1])]
    return parts[0] if len(parts) == 1 else torch.cat([table.new_zeros(0, table.shape[1]), *parts])


def _sums_by_feature(table: Tensor, cells: Cells) -> Tensor:
    """Sum the lines of ``table`` (rows, size) that observed each feature, in blocks: (features, size)."""
    total = table.new_zeros(cells.width, table.shape[1])
    for rows, block in line_blocks(cells, 0):
        TransposedSum(block).add(total, table[rows])
    return total
