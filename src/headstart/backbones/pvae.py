"""The partial variational autoencoder (P-VAE) of the paper."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from headstart.backbones.base import Backbone, BackboneConfig, register_backbone
from headstart.core.networks import mlp
from headstart.core.types import RowStates
from headstart.linalg.ragged import folded_sum, sampled_products, segment_weighted_sum
from headstart.table.cells import Cells

GRID_COST = 1.6  # cost of tabulating a (feature, value) pair, relative to that of encoding an observation


class SetEncoder(nn.Module):
    """Sum over a row's observations of ``relu(layer([x, x·e_j, bias_j]))``: (rows, size).

    ``e_j`` (``embedding`` wide) and ``bias_j`` are learned for each feature. As the layer is linear, it
    equals ``relu(x·A_j + B_j)`` with two vectors per feature. If the values are on a small ``grid``, all
    possible ``relu(...)`` are computed once per batch.

    ``pooling="root"`` divides the sum by √n and appends log(1 + n), so that rows with few and with many
    observations have the same scale.
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
        """Combine layer and embeddings into A and B: two of (features, size)."""
        value_weights, embedding_weights, bias_weights = torch.split(
            self.layer.weight.T, [1, self.embedding.shape[1], 1]
        )
        slope = torch.addmm(value_weights, self.embedding, embedding_weights)
        shift = torch.addmm(self.layer.bias, self.bias, bias_weights)
        return slope, shift

    def forward(self, cells: Cells) -> Tensor:
        """Encode a batch of rows: (rows, output_size)."""
        slope, shift = self.fold()
        on_grid = self._on_grid(cells)
        if on_grid is None:
            total = folded_sum(slope, shift, cells)
        else:
            table = torch.addcmul(shift[:, None], self.grid[:, None], slope[:, None]).relu()
            total = segment_weighted_sum(table.flatten(0, 1), on_grid)
        if self.pooling == "sum":
            return total
        n = cells.counts.to(total.dtype)[:, None]
        return torch.cat([total / n.clamp(min=1).sqrt(), n.log1p()], dim=1)

    def _on_grid(self, cells: Cells) -> Cells | None:
        """Return cells that index (feature, value) pairs, or None if that is impossible or slower."""
        points = len(self.grid)
        width = cells.width * points
        if points == 0 or width * GRID_COST > len(cells.index):
            return None
        positions = torch.bucketize(cells.values, self.grid).clamp_(max=points - 1)
        if not torch.equal(self.grid[positions], cells.values):
            return None
        return Cells(cells.indptr, cells.index.long() * points + positions, cells.values, width)


class PVAEConfig(BackboneConfig):
    """Settings of the P-VAE. The defaults differ from the paper: see ``docs/methods.md``."""

    name: Literal["pvae"] = "pvae"
    embedding: int = Field(50, ge=1)
    set_size: int = Field(64, ge=1)
    pooling: Literal["sum", "root"] = "root"
    encoder_layers: tuple[PositiveInt, ...] = (200,)
    latent: int = Field(64, ge=1)
    decoder_layers: tuple[PositiveInt, ...] = (200,)
    kl_weight: float = Field(0.01, ge=0)
    max_drop_rate: float = Field(0.8, ge=0, le=1)  # each row drops a fraction ~ Uniform(0, max_drop_rate)


@register_backbone
class PVAE(Backbone):
    """Autoencoder: set encoder, Gaussian posterior of the code z, shared decoder and one head per feature."""

    config_type: ClassVar[type[BackboneConfig]] = PVAEConfig
    trained_by = "gradient"
    config: PVAEConfig

    def __init__(self, config: PVAEConfig, kinds: Tensor, grid: Tensor) -> None:
        super().__init__(config, kinds, grid)
        self.set_encoder = SetEncoder(
            len(kinds), config.embedding, config.set_size, self.grid, config.pooling
        )
        self.encoder = mlp([self.set_encoder.output_size, *config.encoder_layers, 2 * config.latent])
        self.decoder = mlp([config.latent, *config.decoder_layers], last=True)
        width = [config.latent, *config.decoder_layers][-1]
        self.weight = nn.Parameter(torch.randn(len(kinds), width) * (1.0 / width) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(len(kinds)))

    @property
    def code_size(self) -> int:
        """Length of z."""
        return self.config.latent

    def loss(self, cells: Cells, generator: torch.Generator) -> Tensor:
        """Compute the negative ELBO per row, with a random fraction of the inputs dropped."""
        rate = torch.rand(len(cells), generator=generator) * self.config.max_drop_rate
        visible = torch.rand(len(cells.index), generator=generator) >= rate[cells.lines]
        mean, log_variance = self.posterior(cells.keep(visible))
        noise = torch.randn(mean.shape, generator=generator)
        return self.negative_elbo(cells, mean, log_variance, noise)

    def negative_elbo(self, cells: Cells, mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
        """Estimate the negative ELBO by one sample z = mean + std·noise, averaged over rows."""
        activation = self.decoder(mean + torch.exp(0.5 * log_variance) * noise)
        logits = sampled_products(activation, self.weight, cells) + self.bias[cells.index]
        nll = self.likelihood.nll(logits, cells.values, self.kinds[cells.index]).sum()
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum()
        return (nll + self.config.kl_weight * kl) / len(cells)

    def posterior(self, cells: Cells) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of q(z | observations): two of (rows, latent)."""
        mean, log_variance = self.encoder(self.set_encoder(cells)).chunk(2, dim=1)
        return mean, log_variance.clamp(-12, 6)

    def batch_states(self, cells: Cells) -> RowStates:
        """Return the posterior mean as the code, and the activation decoded from it."""
        mean, log_variance = self.posterior(cells)
        return RowStates(mean, torch.exp(0.5 * log_variance), self.decoder(mean))
