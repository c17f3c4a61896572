"""Run a worker of the service: its store, its model, and the threads that keep them up to date."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from headstart.config import Config
from headstart.errors import HeadstartError
from headstart.model.saving.folder import file_stamp, model_digest
from headstart.service.auth import TokenSet
from headstart.service.changes import Change, Receipt, Writer
from headstart.service.errors import LOG, Problem
from headstart.service.live_model import LiveModel, Snapshot
from headstart.service.metrics import Metrics
from headstart.service.store import Store


class ServiceSettings(Config):
    """The limits and polling of a service."""

    loopback: bool = True  # whether only this machine can reach it; otherwise a token is always needed
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]", "testserver")  # answered without a token
    max_body: int = 16_000_000  # bytes of one request
    max_batch: int = 100_000  # observations in one request
    max_cells: int = 4_000_000  # cells of one prediction
    rate: float = 2000.0  # requests per second and token, on average
    burst: float = 4000.0  # requests of one token at once
    poll_seconds: float = 0.25  # between two polls for changes of other workers, tokens and models
    watch_model: bool = True  # whether to reload a model that replaces the served one in its folder


MODEL_FACT = "model"  # in the store: the folder of the served model, and the folder that it replaced

_RETRY_SECONDS = 1.0

# Seconds after which Python switches threads. While observations are processed, every step of a request waits
# this long: with Python's default of 5 ms the slowest answers take twice as long.
_SWITCH_INTERVAL = 0.0005


class Service:
    """A worker: its store, its live model, and the threads that update them.

    Parameters
    ----------
    path : Path
        The folder of the fitted model.
    url : str
        The URL of the store.
    settings : ServiceSettings
        The limits of the service.
    """

    def __init__(self, path: Path, url: str, settings: ServiceSettings) -> None:
        self.path, self.url, self.settings = path, url, settings
        self.metrics = Metrics()
        self.tokens: TokenSet | None = None  # None until the store has been read
        self.failure: str | None = None  # the error of the last attempt to open store and model
        self._store: Store | None = None
        self._live: LiveModel | None = None
        self._writer: Writer | None = None
        self._watcher: Watcher | None = None
        self._stop = threading.Event()
        self._opener = threading.Thread(target=self._open, name="headstart-opener", daemon=True)

    def start(self) -> None:
        """Open store and model in a thread, which retries until both are open; see ``ready``."""
        sys.setswitchinterval(_SWITCH_INTERVAL)
        self._opener.start()

    def wait(self, seconds: float = 60.0) -> None:
        """Wait until the model is loaded."""
        self._opener.join(seconds)

    def _open(self) -> None:
        while not self._stop.is_set():
            try:
                self._store = store = self._store or Store(self.url)
                self._set_tokens(TokenSet(store.tokens()))
                live = LiveModel(store, served_folder(store, self.path))
                self._writer = Writer(live, self.metrics.count_changes)
                self._watcher = Watcher(
                    live,
                    self._set_tokens,
                    self.path,
                    self.settings.poll_seconds,
                    watch_model=self.settings.watch_model,
                )
                self._live = live
                self.failure = None
                return
            except HeadstartError as error:
                self.failure = str(error)
                LOG.warning("not ready yet: %s", error)
            except Exception:
                self.failure = "it could not be loaded; the log of the server says why"
                LOG.exception("not ready")
            self._stop.wait(_RETRY_SECONDS)

    def _set_tokens(self, tokens: TokenSet) -> None:
        self.tokens = tokens

    def close(self) -> None:
        """Finish pending changes, and stop all threads."""
        self._stop.set()
        for part in (self._watcher, self._writer, self._store):
            if part is not None:
                part.close()

    @property
    def store(self) -> Store:
        """The store; raises a 503 problem until it is open."""
        if self._store is None:
            raise self._not_ready()
        return self._store

    @property
    def snapshot(self) -> Snapshot:
        """The current model; raises a 503 problem until it is loaded."""
        if self._live is None:
            raise self._not_ready()
        return self._live.snapshot

    def _not_ready(self) -> Problem:
        return Problem(503, self.failure or "the model is still being loaded", headers={"retry-after": "1"})

    def change(self, change: Change, key: str | None = None, body: bytes = b"") -> Future[Receipt]:
        """Submit a change; the future is done when the change is committed."""
        if self._writer is None:
            raise self._not_ready()
        return self._writer.submit(change, key, hashlib.sha256(body).hexdigest())

    def take_over(self, path: Path) -> Snapshot:
        """Serve another fitted model, in all workers and also after a restart."""
        if self._live is None:
            raise self._not_ready()
        model_digest(path)
        snapshot = self._live.take_over(path)
        self.store.set_fact(MODEL_FACT, json.dumps({"path": str(path), "instead_of": str(self.path)}))
        return snapshot

    def ready(self) -> None:
        """Raise a problem unless a model is loaded and the store answers."""
        self.snapshot  # noqa: B018 (raises)
        self.store.ping()


class Watcher:
    """A thread that polls for changes of other workers, for tokens, and for a new model.

    Parameters
    ----------
    live : LiveModel
        The served model.
    set_tokens : callable
        Called with the current tokens after each poll.
    folder : Path
        The model folder with which the service was started.
    seconds : float
        The time between two polls.
    watch_model : bool
        Whether to reload a model that replaces the served one in its folder.
    """

    def __init__(
        self,
        live: LiveModel,
        set_tokens: Callable[[TokenSet], None],
        folder: Path,
        seconds: float,
        *,
        watch_model: bool = True,
    ) -> None:
        self._live, self._set_tokens, self._folder, self._seconds = live, set_tokens, folder, seconds
        self._watch_model = watch_model
        self._stamp = file_stamp(live.snapshot.path)
        self._refused: tuple[Path, object] | None = None  # folder and stamp of a model that cannot be served
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headstart-watcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join(timeout=30)

    def poll(self) -> None:
        """Poll once."""
        store = self._live.store
        self._set_tokens(TokenSet(store.tokens()))
        self._live.follow()
        self._poll_model(store)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self.poll()
            except HeadstartError as error:
                LOG.debug("will poll again: %s", error)
            except Exception:
                LOG.exception("polling failed; will poll again")

    def _poll_model(self, store: Store) -> None:
        """Take over the model of the folder if it is another one than the served model."""
        path = served_folder(store, self._folder)
        stamp = file_stamp(path)
        snapshot = self._live.snapshot
        replaced = path == snapshot.path and self._watch_model and stamp != self._stamp
        if stamp is None or (path == snapshot.path and not replaced) or self._refused == (path, stamp):
            return
        try:
            if model_digest(path) != snapshot.identity or path != snapshot.path:
                self._live.take_over(path)
            self._stamp = stamp
        except HeadstartError as error:
            self._refused = (path, stamp)  # do not try again until the model changes
            LOG.error("the model in %s is not taken over: %s", path, error)


def served_folder(store: Store, folder: Path) -> Path:
    """Return the folder to serve: ``folder``, or the one that replaced it through the service."""
    text = store.fact(MODEL_FACT)
    if text is None:
        return folder
    fact = json.loads(text)
    return Path(fact["path"]) if fact["instead_of"] == str(folder) else folder
