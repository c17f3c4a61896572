"""Make heads in closed form: Bayesian regression on the rows' activations, from a learned prior."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from headstart.adapters.base import AdapterConfig, Reduce, StreamingAdapter, register_adapter
from headstart.adapters.base import OneContext as OneContext
from headstart.adapters.head_prior import HeadPrior, ReferenceFeatures, mean_squared_weights
from headstart.adapters.unknown_scale import ScalePrior, found_scales
from headstart.core.networks import mlp
from headstart.core.types import FeatureBatch, Heads, Knowledge, OneHead, OneState, RowStates, Scales
from headstart.linalg.gaussian import (
    TEMPER,
    ContextSums,
    mixed,
    mixed_few,
    posterior_of,
    regress,
    sums_of,
    sums_over,
)
from headstart.linalg.laplace import FEWEST_WEIGHT, classify, probit_scale
from headstart.linalg.packed import (
    Array,
    cholesky_one,
    pack,
    pack_one,
    positive,
    robust_cholesky_one,
    solve_lower_one,
    solve_upper_one,
)
from headstart.linalg.ragged import all_equal, blocks, pad, pad_rows
from headstart.table.kinds import KindType
from headstart.table.outliers import LEAST_DEVIATION, winsorise, winsorise_one


def winsorise_context(
    batch: FeatureBatch, states: RowStates, landmarks: ReferenceFeatures, scales: Scales | None
) -> FeatureBatch:
    """Bring back reals that are far off, unless their row is as far off in most known features."""
    rows, place = torch.unique(batch.cells.index, return_inverse=True)
    extent = landmarks.extents(states.activation.index_select(0, rows))[place]
    least = torch.full((len(batch),), LEAST_DEVIATION, dtype=torch.float64)
    if batch.units is not None and scales is not None:  # scales that are yet to be found
        smallest = scales.scale.min() / batch.units[:, 1].clamp(min=1e-300)
        least = torch.where(batch.unscaled, LEAST_DEVIATION * smallest, least)
    return batch.observing(winsorise(batch.cells, batch.kinds == KindType.REAL, extent, least))


_MANY = 1000  # features from which networks are trained longer, in larger batches


def default_meta_training(features: int) -> Mapping[str, object]:
    """The settings for a table of so many features: few epochs at a high rate.

    >>> usual_training(100)["epochs"], usual_training(5000)["epochs"]
    (15, 24)
    """
    many = features >= _MANY
    return {
        "epochs": 24 if many else 15,
        "epoch_features": 2000,  # more of them cost time and change little
        # Of many features a large batch, with little of each, teaches more in the same time than a small one.
        "batch_size": 192 if many else 48,
        "max_shots": 32 if many else 128,
        "max_targets": 32 if many else 256,
        "learning_rate": 4e-3 if many else 2e-3,
        "schedule": "cosine",
        "weight_decay": 0.0,
        "decoupled_weight_decay": 0.05 if many else 0.1,
        "max_grad_norm": 1.0,
        # Of many features the last state is as good as the best validated, and less of an accident.
        "patience": None if many else 15,
        "shots": "log",
        "weighting": 0.5,
    }


WIDEST_NOISE = 3.0  # |log| of a row's noise relative to the usual


class ClosedFormAdapter(StreamingAdapter):
    """θ ~ N(prior mean, C) given x_i = θ·[d_i; 1] + noise_i: exact for ratings and reals.

    The prior and the noise, which depends on the row, start from the backbone's own heads and are
    meta-trained through the closed form. Values behind a logistic link get Laplace's approximation.
    Subclasses say what the prior mean is.
    """

    refines: ClassVar[bool] = True
    context_free_prior: ClassVar[bool] = False  # whether the prior mean does not depend on the context
    gives_uncertainty: ClassVar[bool] = True
    sharded: ClassVar[bool] = True
    explainable: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

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
            if noise is not None and self.knowledge.trained_on is not None:
                noise = noise[self.knowledge.trained_on]
            self.scale_prior.prepare(self.knowledge.scales, noise)

    @property
    def meta_defaults(self) -> Mapping[str, object]:
        """Few epochs at a high rate: it begins close to where it ends."""
        return default_meta_training(len(self.knowledge.heads))

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
    def landmarks(self) -> ReferenceFeatures:
        """Known features that tell how extreme rows are."""
        return ReferenceFeatures.of(self.knowledge)

    def _without_outliers(self, batch: FeatureBatch, states: RowStates) -> FeatureBatch:
        """Bring back reals that are far off, unless their row is as far off in most known features."""
        if not bool((batch.kinds == KindType.REAL).any() and (self.knowledge.kinds == KindType.REAL).any()):
            return batch
        return winsorise_context(batch, states, self.landmarks, self.knowledge.scales)

    def _posterior(
        self, batch: FeatureBatch, states: RowStates, prior_mean: Tensor, root: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Condition the prior on contexts of one kind of link."""
        cells, kind = batch.cells, batch.kinds[:1]
        identity = not bool(self.knowledge.likelihood.squashes(kind))
        doubting = identity and self.scales_prior_by_code_variance
        if doubting and (len(batch) == 1 or int(batch.shots.max()) >= self.prior.size):
            return mixed(self._sums(batch, states), *self.prior.parts(prior_mean, batch))
        rows = pad_rows(states.activation, cells).to(root.dtype)
        values = pad(cells.values.to(root.dtype), cells)
        noise = self._noise(states, batch).to(root.dtype)
        if doubting:
            weights, counts = pad(cells.weighted(1 / noise), cells), cells.weighted_counts.double()
            return mixed_few(rows, values, weights, counts, *self.prior.parts(prior_mean, batch))
        if identity:
            return regress(rows, values, pad(cells.weighted(1 / noise), cells), prior_mean, root)
        trust, squeeze = (pad(each, cells) for each in self.observation_weights(batch, states, root.dtype))
        return classify(rows, values, trust, squeeze, prior_mean, root)

    def observation_weights(
        self, batch: FeatureBatch, states: RowStates, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """How much each observation behind a logistic link counts, and what squeezes its link: two of (n,).

        The features are of one kind.
        """
        cells, noise = batch.cells, self._noise(states, batch).to(dtype)
        if int(batch.kinds[0]) == KindType.BINARY:
            return cells.weighted(torch.ones_like(noise)), probit_scale(noise)
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
    def scales_prior_by_code_variance(self) -> bool:
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
        share = (
            1.0 if squashed or not self.scales_prior_by_code_variance else 1 - float(self.prior.misleading)
        )
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
        if self.scales_prior_by_code_variance:
            mean, covariance = mixed(sums, *self.prior.parts(prior_mean, batch))
            return self.heads_of(mean, covariance, batch.kinds)
        root = self.prior.root(evidence.dtype)
        residual = sums.linear - (sums.total @ prior_mean[:, :, None])[:, :, 0]
        mean, covariance = posterior_of(root.T @ sums.total @ root, residual @ root, prior_mean, root)
        return self.heads_of(mean, covariance, batch.kinds)

    # -- one feature or one row -------------------------------------------------------------------

    @property
    def adapts_one(self) -> bool:
        """Whether there is nothing but the closed form to compute."""
        return self.context_free_prior and not self.training

    def adapt_one(
        self, context: OneContext, prior_means: Array, start: Array | None = None
    ) -> tuple[OneHead, Tensor | None]:
        """Compute the head of one feature as ``adapt`` does, and its ``evidence`` if its kind streams."""
        head, sums = one_head(self, context, prior_means, start)
        if sums is None or context.kind == KindType.REAL:
            return head, None
        numbers = np.concatenate([[sums.shots], pack_one(sums.total), sums.linear, [sums.squares]])
        return head, torch.from_numpy(numbers)[None]

    def refine_one(self, state: OneState) -> OneState:
        """Refine the state of one row as ``refine`` does."""
        return refine_one(self, state)

    @torch.no_grad()
    def one_prior_means(self, feature: int | FeatureBatch) -> Array:
        """Return the prior means of one head with and without metadata: (2, size)."""
        if isinstance(feature, int):
            return self.prior.known_means.numpy()[feature].astype(np.float64)  # type: ignore[no-any-return]
        means = torch.cat([self.prior.mean(feature), self.prior.mean_without_metadata(feature)])
        return means.double().numpy()

    def adapt_sharded(self, batch: FeatureBatch, states: RowStates, reduce: Reduce) -> Heads:
        """Compute the heads that ``adapt`` gives, where each process has the cells of its own rows."""
        from headstart.adapters.chn_bayes import adapt_together

        return adapt_together(self, batch, states, reduce(batch.shots.clone()))

    # -- explaining -------------------------------------------------------------------------------

    def metadata_effects(self, batch: FeatureBatch, reference: FeatureBatch) -> Tensor:
        """Return the change of a head without shots due to each number of its metadata: (numbers, size)."""
        described = (
            self.prior.describe(each.metadata, each.kinds)[0, :-1].double() for each in (batch, reference)
        )
        slopes = self.metadata_map(squashed=bool(self.knowledge.likelihood.squashes(batch.kinds)))
        effects = torch.sub(*described)[:, None] * slopes
        numbers = batch.metadata.shape[1]
        return effects[: 3 * numbers].view(3, numbers, -1).sum(0)  # linear and two cubic terms

    @property
    def metadata_gains(self) -> Tensor:
        """The share of the error of predicted heads that each metadata column removes: (columns,)."""
        return self.prior.gains


_BOUNDED_STEPS, _MOST_STEPS = 4, 30

_CLOSE = 1e-11  # steps, in standard deviations of the prior, at which Newton's method has arrived


class OneSums(NamedTuple):
    """``posterior.ContextSums`` of one feature."""

    shots: float
    total: Array  # (size, size)
    linear: Array  # (size,)
    squares: float


class OnePrior(NamedTuple):
    """What the closed form of one head needs of a frozen adapter, brought to numpy once."""

    roots: Array  # (2, size, size): of the prior's covariance, and of the one without metadata
    shares: Array | None  # (2,): of the two, if the context may doubt metadata
    noise: tuple[float, ...]  # by kind
    mean_squares: Array  # (width,)
    layers: tuple[tuple[Array, Array], ...]  # of the network that tells the noise of a row
    doubt: Array  # (code,)

    @classmethod
    def of(cls, adapter: ClosedFormAdapter) -> OnePrior:
        """That of an adapter whose training has ended; it is kept as long as the adapter."""
        if (known := _KNOWN.get(adapter)) is None:
            known = _KNOWN[adapter] = cls._read(adapter)
        return known

    @classmethod
    @torch.no_grad()
    def _read(cls, adapter: ClosedFormAdapter) -> OnePrior:
        prior = adapter.prior
        share = float(prior.misleading)
        return cls(
            torch.stack([prior.root(torch.float64), prior.plain_root.double()]).numpy(),
            np.array([1 - share, share]) if adapter.scales_prior_by_code_variance else None,
            tuple(prior.log_noise.exp().tolist()),
            adapter.mean_squares.clamp(min=0).double().numpy(),
            tuple((each.weight.double().numpy(), each.bias.double().numpy())
                  for each in adapter.row_noise if isinstance(each, nn.Linear)),
            adapter.doubt.clamp(min=0).double().numpy(),
        )  # fmt: skip


_KNOWN: WeakKeyDictionary[ClosedFormAdapter, OnePrior] = WeakKeyDictionary()


def refine_one(adapter: ClosedFormAdapter, state: OneState) -> OneState:
    """``ClosedFormAdapter.refine`` of one row."""
    prior = OnePrior.of(adapter)
    hidden = np.append(state.code, state.code_std.mean())
    for place, (weight, bias) in enumerate(prior.layers):
        hidden = weight @ (np.maximum(hidden, 0) if place else hidden) + bias
    noise = math.exp(min(max(float(hidden[0]), -WIDEST_NOISE), WIDEST_NOISE))
    noise *= 1 + float(state.code_std**2 @ prior.doubt)
    return state._replace(noise=noise if state.noise is None else noise * state.noise)


def one_head(
    adapter: ClosedFormAdapter, context: OneContext, means: Array, start: Array | None
) -> tuple[OneHead, OneSums | None]:
    """The head that ``ClosedFormAdapter.adapt`` would give, and the sums it rests on, if there are such.

    ``means`` (2, size) are the prior means with and without metadata; ``start`` (size,) is a head that is
    near, from which Newton's method starts.
    """
    prior, values = OnePrior.of(adapter), context.values
    if context.kind == KindType.REAL:
        extent = adapter.landmarks.extents(torch.from_numpy(context.activation)).numpy()
        values = winsorise_one(values, extent, LEAST_DEVIATION)
    usual, root = prior.noise[context.kind], prior.roots[0]
    noise = usual if context.noise is None else usual * context.noise
    if context.variance is not None:
        noise = noise + context.variance @ prior.mean_squares
    sums = None
    if context.kind == KindType.BINARY:
        squeezed = _scaled(context.activation, 1 / np.sqrt(1 + math.pi / 8 * noise))
        mean, covariance = classify_one(squeezed, values, means[0], root, start, context.weights)
    else:
        scale, shots = 1 / np.sqrt(np.broadcast_to(noise, values.shape)), float(len(values))
        if context.weights is not None:
            scale, shots = scale * np.sqrt(context.weights), float(context.weights.sum())
        rows, scaled = _scaled(context.activation, scale), scale * values
        sums = OneSums(shots, rows.T @ rows, scaled @ rows, float(scaled @ scaled))
        if prior.shares is None:
            mean, covariance, _ = _conditioned(sums, means[0], root)
        else:
            mean, covariance = mixed_one(sums, means, prior.roots, prior.shares)
    return OneHead(mean[:-1], float(mean[-1]), pack_one(covariance), usual), sums


def _scaled(activation: Array, scale: Array) -> Array:
    """[d; 1] of each row, times its scale: (n, size)."""
    rows = np.empty((len(activation), activation.shape[1] + 1))
    np.multiply(activation, scale[:, None], out=rows[:, :-1])
    rows[:, -1] = scale
    return rows


def _conditioned(sums: OneSums, mean: Array, root: Array) -> tuple[Array, Array, float]:
    """Mean and covariance given sums, as ``posterior.posterior_of``, and the logarithm of the evidence."""
    fitted = sums.total @ mean
    white = root.T @ sums.total @ root
    white.flat[:: len(white) + 1] += 1
    lower = robust_cholesky_one(white)
    gain = solve_lower_one(lower, root.T)  # the posterior covariance is gainᵀ·gain
    half = solve_lower_one(lower, root.T @ (sums.linear - fitted))
    squared = sums.squares - 2 * (sums.linear @ mean) + mean @ fitted
    evidence = -0.5 * float(squared - half @ half) - float(np.log(lower.diagonal()).sum())
    return mean + gain.T @ half, gain.T @ gain, evidence


def mixed_one(sums: OneSums, means: Array, roots: Array, shares: Array) -> tuple[Array, Array]:
    """``posterior.mixed`` of one feature: ``means`` (parts, size), ``roots`` (parts, size, size)."""
    parts = [_conditioned(sums, mean, root) for mean, root in zip(means, roots, strict=True)]
    tempered = np.array([part[2] for part in parts]) * (sums.shots / (sums.shots + TEMPER))
    scores = np.log(shares) + tempered
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    middle = sum(weight * part[0] for weight, part in zip(weights, parts, strict=True))
    covariance = np.zeros_like(sums.total)
    for weight, (mean, own, _) in zip(weights, parts, strict=True):
        apart = mean - middle
        covariance += weight * (own + apart[:, None] * apart)
    return np.asarray(middle), covariance


def classify_one(
    squeezed: Array,
    values: Array,
    prior: Array,
    root: Array,
    start: Array | None,
    weights: Array | None = None,
) -> tuple[Array, Array]:
    """``logistic.classify`` of one feature, until it no longer moves.

    The mode is the only one, so a near ``start`` changes nothing but the number of steps. If Newton's method
    does not arrive from there, it starts anew from the prior, with steps that cannot go too far.
    """
    white, prior_output = squeezed @ root, squeezed @ prior
    begin = np.zeros(len(prior)) if start is None else solve_lower_one(root, start - prior)
    for bounded, first in ((0, begin), (_BOUNDED_STEPS, np.zeros(len(prior)))):
        found = _mode(white, values, prior_output, first, bounded, 1.0 if weights is None else weights)
        if found is not None:
            break
    else:
        raise ArithmeticError("Newton's method does not arrive")
    mean, lower = found
    gain = solve_lower_one(lower, root.T)
    return prior + root @ mean, gain.T @ gain


def _mode(
    white: Array, values: Array, prior_output: Array, mean: Array, bounded: int, weights: Array | float
) -> tuple[Array, Array] | None:
    """The mode and the root of the precision there; None if it is not found."""
    last = np.inf
    for turn in range(_MOST_STEPS):
        output = prior_output + white @ mean
        chance = 0.5 * (1 + np.tanh(output / 2))
        if turn < bounded:
            size = np.maximum(np.abs(output), 1e-3)
            slope = np.tanh(size / 2) / (2 * size)
        else:
            slope = chance * (1 - chance)
        scaled = white * np.sqrt(weights * np.maximum(slope, FEWEST_WEIGHT))[:, None]
        precision = scaled.T @ scaled
        precision.flat[:: len(precision) + 1] += 1
        lower = cholesky_one(precision)
        half = solve_lower_one(lower, (weights * (values - chance)) @ white - mean)
        step = solve_upper_one(lower, half)
        mean = mean + step
        length = float(np.abs(step).max(initial=0.0))
        if length <= _CLOSE * (1 + float(np.abs(mean).max(initial=0.0))):
            return mean, lower
        if turn > bounded and not length < last:  # it goes back and forth, or nowhere
            return None
        last = length
    return None


class BayesConfig(AdapterConfig):
    """Settings of the closed-form head; there is nothing to tune."""

    name: Literal["bayes"] = "bayes"


@register_adapter
class BayesHead(ClosedFormAdapter):
    """Bayesian regression from the prior that metadata gives."""

    config_type: ClassVar[type[AdapterConfig]] = BayesConfig
    context_free_prior: ClassVar[bool] = True

    def __init__(self, config: BayesConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self.requires_grad_(False)  # what the known heads say is all it learns; chn-bayes learns further

    def prior_mean(self, batch: FeatureBatch, sums: Tensor) -> Tensor:  # noqa: ARG002
        """What metadata predicts: (features, size)."""
        return self.prior.mean(batch)
