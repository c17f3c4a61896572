"""Learn the prior of a head from known heads and the feature's metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from headstart.core.networks import initial_tensor
from headstart.core.types import Description, FeatureBatch, Heads, Knowledge, add_cubic_terms
from headstart.distributed import process_group
from headstart.linalg.packed import append_one, positive, squares, triangle_indices, unpack
from headstart.linalg.ragged import column_sums, gram, line_blocks, sampled_products
from headstart.linalg.ridge import LooRidge, loo_covariance, make_groups, reliability
from headstart.table.kinds import KindType

_USUAL_MISLEADING, _FEATURES_TO_BELIEVE = 0.25, 10.0

_NOISE_OBSERVATIONS = 2**23  # that noise is measured on, at most

_BINARY_NOISE = 0.1  # of the output: a row that now and then answers at random


@dataclass(frozen=True)
class EmpiricalPrior:
    """A regression of known heads on metadata, in which no head is predicted from itself."""

    matrix: Tensor  # (columns, size)
    constant: Tensor  # (size,)
    loo_means: Tensor  # (features, size): what the other features say of each known one
    covariance: Tensor  # (size, size): of heads around these
    regression: LooRidge
    trained_on: Tensor | None = None  # the positions of the features that were regressed; None: all


def empirical_prior(
    knowledge: Knowledge, heads: Heads, description: Description, importance: Tensor | None = None
) -> EmpiricalPrior:
    """Regress heads (w, b) of the backbone's features on what describes these features.

    A feature counts by what its observations say of its head, and by its ``importance`` (features,). Where
    only some features were taught, these alone are regressed, and all are predicted.
    """
    trained_on = knowledge.trained_on
    if trained_on is not None and len(heads) > len(trained_on):
        numbers, some = description.numbers, Description(description.numbers[trained_on], description.groups)
        found = empirical_prior(
            knowledge, heads.take(trained_on), some, None if importance is None else importance[trained_on]
        )
        means = numbers @ found.matrix + found.constant
        means[trained_on] = found.loo_means
        return replace(found, loo_means=means, trained_on=trained_on)
    stacked = stacked_heads(heads)
    size = stacked.shape[1]
    metric = activation_metric(knowledge)
    own, deviation = heads.packed_covariance, stacked - stacked.mean(0)
    prior = deviation.T @ deviation / max(1, len(deviation)) + unpack(own.mean(0), size)
    weights = reliability(own, prior, metric)
    if importance is not None:
        weights = weights * (importance / importance.mean()).double()
    spread = unpack((weights / weights.sum()).to(stacked.dtype) @ own, size)
    regression = LooRidge(make_groups(description.numbers, description.groups))
    regression.choose(description.numbers, stacked, weights, torch.linalg.cholesky(positive(metric)))
    loo_means = regression.fit(description.numbers, stacked, weights)
    matrix, constant = regression.map(description.numbers.shape[1])
    covariance = loo_covariance(stacked - loo_means, spread, weights)
    dtype = stacked.dtype
    return EmpiricalPrior(matrix.to(dtype), constant.to(dtype), loo_means, covariance.to(dtype), regression)


def p_uninformative(heads: Heads, with_metadata: EmpiricalPrior, without: EmpiricalPrior) -> Tensor:
    """The share of features that metadata misleads about: whose heads are likelier without it.

    Expectation maximisation over a mixture of the two priors, each head predicted from the others; a
    quarter is assumed where features are few.
    """
    trained_on: Tensor | slice = slice(None) if without.trained_on is None else without.trained_on
    stacked = stacked_heads(heads)[trained_on].double()

    def log_likelihood(prior: EmpiricalPrior) -> Tensor:
        lower = torch.linalg.cholesky(positive(prior.covariance.double()))
        residual = (stacked - prior.loo_means[trained_on].double()).T
        white: Tensor = torch.linalg.solve_triangular(lower, residual, upper=False)
        determinant: Tensor = lower.diagonal().log().sum()
        return -0.5 * (white**2).sum(0) - determinant

    better = log_likelihood(without) - log_likelihood(with_metadata)
    share: Tensor = torch.tensor(_USUAL_MISLEADING, dtype=torch.float64)
    for _ in range(50):
        belongs = torch.sigmoid(better + torch.logit(share))
        assumed = _FEATURES_TO_BELIEVE * _USUAL_MISLEADING
        share = (belongs.sum() + assumed) / (len(better) + _FEATURES_TO_BELIEVE)
    return share


def activation_metric(knowledge: Knowledge) -> Tensor:
    """What a difference of heads does to predictions, squared: E[(d, 1)(d, 1)ᵀ] over rows, (size, size)."""
    states, width = knowledge.states, knowledge.states.activation.shape[1]
    metric = torch.zeros(width + 1, width + 1, dtype=torch.float64)
    metric[:-1, :-1] = gram(states.activation, states.activation)
    metric[:-1, -1] = metric[-1, :-1] = column_sums(states.activation)
    metric[-1, -1] = len(states)
    _, whole = process_group().span(len(states))
    metric = process_group().all_reduce_sum(metric) / max(1, whole)
    if states.variance is not None:
        metric[:-1, :-1] += torch.diag(
            process_group().all_reduce_sum(column_sums(states.variance)) / max(1, whole)
        )
    return metric


def empirical_noise(knowledge: Knowledge) -> Tensor:
    """How far observations lie from the backbone's own predictions: a variance by kind, (kinds,).

    What is uncertain of rows and heads is part of it: a fit lies closer to what it was fitted to.
    """
    kinds, new = knowledge.kinds, knowledge.new_heads
    counts = squared = torch.zeros(len(kinds), dtype=torch.float64)
    if new is not None and new.noise is not None:
        trained_on: Tensor | slice = slice(None) if knowledge.trained_on is None else knowledge.trained_on
        kinds, counts = kinds[trained_on], knowledge.count_shots()[trained_on].double()
        squared = counts * (new.noise if len(new) == len(kinds) else new.noise[trained_on]).double()
    else:
        for errors, features in _squared_errors(knowledge):
            squared = squared + torch.bincount(features, errors.double(), minlength=len(kinds))
            counts = counts + torch.bincount(features, minlength=len(kinds))
        squared, counts = (
            process_group().all_reduce_sum(squared),
            process_group().all_reduce_sum(counts.double()),
        )
    noise = torch.tensor([_BINARY_NOISE, knowledge.likelihood.config.output_variance, 1.0])
    for kind in set(KindType) - {KindType.BINARY}:
        own = kinds == kind
        if float(counts[own].sum()) > 0:
            noise[kind] = (squared[own].sum() / counts[own].sum()).clamp(min=1e-6)
    return noise


def _squared_errors(knowledge: Knowledge) -> Iterator[tuple[Tensor, Tensor]]:
    """The squared errors of observations and the features of these, in blocks of rows."""
    likelihood, cells, states = knowledge.likelihood, knowledge.cells, knowledge.states
    start, _ = process_group().span(len(cells))
    _, observations = process_group().span(len(cells.index))
    if observations > _NOISE_OBSERVATIONS:  # so many say it well enough
        step = -(-observations // _NOISE_OBSERVATIONS)
        rows = torch.arange(-start % step, len(cells), step)
        cells, states = cells.take(rows), states.take(rows)
    heads = knowledge.heads.detach()
    down, across = triangle_indices(heads.weight.shape[1] + 1, heads.weight.device)
    twice = torch.where(down == across, 1.0, 2.0)
    covariance, mean_squares = heads.packed_covariance, heads.mean_squares()
    for place, block in line_blocks(cells, 8 * (len(heads) + len(down)), per_cell=12 * len(down)):
        own, kinds = states.take(place), knowledge.kinds[block.index]
        logits = sampled_products(own.activation, heads.weight, block) + heads.bias[block.index]
        squared = (likelihood.mean(logits, kinds) - block.values) ** 2
        rows_squared = squares(append_one(own.activation)) * twice
        squared = squared + sampled_products(rows_squared, covariance, block)
        if own.variance is not None:
            squared = squared + sampled_products(own.variance, mean_squares, block)
        if own.noise is not None:
            squared = squared / own.noise[block.lines]
        yield squared, block.index


def mean_squared_weights(knowledge: Knowledge, heads: Heads, features: Tensor | None = None) -> Tensor:
    """E[w²] of the usual head: by what an uncertain activation enters the variance of an output, (width,).

    ``heads`` are those of the backbone's ``features`` at these positions; None: of all.
    """
    counts = knowledge.count_shots() if features is None else knowledge.count_shots()[features]
    counts = counts.to(heads.weight.dtype) + 1e-3
    return (counts / counts.sum()) @ heads.mean_squares()


def stacked_heads(heads: Heads) -> Tensor:
    """(w, b) of each head: (features, size)."""
    return torch.cat([heads.weight, heads.bias[:, None]], dim=1)


_FEATURES, _ROWS = 64, 4096  # at most so many features are looked at, and rows to learn what is usual


@dataclass(frozen=True)
class ReferenceFeatures:
    """Some known real features, and what outputs they usually have."""

    weight: Tensor  # (features, width), in double precision
    bias: Tensor  # (features,)
    middle: Tensor  # (features,): the median output
    deviation: Tensor  # (features,): the median distance from it

    @classmethod
    def of(cls, knowledge: Knowledge) -> ReferenceFeatures:
        """The most observed real features of the backbone."""
        real = torch.nonzero(knowledge.kinds == KindType.REAL)[:, 0]
        order = torch.argsort(knowledge.count_shots()[real], descending=True, stable=True)
        heads = knowledge.heads.take(real[order[:_FEATURES]])
        weight, bias = heads.weight.detach().double(), heads.bias.detach().double()
        start, _ = process_group().span(len(knowledge.states))
        first = process_group().all_gather(knowledge.states.activation[: max(0, _ROWS - start)])
        outputs = torch.addmm(bias, first.double(), weight.T)
        middle = outputs.median(dim=0).values
        return cls(weight, bias, middle, (outputs - middle).abs().median(dim=0).values)

    def extents(self, activation: Tensor) -> Tensor:
        """How many times as far from the middle as usual each row lies in most features: (rows,), at least 1.

        Where a new feature has a value that is far off too, this is what the row is like, and no error.
        """
        own = activation[:, : self.weight.shape[1]].double()  # an adapter may have added some of its own
        distance = (torch.addmm(self.bias, own, self.weight.T) - self.middle).abs()
        relative = distance / self.deviation.clamp(min=1e-12)
        return relative.median(dim=1).values.clamp(min=1.0)


class HeadPrior(nn.Module):
    """θ ~ N(description·base, root·rootᵀ), and the usual noise of an observation by kind.

    A head has ``size`` numbers: one weight per activation of the backbone, one per learned activation
    (``learned``, after those), and the bias. The regression on metadata is honest: each group of columns
    has a strength chosen by leave-one-out, "not at all" included, and a known feature gets the mean that
    the *other* features predict. In the regression for new features, known ones count by their number of
    observations: errors are made on observations. Of a known feature it is also known how much observed
    it is, which says something of it where rows choose what they observe.
    """

    def __init__(self, knowledge: Knowledge, learned: int = 0) -> None:
        super().__init__()
        metadata = knowledge.metadata
        self.learned = learned
        self.size = knowledge.states.activation.shape[1] + learned + 1
        # Where a table mixes kinds, the kind of a feature says as much as any metadata.
        self.tells_kind = bool((knowledge.kinds != knowledge.kinds[:1]).any())
        self.bends: Tensor  # a mask of the columns that may matter other than by a straight line
        self.register_buffer("bends", metadata.new_zeros(metadata.shape[1], dtype=torch.bool))
        columns = self.describe(metadata[:0], knowledge.kinds[:0]).shape[1]
        self.base = nn.Parameter(torch.zeros(columns, self.size))
        self.root_diagonal = nn.Parameter(torch.zeros(self.size))  # logarithms
        self.root_lower = nn.Parameter(torch.zeros(self.size, self.size))
        self.log_noise = nn.Parameter(torch.zeros(len(KindType)))
        # The prior without metadata, which the context may prefer where metadata misleads.
        self.plain_mean: Tensor
        self.register_buffer("plain_mean", torch.zeros(self.size))
        self.plain_root: Tensor
        self.register_buffer("plain_root", torch.eye(self.size))
        self.misleading: Tensor  # share of features, before any is observed, whose metadata misleads
        self.register_buffer("misleading", torch.tensor(0.25, dtype=torch.float64))
        # What the other features predict of each known one: as metadata says, and without it.
        self.known_means: Tensor
        sizes = len(knowledge.kinds), 2, self.size
        self.register_buffer("known_means", initial_tensor(lambda: torch.zeros(sizes), *sizes))
        self.gains: Tensor  # the share of the error of predicted heads that each metadata column removes
        self.register_buffer("gains", torch.zeros(len(knowledge.widths)))
        # By how much the others' prediction of each known feature differs from the fitted one. Only
        # training asks for it, of a prior that was prepared.
        self.corrections: Tensor
        self.register_buffer("corrections", torch.zeros(0, self.size), persistent=False)

    @torch.no_grad()
    def prepare(self, knowledge: Knowledge) -> None:
        """Start from the heads of known features and the errors of their predictions."""
        heads = (knowledge.new_heads or knowledge.heads).detach()
        description = Description.of(knowledge.metadata, knowledge.widths)
        self.bends.copy_(description.nonlinear_columns())
        description = description.with_cubic_terms(self.bends)
        if self.tells_kind:
            one_hot = nn.functional.one_hot(knowledge.kinds, len(KindType))
            description = description.with_more(one_hot.to(description.numbers.dtype))
        counts = knowledge.count_shots()
        prior = empirical_prior(knowledge, heads, description, counts)
        self.base.copy_(self._widened(torch.cat([prior.matrix, prior.constant[None]])))
        fitted = self.describe(knowledge.metadata, knowledge.kinds) @ self.base
        self.corrections = (self._widened(prior.loo_means) - fitted).to(fitted.dtype)
        self.gains.copy_(_column_gains(prior.regression, knowledge.widths, self.bends))
        noise = empirical_noise(knowledge)
        usual = float(noise[int(knowledge.kinds.mode().values)])
        root = self._root_of(prior.covariance, usual)
        self.root_diagonal.copy_(root.diagonal().log())
        self.root_lower.copy_(root.tril(-1))
        self.log_noise.copy_(noise.log())
        none = Description(knowledge.metadata[:, :0], [])
        plain = empirical_prior(knowledge, heads, none, counts)
        for part, known in enumerate((description, none)):
            popular = known.with_more(counts.log1p()[:, None])
            self.known_means[:, part] = self._widened(empirical_prior(knowledge, heads, popular).loo_means)
        self.misleading.copy_(p_uninformative(heads, prior, plain))
        self.plain_mean.copy_(self._widened(plain.constant[None])[0])
        self.plain_root.copy_(self._root_of(plain.covariance, usual))

    @property
    def uses_metadata(self) -> bool:
        """Whether any metadata column, or the kind, says something of heads."""
        return bool((self.base[:-1] != 0).any())

    def describe(self, metadata: Tensor, kinds: Tensor) -> Tensor:
        """Metadata, its bends, the kind where a table mixes kinds, and a constant: (features, columns)."""
        parts = [add_cubic_terms(metadata, self.bends)]
        if self.tells_kind:
            parts.append(nn.functional.one_hot(kinds, len(KindType)).to(metadata.dtype))
        return torch.cat([*parts, metadata.new_ones(len(metadata), 1)], dim=1)

    def mean(self, batch: FeatureBatch) -> Tensor:
        """The prior mean of each head: (features, size)."""
        mean = self.describe(batch.metadata, batch.kinds) @ self.base
        if batch.positions is not None:
            mean = mean + self.corrections[batch.positions]
        return self._as_known(mean, batch, 0)

    def parts(self, mean: Tensor, batch: FeatureBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The prior with metadata, of this mean (features, size), and the one without: see ``mixed``.

        Returned are means (features, 2, size), roots of covariances (2, size, size) and shares (2,).
        """
        means = torch.stack([mean.double(), self.mean_without_metadata(batch).double()], dim=1)
        roots = torch.stack([self.root(torch.float64), self.plain_root.double()])
        return means, roots, torch.stack([1 - self.misleading, self.misleading])

    def mean_without_metadata(self, batch: FeatureBatch) -> Tensor:
        """The prior mean of each head if its metadata says nothing: (features, size)."""
        return self._as_known(self.plain_mean.expand(len(batch), -1), batch, 1)

    def _as_known(self, mean: Tensor, batch: FeatureBatch, part: int) -> Tensor:
        if batch.known is None:
            return mean
        known = self.known_means[batch.known.clamp(min=0), part].to(mean.dtype)
        return torch.where((batch.known >= 0)[:, None], known, mean)

    def root(self, dtype: torch.dtype) -> Tensor:
        """The lower triangular root of a head's prior covariance: (size, size)."""
        return self.root_lower.to(dtype).tril(-1) + torch.diag(self.root_diagonal.to(dtype).exp())

    def noise(self, kinds: Tensor) -> Tensor:
        """The usual variance of an observation of these kinds: like ``kinds``."""
        return self.log_noise.exp()[kinds]

    def _root_of(self, covariance: Tensor, noise: float) -> Tensor:
        """The root of a covariance of heads, with variances for the learned activations: (size, size)."""
        added = torch.zeros(self.size)
        added[self.size - 1 - self.learned : self.size - 1] = 0.5 * noise
        widened = self._widened(self._widened(covariance).T)
        root: Tensor = torch.linalg.cholesky(positive(widened.double() + torch.diag(added)))
        return root.to(covariance.dtype)

    def _widened(self, matrix: Tensor) -> Tensor:
        """Put zeros for the learned activations before the last column, the bias."""
        more = matrix.new_zeros(len(matrix), self.size - matrix.shape[1])
        return torch.cat([matrix[:, :-1], more, matrix[:, -1:]], dim=1)


def _column_gains(regression: LooRidge, widths: tuple[int, ...], bends: Tensor) -> Tensor:
    """What each metadata column contributes, its bends included: (metadata columns,).

    Where several columns share one strength, each is given an equal part of what they remove.
    """
    owner = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths, dtype=torch.int64))
    columns = [*range(len(widths)), *owner[bends].tolist()]  # of each group that was described
    gains = torch.zeros(len(widths))
    for members, gain, strength in zip(
        regression.members, regression.gains.tolist(), regression.strengths.tolist(), strict=True
    ):
        for member in members if strength > 0 else []:
            if member < len(columns):  # the last group may be that of kinds
                gains[columns[member]] += gain / len(members)
    return gains
