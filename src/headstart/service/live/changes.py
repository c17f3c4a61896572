"""The changes that arrive, each checked against the model before it is recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from headstart.errors import InputError
from headstart.model.changing.surprise import surprise
from headstart.model.inputs.intake import new_features, rows_of
from headstart.model.inputs.row_records import encoded_rows
from headstart.model.inputs.triples import read_triples
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.staleness import NOTHING as NOT_JUDGED
from headstart.model.parts.staleness import Arrived
from headstart.service.live.delta import Cell, Delta
from headstart.service.problems import Problem, located
from headstart.service.store import writing
from headstart.table.names import as_name
from headstart.table.readers import Columns


@dataclass(frozen=True)
class Planned:
    """A change that was checked: what it does, and what to say of it."""

    delta: Delta
    arrived: Arrived = NOT_JUDGED  # how well its observations were foreseen
    said: dict[str, Any] = field(default_factory=dict)  # part of the answer; it has no names of rows
    warning: str | None = None


class Change(ABC):
    """A change. Of several that wait, observations are applied together."""

    merges = False

    @abstractmethod
    def plan(self, shown: Fitted) -> Planned:
        """Check it against the model as it is shown; bad input is an error."""

    @abstractmethod
    def record(self, connection: Connection, planned: Planned) -> int:
        """Write it to the store; return its number."""


@dataclass(frozen=True)
class AddFeature(Change):
    """A new feature, with metadata and its first observations."""

    name: str
    metadata: Mapping[str, Any]
    observations: Mapping[str, float]
    kind: str | None = None

    def plan(self, shown: Fitted) -> Planned:
        """Check everything that is given of it."""
        name = as_name(self.name, "feature")
        if name in shown.catalogue:
            raise Problem(409, f"feature {name!r} is already in the model", "/name")
        with located("/metadata"):
            new_features(shown, {name: {"metadata": self.metadata}})
        with located("/kind"):
            new_features(shown, {name: {"kind": self.kind}})
        with located("/observations"):
            given = {"metadata": self.metadata, "observations": self.observations, "kind": self.kind}
            (feature,) = new_features(shown, {name: given})
        kind = self.kind if feature.finds_scale else str(feature.kind)
        cells = [Cell(as_name(row, "row"), name, float(value)) for row, value in self.observations.items()]
        delta = Delta(features={name: {"metadata": dict(feature.record or {}), "kind": kind}}, cells=cells)
        return Planned(delta, said={"name": name, "observations": len(cells)})

    def record(self, connection: Connection, planned: Planned) -> int:
        """Write it to the store."""
        ((name, given),) = planned.delta.features.items()
        return writing.insert_feature(connection, name, given["metadata"], given["kind"], planned.delta.cells)


@dataclass(frozen=True)
class AddRow(Change):
    """A new row, with metadata and its first observations."""

    name: str
    metadata: Mapping[str, Any] | None
    observations: Mapping[str, float]

    def plan(self, shown: Fitted) -> Planned:
        """Check everything that is given of it."""
        name = as_name(self.name, "row")
        if name in shown.rows:
            raise Problem(409, f"row {name!r} is already in the model", "/name")
        with located("/metadata"):
            encoded_rows(shown.row_metadata, [name], {name: self.metadata} if self.metadata else None)
        with located("/observations"):
            rows_of(shown, {name: self.observations})
        cells = [
            Cell(name, shown.catalogue[feature].name, float(value))
            for feature, value in self.observations.items()
        ]
        delta = Delta(rows={name: dict(self.metadata) if self.metadata else None}, cells=cells)
        return Planned(delta, said={"observations": len(cells)})

    def record(self, connection: Connection, planned: Planned) -> int:
        """Write it to the store."""
        ((name, metadata),) = planned.delta.rows.items()
        return writing.insert_row(connection, name, metadata, planned.delta.cells)


@dataclass(frozen=True)
class Observe(Change):
    """Observations of rows and features that are there."""

    triples: list[tuple[str, str, float]]
    merges = True

    def plan(self, shown: Fitted) -> Planned:
        """Check each observation, and judge how well they were foreseen."""
        try:
            given = read_triples(shown, self.triples, Columns(None, None, None))
        except InputError as error:
            raise Problem(422, str(error), self._culprit(shown)) from None
        rows, names = shown.rows, [feature.name for feature in given.features]
        known = {
            (rows[row], names[place]): value
            for row, place, value in zip(given.rows, given.places, given.values.tolist(), strict=True)
        }
        named = (
            (rows[int(rows.position(row))], shown.catalogue[feature].name) for row, feature, _ in self.triples
        )
        cells = [Cell(row, feature, known[row, feature]) for row, feature in dict.fromkeys(named)]
        warning, arrived = surprise(shown, given)
        before = shown.arrived
        judged = Arrived(
            arrived.observations - before.observations,
            arrived.excess - before.excess,
            arrived.squares - before.squares,
        )
        said = {"observations": len(cells), "features": len(names), "rows": len({cell.row for cell in cells})}
        return Planned(Delta(cells=cells), judged, said, warning)

    def _culprit(self, shown: Fitted) -> str:
        """Which of the observations cannot be taken by itself; the whole list if each of them can."""
        for place, triple in enumerate(self.triples):
            try:
                read_triples(shown, [triple], Columns(None, None, None))
            except InputError:
                return f"/observations/{place}"
        return "/observations"

    def record(self, connection: Connection, planned: Planned) -> int:
        """Write them to the store."""
        return writing.insert_observations(connection, planned.delta.cells, planned.arrived)


@dataclass(frozen=True)
class RemoveFeature(Change):
    """A feature that is no longer wanted."""

    name: str

    def plan(self, shown: Fitted) -> Planned:
        """Check that it is there."""
        return Planned(Delta(lost_features=[shown.catalogue[self.name].name]))

    def record(self, connection: Connection, planned: Planned) -> int:
        """Write it to the store."""
        return writing.remove_feature(connection, planned.delta.lost_features[0])


@dataclass(frozen=True)
class ForgetRow(Change):
    """A row of which nothing may be left."""

    name: str

    def plan(self, shown: Fitted) -> Planned:
        """Check that it is there."""
        return Planned(Delta(lost_rows=[shown.rows[shown.rows.position(self.name)]]))

    def record(self, connection: Connection, planned: Planned) -> int:
        """Delete all that the store holds of it."""
        return writing.forget_row(connection, planned.delta.lost_rows[0])
