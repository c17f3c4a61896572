"""Which features a row observed, in a few numbers: what people choose to rate says what they like."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headstart.core.networks import initial_tensor
from headstart.distributed import process_group
from headstart.linalg.ragged import TransposedSum, line_blocks, segment_weighted_sum
from headstart.linalg.row_sharded import draw_uniform_at, select_local, tall_qr
from headstart.table.cells import Cells, offsets, ranges

_ROUNDS = 4  # of subspace iteration

_TAIL = 0.02  # share of rows at each end of the counts whose counts are treated as equal

_MAX_PATIENCE = 100.0  # observations

_QUANTILE_ROWS = 1_000_000  # rows that the ends of the counts are found from, at most

_PATIENCE_ROWS = 200_000  # rows that the patience is found from, at most


class Signature(nn.Module):
    """Σ_j y_j / √n over the features j that a row observed; their values do not matter.

    The y_j are the leading singular vectors of the table's pattern of observations, rows and features
    scaled to unit length. A constant 1 and the logarithm of the count stand before them. All but the
    constant is a difference from the usual row, times n / (n + ``patience``): the signature of a row
    without observations is that of the usual row, and the largest patience makes every row usual.
    """

    def __init__(self, features: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.table: Tensor
        self.register_buffer("table", initial_tensor(lambda: torch.zeros(features, length), features, length))
        self.centre: Tensor
        self.register_buffer("centre", torch.zeros(length + 1))
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(length + 1))
        self.ends: Tensor  # of the logarithms of counts
        self.register_buffer("ends", torch.tensor([0.0, 20.0]))
        self.patience: Tensor
        self.register_buffer("patience", torch.tensor(1.0))

    @property
    def size(self) -> int:
        """How many numbers a row's signature has: the constant and the count first."""
        return self.length + 2

    def forward(self, cells: Cells) -> Tensor:
        """The signatures of rows: (rows, 2 + length)."""
        return self.believed(self.differences(cells), cells.counts)

    def believed(self, differences: Tensor, counts: Tensor) -> Tensor:
        """The signatures of rows with these ``differences`` and numbers of observations (rows,)."""
        number = counts.to(self.table.dtype)[:, None]
        return torch.cat([torch.ones_like(number), differences * (number / (number + self.patience))], dim=1)

    def of_one(self, features: NDArray[np.int64]) -> NDArray[np.float64]:
        """The signature of one row that observed these features, in numpy: (2 + length,)."""
        count = len(features)
        low, high = self.ends.tolist()
        sums = self.table.numpy().take(features, axis=0).sum(0, dtype=np.float64) / max(1, count) ** 0.5
        raw = np.append(min(max(math.log1p(count), low), high), sums)
        difference = (raw - self.centre.numpy()) / self.scale.numpy()
        return np.append(1.0, difference * (count / (count + self.patience.item())))

    def differences(self, cells: Cells) -> Tensor:
        """Differences from the usual row, however few observations a row has: (rows, 1 + length)."""
        return (self._raw(cells) - self.centre) / self.scale

    def _raw(self, cells: Cells) -> Tensor:
        counts = cells.counts.to(self.table.dtype)
        logarithms = counts.log1p().clamp(self.ends[0], self.ends[1])
        sums = _bag(self.table, cells) / counts.clamp(min=1).sqrt()[:, None]
        return torch.cat([logarithms[:, None], sums], dim=1)

    @torch.no_grad()
    def fit(self, cells: Cells, generator: torch.Generator) -> None:
        """Find the y_j by randomised subspace iteration, and what is usual."""
        if self.length:
            self._decompose(cells, generator)
        filled = cells.counts > 0
        _, whole = process_group().span(int(filled.sum()))
        if whole < 2:
            return
        logarithms = cells.counts[filled].to(self.table.dtype).log1p()
        some = torch.randperm(whole, generator=generator)[:_QUANTILE_ROWS]
        if not process_group().is_single:  # quantiles do not depend on the order
            logarithms = process_group().all_gather(logarithms[select_local(some, len(logarithms))[1]])
            some = torch.arange(len(logarithms))
        self.ends.copy_(torch.quantile(logarithms[some], logarithms.new_tensor([_TAIL, 1 - _TAIL])))
        raw = self._raw(cells)
        if not bool(filled.all()):
            raw = raw[filled]
        mean, deviation, size = _moments(raw, whole)
        self.centre.copy_(mean)
        # Where every row observed alike, a signature says nothing and must not be blown up.
        spread = torch.maximum(deviation, 0.05 * size)
        self.scale.copy_(spread.clamp(min=1e-3))

    def _decompose(self, cells: Cells, generator: torch.Generator) -> None:
        observed = process_group().all_reduce_sum(torch.bincount(cells.index, minlength=cells.width))
        near = cells.counts.clamp(min=1).to(self.table.dtype).rsqrt()[:, None]
        far = observed.clamp(min=1).to(self.table.dtype).rsqrt()[:, None]
        basis = torch.randn(cells.width, self.length + 8, generator=generator)
        for _ in range(_ROUNDS):
            rows, _ = tall_qr(near * _bag(far * basis, cells))
            basis = torch.linalg.qr(far * process_group().all_reduce_sum(_bag_back(near * rows, cells))).Q
        rows = near * _bag(far * basis, cells)
        _, _, turn = torch.linalg.svd(
            rows if process_group().is_single else tall_qr(rows)[1], full_matrices=False
        )
        leading = (basis @ turn.T)[:, : self.length]
        if (
            process_group().launched
        ):  # signs are arbitrary, but must not depend on how many processes there are
            leading = leading * leading.gather(0, leading.abs().argmax(0)[None]).sign()
        self.table[:, : leading.shape[1]] = far * leading

    @torch.no_grad()
    def learn_patience(
        self, cells: Cells, means: Tensor, row_map: Tensor, metric: Tensor, generator: torch.Generator
    ) -> None:
        """Find from how many observations on a signature is to be believed.

        Of each row all but a few observations, drawn at random, are left out. What the signature of
        these few predicts (``row_map``, (size, latent)) is compared with what all observations say
        (``means``, (rows, latent)) in the ``metric`` (latent, latent) of predictions.
        """
        if not bool((row_map[1:] != 0).any()):
            return
        cells, means, places, whole = _patient(cells, means, generator)
        lines = cells.lines
        keys = lines + draw_uniform_at(places, whole, generator)
        order = torch.argsort(keys)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order)) - cells.indptr[lines]
        # Where much patience would be needed, which features a row observed says something only of rows that
        # are known by their values anyway, and misleads about the others: then it is not believed at all.
        choices = torch.cat([torch.logspace(-0.5, 2.75, 14), torch.tensor([torch.inf])])
        errors = torch.zeros(len(choices))
        targets = means - row_map[0]
        for count in (1, 2, 4, 8, 16, 32, 64):
            enough = cells.counts >= 2 * count
            number = process_group().sum_number(int(enough.sum()))
            if number < 10:
                break
            predicted = (self.differences(cells.keep(rank < count)) @ row_map[1:])[enough]
            size = _mean(((predicted @ metric) * predicted).sum(1), number)
            agreement = _mean(((predicted @ metric) * targets[enough]).sum(1), number)
            share = count / (count + choices)
            errors += share**2 * size - 2 * share * agreement
        best = float(choices[int(errors.argmin())])
        # The largest number there is makes every row usual, too, and can be saved, as infinity cannot.
        self.patience.fill_(best if best <= _MAX_PATIENCE else torch.finfo(self.patience.dtype).max)


