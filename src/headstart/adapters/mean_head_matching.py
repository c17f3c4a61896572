"""The mean of the heads of features in the same categories."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from headstart.adapters.pooling import constant_heads, kind_means, parts, pooled_heads
from headstart.adapters.protocol import Adapter, AdapterConfig
from headstart.adapters.registry import register_adapter
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.states import RowStates
from headstart.table.kinds import KindType


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
