"""Service: everything that a worker holds while it runs."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

from headstart.errors import HeadstartError
from headstart.model.saving.identity import identity_of
from headstart.service.live.changes import Change
from headstart.service.live.model import LiveModel, Snapshot
from headstart.service.live.writer import Receipt, Writer
from headstart.service.metrics import Metrics
from headstart.service.problems import LOG, Problem
from headstart.service.settings import ServiceSettings
from headstart.service.store import Store
from headstart.service.tokens import Keyring
from headstart.service.watching import MODEL_FACT, Watcher, taken_over

_RETRY_SECONDS = 1.0
# Seconds after which a thread that computes lets another one run. A request waits so long for each of its
# steps while observations are taken: with Python's own 5 ms the slowest answers take twice as long.
_SWITCH = 0.0005


class Service:
    """A worker: its store, its live model, and the threads that keep both.

    Parameters
    ----------
    path : Path
        The folder of the fitted model.
    url : str
        The URL of the store.
    settings : ServiceSettings
        What is allowed.
    """

    def __init__(self, path: Path, url: str, settings: ServiceSettings) -> None:
        self.path, self.url, self.settings = path, url, settings
        self.metrics = Metrics()
        self.keys: Keyring | None = None  # unknown until the store was read
        self.failed: str | None = None
        self._store: Store | None = None
        self._live: LiveModel | None = None
        self._writer: Writer | None = None
        self._watcher: Watcher | None = None
        self._stop = threading.Event()
        self._opening = threading.Thread(target=self._open, name="headstart-opening", daemon=True)

    def start(self) -> None:
        """Begin to load; ``ready`` says when it is done. A store that cannot be reached is tried again."""
        sys.setswitchinterval(_SWITCH)
        self._opening.start()

    def wait(self, seconds: float = 60.0) -> None:
        """Wait until it is loaded."""
        self._opening.join(seconds)

    def _open(self) -> None:
        while not self._stop.is_set():
            try:
                self._store = store = self._store or Store(self.url)
                self._set_keys(Keyring(store.tokens()))
                live = LiveModel(store, taken_over(store, self.path))
                self._writer = Writer(live, self.metrics.committed)
                watch = self.settings.watch_model
                self._watcher = Watcher(
                    live, self._set_keys, self.path, self.settings.poll_seconds, watch_model=watch
                )
                self._live = live
                self.failed = None
                return
            except HeadstartError as error:
                self.failed = str(error)
                LOG.warning("not ready yet: %s", error)
            except Exception:
                self.failed = "it could not be loaded; the log of the server says why"
                LOG.exception("not ready")
            self._stop.wait(_RETRY_SECONDS)

    def _set_keys(self, keys: Keyring) -> None:
        self.keys = keys

    def close(self) -> None:
        """Finish what was begun, and stop."""
        self._stop.set()
        for part in (self._watcher, self._writer, self._store):
            if part is not None:
                part.close()

    @property
    def store(self) -> Store:
        """The store; 503 until it could be opened."""
        if self._store is None:
            raise self._not_ready()
        return self._store

    @property
    def snapshot(self) -> Snapshot:
        """What to answer from; 503 until it is loaded."""
        if self._live is None:
            raise self._not_ready()
        return self._live.snapshot

    def _not_ready(self) -> Problem:
        return Problem(503, self.failed or "the model is still being loaded", headers={"retry-after": "1"})

    def change(self, change: Change, key: str | None = None, body: bytes = b"") -> Future[Receipt]:
        """Ask for a change; the future is done when it is committed."""
        if self._writer is None:
            raise self._not_ready()
        return self._writer.submit(change, key, hashlib.sha256(body).hexdigest())

    def take_over(self, path: Path) -> Snapshot:
        """Serve another fitted model, in all workers and after a restart too."""
        if self._live is None:
            raise self._not_ready()
        identity_of(path)
        after = self._live.take_over(path)
        self.store.set_fact(MODEL_FACT, json.dumps({"path": str(path), "instead_of": str(self.path)}))
        return after

    def ready(self) -> None:
        """Raise a problem unless a model is loaded and the store answers."""
        self.snapshot  # noqa: B018 (raises)
        self.store.ping()
