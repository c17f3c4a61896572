"""Prior distribution of a head, estimated from known heads and the metadata of their features.

The closed-form adapters condition it on the context of a new feature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headstart.core.clicks import ZERO_WEIGHT, estimate_exposure, is_click, usual_count, weigh_clicks
from headstart.core.networks import initial_tensor
from headstart.core.types import (
    SPLINE_TERMS,
    Description,
    FeatureBatch,
    Heads,
    Knowledge,
    RowStates,
    add_cubic_terms,
    spline_terms,
)
from headstart.linalg.array_ops import A, Array, namespace, to_dtype_of, to_library_of
from headstart.linalg.packed import append_one, make_positive_definite, outer_products, trace_weights, unpack
from headstart.linalg.ragged import column_sums, line_blocks, sampled_products
from headstart.linalg.ridge import LooRidge, make_groups, predict_heads, reliability
from headstart.linalg.row_sharded import (
    gather_first_rows,
    global_count,
    global_start,
    global_sum,
    second_moment,
)
from headstart.table.kinds import KindType
from headstart.table.margins import VALUE_TYPES

_PRIOR_SHARE, _PRIOR_FEATURES = 0.25, 10.0  # prior mean and pseudo-count of ``p_uninformative``

_NOISE_OBSERVATIONS = 2**23  # observations from which noise is estimated, at most

_BINARY_NOISE = 0.1  # variance of the output of a binary feature: rows that sometimes answer at random

_REFERENCE_FEATURES, _REFERENCE_ROWS = 64, 4096  # of ``ReferenceFeatures``, at most

# Of the variance of a row's activation, added to its square: factors that no row has need a small weight.
_ROW_VARIANCE_SHARE = 0.05

_MEDIAN_SQUARE = 0.45493642311957283  # of a standard normal variable

_LANDMARKS = 256  # features at which kernels are evaluated, at most

_MAX_KERNELS = 8  # tables of more metadata columns have no kernels

_LEAST_KERNEL_WIDTH = 3  # of a metadata column with a kernel: numbers have splines, which extrapolate better

_KERNEL_LENGTH_SCALE = 0.5  # relative to the median distance of two features

_KERNEL_JITTER = 1e-4  # added to the kernel of a landmark with itself


@dataclass(frozen=True)
class EmpiricalPrior:
    """Ridge regression of known heads on metadata, with leave-one-out predictions."""

    matrix: Tensor  # (columns, size)
    constant: Tensor  # (size,)
    loo_means: Tensor  # (features, size): each known head predicted from the other features
    covariance: Tensor  # (size, size): of heads around ``loo_means``
    regression: LooRidge
    cross_fitted: Tensor | None = None  # the positions of the features in the regression; None: all
    features: float = 1.0  # with equal weights, whose mean would be as certain


def empirical_prior(
    knowledge: Knowledge, heads: Heads, description: Description, importance: Tensor | None = None
) -> EmpiricalPrior:
    """Regress the heads (w, b) of the backbone's features on their ``description``.

    The weight of a feature is the reliability of its head, times its ``importance`` (features,). If heads
    were cross-fitted for some features only, the regression uses these and predicts all.
    """
    cross_fitted = knowledge.cross_fitted
    if cross_fitted is not None and len(heads) > len(cross_fitted):
        part = empirical_prior(
            knowledge,
            heads.take(cross_fitted),
            Description(description.numbers[cross_fitted], description.groups),
            None if importance is None else importance[cross_fitted],
        )
        means = description.numbers @ part.matrix + part.constant
        means[cross_fitted] = part.loo_means
        return replace(part, loo_means=means, cross_fitted=cross_fitted)
    stacked = heads.stacked
    size = stacked.shape[1]
    metric = activation_metric(knowledge.states)
    covariances, deviation = heads.packed_covariance, stacked - stacked.mean(0)
    prior = deviation.T @ deviation / max(1, len(deviation)) + unpack(covariances.mean(0), size)
    weights = reliability(covariances, prior, metric)
    if importance is not None:
        weights = weights * (importance / importance.mean()).double()
    regression = LooRidge(make_groups(description.numbers, description.groups))
    regression.choose(description.numbers, stacked, weights, metric)
    loo_means, covariance = predict_heads(regression, description.numbers, stacked, covariances, weights)
    matrix, constant = regression.linear_map(description.numbers.shape[1])
    dtype = stacked.dtype
    return EmpiricalPrior(
        matrix.to(dtype),
        constant.to(dtype),
        loo_means,
        covariance.to(dtype),
        regression,
        features=float(weights.sum() ** 2 / (weights**2).sum()),
    )


def p_uninformative(heads: Heads, with_metadata: EmpiricalPrior, without: EmpiricalPrior) -> Tensor:
    """Estimate the fraction of features whose heads the prior without metadata predicts better.

    Expectation maximisation fits a mixture of the two priors to the leave-one-out likelihoods of known heads.
    With few features the estimate is close to 1/4.
    """
    cross_fitted: Tensor | slice = slice(None) if without.cross_fitted is None else without.cross_fitted
    stacked = heads.stacked[cross_fitted].double()

    def log_likelihood(prior: EmpiricalPrior) -> Tensor:
        lower = torch.linalg.cholesky(make_positive_definite(prior.covariance.double()))
        residual = (stacked - prior.loo_means[cross_fitted].double()).T
        white: Tensor = torch.linalg.solve_triangular(lower, residual, upper=False)
        determinant: Tensor = lower.diagonal().log().sum()
        return -0.5 * (white**2).sum(0) - determinant

    log_ratios = log_likelihood(without) - log_likelihood(with_metadata)
    share: Tensor = torch.tensor(_PRIOR_SHARE, dtype=torch.float64)
    for _ in range(50):
        probabilities = torch.sigmoid(log_ratios + torch.logit(share))
        expected = probabilities.sum() + _PRIOR_FEATURES * _PRIOR_SHARE
        share = expected / (len(log_ratios) + _PRIOR_FEATURES)
    return share


def activation_metric(states: RowStates) -> Tensor:
    """Compute E[(d, 1)(d, 1)ᵀ] over the rows of all processes, including their uncertainty: (size, size).

    It turns a difference of heads into the mean squared difference of their predictions.
    """
    metric = second_moment(states.activation)
    if states.variance is not None:
        variances = global_sum(column_sums(states.variance)) / max(1, global_count(len(states)))
        metric[:-1, :-1] += torch.diag(variances)
    return metric


def click_zeros(states: RowStates, *, shared: bool = True) -> Tensor:
    """Return α·Σ e·E[(d, 1)(d, 1)ᵀ] over all rows, the zeros of an exposed click feature: (size, size).

    If ``shared``, the rows are divided among the processes.
    """
    rows = append_one(states.activation.double())
    exposure = torch.ones_like(rows[:, 0]) if states.exposure is None else states.exposure.double()
    zeros = rows.T @ (exposure[:, None] * rows)
    if states.variance is not None:
        zeros[:-1, :-1] += torch.diag(exposure @ states.variance.double())
    return ZERO_WEIGHT * (global_sum(zeros) if shared else zeros)


def usual_feature_clicks(knowledge: Knowledge) -> Tensor:
    """Return the usual number of clicks of a feature, weighted by confidence: ()."""
    cells = weigh_clicks(knowledge.cells, knowledge.kinds)
    counts = global_sum(torch.bincount(cells.index, cells.weights, minlength=cells.width).double())
    return usual_count(counts[is_click(knowledge.kinds)], shared=False)


def click_noise(knowledge: Knowledge) -> float:
    """Return the variance of a click: the share of clicks in the weights of the cells of a usual feature.

    Clicks arrive as a Poisson process, so the variance of the sum Σ d over the clicks of a feature is Σ d·dᵀ
    over its clicks. In the regression it is the variance of a click times the sum over clicks and zeros.
    """
    usual = float(usual_feature_clicks(knowledge))
    zeros = ZERO_WEIGHT * global_count(len(knowledge.states))
    return usual / (usual + zeros)


def empirical_noise(knowledge: Knowledge) -> Tensor:
    """Estimate the variance of observations of each kind around the backbone's predictions: (kinds,).

    The variances of rows and heads are added, because residuals of a fit are smaller than the noise.
    """
    kinds, new = knowledge.kinds, knowledge.new_heads
    counts = squared = torch.zeros(len(kinds), dtype=torch.float64)
    if new is not None and new.noise is not None:
        cross_fitted: Tensor | slice = (
            slice(None) if knowledge.cross_fitted is None else knowledge.cross_fitted
        )
        kinds, counts = kinds[cross_fitted], knowledge.count_shots()[cross_fitted].double()
        squared = counts * (new.noise if len(new) == len(kinds) else new.noise[cross_fitted]).double()
    else:
        for errors, features in _squared_errors(knowledge):
            squared = squared + torch.bincount(features, errors.double(), minlength=len(kinds))
            counts = counts + torch.bincount(features, minlength=len(kinds))
        squared, counts = global_sum(squared), global_sum(counts.double())
    variances = [_BINARY_NOISE, knowledge.likelihood.config.output_variance, 1.0]
    if bool(is_click(knowledge.kinds).any()):
        variances.append(click_noise(knowledge))
    noise = torch.tensor(variances)
    for kind in (KindType.RATING, KindType.REAL):
        same_kind = kinds == kind
        if float(counts[same_kind].sum()) > 0:
            noise[kind] = (squared[same_kind].sum() / counts[same_kind].sum()).clamp(min=1e-6)
    return noise


def _squared_errors(knowledge: Knowledge) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the expected squared errors (n,) of observations and their features (n,), by blocks of rows."""
    likelihood, cells, states = knowledge.likelihood, knowledge.cells, knowledge.states
    observations = global_count(len(cells.index))
    first_row = global_start(len(cells))
    if observations > _NOISE_OBSERVATIONS:  # take every n-th row
        step = -(-observations // _NOISE_OBSERVATIONS)
        rows = torch.arange(-first_row % step, len(cells), step)
        cells, states = cells.take(rows), states.take(rows)
    heads = knowledge.heads.detach()
    twice = trace_weights(heads.weight.shape[1] + 1, heads.weight.device, torch.float32)
    covariance, mean_squares = heads.packed_covariance, heads.mean_squares()
    for rows_of_block, block in line_blocks(cells, 8 * (len(heads) + len(twice)), per_cell=12 * len(twice)):
        state, kinds = states.take(rows_of_block), knowledge.kinds[block.index]
        logits = sampled_products(state.activation, heads.weight, block) + heads.bias[block.index]
        squared = (likelihood.mean(logits, kinds) - block.values) ** 2
        rows_squared = outer_products(append_one(state.activation)) * twice
        squared = squared + sampled_products(rows_squared, covariance, block)
        if state.variance is not None:
            squared = squared + sampled_products(state.variance, mean_squares, block)
        if state.noise is not None:
            squared = squared / state.noise[block.lines]
        yield squared, block.index


def mean_squared_weights(knowledge: Knowledge, heads: Heads, features: Tensor | None = None) -> Tensor:
    """Compute the mean of E[w²] over heads, weighted by their observations: (width,).

    It turns the variance of an activation into the variance of an output. ``heads`` are the heads of the
    backbone's features at the positions ``features``, by default of all.
    """
    counts = knowledge.count_shots() if features is None else knowledge.count_shots()[features]
    counts = counts.to(heads.weight.dtype) + 1e-3
    return (counts / counts.sum()) @ heads.mean_squares()


@dataclass(frozen=True)
class ReferenceFeatures:
    """The most observed real features, with the median and the deviation of their outputs.

    They measure how extreme a row is, in order to tell extreme rows from errors in the data.
    """

    weight: Tensor  # (features, width), in double precision
    bias: Tensor  # (features,)
    middle: Tensor  # (features,): the median output
    deviation: Tensor  # (features,): the median absolute deviation from it

    @classmethod
    def of(cls, knowledge: Knowledge) -> ReferenceFeatures:
        """Select reference features among those of the backbone."""
        real = torch.nonzero(knowledge.kinds == KindType.REAL)[:, 0]
        order = torch.argsort(knowledge.count_shots()[real], descending=True, stable=True)
        heads = knowledge.heads.take(real[order[:_REFERENCE_FEATURES]])
        weight, bias = heads.weight.detach().double(), heads.bias.detach().double()
        activation = gather_first_rows(knowledge.states.activation, _REFERENCE_ROWS)
        outputs = torch.addmm(bias, activation.double(), weight.T)
        middle = outputs.median(dim=0).values
        return cls(weight, bias, middle, (outputs - middle).abs().median(dim=0).values)

    def row_scales(self, activation: Tensor) -> Tensor:
        """Compute the median over features of each row's |output − middle| / deviation, at least 1: (rows,).

        If it is large, an extreme value of a new feature is no error: the row is extreme. Without features
        no row is.
        """
        if len(self.weight) == 0:
            return activation.new_ones(len(activation), dtype=torch.float64)
        activation = activation[:, : self.weight.shape[1]].double()  # without an adapter's learned ones
        distance = (torch.addmm(self.bias, activation, self.weight.T) - self.middle).abs()
        relative = distance / self.deviation.clamp(min=1e-12)
        return relative.median(dim=1).values.clamp(min=1.0)


class HeadPrior(nn.Module):
    """Prior θ ~ N(description·base, root·rootᵀ) of heads, and the noise of observations by kind.

    A head has ``size`` parameters: a weight for each activation of the backbone, a weight for each of the
    ``learned`` activations of an adapter, and the bias.

    Each group of metadata columns has a ridge penalty chosen by leave-one-out cross-validation, which can
    exclude the group. The prior mean of a known feature is its leave-one-out prediction, which also uses the
    number of its observations: popular features differ from others. The regression for new features weights
    known features by their number of observations.
    """

    def __init__(self, knowledge: Knowledge, learned: int = 0) -> None:
        super().__init__()
        metadata = knowledge.metadata
        self.learned = learned
        self.size = knowledge.states.activation.shape[1] + learned + 1
        self.types = VALUE_TYPES + bool(is_click(knowledge.kinds).any())  # the number of types of kinds
        # In a table of several kinds, the kind of a feature is as informative as metadata.
        self.encodes_kind = bool((knowledge.kinds != knowledge.kinds[:1]).any())
        self.nonlinear: Tensor  # a mask of the metadata columns with cubic terms
        self.register_buffer("nonlinear", metadata.new_zeros(metadata.shape[1], dtype=torch.bool))
        # The columns with spline terms.
        self.numeric = Description.of(metadata[:0], knowledge.widths).numeric_columns()
        self.kernel = MetadataKernel(metadata, knowledge.widths)
        # The last arguments of ``describe`` in numpy, and its result.
        self._last_description: tuple[Any, Any, Any] | None = None
        columns = self.describe(metadata[:0], knowledge.kinds[:0]).shape[1]
        # Not meta-trained: the prior mean of a known feature would no longer be a leave-one-out prediction.
        self.base: Tensor
        self.register_buffer("base", torch.zeros(columns, self.size))
        self.root_diagonal = nn.Parameter(torch.zeros(self.size))  # logarithms
        self.root_lower = nn.Parameter(torch.zeros(self.size, self.size))
        self.log_noise = nn.Parameter(torch.zeros(self.types))
        # The prior without metadata, for features whose metadata are uninformative.
        self.plain_mean: Tensor
        self.register_buffer("plain_mean", torch.zeros(self.size))
        self.plain_root: Tensor
        self.register_buffer("plain_root", torch.eye(self.size))
        self.p_uninformative: Tensor  # (): prior probability that metadata are uninformative
        self.register_buffer("p_uninformative", torch.tensor(0.25, dtype=torch.float64))
        # (features, 2, size − learned): the leave-one-out means of known features, with and without metadata.
        self.known_means: Tensor
        sizes = len(knowledge.kinds), 2, self.size - learned
        self.register_buffer("known_means", initial_tensor(lambda: torch.zeros(sizes), *sizes))
        self.gains: Tensor  # the fraction of the error of predicted heads that each metadata column explains
        self.register_buffer("gains", torch.zeros(len(knowledge.widths)))
        self.linear_gains: Tensor  # the same without the kernels, used in training only
        self.register_buffer("linear_gains", torch.zeros(len(knowledge.widths)), persistent=False)
        clicks = bool(is_click(knowledge.kinds).any())
        self.zeros: Tensor | None  # (size, size): see ``click_zeros``; None without clicks
        zeros = torch.zeros(self.size, self.size, dtype=torch.float64) if clicks else None
        self.register_buffer("zeros", zeros)
        self.usual_clicks: Tensor | None  # (): of a known click feature
        self.register_buffer("usual_clicks", torch.ones((), dtype=torch.float64) if clicks else None)
        # (features, size): leave-one-out predictions minus fitted values, used in training only.
        self.corrections: Tensor
        self.register_buffer("corrections", torch.zeros(0, self.size), persistent=False)
        # (size,): the shrinkage of the mean head, which the judge can add.
        self.mean_change: Tensor
        self.register_buffer("mean_change", torch.zeros(self.size), persistent=False)

    @torch.no_grad()
    def prepare(self, knowledge: Knowledge) -> None:
        """Estimate the prior from the heads of known features, and the noise from their residuals."""
        heads = (knowledge.new_heads or knowledge.heads).detach()
        description = Description.of(knowledge.metadata, knowledge.widths)
        self.nonlinear.copy_(description.nonlinear_columns())
        description = description.with_nonlinear_terms(self.nonlinear)
        if self.encodes_kind:
            one_hot = nn.functional.one_hot(knowledge.kinds, self.types)
            description = description.with_group(one_hot.to(description.numbers.dtype))
        self.kernel.prepare(knowledge.metadata)
        kernels, owners = self.kernel.groups(description.numbers.shape[1])
        terms = self.kernel.terms(knowledge.metadata).to(description.numbers.dtype)
        numbers = torch.cat([description.numbers, terms], 1)
        description = Description(numbers, [*description.groups, *kernels])
        counts = knowledge.count_shots()
        self._prepare_clicks(knowledge)
        prior = empirical_prior(knowledge, heads, description, counts)
        kernel_coefficients = prior.matrix[len(prior.matrix) - self.kernel.width :]
        kernel_coefficients.copy_(self.kernel.use(kernel_coefficients))
        self.base.copy_(self.pad_learned(torch.cat([prior.matrix, prior.constant[None]])))
        fitted = self.describe(knowledge.metadata, knowledge.kinds) @ self.base
        self.corrections = (self.pad_learned(prior.loo_means) - fitted).to(fitted.dtype)
        self.gains.copy_(column_gains(prior.regression, knowledge.widths, self.nonlinear))
        self.linear_gains = self.gains.clone()
        first = len(description.groups) - len(kernels)
        self.gains += kernel_gains(prior.regression, first, owners, len(self.gains))
        noise = empirical_noise(knowledge)
        most_frequent = float(noise[int(knowledge.kinds.mode().values)])
        root = self._covariance_root(prior.covariance, most_frequent)
        self.root_diagonal.copy_(root.diagonal().log())
        self.root_lower.copy_(root.tril(-1))
        self.log_noise.copy_(noise.log())
        empty = Description(knowledge.metadata[:, :0], [])
        plain = empirical_prior(knowledge, heads, empty, counts)
        for position, columns in enumerate((description, empty)):
            with_counts = columns.with_group(counts.log1p()[:, None])
            loo_means = empirical_prior(knowledge, heads, with_counts).loo_means
            self.known_means[:, position] = loo_means
        self.p_uninformative.copy_(p_uninformative(heads, prior, plain))
        self.plain_mean.copy_(self.pad_learned(plain.constant[None])[0])
        self.plain_root.copy_(self._covariance_root(plain.covariance, most_frequent))
        change = mean_head_change(knowledge, plain.constant, plain.covariance, plain.features)
        self.mean_change.copy_(self.pad_learned(change[None])[0])

    @torch.no_grad()
    def shrink_mean_head(self) -> None:
        """Add ``mean_change`` to the prior mean of new heads, with metadata and without, once."""
        self.base[-1] += self.mean_change
        self.plain_mean += self.mean_change
        self.mean_change.zero_()

    def _prepare_clicks(self, knowledge: Knowledge) -> None:
        """Sum the second moments of all rows, for the zeros of click features, and count usual clicks."""
        if self.zeros is None or self.usual_clicks is None:
            return
        zeros = self.pad_learned(click_zeros(knowledge.states))
        self.zeros.copy_(self.pad_learned(zeros.T.contiguous()).T)
        self.usual_clicks.copy_(usual_feature_clicks(knowledge))

    def exposure(self, batch: FeatureBatch, counts: Tensor) -> Tensor:
        """Return the exposure of each click feature, given its ``counts`` of clicks: (features,)."""
        usual = torch.ones((), dtype=torch.float64) if self.usual_clicks is None else self.usual_clicks
        estimated = estimate_exposure(counts.double(), usual)
        if batch.exposure is not None:
            estimated = torch.where(batch.exposure.isnan(), estimated, batch.exposure)
        known = torch.zeros_like(estimated, dtype=torch.bool) if batch.known is None else batch.known >= 0
        return torch.where(known, 1.0, estimated)

    @property
    def uses_metadata(self) -> bool:
        """Whether the prior mean depends on any metadata column or on the kind."""
        return bool((self.base[:-1] != 0).any())

    def describe(self, metadata: A, kinds: A) -> A:
        """Return the columns of the regression: (…, columns).

        They are metadata, cubic and spline terms, the kind in a table of several kinds, the similarities
        of kernels, and a constant. In numpy, ``metadata`` (…, width) and ``kinds`` (…) describe one
        feature or a stack of features.
        """
        last = self._last_description  # the parts of one head are computed from the same description
        if last is not None and _are_same(last, metadata, kinds):
            return last[2].reshape(*metadata.shape[:-1], -1)  # type: ignore[no-any-return]
        xp = namespace(metadata)
        columns = [add_cubic_terms(metadata, to_library_of(self.nonlinear, metadata))]
        if len(self.numeric):
            splines = spline_terms(metadata[..., to_library_of(self.numeric, metadata)])
            columns.append(splines.reshape(*metadata.shape[:-1], len(self.numeric) * SPLINE_TERMS))
        if self.encodes_kind:
            columns.append(xp.stack([kinds == type_ for type_ in range(self.types)], -1))
        if self.kernel.width:
            columns.append(self.kernel.similarities(metadata))
        columns.append(xp.ones_like(kinds[..., None], dtype=metadata.dtype))
        joined: A = xp.concatenate(columns, -1)
        described = to_dtype_of(joined, metadata)
        if isinstance(metadata, np.ndarray):
            self._last_description = metadata, kinds, described
        return described

    def readable_columns(self, knowledge: Knowledge) -> Tensor:
        """Return the mask of the columns of ``describe`` that networks may read: (columns,).

        The mask ends before the terms of kernels and the constant, which networks never read. A metadata
        column is readable if it explains more of the error of predicted heads than as many random numbers
        would explain in a regression without penalty, the number of its encoded columns divided by that of
        features. Networks would fit the others, such as long vectors of texts, to chance; heads depend on
        these, on spline terms and on kernels through the regression only. The kind is readable.
        """
        widths = torch.tensor(knowledge.widths, dtype=torch.int64)
        regressed = knowledge.kinds if knowledge.cross_fitted is None else knowledge.cross_fitted
        readable = torch.ones(len(self.base) - 1 - self.kernel.width, dtype=torch.bool)
        proved = torch.repeat_interleave(self.linear_gains > widths / len(regressed), widths)
        readable[: 3 * len(proved)] = proved.repeat(3)  # the numbers and their two cubic terms
        splines = readable[3 * self.nonlinear.numel() :][: SPLINE_TERMS * len(self.numeric)]
        splines.fill_(False)  # a number has too many of them
        return readable

    def means(self, metadata: Array, kinds: Array, known: Array) -> Array:
        """Return the prior means of heads with and without metadata, in numpy: (…, 2, size).

        ``metadata`` (…, width) and ``kinds`` (…) describe the features; ``known`` (…) are their positions in
        the backbone, negative for new features.
        """
        means, in_backbone = np.zeros((*known.shape, 2, self.size)), known >= 0
        if in_backbone.any():
            narrow = self.known_means.numpy()[known]
            means[..., : narrow.shape[-1] - 1], means[..., -1] = narrow[..., :-1], narrow[..., -1]
        if not in_backbone.all():
            new = [self.describe(metadata, kinds) @ self.base.detach().numpy(), self.plain_mean.numpy()]
            new_means = np.stack(np.broadcast_arrays(*new), -2)
            means = np.where(in_backbone[..., None, None], means, new_means)
        return means

    def mean(self, batch: FeatureBatch, description: Tensor | None = None) -> Tensor:
        """Compute the prior mean of each head: (features, size).

        ``description`` (features, columns) is the result of ``describe``, if it is known already.
        """
        if description is None:
            description = self.describe(batch.metadata, batch.kinds)
        mean = description @ self.base
        if batch.positions is not None:
            mean = mean + self.corrections[batch.positions]
        return self._replace_known(mean, batch, 0)

    def parts(self, mean: Tensor, batch: FeatureBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the two priors, with metadata (of the given ``mean``) and without.

        Returned are means (features, 2, size), roots of covariances (2, size, size) and probabilities (2,).
        """
        means = torch.stack([mean.double(), self.mean_without_metadata(batch).double()], dim=1)
        roots = torch.stack([self.root(torch.float64), self.plain_root.double()])
        return means, roots, torch.stack([1 - self.p_uninformative, self.p_uninformative])

    def mean_without_metadata(self, batch: FeatureBatch) -> Tensor:
        """Return the prior mean of each head in the prior without metadata: (features, size)."""
        return self._replace_known(self.plain_mean.expand(len(batch), -1), batch, 1)

    def _replace_known(self, mean: Tensor, batch: FeatureBatch, position: int) -> Tensor:
        """Replace the means of known features by ``known_means[:, position]``."""
        if batch.known is None:
            return mean
        known = self.pad_learned(self.known_means[batch.known.clamp(min=0), position]).to(mean.dtype)
        return torch.where((batch.known >= 0)[:, None], known, mean)

    def root(self, dtype: torch.dtype) -> Tensor:
        """Return the lower triangular root of a head's prior covariance: (size, size)."""
        return self.root_lower.to(dtype).tril(-1) + torch.diag(self.root_diagonal.to(dtype).exp())

    def noise(self, kinds: Tensor) -> Tensor:
        """Return the variance of an observation of each of ``kinds``, at a row of average noise."""
        return self.log_noise.exp()[kinds]

    def _covariance_root(self, covariance: Tensor, noise: float) -> Tensor:
        """Add variances of learned activations to a covariance of heads; return its root (size, size)."""
        variances = torch.zeros(self.size)
        variances[self.size - 1 - self.learned : self.size - 1] = 0.5 * noise
        padded = self.pad_learned(self.pad_learned(covariance).T)
        root: Tensor = torch.linalg.cholesky(make_positive_definite(padded.double() + torch.diag(variances)))
        return root.to(covariance.dtype)

    def pad_learned(self, matrix: Tensor) -> Tensor:
        """Insert zeros for the learned activations before the last column, the bias."""
        zeros = matrix.new_zeros(len(matrix), self.size - matrix.shape[1])
        return torch.cat([matrix[:, :-1], zeros, matrix[:, -1:]], dim=1)


def _are_same(last: tuple[Any, Any, Any], metadata: Any, kinds: Any) -> bool:
    """Return whether ``metadata`` and ``kinds`` in numpy are those of the ``last`` description.

    Metadata are the same if they are a view of the same numbers, which do not change.
    """
    before, kinds_before, _ = last
    if not isinstance(metadata, np.ndarray) or before.dtype != metadata.dtype:
        return False
    if before.size != metadata.size or kinds_before.size != kinds.size:  # without metadata, the size is 0
        return False
    starts = {array.__array_interface__["data"][0] for array in (before, metadata)}
    return len(starts) == 1 and bool((kinds_before == kinds).all())


def column_gains(regression: LooRidge, widths: tuple[int, ...], nonlinear: Tensor) -> Tensor:
    """Return the error that each metadata column explains, with its nonlinear terms: (metadata columns,).

    The gain of columns with a common penalty is divided equally among them.
    """
    owner = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths, dtype=torch.int64))
    nonlinear_owners = owner[nonlinear].tolist()
    columns = [*range(len(widths)), *nonlinear_owners, *nonlinear_owners]  # the metadata column of each group
    gains = torch.zeros(len(widths))
    for members, gain, strength in zip(
        regression.members, regression.gains.tolist(), regression.strengths.tolist(), strict=True
    ):
        for member in members if strength > 0 else []:
            if member < len(columns):  # the last group can be that of kinds
                gains[columns[member]] += gain / len(members)
    return gains


