"""A random head, trained on the context."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from headstart.adapters.finetune import fine_tune
from headstart.adapters.protocol import Adapter, AdapterConfig
from headstart.adapters.random import RandomConfig, RandomHead
from headstart.adapters.registry import register_adapter
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.states import RowStates


class TrainConfig(AdapterConfig):
    """Settings of training from a random head."""

    name: Literal["train"] = "train"
    epochs: int = Field(10, ge=0)
    learning_rate: float = Field(1e-2, gt=0)
    seed: int = Field(0, ge=0)


@register_adapter
class TrainFromRandom(Adapter):
    """Starts where ``RandomHead`` does and fine-tunes on the context for a fixed number of epochs.

    At zero shots the head stays random.
    """

    config_type: ClassVar[type[AdapterConfig]] = TrainConfig
    numbered: ClassVar[str | None] = "epochs"
    variants: ClassVar[tuple[str, ...]] = ("train-1", "train-5", "train-10", "train-25")
    config: TrainConfig

    def __init__(self, config: TrainConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self._start = RandomHead(RandomConfig(seed=config.seed), knowledge)  # has nothing to prepare

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Draw a head for each feature and train it on its context."""
        start = self._start.adapt(batch, states)
        steps, rate = self.config.epochs, self.config.learning_rate
        return fine_tune(start, batch, states, self.knowledge.likelihood, steps, rate)
