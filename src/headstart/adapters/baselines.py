"""Make heads by simple rules: the baselines of the paper."""

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
from headstart.table.kinds import KindType

# What to expect of a kind that the backbone has no feature of: the middle of its scale.
_MIDDLE = (0.5, 0.5, 0.0)


def kind_means(knowledge: Knowledge) -> Tensor:
    """The mean of all observed values of each kind, on the models' scale: (kinds,), in double precision."""
    kinds = knowledge.kinds[knowledge.cells.index]
    counts = torch.bincount(kinds, minlength=len(KindType))
    totals = torch.bincount(kinds, weights=knowledge.cells.values.double(), minlength=len(KindType))
    middle = torch.tensor(_MIDDLE, dtype=torch.float64)
    return torch.where(counts > 0, totals / counts.clamp(min=1), middle)


def context_means(batch: FeatureBatch, means: Tensor) -> Tensor:
    """The mean of each feature's context, or that of its kind (``means``) at zero shots: (features,)."""
    shots = batch.shots
    totals = torch.bincount(batch.cells.lines, weights=batch.cells.values.double(), minlength=len(batch))
    return torch.where(shots > 0, totals / shots.clamp(min=1), means[batch.kinds])


def constant_heads(means: Tensor, kinds: Tensor, knowledge: Knowledge) -> Heads:
    """Heads that predict ``means`` (features,) of kinds ``kinds`` for every row: w = 0."""
    bias = knowledge.likelihood.logit(means.to(knowledge.heads.bias.dtype), kinds)
    return Heads(bias.new_zeros(len(bias), knowledge.heads.weight.shape[1]), bias)


def pooled_heads(chosen: Tensor, otherwise: Heads, knowledge: Knowledge) -> Heads:
    """The mean of the backbone's heads that each line of ``chosen`` (lines, features) marks.

    A line that marks none gets its head from ``otherwise``.
    """
    heads, count = knowledge.heads.detach(), chosen.sum(1)
    share = chosen.to(heads.weight.dtype) / count.clamp(min=1)[:, None]
    weight = torch.where(count[:, None] > 0, share @ heads.weight, otherwise.weight)
    return Heads(weight, torch.where(count > 0, share @ heads.bias, otherwise.bias))


