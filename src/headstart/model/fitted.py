"""The parts of a fitted model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
from headstart.table.kinds import KindType
from headstart.training.calibration import Calibration
from headstart.training.judge import Judgement


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
    judgement: Judgement | None  # how it was chosen, where the judge chose
    middle: Kind | None  # the kind of new reals whose own center and scale are found from their observations
    encoders: dict[str, EncoderLike] = field(default_factory=dict)  # of metadata columns; never saved

    @torch.no_grad()
    def adapt(self, features: list[Feature]) -> None:
        """Give these features heads by one pass of the adapter, and keep them."""
        self.catalogue.put(features, self.adapter.adapt(self.batch_of(features), self.states))

    @torch.no_grad()
    def observe(self, feature: Feature, rows: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Refine one feature's head: from sums over its observations where the adapter has such."""
        after, adapter = self.with_own_units(feature.observed(rows, values)), self.adapter
        kind = self.kinds_of([feature])
        if (
            not isinstance(adapter, StreamingAdapter)
            or not bool(adapter.streams(kind))
            or feature.finds_scale  # it changes with every observation
        ):
            self.adapt([after])
            return

        def evidence(of: Feature) -> Tensor:
            return adapter.evidence(self.batch_of([of]), self.states)

        sums = self.catalogue.evidence.get(feature.name)
        total = evidence(feature) if sums is None else sums
        total = total - evidence(feature.among(rows)) + evidence(after.among(rows))
        heads = adapter.solve(total, self.batch_of([after]))
        self.catalogue.put([after], heads, [total])

    def kinds_of(self, features: list[Feature]) -> Tensor:
        """The kinds of features as the model takes them: (features,)."""
        as_numbers = self.settings.binary_link == "identity" and KindType.BINARY not in self.knowledge.kinds
        types = [feature.kind.type for feature in features]
        if as_numbers:
            types = [KindType.RATING if kind == KindType.BINARY else kind for kind in types]
        return torch.tensor(types, dtype=torch.int64)

    def with_own_units(self, feature: Feature) -> Feature:
        """Return a feature that finds its scale in units that fit its observations, whatever their size.

        The units only keep numbers exact: the scale itself is found by the adapter.
        """
        if not feature.finds_scale or self.middle is None or len(feature.values) == 0:
            return feature
        center, spread = float(feature.values.mean()), float(feature.values.std())
        scale = spread if spread > 1e-12 * abs(center) else abs(center) or self.middle.span
        return replace(feature, kind=Kind.real(center, scale))

    def _units_of(self, feature: Feature) -> tuple[float, float]:
        if not feature.finds_scale or self.middle is None:
            return 0.0, 0.0
        zero = (feature.kind.offset - self.middle.offset) / self.middle.span
        return zero, feature.kind.span / self.middle.span

    def batch_of(self, features: list[Feature]) -> FeatureBatch:
        """Turn features and their contexts into what adapters read."""
        counts = torch.tensor([len(feature.rows) for feature in features], dtype=torch.int64)
        scaled = [(feature.values - feature.kind.offset) / feature.kind.span for feature in features]
        return FeatureBatch(
            Cells(
                offsets(counts),
                torch.from_numpy(np.concatenate([feature.rows for feature in features])),
                torch.from_numpy(np.concatenate(scaled)).float(),
                len(self.rows),
            ),
            torch.from_numpy(np.stack([feature.metadata for feature in features])),
            self.kinds_of(features),
            torch.tensor([self._units_of(feature) for feature in features], dtype=torch.float64),
        )
