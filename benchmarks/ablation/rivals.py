"""Later methods for new features as adapters: neural processes, DropoutNet and MWUF.

Each is small and written from its paper. All read the same contexts and metadata as the hypernetwork, and run
in the same k-shot protocol. ``register_rivals`` registers them, as another package does its adapters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from headstart.adapters import Adapter, AdapterConfig, register_adapter
from headstart.adapters.finetuning import fine_tune
from headstart.core import FeatureBatch, Heads, Knowledge, NetworkHeads, RowStates
from headstart.core.networks import mlp
from headstart.errors import InputError
from headstart.linalg.ragged import pad, pad_rows, positions_in_line, segment_sum
from headstart.table.cells import Cells


class RivalConfig(AdapterConfig):
    """Sizes of the networks of a rival."""

    hidden: int = Field(128, ge=1)
    encoding: int = Field(50, ge=1)  # of the context, and of the metadata


class Rival(Adapter):
    """Base of the rivals: the encoding of metadata, and means over contexts."""

    config: RivalConfig

    def __init__(self, config: RivalConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        columns = knowledge.metadata.shape[1]
        self.code = knowledge.states.code.shape[1]
        self.h = mlp([columns, 32, config.encoding]) if columns else None
        self.described = config.encoding if columns else 0

    def describe(self, batch: FeatureBatch) -> Tensor:
        """Return the encoded metadata: (features, encoding), or (features, 0)."""
        return batch.metadata[:, :0] if self.h is None else self.h(batch.metadata)

    @staticmethod
    def context_mean(numbers: Tensor, batch: FeatureBatch) -> Tensor:
        """Return the mean of ``numbers`` (n, size) over each context, 0 without any: (features, size)."""
        shots = batch.shots.clamp(min=1).to(numbers.dtype)
        return segment_sum(numbers, batch.cells.indptr) / shots[:, None]

    @staticmethod
    def inputs(batch: FeatureBatch, states: RowStates) -> Tensor:
        """Return [z, x] of each observation: (n, code + 1)."""
        return torch.cat([states.code.index_select(0, batch.cells.index), batch.cells.values[:, None]], dim=1)


# -- neural processes: the head reads the code of a row -----------------------------------------------


class CNPConfig(RivalConfig):
    """Settings of the conditional neural process."""

    name: Literal["cnp"] = "cnp"

    @property
    def linear_heads(self) -> bool:
        """Whether heads are linear: they are networks."""
        return False


class ConditionalNeuralProcess(Rival):
    """Predict v·relu(B·z + A·[r; m] + c) + b with r = mean of e([z_i, x_i]) (Garnelo et al. 2018).

    z is the code of the target's row, and m the encoded metadata, which the paper does not have. The decoder
    has one hidden layer and gives the output of the likelihood, whose noise is that of all other methods.
    """

    config_type: ClassVar[type[AdapterConfig]] = CNPConfig
    refines: ClassVar[bool] = True

    def __init__(self, config: CNPConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self.e = mlp([self.code + 1, config.hidden, config.encoding])
        self.to_hidden = nn.Linear(config.encoding + self.described + self.code, config.hidden)
        self.to_output = nn.Linear(config.hidden, 1)

    def refine(self, states: RowStates) -> RowStates:
        """Let heads read the code after the activation, as a certain number."""
        return read_codes(states)

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Compute the decoder of each feature."""
        r = self.context_mean(self.e(self.inputs(batch, states)), batch)
        of_context, of_row = torch.split(
            self.to_hidden.weight, [self.to_hidden.in_features - self.code, self.code], dim=1
        )
        constant = torch.cat([r, self.describe(batch)], dim=1) @ of_context.T + self.to_hidden.bias
        width = states.activation.shape[1]
        inner = of_row.new_zeros(len(batch), len(of_row), width + 1)
        inner[:, :, width - self.code : width] = of_row
        inner[:, :, -1] = constant
        return NetworkHeads(
            of_row.new_zeros(len(batch), width),
            self.to_output.bias.expand(len(batch)),
            hidden=inner,
            outer=self.to_output.weight.expand(len(batch), -1),
        )


def read_codes(states: RowStates) -> RowStates:
    """Return states whose activations are followed by the codes, without a variance of the activation."""
    return replace(states, activation=torch.cat([states.activation, states.code], dim=1), variance=None)


class ANPConfig(RivalConfig):
    """Settings of the attentive neural process."""

    name: Literal["anp"] = "anp"
    most: int = Field(128, ge=1)  # observations of a context

    @property
    def linear_heads(self) -> bool:
        """Whether heads are linear: they are networks."""
        return False


