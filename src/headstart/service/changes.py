"""Check changes against the model, and commit them in batches."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sqlalchemy import Connection

from headstart.errors import HeadstartError, InputError
from headstart.model.inputs import encoded_rows, new_features, read_triples, require_clock, rows_of
from headstart.model.state import NO_ERRORS as NOT_JUDGED
from headstart.model.state import ErrorSums, ModelState
from headstart.model.updates import describe_surprises
from headstart.service.errors import Problem, error_at
from headstart.service.live_model import LiveModel, LiveState, apply
from headstart.service.store import (
    Cell,
    Delta,
    find_request,
    insert_feature,
    insert_observations,
    insert_row,
    record_request,
    remove_feature,
    remove_row,
)
from headstart.table.names import as_name
from headstart.table.reading import Columns
from headstart.table.times import time_of


@dataclass(frozen=True)
class Planned:
    """A change that was checked: what it does, and what to say of it."""

    delta: Delta
    arrived: ErrorSums = NOT_JUDGED  # how well its observations were foreseen
    said: dict[str, Any] = field(default_factory=dict)  # part of the answer; it has no names of rows
    warning: str | None = None


class Change(ABC):
    """A change. Of several that wait, observations are applied together."""

    merges = False

    @abstractmethod
    def plan(self, shown: ModelState) -> Planned:
        """Check it against the model as it is shown; bad input is an error."""

    @abstractmethod
    def record(self, connection: Connection, planned: Planned) -> int:
        """Write it to the store; return its number."""


def _time_of(shown: ModelState, time: float | str | None) -> float | None:
    """Return the time of the observations of a new feature or row; None if observations do not age."""
    with error_at("/time"):
        require_clock(shown, time)
        return shown.now if time is None else time_of(time, "time")


@dataclass(frozen=True)
class AddFeature(Change):
    """A new feature, with metadata and its first observations."""

    name: str
    metadata: Mapping[str, Any]
    observations: Mapping[str, float]
    kind: str | None = None
    time: float | str | None = None  # of the observations, if observations age; by default the newest

    def plan(self, shown: ModelState) -> Planned:
        """Check everything that is given of it."""
        name = as_name(self.name, "feature")
        if name in shown.catalogue:
            raise Problem(409, f"feature {name!r} is already in the model", "/name")
        with error_at("/metadata"):
            new_features(shown, {name: {"metadata": self.metadata}})
        with error_at("/kind"):
            new_features(shown, {name: {"kind": self.kind}})
        with error_at("/observations"):
            given = {"metadata": self.metadata, "observations": self.observations, "kind": self.kind}
            (feature,) = new_features(shown, {name: given})
        kind = self.kind if feature.finds_scale else str(feature.kind)
        time = _time_of(shown, self.time)
        cells = [
            Cell(as_name(row, "row"), name, float(value), time) for row, value in self.observations.items()
        ]
        delta = Delta(features={name: {"metadata": dict(feature.record or {}), "kind": kind}}, cells=cells)
        return Planned(delta, said={"name": name, "observations": len(cells)})

    def record(self, connection: Connection, planned: Planned) -> int:
        """Write it to the store."""
        ((name, given),) = planned.delta.features.items()
        return insert_feature(connection, name, given["metadata"], given["kind"], planned.delta.cells)


@dataclass(frozen=True)
class AddRow(Change):
    """A new row, with metadata and its first observations."""

    name: str
    metadata: Mapping[str, Any] | None
    observations: Mapping[str, float]
    time: float | str | None = None  # of the observations, if observations age; by default the newest

    def plan(self, shown: ModelState) -> Planned:
        """Check everything that is given of it."""
        name = as_name(self.name, "row")
        if name in shown.rows:
            raise Problem(409, f"row {name!r} is already in the model", "/name")
        with error_at("/metadata"):
            encoded_rows(shown.row_metadata, [name], {name: self.metadata} if self.metadata else None)
        with error_at("/observations"):
            rows_of(shown, {name: self.observations})
        time = _time_of(shown, self.time)
        cells = [
            Cell(name, shown.catalogue[feature].name, float(value), time)
            for feature, value in self.observations.items()
        ]
        delta = Delta(rows={name: dict(self.metadata) if self.metadata else None}, cells=cells)
        return Planned(delta, said={"observations": len(cells)})

    def record(self, connection: Connection, planned: Planned) -> int:
        """Write it to the store."""
        ((name, metadata),) = planned.delta.rows.items()
        return insert_row(connection, name, metadata, planned.delta.cells)


@dataclass(frozen=True)
class Observe(Change):
    """Observations of rows and features that are there."""

    triples: list[tuple[Any, ...]]  # (row, feature, value), and the time if observations age
    merges = True

    def plan(self, shown: ModelState) -> Planned:
        """Check each observation, and judge how well they were foreseen."""
        try:
            given = read_triples(shown, self.triples, Columns(None, None, None))
        except InputError as error:
            raise Problem(422, str(error), self._culprit(shown)) from None
        rows, names = shown.rows, [feature.name for feature in given.features]
        times = [None] * len(given.values) if given.times is None else given.times.tolist()
        lines = zip(given.rows, given.places, given.values.tolist(), times, strict=True)
        every = [Cell(rows[row], names[place], value, time) for row, place, value, time in lines]
        cells = [every[line] for line in np.argsort(given.order)]
        warning, arrived = describe_surprises(shown, given)
        before = shown.arrived
        judged = ErrorSums(
            arrived.observations - before.observations,
            arrived.excess - before.excess,
            arrived.squares - before.squares,
        )
        said = {"observations": len(cells), "features": len(names), "rows": len({cell.row for cell in cells})}
        return Planned(Delta(cells=cells), judged, said, warning)

    def _culprit(self, shown: ModelState) -> str:
        """Which of the observations cannot be taken by itself; the whole list if each of them can."""
        for place, triple in enumerate(self.triples):
            try:
                read_triples(shown, [triple], Columns(None, None, None))
            except InputError:
                return f"/observations/{place}"
        return "/observations"

    def record(self, connection: Connection, planned: Planned) -> int:
        """Write them to the store."""
        return insert_observations(connection, planned.delta.cells, planned.arrived)


@dataclass(frozen=True)
class RemoveFeature(Change):
    """A feature that is no longer wanted."""

    name: str

    def plan(self, shown: ModelState) -> Planned:
        """Check that it is there."""
        return Planned(Delta(lost_features=[shown.catalogue[self.name].name]))

    def record(self, connection: Connection, planned: Planned) -> int:
        """Write it to the store."""
        return remove_feature(connection, planned.delta.lost_features[0])


@dataclass(frozen=True)
class RemoveRow(Change):
    """The removal of a row and of everything stored about it."""

    name: str

    def plan(self, shown: ModelState) -> Planned:
        """Check that it is there."""
        return Planned(Delta(lost_rows=[shown.rows[shown.rows.position(self.name)]]))

    def record(self, connection: Connection, planned: Planned) -> int:
        """Delete all that the store holds of it."""
        return remove_row(connection, planned.delta.lost_rows[0])


_MOST = 256  # changes in one transaction


@dataclass(frozen=True)
class Receipt:
    """What is said of a change that is committed."""

    answer: dict[str, Any]
    planned: Planned | None = None
    repeated: bool = False  # whether the answer is that of an earlier request with the same key


@dataclass
class _Waiting:
    change: Change
    key: str | None
    digest: str
    future: Future[Receipt] = field(default_factory=Future)


class Writer:
    """Writes changes in a thread of its own; those that wait share one transaction.

    Parameters
    ----------
    live : LiveModel
        The model that is changed.
    count : callable
        Called after each commit with how long it took and the plans that were carried out.
    """

    def __init__(self, live: LiveModel, count: Callable[[float, list[Planned]], None]) -> None:
        self._live = live
        self._count = count
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headstart-writer", daemon=True)
        self._thread.start()

    def submit(self, change: Change, key: str | None = None, digest: str = "") -> Future[Receipt]:
        """Ask for a change; the future is done when it is committed, or has its error."""
        waiting = _Waiting(change, key, digest)
        self._queue.put(waiting)
        return waiting.future

    def close(self) -> None:
        """Finish what waits, and stop."""
        self._queue.put(None)
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while True:
            batch = [self._queue.get()]
            while len(batch) < _MOST and not self._queue.empty():
                batch.append(self._queue.get())
            wanted = [
                each for each in batch if each is not None and each.future.set_running_or_notify_cancel()
            ]
            if wanted:
                self._write(wanted)
            if None in batch:
                return

    def _write(self, batch: list[_Waiting]) -> None:
        try:
            done = self._committed(batch)
        except BaseException as error:
            if len(batch) > 1 and isinstance(error, InputError):
                for each in batch:  # one of them may be the reason
                    self._write([each])
                return
            batch[0].future.set_exception(error)
            for each in batch[1:]:
                each.future.set_exception(error)
            return
        for each, receipt in done:
            if isinstance(receipt, Receipt):
                each.future.set_result(receipt)
            else:
                each.future.set_exception(receipt)

    def _committed(self, batch: list[_Waiting]) -> list[tuple[_Waiting, Receipt | Exception]]:
        start = time.monotonic()
        done: list[tuple[_Waiting, Receipt | Exception]] = []
        live = self._live
        with live.lock:
            with live.store.writing() as connection:
                state = live.caught_up(connection)
                first = state
                merged: dict[tuple[str, str], Cell] = {}
                for each in batch:
                    if merged and not each.change.merges:
                        state, merged = self._applied(state, merged), {}
                    try:
                        receipt = self._taken(each, state, connection)
                    except HeadstartError as error:
                        done.append((each, error))
                        continue
                    done.append((each, receipt))
                    if receipt.planned is None:
                        continue
                    if each.change.merges:
                        merged |= {(cell.row, cell.feature): cell for cell in receipt.planned.delta.cells}
                    else:
                        state = apply(state, receipt.planned.delta)
                    state = replace(state, number=receipt.answer["number"])
                if merged:
                    state = self._applied(state, merged)
            if state is not first or state is not live.snapshot.state:
                live.publish(state)
        if any(isinstance(each.change, RemoveRow) for each in batch):
            live.store.clean()
        plans = [receipt.planned for _, receipt in done if isinstance(receipt, Receipt) and receipt.planned]
        self._count(time.monotonic() - start, plans)
        return done

    @staticmethod
    def _applied(state: LiveState, merged: dict[tuple[str, str], Cell]) -> LiveState:
        return apply(state, Delta(cells=list(merged.values())))

    @staticmethod
    def _taken(each: _Waiting, state: LiveState, connection: Connection) -> Receipt:
        """Check and record one change, unless its key has come before."""
        if each.key is not None:
            before = find_request(connection, each.key)
            if before is not None:
                if before[0] != each.digest:
                    raise Problem(409, "this idempotency key was used with another body; use a new key")
                return Receipt(before[1], repeated=True)
        planned = each.change.plan(state.model)
        number = each.change.record(connection, planned)
        answer = {**planned.said, "number": number}
        if each.key is not None:
            record_request(connection, each.key, each.digest, answer)
        return Receipt(answer, planned)
