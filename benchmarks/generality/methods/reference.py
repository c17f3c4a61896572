"""Run a peer as a method: scale its values, tune its settings on known features, scale predictions back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from methods.protocol import Peer
from problem import Context
from scipy.sparse import csr_matrix

from generality.methods.folding import FOLDABLE, folded, known_features
from generality.methods.protocol import Method, Said
from generality.ordered import Floats, Ints
from generality.scaling import Scaling
from generality.trial import Trial
from headstart.table.kinds import KindType

_EDGE = 0.005  # a number taken for a probability keeps so far from 0 and 1


class Reference(Method):
    """A peer that reads standardised values and predicts in data units, within the ends of the feature.

    It reads tables of several kinds as numbers, 0/1 too (see ``Scaling``).
    """

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    @property
    def settings(self) -> dict[str, Any]:  # type: ignore[override]
        """The settings of the peer."""
        return self.peer.settings

    def fit(self, trial: Trial) -> None:
        self.trial, self.scaling = trial, Scaling.of(trial)
        known, cells = trial.known, trial.new_cells
        values = (known.values - self.scaling.centre[known.feature_index]) / self.scaling.scale[
            known.feature_index
        ]
        kind = known.kinds[0]
        low, high = (kind.low, kind.high) if trial.one_kind != "real" else (-np.inf, np.inf)
        # The new features' own values are asked of no peer: contexts come by ``adapt``.
        self.problem = trial.problem(values, np.zeros(len(cells.value)), low, high)
        self.peer.fit(self.problem)

    def adapt(self, context: Context) -> tuple[Any, Floats, Floats]:
        centre, scale, cautious = self.scaling.new(context)
        scaled = (context.value - centre[context.feature]) / scale[context.feature]
        return self.peer.adapt(replace(context, value=scaled)), centre, cautious

    def predict(self, adapted: tuple[Any, Floats, Floats], feature: Ints, row: Ints) -> Said:
        return self._said(self.peer, adapted, feature, row, self.trial.new)

    def fold(self, feature: Ints, row: Ints, value: Floats) -> Peer | None:
        if not isinstance(self.peer, FOLDABLE):
            return None
        scaled = (value - self.scaling.centre[feature]) / self.scaling.scale[feature]
        shape = len(self.trial.held_rows), len(self.trial.known.features)
        features = known_features(self.peer, self.problem)
        return folded(self.peer, features, csr_matrix((scaled, (row, feature)), shape=shape))

    def predict_rows(self, folded: Peer, adapted: Any | None, feature: Ints, row: Ints) -> Said:
        if adapted is not None:
            return self._said(folded, adapted, feature, row, self.trial.new)
        known = known_features(self.peer, self.problem), self.scaling.centre, self.scaling.scale
        return self._said(folded, known, feature, row, self.trial.known)

    def _said(self, peer: Peer, adapted: Any, feature: Ints, row: Ints, table: Any) -> Said:
        inner, centre, scale = adapted
        mean = centre[feature] + scale[feature] * peer.predict(inner, feature, row)
        low, high = (np.array([getattr(kind, end) for kind in table.kinds]) for end in ("low", "high"))
        if self.trial.mixed:
            binary = table.kinds.types == KindType.BINARY
            low, high = np.where(binary, _EDGE, low), np.where(binary, 1 - _EDGE, high)
        return Said(np.clip(mean, low[feature], high[feature]))
