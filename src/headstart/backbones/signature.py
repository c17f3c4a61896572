"""Which features a row observed, in a few numbers: what people choose to rate says what they like."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headstart.algebra.sparse import bag
from headstart.table.cells import Cells

_ROUNDS = 4  # of subspace iteration
_TAIL = 0.02  # share of rows at each end of the counts whose counts are treated as equal
_MAX_PATIENCE = 100.0  # observations
_QUANTILE_ROWS = 1_000_000  # rows that the ends of the counts are found from, at most


class Signature(nn.Module):
    """Σ_j y_j / √n over the features j that a row observed; their values do not matter.

    The y_j are the leading singular vectors of the table's pattern of observations, rows and features
    scaled to unit length. A constant 1 and the logarithm of the count stand before them. All but the
    constant is a difference from the usual row, times n / (n + ``patience``): the signature of a row
    without observations is that of the usual row, and an infinite patience makes every row usual.
    """

    def __init__(self, features: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.table: Tensor
        self.register_buffer("table", torch.zeros(features, length))
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
        counts = cells.counts.to(self.table.dtype)[:, None]
        difference = self._differences(cells) * (counts / (counts + self.patience))
        return torch.cat([torch.ones_like(counts), difference], dim=1)

    def of_one(self, features: NDArray[np.int64]) -> NDArray[np.float64]:
        """The signature of one row that observed these features, in numpy: (2 + length,)."""
        count = len(features)
        low, high = self.ends.tolist()
        sums = self.table.numpy().take(features, axis=0).sum(0, dtype=np.float64) / max(1, count) ** 0.5
        raw = np.append(min(max(math.log1p(count), low), high), sums)
        difference = (raw - self.centre.numpy()) / self.scale.numpy()
        return np.append(1.0, difference * (count / (count + self.patience.item())))

    def _differences(self, cells: Cells) -> Tensor:
        """Differences from the usual row, however few observations a row has: (rows, 1 + length)."""
        return (self._raw(cells) - self.centre) / self.scale

    def _raw(self, cells: Cells) -> Tensor:
        counts = cells.counts.to(self.table.dtype)
        logarithms = counts.log1p().clamp(self.ends[0], self.ends[1])
        sums = bag(self.table, cells) / counts.clamp(min=1).sqrt()[:, None]
        return torch.cat([logarithms[:, None], sums], dim=1)

    @torch.no_grad()
    def fit(self, cells: Cells, generator: torch.Generator) -> None:
        """Find the y_j by randomised subspace iteration, and what is usual."""
        if self.length:
            self._decompose(cells, generator)
        filled = cells.take(torch.nonzero(cells.counts)[:, 0])
        if len(filled) < 2:
            return
        logarithms = filled.counts.to(self.table.dtype).log1p()
        some = torch.randperm(len(logarithms), generator=generator)[:_QUANTILE_ROWS]
        self.ends.copy_(torch.quantile(logarithms[some], logarithms.new_tensor([_TAIL, 1 - _TAIL])))
        raw = self._raw(filled)
        self.centre.copy_(raw.mean(0))
        # Where every row observed alike, a signature says nothing and must not be blown up.
        spread = torch.maximum(raw.std(0), 0.05 * raw.abs().mean(0))
        self.scale.copy_(spread.clamp(min=1e-3))

    def _decompose(self, cells: Cells, generator: torch.Generator) -> None:
        by_feature = cells.transpose()
        near = cells.counts.clamp(min=1).to(self.table.dtype).rsqrt()[:, None]
        far = by_feature.counts.clamp(min=1).to(self.table.dtype).rsqrt()[:, None]
        basis = torch.randn(cells.width, self.length + 8, generator=generator)
        for _ in range(_ROUNDS):
            rows = torch.linalg.qr(near * bag(far * basis, cells)).Q
            basis = torch.linalg.qr(far * bag(near * rows, by_feature)).Q
        _, _, turn = torch.linalg.svd(near * bag(far * basis, cells), full_matrices=False)
        leading = (basis @ turn.T)[:, : self.length]
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
        lines = cells.lines
        keys = lines + torch.rand(len(lines), generator=generator, dtype=torch.float64)
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
            if int(enough.sum()) < 10:
                break
            predicted = (self._differences(cells.keep(rank < count)) @ row_map[1:])[enough]
            size = ((predicted @ metric) * predicted).sum(1).mean()
            agreement = ((predicted @ metric) * targets[enough]).sum(1).mean()
            share = count / (count + choices)
            errors += share**2 * size - 2 * share * agreement
        best = float(choices[int(errors.argmin())])
        self.patience.fill_(best if best <= _MAX_PATIENCE else torch.inf)