@dataclass(frozen=True)
class AttentiveHeads(Heads):
    """Heads that hold their contexts: each target attends to the observations of its feature."""

    keys: Tensor = field(kw_only=True)  # (features, most, size)
    values: Tensor = field(kw_only=True)  # (features, most, size)
    present: Tensor = field(kw_only=True)  # (features, most): 1 for an observation, 0 for padding
    constant: Tensor = field(kw_only=True)  # (features, hidden): the part of the decoder that reads metadata
    query: Tensor = field(kw_only=True)  # (features, size, code): the same for all features
    of_row: Tensor = field(kw_only=True)  # (features, hidden, code): the same for all features
    of_context: Tensor = field(kw_only=True)  # (features, hidden, size): the same for all features
    outer: Tensor = field(kw_only=True)  # (features, hidden): the same for all features

    def outputs_at(self, activation: Tensor, cells: Cells) -> tuple[Tensor, Tensor]:
        """Compute the outputs at ``cells``, and variances of 0: two of (n,)."""
        if len(cells.index) == 0:
            return activation.new_zeros(0), activation.new_zeros(0)
        size = self.query.shape[2]
        code = pad_rows(activation[:, -size:], cells)[:, :, :-1]  # (features, targets, code)
        scores = code @ self.query.transpose(1, 2) @ self.keys.transpose(1, 2) / self.keys.shape[2] ** 0.5
        scores = scores.masked_fill(self.present[:, None] == 0, -1e30)
        attended = torch.softmax(scores, dim=2) * self.present[:, None] @ self.values
        hidden = code @ self.of_row.transpose(1, 2) + attended @ self.of_context.transpose(1, 2)
        outputs = ((hidden + self.constant[:, None]).relu() @ self.outer[:, :, None])[:, :, 0]
        mean = outputs[cells.lines, positions_in_line(cells)] + self.bias[cells.lines]
        return mean, torch.zeros_like(mean)


