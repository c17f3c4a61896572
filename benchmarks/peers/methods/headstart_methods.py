"""Run Headstart by its public methods: fit, add_features, predict, remove_feature."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from problem import Context, Floats, Ints, Problem

from headstart import Headstart, Table
from headstart.errors import InputError
from headstart.table import Kinds, Names
from methods.protocol import Peer

SETTINGS: dict[str, dict[str, Any]] = {
    "headstart": {},
    "chn (paper)": {"backbone": "pvae", "adapter": "chn", "meta_share": 1 / 3},
}
BATCH = 128  # features added, or predicted, at once


@dataclass
class HeadstartPeer(Peer):
    """A Headstart with the given settings, fitted on known features; new ones are added and removed."""

    given: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def fit(self, problem: Problem) -> None:
        known, new = self._named(problem)
        self.model = self._model().fit(known)
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
        tested = np.flatnonzero(context.tested).tolist()
        for start in range(0, len(tested), BATCH):
            self.model.add_features(
                {
                    self._names[j]: {"metadata": self._metadata[j] or None, "observations": observed[j]}
                    for j in tested[start : start + BATCH]
                }
            )
        self._added = [self._names[j] for j in tested]
        return self.model

    def predict(self, adapted: Headstart, feature: Ints, row: Ints) -> Floats:
        mean, self._std = np.empty(len(feature)), np.empty(len(feature))
        asked = np.unique(feature)
        for part in np.split(asked, range(BATCH, len(asked), BATCH)):
            found = adapted.predict(rows=self._rows, features=[self._names[j] for j in part])
            here = np.isin(feature, part)
            at = (row[here], np.searchsorted(part, feature[here]))
            mean[here], self._std[here] = found.mean[at], found.std[at]
        return mean

    def spread(self) -> Floats:
        return self._std

    def _model(self) -> Headstart:
        return Headstart(**{"random_state": self.seed, "quiet": True, **self.given})

    def _named(self, problem: Problem) -> tuple[Table, Table]:
        """Return the tables of known and new features, and store the names of new features and of rows."""
        if problem.tables is None:
            raise InputError("Headstart needs a problem with its tables; make it by Problem.of_split()")
        known, new = problem.tables
        self._names, self._rows = list(new.features), list(new.rows)
        return known, new


@dataclass
class HeadstartRetrained(HeadstartPeer):
    """Headstart fitted from scratch with the new features' contexts in its table: nothing is added."""

    shots: ClassVar = (8, 32, 128)

    def fit(self, problem: Problem) -> None:
        self._tables = self._named(problem)

    def adapt(self, context: Context) -> Headstart:
        return self._model().fit(joined(*self._tables, context))


def joined(known: Table, new: Table, context: Context) -> Table:
    """Return the table of known features and of tested new features with only their contexts."""
    new = new.with_features(context.tested)
    place = np.cumsum(context.tested) - 1 + len(known.features)
    width = len(known.features) + len(new.features)
    row = np.concatenate([known.row_index, context.row]).astype(np.int64)  # a product with the width follows
    feature = np.concatenate([known.feature_index, place[context.feature]])
    value = np.concatenate([known.values, context.value])
    order = np.argsort(row * width + feature)
    described = known.metadata is not None and new.metadata is not None
    return replace(
        known,
        features=Names([*known.features, *new.features], "feature"),
        kinds=Kinds([*known.kinds, *new.kinds]),
        row_index=row[order],
        feature_index=feature[order],
        values=value[order],
        metadata=pa.concat_tables([known.metadata, new.metadata]) if described else None,
    )
