"""The default adapter (``chn-bayes``): a closed-form head whose prior mean comes from a hypernetwork."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from headstart.adapters.base import (
    AdapterConfig,
    ContextStack,
    HeadSums,
    OneContext,
    OneFeature,
    Reduce,
    register_adapter,
)
from headstart.adapters.bayes import BayesConfig, BayesHead, ClosedFormAdapter
from headstart.core.networks import Layers, SharedDropout, apply_layers, copy_layers, mlp
from headstart.core.types import (
    VALIDATION_SHOTS,
    FeatureBatch,
    Heads,
    Knowledge,
    OneHead,
    OneState,
    RowStates,
    interpolate_at_shots,
    mix_heads,
    pad_heads,
)
from headstart.linalg.array_ops import A, Array, logistic, namespace
from headstart.linalg.ragged import segment_sum

BLEND = "chn-bayes-blend"  # the name of the blend with the closed form, a candidate of "auto"

_SHRINK = 4.0  # observations of 0 in the mean over a context, which shrink it

_RESIDUAL_SCALE = 3.0  # scales residuals of ratings to about ±1


class CHNBayesConfig(AdapterConfig):
    """Sizes of the networks; ``activations=None`` depends on the number of features."""

    name: Literal["chn-bayes"] = "chn-bayes"
    activations: int | None = Field(None, ge=0)  # learned activations beside the backbone's
    encoding: int = Field(32, ge=1)  # of the context
    metadata_encoding: int = Field(32, ge=1)
    hidden: int = Field(128, ge=1)
    dropout: float = Field(0.2, ge=0, lt=1)
    blend: bool = False  # whether to blend heads with those of the closed form

    def resolved(self, knowledge: Knowledge) -> Self:
        """Return the settings with the number of learned activations filled in."""
        if self.activations is not None:
            return self
        return self.revised(activations=min(32, len(knowledge.heads) // 100))


@register_adapter
class CHNBayes(ClosedFormAdapter):
    """Closed-form head with a prior mean that a hypernetwork computes from context and metadata.

    θ ~ N(description·base + s·net([g(Σ f / (k + 4), log k); h(description)]), C), conditioned on the k
    observations of the context. h reads the informative metadata columns (``HeadPrior.readable_columns``).
    The inputs of f are a row's code, its value, and the residual of the value from the prediction by
    metadata. Heads read the backbone's activation and learned activations φ(code). A mean over the context,
    unlike a sum, generalises to more shots than in training.

    With ``blend``, the head has the moments of a mixture of this head and that of ``BayesHead``. The weights
    of the mixture depend on the number of shots.
    """

    config_type: ClassVar[type[AdapterConfig]] = CHNBayesConfig
    variants: ClassVar[tuple[str, ...]] = ("chn-bayes", BLEND)
    config: CHNBayesConfig

    def __init__(self, config: CHNBayesConfig, knowledge: Knowledge) -> None:
        learned = config.activations or 0
        super().__init__(config, knowledge, learned)
        width = knowledge.states.code.shape[1]
        columns = len(self.prior.base) - self.prior.kernel.width - 1  # without kernels and the constant
        self.phi = mlp([width, config.hidden, learned]) if learned else None
        self.f = mlp([width + 2, config.hidden, config.encoding])
        self.g = mlp([config.encoding + 1, config.hidden, config.encoding])
        self.h = mlp([columns, 64, config.metadata_encoding]) if columns else None
        self.readable: Tensor  # (columns,): a mask of the described metadata that ``h`` reads
        self.register_buffer("readable", torch.ones(columns, dtype=torch.bool))
        inputs = config.encoding + (config.metadata_encoding if columns else 0)
        self.net = mlp([inputs, 2 * config.hidden, self.prior.size])
        self.dropout = SharedDropout(config.dropout)
        self.prior_std: Tensor  # (size,): s, the prior standard deviations, units of the networks' outputs
        self.register_buffer("prior_std", torch.ones(self.prior.size))
        self.partner = BayesHead(BayesConfig(), knowledge) if config.blend else None
        self.shares: Tensor  # weights of the hypernetwork's head in the blend, at VALIDATION_SHOTS
        if config.blend:
            self.register_buffer("shares", torch.full((len(VALIDATION_SHOTS),), 0.5))

    @classmethod
    def settings_for_name(cls, name: str) -> dict[str, Any] | None:
        """Return the settings of ``chn-bayes`` or of the blend, or None for another ``name``."""
        return {"name": "chn-bayes", "blend": True} if name == BLEND else super().settings_for_name(name)

    @torch.no_grad()
    def prepare(self) -> None:
        """Initialise the networks such that the prior is close to that from metadata alone."""
        super().prepare()
        last = cast(nn.Linear, self.net[-1])
        nn.init.zeros_(last.bias)
        last.weight.mul_(0.05)
        if self.h is not None:
            self.readable.copy_(self.prior.readable_columns(self.knowledge))
            share = self.readable.double().mean()  # the scale of the first layer is that of fewer inputs
            cast(nn.Linear, self.h[0]).weight.div_(share.clamp(min=1 / len(self.readable)).sqrt())
        self.prior_std.copy_(self.prior.root(self.prior_std.dtype).norm(dim=1))
        if self.partner is not None:
            self.partner.prepare()

    @torch.no_grad()
    def finish(self) -> None:
        """Copy the learned observation noise to the closed form, so that both heads use the same sums."""
        if self.partner is not None:
            self.partner.prior.log_noise.copy_(self.prior.log_noise)
            self.partner.mean_squares.copy_(self.mean_squares[: len(self.partner.mean_squares)])
            self.partner.log_rating_weight.copy_(self.log_rating_weight)

    def refine(self, states: RowStates) -> RowStates:
        """Add the learned activations."""
        states = super().refine(states)
        if self.phi is None:
            return states
        learned = torch.tanh(self.phi(states.code))
        activation = torch.cat([states.activation, learned], dim=1)
        variance = states.variance
        if variance is not None:  # learned activations have no known variance
            variance = torch.cat([variance, torch.zeros_like(learned)], dim=1)
        return replace(states, activation=activation, variance=variance)

    def prior_mean(self, description: Tensor, means: Tensor, sums: Tensor) -> Tensor:
        """Return the predictions by metadata plus the outputs of the hypernetwork: (features, size)."""
        inputs = _context_inputs(sums.to(self.prior_std.dtype))
        encoded = [self.dropout(self.g(inputs))]
        if self.h is not None:
            encoded.append(self.dropout(self.h(description[:, : len(self.readable)] * self.readable)))
        correction: Tensor = self.prior_std * self.net(torch.cat(encoded, dim=1))
        return means + correction

    def context_sums(self, batch: FeatureBatch, states: RowStates, means: Tensor) -> Tensor:
        """Return the number of shots and Σ f([code, x, residual]): (features, 1 + encoding)."""
        cells = batch.cells
        prior_mean = means[cells.lines]
        activation = states.activation.index_select(0, cells.index)
        logits = (activation * prior_mean[:, :-1]).sum(1) + prior_mean[:, -1]
        expected = self.knowledge.likelihood.mean(logits, batch.kinds[cells.lines])
        outputs = self.f(_row_inputs(states.code.index_select(0, cells.index), cells.values, expected))
        if cells.weights is not None:
            outputs = outputs * cells.weights[:, None]
        total = segment_sum(outputs.to(self.dtype), cells.indptr)
        return torch.cat([cells.weighted_counts.to(total.dtype)[:, None], total], dim=1)

    # -- one feature or one row -------------------------------------------------------------------

    @cached_property
    def _networks(self) -> _Networks:
        """The trained networks in numpy, cached: they do not change after training."""
        return _Networks(*(copy_layers(network) for network in (self.phi, self.f, self.g, self.h, self.net)))

    def encode_contexts(self, contexts: ContextStack) -> Array:
        """Return the sums of the hidden units of ``f`` over contexts: (features, hidden).

        The last layer of f is linear, so that ``one_prior_mean`` applies it once to the sum.
        """
        sums, features = np.zeros((len(contexts.ends) - 1, self.config.hidden)), contexts.features
        if not len(contexts.values):
            return sums
        means = self.prior.means(features.metadata, features.kind, features.known)[..., 0, :]
        mean = contexts.per_observation(means.astype(np.float32))
        expected = np.einsum("ij,ij->i", contexts.activation, mean[:, :-1]) + mean[:, -1]
        is_logistic = [self.knowledge.likelihood.is_logistic(kind) for kind in features.kind.tolist()]
        if any(is_logistic):
            mask = contexts.per_observation(np.array(is_logistic))
            expected = np.where(mask, logistic(expected), expected)
        values = contexts.values.astype(np.float32)
        hidden = apply_layers(
            self._networks.f[:-1], _row_inputs(cast(Array, contexts.code), values, expected)
        )
        np.maximum(hidden, 0, out=hidden)
        for position, part in enumerate(contexts.parts):
            if contexts.weights is None:
                hidden[part].sum(0, dtype=np.float64, out=sums[position])
            else:
                sums[position] = contexts.weights[part] @ hidden[part]
        return sums

    def one_prior_mean(self, features: OneFeature, means: Array, counts: Array, encoded: Array) -> Array:
        """Return the ``means`` from metadata plus the outputs of the hypernetwork: (…, size)."""
        networks, shots = self._networks, np.asarray(counts)[..., None]
        weight, bias = networks.f[-1]
        sums = np.concatenate([shots, encoded @ weight + shots * bias], -1)
        parts = [apply_layers(networks.g, _context_inputs(sums.astype(np.float32)))]
        if self.h is not None:
            description = self.prior.describe(features.metadata, features.kind)[..., : len(self.readable)]
            parts.append(apply_layers(networks.h, description * self.readable.numpy()))
        correction: Array = self.prior_std.numpy() * apply_layers(networks.net, np.concatenate(parts, -1))
        return means + correction

    def refine_one(self, state: OneState) -> OneState:
        """Estimate the noise of one row and add the learned activations, as ``refine`` does."""
        state = super().refine_one(state)
        if self.phi is None:
            return state
        learned = np.tanh(apply_layers(self._networks.phi, state.code.astype(np.float32)))
        variance = state.variance
        if variance is not None:
            variance = np.concatenate([variance, np.zeros(len(learned))])
        return state._replace(activation=np.concatenate([state.activation, learned]), variance=variance)

    def _condition_sums(self, features: OneFeature, sums: HeadSums, total: Array) -> OneHead:
        """Condition heads, or blend them with those of the closed form, which have the same sums."""
        partner, shared = self._active_partner, self._shared
        if partner is None:
            return super()._condition_sums(features, sums, total)
        shared_sums = sums._replace(linear=sums.linear.take(shared, -1))
        closed_form = partner._condition_sums(features, shared_sums, total.take(shared, -2).take(shared, -1))
        if not self.shares.numpy().any():  # the blend is the closed form alone
            return pad_heads(closed_form, self.prior.size - 1)
        heads = super()._condition_sums(features, sums, total)
        return mix_heads(heads, closed_form, interpolate_at_shots(self.shares.numpy(), sums.counts))

    def _condition_logistic_one(self, context: OneContext, scale: Array, start: Array | None) -> OneHead:
        """Condition one head behind a logistic link, or blend it with that of the closed form."""
        partner, shared = self._active_partner, self._shared
        if partner is None:
            return super()._condition_logistic_one(context, scale, start)
        fewer = context._replace(activation=context.activation[:, : len(shared) - 1])
        closed_form = partner._condition_logistic_one(fewer, scale, None if start is None else start[shared])
        if not self.shares.numpy().any():
            return pad_heads(closed_form, self.prior.size - 1)
        head = super()._condition_logistic_one(context, scale, start)
        return mix_heads(head, closed_form, interpolate_at_shots(self.shares.numpy(), context.shots))

    @cached_property
    def _shared(self) -> NDArray[np.int64]:
        """The positions of the parameters that heads have in common with those of the closed form."""
        return np.append(np.arange(self.prior.size - 1 - self.prior.learned), self.prior.size - 1)

    # -- the blend --------------------------------------------------------------------------------

    def _adapt(self, batch: FeatureBatch, states: RowStates, reduce: Reduce | None) -> Heads:
        """Compute the posteriors of heads, or their blend with those of the closed form."""
        partner = self._active_partner
        if partner is None:
            return super()._adapt(batch, states, reduce)
        closed_form = partner._adapt(batch, self._without_learned(states), reduce)
        if not bool(self.shares.any()):  # the blend is the closed form alone
            return pad_heads(closed_form, self.prior.size - 1)
        shots = batch.cells.weighted_counts
        shots = shots if reduce is None else reduce(shots.clone())
        return mix_heads(super()._adapt(batch, states, reduce), closed_form, self.share(shots))

    def prior_covariances(self, shots: Tensor) -> tuple[Tensor, Tensor]:
        """Return the covariances of the priors of both heads of a blend, and their shares."""
        covariances, shares = super().prior_covariances(shots)
        partner, share = self._active_partner, self.share(shots)[:, None] if self.config.blend else 1.0
        if partner is None:
            return covariances, shares
        narrow, others = partner.prior_covariances(shots)
        padded = covariances.new_zeros(len(narrow), self.prior.size, self.prior.size)
        shared = torch.from_numpy(self._shared)
        padded[:, shared[:, None], shared] = narrow
        return torch.cat([covariances, padded]), torch.cat([share * shares, (1 - share) * others], dim=1)

    def metadata_slopes(self, *, squashed: bool) -> Tensor:
        """Return the derivative of a zero-shot blend with respect to described metadata: (columns, size)."""
        slopes, partner = super().metadata_slopes(squashed=squashed), self._active_partner
        if partner is None:
            return slopes
        other = self.prior.pad_learned(partner.metadata_slopes(squashed=squashed))
        return torch.lerp(other, slopes, float(self.shares[0]))

    @property
    def blend_partner(self) -> BayesHead | None:
        """The closed form without a hypernetwork; None without ``blend``."""
        return self.partner

    def set_blend_shares(self, shares: Tensor | float) -> None:
        """Set the weights of the hypernetwork's heads at ``VALIDATION_SHOTS``."""
        self.shares.copy_(torch.as_tensor(shares))

    @property
    def mixes_known_heads(self) -> bool:  # type: ignore[override]
        """Whether heads of the closed form can resemble known ones: in a blend with it."""
        return self.partner is not None

    def set_known_head_shares(self, shares: Tensor | float) -> None:
        """Set the shares of heads of the closed form that resemble known ones."""
        if self.partner is None:
            self._cannot("mix known heads")
        self.partner.set_known_head_shares(shares)

    @property
    def _active_partner(self) -> BayesHead | None:
        """The closed form if it has a weight in the blend; None in training."""
        if self.partner is None or self.training or min(self.shares.tolist()) >= 1:
            return None
        return self.partner

    def _without_learned(self, states: RowStates) -> RowStates:
        """Return the states without the learned activations, for the closed form."""
        width, variance = self.prior.size - 1 - self.prior.learned, states.variance
        return replace(
            states,
            activation=states.activation[:, :width],
            variance=None if variance is None else variance[:, :width],
        )

    def share(self, shots: Tensor) -> Tensor:
        """Return the weight of the hypernetwork's heads after ``shots`` (features,): (features,)."""
        share: Tensor = interpolate_at_shots(self.shares, shots)
        return share


class _Networks(NamedTuple):
    """The networks of a ``CHNBayes`` in numpy."""

    phi: Layers
    f: Layers
    g: Layers
    h: Layers
    net: Layers


def _row_inputs(code: A, values: A, expected: A) -> A:
    """Return the inputs of ``f``: the code of each row, its value, and the residual of the value."""
    xp = namespace(values)
    numbers = xp.stack([values, _RESIDUAL_SCALE * (values - expected)], -1)
    return xp.concatenate([code, numbers], -1)  # type: ignore[no-any-return]


def _context_inputs(sums: A) -> A:
    """Return the inputs of ``g``, given the number of shots and the sums over them: (…, 1 + encoding)."""
    xp, shots = namespace(sums), sums[..., :1]
    inputs = [sums[..., 1:] / (shots + _SHRINK), xp.log1p(shots) / 3]
    return xp.concatenate(inputs, -1)  # type: ignore[no-any-return]
