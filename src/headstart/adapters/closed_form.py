"""Heads in closed form: Bayesian regression on the rows' activations, from a learned prior."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from headstart.adapters.empirical import empirical_doubt
from headstart.adapters.posterior import classify, posterior_of, regress, squeezing
from headstart.adapters.prior import HeadPrior
from headstart.adapters.protocol import AdapterConfig, StreamingAdapter
from headstart.algebra.padding import blocks, padded
from headstart.algebra.sparse import segment_sum
from headstart.algebra.symmetric import pack, squares, unpack
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.networks import mlp
from headstart.core.states import RowStates
from headstart.table.kinds import KindType

_MANY = 1000  # features from which networks are trained longer
_WIDEST_NOISE = 3.0  # |log| of a row's noise relative to the usual


class ClosedFormAdapter(StreamingAdapter):
    """θ ~ N(prior mean, C) given x_i = θ·[d_i; 1] + noise_i: exact for ratings and reals.

    The prior and the noise, which depends on the row, start from the backbone's own heads and are
    meta-trained through the closed form. Values behind a logistic link get Laplace's approximation.
    Subclasses say what the prior mean is.
    """

    refines: ClassVar[bool] = True
    gives_uncertainty: ClassVar[bool] = True

    def __init__(self, config: AdapterConfig, knowledge: Knowledge, learned: int = 0) -> None:
        """``learned`` is the number of learned activations beside the backbone's."""
        super().__init__(config, knowledge)
        width = knowledge.states.code.shape[1]
        self.prior = HeadPrior(knowledge, learned)
        self.log_trust = nn.Parameter(torch.ones(()))  # of a squashed rating, relative to a binary value
        # What an uncertain row adds: the variance of its code, weighted by the squares of usual weights.
        self.doubt = nn.Parameter(torch.zeros(width))
        self.row_noise = mlp([width + 1, 32, 1])

    @torch.no_grad()
    def prepare(self) -> None:
        """Start from what the backbone's heads say."""
        self.prior.prepare(self.knowledge)
        usual = self.prior.noise(self.knowledge.kinds.mode().values)
        self.doubt.copy_(empirical_doubt(self.knowledge) / usual)
        last = cast(nn.Linear, self.row_noise[-1])
        nn.init.zeros_(last.bias)
        last.weight.mul_(0.1)

    @property
    def meta_defaults(self) -> Mapping[str, object]:
        """Few epochs at a high rate: it begins close to where it ends."""
        features = len(self.knowledge.heads)
        many = features >= _MANY
        return {
            "epochs": 30 if many else 15,
            "batch_size": max(48, features // 70),  # so an epoch has about 70 steps, however many there are
            "learning_rate": 2e-3,
            "schedule": "cosine",
            "weight_decay": 0.0,
            "decoupled_weight_decay": 0.05 if many else 0.1,
            "max_grad_norm": 1.0,
            # Of many features the last state is as good as the best validated, and less of an accident.
            "patience": None if many else 15,
            "shots": "log",
            "max_shots": 128,
            "max_targets": 256,
            "weighting": 0.5,
        }

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
        noise = self.row_noise(inputs)[:, 0].clamp(-_WIDEST_NOISE, _WIDEST_NOISE).exp()
        noise = noise * (1 + states.code_std**2 @ self.doubt.clamp(min=0))
        return RowStates(states.code, states.code_std, states.activation, noise)

    # -- heads from contexts ----------------------------------------------------------------------

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Give each feature the posterior of its head, features of similar shots together."""
        prior_mean = self.prior_mean(batch, self.context_sums(batch, states)).to(self.dtype)
        root, none = self.prior.root(self.dtype), batch.kinds[:0]
        heads, order = [self._heads(prior_mean[:0], root.expand(0, -1, -1), none)], [none]  # may be empty
        apart = self.knowledge.likelihood.squashes(batch.kinds) + 2 * (batch.kinds == KindType.BINARY)
        for group in blocks(batch.shots, self.prior.size, apart):
            mean, covariance = self._posterior(batch.take(group), states, prior_mean[group], root)
            heads.append(self._heads(mean, covariance, batch.kinds[group]))
            order.append(group)
        return Heads.concatenate(heads).take(torch.argsort(torch.cat(order)))

    def _posterior(
        self, batch: FeatureBatch, states: RowStates, prior_mean: Tensor, root: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Condition the prior on contexts of one kind of link."""
        cells, kind = batch.cells, batch.kinds[:1]
        activation = states.activation.index_select(0, cells.index).to(root.dtype)
        rows = padded(torch.cat([activation, activation.new_ones(len(activation), 1)], dim=1), cells)
        values = padded(cells.values.to(root.dtype), cells)
        noise = self._noise(states, batch).to(root.dtype)
        if not bool(self.knowledge.likelihood.squashes(kind)):
            return regress(rows, values, padded(1 / noise, cells), prior_mean, root)
        if int(kind) == KindType.BINARY:
            ones, squeeze = padded(torch.ones_like(noise), cells), padded(squeezing(noise), cells)
            return classify(rows, values, ones, squeeze, prior_mean, root)
        # A rating behind the logistic link says more than a binary value: how much more is learned.
        trust = padded(self.log_trust.exp() / noise, cells)
        return classify(rows, values, trust, torch.ones_like(trust), prior_mean, root)

    def _heads(self, mean: Tensor, covariance: Tensor, kinds: Tensor) -> Heads:
        noise = self.prior.noise(kinds)
        mean = mean.to(noise.dtype)
        return Heads(mean[:, :-1], mean[:, -1], pack(covariance).to(noise.dtype), noise)

    # -- the prior mean ---------------------------------------------------------------------------

    @abstractmethod
    def prior_mean(self, batch: FeatureBatch, sums: Tensor) -> Tensor:
        """The prior mean of each head, from metadata and ``context_sums``: (features, size)."""

    def context_sums(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """What the prior mean reads of a context, as a sum over it: (features, 0) here."""
        return states.code.new_zeros(len(batch), 0)

    def _noise(self, states: RowStates, batch: FeatureBatch) -> Tensor:
        """The variance of each observation of the contexts: (n,)."""
        usual = self.prior.noise(batch.kinds)[batch.cells.lines]
        return usual if states.noise is None else usual * states.noise.index_select(0, batch.cells.index)

    # -- heads from sufficient statistics ---------------------------------------------------------

    def streams(self, kinds: Tensor) -> Tensor:
        """Kinds of an identity link: the logistic one has no sufficient statistics."""
        return ~self.knowledge.likelihood.squashes(kinds)

    def evidence(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """Σ w·d·dᵀ (packed), Σ w·x·d and the context sums of each feature, in double precision."""
        cells = batch.cells
        weights = 1 / self._noise(states, batch).double()
        activation = states.activation.index_select(0, cells.index).double()
        rows = torch.cat([activation, activation.new_ones(len(activation), 1)], dim=1)
        linear = rows * (weights * cells.values.double())[:, None]
        each = torch.cat([squares(rows) * weights[:, None], linear], dim=1)
        return torch.cat([segment_sum(each, cells.indptr), self.context_sums(batch, states).double()], dim=1)

    def solve(self, evidence: Tensor, batch: FeatureBatch) -> Heads:
        """The heads that these sums imply; of the batch only metadata and kinds are read."""
        size = self.prior.size
        triangle = size * (size + 1) // 2
        packed, linear, sums = evidence.tensor_split([triangle, triangle + size], dim=1)
        prior_mean = self.prior_mean(batch, sums).to(evidence.dtype)
        root, precision = self.prior.root(evidence.dtype), unpack(packed, size)
        residual = linear - (precision @ prior_mean[:, :, None])[:, :, 0]
        mean, covariance = posterior_of(root.T @ precision @ root, residual @ root, prior_mean, root)
        return self._heads(mean, covariance, batch.kinds)
