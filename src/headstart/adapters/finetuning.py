"""Adapters that fine-tune heads on their contexts: from a random head, from another adapter, or by MAML."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from headstart.adapters.base import (
    ADAPTERS,
    Adapter,
    AdapterConfig,
    AnyAdapter,
    new_adapter,
    register_adapter,
    require_linear_heads,
)
from headstart.adapters.baselines import RandomConfig, RandomHead, split_by_work
from headstart.core.likelihood import Likelihood
from headstart.core.types import FeatureBatch, Heads, Knowledge, RowStates
from headstart.linalg.ragged import pad
from headstart.table.margins import VALUE_TYPES

_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # of Adam, as in the paper


class FineTunedConfig(AdapterConfig):
    """Settings of fine-tuning the heads of another adapter."""

    name: Literal["fine-tuned"] = "fine-tuned"
    base: AnyAdapter  # the adapter to start from: its name, or its settings
    epochs: int = Field(10, ge=0)
    learning_rate: float = Field(1e-2, gt=0)

    @property
    def inner(self) -> AdapterConfig:
        """The settings of the base."""
        return self.base

    def resolved(self, knowledge: Knowledge) -> Self:
        """Return the settings with those of the base filled in."""
        return self.revised(base=self.base.resolved(knowledge))


@register_adapter
class FineTuned(Adapter):
    """Fine-tune the heads of a base adapter on each feature's context.

    Meta-training trains the base without fine-tuning. At zero shots the head of the base is unchanged.
    """

    config_type: ClassVar[type[AdapterConfig]] = FineTunedConfig
    variants: ClassVar[tuple[str, ...]] = ("chn-train-1", "chn-train-5", "chn-train-10", "chn-train-25")
    config: FineTunedConfig

    def __init__(self, config: FineTunedConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        require_linear_heads(config.base, "fine-tuning changes")
        self.base = new_adapter(config.base, knowledge)
        self.refines = self.base.refines  # type: ignore[misc]  # a class attribute of other adapters

    @classmethod
    def settings_for_name(cls, name: str) -> dict[str, Any] | None:
        """Return the settings of names such as ``chn-train-5``: 5 epochs from the heads of ``chn``."""
        base, _, number = name.rpartition("-train-")
        return (
            {"name": "fine-tuned", "base": base, "epochs": int(number)}
            if base and number.isdecimal()
            else None
        )

    @classmethod
    def training_config(cls, config: FineTunedConfig) -> AdapterConfig:
        """Return the settings of the base, which alone is meta-trained."""
        return ADAPTERS.part_of(config.base).training_config(config.base)

    def prepare(self) -> None:
        """Prepare the base."""
        self.base.prepare()

    def copy_training(self, trained: Adapter) -> None:
        """Copy the parameters of ``trained`` to the base."""
        self.base.copy_training(trained)

    def refine(self, states: RowStates) -> RowStates:
        """Refine the states as the base does."""
        return self.base.refine(states)

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Fine-tune the heads of the base, except during meta-training."""
        heads = self.base.adapt(batch, states)
        if self.training and self.learns:
            return heads
        steps, rate = self.config.epochs, self.config.learning_rate
        start = Heads(heads.weight, heads.bias).detach()  # fine-tuned heads have no covariance
        return fine_tune(start, batch, states, self.knowledge.likelihood, steps, rate)


def fine_tune(
    heads: Heads, batch: FeatureBatch, states: RowStates, likelihood: Likelihood, steps: int, rate: float
) -> Heads:
    """Take ``steps`` Adam steps on the mean negative log-likelihood of each head's context.

    A step reads the whole context, so one step is one epoch. The heads of a batch do not influence each
    other. If the ``heads`` require a gradient, the result is differentiable through all steps; otherwise it
    is detached and computed in parts of bounded memory.
    """
    if steps == 0 or len(batch.cells.index) == 0:
        return heads
    if torch.is_grad_enabled() and (heads.weight.requires_grad or heads.bias.requires_grad):
        return _descend(heads, batch, states, likelihood, steps, rate)
    # Contexts are padded to the longest of their part: parts of similar shots need little padding.
    order = torch.argsort(batch.shots, stable=True)
    length = 2 ** torch.log2(batch.shots[order].clamp(min=1)).ceil().long()
    with torch.no_grad():
        tuned = [
            _descend(heads.take(part), batch.take(part), states, likelihood, steps, rate)
            for part in (order[i] for i in split_by_work(length * heads.weight.shape[1], groups=length))
        ]
        return Heads.concatenate(tuned).take(torch.argsort(order))


def _descend(
    heads: Heads, batch: FeatureBatch, states: RowStates, likelihood: Likelihood, steps: int, rate: float
) -> Heads:
    """Take ``steps`` Adam steps with padded contexts."""
    activation, values, weights = _pad_contexts(batch, states)
    theta = heads.stacked
    differentiable = torch.is_grad_enabled() and theta.requires_grad
    first, second = torch.zeros_like(theta), torch.zeros_like(theta)
    for step in range(1, steps + 1):
        theta = theta if differentiable else theta.detach().requires_grad_()
        with torch.enable_grad():
            logits = torch.baddbmm(theta[:, None, -1:], activation, theta[:, :-1, None]).squeeze(2)
            loss = (likelihood.nll(logits, values, batch.kinds[:, None]) * weights).sum()
            (gradient,) = torch.autograd.grad(loss, theta, create_graph=differentiable)
        theta, first, second = adam_step(theta, gradient, first, second, step, rate)
    return Heads(theta[:, :-1], theta[:, -1])


