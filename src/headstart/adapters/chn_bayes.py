"""The hypernetwork joined with the closed-form head: what Headstart uses unless told otherwise."""

from __future__ import annotations

from typing import ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from headstart.adapters.bayes import BayesHead, precise
from headstart.adapters.protocol import FeatureBatch, Knowledge
from headstart.backbones.protocol import RowStates, mlp
from headstart.backbones.sparse import segment_sum
from headstart.config import Config

_SHRINK = 4.0  # the mean over a context is taken as if so many empty observations were in it
_LOUDNESS = 3.0  # brings what the metadata did not foretell of a rating to about ±1


class CHNBayesConfig(Config):
    """Sizes of the parts; a width of ``None`` is chosen by how many features there are to learn from."""

    name: Literal["chn-bayes"] = "chn-bayes"
    activations: int | None = Field(None, ge=0)  # learned ones, beside the backbone's
    encoding: int = Field(32, ge=1)  # of the context
    metadata_encoding: int = Field(32, ge=1)
    hidden: int = Field(128, ge=1)
    dropout: float = Field(0.2, ge=0, lt=1)

    def settled(self, features: int) -> int:
        """How many activations to learn from so many features.

        >>> CHNBayesConfig().settled(3000), CHNBayesConfig().settled(60)
        (30, 0)
        """
        return min(32, features // 100) if self.activations is None else self.activations


class CHNBayes(BayesHead):
    """The closed-form head whose prior mean a hypernetwork reads from context and metadata.

    θ ~ N(base·metadata + s·net([g(Σ f / (k + 4), log k); h(metadata)]), C), then conditioned on the
    context; f reads a row's code, its value, and how far the value is from what metadata foretold.
    Heads read the backbone's activation and further ones φ(code), learned with the rest. The context
    enters by a mean, so that any number of shots looks like those it was trained on.
    """

    name: ClassVar[str] = "chn-bayes"
    config: CHNBayesConfig  # type: ignore[assignment]

    def __init__(self, config: CHNBayesConfig, knowledge: Knowledge) -> None:
        learned = config.settled(len(knowledge.heads))
        super().__init__(config, knowledge, learned)
        codes, described = knowledge.states.code.shape[1], len(self.base) - 1
        self.phi = mlp([codes, config.hidden, learned]) if learned else None
        self.f = mlp([codes + 2, config.hidden, config.encoding])
        self.g = mlp([config.encoding + 1, config.hidden, config.encoding])
        self.h = mlp([described, 64, config.metadata_encoding]) if described else None
        joined = config.encoding + (config.metadata_encoding if described else 0)
        self.net = mlp([joined, 2 * config.hidden, self.size])
        self.dropout = nn.Dropout(config.dropout)
        last = cast(nn.Linear, self.net[-1])
        nn.init.zeros_(last.bias)
        with torch.no_grad():
            last.weight.mul_(0.05)  # to begin close to the prior of metadata alone
        self.reach: Tensor  # how far the hypernetwork moves each parameter: its prior spread
        self.register_buffer("reach", self.root().norm(dim=1).detach().float())

    def refine(self, states: RowStates) -> RowStates:
        """Add the learned activations."""
        states = super().refine(states)
        if self.phi is None:
            return states
        learned = torch.tanh(self.phi(states.code))
        activation = torch.cat([states.activation, learned], dim=1)
        return RowStates(states.code, states.code_std, activation, states.noise)

    def prior_mean(self, batch: FeatureBatch, sums: Tensor) -> Tensor:
        """What metadata foretells, moved by what the hypernetwork reads: (features, size)."""
        sums = sums.to(self.reach.dtype)
        shots, total = sums[:, :1], sums[:, 1:]
        read = torch.cat([total / (shots + _SHRINK), shots.log1p() / 3], dim=1)
        encoded = [self.dropout(self.g(read))]
        if self.h is not None:
            described = self._described(batch.metadata, batch.codes)[:, :-1]
            encoded.append(self.dropout(self.h(described)))
        moved: Tensor = self.reach * self.net(torch.cat(encoded, dim=1))
        return super().prior_mean(batch, sums) + moved

    def context_sums(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """The number of shots and Σ f([code, x, x − foretold]): (features, 1 + encoding)."""
        cells = batch.cells
        foretold = super().prior_mean(batch, states.code)[cells.lines]
        activation = states.activation.index_select(0, cells.index)
        logits = (activation * foretold[:, :-1]).sum(1) + foretold[:, -1]
        surprise = cells.values - self.knowledge.likelihood.mean(logits, batch.codes[cells.lines])
        numbers = torch.stack([cells.values, _LOUDNESS * surprise], dim=1)
        read = self.f(torch.cat([states.code.index_select(0, cells.index), numbers], dim=1))
        total = segment_sum(precise(read), cells.indptr)
        return torch.cat([batch.shots.to(total.dtype)[:, None], total], dim=1)
