"""The mean of the context, for every row alike."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from headstart.adapters.pooling import constant_heads, context_means, kind_means
from headstart.adapters.protocol import Adapter, AdapterConfig
from headstart.adapters.registry import register_adapter
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.states import RowStates
from headstart.table.kinds import KindType


class MeanConfig(AdapterConfig):
    """There is nothing to set."""

    name: Literal["mean"] = "mean"


@register_adapter
class MeanOfContext(Adapter):
    """w = 0, b = link⁻¹(mean of the context).

    At zero shots: the mean of all values of that kind of the backbone's features.
    """

    config_type: ClassVar[type[AdapterConfig]] = MeanConfig
    config: MeanConfig

    def __init__(self, config: MeanConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self.means: Tensor  # the mean value of each kind
        self.register_buffer("means", torch.zeros(len(KindType), dtype=torch.float64))

    def prepare(self) -> None:
        """Note the mean value of each kind."""
        self.means.copy_(kind_means(self.knowledge))

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:  # noqa: ARG002
        """Give each feature the head that always predicts its context's mean."""
        return constant_heads(context_means(batch, self.means), batch.kinds, self.knowledge)
