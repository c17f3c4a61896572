"""The contextual hypernetwork of the paper (``chn``)."""

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

_MAX_CACHED = 2**25  # numbers of all rows cached between calls: 128 MiB


class CHNConfig(AdapterConfig):
    """Sizes of the hypernetwork's layers, as in the paper's table of hyper-parameters."""

    name: Literal["chn"] = "chn"
    embedding: int = Field(50, ge=1)  # of an observation
    encoding: int = Field(50, ge=1)  # of the context
    context_layers: tuple[PositiveInt, ...] = (128,)  # hidden layers of f and of g
    metadata_encoding: int = Field(20, ge=1)
    metadata_layers: tuple[PositiveInt, ...] = (32,)
    parameter_layers: tuple[PositiveInt, ...] = (256, 256)
    max_shots: int = Field(32, ge=1)  # sums over larger contexts are scaled down to this number of shots


@register_adapter
class ContextualHypernetwork(Adapter):
    """Compute θ = net([g(Σ_i f([z_i, x_i])); h(metadata)]) for each new feature in one forward pass."""

    config_type: ClassVar[type[AdapterConfig]] = CHNConfig
    config: CHNConfig

    def __init__(self, config: CHNConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        code_size, width = knowledge.states.code.shape[1], knowledge.states.activation.shape[1]
        hidden = list(config.context_layers)
        self.f = mlp([code_size + 1, *hidden, config.embedding])
        self.g = mlp([config.embedding, *hidden, config.encoding])
        # In a table of several kinds, the kind of a feature is as informative as metadata.
        self.encodes_kind = len(set(knowledge.kinds.tolist())) > 1
        columns = knowledge.metadata.shape[1] + len(KindType) * self.encodes_kind
        self.h = mlp([columns, *config.metadata_layers, config.metadata_encoding]) if columns else None
        inputs = config.encoding + (config.metadata_encoding if columns else 0)
        self.net = mlp([inputs, *config.parameter_layers, width + 1])
        self._cache: tuple[RowStates, Tensor] | None = None  # states and their part of f's first layer

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Load parameters, and clear the cache."""
        self._cache = None
        return super().load_state_dict(*arguments, **options)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze or unfreeze the parameters, and clear the cache."""
        self._cache = None
        return super().requires_grad_(requires_grad)

    @torch.no_grad()
    def prepare(self) -> None:
        """Initialise the last layer such that heads are close to the mean head."""
        heads, last = self.knowledge.heads, cast(nn.Linear, self.net[-1])
        last.weight.mul_(0.1)
        last.bias.copy_(torch.cat([heads.weight.mean(0), heads.bias.mean(0, keepdim=True)]))

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Compute heads by one forward pass."""
        encodings = [self.context_vector(batch, states)]
        if self.h is not None:
            encodings.append(self.h(self._metadata(batch)))
        parameters = self.net(torch.cat(encodings, dim=1))
        return Heads(parameters[:, :-1], parameters[:, -1])

    def context_vector(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """Compute c = g(Σ f([z, x])): (features, encoding)."""
        shots = batch.shots.to(states.code.dtype)[:, None]
        # The sum grows with the shots, and g was trained on sums of at most `max_shots`.
        scale = self.config.max_shots / shots.clamp(min=self.config.max_shots)
        encoded: Tensor = self.g(self._sum_of_f(batch, states, shots) * scale)
        return encoded

    def _sum_of_f(self, batch: FeatureBatch, states: RowStates, shots: Tensor) -> Tensor:
        """Compute Σ f([z, x]) over each context: (features, embedding).

        The last layer of f is linear and therefore applied once, to the sum of its inputs.
        """
        cells, last = batch.cells, cast(nn.Linear, self.f[-1])
        first = cast(nn.Linear, self.f[0]).weight
        hidden = self._first_layer(states, cells.index) + cells.values[:, None] * first[:, -1]
        if len(self.f) == 1:  # without hidden layers f is linear
            return segment_sum(hidden, cells.indptr)
        return segment_sum(self.f[1:-1](hidden), cells.indptr) @ last.weight.T + shots * last.bias

    def _first_layer(self, states: RowStates, rows: Tensor) -> Tensor:
        """Compute the part of f's first layer that depends on the codes of ``rows`` (n,): (n, layer).

        Once the adapter is frozen, the result of all rows is cached.
        """
        layer = cast(nn.Linear, self.f[0])
        weight = layer.weight[:, :-1]
        if self.learns or len(states) * len(weight) > _MAX_CACHED:
            return torch.addmm(layer.bias, states.code.index_select(0, rows), weight.T)
        if self._cache is None or self._cache[0] is not states:
            self._cache = (states, torch.addmm(layer.bias, states.code, weight.T))
        return self._cache[1].index_select(0, rows)

    def _metadata(self, batch: FeatureBatch) -> Tensor:
        """Return the inputs of h, metadata and perhaps the kind: (features, columns)."""
        if not self.encodes_kind:
            return batch.metadata
        return torch.cat(
            [batch.metadata, F.one_hot(batch.kinds, len(KindType)).to(batch.metadata.dtype)], dim=1
        )
