"""LiveModel: the model that a worker serves, kept equal to the store."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from sqlalchemy import Connection

from headstart.errors import ModelFileError
from headstart.model import Headstart
from headstart.model.parts.fitted import Fitted
from headstart.model.saving.identity import identity_of
from headstart.service.live.advancing import advanced
from headstart.service.live.delta import Arrivals, Delta
from headstart.service.live.state import LiveState
from headstart.service.problems import LOG
from headstart.service.store import Store
from headstart.service.store import reading as read
from headstart.table.kinds import Kind, KindType


@dataclass(frozen=True)
class Snapshot:
    """What one answer is made from: it never changes.

    Attributes
    ----------
    state : LiveState
        The parts of the model.
    model : Headstart
        The same with all verbs that ask; nothing must be changed through it.
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
    def shown(self) -> Fitted:
        """The model as it is shown."""
        return self.state.shown

    @classmethod
    def of(cls, state: LiveState, identity: str, path: Path) -> Snapshot:
        """A moment of a live model."""
        return cls(state, Headstart._holding(state.shown), identity, path)


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
        identity = identity_of(path)
        fitted = Headstart.load(path).fitted_
        if fitted.clock is not None:
            raise ModelFileError(
                f"{path} is a model whose observations age, which cannot be served yet; "
                "fit one without half_life"
            )
        state = LiveState.of(fitted)
        with self.store.reading() as connection, _in_bulk():
            state = self.rebuilt(state, connection)
        LOG.info("took %s and %d changes in %.1f s", path, state.number, time.monotonic() - start)
        if state.left_out:
            LOG.warning("%d observations of the store cannot be taken by %s", state.left_out, path)
        return Snapshot.of(state, identity, path)

    def rebuilt(self, state: LiveState, connection: Connection) -> LiveState:
        """The state of a model to which nothing has arrived, after everything in the store."""
        delta, number = read.everything(connection, state.base.rows), read.last_number(connection)
        there = arrivals_from(connection)
        state = advanced(state, Delta(delta.lost_features, delta.lost_rows), there)
        return replace(advanced(state, fitting(state, delta), there), number=number)

    def caught_up(self, connection: Connection) -> LiveState:
        """The present state after all changes in the store, as this connection sees it."""
        state = self.snapshot.state
        number = read.last_number(connection)
        if number == state.number:
            return state
        delta = read.since(connection, state.number, state.base.rows)
        there = arrivals_from(connection)
        lost = advanced(state, Delta(delta.lost_features, delta.lost_rows), there)
        return replace(advanced(lost, fitting(lost, delta), there), number=number)

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


def arrivals_from(connection: Connection) -> Arrivals:
    """What arrived, as a connection sees it."""
    return lambda features, rows: read.cells(connection, features, rows)


def fitting(state: LiveState, delta: Delta) -> Delta:
    """What of a change a model can take: not what it knows already, and no metadata that it cannot read.

    A newly fitted model may know features and rows that were added before, and may lack others that have
    observations: a row that it lacks is added.
    """
    base, schema = state.base, state.base.schema
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
