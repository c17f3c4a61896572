"""Baseline adapters of the paper: random heads, mean values, mean heads and heads of nearest features."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from headstart.adapters.base import Adapter, AdapterConfig, register_adapter
from headstart.core.devices import CPU, move
from headstart.core.types import FeatureBatch, Heads, Knowledge, RowStates
from headstart.errors import InputError
from headstart.table.margins import VALUE_TYPES

_MIDDLE = (0.5, 0.5, 0.0)  # the middle of each kind's scale: the mean of kinds without observations

_WORK_AT_ONCE = 1 << 22  # numbers computed for a part of a batch

_STRIDE = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, the increment of splitmix64


def kind_means(knowledge: Knowledge) -> Tensor:
    """Compute the mean of all observed values of each kind, on the models' scale: (kinds,), float64."""
    cells = knowledge.cells
    kinds = knowledge.kinds[cells.index]
    counts = torch.bincount(kinds, weights=cells.weights, minlength=VALUE_TYPES)
    totals = torch.bincount(kinds, weights=cells.weighted(cells.values.double()), minlength=VALUE_TYPES)
    middle = torch.tensor(_MIDDLE, dtype=torch.float64)
    return torch.where(counts > 0, totals / torch.where(counts > 0, counts, 1), middle)


def context_means(batch: FeatureBatch, means: Tensor) -> Tensor:
    """Compute the mean of each context; at zero shots take that of the kind in ``means``: (features,)."""
    cells, counts = batch.cells, batch.cells.weighted_counts
    totals = torch.bincount(cells.lines, weights=cells.weighted(cells.values.double()), minlength=len(batch))
    return torch.where(counts > 0, totals / torch.where(counts > 0, counts, 1), means[batch.kinds])


def constant_heads(means: Tensor, kinds: Tensor, knowledge: Knowledge) -> Heads:
    """Return heads with w = 0 that predict ``means`` (features,) for every row; ``kinds`` (features,)."""
    bias = knowledge.likelihood.logit(means.to(knowledge.heads.bias.dtype), kinds)
    return Heads(bias.new_zeros(len(bias), knowledge.heads.weight.shape[1]), bias)


def pooled_heads(chosen: Tensor, otherwise: Heads, knowledge: Knowledge) -> Heads:
    """Average the backbone's heads that each line of the mask ``chosen`` (lines, features) selects.

    A line that selects no head gets the one of ``otherwise``.
    """
    heads, count = knowledge.heads.detach(), chosen.sum(1)
    share = chosen.to(heads.weight.dtype) / count.clamp(min=1)[:, None]
    weight = torch.where(count[:, None] > 0, share @ heads.weight, otherwise.weight)
    return Heads(weight, torch.where(count > 0, share @ heads.bias, otherwise.bias))


