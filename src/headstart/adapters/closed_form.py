"""Heads in closed form: Bayesian regression on the rows' activations, from a learned prior."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from headstart.adapters.empirical import mean_squared_weights
from headstart.adapters.few_scales import found_scales
from headstart.adapters.landmarks import Landmarks
from headstart.adapters.logistic import classify, squeezing
from headstart.adapters.posterior import ContextSums, mixed, mixed_few, posterior_of, regress
from headstart.adapters.prior import HeadPrior
from headstart.adapters.protocol import AdapterConfig, StreamingAdapter
from headstart.adapters.scales import ScalePrior
from headstart.adapters.sums import sums_of, sums_over
from headstart.adapters.taming import tamed
from headstart.adapters.usual_training import usual_training
from headstart.algebra.padding import blocks, padded, padded_rows
from headstart.algebra.sparse import all_equal
from headstart.algebra.symmetric import pack, positive
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.networks import mlp
from headstart.core.states import RowStates
from headstart.table.kinds import KindType

WIDEST_NOISE = 3.0  # |log| of a row's noise relative to the usual


class ClosedFormAdapter(StreamingAdapter):
    """θ ~ N(prior mean, C) given x_i = θ·[d_i; 1] + noise_i: exact for ratings and reals.

    The prior and the noise, which depends on the row, start from the backbone's own heads and are
    meta-trained through the closed form. Values behind a logistic link get Laplace's approximation.
    Subclasses say what the prior mean is.
    """

    refines: ClassVar[bool] = True
    by_sums_alone: ClassVar[bool] = False  # whether the prior mean does not depend on the context
    gives_uncertainty: ClassVar[bool] = True

    def __init__(self, config: AdapterConfig, knowledge: Knowledge, learned: int = 0) -> None:
        """``learned`` is the number of learned activations beside the backbone's."""
        super().__init__(config, knowledge)
        width = knowledge.states.code.shape[1]
        self.prior = HeadPrior(knowledge, learned)
        self.log_trust = nn.Parameter(torch.ones(()))  # of a squashed rating, relative to a binary value
        # What an uncertain row adds to the noise of an observation: the variance of its activation weighted
        # by the mean squares of heads' weights; of a backbone that gives none, that of its code.
        self.mean_squares = nn.Parameter(torch.zeros(self.prior.size - 1))
        self.doubt = nn.Parameter(torch.zeros(width))
        self.row_noise = mlp([width + 1, 32, 1])
        scales = knowledge.scales
        self.scale_prior = None if scales is None else ScalePrior(scales, len(knowledge.kinds))

    @torch.no_grad()
    def prepare(self) -> None:
        """Start from what the backbone's heads say."""
        self.prior.prepare(self.knowledge)
        heads = (self.knowledge.new_heads or self.knowledge.heads).detach()
        mean_squares = mean_squared_weights(self.knowledge, heads)
        self.mean_squares[: len(mean_squares)] = mean_squares
        last = cast(nn.Linear, self.row_noise[-1])
        nn.init.zeros_(last.bias)
        nn.init.zeros_(last.weight)  # so that it begins with what the backbone says of a row
        if self.scale_prior is not None and self.knowledge.scales is not None:
            usual = self.prior.noise(self.knowledge.kinds)
            noise = None if heads.noise is None else heads.noise / usual
            if noise is not None and self.knowledge.taught is not None:
                noise = noise[self.knowledge.taught]
            self.scale_prior.prepare(self.knowledge.scales, noise)

    @property
    def meta_defaults(self) -> Mapping[str, object]:
        """Few epochs at a high rate: it begins close to where it ends."""
        return usual_training(len(self.knowledge.heads))

    @property
    def dtype(self) -> torch.dtype:
        """The precision of solving: single in training, for speed; otherwise double.

        In double precision neither the order nor the batching of observations shows in the result.
        """
        return torch.float32 if self.training else torch.float64

    # -- what heads read --------------------------------------------------------------------------

    def refine(self, states: RowStates) -> RowStates:
        """Say how noisy each row is, from how much and how surely it is known."""
        inputs = torch.cat([states.code, states.code_std.mean(1, keepdim=True)], dim=1)
        noise = self.row_noise(inputs)[:, 0].clamp(-WIDEST_NOISE, WIDEST_NOISE).exp()
        noise = noise * (1 + states.code_std**2 @ self.doubt.clamp(min=0))
        return replace(states, noise=noise if states.noise is None else noise * states.noise)

    # -- heads from contexts ----------------------------------------------------------------------

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Give each feature the posterior of its head, features of similar shots together."""
        batch = self._without_outliers(batch, states)
        prior_mean = self.prior_mean(batch, self.context_sums(batch, states)).to(self.dtype)
        root, none = self.prior.root(self.dtype), batch.kinds[:0]
        heads, order = [self.heads_of(prior_mean[:0], root.expand(0, -1, -1), none)], [none]  # may be empty
        apart = self.knowledge.likelihood.squashes(batch.kinds) + 2 * (batch.kinds == KindType.BINARY)
        unscaled = batch.unscaled
        apart = apart + 4 * unscaled
        for group in blocks(batch.shots, self.prior.size, apart):
            order.append(group)
            if bool(unscaled[group[0]]):
                heads.append(self._unscaled_heads(batch.take(group), states, prior_mean[group], root))
                continue
            mean, covariance = self._posterior(batch.take(group), states, prior_mean[group], root)
            heads.append(self.heads_of(mean, covariance, batch.kinds[group]))
        return Heads.concatenate(heads).take(torch.argsort(torch.cat(order)))

    @cached_property
    def landmarks(self) -> Landmarks:
        """Known features that tell how extreme rows are."""
        return Landmarks.of(self.knowledge)

    def _without_outliers(self, batch: FeatureBatch, states: RowStates) -> FeatureBatch:
        """Bring back reals that are far off, unless their row is as far off in most known features."""
        if not bool((batch.kinds == KindType.REAL).any() and (self.knowledge.kinds == KindType.REAL).any()):
            return batch
        return tamed(batch, states, self.landmarks, self.knowledge.scales)

    def _posterior(
        self, batch: FeatureBatch, states: RowStates, prior_mean: Tensor, root: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Condition the prior on contexts of one kind of link."""
        cells, kind = batch.cells, batch.kinds[:1]
        identity = not bool(self.knowledge.likelihood.squashes(kind))
        doubting = identity and self.doubts_metadata
        if doubting and (len(batch) == 1 or int(batch.shots.max()) >= self.prior.size):
            return mixed(self._sums(batch, states), *self.prior.parts(prior_mean, batch))
        rows = padded_rows(states.activation, cells).to(root.dtype)
        values = padded(cells.values.to(root.dtype), cells)
        noise = self._noise(states, batch).to(root.dtype)
        if doubting:
            weights, counts = padded(cells.weighted(1 / noise), cells), cells.weighted_counts.double()
            return mixed_few(rows, values, weights, counts, *self.prior.parts(prior_mean, batch))
        if identity:
            return regress(rows, values, padded(cells.weighted(1 / noise), cells), prior_mean, root)
        trust, squeeze = (padded(each, cells) for each in self.trusted(batch, states, root.dtype))
        return classify(rows, values, trust, squeeze, prior_mean, root)

    def trusted(self, batch: FeatureBatch, states: RowStates, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """How much each observation behind a logistic link counts, and what squeezes its link: two of (n,).

        The features are of one kind.
        """
        cells, noise = batch.cells, self._noise(states, batch).to(dtype)
        if int(batch.kinds[0]) == KindType.BINARY:
            return cells.weighted(torch.ones_like(noise)), squeezing(noise)
        # A rating behind the logistic link says more than a binary value: how much more is learned.
        return cells.weighted(self.log_trust.exp() / noise), torch.ones_like(noise)

    def _unscaled_heads(
        self, batch: FeatureBatch, states: RowStates, prior_mean: Tensor, root: Tensor
    ) -> Heads:
        """Heads of reals whose centre and scale are found from their contexts, in units that all share."""
        if self.scale_prior is None or batch.units is None:
            mean, covariance = self._posterior(batch, states, prior_mean, root)
            return self.heads_of(mean, covariance, batch.kinds)
        zero, one = batch.units[:, :1], batch.units[:, 1:]
        lines, centre = batch.cells.lines, self.scale_prior.centre
        shared = zero[lines, 0] + one[lines, 0] * batch.cells.values.double() - centre
        covariance = positive((root @ root.T).double()[:-1, :-1])
        cells, means = replace(batch.cells, values=shared), prior_mean[:, :-1].double()
        weights = cells.weighted(1 / self._noise(states, batch).double())
        found = found_scales(self.scale_prior, cells, states.activation, weights, means, covariance)
        mean, covariance, noise = found
        mean[:, -1] += centre - zero[:, 0]
        # Numbers drawn from a continuum are never equal: where all are, that value is all that they say.
        alike, first = all_equal(batch.cells)
        mean[alike, :-1] = 0.0
        mean[alike, -1] = one[alike, 0] * first[alike].double()
        heads = self.heads_of(mean / one, covariance / one[:, :, None] ** 2, batch.kinds)
        own_noise = self.prior.noise(batch.kinds) * (noise / one[:, 0] ** 2).to(heads.bias.dtype)
        return replace(heads, noise=own_noise)

    @property
    def doubts_metadata(self) -> bool:
        """Whether a context may show that metadata misleads: only where metadata is all there is to doubt."""
        possible = not self.training and self.prior.learned == 0 and bool(self.prior.misleading > 0)
        return possible and self.prior.uses_metadata

    def _sums(self, batch: FeatureBatch, states: RowStates) -> ContextSums:
        """The sums over each context, in double precision."""
        weights = batch.cells.weighted(1 / self._noise(states, batch).double())
        return sums_over(batch.cells, states.activation, weights)

    def heads_of(self, mean: Tensor, covariance: Tensor, kinds: Tensor) -> Heads:
        """Heads with this mean (features, size) and covariance (features, size, size)."""
        noise = self.prior.noise(kinds)
        mean = mean.to(noise.dtype)
        return Heads(mean[:, :-1], mean[:, -1], pack(covariance).to(noise.dtype), noise)

    # -- the prior mean ---------------------------------------------------------------------------

    @abstractmethod
    def prior_mean(self, batch: FeatureBatch, sums: Tensor) -> Tensor:
        """The prior mean of each head, from metadata and ``context_sums``: (features, size)."""

    def metadata_map(self, *, squashed: bool) -> Tensor:
        """How a head without observations depends on a feature's description: (columns, size).

        What is read of all columns together comes on top. ``squashed`` heads are behind a logistic link.
        """
        share = 1.0 if squashed or not self.doubts_metadata else 1 - float(self.prior.misleading)
        return share * self.prior.base[:-1].double()

    def context_sums(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """What the prior mean reads of a context, as a sum over it: (features, 0) here."""
        return states.code.new_zeros(len(batch), 0)

    def _noise(self, states: RowStates, batch: FeatureBatch) -> Tensor:
        """The variance of each observation of the contexts: (n,)."""
        index = batch.cells.index
        noise = self.prior.noise(batch.kinds)[batch.cells.lines]
        if states.noise is not None:
            noise = noise * states.noise.index_select(0, index)
        if states.variance is None:
            return noise
        mean_squares = self.mean_squares.clamp(min=0)
        if len(index) < len(states):  # a few observations must not cost what all rows cost
            return noise + states.variance.index_select(0, index) @ mean_squares
        return noise + (states.variance @ mean_squares).index_select(0, index)

    # -- heads from sufficient statistics ---------------------------------------------------------

    def streams(self, kinds: Tensor) -> Tensor:
        """Ratings of an identity link.

        The logistic link has no sufficient statistics, and which reals are outliers depends on all others.
        """
        return ~self.knowledge.likelihood.squashes(kinds) & (kinds != KindType.REAL)

    def evidence(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """The number of shots, Σ w·d·dᵀ (packed), Σ w·x·d, Σ w·x² and the context sums of each feature."""
        sums = self._sums(batch, states)
        further = self.context_sums(batch, states).double()
        parts = [sums.counts[:, None], pack(sums.total), sums.linear, sums.squares[:, None], further]
        return torch.cat(parts, dim=1)

    def solve(self, evidence: Tensor, batch: FeatureBatch) -> Heads:
        """The heads that these sums imply; of the batch only metadata and kinds are read."""
        size = self.prior.size
        count, kept, further = evidence.tensor_split([1, size * (size + 1) // 2 + size + 2], dim=1)
        sums = sums_of(kept, count[:, 0], size)
        prior_mean = self.prior_mean(batch, further).to(evidence.dtype)
        if self.doubts_metadata:
            mean, covariance = mixed(sums, *self.prior.parts(prior_mean, batch))
            return self.heads_of(mean, covariance, batch.kinds)
        root = self.prior.root(evidence.dtype)
        residual = sums.linear - (sums.total @ prior_mean[:, :, None])[:, :, 0]
        mean, covariance = posterior_of(root.T @ sums.total @ root, residual @ root, prior_mean, root)
        return self.heads_of(mean, covariance, batch.kinds)