def parts(work: Tensor, budget: int = 1 << 22, apart: Tensor | None = None) -> tuple[Tensor, ...]:
    """Split features into consecutive parts whose ``work`` (features,) adds up to about ``budget``.

    What is computed over a part stays in bounded memory, whatever the size of the batch. No part
    spans two values of ``apart`` (features,). There is always at least one part, if an empty one.

    >>> parts(torch.tensor([3, 3, 3, 9]), budget=7)
    (tensor([0, 1, 2]), tensor([3]))
    """
    # A feature goes where its work begins, so that a part exceeds the budget by at most one feature.
    cut = ((work.cumsum(0) - work) // budget).diff() != 0
    if apart is not None:
        cut = cut | (apart.diff() != 0)
    return torch.tensor_split(torch.arange(len(work)), (torch.nonzero(cut).squeeze(1) + 1).tolist())


_STRIDE = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: neighbouring counters land far apart


class RandomConfig(AdapterConfig):
    """Settings of the random head."""

    name: Literal["random"] = "random"
    seed: int = Field(0, ge=0)


@register_adapter
class RandomHead(Adapter):
    """Xavier-uniform weights of a linear layer from the activation to one output; zero bias.

    Each feature has a draw of its own, as in the paper. Yet a draw must be the same in any batch
    and any order, so it is not taken from a running generator but is a hash of the seed and of all
    that an adapter sees of a feature: its metadata and its context (rows by their position in the
    states). Features with the same context and metadata, such as all at zero shots without metadata, share
    one draw: there is no difference between them.
    """

    config_type: ClassVar[type[AdapterConfig]] = RandomConfig
    config: RandomConfig

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Draw a head for each feature."""
        width = states.activation.shape[1]
        bound = math.sqrt(6 / (width + 1))
        keys = _keys(batch, self.config.seed)
        counters = np.arange(1, width + 1, dtype=np.uint64) * _STRIDE
        uniform = (_mix(keys[:, None] + counters) >> np.uint64(11)) * 2.0**-53
        weight = torch.from_numpy((2 * uniform - 1) * bound).to(states.activation)
        return Heads(weight, weight.new_zeros(len(batch)))


def _keys(batch: FeatureBatch, seed: int) -> NDArray[np.uint64]:
    """One number per feature, from the seed, its metadata and its context in any order: (features,)."""
    batch = move(batch, CPU)  # bits are mixed by NumPy
    cells = batch.cells
    observations = _mix(_mix(cells.index.numpy().astype(np.uint64) * _STRIDE) + _bits(cells.values))
    # A sum forgets the order; it wraps at 2^64, and so do the differences of its running form.
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(observations, dtype=np.uint64)])
    ends = running[cells.indptr.numpy()]
    columns = np.arange(1, batch.metadata.shape[1] + 1, dtype=np.uint64) * _STRIDE
    metadata = _mix(_mix(columns) + _bits(batch.metadata)).sum(axis=1, dtype=np.uint64)
    return _mix(_mix(ends[1:] - ends[:-1] + np.uint64(seed)) + metadata)


def _bits(numbers: Tensor) -> NDArray[np.uint64]:
    """The bit patterns of numbers; adding zero makes one zero of -0.0 and 0.0."""
    return (numbers.detach().float() + 0.0).numpy().view(np.uint32).astype(np.uint64)


def _mix(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter 64-bit keys: each bit of the result depends on all of the key (splitmix64's finaliser)."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = keys ^ (keys >> np.uint64(31))
    return mixed


class MeanConfig(AdapterConfig):
    """There is nothing to set."""

    name: Literal["mean"] = "mean"


@register_adapter
class MeanOfContext(Adapter):
    """w = 0, b = link⁻¹(mean of the context).

    At zero shots: the mean of all values of that kind of the backbone's features.
    """

    config_type: ClassVar[type[AdapterConfig]] = MeanConfig
    config: MeanConfig

    def __init__(self, config: MeanConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self.means: Tensor  # the mean value of each kind
        self.register_buffer("means", torch.zeros(len(KindType), dtype=torch.float64))

    def prepare(self) -> None:
        """Note the mean value of each kind."""
        self.means.copy_(kind_means(self.knowledge))

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:  # noqa: ARG002
        """Give each feature the head that always predicts its context's mean."""
        return constant_heads(context_means(batch, self.means), batch.kinds, self.knowledge)


class MeanHeadConfig(AdapterConfig):
    """There is nothing to set."""

    name: Literal["mean-head"] = "mean-head"


@register_adapter
class MeanHead(Adapter):
    """θ = the mean of the heads of all the backbone's features of the same kind.

    The context is not used. A kind that the backbone has no feature of gets the middle of its scale.
    """

    config_type: ClassVar[type[AdapterConfig]] = MeanHeadConfig
    config: MeanHeadConfig

    def __init__(self, config: MeanHeadConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        heads = knowledge.heads.weight
        self.weight: Tensor
        self.register_buffer("weight", heads.new_zeros(len(KindType), heads.shape[1]))
        self.bias: Tensor
        self.register_buffer("bias", heads.new_zeros(len(KindType)))

    def prepare(self) -> None:
        """Average the heads of each kind."""
        kinds = torch.arange(len(KindType))
        middle = constant_heads(kind_means(self.knowledge), kinds, self.knowledge)
        heads = pooled_heads(kinds[:, None] == self.knowledge.kinds, middle, self.knowledge)
        self.weight.copy_(heads.weight)
        self.bias.copy_(heads.bias)

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:  # noqa: ARG002
        """Give each feature the mean head of its kind."""
        return Heads(self.weight, self.bias).take(batch.kinds)


class MeanHeadMatchingConfig(AdapterConfig):
    """There is nothing to set."""

    name: Literal["mean-head-matching"] = "mean-head-matching"


@register_adapter
class MeanHeadMatching(Adapter):
    """θ = the mean of the heads of the features whose metadata categories match the new feature's.

    A metadata column in which the backbone's features hold both 0 and 1 and nothing else is a
    category, or a label of a list; a feature is in it where it holds 1. Of the features of the same
    kind, those in exactly the same categories match; where there are none, those that share the
    most; where nothing is shared (or there are no categories at all), all do: the mean head. The
    context is not used.
    """

    config_type: ClassVar[type[AdapterConfig]] = MeanHeadMatchingConfig
    config: MeanHeadMatchingConfig

    def __init__(self, config: MeanHeadMatchingConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self.means: Tensor  # the mean value of each kind
        self.register_buffer("means", torch.zeros(len(KindType), dtype=torch.float64))
        self.is_category: Tensor  # which columns of the encoded metadata are categories
        self.register_buffer("is_category", torch.zeros(knowledge.metadata.shape[1], dtype=torch.bool))

    def prepare(self) -> None:
        """Note the mean value of each kind, and which columns are categories."""
        self.means.copy_(kind_means(self.knowledge))
        zero, one = self.knowledge.metadata == 0, self.knowledge.metadata == 1
        self.is_category.copy_((zero | one).all(0) & zero.any(0) & one.any(0))

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:  # noqa: ARG002
        """Average, for each feature, the heads of the features that match it."""
        work = torch.full((len(batch),), len(self.knowledge.kinds))
        return Heads.concatenate([self._pool(batch.take(part)) for part in parts(work)])

    def _pool(self, batch: FeatureBatch) -> Heads:
        wanted, there = (self._in_categories(each.metadata) for each in (batch, self.knowledge))
        shared = wanted @ there.T
        exact = (shared == wanted.sum(1, keepdim=True)) & (shared == there.sum(1)) & (shared > 0)
        same_kind = batch.kinds[:, None] == self.knowledge.kinds
        # The extra half puts an exact match before those that have further categories besides.
        score = torch.where(same_kind, shared + 0.5 * exact, -1.0)
        best = score == score.amax(1, keepdim=True)
        otherwise = constant_heads(self.means[batch.kinds], batch.kinds, self.knowledge)
        return pooled_heads(best & same_kind, otherwise, self.knowledge)

    def _in_categories(self, metadata: Tensor) -> Tensor:
        """1 where a feature is in a category, else 0: (features, categories)."""
        return (metadata[:, self.is_category] == 1).to(self.knowledge.heads.weight.dtype)


class NearestHeadsConfig(AdapterConfig):
    """Settings of the nearest heads."""

    name: Literal["knn"] = "knn"
    neighbours: int = Field(10, ge=1)


@register_adapter
class NearestHeads(Adapter):
    """θ = the mean of the heads of the nearest features of the same kind.

    A feature is a column over all rows of the table, unobserved values filled with its own mean
    (that of its kind where it has none, as a new feature at zero shots); near is the Euclidean
    distance of columns on the models' scale; of features equally near, the earlier ones are taken. If
    there are fewer features of the kind than wanted, all of them count; if there are none, the head
    predicts the kind's mean.

    A column is its mean plus deviations that are zero where nothing is observed and sum to zero, so

        |a - b|² = rows · (mean_a - mean_b)² + Σ dev_a² + Σ dev_b² - 2 Σ dev_a · dev_b

    holds exactly, and the last sum needs only what other features say in the context's rows. The
    states must therefore be of the table's rows, in order; any further ones are of rows outside the
    table, where every known feature takes its mean.
    """

    config_type: ClassVar[type[AdapterConfig]] = NearestHeadsConfig
    numbered: ClassVar[str | None] = "neighbours"
    variants: ClassVar[tuple[str, ...]] = ("knn-1", "knn-5", "knn-10")
    config: NearestHeadsConfig

    def __init__(self, config: NearestHeadsConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        features = len(knowledge.kinds)
        self.kind_means: Tensor
        self.register_buffer("kind_means", torch.zeros(len(KindType), dtype=torch.float64))
        self.means: Tensor  # of each feature's values
        self.register_buffer("means", torch.zeros(features, dtype=torch.float64))
        self.squares: Tensor  # the sum of each feature's squared deviations from its mean
        self.register_buffer("squares", torch.zeros(features, dtype=torch.float64))

    def prepare(self) -> None:
        """Note the mean of each feature and kind, and the features' squared deviations."""
        cells, features = self.knowledge.cells, len(self.knowledge.kinds)
        self.kind_means.copy_(kind_means(self.knowledge))
        counts = torch.bincount(cells.index, minlength=features)
        totals = torch.bincount(cells.index, weights=cells.values.double(), minlength=features)
        own = totals / counts.clamp(min=1)
        self.means.copy_(torch.where(counts > 0, own, self.kind_means[self.knowledge.kinds]))
        deviations = cells.values - self.means[cells.index]
        self.squares.copy_(torch.bincount(cells.index, weights=deviations**2, minlength=features))

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Average, for each feature, the heads of its nearest neighbours."""
        rows, features = len(self.knowledge.cells), len(self.knowledge.kinds)
        if len(states) < rows:
            raise InputError(
                f"{self.config.name} compares columns over all {rows} rows of the table, but got the states "
                f"of {len(states)}; pass those of every row, in the table's order"
            )
        counts = torch.cat([self.knowledge.cells.counts, torch.zeros(len(states) - rows, dtype=torch.int64)])
        each = counts[batch.cells.index].double()
        work = torch.bincount(batch.cells.lines, weights=each, minlength=len(batch)).long() + features
        return Heads.concatenate([self._average(batch.take(part)) for part in parts(work)])

    def _average(self, batch: FeatureBatch) -> Heads:
        same_kind = batch.kinds[:, None] == self.knowledge.kinds
        # Equal distances are common in binary data; rounding keeps noise from telling them apart.
        distances = self.distances(batch).round(decimals=9).masked_fill(~same_kind, torch.inf)
        wanted = min(self.config.neighbours, distances.shape[1])
        limit = distances.topk(wanted, dim=1, largest=False).values[:, -1:]
        nearer, level = distances < limit, distances == limit
        room = wanted - nearer.sum(1, keepdim=True)
        chosen = nearer | (level & (level.cumsum(1) <= room))
        otherwise = constant_heads(self.kind_means[batch.kinds], batch.kinds, self.knowledge)
        return pooled_heads(chosen & same_kind, otherwise, self.knowledge)

    def distances(self, batch: FeatureBatch) -> Tensor:
        """Squared distances to the backbone's features: (features of the batch, features), double."""
        table, lines = self.knowledge.cells, batch.cells.lines
        mean = context_means(batch, self.kind_means)
        deviations = batch.cells.values - mean[lines]
        spreads = torch.bincount(lines, weights=deviations**2, minlength=len(batch))
        inside = batch.cells.index < len(table)
        rows = len(table) + torch.bincount(lines[~inside], minlength=len(batch))
        others = table.take(batch.cells.index[inside])  # what is observed in the context's rows
        source = others.lines
        products = deviations[inside][source] * (others.values - self.means[others.index])
        where = lines[inside][source] * table.width + others.index
        crossed = torch.bincount(where, weights=products, minlength=len(batch) * table.width)
        gaps = mean[:, None] - self.means
        return rows[:, None] * gaps**2 + spreads[:, None] + self.squares - 2 * crossed.view_as(gaps)
