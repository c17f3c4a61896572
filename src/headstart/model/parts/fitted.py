"""The parts of a fitted model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.adapters.protocol import Adapter, StreamingAdapter
from headstart.algebra.symmetric import LinAlgError
from headstart.backbones.protocol import Backbone
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.states import RowStates
from headstart.model.parts.catalogue import Catalogue, Evidence
from headstart.model.parts.clock import Clock
from headstart.model.parts.extremes import are_finite, cancelled, too_extreme
from headstart.model.parts.feature import Feature
from headstart.model.parts.roster import Roster
from headstart.model.parts.row_metadata import RowMetadata
from headstart.model.parts.settings import Settings
from headstart.model.parts.staleness import NOTHING, Arrived
from headstart.model.parts.units import in_own_units
from headstart.model.parts.widening import widened
from headstart.table import Cells, Kind, MetadataSchema, Names
from headstart.table.cells import offsets
from headstart.table.encoders import EncoderLike
from headstart.table.kinds import KindType
from headstart.training.calibration import USUAL_LEVEL, Calibration
from headstart.training.judge import Judgement


@dataclass(frozen=True)
class Fitted:
    """What a model holds after fit. It never changes: a change gives another one that shares the rest.

    So whoever holds one may read it while another thread changes the model.
    """

    settings: Settings  # those that really ran
    roster: Roster  # the rows, with their states as the adapter's heads read them
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
    row_metadata: RowMetadata | None = None  # and what it says of rows
    arrived: Arrived = NOTHING  # how well was foreseen what was observed since fit
    clock: Clock | None = None  # of observations that age; None if they do not

    @property
    def rows(self) -> Names:
        """The names of the rows."""
        return self.roster.names

    @property
    def now(self) -> float | None:
        """The newest time that the model knows, if observations age."""
        return None if self.clock is None else self.clock.now

    @property
    def states(self) -> RowStates:
        """The states of all rows, as the adapter's heads read them."""
        return self.roster.states

    def observers(self, feature: Feature) -> NDArray[np.int64]:
        """The rows that observed a feature, as its head or their own states know, in order."""
        return np.union1d(feature.rows, self.roster.tellers(self.catalogue.number(feature.name)))

    @torch.no_grad()
    def adapted(self, features: list[Feature]) -> Fitted:
        """Return the model with heads for these features, by one pass of the adapter."""
        return self.holding(features, self.heads_for(features))

    @torch.no_grad()
    def heads_for(self, features: list[Feature]) -> Heads:
        """The heads that the adapter gives these features, as the model keeps them."""
        batch, states = self._read_by(features)
        try:
            heads = self.adapter.adapt(batch, states)
        except LinAlgError:
            sizes = [float(np.abs(feature.values).max(initial=0)) for feature in features]
            raise too_extreme(features[int(np.argmax(sizes))]) from None
        return self._kept(features, heads, batch, states)

    @torch.no_grad()
    def observed(
        self,
        feature: Feature,
        rows: NDArray[np.int64],
        values: NDArray[np.float64],
        times: NDArray[np.float64] | None = None,
    ) -> Fitted:
        """Return the model with one feature refined: from sums over its observations if there are such."""
        after, adapter = self.with_own_units(feature.observed(rows, values, times)), self._streaming(feature)
        if adapter is None:
            return self.adapted([after])

        def evidence(of: Feature) -> Tensor:
            return adapter.evidence(*self._read_by([of]))

        sums = self.catalogue.evidence_of(feature.name, self.roster.epoch)
        # When time goes on, all observations fade alike, and their sums with them.
        faded = sums if sums is None or self.clock is None else sums * self.clock.faded(feature.now)
        before = evidence(feature) if faded is None else faded
        gone = evidence(feature.among(rows))
        total = before - gone + evidence(after.among(rows))
        if cancelled(before, gone, total):
            total = evidence(after)
        batch, states = self._read_by([after])
        heads = self._kept([after], adapter.solve(total, batch), batch, states)
        return self.holding([after], heads, [total])

    @torch.no_grad()
    def refined(self, feature: Feature) -> Fitted:
        """Return the model with one feature's head made anew, from sums over its observations if possible."""
        adapter = self._streaming(feature)
        if adapter is None:
            return self.adapted([feature])
        batch, states = self._read_by([feature])
        total = adapter.evidence(batch, states)
        heads = self._kept([feature], adapter.solve(total, batch), batch, states)
        return self.holding([feature], heads, [total])

    def _streaming(self, feature: Feature) -> StreamingAdapter | None:
        """The adapter, if it makes this feature's head from sums over observations."""
        adapter = self.adapter
        if not isinstance(adapter, StreamingAdapter) or feature.finds_scale:  # it changes with every one
            return None
        return adapter if bool(adapter.streams(self.kinds_of([feature]))) else None

    def with_roster(self, roster: Roster) -> Fitted:
        """Return the model with these rows instead."""
        return replace(self, roster=roster)

    def without(self, name: object) -> Fitted:
        """Return the model without a feature."""
        return replace(self, catalogue=self.catalogue.remove(name))

    def renamed(self, feature: Feature, name: str) -> Fitted:
        """Return the model in which a feature has another name."""
        own = self.backbone_features
        if feature.in_backbone:
            own = Names([name if each == feature.name else each for each in own], "feature")
        return replace(self, catalogue=self.catalogue.renamed(feature.name, name, own), backbone_features=own)

    def _kept(self, features: list[Feature], heads: Heads, batch: FeatureBatch, states: RowStates) -> Heads:
        for feature, finite in zip(features, are_finite(heads), strict=True):
            if not finite:
                raise too_extreme(feature)
        return self.honest(heads, batch, states)

    def holding(self, features: list[Feature], heads: Heads, evidence: Evidence | None = None) -> Fitted:
        """Return the model with these features, whose heads were computed now, from these sums if any."""
        if self.clock is not None:
            features = [replace(feature, now=self.clock.now) for feature in features]
        return replace(self, catalogue=self.catalogue.put(features, heads, evidence, self.roster.epoch))

    def honest(self, heads: Heads, batch: FeatureBatch, states: RowStates) -> Heads:
        """Heads as the model keeps them: less sure of themselves where their observations surprise."""
        factors = self.calibration.factor(batch.shots, batch.kinds)[:, USUAL_LEVEL]
        return widened(heads, batch, states, factors, self.knowledge.likelihood)

    def _read_by(self, features: list[Feature]) -> tuple[FeatureBatch, RowStates]:
        """Features as adapters read them, and the states that their contexts point at.

        Of one feature only the states of its own rows are gathered: all of them would cost more.
        """
        batch = self.batch_of(features)
        if len(features) > 1 or not isinstance(self.adapter, StreamingAdapter):
            return batch, self.states
        here = replace(
            batch.cells, index=torch.arange(batch.cells.index.numel()), width=len(features[0].rows)
        )
        return batch.observing(here), self.roster.take(features[0].rows)

    def kinds_of(self, features: list[Feature]) -> Tensor:
        """The kinds of features as the model takes them: (features,)."""
        return self.modelled(torch.tensor([feature.kind.type for feature in features], dtype=torch.int64))

    def modelled(self, types: Tensor) -> Tensor:
        """Types of kinds as the model takes them: like ``types``."""
        if not self.binary_as_numbers:
            return types
        return torch.where(types == KindType.BINARY, int(KindType.RATING), types)

    @property
    def binary_as_numbers(self) -> bool:
        """Whether 0 and 1 are taken as numbers."""
        return self.settings.binary_link == "identity" and KindType.BINARY not in self.knowledge.kinds

    def with_own_units(self, feature: Feature) -> Feature:
        """Return a feature that finds its scale in units that fit its observations."""
        return in_own_units([feature], self.middle)[0]

    def _units_of(self, feature: Feature) -> tuple[float, float]:
        if not feature.finds_scale or self.middle is None:
            return 0.0, 0.0
        zero = (feature.kind.offset - self.middle.offset) / self.middle.span
        return zero, feature.kind.span / self.middle.span

    def batch_of(self, features: list[Feature]) -> FeatureBatch:
        """Turn features and their contexts into what adapters read."""
        counts = torch.tensor([len(feature.rows) for feature in features], dtype=torch.int64)
        scales = np.array([(feature.kind.offset, feature.kind.span) for feature in features])
        offset, span = np.repeat(scales, counts.numpy(), axis=0).T
        scaled = (np.concatenate([feature.values for feature in features]) - offset) / span
        return FeatureBatch(
            Cells(
                offsets(counts),
                torch.from_numpy(np.concatenate([feature.rows for feature in features])),
                torch.from_numpy(scaled).float(),
                len(self.rows),
                self._weights(features),
            ),
            torch.from_numpy(np.stack([feature.metadata for feature in features])),
            self.kinds_of(features),
            torch.tensor([self._units_of(feature) for feature in features], dtype=torch.float64),
            known=self._known(features),
        )

    def _weights(self, features: list[Feature]) -> Tensor | None:
        """How much each observation of these features counts, if observations age: (n,)."""
        times = [feature.times for feature in features if feature.times is not None]
        if self.clock is None or len(times) < len(features):
            return None
        return torch.from_numpy(self.clock.weights(np.concatenate(times))).float()

    def _known(self, features: list[Feature]) -> Tensor:
        """The positions of features among the backbone's own; −1 for others: (features,)."""
        positions = torch.full((len(features),), -1)
        known = [i for i, feature in enumerate(features) if feature.in_backbone]
        if known:
            names = [features[i].name for i in known]
            positions[known] = torch.from_numpy(self.backbone_features.positions(names))
        return positions