def adam_step(
    theta: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: int, rate: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Take one differentiable step of Adam, as ``torch.optim.Adam`` does.

    ``first`` and ``second`` are the moving averages of the gradient and its square; ``step`` counts from 1.
    Returns the new ``theta``, ``first`` and ``second``.

    >>> adam_step(torch.tensor([1.0]), torch.tensor([5.0]), torch.zeros(1), torch.zeros(1), 1, 0.1)[0]
    tensor([0.9000])
    """
    one, two = _BETAS
    first = one * first + (1 - one) * gradient
    second = two * second + (1 - two) * gradient**2
    # If all gradients were zero (a dead unit, no shots), the derivative of the root is infinite, and the
    # meta-gradient would be NaN (infinity times zero): use 0 instead of the root.
    positive = second > 0
    root = torch.where(positive, second, 1.0).sqrt().where(positive, 0.0) / math.sqrt(1 - two**step)
    return theta - rate / (1 - one**step) * first / (root + _EPSILON), first, second


def _pad_contexts(batch: FeatureBatch, states: RowStates) -> tuple[Tensor, Tensor, Tensor]:
    """Pad contexts to the longest of the batch.

    Returns activations (features, shots, width), values (features, shots) and weights (features, shots). The
    weight of an observation is its part of the sum of weights, 1 / shots by default, and 0 for padding.
    """
    cells, dtype = batch.cells, states.activation.dtype
    weights = pad(cells.weighted(1 / cells.weighted_counts[cells.lines].to(dtype)), cells)
    return states.activation[pad(cells.index, cells)], pad(cells.values.to(dtype), cells), weights


class TrainConfig(AdapterConfig):
    """Settings of training from a random head."""

    name: Literal["train"] = "train"
    epochs: int = Field(10, ge=0)
    learning_rate: float = Field(1e-2, gt=0)
    seed: int = Field(0, ge=0)


@register_adapter
class TrainFromRandom(Adapter):
    """Fine-tune the head of ``RandomHead`` on the context for a fixed number of epochs."""

    config_type: ClassVar[type[AdapterConfig]] = TrainConfig
    accepts_structures: ClassVar[bool] = True
    supports_weights: ClassVar[bool] = True
    number_setting: ClassVar[str | None] = "epochs"
    variants: ClassVar[tuple[str, ...]] = ("train-1", "train-5", "train-10", "train-25")
    config: TrainConfig

    def __init__(self, config: TrainConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self._start = RandomHead(RandomConfig(seed=config.seed), knowledge)

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Draw a head for each feature and fine-tune it on its context."""
        start = self._start.adapt(batch, states)
        steps, rate = self.config.epochs, self.config.learning_rate
        return fine_tune(start, batch, states, self.knowledge.likelihood, steps, rate)


class MAMLConfig(AdapterConfig):
    """Settings of MAML, by default those of the paper. ``epochs`` does not affect meta-training."""

    name: Literal["maml"] = "maml"
    epochs: int = Field(10, ge=0)  # of fine-tuning after meta-training
    inner_steps: int = Field(10, ge=0)  # of fine-tuning during meta-training
    inner_learning_rate: float = Field(1e-2, gt=0)
    meta_batch: int = Field(4, ge=1)  # features per step of meta-training
    outer_learning_rate: float = Field(1e-2, gt=0)
    seed: int = Field(0, ge=0)


@register_adapter
class MAML(Adapter):
    """Fine-tune each feature's head from a meta-learned initialisation for its kind (second-order MAML).

    In training mode ``adapt`` takes ``inner_steps`` Adam steps on the context, and the gradient of the
    targets' loss flows through all of them to the initialisation. In evaluation mode it takes ``epochs``
    steps. At zero shots the head is the initialisation.
    """

    config_type: ClassVar[type[AdapterConfig]] = MAMLConfig
    accepts_structures: ClassVar[bool] = True
    supports_weights: ClassVar[bool] = True
    number_setting: ClassVar[str | None] = "epochs"
    variants: ClassVar[tuple[str, ...]] = ("maml-0", "maml-1", "maml-3", "maml-5", "maml-10")
    config: MAMLConfig

    def __init__(self, config: MAMLConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        heads = knowledge.heads.weight
        self.weight = nn.Parameter(heads.new_zeros(VALUE_TYPES, heads.shape[1]))  # (kinds, width)
        self.bias = nn.Parameter(heads.new_zeros(VALUE_TYPES))

    @torch.no_grad()
    def prepare(self) -> None:
        """Initialise all kinds with the same random head."""
        start = torch.empty_like(self.weight[:1], device="cpu")  # the device of the generator
        nn.init.xavier_uniform_(start, generator=torch.Generator().manual_seed(self.config.seed))
        self.weight.copy_(start.expand_as(self.weight))

    @classmethod
    def training_config(cls, config: MAMLConfig) -> AdapterConfig:
        """Return the settings with a fixed ``epochs``, which does not affect meta-training."""
        return config.revised(epochs=config.inner_steps)

    @property
    def meta_settings(self) -> Mapping[str, object]:
        """The paper's meta-batch, outer learning rate and mean over features, with no weight decay."""
        config = self.config
        return {
            "batch_size": config.meta_batch,
            "learning_rate": config.outer_learning_rate,
            "weight_decay": 0.0,
            "min_steps": 1,
            "average": "features",
        }

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Fine-tune the initialisation on each feature's context."""
        start = Heads(self.weight, self.bias).take(batch.kinds)
        steps = self.config.inner_steps if self.training else self.config.epochs
        if not self.training:
            start = start.detach()
        rate = self.config.inner_learning_rate
        return fine_tune(start, batch, states, self.knowledge.likelihood, steps, rate)