class AttentiveNeuralProcess(Rival):
    """Predict as ``ConditionalNeuralProcess``, with the attention of a target to the context for r.

    r = Σ softmax(q(z)·k(z_i) / √size) e([z_i, x_i]), as in the deterministic path of Kim et al. (2019) with
    dot-product attention of one head. There is no latent path.
    """

    config_type: ClassVar[type[AdapterConfig]] = ANPConfig
    refines: ClassVar[bool] = True
    config: ANPConfig

    def __init__(self, config: ANPConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self.e = mlp([self.code + 1, config.hidden, config.encoding])
        self.query = nn.Linear(self.code, config.encoding, bias=False)
        self.key = nn.Linear(self.code, config.encoding, bias=False)
        self.of_metadata = nn.Linear(self.described + 1, config.hidden)
        self.of_row = nn.Linear(self.code, config.hidden, bias=False)
        self.of_context = nn.Linear(config.encoding, config.hidden, bias=False)
        self.to_output = nn.Linear(config.hidden, 1)

    def refine(self, states: RowStates) -> RowStates:
        """Let heads read the code after the activation, as a certain number."""
        return read_codes(states)

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Store the context of each feature in its head."""
        most, count = self.config.most, len(batch)
        by_row = torch.argsort(batch.cells.lines * batch.cells.width + batch.cells.index)
        batch = batch.observing(batch.cells.at(batch.cells.indptr, by_row))  # one order of each context
        cells = batch.cells
        if count and int(batch.shots.max()) > most:
            raise InputError(f"contexts of more than {most} observations; use a larger setting 'most'")
        keys = self.key(states.code.index_select(0, cells.index))
        values = self.e(self.inputs(batch, states))
        present = pad(torch.ones_like(cells.values), cells)
        described = torch.cat([self.describe(batch), batch.cells.values.new_ones(count, 1)], dim=1)
        return AttentiveHeads(
            states.code.new_zeros(count, states.activation.shape[1]),
            self.to_output.bias.expand(count),
            keys=_widen(pad(keys, cells), most),
            values=_widen(pad(values, cells), most),
            present=_widen(present, most),
            constant=self.of_metadata(described),
            query=self.query.weight.expand(count, -1, -1),
            of_row=self.of_row.weight.expand(count, -1, -1),
            of_context=self.of_context.weight.expand(count, -1, -1),
            outer=self.to_output.weight.expand(count, -1),
        )


def _widen(block: Tensor, most: int) -> Tensor:
    """Append zeros to (features, n, …) up to (features, most, …)."""
    zeros = block.new_zeros(len(block), most - block.shape[1], *block.shape[2:])
    return torch.cat([block, zeros], dim=1)


# -- methods of recommender systems: linear heads -----------------------------------------------------


class DropoutNetConfig(RivalConfig):
    """Settings of the content model."""

    name: Literal["dropoutnet"] = "dropoutnet"
    dropout: float = Field(0.5, ge=0, lt=1)  # of whole preference inputs in training


class DropoutNet(Rival):
    """Compute θ = net([p; m]) from content m and preferences p, which are dropped at random.

    p = mean of (x_i − x̄)·z_i over the context, with x̄ the mean of all known values. In DropoutNet (Volkovs et
    al. 2017) it is the mean of the latent vectors of the users who chose the item. In training, p is 0 for a
    share ``dropout`` of the features, so that content alone has to do. The loss is that of all other methods;
    DropoutNet fits products of latent vectors.
    """

    config_type: ClassVar[type[AdapterConfig]] = DropoutNetConfig
    config: DropoutNetConfig

    def __init__(self, config: DropoutNetConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        width = knowledge.states.activation.shape[1]
        self.net = mlp([self.code + self.described, config.hidden, config.hidden, width + 1])
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(()))

    @torch.no_grad()
    def prepare(self) -> None:
        """Compute the mean of all known values, and start close to the mean head."""
        self.mean.copy_(self.knowledge.cells.values.mean())
        start_near_mean_head(self.net, self.knowledge.heads)

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Compute heads by one forward pass."""
        code = states.code.index_select(0, batch.cells.index)
        preferences = self.context_mean((batch.cells.values - self.mean)[:, None] * code, batch)
        if self.training and self.learns:
            preferences = preferences * (torch.rand(len(batch), 1) >= self.config.dropout)
        parameters = self.net(torch.cat([preferences, self.describe(batch)], dim=1))
        return Heads(parameters[:, :-1], parameters[:, -1])


class MWUFConfig(RivalConfig):
    """Settings of the warm-up."""

    name: Literal["mwuf"] = "mwuf"
    steps: int = Field(5, ge=0)  # of fine-tuning the cold head on its context
    learning_rate: float = Field(1e-2, gt=0)


class MetaWarmUp(Rival):
    """Compute θ = s(m) ⊙ θ₀ + t(u): a scaled and shifted cold embedding (MWUF, Zhu et al. 2021).

    θ₀ is the common initial embedding, the mean head of the known features, after a few gradient steps on the
    context; the scale depends on the item's features m, the shift on the mean u of [z_i, (x_i − x̄)·z_i] over
    the context. The paper, which has clicks only, takes the mean of z_i.
    """

    config_type: ClassVar[type[AdapterConfig]] = MWUFConfig
    config: MWUFConfig

    def __init__(self, config: MWUFConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        size = knowledge.states.activation.shape[1] + 1
        self.scale = mlp([self.described + 1, config.hidden, size])
        self.shift = mlp([2 * self.code, config.hidden, size])
        self.cold: Tensor
        self.mean: Tensor
        self.register_buffer("cold", torch.zeros(size))
        self.register_buffer("mean", torch.zeros(()))

    @torch.no_grad()
    def prepare(self) -> None:
        """Compute the common initial embedding; start with scales of 1 and small shifts."""
        heads = self.knowledge.heads
        self.cold.copy_(torch.cat([heads.weight.mean(0), heads.bias.mean(0, keepdim=True)]))
        self.mean.copy_(self.knowledge.cells.values.mean())
        self.scale[-1].weight.mul_(0.1)
        self.scale[-1].bias.fill_(1.0)
        self.shift[-1].weight.mul_(0.1)
        self.shift[-1].bias.zero_()

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Fine-tune the common embedding, then scale and shift it."""
        count, settings = len(batch), self.config
        start = Heads(self.cold[:-1].repeat(count, 1), self.cold[-1].repeat(count))
        likelihood = self.knowledge.likelihood
        tuned = fine_tune(start, batch, states, likelihood, settings.steps, settings.learning_rate)
        cold = tuned.stacked.detach()
        code = states.code.index_select(0, batch.cells.index)
        users = torch.cat([code, (batch.cells.values - self.mean)[:, None] * code], dim=1)
        described = torch.cat([self.describe(batch), cold.new_ones(count, 1)], dim=1)
        warm = self.scale(described) * cold + self.shift(self.context_mean(users, batch))
        return Heads(warm[:, :-1], warm[:, -1])


@torch.no_grad()
def start_near_mean_head(net: nn.Sequential, heads: Heads) -> None:
    """Initialise the last layer of ``net`` such that its outputs are close to the mean head."""
    net[-1].weight.mul_(0.1)
    net[-1].bias.copy_(torch.cat([heads.weight.mean(0), heads.bias.mean(0, keepdim=True)]))


def register_rivals() -> None:
    """Register all rivals under their names."""
    for rival in (ConditionalNeuralProcess, AttentiveNeuralProcess, DropoutNet, MetaWarmUp):
        register_adapter(rival)
