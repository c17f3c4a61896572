"""Check changes against the model, and commit them in batches.

Each kind of change is a class: ``plan`` checks it and ``record`` writes it to the store. The ``Writer`` of a
worker commits the changes that are waiting.
"""

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

from headstart.errors import HeadstartError, InputError, service_request
from headstart.model.inputs import (
    answers_of,
    check_new_features,
    check_rows,
    describe_unusual,
    encode_row_metadata,
)
from headstart.model.levels import category_columns, columns_of, expand_new_features, require_whole
from headstart.model.staleness import NO_ERRORS, ErrorSums
from headstart.model.state import ModelState
from headstart.model.triples import read_triples, require_clock
from headstart.model.updates import compare_with_predictions
from headstart.service.database import UnavailableError
from headstart.service.errors import Problem, error_at
from headstart.service.live_model import LiveModel, LiveState, apply
from headstart.service.store import (
    Cell,
    Delta,
    find_request,
    insert_feature,
    insert_observations,
    insert_row,
    record_requests,
    remove_feature,
    remove_row,
    request_digest,
)
from headstart.table import Kinds
from headstart.table.names import as_name
from headstart.table.reading import Columns
from headstart.table.times import time_of


@dataclass(frozen=True)
class Plan:
    """The effect of a checked change, and its answer."""

    delta: Delta
    arrived: ErrorSums = NO_ERRORS  # prediction errors of its observations
    answer: dict[str, Any] = field(default_factory=dict)  # fields of the response; it has no names of rows
    warning: str | None = None


class Change(ABC):
    """The base class of changes."""

    merges = False  # whether consecutive changes of this kind are applied to the model together

    @abstractmethod
    def plan(self, model: ModelState) -> Plan:
        """Check the change against a model; invalid input raises an error."""

    @abstractmethod
    def record(self, connection: Connection, plan: Plan) -> int:
        """Write the change to the store; return its number."""


def _read_time(model: ModelState, time: float | str | None) -> float | None:
    """Return the time of the observations of a new feature or row; None if observations do not age."""
    with error_at("/time"):
        require_clock(model, time)
        return model.now if time is None else time_of(time, "time")


_UNOBSERVED: dict[str, Any] = {"observations": None, "kind": None, "levels": None, "weight": None}


@dataclass(frozen=True)
class AddFeature(Change):
    """Add a feature, with metadata and its first observations."""

    name: str
    metadata: Mapping[str, Any]
    observations: Mapping[str, float | str]
    kind: str | None = None
    time: float | str | None = None  # of the observations, if they age; by default the time of the newest one
    levels: Mapping[str, Mapping[str, Any]] | None = None  # the metadata of the levels of a category
    weight: float | Mapping[str, float] | None = None  # of the observations, or by row; None: 1

    def plan(self, model: ModelState) -> Plan:
        """Check the name, metadata, kind and observations."""
        name = as_name(self.name, "feature")
        if name in model.feature_store or category_columns(model, name):
            raise Problem(409, f"feature {name!r} is already in the model", "/name")
        feature_parts = {"metadata": self.metadata, "observations": self.observations, "kind": self.kind}
        with error_at("/kind"):
            new = expand_new_features(model, {name: {**feature_parts, "levels": self.levels}})
            columns = {column: {**parts, "levels": None} for column, parts in new.items()}
        with error_at("/metadata"):
            check_new_features(model, {column: {**parts, **_UNOBSERVED} for column, parts in columns.items()})
        with error_at("/kind"):
            check_new_features(model, {column: {"kind": parts["kind"]} for column, parts in columns.items()})
        with error_at("/observations"):
            features = check_new_features(model, columns)
        with error_at("/weight"):
            weighted = {column: {**parts, "weight": self.weight} for column, parts in columns.items()}
            features = check_new_features(model, weighted)
        time = _read_time(model, self.time)
        described: dict[str, dict[str, Any]] = {}
        cells: list[Cell] = []
        for feature, parts in zip(features, columns.values(), strict=True):
            kind = self.kind if feature.finds_scale else str(feature.kind)
            described[feature.name] = {"metadata": dict(feature.record or {}), "kind": kind}
            numbers = feature.kind.margin.to_value(feature.values).tolist()
            weights = [None] * len(numbers) if feature.weights is None else feature.weights.tolist()
            values = dict(zip(feature.rows.tolist(), zip(numbers, weights, strict=True), strict=True))
            for row in parts["observations"]:
                value, weight = values[model.rows.position(row)]
                cells.append(Cell(as_name(row, "row"), feature.name, value, time, weight))
        notes = describe_unusual(model.schema, [feature.record for feature in features])
        answer = {"name": name, "observations": len(self.observations)} | ({"notes": notes} if notes else {})
        return Plan(Delta(features=described, cells=cells), answer=answer)

    def record(self, connection: Connection, plan: Plan) -> int:
        """Write the change to the store."""
        number = 0
        for name, parts in plan.delta.features.items():
            cells = [cell for cell in plan.delta.cells if cell.feature == name]
            number = insert_feature(connection, name, parts["metadata"], parts["kind"], cells)
        return number


