"""Feature-wise MAML: a head to start from, learned so that a few steps on a context go far."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from headstart.adapters.finetune import fine_tune
from headstart.adapters.pooling import KINDS
from headstart.adapters.protocol import Adapter, FeatureBatch, Knowledge
from headstart.backbones.heads import Heads
from headstart.backbones.protocol import RowStates
from headstart.config import Config


class MAMLConfig(Config):
    """Settings of MAML, the paper's by default. ``epochs`` alone does not change what is learned."""

    name: Literal["maml"] = "maml"
    epochs: int = Field(10, ge=0)  # of fine-tuning once meta-trained
    inner_steps: int = Field(10, ge=0)  # of fine-tuning while meta-trained
    inner_rate: float = Field(1e-2, gt=0)
    meta_batch: int = Field(4, ge=1)  # features a step of meta-training
    outer_rate: float = Field(1e-2, gt=0)
    seed: int = Field(0, ge=0)


class MAML(Adapter):
    """Fine-tunes each feature's head from one meta-learned initialisation of its kind.

    In training mode ``adapt`` takes ``inner_steps`` differentiable Adam steps on the context, so
    that the targets' loss reaches the initialisation through all of them: second order. In
    evaluation mode it takes ``epochs`` steps. At zero shots both give the initialisation itself.
    """

    name: ClassVar[str] = "maml"
    config: MAMLConfig

    def __init__(self, config: MAMLConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        start = torch.empty(1, knowledge.heads.weight.shape[1], dtype=knowledge.heads.weight.dtype)
        nn.init.xavier_uniform_(start, generator=torch.Generator().manual_seed(config.seed))
        self.weight = nn.Parameter(start.repeat(KINDS, 1))  # (kinds, width)
        self.bias = nn.Parameter(start.new_zeros(KINDS))

    @property
    def meta_settings(self) -> dict[str, Any]:
        """The paper's meta-batch and outer learning rate, with no weight decay."""
        config = self.config
        return {
            "batch_size": config.meta_batch,
            "learning_rate": config.outer_rate,
            "weight_decay": 0.0,
            "fewest_steps": 1,
        }

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Fine-tune each feature's head on its context, from the initialisation."""
        start = Heads(self.weight, self.bias).take(batch.codes)
        steps = self.config.inner_steps if self.training else self.config.epochs
        if not self.training:
            start = start.detach()
        rate = self.config.inner_rate
        return fine_tune(start, batch, states, self.knowledge.likelihood, steps, rate)
