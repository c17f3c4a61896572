"""Run Headstart by its public methods: fit, add_features, predict, remove_feature."""

from __future__ import annotations

from typing import Any

import numpy as np
from problem import Context

from generality.methods.protocol import LEVELS, Method, Said
from generality.ordered import Floats, Ints
from generality.scaling import Scaling
from generality.trial import Trial
from headstart import Headstart, Prediction
from headstart.table.kinds import KindType

BATCH = 128  # features added, or predicted, at once


class HeadstartMethod(Method):
    """Headstart with its defaults and a seed.

    In a table of one kind, new features are added without a kind. Otherwise the kind is passed. A real with a
    scale of its own is passed as "real" from 2 shots on, where Headstart infers the scale; below, and always
    with ``tell_scales``, it is passed with the centre and scale that the references use.
    """

    def __init__(self, tell_scales: bool = False, **given: Any) -> None:
        self.tell_scales = tell_scales
        self.settings = given

    def fit(self, trial: Trial) -> None:
        self.trial, self.scaling = trial, Scaling.of(trial)
        self.model = Headstart(**{"random_state": 0, "quiet": True, **self.settings}).fit(trial.known)
        new = trial.new
        self._names, self._rows = list(new.features), list(new.rows)
        lines = [{}] * len(self._names) if new.metadata is None else new.metadata.to_pylist()
        self._metadata = [{k: v for k, v in line.items() if v is not None} for line in lines]
        self._added: list[str] = []

    def adapt(self, context: Context) -> Headstart:
        for name in self._added:
            self.model.remove_feature(name)
        observed: list[dict[str, float]] = [{} for _ in self._names]
        for feature, row, value in zip(
            context.feature.tolist(), context.row.tolist(), context.value.tolist(), strict=True
        ):
            observed[feature][self._rows[row]] = value
        kinds, tested = self._kinds(context), np.flatnonzero(context.tested).tolist()
        for start in range(0, len(tested), BATCH):
            self.model.add_features(
                {
                    self._names[j]: {
                        "metadata": self._metadata[j] or None, "observations": observed[j], "kind": kinds[j],
                    }
                    for j in tested[start : start + BATCH]
                }
            )  # fmt: skip
        self._added = [self._names[j] for j in tested]
        return self.model

    def predict(self, adapted: Headstart, feature: Ints, row: Ints) -> Said:  # noqa: ARG002
        return self._said_of_new(self._rows, feature, row)

    def fold(self, feature: Ints, row: Ints, value: Floats) -> dict[str, dict[str, float]]:
        names = list(self.trial.known.features)
        rows: dict[str, dict[str, float]] = {name: {} for name in self.trial.held_rows}
        for j, i, x in zip(feature.tolist(), row.tolist(), value.tolist(), strict=True):
            rows[self.trial.held_rows[i]][names[j]] = x
        return rows

    def predict_rows(self, folded: dict[str, Any], adapted: Any | None, feature: Ints, row: Ints) -> Said:
        if adapted is not None:
            return self._said_of_new(folded, feature, row)
        return self._said(folded, list(self.trial.known.features), feature, row)

    def _said_of_new(self, rows: Any, feature: Ints, row: Ints) -> Said:
        said = self._said(rows, self._names, feature, row)
        chances = (self.trial.new.kinds.types == KindType.BINARY)[feature]
        said.mean[chances] = said.mean[chances].clip(0, 1)  # of columns that were read as numbers
        return said

    def _said(self, rows: Any, names: list[str], feature: Ints, row: Ints) -> Said:
        mean = np.empty(len(feature))
        intervals = {level: (np.empty(len(feature)), np.empty(len(feature))) for level in LEVELS}
        asked = np.unique(feature)
        for part in np.split(asked, range(BATCH, len(asked), BATCH)):
            found: Prediction = self.model.predict(rows=rows, features=[names[j] for j in part])
            here = np.isin(feature, part)
            at = (row[here], np.searchsorted(part, feature[here]))
            mean[here] = found.mean[at]
            for level, ends in intervals.items():
                for end, values in zip(ends, found.interval(level), strict=True):
                    end[here] = values[at]
        return Said(mean, intervals)

    def _kinds(self, context: Context) -> list[str | None]:
        """Return the kind to pass for each new feature."""
        kinds = self.trial.new.kinds
        if not (self.trial.own_scales or self.trial.mixed):
            return [None] * len(kinds)
        centre, scale, _ = self.scaling.new(context)
        fitted = {kind.type for kind in self.trial.known.kinds}
        return [
            "real"  # a kind that no known feature has is refused, and the message says to read it as numbers
            if kind.type not in fitted
            else str(kind)
            if kind.type != KindType.REAL or not self.trial.own_scales
            else f"real:{c!r}:{s!r}"
            if self.tell_scales
            else kind.name
            for kind, c, s in zip(kinds, centre.tolist(), scale.tolist(), strict=True)
        ]
