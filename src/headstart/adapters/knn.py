"""The mean of the heads of the nearest features."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from headstart.adapters.pooling import constant_heads, context_means, kind_means, parts, pooled_heads
from headstart.adapters.protocol import Adapter, AdapterConfig
from headstart.adapters.registry import register_adapter
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.states import RowStates
from headstart.errors import InputError
from headstart.table.kinds import KindType


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
