"""Keep the served model up to date with the store.

``LiveModel`` publishes snapshots for readers; ``apply`` computes a state from changes. The meaning of
observations is defined in ``headstart.model.updates``, for the library and the service alike.
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
from headstart.model.inputs import NewRows, check_new_features, encode_row_metadata
from headstart.model.levels import category_columns, owner_of
from headstart.model.observations import ObservationList
from headstart.model.saving.folder import model_digest
from headstart.model.state import ModelState
from headstart.model.triples import Triples
from headstart.model.updates import add_observations, remove_feature, remove_row, with_row_metadata
from headstart.service.errors import LOG
from headstart.service.store import Cell, Delta, Store, read_all, read_last_number, read_since
from headstart.table import Kinds
from headstart.table.kinds import KIND_NAMES, LARGEST, Kind, KindType
from headstart.table.margins import Category


@dataclass(frozen=True)
class LiveState:
    """A model after the changes of the store up to a number. It is immutable: ``apply`` returns another one.

    Attributes
    ----------
    model : ModelState
        The model.
    fitted_rows : int
        The number of rows that the model was fitted with and that are still in it; later rows were added.
    fitted_features : int
        The number of features that the model was fitted with and that are still in it.
    first_added : int
        The number of the first feature that was added through the service.
    number : int
        The number of the last change that the model contains.
    left_out : int
        The number of observations in the store that the model cannot use.
    """

    model: ModelState
    fitted_rows: int
    fitted_features: int
    first_added: int
    number: int = 0
    left_out: int = 0

    @classmethod
    def of(cls, model: ModelState) -> Self:
        """Return the state of a model without any change."""
        features = len(model.feature_store.feature_names)
        return cls(model, len(model.rows), features, model.feature_store.next_number)


def apply(state: LiveState, delta: Delta) -> LiveState:
    """Return the state after these changes. Removals of unknown features and rows are ignored."""
    for name in delta.removed_features:
        if name in state.model.feature_store:
            was_fitted = state.model.feature_store.number(name) < state.first_added
            owner = owner_of(state.model.feature_store[name])
            model = remove_feature(state.model, name)
            was_fitted &= not category_columns(model, owner)  # a category goes with its last level
            state = replace(state, model=model, fitted_features=state.fitted_features - was_fitted)
    for name in delta.removed_rows:
        if name in state.model.rows:
            position = state.model.rows.position(name)
            model, was_fitted = remove_row(state.model, position), position < state.fitted_rows
            state = replace(state, model=model, fitted_rows=state.fitted_rows - was_fitted)
    if not (delta.features or delta.rows or delta.cells):
        return state
    model = state.model
    new = features_without_heads(model, delta.features) if delta.features else {}
    triples, left_out = resolve_cells(model, list(delta.rows), new, delta.cells)
    if delta.rows:
        metadata = {name: record for name, record in delta.rows.items() if record}
        records, encoded = encode_row_metadata(model.row_metadata, list(delta.rows), metadata or None)
        model = with_row_metadata(
            model, NewRows(list(delta.rows), {}, records, encoded, update_features=True)
        )
    fixed = np.array([feature.fixed for feature in triples.features], dtype=bool)
    for_rows = np.ones(len(triples.values), dtype=bool)
    # Fixed heads have no observations.
    for_features = ~fixed[triples.feature_positions] if len(fixed) else for_rows
    model = add_observations(model, triples, (for_rows, for_features), list(delta.rows), new)
    return replace(state, model=model, left_out=state.left_out + left_out)


def resolve_cells(
    model: ModelState, new_rows: Sequence[str], new: Mapping[str, Feature], cells: Sequence[Cell]
) -> tuple[Triples, int]:
    """Return the observations that a model can use, and the number of the others.

    Parameters
    ----------
    model : ModelState
        The model before the observations.
    new_rows : sequence of str
        Rows that are added with the observations, in order.
    new : mapping of str to Feature
        Features that are added with the observations.
    cells : sequence of Cell
        Observations in the order of their first arrival, each cell once.
    """
    feature_store, rows = model.feature_store, model.rows
    positions = {name: len(rows) + i for i, name in enumerate(new_rows)}
    for name in {cell.row for cell in cells}:
        positions.setdefault(name, rows.position(name) if name in rows else -1)
    numbers = {name: feature_store.next_number + i for i, name in enumerate(new)}
    columns: dict[str, int] = {}  # positions in ``features``; -1 for an unknown feature
    features: list[Feature] = []
    for name in dict.fromkeys(cell.feature for cell in cells):
        feature = new.get(name) or feature_store.get(name)
        columns[name] = -1 if feature is None else len(features)
        if feature is not None:
            features.append(feature)
            numbers.setdefault(name, feature_store.number(name) if name in feature_store else -1)
    row_index = np.array([positions[cell.row] for cell in cells], dtype=np.int64)
    column_index = np.array([columns[cell.feature] for cell in cells], dtype=np.int64)
    values = np.array([cell.value for cell in cells], dtype=np.float64)
    usable = (row_index >= 0) & (column_index >= 0)
    if usable.any():
        kinds = Kinds([feature.kind for feature in features])
        usable[usable] = ~kinds.impossible(values[usable], column_index[usable])
        usable[usable] = np.abs(kinds.scale(values[usable], column_index[usable])) <= LARGEST
    row_index, column_index, values = row_index[usable], column_index[usable], values[usable]
    if len(values):
        values = kinds.numbers(values, column_index)
    times = None
    if model.clock is not None:  # observations that arrived at an earlier model may have no time
        default = model.clock.fitted_at
        all_times = [default if cell.time is None else cell.time for cell in cells]
        times = np.array(all_times, dtype=np.float64)[usable]
    weights = None
    readable = model.adapter.supports_weights and model.backbone.supports_weights
    if readable and any(cell.weight is not None for cell in cells):
        all_weights = [1.0 if cell.weight is None else cell.weight for cell in cells]
        weights = np.array(all_weights, dtype=np.float64)[usable]
    feature_numbers = np.array([numbers[feature.name] for feature in features], dtype=np.int64)
    feature_numbers = feature_numbers[column_index] if len(feature_numbers) else column_index
    order = np.arange(len(values))
    triples = Triples(row_index, features, column_index, feature_numbers, values, times, order, weights)
    return triples, len(cells) - len(values)


def features_without_heads(
    model: ModelState, additions: Mapping[str, Mapping[str, Any]]
) -> dict[str, Feature]:
    """Return new features with metadata, and without heads and observations.

    Metadata that the model cannot read is left out: a model that was fitted later may have other types of
    columns.
    """
    samples = {kind: _sample(model, kind) for kind in {parts.get("kind") for parts in additions.values()}}
    records = [dict(parts.get("metadata") or {}) for parts in additions.values()]
    width = 0 if model.schema is None else model.schema.width
    encoded = np.zeros((len(records), width), np.float32)
    if model.schema is not None:
        try:
            encoded = model.schema.encode(records, model.encoders)
        except InputError:
            for i, record in enumerate(records):
                try:
                    encoded[i] = model.schema.encode([record], model.encoders)[0]
                except InputError:
                    records[i] = {}
                    encoded[i] = model.schema.encode([{}], model.encoders)[0]
    rows, values, arrivals, times, _ = ObservationList.empty(timed=model.clock is not None)
    features = {}
    for i, (name, parts) in enumerate(additions.items()):
        sample = samples[parts.get("kind")]
        record = {key: value for key, value in records[i].items() if value is not None}
        features[name] = Feature(
            name, sample.kind, False, 0, encoded[i], rows, values, sample.finds_scale, record, arrivals, times
        )
    return features


def _sample(model: ModelState, kind: str | None) -> Feature:
    """Return a feature of this kind, or of the default kind if the model cannot have it."""
    try:
        stored_kind = Kind(Category()) if kind == "category" else kind  # a column of a category
        return check_new_features(model, {"sample of a kind": {"kind": stored_kind}})[0]
    except InputError:
        return check_new_features(model, {"sample of a kind": {}})[0]


@dataclass(frozen=True)
class Snapshot:
    """An immutable state of the served model, from which requests are answered.

    Attributes
    ----------
    state : LiveState
        The model, and the number of the last change.
    model : Headstart
        The model with its public methods. Only methods that read may be called.
    identity : str
        The digest of the fitted model.
    path : Path
        The folder of the fitted model.
    """

    state: LiveState
    model: Headstart
    identity: str
    path: Path

    @property
    def model_state(self) -> ModelState:
        """The state of ``model``."""
        return self.state.model

    @classmethod
    def of(cls, state: LiveState, identity: str, path: Path) -> Snapshot:
        """Return the snapshot of a state."""
        return cls(state, Headstart.from_state(state.model), identity, path)


class LiveModel:
    """A fitted model with all changes of a store.

    Readers take ``snapshot`` once for each request, without a lock. A thread that publishes another snapshot
    must hold ``lock``.

    Parameters
    ----------
    store : Store
        The store of changes.
    path : Path
        The folder of the fitted model; it is only read.
    """

    def __init__(self, store: Store, path: Path) -> None:
        self.store = store
        self.lock = threading.RLock()
        self.snapshot = self._load(path)

    def _load(self, path: Path) -> Snapshot:
        """Load a model and apply all changes of the store."""
        start = time.monotonic()
        identity = model_digest(path)
        fitted = Headstart.load(path).state
        state = LiveState.of(fitted)
        with self.store.reading() as connection, _bulk_loading():
            delta, number = read_all(connection, fitted.rows), read_last_number(connection)
            state = _apply_stored(state, delta, number)
        LOG.info("loaded %s and applied %d changes in %.1f s", path, state.number, time.monotonic() - start)
        if state.left_out:
            LOG.warning("%d observations of the store cannot be used by %s", state.left_out, path)
        return Snapshot.of(state, identity, path)

    def catch_up(self, connection: Connection) -> LiveState:
        """Return the state of the snapshot after all changes that the connection's transaction can see."""
        state = self.snapshot.state
        number = read_last_number(connection)
        if number == state.number:
            return state
        delta = read_since(connection, state.number, state.model.rows)
        return _apply_stored(state, delta, number)

    def publish(self, state: LiveState) -> Snapshot:
        """Make this state the snapshot for all requests from now on."""
        before = self.snapshot
        self.snapshot = Snapshot.of(state, before.identity, before.path)
        return self.snapshot

    def follow(self) -> bool:
        """Apply the changes of other workers; return whether there were any."""
        if self.store.last_number() == self.snapshot.state.number:
            return False
        with self.lock, self.store.reading() as connection:
            state = self.catch_up(connection)
            if state is self.snapshot.state:
                return False
            self.publish(state)
        return True

    def take_over(self, path: Path) -> Snapshot:
        """Serve another fitted model, with all changes of the store; requests are answered meanwhile."""
        fresh = self._load(path)  # takes long, without the lock
        with self.lock:
            before, self.snapshot = self.snapshot, fresh
            try:
                with self.store.reading() as connection:
                    self.publish(self.catch_up(connection))
            except BaseException:
                self.snapshot = before
                raise
        LOG.info("serving model %s of %s", fresh.identity, path)
        return self.snapshot