@dataclass(frozen=True)
class AddRow(Change):
    """Add a row, with metadata and its first observations."""

    name: str
    metadata: Mapping[str, Any] | None
    observations: Mapping[str, float | str]
    time: float | str | None = None  # of the observations, if they age; by default the time of the newest one

    def plan(self, model: ModelState) -> Plan:
        """Check the name, metadata and observations."""
        name = as_name(self.name, "row")
        if name in model.rows:
            raise Problem(409, f"row {name!r} is already in the model", "/name")
        with error_at("/metadata"):
            metadata = {name: self.metadata} if self.metadata else None
            records, _ = encode_row_metadata(model.row_metadata, [name], metadata)
        with error_at("/observations"):
            answers = answers_of(model, name, self.observations)
            check_rows(model, {name: answers})
        time = _read_time(model, self.time)
        cells = [
            Cell(name, model.feature_store[feature].name, float(value), time)
            for feature, value in answers.items()
        ]
        delta = Delta(rows={name: dict(self.metadata) if self.metadata else None}, cells=cells)
        notes = describe_unusual(model.row_metadata.schema, records) if model.row_metadata else []
        # Without the name: answers to requests with a key are stored, and removed rows must leave no name.
        return Plan(delta, answer={"observations": len(cells)} | ({"notes": notes} if notes else {}))

    def record(self, connection: Connection, plan: Plan) -> int:
        """Write the change to the store."""
        ((name, metadata),) = plan.delta.rows.items()
        return insert_row(connection, name, metadata, plan.delta.cells)


@dataclass(frozen=True)
class Observe(Change):
    """Add observations of rows and features of the model."""

    triples: list[tuple[Any, ...]]  # (row, feature, value), and the time if observations age
    weights: list[float | None] | None = None  # of each, None: 1
    merges = True

    def plan(self, model: ModelState) -> Plan:
        """Check each observation, and compute the prediction errors of all of them."""
        try:
            triples = read_triples(model, self.triples, Columns(), weight=self._weights())
        except InputError as error:
            raise Problem(422, str(error), self._find_invalid(model)) from None
        rows, names = model.rows, [feature.name for feature in triples.features]
        times, weights = (
            [None] * len(triples.values) if part is None else part.tolist()
            for part in (triples.times, triples.weights)
        )
        kinds = Kinds([feature.kind for feature in triples.features])
        values = kinds.values(triples.values, triples.feature_positions).tolist()
        lines = zip(triples.rows, triples.feature_positions, values, times, weights, strict=True)
        sorted_cells = [Cell(rows[row], names[feature], *parts) for row, feature, *parts in lines]
        cells = [sorted_cells[line] for line in np.argsort(triples.order)]
        warning, excess = compare_with_predictions(model, triples)
        counts = {
            "observations": len(cells),
            "features": len(names),
            "rows": len({cell.row for cell in cells}),
        }
        return Plan(Delta(cells=cells), NO_ERRORS.add(excess), counts, warning)

    def _weights(self) -> list[float] | None:
        """Return the weight of each observation; None if all are 1."""
        if self.weights is None:
            return None
        return [1.0 if weight is None else weight for weight in self.weights]

    def _find_invalid(self, model: ModelState) -> str:
        """Return the JSON pointer of the first invalid observation, or of all if each is valid alone."""
        for position, triple in enumerate(self.triples):
            try:
                weight = None if self.weights is None else self.weights[position]
                read_triples(model, [triple], Columns(), weight=weight)
            except InputError:
                return f"/observations/{position}"
        return "/observations"

    def record(self, connection: Connection, plan: Plan) -> int:
        """Write the change to the store."""
        return insert_observations(connection, [(plan.delta.cells, plan.arrived)])[0]


@dataclass(frozen=True)
class RemoveFeature(Change):
    """Remove a feature and its observations."""

    name: str

    def plan(self, model: ModelState) -> Plan:
        """Check that the name is in the model."""
        require_whole(model, self.name, "remove")
        columns = columns_of(model, [self.name])
        return Plan(Delta(removed_features=[model.feature_store[column].name for column in columns]))

    def record(self, connection: Connection, plan: Plan) -> int:
        """Write the change to the store."""
        return [remove_feature(connection, name) for name in plan.delta.removed_features][-1]


@dataclass(frozen=True)
class RemoveRow(Change):
    """Remove a row and everything that the store has of it."""

    name: str

    def plan(self, model: ModelState) -> Plan:
        """Check that the name is in the model."""
        return Plan(Delta(removed_rows=[model.rows[model.rows.position(self.name)]]))

    def record(self, connection: Connection, plan: Plan) -> int:
        """Delete the row from the store."""
        return remove_row(connection, plan.delta.removed_rows[0])


_MAX_BATCH = 256  # changes in one transaction


@dataclass(frozen=True)
class Receipt:
    """The answer to a committed change."""

    answer: dict[str, Any]
    plan: Plan | None = None
    repeated: bool = False  # whether the answer is that of an earlier request with the same key


@dataclass
class _Request:
    """A change that waits for its commit, with the idempotency key and the body of the request."""

    change: Change
    key: str | None
    body: bytes
    future: Future[Receipt] = field(default_factory=Future)


