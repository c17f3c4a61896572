"""Join the contextual hypernetwork with the closed-form head: the default adapter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, Self, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from headstart.adapters.base import AdapterConfig, register_adapter
from headstart.adapters.bayes import BayesConfig, BayesHead, ClosedFormAdapter
from headstart.core.networks import SharedDropout, mlp
from headstart.core.types import (
    VALIDATION_SHOTS,
    FeatureBatch,
    Heads,
    Knowledge,
    RowStates,
    crop_heads,
    interpolate,
    mix_heads,
    pad_heads,
)
from headstart.distributed import process_group
from headstart.linalg.laplace import classify
from headstart.linalg.ragged import blocks, pad, pad_rows, segment_sum
from headstart.table.kinds import KindType
from headstart.table.outliers import LEAST_DEVIATION, winsorise_by_feature

BLEND = "chn-bayes-blend"  # the name of the blend with the closed form, which "auto" uses

_SHRINK = 4.0  # the mean over a context is taken as if it had so many more observations of zero

_RESIDUAL_SCALE = 3.0  # brings what metadata did not predict of a rating to about ±1


class CHNBayesConfig(AdapterConfig):
    """Sizes of the parts; a width of ``None`` is chosen by how many features there are to learn from."""

    name: Literal["chn-bayes"] = "chn-bayes"
    activations: int | None = Field(None, ge=0)  # learned ones, beside the backbone's
    encoding: int = Field(32, ge=1)  # of the context
    metadata_encoding: int = Field(32, ge=1)
    hidden: int = Field(128, ge=1)
    dropout: float = Field(0.2, ge=0, lt=1)
    blend: bool = False  # whether heads are blended with those of the closed form

    def resolved(self, knowledge: Knowledge) -> Self:
        """Return the settings with the number of learned activations filled in."""
        if self.activations is not None:
            return self
        return self.revised(activations=min(32, len(knowledge.heads) // 100))


@register_adapter
class CHNBayes(ClosedFormAdapter):
    """The closed-form head whose prior mean a hypernetwork reads from context and metadata.

    θ ~ N(description·base + s·net([g(Σ f / (k + 4), log k); h(description)]), C), then conditioned on the
    context; f reads a row's code, its value, and the residual of the value from what metadata predicts.
    Heads read the backbone's activation and further ones φ(code), learned with the rest. The context
    enters by a mean, so that any number of shots looks like those it was trained on.

    With ``blend``, a feature gets the moments of a mixture of this head and that of ``BayesHead``. The share
    of this one depends on the number of shots: the fewer there are, the more networks know beyond them.
    """

    config_type: ClassVar[type[AdapterConfig]] = CHNBayesConfig
    variants: ClassVar[tuple[str, ...]] = ("chn-bayes", BLEND)
    config: CHNBayesConfig

    def __init__(self, config: CHNBayesConfig, knowledge: Knowledge) -> None:
        learned = config.activations or 0
        super().__init__(config, knowledge, learned)
        width, columns = knowledge.states.code.shape[1], len(self.prior.base) - 1
        self.phi = mlp([width, config.hidden, learned]) if learned else None
        self.f = mlp([width + 2, config.hidden, config.encoding])
        self.g = mlp([config.encoding + 1, config.hidden, config.encoding])
        self.h = mlp([columns, 64, config.metadata_encoding]) if columns else None
        joined = config.encoding + (config.metadata_encoding if columns else 0)
        self.net = mlp([joined, 2 * config.hidden, self.prior.size])
        self.dropout = SharedDropout(config.dropout)
        self.reach: Tensor  # how far the hypernetwork moves each parameter: its prior standard deviation
        self.register_buffer("reach", torch.ones(self.prior.size))
        self.anchor = BayesHead(BayesConfig(), knowledge) if config.blend else None
        self.shares: Tensor  # of the head that networks make, in the blend, at VALIDATION_SHOTS
        if config.blend:
            self.register_buffer("shares", torch.full((len(VALIDATION_SHOTS),), 0.5))

    @classmethod
    def named(cls, name: str) -> dict[str, Any] | None:
        """The settings of the name by itself or of the blend."""
        return {"name": "chn-bayes", "blend": True} if name == BLEND else super().named(name)

    @torch.no_grad()
    def prepare(self) -> None:
        """Start close to the prior that metadata alone gives."""
        super().prepare()
        last = cast(nn.Linear, self.net[-1])
        nn.init.zeros_(last.bias)
        last.weight.mul_(0.05)
        self.reach.copy_(self.prior.root(self.reach.dtype).norm(dim=1))
        if self.anchor is not None:
            self.anchor.prepare()

    @torch.no_grad()
    def finish(self) -> None:
        """Let the closed form take observations for as noisy as was learned: both rest on the same sums."""
        if self.anchor is not None:
            self.anchor.prior.log_noise.copy_(self.prior.log_noise)
            self.anchor.mean_squares.copy_(self.mean_squares[: len(self.anchor.mean_squares)])
            self.anchor.log_trust.copy_(self.log_trust)

    def refine(self, states: RowStates) -> RowStates:
        """Add the learned activations."""
        states = super().refine(states)
        if self.phi is None:
            return states
        learned = torch.tanh(self.phi(states.code))
        activation = torch.cat([states.activation, learned], dim=1)
        variance = states.variance
        if variance is not None:  # what the code's uncertainty does to learned activations is not known
            variance = torch.cat([variance, torch.zeros_like(learned)], dim=1)
        return replace(states, activation=activation, variance=variance)

    def prior_mean(self, batch: FeatureBatch, sums: Tensor) -> Tensor:
        """What metadata predicts, moved by what the hypernetwork reads: (features, size)."""
        sums = sums.to(self.reach.dtype)
        shots, total = sums[:, :1], sums[:, 1:]
        inputs = torch.cat([total / (shots + _SHRINK), shots.log1p() / 3], dim=1)
        encoded = [self.dropout(self.g(inputs))]
        if self.h is not None:
            description = self.prior.describe(batch.metadata, batch.kinds)[:, :-1]
            encoded.append(self.dropout(self.h(description)))
        moved: Tensor = self.reach * self.net(torch.cat(encoded, dim=1))
        return self.prior.mean(batch) + moved

    def context_sums(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """The number of shots and Σ f([code, x, residual]): (features, 1 + encoding)."""
        cells = batch.cells
        prior_mean = self.prior.mean(batch)[cells.lines]
        activation = states.activation.index_select(0, cells.index)
        logits = (activation * prior_mean[:, :-1]).sum(1) + prior_mean[:, -1]
        residual = cells.values - self.knowledge.likelihood.mean(logits, batch.kinds[cells.lines])
        numbers = torch.stack([cells.values, _RESIDUAL_SCALE * residual], dim=1)
        outputs = self.f(torch.cat([states.code.index_select(0, cells.index), numbers], dim=1))
        if cells.weights is not None:
            outputs = outputs * cells.weights[:, None]
        total = segment_sum(outputs.to(self.dtype), cells.indptr)
        return torch.cat([cells.weighted_counts.to(total.dtype)[:, None], total], dim=1)

    # -- the blend --------------------------------------------------------------------------------

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Give each feature the posterior of its head, or its blend with that of the closed form."""
        anchor = self.blended_with
        if anchor is None:
            return super().adapt(batch, states)
        closed = anchor.adapt(batch, self.narrowed(states))
        if not bool(self.shares.any()):  # networks have no share at all
            return pad_heads(closed, self.prior.size - 1)
        return mix_heads(super().adapt(batch, states), closed, self.share(batch.cells.weighted_counts))

    def solve(self, evidence: Tensor, batch: FeatureBatch) -> Heads:
        """The heads that these sums imply; those of the closed form rest on a part of them."""
        heads, anchor = super().solve(evidence, batch), self.blended_with
        if anchor is None:
            return heads
        size, width = self.prior.size, len(anchor.mean_squares)
        parts = evidence.tensor_split([1, 1 + size * (size + 1) // 2, 1 + size * (size + 3) // 2], dim=1)
        count, total, linear, rest = parts
        linear = torch.cat([linear[:, :width], linear[:, -1:]], dim=1)
        sums = torch.cat([count, crop_heads(total, width, size - 1), linear, rest[:, :1]], dim=1)
        return mix_heads(heads, anchor.solve(sums, batch), self.share(count[:, 0]))

    def metadata_map(self, *, squashed: bool) -> Tensor:
        """How a blend without observations depends on a feature's description: (columns, size)."""
        own, anchor = super().metadata_map(squashed=squashed), self.blended_with
        if anchor is None:
            return own
        other, learned = anchor.metadata_map(squashed=squashed), self.prior.learned
        wide = torch.cat([other[:, :-1], other.new_zeros(len(other), learned), other[:, -1:]], dim=1)
        return torch.lerp(wide, own, float(self.shares[0]))

    @property
    def blend_partner(self) -> BayesHead | None:
        """The closed form with the prior of metadata, if heads are blended with it."""
        return self.anchor

    def set_blend_shares(self, shares: Tensor | float) -> None:
        """Set the share of the hypernetwork's heads at ``VALIDATION_SHOTS``."""
        self.shares.copy_(torch.as_tensor(shares))

    @property
    def blended_with(self) -> BayesHead | None:
        """The closed form if it has a share: it has none while networks are trained."""
        if self.anchor is None or self.training or not bool((self.shares < 1).any()):
            return None
        return self.anchor

    def narrowed(self, states: RowStates) -> RowStates:
        """The states as the closed form reads them: without the learned activations."""
        width, variance = self.prior.size - 1 - self.prior.learned, states.variance
        return replace(
            states,
            activation=states.activation[:, :width],
            variance=None if variance is None else variance[:, :width],
        )

    def share(self, shots: Tensor) -> Tensor:
        """The share of networks after so many shots: (features,)."""
        left, right, near = interpolate(torch.tensor(VALIDATION_SHOTS), shots)
        return torch.lerp(self.shares[left], self.shares[right], near)


_BUDGET = 1 << 22  # numbers in one block: each costs the processes a wait for each other


@torch.no_grad()
def adapt_together(
    adapter: ClosedFormAdapter, batch: FeatureBatch, states: RowStates, shots: Tensor
) -> Heads:
    """``adapter.adapt`` where each process has the ``batch`` and ``states`` of its own rows.

    ``shots`` (features,) are those of all processes. Behind an identity link the sums of ``evidence`` add
    up; behind a logistic one each step of Newton's method adds up its gradients and curvatures.
    """
    batch = _without_outliers(adapter, batch, states)
    squashed = adapter.knowledge.likelihood.squashes(batch.kinds)
    heads, order = [], []
    apart = squashed + 2 * (batch.kinds == KindType.BINARY)
    for group in blocks(shots, adapter.prior.size, apart, _BUDGET):
        part = batch.take(group)
        order.append(group)
        if bool(squashed[group[0]]):
            heads.append(_classified(adapter, part, states, shots[group]))
        else:
            heads.append(adapter.solve(process_group().all_reduce_sum(adapter.evidence(part, states)), part))
    return Heads.concatenate(heads).take(torch.argsort(torch.cat(order)))


def _without_outliers(adapter: ClosedFormAdapter, batch: FeatureBatch, states: RowStates) -> FeatureBatch:
    real = batch.kinds == KindType.REAL
    if not bool(real.any() and (adapter.knowledge.kinds == KindType.REAL).any()):
        return batch
    cells = batch.cells
    rows, place = torch.unique(cells.index, return_inverse=True)
    extent = adapter.landmarks.extents(states.activation.index_select(0, rows))[place]
    least = torch.full((len(batch),), LEAST_DEVIATION, dtype=torch.float64)
    return batch.observing(
        replace(cells, values=winsorise_by_feature(cells.lines, cells.values, real, extent, least))
    )


def _classified(adapter: ClosedFormAdapter, batch: FeatureBatch, states: RowStates, shots: Tensor) -> Heads:
    """Heads of features of one kind behind a logistic link."""
    own = _classified_by(adapter, batch, states)
    if not isinstance(adapter, CHNBayes) or adapter.blended_with is None:
        return own
    closed = _classified_by(adapter.blended_with, batch, adapter.narrowed(states))
    return mix_heads(own, closed, adapter.share(shots))


def _classified_by(adapter: ClosedFormAdapter, batch: FeatureBatch, states: RowStates) -> Heads:
    """The same by one adapter, which is blended with none."""
    cells, root = batch.cells, adapter.prior.root(adapter.dtype)
    sums = process_group().all_reduce_sum(adapter.context_sums(batch, states))
    prior_mean = adapter.prior_mean(batch, sums).to(root.dtype)
    rows = pad_rows(states.activation, cells).to(root.dtype)
    values = pad(cells.values.to(root.dtype), cells)
    counted, flat = adapter.observation_weights(batch, states, root.dtype)
    mean, covariance = classify(
        rows, values, pad(counted, cells), pad(flat, cells), prior_mean, root, process_group().all_reduce_sum
    )
    return adapter.heads_of(mean, covariance, batch.kinds)