def kernel_gains(regression: LooRidge, first: int, owners: list[int], columns: int) -> Tensor:
    """Return the error that the kernel of each metadata column explains: (columns,).

    The groups of the kernels are the last ones of the regression, from ``first`` on, and belong to the
    metadata columns ``owners``.
    """
    gains = torch.zeros(columns)
    for members, gain, strength in zip(
        regression.members, regression.gains.tolist(), regression.strengths.tolist(), strict=True
    ):
        for member in members if strength > 0 else []:
            if member >= first:
                gains[owners[member - first]] += gain / len(members)
    return gains


@torch.no_grad()
def mean_head_change(knowledge: Knowledge, mean: Tensor, covariance: Tensor, features: float) -> Tensor:
    """Return the change that shrinks the mean head (w̄, b) towards the direction of row means: (size,).

    Without metadata and observations, the head of a new feature is the mean head of the known features. With
    few known features its weights are uncertain in most directions of the activations. The direction of row
    means has one free number only. Let t be the weights with which the activations predict the mean residual
    of a row, M the covariance of activations over rows, and C that of the weights over J features. The mean
    head differs from this direction by δ = w̄ − (tᵀMw̄ / tᵀMt)·t. In the basis in which M is the identity and
    C diagonal, the standard error of δ_k is s_k = √(C_kk / J). If chance explains the median of (δ_k / s_k)²,
    δ is removed, otherwise a share of it, but in no direction more than s_k:

        change_k = −sign(δ_k)·min(share·|δ_k|, s_k),   share = min(1, 0.455 / median (δ_k / s_k)²),

    where 0.455 is the median of the square of a standard normal number. This is a limited translation rule of
    Efron and Morris: a direction in which the mean head is well known keeps it. ``mean`` (size,) and
    ``covariance`` (size, size) are the moments of the heads of ``features`` known features. The mean
    prediction of all rows does not change.
    """
    direction, centre, moment = row_mean_direction(knowledge)
    weight = mean[:-1].double()
    length = direction @ moment @ direction
    if not float(length) > 0:  # rows do not differ
        return torch.zeros_like(mean)
    difference = weight - (direction @ moment @ weight) / length * direction
    root = torch.linalg.cholesky(make_positive_definite(moment))
    variances, basis = torch.linalg.eigh(root.T @ covariance[:-1, :-1].double() @ root / features)
    errors = variances.clamp(min=0).sqrt()
    coordinates = basis.T @ (root.T @ difference)
    median = (coordinates / errors.clamp(min=1e-30)).square().median()
    share = (_MEDIAN_SQUARE / median.clamp(min=1e-30)).clamp(max=1)
    coordinates = torch.clamp(share * coordinates, -errors, errors)
    change = -torch.linalg.solve_triangular(root.T, (basis @ coordinates)[:, None], upper=True)[:, 0]
    return torch.cat([change, -(centre @ change)[None]]).to(mean.dtype)