class Writer:
    """A thread that commits changes; changes that wait at the same time share one transaction.

    Parameters
    ----------
    live : LiveModel
        The model that is changed.
    count : callable
        Called after each commit with its seconds and the plans of its changes.
    """

    def __init__(self, live: LiveModel, count: Callable[[float, list[Plan]], None]) -> None:
        self._live = live
        self._count = count
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headstart-writer", daemon=True)
        self._thread.start()

    def submit(self, change: Change, key: str | None = None, body: bytes = b"") -> Future[Receipt]:
        """Queue a change; the future has its receipt or error once the commit is done."""
        request = _Request(change, key, body)
        self._queue.put(request)
        return request.future

    def close(self) -> None:
        """Commit the changes that wait, and stop the thread."""
        self._queue.put(None)
        self._thread.join(timeout=30)

    def _run(self) -> None:
        with service_request():
            self._write_all()

    def _write_all(self) -> None:
        while True:
            batch = [self._queue.get()]
            while len(batch) < _MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get())
            requests = [
                request
                for request in batch
                if request is not None and request.future.set_running_or_notify_cancel()
            ]
            if requests:
                self._write(requests)
            if None in batch:
                return

    def _write(self, requests: list[_Request]) -> None:
        """Commit requests, and set the results of their futures."""
        try:
            results = self._commit(requests)
        except BaseException as error:
            if len(requests) > 1 and not isinstance(error, UnavailableError):
                for request in requests:  # one of them may be the reason, and must not fail the others
                    self._write([request])
                return
            for request in requests:
                request.future.set_exception(error)
            return
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, Receipt):
                request.future.set_result(result)
            else:
                request.future.set_exception(result)

    def _commit(self, requests: list[_Request]) -> list[Receipt | Exception]:
        """Check, record and apply requests in one transaction; return their receipts or errors."""
        start = time.monotonic()
        live = self._live
        with live.lock:
            with live.store.writing() as connection:
                batch = _Batch(live.catch_up(connection), connection)
                for request in requests:
                    batch.add(request)
                batch.flush()
            if batch.state is not live.snapshot.state:
                live.publish(batch.state)
        results = batch.results
        plans = [result.plan for result in results if isinstance(result, Receipt) and result.plan]
        self._count(time.monotonic() - start, plans)
        return results


class _Batch:
    """The requests of one transaction. Consecutive changes that merge are recorded and applied together.

    Parameters
    ----------
    state : LiveState
        The state before the requests.
    connection : Connection
        The transaction.
    """

    def __init__(self, state: LiveState, connection: Connection) -> None:
        self.state, self._connection = state, connection
        self._results: dict[int, Receipt | Exception] = {}
        self._count = 0
        self._waiting: list[tuple[int, _Request, Plan]] = []  # checked, neither recorded nor applied

    @property
    def results(self) -> list[Receipt | Exception]:
        """The receipt or error of each request."""
        return [self._results[number] for number in range(self._count)]

    def add(self, request: _Request) -> None:
        """Check a request; record and apply it now, or with the following requests."""
        position, self._count = self._count, self._count + 1
        same_key = request.key is not None and any(other.key == request.key for _, other, _ in self._waiting)
        if same_key or not request.change.merges:
            self.flush()
        try:
            receipt = _find_receipt(request, self._connection)
            if receipt is None:
                plan = request.change.plan(self.state.model)
                self._waiting.append((position, request, plan))
                if not request.change.merges:
                    self.flush()
                return
            self._results[position] = receipt
        except HeadstartError as error:
            self._results[position] = error

    def flush(self) -> None:
        """Record and apply the requests that wait."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        changes = [request.change for _, request, _ in waiting]
        plans = [plan for _, _, plan in waiting]
        if changes[0].merges:
            numbers = insert_observations(
                self._connection, [(plan.delta.cells, plan.arrived) for plan in plans]
            )
            merged = {(cell.row, cell.feature): cell for plan in plans for cell in plan.delta.cells}
            state = apply(self.state, Delta(cells=list(merged.values())))
        else:
            numbers = [changes[0].record(self._connection, plans[0])]
            state = apply(self.state, plans[0].delta)
        answers = [{**plan.answer, "number": number} for plan, number in zip(plans, numbers, strict=True)]
        keyed = zip((request for _, request, _ in waiting), answers, strict=True)
        record_requests(
            self._connection,
            [(request.key, request.body, answer) for request, answer in keyed if request.key is not None],
        )
        self.state = replace(state, number=numbers[-1])
        for (position, _, plan), answer in zip(waiting, answers, strict=True):
            self._results[position] = Receipt(answer, plan)


def _find_receipt(request: _Request, connection: Connection) -> Receipt | None:
    """Return the receipt of an earlier request with the same key; None if there was none."""
    if request.key is None:
        return None
    earlier = find_request(connection, request.key)
    if earlier is None:
        return None
    body_digest, answer = earlier
    if body_digest != request_digest(connection, request.body):
        raise Problem(409, "this idempotency key was used with another body; use a new key")
    return Receipt(answer, repeated=True)