def split_by_work(
    work: Tensor, budget: int | None = None, groups: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Split features into consecutive parts whose ``work`` (features,) sums to about ``budget``.

    The parts bound the memory of computations on large batches. No part contains two values of
    ``groups`` (features,). There is at least one part, which may be empty.

    >>> split_by_work(torch.tensor([3, 3, 3, 9]), budget=7)
    (tensor([0, 1, 2]), tensor([3]))
    """
    # Dividing the work before each feature lets a part exceed the budget by one feature at most.
    cut = ((work.cumsum(0) - work) // (budget or _WORK_AT_ONCE)).diff() != 0
    if groups is not None:
        cut = cut | (groups.diff() != 0)
    return torch.tensor_split(torch.arange(len(work)), (torch.nonzero(cut).squeeze(1) + 1).tolist())


class RandomConfig(AdapterConfig):
    """Settings of the random head."""

    name: Literal["random"] = "random"
    seed: int = Field(0, ge=0)


@register_adapter
class RandomHead(Adapter):
    """Xavier-uniform random weights of a linear layer from the activation to one output; zero bias.

    Each feature has its own draw. The draw must not depend on the batch or the order, so it is a hash of the
    seed, the metadata and the context (rows by their position in the states) instead of the output of a
    generator. Features with equal context and metadata, such as all features at zero shots without metadata,
    have the same head.
    """

    config_type: ClassVar[type[AdapterConfig]] = RandomConfig
    accepts_structures: ClassVar[bool] = True
    config: RandomConfig

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Draw a head for each feature."""
        width = states.activation.shape[1]
        bound = math.sqrt(6 / (width + 1))
        keys = _hash_features(batch, self.config.seed)
        counters = np.arange(1, width + 1, dtype=np.uint64) * _STRIDE
        uniform = (_mix(keys[:, None] + counters) >> np.uint64(11)) * 2.0**-53
        weight = torch.from_numpy((2 * uniform - 1) * bound).to(states.activation)
        return Heads(weight, weight.new_zeros(len(batch)))


def _hash_features(batch: FeatureBatch, seed: int) -> NDArray[np.uint64]:
    """Hash the ``seed``, and the metadata and context of each feature: (features,).

    The hash does not depend on the order of observations in a context.
    """
    batch = move(batch, CPU)  # for numpy
    cells = batch.cells
    observations = _mix(_mix(cells.index.numpy().astype(np.uint64) * _STRIDE) + _bits(cells.values))
    # A sum does not depend on the order. It wraps at 2^64, as do differences of the cumulative sum.
    cumulative = np.concatenate([np.zeros(1, np.uint64), np.cumsum(observations, dtype=np.uint64)])
    ends = cumulative[cells.indptr.numpy()]
    columns = np.arange(1, batch.metadata.shape[1] + 1, dtype=np.uint64) * _STRIDE
    metadata = _mix(_mix(columns) + _bits(batch.metadata)).sum(axis=1, dtype=np.uint64)
    return _mix(_mix(ends[1:] - ends[:-1] + np.uint64(seed)) + metadata)


def _bits(numbers: Tensor) -> NDArray[np.uint64]:
    """Return the bit patterns of ``numbers`` in single precision, with -0.0 as 0.0."""
    return (numbers.detach().float() + 0.0).numpy().view(np.uint32).astype(np.uint64)


def _mix(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of 64-bit keys: each bit of the result depends on all bits (splitmix64's finaliser)."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = keys ^ (keys >> np.uint64(31))
    return mixed


class MeanConfig(AdapterConfig):
    """Settings of the mean of the context: none besides the name."""

    name: Literal["mean"] = "mean"


@register_adapter
class MeanOfContext(Adapter):
    """Predict the mean of the context: w = 0, b = link⁻¹(mean).

    At zero shots the mean is that of all values of the same kind.
    """

    config_type: ClassVar[type[AdapterConfig]] = MeanConfig
    accepts_structures: ClassVar[bool] = True
    supports_weights: ClassVar[bool] = True
    config: MeanConfig

    def __init__(self, config: MeanConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self.means: Tensor  # the mean value of each kind
        self.register_buffer("means", torch.zeros(VALUE_TYPES, dtype=torch.float64))

    def prepare(self) -> None:
        """Compute the mean value of each kind."""
        self.means.copy_(kind_means(self.knowledge))

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:  # noqa: ARG002
        """Return heads that predict the means of the contexts."""
        return constant_heads(context_means(batch, self.means), batch.kinds, self.knowledge)


class MeanHeadConfig(AdapterConfig):
    """Settings of the mean head: none besides the name."""

    name: Literal["mean-head"] = "mean-head"


@register_adapter
class MeanHead(Adapter):
    """Mean of the heads of all backbone features of the same kind; the context is ignored.

    For a kind without backbone features, the head predicts the middle of its scale.
    """

    config_type: ClassVar[type[AdapterConfig]] = MeanHeadConfig
    accepts_structures: ClassVar[bool] = True
    config: MeanHeadConfig

    def __init__(self, config: MeanHeadConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        heads = knowledge.heads.weight
        self.weight: Tensor
        self.register_buffer("weight", heads.new_zeros(VALUE_TYPES, heads.shape[1]))
        self.bias: Tensor
        self.register_buffer("bias", heads.new_zeros(VALUE_TYPES))

    def prepare(self) -> None:
        """Average the heads of each kind."""
        kinds = torch.arange(VALUE_TYPES)
        middle = constant_heads(kind_means(self.knowledge), kinds, self.knowledge)
        heads = pooled_heads(kinds[:, None] == self.knowledge.kinds, middle, self.knowledge)
        self.weight.copy_(heads.weight)
        self.bias.copy_(heads.bias)

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:  # noqa: ARG002
        """Return the mean head of each feature's kind."""
        return Heads(self.weight, self.bias).take(batch.kinds)


class MeanHeadMatchingConfig(AdapterConfig):
    """Settings of the matching mean head: none besides the name."""

    name: Literal["mean-head-matching"] = "mean-head-matching"


@register_adapter
class MeanHeadMatching(Adapter):
    """Mean of the heads of the backbone features whose metadata categories match the new feature's.

    A category is a metadata column whose values are 0 and 1. Among the features of the same kind, the matches
    are the features in exactly the same categories; without such features, the features that share the most
    categories; without shared categories, all features. The context is ignored.
    """

    config_type: ClassVar[type[AdapterConfig]] = MeanHeadMatchingConfig
    config: MeanHeadMatchingConfig

    def __init__(self, config: MeanHeadMatchingConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self.means: Tensor  # the mean value of each kind
        self.register_buffer("means", torch.zeros(VALUE_TYPES, dtype=torch.float64))
        self.is_category: Tensor  # which columns of the encoded metadata are categories
        self.register_buffer("is_category", torch.zeros(knowledge.metadata.shape[1], dtype=torch.bool))

    def prepare(self) -> None:
        """Compute the mean value of each kind, and the mask of categories."""
        self.means.copy_(kind_means(self.knowledge))
        zero, one = self.knowledge.metadata == 0, self.knowledge.metadata == 1
        self.is_category.copy_((zero | one).all(0) & zero.any(0) & one.any(0))

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:  # noqa: ARG002
        """Average the heads of the matching features of each feature."""
        work = torch.full((len(batch),), len(self.knowledge.kinds))
        return Heads.concatenate([self._average_matches(batch.take(part)) for part in split_by_work(work)])

    def _average_matches(self, batch: FeatureBatch) -> Heads:
        new, known = self._categories(batch.metadata), self._categories(self.knowledge.metadata)
        shared = new @ known.T
        exact = (shared == new.sum(1, keepdim=True)) & (shared == known.sum(1)) & (shared > 0)
        same_kind = batch.kinds[:, None] == self.knowledge.kinds
        # The extra half prefers an exact match to features with additional categories.
        score = torch.where(same_kind, shared + 0.5 * exact, -1.0)
        best = score == score.amax(1, keepdim=True)
        otherwise = constant_heads(self.means[batch.kinds], batch.kinds, self.knowledge)
        return pooled_heads(best & same_kind, otherwise, self.knowledge)

    def _categories(self, metadata: Tensor) -> Tensor:
        """Return 1 for each category of a feature, else 0: (features, categories)."""
        return (metadata[:, self.is_category] == 1).to(self.knowledge.heads.weight.dtype)


class NearestHeadsConfig(AdapterConfig):
    """Settings of the nearest heads."""

    name: Literal["knn"] = "knn"
    neighbours: int = Field(10, ge=1)


@register_adapter
class NearestHeads(Adapter):
    """Mean of the heads of the nearest backbone features of the same kind.

    The distance is Euclidean, between columns over all rows of the table on the models' scale. Missing
    values of a column are replaced by its mean, or by the mean of its kind if it has no values. Ties go to
    the earlier features. If the kind has fewer features than ``neighbours``, all of them count; if it has
    none, the head predicts the kind's mean.

    A column is its mean plus deviations, which are zero for missing values and sum to zero, so

        |a - b|² = rows · (mean_a - mean_b)² + Σ dev_a² + Σ dev_b² - 2 Σ dev_a · dev_b

    holds exactly, and the last sum needs only the observations in the context's rows. The states must
    therefore be those of the table's rows, in order. Further states are of rows outside the table, where
    every known feature has its mean.
    """

    config_type: ClassVar[type[AdapterConfig]] = NearestHeadsConfig
    accepts_structures: ClassVar[bool] = True
    number_setting: ClassVar[str | None] = "neighbours"
    variants: ClassVar[tuple[str, ...]] = ("knn-1", "knn-5", "knn-10")
    config: NearestHeadsConfig

    def __init__(self, config: NearestHeadsConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        features = len(knowledge.kinds)
        self.kind_means: Tensor
        self.register_buffer("kind_means", torch.zeros(VALUE_TYPES, dtype=torch.float64))
        self.means: Tensor  # (features,): the mean of each feature's values
        self.register_buffer("means", torch.zeros(features, dtype=torch.float64))
        self.squares: Tensor  # (features,): the sum of each feature's squared deviations from its mean
        self.register_buffer("squares", torch.zeros(features, dtype=torch.float64))

    def prepare(self) -> None:
        """Compute the means of kinds and features, and the features' squared deviations."""
        cells, features = self.knowledge.cells, len(self.knowledge.kinds)
        self.kind_means.copy_(kind_means(self.knowledge))
        counts = torch.bincount(cells.index, minlength=features)
        totals = torch.bincount(cells.index, weights=cells.values.double(), minlength=features)
        means = totals / counts.clamp(min=1)
        self.means.copy_(torch.where(counts > 0, means, self.kind_means[self.knowledge.kinds]))
        deviations = cells.values - self.means[cells.index]
        self.squares.copy_(torch.bincount(cells.index, weights=deviations**2, minlength=features))

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Average the heads of the nearest neighbours of each feature."""
        rows, features = len(self.knowledge.cells), len(self.knowledge.kinds)
        if len(states) < rows:
            raise InputError(
                f"{self.config.name} compares columns over all {rows} rows of the table, but got the states "
                f"of {len(states)}; pass those of every row, in the table's order"
            )
        counts = torch.cat([self.knowledge.cells.counts, torch.zeros(len(states) - rows, dtype=torch.int64)])
        row_counts = counts[batch.cells.index].double()
        work = torch.bincount(batch.cells.lines, weights=row_counts, minlength=len(batch)).long() + features
        return Heads.concatenate([self._average_nearest(batch.take(part)) for part in split_by_work(work)])

    def _average_nearest(self, batch: FeatureBatch) -> Heads:
        same_kind = batch.kinds[:, None] == self.knowledge.kinds
        # Ties are common in binary data; rounding removes differences due to floating-point errors.
        distances = self.distances(batch).round(decimals=9).masked_fill(~same_kind, torch.inf)
        neighbours = min(self.config.neighbours, distances.shape[1])
        limit = distances.topk(neighbours, dim=1, largest=False).values[:, -1:]
        nearer, tied = distances < limit, distances == limit
        chosen = nearer | (tied & (tied.cumsum(1) <= neighbours - nearer.sum(1, keepdim=True)))
        otherwise = constant_heads(self.kind_means[batch.kinds], batch.kinds, self.knowledge)
        return pooled_heads(chosen & same_kind, otherwise, self.knowledge)

    def distances(self, batch: FeatureBatch) -> Tensor:
        """Compute squared distances to the backbone's features: (features of ``batch``, features)."""
        table, lines = self.knowledge.cells, batch.cells.lines
        mean = context_means(batch, self.kind_means)
        deviations = batch.cells.values - mean[lines]
        squares = torch.bincount(lines, weights=deviations**2, minlength=len(batch))
        in_table = batch.cells.index < len(table)
        rows = len(table) + torch.bincount(lines[~in_table], minlength=len(batch))
        observed = table.take(batch.cells.index[in_table])  # all observations of the context's rows
        source = observed.lines
        products = deviations[in_table][source] * (observed.values - self.means[observed.index])
        pairs = lines[in_table][source] * table.width + observed.index
        products = torch.bincount(pairs, weights=products, minlength=len(batch) * table.width)
        differences = mean[:, None] - self.means
        squared = rows[:, None] * differences**2 + squares[:, None] + self.squares
        return squared - 2 * products.view_as(differences)