def row_mean_direction(knowledge: Knowledge) -> tuple[Tensor, Tensor, Tensor]:
    """Regress the mean residuals of rows on their activations.

    A residual is a value less the mean of its feature; a row counts by the number of its observations. Return
    the weights t (width,), the mean of the activations (width,) and their covariance (width, width), which
    includes the uncertainty of rows.
    """
    cells, activation = knowledge.cells, knowledge.states.activation.double()
    values, features = cells.values.double(), len(knowledge.kinds)
    counts = global_sum(torch.bincount(cells.index, minlength=features)).clamp(min=1)
    means = global_sum(torch.bincount(cells.index, values, minlength=features)) / counts
    residuals = torch.bincount(cells.lines, values - means[cells.index], minlength=len(activation))
    rows = max(1, global_count(len(activation)))
    centre = global_sum(activation.sum(0)) / rows
    centred = activation - centre
    row_counts, variance = cells.counts.double(), knowledge.states.variance
    moment, weighted = centred.T @ centred, centred.T @ (row_counts[:, None] * centred)
    if variance is not None:
        uncertain = _ROW_VARIANCE_SHARE * variance.double()
        moment, weighted = (
            moment + torch.diag(uncertain.sum(0)),
            weighted + torch.diag(row_counts @ uncertain),
        )
    moment, weighted = global_sum(moment) / rows, global_sum(weighted)
    products = global_sum(centred.T @ residuals)
    return torch.linalg.solve(make_positive_definite(weighted), products), centre, moment


