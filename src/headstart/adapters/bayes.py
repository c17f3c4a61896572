"""Make heads in closed form: Bayesian regression on the rows' activations, from a learned prior."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from headstart.adapters.base import Adapter, AdapterConfig, OneContext, Reduce, register_adapter
from headstart.adapters.head_prior import HeadPrior, ReferenceFeatures, mean_squared_weights
from headstart.adapters.unknown_scale import ScalePrior, infer_scales
from headstart.core.networks import mlp
from headstart.core.types import FeatureBatch, Heads, Knowledge, OneHead, OneState, RowStates
from headstart.linalg.array_ops import Array
from headstart.linalg.gaussian import (
    ContextSums,
    condition_on_rows,
    condition_on_sums,
    mix,
    packed_length,
    sum_contexts,
    unpack_sums,
)
from headstart.linalg.laplace import classify, probit_scale
from headstart.linalg.packed import pack, positive
from headstart.linalg.ragged import all_equal, blocks, pad, pad_rows
from headstart.table.kinds import KindType
from headstart.table.outliers import LEAST_DEVIATION, winsorise, winsorise_by_feature, winsorise_one

_MANY_FEATURES = 1000  # from which networks are trained longer, in larger batches
_MAX_LOG_NOISE = 3.0  # |log| of a row's noise relative to the usual
_SHARDED_BUDGET = 1 << 22  # numbers in one block of several processes, which wait for each other at each one


def default_meta_training(features: int) -> Mapping[str, object]:
    """Return settings of meta-training for a table of ``features``: few epochs at a high rate.

    >>> default_meta_training(100)["epochs"], default_meta_training(5000)["epochs"]
    (15, 24)
    """
    many = features >= _MANY_FEATURES
    return {
        "epochs": 24 if many else 15,
        "epoch_features": 2000,  # more of them cost time and change little
        # With many features, large batches with few observations of each learn more in the same time.
        "batch_size": 192 if many else 48,
        "max_shots": 32 if many else 128,
        "max_targets": 32 if many else 256,
        "learning_rate": 4e-3 if many else 2e-3,
        "schedule": "cosine",
        "weight_decay": 0.0,
        "decoupled_weight_decay": 0.05 if many else 0.1,
        "max_grad_norm": 1.0,
        # With many features the last state is as good as the best validated one, and less accidental.
        "patience": None if many else 15,
        "shots": "log",
        "weighting": 0.5,
    }


class ClosedFormAdapter(Adapter):
    """θ ~ N(prior mean, C) given x_i = θ·[d_i; 1] + noise_i: exact for ratings and reals.

    The prior and the noise, which depends on the row, are initialised from the backbone's heads and
    meta-trained through the closed form. Values behind a logistic link get Laplace's approximation.
    Subclasses define the prior mean.
    """

    refines: ClassVar[bool] = True
    gives_uncertainty: ClassVar[bool] = True
    streaming: ClassVar[bool] = True
    sharded: ClassVar[bool] = True
    explainable: ClassVar[bool] = True
    weighs: ClassVar[bool] = True
    context_free_prior: ClassVar[bool] = False  # whether the prior mean does not depend on the context

    def __init__(self, config: AdapterConfig, knowledge: Knowledge, learned: int = 0) -> None:
        """``learned`` is the number of learned activations beside the backbone's."""
        super().__init__(config, knowledge)
        width = knowledge.states.code.shape[1]
        self.prior = HeadPrior(knowledge, learned)
        self.log_trust = nn.Parameter(torch.ones(()))  # of a squashed rating, relative to a binary value
        # An uncertain row adds to the noise of an observation: the variance of its activation weighted
        # by the mean squares of heads' weights; if the backbone gives none, the variance of its code.
        self.mean_squares = nn.Parameter(torch.zeros(self.prior.size - 1))
        self.doubt = nn.Parameter(torch.zeros(width))
        self.row_noise = mlp([width + 1, 32, 1])
        scales = knowledge.scales
        self.scale_prior = None if scales is None else ScalePrior(scales, len(knowledge.kinds))

    @torch.no_grad()
    def prepare(self) -> None:
        """Initialise the prior and the noise from the backbone's heads."""
        self.prior.prepare(self.knowledge)
        heads = (self.knowledge.new_heads or self.knowledge.heads).detach()
        mean_squares = mean_squared_weights(self.knowledge, heads)
        self.mean_squares[: len(mean_squares)] = mean_squares
        last = cast(nn.Linear, self.row_noise[-1])
        nn.init.zeros_(last.bias)
        nn.init.zeros_(last.weight)  # at first a row has the noise that the backbone gives it
        if self.scale_prior is not None and self.knowledge.scales is not None:
            usual = self.prior.noise(self.knowledge.kinds)
            noise = None if heads.noise is None else heads.noise / usual
            if noise is not None and self.knowledge.trained_on is not None:
                noise = noise[self.knowledge.trained_on]
            self.scale_prior.prepare(self.knowledge.scales, noise)

    @property
    def meta_defaults(self) -> Mapping[str, object]:
        """Few epochs at a high rate: training ends close to where it begins."""
        return default_meta_training(len(self.knowledge.heads))

    @property
    def dtype(self) -> torch.dtype:
        """The precision of solving: single in training, for speed; otherwise double.

        In double precision the order and the batching of observations do not change the result.
        """
        return torch.float32 if self.training else torch.float64

    def refine(self, states: RowStates) -> RowStates:
        """Estimate the noise of each row from its code and the uncertainty of it."""
        inputs = torch.cat([states.code, states.code_std.mean(1, keepdim=True)], dim=1)
        noise = self.row_noise(inputs)[:, 0].clamp(-_MAX_LOG_NOISE, _MAX_LOG_NOISE).exp()
        noise = noise * (1 + states.code_std**2 @ self.doubt.clamp(min=0))
        return replace(states, noise=noise if states.noise is None else noise * states.noise)

    # -- the prior --------------------------------------------------------------------------------

    @abstractmethod
    def prior_mean(self, batch: FeatureBatch, sums: Tensor) -> Tensor:
        """Return the prior mean of each head, from metadata and ``context_sums``: (features, size)."""

    def context_sums(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """Return the sums over contexts that the prior mean reads: here none, (features, 0)."""
        return states.code.new_zeros(len(batch), 0)

    @property
    def mixes_priors(self) -> bool:
        """Whether a prior without metadata is an alternative, which the context may favour.

        Learned activations have no such prior, and training does without it.
        """
        possible = not self.training and self.prior.learned == 0 and bool(self.prior.misleading > 0)
        return possible and self.prior.uses_metadata

    def _priors(
        self, prior_mean: Tensor, batch: FeatureBatch, root: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return means (features, P, size), roots (P, size, size) and shares (P,) of the P priors."""
        if self.mixes_priors:
            return self.prior.parts(prior_mean, batch)
        return prior_mean[:, None], root[None], None

    # -- heads from contexts ----------------------------------------------------------------------

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Compute the posterior of each feature's head."""
        return self._adapt(batch, states, None)

    @torch.no_grad()
    def adapt_sharded(self, batch: FeatureBatch, states: RowStates, reduce: Reduce) -> Heads:
        """Compute the heads that ``adapt`` gives, where each process has the cells of its own rows."""
        return self._adapt(batch, states, reduce)

    def _adapt(self, batch: FeatureBatch, states: RowStates, reduce: Reduce | None) -> Heads:
        """Compute the posteriors of heads, those of similar shots together.

        ``reduce`` adds up over processes; with None, this process has all observations.
        """
        batch = self._winsorise(batch, states, sharded=reduce is not None)
        sums, shots, unscaled = self.context_sums(batch, states), batch.shots, batch.unscaled
        if reduce is not None:
            sums = reduce(sums) if sums.shape[1] else sums
            shots, unscaled = reduce(shots.clone()), torch.zeros_like(unscaled)
        prior_mean = self.prior_mean(batch, sums).to(self.dtype)
        root, none = self.prior.root(self.dtype), batch.kinds[:0]
        heads, order = [self._heads(prior_mean[:0], root.expand(0, -1, -1), none)], [none]  # for no features
        squashed = self.knowledge.likelihood.squashes(batch.kinds)
        forms = squashed + 2 * (batch.kinds == KindType.BINARY) + 4 * unscaled
        for group in blocks(shots, self.prior.size, forms, None if reduce is None else _SHARDED_BUDGET):
            part = batch.take(group)
            order.append(group)
            if bool(unscaled[group[0]]) and self.scale_prior is not None and part.units is not None:
                heads.append(self._unscaled_heads(part, states, prior_mean[group], root))
                continue
            posterior = self._classify if bool(squashed[group[0]]) else self._regress
            mean, covariance = posterior(part, states, prior_mean[group], root, reduce)
            heads.append(self._heads(mean, covariance, part.kinds))
        return Heads.concatenate(heads).take(torch.argsort(torch.cat(order)))

    def _regress(
        self, batch: FeatureBatch, states: RowStates, prior_mean: Tensor, root: Tensor, reduce: Reduce | None
    ) -> tuple[Tensor, Tensor]:
        """Condition the prior on contexts behind an identity link."""
        means, roots, shares = self._priors(prior_mean, batch, root)
        many = len(batch) == 1 or int(batch.shots.max()) >= self.prior.size
        if reduce is not None or (many and not self.training):
            sums = self._sums(batch, states)
            if reduce is not None:
                sums = unpack_sums(reduce(sums.pack()), self.prior.size)
            return mix(condition_on_sums(sums, means, roots), shares, sums.counts)
        cells = batch.cells
        rows = pad_rows(states.activation, cells).to(root.dtype)
        values = pad(cells.values.to(root.dtype), cells)
        weights = pad(cells.weighted(1 / self._noise(states, batch).to(root.dtype)), cells)
        posterior = condition_on_rows(rows, values, weights, means, roots)
        return mix(posterior, shares, cells.weighted_counts.to(root.dtype))

    def _classify(
        self, batch: FeatureBatch, states: RowStates, prior_mean: Tensor, root: Tensor, reduce: Reduce | None
    ) -> tuple[Tensor, Tensor]:
        """Condition the prior on contexts of one kind behind a logistic link."""
        cells, noise = batch.cells, self._noise(states, batch).to(root.dtype)
        rows = pad_rows(states.activation, cells).to(root.dtype)
        values = pad(cells.values.to(root.dtype), cells)
        if int(batch.kinds[0]) == KindType.BINARY:
            weights = cells.weighted(torch.ones_like(noise))
            rows = rows * pad(probit_scale(noise), cells)[:, :, None]
        else:  # a rating is more informative than a binary value: how much more is learned
            weights = cells.weighted(self.log_trust.exp() / noise)
        return classify(rows, values, pad(weights, cells), prior_mean, root, reduce=reduce)

    def _unscaled_heads(
        self, batch: FeatureBatch, states: RowStates, prior_mean: Tensor, root: Tensor
    ) -> Heads:
        """Compute heads of reals together with their centre and scale, in units that all reals share."""
        scale_prior, units = cast(ScalePrior, self.scale_prior), cast(Tensor, batch.units)
        zero, one = units[:, :1], units[:, 1:]
        lines, centre = batch.cells.lines, scale_prior.centre
        values = zero[lines, 0] + one[lines, 0] * batch.cells.values.double() - centre
        covariance = positive((root @ root.T).double()[:-1, :-1])
        cells, means = replace(batch.cells, values=values), prior_mean[:, :-1].double()
        weights = cells.weighted(1 / self._noise(states, batch).double())
        mean, covariance, noise = infer_scales(
            scale_prior, cells, states.activation, weights, means, covariance
        )
        mean[:, -1] += centre - zero[:, 0]
        # Draws from a continuous distribution are never equal: a feature whose values are all equal is
        # constant.
        constant, first = all_equal(batch.cells)
        mean[constant, :-1] = 0.0
        mean[constant, -1] = one[constant, 0] * first[constant].double()
        heads = self._heads(mean / one, covariance / one[:, :, None] ** 2, batch.kinds)
        relative = (noise / one[:, 0] ** 2).to(heads.bias.dtype)
        return replace(heads, noise=self.prior.noise(batch.kinds) * relative)

    def _heads(self, mean: Tensor, covariance: Tensor, kinds: Tensor) -> Heads:
        """Return heads of this mean (features, size) and covariance (features, size, size)."""
        noise = self.prior.noise(kinds)
        mean = mean.to(noise.dtype)
        return Heads(mean[:, :-1], mean[:, -1], pack(covariance).to(noise.dtype), noise)

    def _noise(self, states: RowStates, batch: FeatureBatch) -> Tensor:
        """Return the variance of each observation of the contexts: (n,)."""
        index = batch.cells.index
        noise = self.prior.noise(batch.kinds)[batch.cells.lines]
        if states.noise is not None:
            noise = noise * states.noise.index_select(0, index)
        if states.variance is None:
            return noise
        mean_squares = self.mean_squares.clamp(min=0)
        if len(index) < len(states):  # a few observations must not cost as much as all rows
            return noise + states.variance.index_select(0, index) @ mean_squares
        return noise + (states.variance @ mean_squares).index_select(0, index)

    # -- outliers ---------------------------------------------------------------------------------

    @cached_property
    def reference_features(self) -> ReferenceFeatures:
        """Known real features, by which the adapter measures how extreme rows are."""
        return ReferenceFeatures.of(self.knowledge)

    def _winsorise(self, batch: FeatureBatch, states: RowStates, *, sharded: bool) -> FeatureBatch:
        """Bring outliers of reals back, unless their row is as extreme in most known features."""
        real = batch.kinds == KindType.REAL
        if not bool(real.any() and (self.knowledge.kinds == KindType.REAL).any()):
            return batch
        cells = batch.cells
        rows, positions = torch.unique(cells.index, return_inverse=True)
        extent = self.reference_features.extents(states.activation.index_select(0, rows))[positions]
        least = torch.full((len(batch),), LEAST_DEVIATION, dtype=torch.float64)
        if sharded:
            values = winsorise_by_feature(cells.lines, cells.values, real, extent, least)
            return batch.observing(replace(cells, values=values))
        if batch.units is not None and self.knowledge.scales is not None:  # their scale is yet unknown
            smallest = self.knowledge.scales.scale.min() / batch.units[:, 1].clamp(min=1e-300)
            least = torch.where(batch.unscaled, LEAST_DEVIATION * smallest, least)
        return batch.observing(winsorise(cells, real, extent, least))

    # -- heads from sufficient statistics ---------------------------------------------------------

    def streams(self, kinds: Tensor) -> Tensor:
        """Return a mask of ratings with an identity link.

        The logistic link has no sufficient statistics, and whether a real is an outlier depends on all
        observations of its feature.
        """
        return ~self.knowledge.likelihood.squashes(kinds) & (kinds != KindType.REAL)

    def evidence(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """Compute the packed ``ContextSums`` and the context sums of each feature: (features, numbers)."""
        sums, further = self._sums(batch, states), self.context_sums(batch, states)
        return torch.cat([sums.pack(), further.double()], dim=1)

    def solve(self, evidence: Tensor, batch: FeatureBatch) -> Heads:
        """Compute heads from sums; of ``batch`` only metadata and kinds are read."""
        size = self.prior.size
        packed, further = evidence.tensor_split([packed_length(size)], dim=1)
        sums = unpack_sums(packed, size)
        prior_mean = self.prior_mean(batch, further).to(evidence.dtype)
        means, roots, shares = self._priors(prior_mean, batch, self.prior.root(evidence.dtype))
        mean, covariance = mix(condition_on_sums(sums, means, roots), shares, sums.counts)
        return self._heads(mean, covariance, batch.kinds)

    def _sums(self, batch: FeatureBatch, states: RowStates) -> ContextSums:
        """Compute the sums over each context in double precision."""
        weights = batch.cells.weighted(1 / self._noise(states, batch).double())
        return sum_contexts(batch.cells, states.activation, weights)

    # -- one feature or one row -------------------------------------------------------------------

    @property
    def adapts_one(self) -> bool:
        """Whether the head of one feature needs no network: only then it is computed in numpy."""
        return self.context_free_prior and not self.training

    @cached_property
    def _constants(self) -> _Constants:
        """The trained parameters in numpy; they do not change any more."""
        return _Constants.of(self)

    def adapt_one(
        self, context: OneContext, prior_means: Array, start: Array | None = None
    ) -> tuple[OneHead, Tensor | None]:
        """Compute the head of one feature as ``adapt`` does, and its ``evidence`` if its kind streams."""
        constants, values = self._constants, context.values
        if context.kind == KindType.REAL:
            extent = self.reference_features.extents(torch.from_numpy(context.activation)).numpy()
            values = winsorise_one(values, extent, LEAST_DEVIATION)
        usual, evidence = constants.noise[context.kind], None
        noise = np.full(len(values), usual) if context.noise is None else usual * context.noise
        if context.variance is not None:
            noise = noise + context.variance @ constants.mean_squares
        if context.kind == KindType.BINARY:
            rows = _scaled_rows(context.activation, probit_scale(noise))
            weights = np.ones(len(values)) if context.weights is None else context.weights
            mean, covariance = classify(
                rows, values, weights, prior_means[0], constants.roots[0], start=start
            )
        else:
            scale, shots = 1 / np.sqrt(noise), np.float64(len(values))
            if context.weights is not None:
                scale, shots = scale * np.sqrt(context.weights), context.weights.sum()
            rows, scaled = _scaled_rows(context.activation, scale), scale * values
            sums = ContextSums(shots, rows.T @ rows, scaled @ rows, scaled @ scaled)
            posterior = condition_on_sums(sums, prior_means[: len(constants.roots)], constants.roots)
            mean, covariance = mix(posterior, constants.shares, shots)
            if context.kind != KindType.REAL:
                evidence = torch.from_numpy(sums.pack())[None]
        return OneHead(mean[:-1], float(mean[-1]), pack(covariance), usual), evidence

    def refine_one(self, state: OneState) -> OneState:
        """Estimate the noise of one row as ``refine`` does."""
        constants = self._constants
        hidden = np.append(state.code, state.code_std.mean())
        for number, (weight, bias) in enumerate(constants.layers):
            hidden = weight @ (np.maximum(hidden, 0) if number else hidden) + bias
        noise = math.exp(min(max(float(hidden[0]), -_MAX_LOG_NOISE), _MAX_LOG_NOISE))
        noise *= 1 + float(state.code_std**2 @ constants.code_variance_weight)
        return state._replace(noise=noise if state.noise is None else noise * state.noise)

    @torch.no_grad()
    def one_prior_means(self, feature: int | FeatureBatch) -> Array:
        """Return the prior means of one head with and without metadata: (2, size)."""
        if isinstance(feature, int):
            return self.prior.known_means.numpy()[feature].astype(np.float64)  # type: ignore[no-any-return]
        means = torch.cat([self.prior.mean(feature), self.prior.mean_without_metadata(feature)])
        return means.double().numpy()

    # -- explaining -------------------------------------------------------------------------------

    def metadata_slopes(self, *, squashed: bool) -> Tensor:
        """Return the derivative of a head without shots by its described metadata: (columns, size).

        A network that reads all columns together is not part of it. ``squashed`` heads are behind a
        logistic link, where priors are not mixed.
        """
        share = 1.0 if squashed or not self.mixes_priors else 1 - float(self.prior.misleading)
        return share * self.prior.base[:-1].double()

    def metadata_effects(self, batch: FeatureBatch, reference: FeatureBatch) -> Tensor:
        """Return the change of a head without shots due to each number of its metadata: (numbers, size)."""
        described = (
            self.prior.describe(each.metadata, each.kinds)[0, :-1].double() for each in (batch, reference)
        )
        slopes = self.metadata_slopes(squashed=bool(self.knowledge.likelihood.squashes(batch.kinds)))
        effects = torch.sub(*described)[:, None] * slopes
        numbers = batch.metadata.shape[1]
        return effects[: 3 * numbers].view(3, numbers, -1).sum(0)  # linear, and two cubic terms

    @property
    def metadata_gains(self) -> Tensor:
        """The share of the error of predicted heads that each metadata column removes: (columns,)."""
        return self.prior.gains


class _Constants(NamedTuple):
    """The parameters that the head of one feature needs, in numpy."""

    roots: Array  # (P, size, size): of the priors' covariances: with metadata, and without it if P is 2
    shares: Array | None  # (P,): the probabilities of the priors; None: there is only one
    noise: tuple[float, ...]  # by kind
    mean_squares: Array  # (width,)
    layers: tuple[tuple[Array, Array], ...]  # weights and biases of the network for the noise of a row
    code_variance_weight: Array  # (code,)

    @classmethod
    @torch.no_grad()
    def of(cls, adapter: ClosedFormAdapter) -> _Constants:
        """Copy the parameters of a trained adapter."""
        prior, shares = adapter.prior, None
        roots = prior.root(torch.float64)[None]
        if adapter.mixes_priors:
            roots = torch.cat([roots, prior.plain_root.double()[None]])
            shares = np.array([1 - float(prior.misleading), float(prior.misleading)])
        layers = [layer for layer in adapter.row_noise if isinstance(layer, nn.Linear)]
        return cls(
            roots.numpy(),
            shares,
            tuple(prior.log_noise.exp().tolist()),
            adapter.mean_squares.clamp(min=0).double().numpy(),
            tuple((layer.weight.double().numpy(), layer.bias.double().numpy()) for layer in layers),
            adapter.doubt.clamp(min=0).double().numpy(),
        )


def _scaled_rows(activation: Array, scale: Array) -> Array:
    """Return [d; 1] of each row, times its scale: (n, size)."""
    rows = np.empty((len(activation), activation.shape[1] + 1))
    np.multiply(activation, scale[:, None], out=rows[:, :-1])
    rows[:, -1] = scale
    return rows


class BayesConfig(AdapterConfig):
    """Settings of the closed-form head; there is nothing to tune."""

    name: Literal["bayes"] = "bayes"


@register_adapter
class BayesHead(ClosedFormAdapter):
    """Bayesian regression with the prior mean that metadata predicts."""

    config_type: ClassVar[type[AdapterConfig]] = BayesConfig
    context_free_prior: ClassVar[bool] = True

    def __init__(self, config: BayesConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self.requires_grad_(False)  # all it learns, it learns from known heads; chn-bayes learns further

    def prior_mean(self, batch: FeatureBatch, sums: Tensor) -> Tensor:  # noqa: ARG002
        """Return the heads that metadata predicts: (features, size)."""
        return self.prior.mean(batch)
