"""Keep the served model equal to the store.

``headstart.model.updates`` defines the meaning of observations, for the library and the service alike. Here
are the position in the log of changes, a lock, a snapshot for readers, and the way to catch up with a store.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sqlalchemy import Connection

from headstart.errors import InputError
from headstart.model import Headstart
from headstart.model.features import Feature
from headstart.model.inputs import NewRows, Triples, check_new_features, encode_row_metadata
from headstart.model.observations import ObservationList
from headstart.model.saving.folder import model_digest
from headstart.model.state import ModelState
from headstart.model.updates import add_observations, remove_feature, remove_row, with_row_metadata
from headstart.service.errors import LOG
from headstart.service.store import Cell, Delta, Store, read_all, read_last_number, read_since
from headstart.table import Kinds
from headstart.table.kinds import LARGEST, Kind, KindType


@dataclass(frozen=True)
class LiveState:
    """A model after the changes of the store up to a number. It never changes: ``apply`` gives another one.

    Attributes
    ----------
    model : ModelState
        The model.
    own_rows : int
        The number of rows that the model was loaded with; rows after them were added.
    own_features : int
        The number of features that the model was loaded with and that are still in it.
    first_number : int
        The number of the first feature that was added.
    number : int
        The number of the last change that is contained.
    left_out : int
        The number of observations in the store that the model could not take.
    """

    model: ModelState
    own_rows: int
    own_features: int
    first_number: int
    number: int = 0
    left_out: int = 0

    @classmethod
    def of(cls, model: ModelState) -> Self:
        """Return the state of a model without any change."""
        return cls(model, len(model.rows), len(model.catalogue), model.catalogue.next_number)


def apply(state: LiveState, delta: Delta) -> LiveState:
    """Return the state after these changes; features and rows that are not in the model are passed over."""
    for name in delta.lost_features:
        if name in state.model.catalogue:
            own = state.model.catalogue.number(name) < state.first_number
            model = remove_feature(state.model, name)
            state = replace(state, model=model, own_features=state.own_features - own)
    for name in delta.lost_rows:
        if name in state.model.rows:
            position = state.model.rows.position(name)
            own = position < state.own_rows
            state = replace(state, model=remove_row(state.model, position), own_rows=state.own_rows - own)
    if not (delta.features or delta.rows or delta.cells):
        return state
    model = state.model
    new = features_without_heads(model, delta.features) if delta.features else {}
    given, left_out = resolve_cells(model, list(delta.rows), new, delta.cells)
    if delta.rows:
        metadata = {name: each for name, each in delta.rows.items() if each}
        records, encoded = encode_row_metadata(model.row_metadata, list(delta.rows), metadata or None)
        model = with_row_metadata(
            model, NewRows(list(delta.rows), {}, records, encoded, update_features=True)
        )
    fixed = np.array([feature.fixed for feature in given.features], dtype=bool)
    of_rows = np.ones(len(given.values), dtype=bool)
    of_features = ~fixed[given.places] if len(fixed) else of_rows  # fixed heads hold no observations
    model = add_observations(model, given, (of_rows, of_features), list(delta.rows), new)
    return replace(state, model=model, left_out=state.left_out + left_out)


def resolve_cells(
    model: ModelState, new_rows: Sequence[str], new: Mapping[str, Feature], cells: Sequence[Cell]
) -> tuple[Triples, int]:
    """Return the observations that a model can take, and the number of the others.

    Parameters
    ----------
    model : ModelState
        The model before.
    new_rows : sequence of str
        Rows that are about to be added, in order.
    new : mapping of str to Feature
        Features that are about to be added.
    cells : sequence of Cell
        Observations in the order of their first arrival, each cell once.
    """
    catalogue, rows = model.catalogue, model.rows
    positions = {name: len(rows) + place for place, name in enumerate(new_rows)}
    for name in {cell.row for cell in cells}:
        positions.setdefault(name, rows.position(name) if name in rows else -1)
    numbers = {name: catalogue.next_number + place for place, name in enumerate(new)}
    places: dict[str, int] = {}
    features: list[Feature] = []
    for name in dict.fromkeys(cell.feature for cell in cells):
        feature = new.get(name) or catalogue.get(name)
        places[name] = -1 if feature is None else len(features)
        if feature is not None:
            features.append(feature)
            numbers.setdefault(name, catalogue.number(name) if name in catalogue else -1)
    row_index = np.array([positions[cell.row] for cell in cells], dtype=np.int64)
    columns = np.array([places[cell.feature] for cell in cells], dtype=np.int64)
    values = np.array([cell.value for cell in cells], dtype=np.float64)
    fine = (row_index >= 0) & (columns >= 0)
    if fine.any():
        kinds = Kinds([feature.kind for feature in features])
        fine[fine] = ~kinds.impossible(values[fine], columns[fine])
        fine[fine] = np.abs(kinds.scale(values[fine], columns[fine])) <= LARGEST
    times = None
    if model.clock is not None:  # observations of an earlier model may have none
        at = model.clock.fitted_at
        times = np.array([at if cell.time is None else cell.time for cell in cells], dtype=np.float64)[fine]
    of = np.array([numbers[feature.name] for feature in features], dtype=np.int64)
    of = of[columns[fine]] if len(of) else columns[fine]
    order = np.arange(int(fine.sum()))
    given = Triples(row_index[fine], features, columns[fine], of, values[fine], times, order)
    return given, len(cells) - len(order)


def features_without_heads(fitted: ModelState, given: Mapping[str, Mapping[str, Any]]) -> dict[str, Feature]:
    """Return new features with their metadata, and without heads and observations.

    Metadata that the model cannot read (a newly fitted one may have other types of columns) is left out.
    """
    samples = {kind: _sample(fitted, kind) for kind in {parts.get("kind") for parts in given.values()}}
    records = [dict(parts.get("metadata") or {}) for parts in given.values()]
    width = 0 if fitted.schema is None else fitted.schema.width
    encoded = np.zeros((len(records), width), np.float32)
    if fitted.schema is not None:
        try:
            encoded = fitted.schema.encode(records, fitted.encoders)
        except InputError:
            for place, record in enumerate(records):
                try:
                    encoded[place] = fitted.schema.encode([record], fitted.encoders)[0]
                except InputError:
                    records[place] = {}
                    encoded[place] = fitted.schema.encode([{}], fitted.encoders)[0]
    rows, values, arrivals, times = ObservationList.none(timed=fitted.clock is not None)
    made = {}
    for place, (name, parts) in enumerate(given.items()):
        sample, record = samples[parts.get("kind")], records[place]
        kept = {key: value for key, value in record.items() if value is not None}
        line, finds_scale = encoded[place], sample.finds_scale
        made[name] = Feature(
            name, sample.kind, False, 0, line, rows, values, finds_scale, kept, arrivals, times
        )
    return made


def _sample(fitted: ModelState, kind: str | None) -> Feature:
    """Return a feature of this kind, or of the usual one if the model does not have it."""
    try:
        return check_new_features(fitted, {"sample of a kind": {"kind": kind}})[0]
    except InputError:
        return check_new_features(fitted, {"sample of a kind": {}})[0]


@dataclass(frozen=True)
class Snapshot:
    """The model from which one answer is made; it never changes.

    Attributes
    ----------
    state : LiveState
        The model and its position in the log.
    model : Headstart
        The same with all verbs that read; nothing must be changed through it.
    identity : str
        Which fitted model it is.
    path : Path
        Its folder.
    """

    state: LiveState
    model: Headstart
    identity: str
    path: Path

    @property
    def shown(self) -> ModelState:
        """The state of the model."""
        return self.state.model

    @classmethod
    def of(cls, state: LiveState, identity: str, path: Path) -> Snapshot:
        """Return the snapshot of a state."""
        return cls(state, Headstart._from_state(state.model), identity, path)


class LiveModel:
    """The fitted model of a folder with everything that the store holds.

    Readers take ``snapshot`` once and wait for no one. ``lock`` is held by whoever publishes another one.

    Parameters
    ----------
    store : Store
        What arrived.
    path : Path
        The folder of the fitted model; it is only read.
    """

    def __init__(self, store: Store, path: Path) -> None:
        self.store = store
        self.lock = threading.RLock()
        self.snapshot = self._loaded(path)

    def _loaded(self, path: Path) -> Snapshot:
        """Load a model and take everything that is in the store."""
        start = time.monotonic()
        identity = model_digest(path)
        fitted = Headstart.load(path).fitted_
        state = LiveState.of(fitted)
        with self.store.reading() as connection, _in_bulk():
            state = self.rebuilt(state, connection)
        LOG.info("took %s and %d changes in %.1f s", path, state.number, time.monotonic() - start)
        if state.left_out:
            LOG.warning("%d observations of the store cannot be taken by %s", state.left_out, path)
        return Snapshot.of(state, identity, path)

    def rebuilt(self, state: LiveState, connection: Connection) -> LiveState:
        """Return the state of a loaded model after everything in the store."""
        delta, number = read_all(connection, state.model.rows), read_last_number(connection)
        state = apply(state, Delta(delta.lost_features, delta.lost_rows))
        return replace(apply(state, fitting(state, delta)), number=number)

    def caught_up(self, connection: Connection) -> LiveState:
        """Return the present state after all changes in the store, as this connection sees it."""
        state = self.snapshot.state
        number = read_last_number(connection)
        if number == state.number:
            return state
        delta = read_since(connection, state.number, state.model.rows)
        lost = apply(state, Delta(delta.lost_features, delta.lost_rows))
        return replace(apply(lost, fitting(lost, delta)), number=number)

    def publish(self, state: LiveState) -> Snapshot:
        """Let all answers from now on be made from this state."""
        present = self.snapshot
        self.snapshot = Snapshot.of(state, present.identity, present.path)
        return self.snapshot

    def follow(self) -> bool:
        """Take what other workers wrote; return whether there was anything."""
        if self.store.last_number() == self.snapshot.state.number:
            return False
        with self.lock, self.store.reading() as connection:
            state = self.caught_up(connection)
            if state is self.snapshot.state:
                return False
            self.publish(state)
        return True

    def take_over(self, path: Path) -> Snapshot:
        """Serve another fitted model, with everything that arrived; answers never stop meanwhile."""
        fresh = self._loaded(path)  # takes long, without the lock
        with self.lock:
            present, self.snapshot = self.snapshot, fresh
            try:
                with self.store.reading() as connection:
                    self.publish(self.caught_up(connection))
            except BaseException:
                self.snapshot = present
                raise
        LOG.info("serving model %s of %s", fresh.identity, path)
        return self.snapshot


@contextmanager
def _in_bulk() -> Iterator[None]:
    """Make millions of objects, which all stay, without looking for garbage among them again and again.

    In blocks that stay in the cache a second thread costs more than it saves: twice the time on two cores.
    """
    before, threads = gc.isenabled(), torch.get_num_threads()
    gc.disable()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if before:
            gc.enable()


def fitting(state: LiveState, delta: Delta) -> Delta:
    """Return the part of a change that a model can take: nothing that it has, and no unreadable metadata.

    A newly fitted model may know features and rows that were added before, and may lack others that have
    observations: a row that it lacks is added.
    """
    base, schema = state.model, state.model.schema
    columns = set() if schema is None else {column.name for column in schema.columns}
    kinds = {kind.type for kind in base.kinds}
    features = {}
    for name, given in delta.features.items():
        if name in base.catalogue:
            continue
        metadata = {key: value for key, value in (given["metadata"] or {}).items() if key in columns}
        features[name] = {"metadata": metadata or None, "kind": _possible(given["kind"], kinds)}
    rows = {
        name: metadata if base.row_metadata is not None else None
        for name, metadata in delta.rows.items()
        if name not in base.rows
    }
    known = base.rows
    missing = {row for row in {cell.row for cell in delta.cells} if row not in known and row not in rows}
    for cell in delta.cells if missing else []:  # in the order of arrival
        if cell.row in missing and (cell.feature in base.catalogue or cell.feature in features):
            rows.setdefault(cell.row, None)
    return Delta(features=features, rows=rows, cells=delta.cells)


def _possible(kind: str | None, types: set[KindType]) -> str | None:
    if kind is None:
        return None
    return kind if kind in ("real", "rating", "binary") or Kind.parse(kind).type in types else None