@contextmanager
def _bulk_loading() -> Iterator[None]:
    """Disable garbage collection and threads of torch in the ``with`` block.

    Loading creates millions of objects that all stay, so that collections would find nothing. Later
    collections do not search them either: each would stop all requests for a second. A second thread costs
    more than it saves on blocks that fit into the cache: twice the time on two cores.
    """
    enabled, threads = gc.isenabled(), torch.get_num_threads()
    gc.disable()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if enabled:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            gc.enable()


def _apply_stored(state: LiveState, delta: Delta, number: int) -> LiveState:
    """Return the state after changes of the store up to ``number``: first removals, then the rest."""
    state = apply(state, Delta(delta.removed_features, delta.removed_rows))
    return replace(apply(state, keep_applicable(state, delta)), number=number)


def keep_applicable(state: LiveState, delta: Delta) -> Delta:
    """Return the additions and observations that a model can use.

    A model that was fitted later may have features and rows that were added before, which are left out, and
    may lack rows that have observations, which are added. Metadata columns that it does not have are left
    out.
    """
    model, schema = state.model, state.model.schema
    columns = set() if schema is None else {column.name for column in schema.columns}
    kinds = {kind.type for kind in model.kinds}
    features = {}
    for name, parts in delta.features.items():
        if name in model.feature_store:
            continue
        metadata = {key: value for key, value in (parts["metadata"] or {}).items() if key in columns}
        features[name] = {"metadata": metadata or None, "kind": _usable_kind(parts["kind"], kinds)}
    rows = {
        name: metadata if model.row_metadata is not None else None
        for name, metadata in delta.rows.items()
        if name not in model.rows
    }
    missing = {row for row in {cell.row for cell in delta.cells} if row not in model.rows and row not in rows}
    for cell in delta.cells if missing else []:  # in the order of arrival
        if cell.row in missing and (cell.feature in model.feature_store or cell.feature in features):
            rows.setdefault(cell.row, None)
    return Delta(features=features, rows=rows, cells=delta.cells)


def _usable_kind(kind: str | None, types: set[KindType]) -> str | None:
    """Return the kind, or None if a model with these types cannot have it."""
    if kind is None:
        return None
    return kind if kind in KIND_NAMES or Kind.parse(kind).type in types else None
