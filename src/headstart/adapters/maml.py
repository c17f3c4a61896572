"""Feature-wise MAML: a head to start from, learned so that a few steps on a context go far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from headstart.adapters.finetune import fine_tune
from headstart.adapters.protocol import Adapter, AdapterConfig
from headstart.adapters.registry import register_adapter
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.states import RowStates
from headstart.table.kinds import KindType


class MAMLConfig(AdapterConfig):
    """Settings of MAML, the paper's by default. ``epochs`` alone does not change what is learned."""

    name: Literal["maml"] = "maml"
    epochs: int = Field(10, ge=0)  # of fine-tuning once meta-trained
    inner_steps: int = Field(10, ge=0)  # of fine-tuning while meta-trained
    inner_learning_rate: float = Field(1e-2, gt=0)
    meta_batch: int = Field(4, ge=1)  # features a step of meta-training
    outer_learning_rate: float = Field(1e-2, gt=0)
    seed: int = Field(0, ge=0)


@register_adapter
class MAML(Adapter):
    """Fine-tunes each feature's head from one meta-learned initialisation of its kind.

    In training mode ``adapt`` takes ``inner_steps`` differentiable Adam steps on the context, so
    that the targets' loss reaches the initialisation through all of them: second order. In
    evaluation mode it takes ``epochs`` steps. At zero shots both give the initialisation itself.
    """

    config_type: ClassVar[type[AdapterConfig]] = MAMLConfig
    numbered: ClassVar[str | None] = "epochs"
    variants: ClassVar[tuple[str, ...]] = ("maml-0", "maml-1", "maml-3", "maml-5", "maml-10")
    config: MAMLConfig

    def __init__(self, config: MAMLConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        heads = knowledge.heads.weight
        self.weight = nn.Parameter(heads.new_zeros(len(KindType), heads.shape[1]))  # (kinds, width)
        self.bias = nn.Parameter(heads.new_zeros(len(KindType)))

    @torch.no_grad()
    def prepare(self) -> None:
        """Start from one random head for all kinds."""
        start = torch.empty_like(self.weight[:1], device="cpu")  # where its generator is
        nn.init.xavier_uniform_(start, generator=torch.Generator().manual_seed(self.config.seed))
        self.weight.copy_(start.expand_as(self.weight))

    @classmethod
    def trained_as(cls, config: MAMLConfig) -> AdapterConfig:
        """How MAML fine-tunes once it is meta-trained changes nothing of what it learns."""
        return config.revised(epochs=config.inner_steps)

    @property
    def meta_settings(self) -> Mapping[str, object]:
        """The paper's meta-batch and outer learning rate, with no weight decay."""
        config = self.config
        return {
            "batch_size": config.meta_batch,
            "learning_rate": config.outer_learning_rate,
            "weight_decay": 0.0,
            "min_steps": 1,
        }

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Fine-tune each feature's head on its context, from the initialisation."""
        start = Heads(self.weight, self.bias).take(batch.kinds)
        steps = self.config.inner_steps if self.training else self.config.epochs
        if not self.training:
            start = start.detach()
        rate = self.config.inner_learning_rate
        return fine_tune(start, batch, states, self.knowledge.likelihood, steps, rate)
