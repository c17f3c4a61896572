"""Which features a row observed, in a few numbers: what people choose to rate says what they like."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headstart.algebra.sparse import bag
from headstart.table.cells import Cells

_ROUNDS = 4  # of subspace iteration
_ENDS = 0.02  # share of rows beyond each end of the counts that are told apart


class Signature(nn.Module):
    """Σ_j y_j / √n over the features j that a row observed, whatever their values.

    The y_j are the leading singular vectors of the table's pattern of observations, rows and features
    scaled to unit length. A constant 1 and the log of the count go before. All but the constant is told
    as a difference from the usual row, times n / (n + ``patience``): of a row that nobody knows nothing
    is told, whatever was learned from rows that are known well.
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
        self.ends: Tensor  # of the log counts seen
        self.register_buffer("ends", torch.tensor([0.0, 20.0]))
        self.patience: Tensor
        self.register_buffer("patience", torch.tensor(1.0))

    @property
    def size(self) -> int:
        """How many numbers a row's signature has: the constant and the count first."""
        return self.length + 2

    def forward(self, cells: Cells) -> Tensor:
        """(rows, 2 + length)."""
        counts = cells.counts.to(self.table.dtype)[:, None]
        told = (self._raw(cells) - self.centre) / self.scale * (counts / (counts + self.patience))
        return torch.cat([torch.ones_like(counts), told], dim=1)

    def _raw(self, cells: Cells) -> Tensor:
        counts = cells.counts.to(self.table.dtype)
        logs = counts.log1p().clamp(self.ends[0], self.ends[1])
        return torch.cat([logs[:, None], bag(self.table, cells) / counts.clamp(min=1).sqrt()[:, None]], dim=1)

    @torch.no_grad()
    def fit(self, cells: Cells, generator: torch.Generator) -> None:
        """Find the y_j by randomised subspace iteration, and what is usual."""
        if self.length:
            self._decompose(cells, generator)
        filled = cells.take(torch.nonzero(cells.counts)[:, 0])
        if len(filled) < 2:
            return
        logs = filled.counts.to(self.table.dtype).log1p()
        ends = torch.tensor([_ENDS, 1 - _ENDS]).to(logs.dtype)
        self.ends.copy_(torch.quantile(logs[torch.randperm(len(logs), generator=generator)[:1_000_000]], ends))
        raw = self._raw(filled)
        self.centre.copy_(raw.mean(0))
        # Where every row observed alike, a signature says nothing and must not be blown up.
        spread = torch.maximum(raw.std(0), 0.05 * raw.abs().mean(0))
        self.scale.copy_(spread.clamp(min=1e-3))

    def _decompose(self, cells: Cells, generator: torch.Generator) -> None:
        by_feature = cells.transpose()
        near = cells.counts.clamp(min=1).to(self.table.dtype).rsqrt()[:, None]
        far = by_feature.counts.clamp(min=1).to(self.table.dtype).rsqrt()[:, None]
        found = torch.randn(cells.width, self.length + 8, generator=generator)
        for _ in range(_ROUNDS):
            rows = torch.linalg.qr(near * bag(far * found, cells)).Q
            found = torch.linalg.qr(far * bag(near * rows, by_feature)).Q
        _, _, turn = torch.linalg.svd(near * bag(far * found, cells), full_matrices=False)
        leading = (found @ turn.T)[:, : self.length]
        self.table[:, : leading.shape[1]] = far * leading

    @torch.no_grad()
    def learn_patience(self, cells: Cells, means: Tensor, row_map: Tensor, metric: Tensor, seed: int = 0) -> None:
        """Find from how many observations on a signature is to be believed.

        Rows forget all but a few of their observations, drawn at random; what the rest foretells
        (``row_map``, (size, latent)) is compared with what all of them say (``means``, (rows, latent)) in
        the ``metric`` (latent, latent) of predictions.
        """
        if not bool((row_map[1:] != 0).any()):
            return
        generator = torch.Generator().manual_seed(seed)
        lines = cells.lines
        order = torch.argsort(lines + torch.rand(len(lines), generator=generator, dtype=torch.float64))
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order)) - cells.indptr[lines]
        choices = torch.logspace(-0.5, 3, 15)
        errors = torch.zeros(len(choices))
        rest = means - row_map[0]
        for known in (1, 2, 4, 8, 16, 32, 64):
            enough = cells.counts >= 2 * known
            if int(enough.sum()) < 10:
                break
            part = cells.keep(rank < known)
            foretold = (((self._raw(part) - self.centre) / self.scale) @ row_map[1:])[enough]
            alike = ((foretold @ metric) * foretold).sum(1).mean()
            agreeing = ((foretold @ metric) * rest[enough]).sum(1).mean()
            share = known / (known + choices)
            errors += share**2 * alike - 2 * share * agreeing
        self.patience.copy_(choices[int(errors.argmin())])
