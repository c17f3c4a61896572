"""Which features a row observed, in a few numbers: what people choose to rate says what they like."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headstart.algebra.sparse import bag
from headstart.table.cells import Cells

_ROUNDS = 4  # of subspace iteration
_COUNT_CENTRE, _COUNT_SCALE = 4.5, 1.5  # bring log(1 + observations) to about ±1


class Signature(nn.Module):
    """Σ_j y_j / √n over the features j that a row observed, whatever their values.

    The y_j are the leading singular vectors of the table's pattern of observations, rows and features
    scaled to unit length. A constant 1 and the log of the count go before.
    """

    def __init__(self, features: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.table: Tensor
        self.register_buffer("table", torch.zeros(features, length))
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(length))

    @property
    def size(self) -> int:
        """How many numbers a row's signature has: the constant and the count first."""
        return self.length + 2

    def forward(self, cells: Cells) -> Tensor:
        """(rows, 2 + length)."""
        counts = (cells.counts.to(self.table.dtype).log1p() - _COUNT_CENTRE) / _COUNT_SCALE
        first = torch.stack([torch.ones_like(counts), counts], dim=1)
        return torch.cat([first, self._sums(cells) / self.scale], dim=1)

    def _sums(self, cells: Cells) -> Tensor:
        return bag(self.table, cells) / cells.counts.clamp(min=1).sqrt()[:, None]

    @torch.no_grad()
    def fit(self, cells: Cells, generator: torch.Generator) -> None:
        """Find the y_j by randomised subspace iteration."""
        if self.length == 0:
            return
        by_feature = cells.transpose()
        near = cells.counts.clamp(min=1).float().rsqrt()[:, None]
        far = by_feature.counts.clamp(min=1).float().rsqrt()[:, None]
        basis = torch.randn(cells.width, self.length + 8, generator=generator)
        for _ in range(_ROUNDS):
            rows = torch.linalg.qr(near * bag(far * basis, cells)).Q
            basis = torch.linalg.qr(far * bag(near * rows, by_feature)).Q
        _, _, turn = torch.linalg.svd(near * bag(far * basis, cells), full_matrices=False)
        leading = (basis @ turn.T)[:, : self.length]
        self.table[:, : leading.shape[1]] = far * leading
        # Where every row observed alike, a signature says nothing and must not be blown up.
        sums = self._sums(cells)
        spread = torch.maximum(
            sums.std(0, correction=min(1, max(0, len(sums) - 1))), 0.05 * sums.abs().mean(0)
        )
        self.scale.copy_(spread.clamp(min=1e-3))
