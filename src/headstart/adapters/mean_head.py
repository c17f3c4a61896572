"""The mean of the backbone's heads, for every feature alike."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from headstart.adapters.pooling import KINDS, constant_heads, kind_means, pooled_heads
from headstart.adapters.protocol import Adapter, FeatureBatch, Knowledge
from headstart.backbones.heads import Heads
from headstart.backbones.protocol import RowStates
from headstart.config import Config


class MeanHeadConfig(Config):
    """There is nothing to set."""

    name: Literal["mean-head"] = "mean-head"


class MeanHead(Adapter):
    """θ = the mean of the heads of all the backbone's features of the same kind.

    The context is not used. A kind that the backbone has no feature of gets the middle of its scale.
    """

    name: ClassVar[str] = "mean-head"
    config: MeanHeadConfig

    def __init__(self, config: MeanHeadConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        kinds = torch.arange(KINDS)
        middle = constant_heads(kind_means(knowledge), kinds, knowledge)
        self._heads = pooled_heads(kinds[:, None] == knowledge.codes, middle, knowledge)

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:  # noqa: ARG002
        """Give each feature the mean head of its kind."""
        return self._heads.take(batch.codes)
