"""The feed-forward backbone, a deterministic alternative to the autoencoder."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from headstart.backbones.base import Backbone, BackboneConfig, register_backbone
from headstart.core.networks import mlp
from headstart.core.types import RowStates
from headstart.linalg.ragged import sampled_products, segment_weighted_sum
from headstart.table.cells import Cells


class FeedForwardConfig(BackboneConfig):
    """Settings of the feed-forward backbone."""

    name: Literal["feedforward"] = "feedforward"
    first_layer: int = Field(128, ge=1)
    code: int = Field(64, ge=1)
    layers: tuple[PositiveInt, ...] = (200,)
    max_drop_rate: float = Field(0.5, gt=0, le=1)  # each row hides a fraction ~ Uniform(0, max_drop_rate)


@register_backbone
class FeedForward(Backbone):
    """Network of masked inputs, hidden layers and heads; the code is an intermediate layer.

    The first layer reads values and mask: it is ``Σ_j (x_j·A_j + B_j)`` over the n observed features j,
    divided by √n so that sparse and dense rows have the same scale.
    """

    config_type: ClassVar[type[BackboneConfig]] = FeedForwardConfig
    trained_by = "gradient"
    config: FeedForwardConfig

    def __init__(self, config: FeedForwardConfig, kinds: Tensor, grid: Tensor) -> None:
        super().__init__(config, kinds, grid)
        features, first = len(kinds), config.first_layer
        self.input = nn.Parameter(torch.randn(2 * features, first) * first**-0.5)  # A, then B
        self.input_bias = nn.Parameter(torch.zeros(first))
        self.to_code = mlp([first, config.code], last=True)
        self.from_code = mlp([config.code, *config.layers], last=True)
        width = [config.code, *config.layers][-1]
        self.weight = nn.Parameter(torch.randn(features, width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(features))

    @property
    def code_size(self) -> int:
        """Width of the intermediate layer."""
        return self.config.code

    def batch_states(self, cells: Cells) -> RowStates:
        """Compute states in one forward pass; the code of a deterministic model has no variance."""
        slope, shift = self.input.chunk(2)
        total = segment_weighted_sum(slope, cells, cells.values) + segment_weighted_sum(shift, cells)
        scale = cells.counts.to(total.dtype).clamp(min=1).rsqrt()[:, None]
        code = self.to_code(torch.relu(total * scale + self.input_bias))
        return RowStates(code, torch.zeros_like(code), self.from_code(code))

    def loss(self, cells: Cells, generator: torch.Generator) -> Tensor:
        """Compute the negative log-likelihood per row of the observations hidden from the input."""
        rate = torch.rand(len(cells), generator=generator) * self.config.max_drop_rate
        visible = torch.rand(len(cells.index), generator=generator) >= rate[cells.lines]
        activation = self.batch_states(cells.keep(visible)).activation
        hidden = cells.keep(~visible)
        logits = sampled_products(activation, self.weight, hidden) + self.bias[hidden.index]
        return self.likelihood.nll(logits, hidden.values, self.kinds[hidden.index]).sum() / len(cells)
