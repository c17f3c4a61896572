"""The mean of the backbone's heads, for every feature alike."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from headstart.adapters.pooling import constant_heads, kind_means, pooled_heads
from headstart.adapters.protocol import Adapter, AdapterConfig
from headstart.adapters.registry import register_adapter
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.states import RowStates
from headstart.table.kinds import KindType


class MeanHeadConfig(AdapterConfig):
    """There is nothing to set."""

    name: Literal["mean-head"] = "mean-head"


@register_adapter
class MeanHead(Adapter):
    """θ = the mean of the heads of all the backbone's features of the same kind.

    The context is not used. A kind that the backbone has no feature of gets the middle of its scale.
    """

    config_type: ClassVar[type[AdapterConfig]] = MeanHeadConfig
    config: MeanHeadConfig

    def __init__(self, config: MeanHeadConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        heads = knowledge.heads.weight
        self.weight: Tensor
        self.register_buffer("weight", heads.new_zeros(len(KindType), heads.shape[1]))
        self.bias: Tensor
        self.register_buffer("bias", heads.new_zeros(len(KindType)))

    def prepare(self) -> None:
        """Average the heads of each kind."""
        kinds = torch.arange(len(KindType))
        middle = constant_heads(kind_means(self.knowledge), kinds, self.knowledge)
        heads = pooled_heads(kinds[:, None] == self.knowledge.kinds, middle, self.knowledge)
        self.weight.copy_(heads.weight)
        self.bias.copy_(heads.bias)

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:  # noqa: ARG002
        """Give each feature the mean head of its kind."""
        return Heads(self.weight, self.bias).take(batch.kinds)
