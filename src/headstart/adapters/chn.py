"""The contextual hypernetwork of the paper."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self, cast

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.adapters.base import Adapter, AdapterConfig, register_adapter
from headstart.core.networks import mlp
from headstart.core.types import FeatureBatch, Heads, Knowledge, RowStates
from headstart.linalg.ragged import segment_sum
from headstart.table.kinds import KindType

MOST_KEPT = 2**25  # numbers kept of all rows between calls: 128 MiB


class CHNConfig(AdapterConfig):
    """Sizes of the hypernetwork's parts; named as in the paper's table of hyper-parameters."""

    name: Literal["chn"] = "chn"
    embedding: int = Field(50, ge=1)  # of a data point
    encoding: int = Field(50, ge=1)  # of the context
    context_layers: tuple[PositiveInt, ...] = (128,)  # hidden layers of f and of g
    metadata_encoding: int = Field(20, ge=1)
    metadata_layers: tuple[PositiveInt, ...] = (32,)
    parameter_layers: tuple[PositiveInt, ...] = (256, 256)
    max_shots: int = Field(32, ge=1)  # past these the sum is scaled back to what it would be at these


@register_adapter
class ContextualHypernetwork(Adapter):
    """θ = net([g(Σ_i f([z_i, x_i])); h(metadata)]) for each new feature, in one pass."""

    config_type: ClassVar[type[AdapterConfig]] = CHNConfig
    config: CHNConfig

    def __init__(self, config: CHNConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        code_size, width = knowledge.states.code.shape[1], knowledge.states.activation.shape[1]
        hidden = list(config.context_layers)
        self.f = mlp([code_size + 1, *hidden, config.embedding])
        self.g = mlp([config.embedding, *hidden, config.encoding])
        # Where a table mixes kinds, what a feature's kind is says as much as any metadata.
        self.tells_kind = len(set(knowledge.kinds.tolist())) > 1
        described = knowledge.metadata.shape[1] + len(KindType) * self.tells_kind
        self.h = mlp([described, *config.metadata_layers, config.metadata_encoding]) if described else None
        joined = config.encoding + (config.metadata_encoding if described else 0)
        self.net = mlp([joined, *config.parameter_layers, width + 1])
        self._kept: tuple[RowStates, Tensor] | None = None

    def load_state_dict(self, *given: Any, **options: Any) -> Any:
        """Take other parameters, and forget what was computed from the old ones."""
        self._kept = None
        return super().load_state_dict(*given, **options)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze or thaw, and forget what was computed from parameters that may change."""
        self._kept = None
        return super().requires_grad_(requires_grad)

    @torch.no_grad()
    def prepare(self) -> None:
        """Start close to the mean head, which already predicts something."""
        heads, last = self.knowledge.heads, cast(nn.Linear, self.net[-1])
        last.weight.mul_(0.1)
        last.bias.copy_(torch.cat([heads.weight.mean(0), heads.bias.mean(0, keepdim=True)]))

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Generate the heads of a batch of features of any number of shots each."""
        described = [self.context_vector(batch, states)]
        if self.h is not None:
            described.append(self.h(self._metadata(batch)))
        parameters = self.net(torch.cat(described, dim=1))
        return Heads(parameters[:, :-1], parameters[:, -1])

    def context_vector(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """c = g(Σ f([z, x])): (features, encoding)."""
        shots = batch.shots.to(states.code.dtype)[:, None]
        # A sum grows with the shots, and g was never trained on one of more than these.
        scale = self.config.max_shots / shots.clamp(min=self.config.max_shots)
        encoded: Tensor = self.g(self._sum_of_f(batch, states, shots) * scale)
        return encoded

    def _sum_of_f(self, batch: FeatureBatch, states: RowStates, shots: Tensor) -> Tensor:
        """Σ f([z, x]) over each context: (features, embedding).

        f's last layer is linear, so it is applied once to the sum of what goes into it.
        """
        cells, last = batch.cells, cast(nn.Linear, self.f[-1])
        first = cast(nn.Linear, self.f[0]).weight
        hidden = self._rows_part(states, cells.index) + cells.values[:, None] * first[:, -1]
        if len(self.f) == 1:  # without hidden layers f is linear itself
            return segment_sum(hidden, cells.indptr)
        return segment_sum(self.f[1:-1](hidden), cells.indptr) @ last.weight.T + shots * last.bias

    def _rows_part(self, states: RowStates, rows: Tensor) -> Tensor:
        """What rows contribute to f's first layer, whatever their value: (n, layer).

        Once the adapter is frozen it is computed for all rows and kept: the backbone is frozen too.
        """
        layer = cast(nn.Linear, self.f[0])
        weight = layer.weight[:, :-1]
        small = len(states) * len(weight) <= MOST_KEPT
        if self.learns or not small:
            return torch.addmm(layer.bias, states.code.index_select(0, rows), weight.T)
        if self._kept is None or self._kept[0] is not states:
            self._kept = (states, torch.addmm(layer.bias, states.code, weight.T))
        return self._kept[1].index_select(0, rows)

    def _metadata(self, batch: FeatureBatch) -> Tensor:
        if not self.tells_kind:
            return batch.metadata
        return torch.cat(
            [batch.metadata, F.one_hot(batch.kinds, len(KindType)).to(batch.metadata.dtype)], dim=1
        )
