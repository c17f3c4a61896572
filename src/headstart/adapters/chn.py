"""The contextual hypernetwork of the paper."""

from __future__ import annotations

from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.adapters.protocol import Adapter, FeatureBatch, Knowledge
from headstart.backbones.heads import Heads
from headstart.backbones.protocol import RowStates, mlp
from headstart.backbones.sparse import segment_sum
from headstart.config import Config


class CHNConfig(Config):
    """Sizes of the hypernetwork's parts; named as in the paper's table of hyper-parameters."""

    name: Literal["chn"] = "chn"
    embedding: int = 50  # of a data point
    encoding: int = 50  # of the context
    context_layers: tuple[int, ...] = (128,)  # hidden layers of f and of g
    metadata_encoding: int = 20
    metadata_layers: tuple[int, ...] = (32,)
    parameter_layers: tuple[int, ...] = (256, 256)
    most_shots: int = 32  # past these the sum is scaled back to what it would be at these


class ContextualHypernetwork(Adapter):
    """θ = net([g(Σ_i f([z_i, x_i])); h(metadata)]) for each new feature, in one pass."""

    name: ClassVar[str] = "chn"
    config: CHNConfig

    def __init__(self, config: CHNConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        codes, width = knowledge.states.code, knowledge.states.activation.shape[1]
        hidden = list(config.context_layers)
        self.f = mlp([codes.shape[1] + 1, *hidden, config.embedding])
        self.g = mlp([config.embedding, *hidden, config.encoding])
        # Where a table mixes kinds, what a feature's kind is says as much as any metadata.
        self.tells_kind = len(set(knowledge.codes.tolist())) > 1
        described = knowledge.metadata.shape[1] + 3 * self.tells_kind
        self.h = mlp([described, *config.metadata_layers, config.metadata_encoding]) if described else None
        joined = config.encoding + (config.metadata_encoding if described else 0)
        self.net = mlp([joined, *config.parameter_layers, width + 1])
        self._begin_at_the_mean_head(knowledge.heads)

    def _begin_at_the_mean_head(self, heads: Heads) -> None:
        """Start close to a head that already predicts something; training goes on from there."""
        with torch.no_grad():
            last = cast(nn.Linear, self.net[-1])
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
        cells = batch.cells
        points = torch.cat([states.code.index_select(0, cells.index), cells.values[:, None]], dim=1)
        total = segment_sum(self.f(points), cells.indptr)
        # A sum grows with the shots, and g has never seen one of more than these.
        excess = cells.counts.clamp(min=self.config.most_shots).to(total.dtype)[:, None]
        encoded: Tensor = self.g(total * (self.config.most_shots / excess))
        return encoded

    def _metadata(self, batch: FeatureBatch) -> Tensor:
        if not self.tells_kind:
            return batch.metadata
        return torch.cat([batch.metadata, F.one_hot(batch.codes, 3).to(batch.metadata.dtype)], dim=1)
