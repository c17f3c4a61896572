"""Fine-tune heads on their contexts: from a random head, after another adapter, or by MAML."""

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
)
from headstart.adapters.baselines import RandomConfig, RandomHead, parts
from headstart.core.likelihood import Likelihood
from headstart.core.types import FeatureBatch, Heads, Knowledge, RowStates
from headstart.table.kinds import KindType

_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # the paper's, for every Adam it uses


class FineTunedConfig(AdapterConfig):
    """Settings of fine-tuning what another adapter gives."""

    name: Literal["fine-tuned"] = "fine-tuned"
    base: AnyAdapter  # the adapter to start from: its name, or its settings
    epochs: int = Field(10, ge=0)
    learning_rate: float = Field(1e-2, gt=0)

    def resolved(self, knowledge: Knowledge) -> Self:
        """Return the settings with those of the base filled in."""
        return self.revised(base=self.base.resolved(knowledge))


@register_adapter
class FineTuned(Adapter):
    """Fine-tunes the heads of a base adapter on each feature's own context.

    While a base that learns is in training, its heads pass untouched: it is meta-trained as it is
    without fine-tuning. At zero shots there is nothing to tune on, and the base's head stays.
    """

    config_type: ClassVar[type[AdapterConfig]] = FineTunedConfig
    variants: ClassVar[tuple[str, ...]] = ("chn-train-1", "chn-train-5", "chn-train-10", "chn-train-25")
    config: FineTunedConfig

    def __init__(self, config: FineTunedConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self.base = new_adapter(config.base, knowledge)
        self.refines = self.base.refines  # type: ignore[misc]  # as its base, whichever it is

    @classmethod
    def named(cls, name: str) -> dict[str, Any] | None:
        """``chn-train-5`` fine-tunes what ``chn`` gives for 5 epochs; so for any adapter's name."""
        base, _, number = name.rpartition("-train-")
        return (
            {"name": "fine-tuned", "base": base, "epochs": int(number)}
            if base and number.isdecimal()
            else None
        )

    @classmethod
    def trained_as(cls, config: FineTunedConfig) -> AdapterConfig:
        """The base alone is meta-trained."""
        return ADAPTERS.part_of(config.base).trained_as(config.base)

    def prepare(self) -> None:
        """Prepare the base."""
        self.base.prepare()

    def take_training(self, trained: Adapter) -> None:
        """Let the base take it over."""
        self.base.take_training(trained)

    def refine(self, states: RowStates) -> RowStates:
        """As the base does."""
        return self.base.refine(states)

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Let the base give the heads, then fine-tune them."""
        heads = self.base.adapt(batch, states)
        if self.training and self.learns:
            return heads
        steps, rate = self.config.epochs, self.config.learning_rate
        start = Heads(heads.weight, heads.bias).detach()  # tuned or not, it says nothing of how sure it is
        return fine_tune(start, batch, states, self.knowledge.likelihood, steps, rate)


def fine_tune(
    heads: Heads, batch: FeatureBatch, states: RowStates, likelihood: Likelihood, steps: int, rate: float
) -> Heads:
    """Take ``steps`` Adam steps on the mean negative log-likelihood of each head's own context.

    Every step sees a feature's whole context, so one step is one epoch. All features step together
    but none touches another: a head's gradient comes from its own context, and Adam works on each
    number alone. If the heads carry a gradient, the result is differentiable through every step, to
    any order; otherwise it is detached and computed part by part, in bounded memory.
    """
    if steps == 0 or len(batch.cells.index) == 0:
        return heads
    if torch.is_grad_enabled() and (heads.weight.requires_grad or heads.bias.requires_grad):
        return _descend(heads, batch, states, likelihood, steps, rate)
    # Contexts are padded to the longest of their part: like shots together, by powers of two, waste little.
    order = torch.argsort(batch.shots, stable=True)
    length = 2 ** torch.log2(batch.shots[order].clamp(min=1)).ceil().long()
    split = [order[part] for part in parts(length * heads.weight.shape[1], apart=length)]
    with torch.no_grad():
        tuned = [
            _descend(heads.take(part), batch.take(part), states, likelihood, steps, rate) for part in split
        ]
        return Heads.concatenate(tuned).take(torch.argsort(order))


def _descend(
    heads: Heads, batch: FeatureBatch, states: RowStates, likelihood: Likelihood, steps: int, rate: float
) -> Heads:
    activation, values, share = _padded(batch, states)
    theta = torch.cat([heads.weight, heads.bias[:, None]], dim=1)
    through = torch.is_grad_enabled() and theta.requires_grad
    first, second = torch.zeros_like(theta), torch.zeros_like(theta)
    for step in range(1, steps + 1):
        theta = theta if through else theta.detach().requires_grad_()
        with torch.enable_grad():
            logits = torch.baddbmm(theta[:, None, -1:], activation, theta[:, :-1, None]).squeeze(2)
            loss = (likelihood.nll(logits, values, batch.kinds[:, None]) * share).sum()
            (gradient,) = torch.autograd.grad(loss, theta, create_graph=through)
        theta, first, second = adam_step(theta, gradient, first, second, step, rate)
    return Heads(theta[:, :-1], theta[:, -1])


def adam_step(
    theta: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: int, rate: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One step (counted from 1) of Adam, as ``torch.optim.Adam`` takes it, but differentiable.

    ``first`` and ``second`` are the running moments of the gradient; returns all three anew.

    >>> adam_step(torch.tensor([1.0]), torch.tensor([5.0]), torch.zeros(1), torch.zeros(1), 1, 0.1)[0]
    tensor([0.9000])
    """
    one, two = _BETAS
    first = one * first + (1 - one) * gradient
    second = two * second + (1 - two) * gradient**2
    # Where every gradient so far was zero (a dead unit, no shots) the root's own slope is infinite,
    # and infinity times zero would spoil the meta-gradient; nothing flows there, so nothing is let through.
    moved = second > 0
    root = torch.where(moved, second, 1.0).sqrt().where(moved, 0.0) / math.sqrt(1 - two**step)
    return theta - rate / (1 - one**step) * first / (root + _EPSILON), first, second


def _padded(batch: FeatureBatch, states: RowStates) -> tuple[Tensor, Tensor, Tensor]:
    """The contexts as dense blocks, as long as the longest.

    Returns the activations (features, shots, width), the values (features, shots) and the share of
    each in its feature's mean (features, shots), which is zero where there is only padding.
    """
    cells, shots = batch.cells, batch.shots
    lines = cells.lines
    place = torch.arange(len(lines)) - cells.indptr[lines]
    shape = (len(batch), int(shots.max()))
    rows = torch.zeros(shape, dtype=torch.int64)
    rows[lines, place] = cells.index.long()
    values = states.activation.new_zeros(shape)
    values[lines, place] = cells.values.to(values.dtype)
    share = torch.zeros_like(values)
    share[lines, place] = 1 / shots[lines].to(values.dtype)
    return states.activation[rows], values, share


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
