"""Closed-form adapters: Bayesian regression of a feature's values on the rows' activations.

``BayesHead`` (``bayes``) is here; ``chn_bayes`` derives the default adapter from the same base,
``ClosedFormAdapter``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from headstart.adapters.base import (
    Adapter,
    AdapterConfig,
    ContextStack,
    HeadSums,
    OneContext,
    OneFeature,
    Reduce,
    register_adapter,
)
from headstart.adapters.head_prior import HeadPrior, ReferenceFeatures, mean_squared_weights
from headstart.adapters.known_heads import KnownHeadMixture, KnownHeads
from headstart.adapters.unknown_scale import ScalePrior, infer_scales
from headstart.core.clicks import estimate_exposure, weigh_click_values, weigh_clicks
from headstart.core.networks import Layers, apply_layers, copy_layers, mlp
from headstart.core.types import SPLINE_TERMS, FeatureBatch, Heads, Knowledge, OneHead, OneState, RowStates
from headstart.linalg.array_ops import Array, probit_scale
from headstart.linalg.gaussian import (
    ContextSums,
    condition_on_rows,
    condition_on_sums,
    mix,
    sum_contexts,
    unpack_sums,
)
from headstart.linalg.laplace import condition_logistic
from headstart.linalg.packed import make_positive_definite, pack, unpack
from headstart.linalg.ragged import all_equal, groups_of_similar_counts, pad, pad_rows
from headstart.table.kinds import KindType
from headstart.table.outliers import LEAST_DEVIATION, winsorise, winsorise_by_feature, winsorise_one

_MANY_FEATURES = 1000  # number of features from which networks train longer, in larger batches
_MAX_LOG_NOISE = 3.0  # |log| of a row's noise relative to the average
_MIXTURE_BUDGET = 1 << 22  # numbers of known heads moved by the contexts of a block
_SHARDED_BUDGET = 1 << 22  # numbers in a block of several processes, which synchronise once per block


def default_meta_training(features: int) -> Mapping[str, object]:
    """Return the settings of meta-training for a table of ``features``: few epochs at a high learning rate.

    >>> default_meta_training(100)["epochs"], default_meta_training(5000)["epochs"]
    (15, 24)
    """
    many = features >= _MANY_FEATURES
    return {
        "epochs": 24 if many else 15,
        "epoch_features": 2000,  # more features take longer and change little
        # With many features, large batches with few observations per feature learn more in the same time.
        "batch_size": 192 if many else 48,
        "max_shots": 32 if many else 128,
        "max_targets": 32 if many else 256,
        "learning_rate": 4e-3 if many else 2e-3,
        "schedule": "cosine",
        "weight_decay": 0.0,
        "decoupled_weight_decay": 0.05 if many else 0.1,
        "max_grad_norm": 1.0,
        # With many features the last state is as good as the best validated one, and varies less.
        "patience": None if many else 15,
        "shots": "log",
        "weighting": 0.5,
    }


class ClosedFormAdapter(Adapter):
    """Bayesian regression x_i = θ·[d_i; 1] + noise_i with the prior θ ~ N(prior mean, C).

    The prior and the noise, which depends on the row, are initialised from the backbone's heads and
    meta-trained through the closed form. The posterior is exact for ratings and reals, and Laplace's
    approximation for values behind a logistic link.
    """

    refines: ClassVar[bool] = True
    gives_uncertainty: ClassVar[bool] = True
    makes_known_heads: ClassVar[bool] = True
    reads_context_rows_only: ClassVar[bool] = True
    sharded: ClassVar[bool] = True
    explainable: ClassVar[bool] = True
    supports_weights: ClassVar[bool] = True

    def __init__(self, config: AdapterConfig, knowledge: Knowledge, learned: int = 0) -> None:
        """Initialise with ``learned`` activations to learn beside the backbone's."""
        super().__init__(config, knowledge)
        width = knowledge.states.code.shape[1]
        self.prior = HeadPrior(knowledge, learned)
        # log of the weight of a rating behind a logistic link, relative to a binary value
        self.log_rating_weight = nn.Parameter(torch.ones(()))
        # The uncertainty of a row adds to the noise of its observations: the variance of its activation
        # weighted by the mean squared weights of heads, and the variance of its code with weights of its own.
        self.mean_squares = nn.Parameter(torch.zeros(self.prior.size - 1))
        self.code_variance_weight = nn.Parameter(torch.zeros(width))
        self.row_noise = mlp([width + 1, 32, 1])
        scales = knowledge.scales
        self.scale_prior = None if scales is None else ScalePrior(scales, len(knowledge.kinds))
        self.relative_noise: Tensor  # (features,): of known features, see ``relative_noise``
        self.register_buffer("relative_noise", torch.ones(len(knowledge.kinds)))
        self.known_heads: KnownHeads | None = None  # None: the prior is Gaussian

    @torch.no_grad()
    def prepare(self) -> None:
        """Initialise the prior and the noise from the backbone's heads."""
        self.prior.prepare(self.knowledge)
        self.relative_noise.copy_(relative_noise(self.knowledge))
        heads = (self.knowledge.new_heads or self.knowledge.heads).detach()
        if self.known_heads is not None:
            self.known_heads.prepare(self.knowledge, heads)
        mean_squares = mean_squared_weights(self.knowledge, heads)
        self.mean_squares[: len(mean_squares)] = mean_squares
        last = cast(nn.Linear, self.row_noise[-1])
        nn.init.zeros_(last.bias)
        nn.init.zeros_(last.weight)  # begin with the noise that the backbone estimates for each row
        if self.scale_prior is not None and self.knowledge.scales is not None:
            usual = self.prior.noise(self.knowledge.kinds)
            noise = None if heads.noise is None else heads.noise / usual
            if noise is not None and self.knowledge.cross_fitted is not None:
                noise = noise[self.knowledge.cross_fitted]
            self.scale_prior.prepare(self.knowledge.scales, noise)

    @property
    def meta_defaults(self) -> Mapping[str, object]:
        """Settings of meta-training: few epochs at a high learning rate."""
        return default_meta_training(len(self.knowledge.heads))

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the solvers: single in training, for speed; otherwise double.

        In double precision the result does not depend on the order and the batching of observations.
        """
        return torch.float32 if self.training else torch.float64

    def refine(self, states: RowStates) -> RowStates:
        """Estimate the noise of each row from its code and the standard deviation of the code."""
        inputs = torch.cat([states.code, states.code_std.mean(1, keepdim=True)], dim=1)
        noise = self.row_noise(inputs)[:, 0].clamp(-_MAX_LOG_NOISE, _MAX_LOG_NOISE).exp()
        noise = noise * (1 + states.code_std**2 @ self.code_variance_weight.clamp(min=0))
        return replace(states, noise=noise if states.noise is None else noise * states.noise)

    # -- the prior --------------------------------------------------------------------------------

    def context_sums(self, batch: FeatureBatch, states: RowStates, means: Tensor) -> Tensor:  # noqa: ARG002
        """Return the sums over contexts that ``prior_mean`` reads: here none, (features, 0).

        ``means`` (features, size) are the heads predicted from metadata.
        """
        return states.code.new_zeros(len(batch), 0)

    def prior_mean(self, description: Tensor, means: Tensor, sums: Tensor) -> Tensor:  # noqa: ARG002
        """Return the prior mean of each head: here the ``means`` predicted from metadata, (features, size).

        ``description`` (features, columns) are the columns of ``HeadPrior.describe``, and ``sums`` the
        ``context_sums``.
        """
        return means

    @property
    def mixes_priors(self) -> bool:
        """Whether heads mix the posteriors under two priors, with and without metadata.

        Training uses the first prior only; learned activations have no prior without metadata.
        """
        possible = not self.training and self.prior.learned == 0 and bool(self.prior.p_uninformative > 0)
        return possible and self.prior.uses_metadata

    def prior_covariances(self, shots: Tensor) -> tuple[Tensor, Tensor]:
        """Return the covariances of the priors, and their shares without evidence."""
        roots, shares = [self.prior.root(torch.float64)], [1.0]
        if self.mixes_priors:
            roots.append(self.prior.plain_root.double())
            shares = [1 - float(self.prior.p_uninformative), float(self.prior.p_uninformative)]
        covariances = torch.stack([root @ root.T for root in roots])
        return covariances, torch.tensor(shares).repeat(len(shots), 1)

    def _priors(
        self, prior_mean: Tensor, batch: FeatureBatch, root: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return means (features, P, size), roots (P, size, size) and shares (P,) of the P priors."""
        if self.mixes_priors:
            return self.prior.parts(prior_mean, batch)
        return prior_mean[:, None], root[None], None

    def shrink_mean_head(self) -> None:
        """Shrink the mean head of the prior towards the direction of row means (``mean_head_change``)."""
        self.prior.shrink_mean_head()

    @property
    def _mixture(self) -> KnownHeadMixture | None:
        """The prior of new heads that resemble known ones; None in training, or if it has no share."""
        if self.training or self.known_heads is None or not self.known_heads.has_shares:
            return None
        return KnownHeadMixture.of(self.known_heads, self.prior)

    def set_known_head_shares(self, shares: Tensor | float) -> None:
        """Set the shares of heads that resemble known ones, at ``VALIDATION_SHOTS``."""
        if self.known_heads is None:
            self._cannot("mix known heads")
        self.known_heads.shares.copy_(torch.as_tensor(shares))
        if not self.prior.uses_metadata:
            self.known_heads.shares[0] = 0.0  # without shots nothing tells which known head
        vars(self).pop("_constants", None)

    # -- heads from contexts ----------------------------------------------------------------------

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Compute the posterior of each feature's head."""
        return self._adapt(batch, states, None)

    @torch.no_grad()
    def adapt_sharded(self, batch: FeatureBatch, states: RowStates, reduce: Reduce) -> Heads:
        """Compute the heads of ``adapt`` if each process has the observations of some rows only."""
        return self._adapt(batch, states, reduce)

    def _adapt(self, batch: FeatureBatch, states: RowStates, reduce: Reduce | None) -> Heads:
        """Compute the posteriors of heads in blocks of similar shots.

        ``reduce`` adds up tensors over processes; None if this process has all observations.
        """
        batch = self._winsorise(batch, states, sharded=reduce is not None)
        description = self.prior.describe(batch.metadata, batch.kinds)
        means = self.prior.mean(batch, description)
        sums, shots, unscaled = self.context_sums(batch, states, means), batch.shots, batch.unscaled
        if reduce is not None:
            sums = reduce(sums) if sums.shape[1] else sums
            shots, unscaled = reduce(shots.clone()), torch.zeros_like(unscaled)
        prior_mean = self.prior_mean(description, means, sums).to(self.dtype)
        root = self.prior.root(self.dtype)
        if len(batch) == 0:
            return self._heads(prior_mean, root.expand(0, -1, -1), batch)
        squashed = self.knowledge.likelihood.squashes(batch.kinds)
        clicks = batch.kinds == KindType.CLICK
        # Features of one group have the same solver.
        solver = squashed + 2 * (batch.kinds == KindType.BINARY) + 4 * unscaled + 8 * clicks
        mixture, budget = self._mixture, None if reduce is None else _SHARDED_BUDGET
        if mixture is not None and batch.known is not None:
            solver = solver + 16 * (batch.known >= 0)
        groups = list(groups_of_similar_counts(shots, self.prior.size, solver, budget))
        if mixture is not None:
            most = max(1, _MIXTURE_BUDGET // mixture.heads.numel())
            groups = [part for group in groups for part in torch.split(group, most)]

        def group_heads(part: FeatureBatch, means: Tensor, first: int) -> Heads:
            if bool(unscaled[first]) and self.scale_prior is not None and part.units is not None:
                return self._unscaled_heads(part, states, means, root)
            if bool(squashed[first]):
                posterior = self._condition_logistic(part, states, means, root, reduce)
            else:
                is_new = part.known is None or bool(part.known[0] < 0)
                mixed = mixture if is_new and not bool(clicks[first]) else None
                posterior = self._condition_linear(part, states, means, root, reduce, mixed)
            return self._heads(*posterior, part)

        if len(groups) == 1:
            return group_heads(batch, prior_mean, 0)
        parts = [group_heads(batch.take(group), prior_mean[group], int(group[0])) for group in groups]
        return Heads.concatenate(parts).take(torch.argsort(torch.cat(groups)))

    def _condition_linear(
        self,
        batch: FeatureBatch,
        states: RowStates,
        prior_mean: Tensor,
        root: Tensor,
        reduce: Reduce | None,
        mixture: KnownHeadMixture | None,
    ) -> tuple[Tensor, Tensor]:
        """Condition the prior on contexts behind an identity link; new heads can resemble known ones."""
        means, roots, shares = self._priors(prior_mean, batch, root)
        many = len(batch) == 1 or int(batch.shots.max()) >= self.prior.size
        clicks = self._has_clicks(batch)
        if reduce is not None or clicks or mixture is not None or (many and not self.training):
            sums = self._sum_contexts(batch, states)
            if reduce is not None:
                sums = unpack_sums(reduce(sums.pack()), self.prior.size)
            sums = self._add_zeros(sums, batch) if clicks else sums
            posterior = condition_on_sums(sums, means, roots)
            if mixture is not None:
                return mixture.condition(sums, prior_mean.double(), posterior, shares, batch.positions)
            return mix(posterior, shares, sums.counts)
        cells = batch.cells
        rows = pad_rows(states.activation, cells).to(root.dtype)
        values = pad(cells.values.to(root.dtype), cells)
        weights = pad(cells.weighted(1 / self._noise(states, batch).to(root.dtype)), cells)
        posterior = condition_on_rows(rows, values, weights, means, roots)
        return mix(posterior, shares, cells.weighted_counts.to(root.dtype))

    def _sum_contexts(self, batch: FeatureBatch, states: RowStates) -> ContextSums:
        """Compute the sums over each context in double precision."""
        batch = batch.observing(weigh_clicks(batch.cells, batch.kinds, by_line=True))
        weights = batch.cells.weighted(1 / self._noise(states, batch).double())
        return sum_contexts(batch.cells, states.activation, weights)

    def _has_clicks(self, batch: FeatureBatch) -> bool:
        return self.prior.zeros is not None and bool((batch.kinds == KindType.CLICK).any())

    def _add_zeros(self, sums: ContextSums, batch: FeatureBatch) -> ContextSums:
        """Add the zeros of click features, weighted by their exposure."""
        zeros = cast(Tensor, self.prior.zeros)
        weights = self.prior.exposure(batch, sums.counts) / self.prior.noise(batch.kinds).double()
        weights = torch.where(batch.kinds == KindType.CLICK, weights, 0.0)
        return sums.add_zeros(weights, zeros)

    def _condition_logistic(
        self, batch: FeatureBatch, states: RowStates, prior_mean: Tensor, root: Tensor, reduce: Reduce | None
    ) -> tuple[Tensor, Tensor]:
        """Condition the prior on contexts of one kind behind a logistic link."""
        cells, noise = batch.cells, self._noise(states, batch).to(root.dtype)
        rows = pad_rows(states.activation, cells).to(root.dtype)
        values = pad(cells.values.to(root.dtype), cells)
        if int(batch.kinds[0]) == KindType.BINARY:
            weights = cells.weighted(torch.ones_like(noise))
            rows = rows * pad(probit_scale(noise), cells)[:, :, None]
        else:  # a rating is more informative than a binary value, by a learned factor
            weights = cells.weighted(self.log_rating_weight.exp() / noise)
        return condition_logistic(rows, values, pad(weights, cells), prior_mean, root, reduce=reduce)

    def _unscaled_heads(
        self, batch: FeatureBatch, states: RowStates, prior_mean: Tensor, root: Tensor
    ) -> Heads:
        """Infer the heads of reals together with their centre and scale, in units common to all reals."""
        scale_prior, units = cast(ScalePrior, self.scale_prior), cast(Tensor, batch.units)
        offset, span = units[:, :1], units[:, 1:]
        lines, centre = batch.cells.lines, scale_prior.centre
        values = offset[lines, 0] + span[lines, 0] * batch.cells.values.double() - centre
        covariance = make_positive_definite((root @ root.T).double()[:-1, :-1])
        cells, means = replace(batch.cells, values=values), prior_mean[:, :-1].double()
        weights = cells.weighted(1 / self._noise(states, batch).double())
        mean, covariance, noise = infer_scales(
            scale_prior, cells, states.activation, weights, means, covariance
        )
        mean[:, -1] += centre - offset[:, 0]
        # Draws from a continuous distribution are never equal: equal values mean a constant feature.
        constant, first = all_equal(batch.cells)
        mean[constant, :-1] = 0.0
        mean[constant, -1] = span[constant, 0] * first[constant].double()
        heads = self._heads(mean / span, covariance / span[:, :, None] ** 2, batch)
        relative = (noise / span[:, 0] ** 2).to(heads.bias.dtype)
        return replace(heads, noise=self.prior.noise(batch.kinds) * relative)

    def _heads(self, mean: Tensor, covariance: Tensor, batch: FeatureBatch) -> Heads:
        """Return heads of this mean (features, size) and covariance (features, size, size)."""
        noise = self.prior.noise(batch.kinds)
        if batch.known is not None:
            relative = self.relative_noise[batch.known.clamp(min=0)].to(noise.dtype)
            noise = noise * torch.where(batch.known >= 0, relative, 1.0)
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
        if len(index) < len(states):  # compute the products of the observed rows only
            return noise + states.variance.index_select(0, index) @ mean_squares
        return noise + (states.variance @ mean_squares).index_select(0, index)

    # -- outliers ---------------------------------------------------------------------------------

    @cached_property
    def reference_features(self) -> ReferenceFeatures:
        """Known real features, which measure how extreme the values of each row are."""
        return ReferenceFeatures.of(self.knowledge)

    def _winsorise(self, batch: FeatureBatch, states: RowStates, *, sharded: bool) -> FeatureBatch:
        """Winsorise outliers of reals, unless their row is as extreme in most known features."""
        real = batch.kinds == KindType.REAL
        if not bool(real.any() and (self.knowledge.kinds == KindType.REAL).any()):
            return batch
        cells = batch.cells
        rows, positions = torch.unique(cells.index, return_inverse=True)
        extent = self.reference_features.row_scales(states.activation.index_select(0, rows))[positions]
        least = torch.full((len(batch),), LEAST_DEVIATION, dtype=torch.float64)
        if sharded:
            values = winsorise_by_feature(cells.lines, cells.values, real, extent, least)
            return batch.observing(replace(cells, values=values))
        if batch.units is not None and self.knowledge.scales is not None:  # features of unknown scale
            smallest = self.knowledge.scales.scale.min() / batch.units[:, 1].clamp(min=1e-300)
            least = torch.where(batch.unscaled, LEAST_DEVIATION * smallest, least)
        return batch.observing(winsorise(cells, real, extent, least))

    # -- one feature or one row -------------------------------------------------------------------

    @property
    def adapts_one(self) -> bool:
        """Whether ``adapt_one`` and ``refine_one`` can be called: after training, with linear ratings."""
        return not self.training and not self.knowledge.likelihood.is_logistic(KindType.RATING)

    @cached_property
    def _constants(self) -> _Constants:
        """The trained parameters in numpy, cached: they do not change after training."""
        return _Constants.of(self)

    def one_prior_mean(self, features: OneFeature, means: Array, counts: Array, encoded: Array) -> Array:  # noqa: ARG002
        """Return the prior means of heads, given their ``means`` from metadata: (…, size).

        ``counts`` (…) and ``encoded`` (…, any) are sums over the contexts.
        """
        return means

    def encode_contexts(self, contexts: ContextStack) -> Array:
        """Return the sums over contexts that ``one_prior_mean`` reads: here none, (features, 0)."""
        return np.zeros((len(contexts.ends) - 1, 0))

    def needs_context(self, kind: int) -> bool:
        """Return whether the head depends on single observations: behind a logistic link, or winsorised."""
        return kind in (KindType.BINARY, KindType.REAL)

    def adapt_one(self, context: OneContext, start: Array | None = None) -> OneHead:
        """Compute the head of one feature as ``adapt`` does.

        ``start`` (size,) is a head close to the new one.
        """
        if context.kind == KindType.BINARY:
            usual = np.full(len(context.values), self._constants.noise[context.kind])
            noise = self._add_row_noise(usual, context.noise, context.variance)
            scale = probit_scale(noise.astype(np.float64))
            return self._condition_logistic_one(context, scale, start)
        if context.kind == KindType.REAL:
            extent = self.reference_features.row_scales(torch.from_numpy(context.activation)).numpy()
            context = context._replace(values=winsorise_one(context.values, extent, LEAST_DEVIATION))
        (sums,) = self.sum_contexts(ContextStack.of(context)).split()
        return self.adapt_sums(context.feature, sums)

    def sum_contexts(self, contexts: ContextStack) -> HeadSums:
        """Compute the sums over the contexts of features behind an identity link."""
        kinds = contexts.features.kind
        if (kinds == KindType.CLICK).any():
            kinds = contexts.per_observation(kinds)
            values, weights = weigh_click_values(contexts.values, contexts.weights, kinds)
            contexts = contexts._replace(values=values, weights=weights)
        noise = contexts.per_observation(self._constants.noise[contexts.features.kind])
        scale = 1 / np.sqrt(self._add_row_noise(noise, contexts.noise, contexts.variance), dtype=np.float64)
        if contexts.weights is not None:
            scale = scale * np.sqrt(contexts.weights)
        rows, scaled = _scaled_rows(contexts.activation, scale), scale * contexts.values
        size, parts = rows.shape[1], contexts.parts
        total, linear = np.empty((len(parts), size, size)), np.empty((len(parts), size))
        for position, part in enumerate(parts):  # a few large products, or many small ones
            np.matmul(rows[part].T, rows[part], out=total[position])
            np.matmul(scaled[part], rows[part], out=linear[position])
        squares = np.array([scaled[part] @ scaled[part] for part in parts])
        return HeadSums(contexts.shots, pack(total), linear, squares, self.encode_contexts(contexts))

    def _add_row_noise(self, usual: Array, noise: Array | None, variance: Array | None) -> Array:
        """Return the variances of observations (n,) with the ``usual`` ones, at rows of given states."""
        result = usual if noise is None else usual * noise
        return result if variance is None else result + variance @ self._constants.mean_squares

    def adapt_sums(self, features: OneFeature, sums: HeadSums) -> OneHead:
        """Condition the priors of heads on the sums of their contexts, behind an identity link."""
        return self._condition_sums(features, sums, unpack(sums.total))

    def _condition_sums(self, features: OneFeature, sums: HeadSums, total: Array) -> OneHead:
        """Condition the priors of heads on sums; ``total`` (…, size, size) is ``sums.total`` unpacked."""
        constants, means = self._constants, self._one_prior_means(features, sums.counts, sums.encoded)
        context = ContextSums(sums.counts, total, sums.linear, sums.squares)
        clicks = features.kind == KindType.CLICK
        if constants.zeros is not None and clicks.any():
            exposure = np.where(
                np.isnan(features.exposure),
                estimate_exposure(sums.counts, constants.usual_clicks),
                features.exposure,
            )
            weights = np.where(clicks, exposure / constants.noise[features.kind], 0.0)
            context = context.add_zeros(weights, constants.zeros)
        posterior = condition_on_sums(context, means[..., : len(constants.roots), :], constants.roots)
        mean, covariance = mix(posterior, constants.shares, sums.counts)
        can_resemble = (features.known < 0) & ~clicks
        if constants.mixture is not None and can_resemble.any():
            mixed = constants.mixture.condition(context, means[..., 0, :], posterior, constants.shares)
            mean = np.where(can_resemble[..., None], mixed[0], mean)
            covariance = np.where(can_resemble[..., None, None], mixed[1], covariance)
        return self._one_head(features, mean, covariance)

    def _condition_logistic_one(self, context: OneContext, scale: Array, start: Array | None) -> OneHead:
        """Condition the prior of one head on its context behind a logistic link.

        ``scale`` (n,) is the ``probit_scale`` of the noise.
        """
        rows = _scaled_rows(context.activation, scale)
        weights = np.ones(len(rows)) if context.weights is None else context.weights
        (encoded,) = self.encode_contexts(ContextStack.of(context))
        means = self._one_prior_means(context.feature, context.shots, encoded)
        posterior = condition_logistic(
            rows, context.values, weights, means[0], self._constants.roots[0], start=start
        )
        return self._one_head(context.feature, *posterior)

    def _one_prior_means(self, features: OneFeature, counts: Array, encoded: Array) -> Array:
        """Return the prior means given metadata and context, and without them: (…, 2, size)."""
        means = self.prior.means(features.metadata, features.kind, features.known)
        means[..., 0, :] = self.one_prior_mean(features, means[..., 0, :], counts, encoded)
        return means

    def _one_head(self, features: OneFeature, mean: Array, covariance: Array) -> OneHead:
        """Return the head of this mean (…, size) and covariance (…, size, size)."""
        constants = self._constants
        noise = constants.noise[features.kind]
        if (features.known >= 0).any():
            relative = constants.relative_noise[np.maximum(features.known, 0)]
            noise = noise * np.where(features.known >= 0, relative, 1.0)
        return OneHead(mean[..., :-1], mean[..., -1], pack(covariance), noise)

    def refine_one(self, state: OneState) -> OneState:
        """Estimate the noise of one row as ``refine`` does."""
        constants = self._constants
        inputs = np.append(state.code, state.code_std.mean())
        output = float(apply_layers(constants.row_noise, inputs)[0])
        noise = math.exp(min(max(output, -_MAX_LOG_NOISE), _MAX_LOG_NOISE))
        noise *= 1 + float(state.code_std**2 @ constants.code_variance_weight)
        return state._replace(noise=noise if state.noise is None else noise * state.noise)

    # -- explaining -------------------------------------------------------------------------------

    def metadata_slopes(self, *, squashed: bool) -> Tensor:
        """Return the derivative of a zero-shot head with respect to described metadata: (columns, size).

        The networks of subclasses do not count. ``squashed`` heads are behind a logistic link, and have the
        prior with metadata only.
        """
        share = 1.0 if squashed or not self.mixes_priors else 1 - float(self.prior.p_uninformative)
        return share * self.prior.base[:-1].double()

    def metadata_effects(self, batch: FeatureBatch, reference: FeatureBatch) -> Tensor:
        """Return the change of a zero-shot head due to each number of its metadata: (numbers, size).

        The change is from the metadata of ``reference`` to those of ``batch``, of one feature each.
        """
        described = (
            self.prior.describe(feature.metadata, feature.kinds)[0, :-1].double()
            for feature in (batch, reference)
        )
        slopes = self.metadata_slopes(squashed=bool(self.knowledge.likelihood.squashes(batch.kinds)))
        effects = torch.sub(*described)[:, None] * slopes
        numbers = batch.metadata.shape[1]
        # The first columns are linear, and two cubic terms.
        number_effects = effects[: 3 * numbers].view(3, numbers, effects.shape[1]).sum(0)
        columns = self.prior.numeric
        splines = effects[3 * numbers :][: SPLINE_TERMS * len(columns)]
        splines = splines.view(len(columns), SPLINE_TERMS, effects.shape[1])
        number_effects = number_effects.index_add(0, columns, splines.sum(1))
        kernel = self.prior.kernel
        shape = len(kernel.spans), len(kernel.landmarks), effects.shape[1]
        kernels = effects[len(effects) - kernel.width :].view(shape)
        starts = torch.tensor([start for start, _ in kernel.spans], dtype=torch.int64)
        return number_effects.index_add(0, starts, kernels.sum(1))

    @property
    def metadata_gains(self) -> Tensor:
        """The fraction of the error of predicted heads that each metadata column explains: (columns,)."""
        return self.prior.gains


def relative_noise(knowledge: Knowledge) -> Tensor:
    """Return the noise of known features, relative to the mean over observations of their kind: (features,).

    It is that of the backbone's heads; 1 if they have none. Every process must call it.
    """
    kinds, noise = knowledge.kinds, knowledge.heads.noise
    if noise is None:
        return torch.ones(len(kinds))
    counts, relative = knowledge.count_shots().to(noise.dtype), torch.ones_like(noise)
    for kind in (KindType.RATING, KindType.REAL):
        same_kind = kinds == kind
        usual = (counts[same_kind] @ noise[same_kind]) / counts[same_kind].sum().clamp(min=1)
        relative[same_kind] = noise[same_kind] / usual.clamp(min=torch.finfo(noise.dtype).tiny)
    return relative


class _Constants(NamedTuple):
    """Parameters of an adapter in numpy, for heads of one feature."""

    roots: Array  # (P, size, size): roots of the priors' covariances, with metadata and, if P = 2, without
    shares: Array | None  # (P,): the probabilities of the priors; None if P = 1
    noise: Array  # (kinds,)
    relative_noise: Array  # (features,): of known features
    mean_squares: Array  # (width,), in single precision as the variances that it multiplies
    row_noise: Layers  # of the network for the noise of a row
    code_variance_weight: Array  # (code,)
    zeros: Array | None  # (size, size): of click features; None without clicks
    usual_clicks: float  # of a click feature
    mixture: KnownHeadMixture | None  # the prior of heads that resemble known ones; None: none do

    @classmethod
    @torch.no_grad()
    def of(cls, adapter: ClosedFormAdapter) -> _Constants:
        """Copy the parameters of a trained adapter."""
        prior, shares = adapter.prior, None
        roots = prior.root(torch.float64)[None]
        if adapter.mixes_priors:
            roots = torch.cat([roots, prior.plain_root.double()[None]])
            shares = np.array([1 - float(prior.p_uninformative), float(prior.p_uninformative)])
        return cls(
            roots.numpy(),
            shares,
            prior.log_noise.exp().double().numpy(),
            adapter.relative_noise.double().numpy(),
            adapter.mean_squares.clamp(min=0).numpy(),
            tuple(
                (weight.astype(np.float64), bias.astype(np.float64))
                for weight, bias in copy_layers(adapter.row_noise)
            ),
            adapter.code_variance_weight.clamp(min=0).double().numpy(),
            None if prior.zeros is None else prior.zeros.numpy(),
            1.0 if prior.usual_clicks is None else float(prior.usual_clicks),
            None if adapter._mixture is None else adapter._mixture.numpy(),
        )


def _scaled_rows(activation: Array, scale: Array) -> Array:
    """Return [d; 1] · ``scale`` of each row: (n, size)."""
    rows = np.empty((len(activation), activation.shape[1] + 1))
    np.multiply(activation, scale[:, None], out=rows[:, :-1])
    rows[:, -1] = scale
    return rows


class BayesConfig(AdapterConfig):
    """Settings of the closed-form head, which has no hyper-parameters."""

    name: Literal["bayes"] = "bayes"


@register_adapter
class BayesHead(ClosedFormAdapter):
    """Bayesian regression with a prior mean predicted from metadata."""

    config_type: ClassVar[type[AdapterConfig]] = BayesConfig
    reads_code: ClassVar[bool] = False
    supports_clicks: ClassVar[bool] = True
    mixes_known_heads: ClassVar[bool] = True

    def __init__(self, config: BayesConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self.known_heads = KnownHeads(len(knowledge.kinds), self.prior.size)
        self.requires_grad_(False)  # `prepare` sets all parameters; only chn-bayes meta-trains them
