"""What a catalogue holds of one feature."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from headstart.model.parts.feature import Feature


class Entry(NamedTuple):
    """A feature and where its head lies."""

    feature: Feature
    slot: int  # of its head in the store
    evidence: Tensor | None  # the sums that the head rests on, if they are kept
    epoch: int  # of the roster, from whose states the sums were made
    number: int  # which stays the same as long as the feature is there, and is never given again

    @property
    def facts(self) -> tuple[float, float, float, float]:
        """Its kind, the offset and span of its scale, and whether it is as fitted."""
        kind, as_fitted = self.feature.kind, self.feature.in_backbone and not self.feature.observed_since
        return float(kind.type), kind.offset, kind.span, float(as_fitted)
