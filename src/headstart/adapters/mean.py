"""The mean of the context, for every row alike."""

from __future__ import annotations

from typing import ClassVar, Literal

from headstart.adapters.pooling import constant_heads, context_means, kind_means
from headstart.adapters.protocol import Adapter, FeatureBatch, Knowledge
from headstart.backbones.heads import Heads
from headstart.backbones.protocol import RowStates
from headstart.config import Config


class MeanConfig(Config):
    """There is nothing to set."""

    name: Literal["mean"] = "mean"


class MeanOfContext(Adapter):
    """w = 0, b = link⁻¹(mean of the context).

    At zero shots: the mean of all values of that kind that the backbone's features were seen to take.
    """

    name: ClassVar[str] = "mean"
    config: MeanConfig

    def __init__(self, config: MeanConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self._means = kind_means(knowledge)

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:  # noqa: ARG002
        """Give each feature the head that always predicts its context's mean."""
        return constant_heads(context_means(batch, self._means), batch.codes, self.knowledge)
