"""The parts of a fitted model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.adapters.protocol import Adapter, StreamingAdapter
from headstart.backbones.protocol import Backbone
from headstart.core.batch import FeatureBatch
from headstart.core.knowledge import Knowledge
from headstart.core.states import RowStates
from headstart.model.catalogue import Catalogue, Feature
from headstart.model.settings import Settings
from headstart.table import Cells, Kind, MetadataSchema, Names
from headstart.table.cells import offsets
from headstart.table.encoders import EncoderLike
from headstart.training.calibration import Calibration


@dataclass
class Fitted:
    """What a model holds after fit; only ``rows``, ``states``, ``catalogue`` and ``encoders`` ever change."""

    settings: Settings  # those that really ran
    rows: Names
    states: RowStates  # as the adapter's heads read them
    schema: MetadataSchema | None
    kinds: tuple[Kind, ...]  # of the table it was fitted on, the most usual first
    backbone: Backbone
    knowledge: Knowledge
    adapter: Adapter
    calibration: Calibration
    catalogue: Catalogue
    backbone_features: Names  # the features that the backbone reads, in its order
    encoders: dict[str, EncoderLike] = field(default_factory=dict)  # of metadata columns; never saved

    @torch.no_grad()
    def adapt(self, features: list[Feature]) -> None:
        """Give these features heads by one pass of the adapter, and keep them."""
        self.catalogue.put(features, self.adapter.adapt(batch_of(features, len(self.rows)), self.states))

    @torch.no_grad()
    def observe(self, feature: Feature, rows: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Refine one feature's head: from sums over its observations where the adapter has such."""
        after, adapter = feature.observed(rows, values), self.adapter
        kind = torch.tensor([feature.kind.type])
        if not (isinstance(adapter, StreamingAdapter) and bool(adapter.streams(kind))):
            self.adapt([after])
            return

        def evidence(of: Feature) -> Tensor:
            return adapter.evidence(batch_of([of], len(self.rows)), self.states)

        sums = self.catalogue.evidence.get(feature.name)
        total = evidence(feature) if sums is None else sums
        total = total - evidence(feature.among(rows)) + evidence(after.among(rows))
        heads = adapter.solve(total, batch_of([after], len(self.rows)))
        self.catalogue.put([after], heads, [total])


def batch_of(features: list[Feature], rows: int) -> FeatureBatch:
    """Turn features and their contexts into what adapters read."""
    counts = torch.tensor([len(feature.rows) for feature in features], dtype=torch.int64)
    scaled = [(feature.values - feature.kind.offset) / feature.kind.span for feature in features]
    return FeatureBatch(
        Cells(
            offsets(counts),
            torch.from_numpy(np.concatenate([feature.rows for feature in features])),
            torch.from_numpy(np.concatenate(scaled)).float(),
            rows,
        ),
        torch.from_numpy(np.stack([feature.metadata for feature in features])),
        torch.tensor([feature.kind.type for feature in features], dtype=torch.int64),
    )
