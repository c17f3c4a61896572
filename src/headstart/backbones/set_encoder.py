"""The P-VAE's set encoder: a row's observations, embedded one by one and summed."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from headstart.algebra.sparse import bag, folded_sum
from headstart.table.cells import Cells

# Tabling one (feature, value) pair costs about as much as this many observations on the folded path.
GRID_COST = 1.6


class SetEncoder(nn.Module):
    """Sum over a row's observations of ``relu(layer([x, x·e_j, bias_j]))``: (rows, size).

    ``e_j`` (``embedding`` wide) and ``bias_j`` are learned per feature. The layer is linear before its
    ReLU, so it folds into two vectors a feature, ``relu(x·A_j + B_j)``, exactly. Where the values lie
    on a small ``grid``, every ``relu(...)`` there can be is tabled once a batch and only summed.

    ``pooling="root"`` divides the sum by √n and appends log(1 + n), which keeps rows of very different
    numbers of observations on one scale.
    """

    def __init__(
        self, features: int, embedding: int, size: int, grid: Tensor, pooling: Literal["sum", "root"]
    ) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(features, embedding) / embedding**0.5)
        self.bias = nn.Parameter(torch.zeros(features, 1))
        self.layer = nn.Linear(embedding + 2, size)
        self.grid: Tensor
        self.register_buffer("grid", grid, persistent=False)
        self.pooling = pooling
        self.output_size = size + (pooling == "root")

    def fold(self) -> tuple[Tensor, Tensor]:
        """The layer folded into a slope and a shift for every feature: two of (features, size)."""
        of_value, of_embedding, of_bias = torch.split(self.layer.weight.T, [1, self.embedding.shape[1], 1])
        slope = torch.addmm(of_value, self.embedding, of_embedding)
        shift = torch.addmm(self.layer.bias, self.bias, of_bias)
        return slope, shift

    def forward(self, cells: Cells) -> Tensor:
        """Encode a batch of rows: (rows, output_size)."""
        slope, shift = self.fold()
        on_grid = self._on_grid(cells)
        if on_grid is None:
            total = folded_sum(slope, shift, cells)
        else:
            tabled = torch.addcmul(shift[:, None], self.grid[:, None], slope[:, None]).relu()
            total = bag(tabled.flatten(0, 1), on_grid)
        if self.pooling == "sum":
            return total
        n = cells.counts.to(total.dtype)[:, None]
        return torch.cat([total / n.clamp(min=1).sqrt(), n.log1p()], dim=1)

    def _on_grid(self, cells: Cells) -> Cells | None:
        """The same lines pointing at (feature, value) pairs, if that is possible and cheaper."""
        points = len(self.grid)
        width = cells.width * points
        if points == 0 or width * GRID_COST > len(cells.index):
            return None
        at = torch.bucketize(cells.values, self.grid).clamp_(max=points - 1)
        if not torch.equal(self.grid[at], cells.values):
            return None
        return Cells(cells.indptr, cells.index.long() * points + at, cells.values, width)