class MetadataKernel(nn.Module):
    """Kernels k(x, x') = exp(-|x - x'|² / 2ℓ²) of metadata columns, one for each column.

    With landmarks L, the terms of a feature are k(x, L)·k(L, L)^-½. A ridge regression on them is a Gaussian
    process with the kernel k: exactly if all features are landmarks, projected to 256 landmarks otherwise.
    Features of similar texts or vectors then have similar heads, although no direction has the same effect
    everywhere. Numbers have none, and neither have categories: it would be that of their linear term.

    Parameters
    ----------
    metadata : Tensor of shape (features, numbers)
        The encoded metadata of known features.
    widths : tuple of int
        The width of each metadata column.
    """

    def __init__(self, metadata: Tensor, widths: tuple[int, ...]) -> None:
        super().__init__()
        groups = Description.of(metadata[:0], widths).groups
        self.owners = [position for position, group in enumerate(groups) if len(group) >= _LEAST_KERNEL_WIDTH]
        if len(self.owners) > _MAX_KERNELS:
            self.owners = []
        self.spans = [(int(groups[owner][0]), int(groups[owner][-1]) + 1) for owner in self.owners]
        landmarks, kernels = min(_LANDMARKS, len(metadata)) if self.spans else 0, len(self.spans)
        self.landmarks: Tensor  # (landmarks, numbers)
        self.register_buffer("landmarks", metadata.new_zeros(landmarks, metadata.shape[1]))
        self.scales: Tensor  # (kernels,): 2ℓ² of each column; 0: the column has no kernel
        self.register_buffer("scales", metadata.new_zeros(kernels))
        self.roots: Tensor  # (kernels, landmarks, landmarks): k(L, L)^-½, used in training only
        self.register_buffer("roots", metadata.new_zeros(0, dtype=torch.float64), persistent=False)

    @property
    def width(self) -> int:
        """The number of terms, and of similarities, of a feature."""
        return len(self.spans) * len(self.landmarks)

    def groups(self, start: int) -> tuple[list[Tensor], list[int]]:
        """Return the positions of the terms of each kernel from ``start`` on, and its metadata column.

        Only the kernels of columns that can have one are returned.
        """
        positions = torch.arange(start, start + self.width).view(len(self.spans), len(self.landmarks))
        used = torch.nonzero(self.scales)[:, 0].tolist()
        return [positions[kernel] for kernel in used], [self.owners[kernel] for kernel in used]

    @torch.no_grad()
    def prepare(self, metadata: Tensor) -> None:
        """Choose landmarks and length scales from the metadata (features, numbers) of known features."""
        count = len(self.landmarks)
        self.roots = self.roots.new_zeros(len(self.spans), count, count)
        if not count:
            return
        self.landmarks.copy_(metadata[torch.arange(count, device=metadata.device) * len(metadata) // count])
        for kernel, (start, end) in enumerate(self.spans):
            part = self.landmarks[:, start:end].double()
            squared = torch.cdist(part, part) ** 2
            distances = squared[squared > 1e-9]
            if not len(distances) or float(distances.max() - distances.min()) < 1e-6:
                continue  # a category: two features are equal, or at the one distance
            self.scales[kernel] = 2 * _KERNEL_LENGTH_SCALE**2 * distances.median()
            values, vectors = torch.linalg.eigh(torch.exp(-squared / float(self.scales[kernel])))
            self.roots[kernel] = vectors / (values.clamp(min=0) + _KERNEL_JITTER).sqrt() @ vectors.T

    def similarities(self, metadata: A) -> A:
        """Return k(x, L) of features with the ``metadata`` (…, numbers): (…, kernels × landmarks)."""
        xp = namespace(metadata)
        if not self.spans:
            return metadata[..., :0]
        landmarks = to_library_of(self.landmarks, metadata)
        none = xp.zeros_like(metadata[..., :1] @ landmarks[:, :1].T)
        parts = []
        for (start, end), scale in zip(self.spans, self.scales.tolist(), strict=True):
            if scale == 0:
                parts.append(none)
                continue
            part, centre = metadata[..., start:end], landmarks[:, start:end]
            squared = (part**2).sum(-1)[..., None] + (centre**2).sum(-1) - 2 * part @ centre.T
            parts.append(xp.exp(-squared.clip(0) / scale))
        return xp.concatenate(parts, -1)  # type: ignore[no-any-return]

    def terms(self, metadata: Tensor) -> Tensor:
        """Return k(x, L)·k(L, L)^-½ of features: (features, kernels × landmarks)."""
        similarities = self.similarities(metadata).double()
        blocks = similarities.view(len(metadata), len(self.spans), len(self.landmarks))
        return torch.einsum("fkl,klm->fkm", blocks, self.roots).flatten(1)

    @torch.no_grad()
    def use(self, coefficients: Tensor) -> Tensor:
        """Return the coefficients of similarities, given those of terms: (kernels × landmarks, size) both.

        Kernels whose coefficients are 0 are not computed any more.
        """
        blocks = coefficients.double().view(len(self.spans), len(self.landmarks), coefficients.shape[1])
        self.scales *= blocks.flatten(1).any(1)
        return (self.roots @ blocks).flatten(0, 1)