def _patient(cells: Cells, means: Tensor, generator: torch.Generator) -> tuple[Cells, Tensor, Tensor, int]:
    """Enough rows to find the patience from, with their means, and the places of their observations.

    The places are among the observations of the rows that all processes have, of which there are so many.
    """
    _, whole = process_group().span(len(cells))
    if whole <= _PATIENCE_ROWS:
        start, total = process_group().span(len(cells.index))
        return cells, means, torch.arange(start, start + len(cells.index)), total
    some = torch.randperm(whole, generator=generator)[:_PATIENCE_ROWS]  # so many say it well enough
    at, own = select_local(some, len(cells))
    counts = torch.zeros_like(some)
    counts[at] = cells.counts[own]
    counts = process_group().all_reduce_sum(counts)
    places = ranges(offsets(counts)[at], counts[at])
    return cells.take(own), means[own], places, int(counts.sum())


def _mean(numbers: Tensor, whole: float) -> Tensor:
    """The mean of numbers, of which all processes together have so many."""
    return (
        numbers.mean() if process_group().is_single else process_group().all_reduce_sum(numbers.sum()) / whole
    )


def _moments(raw: Tensor, whole: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, standard deviation and mean size of the columns of so many lines."""
    if process_group().is_single:
        return raw.mean(0), raw.std(0), raw.abs().mean(0)
    own = raw.double()
    mean, size = process_group().all_reduce_sum(torch.stack([own.sum(0), own.abs().sum(0)])) / whole
    squares = process_group().all_reduce_sum(((own - mean) ** 2).sum(0))
    return mean, (squares / (whole - 1)).sqrt(), size


def _bag(table: Tensor, cells: Cells) -> Tensor:
    """``segment_weighted_sum`` of any number of rows, in blocks."""
    parts = [segment_weighted_sum(table, block) for _, block in line_blocks(cells, 4 * table.shape[1])]
    return parts[0] if len(parts) == 1 else torch.cat([table.new_zeros(0, table.shape[1]), *parts])


def _bag_back(table: Tensor, cells: Cells) -> Tensor:
    """The sums over the rows that observed each feature, in blocks: (features, size)."""
    total = table.new_zeros(cells.width, table.shape[1])
    for place, block in line_blocks(cells, 0):
        TransposedSum(block).add(total, table[place])
    return total
