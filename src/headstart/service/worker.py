"""Hold all that a worker needs while it runs."""

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
    """What a service allows, and how it looks for changes."""

    loopback: bool = True  # whether only this machine can reach it; otherwise a token is always needed
    hosts: tuple[str, ...] = (
        "localhost",
        "127.0.0.1",
        "[::1]",
        "testserver",
    )  # names it answers to, without tokens
    max_body: int = 16_000_000  # bytes of one request
    max_batch: int = 100_000  # observations in one request
    max_cells: int = 4_000_000  # cells of one prediction
    rate: float = 2000.0  # requests per second and token, on average
    burst: float = 4000.0  # requests of one token at once
    poll_seconds: float = 0.25  # between two looks for changes of other workers, tokens and models
    watch_model: bool = True  # whether a model that replaces the served one in its folder is taken over


MODEL_FACT = "model"  # in the store: the folder that was taken over, and instead of which


class Watcher:
    """A thread that keeps a worker up to date.

    Parameters
    ----------
    live : LiveModel
        What is served.
    keys : callable
        Told the present tokens.
    given : Path
        The folder that the service was started with.
    seconds : float
        How long to wait between two looks.
    watch_model : bool
        Whether a model that replaces the served one is taken over.
    """

    def __init__(
        self,
        live: LiveModel,
        keys: Callable[[TokenSet], None],
        given: Path,
        seconds: float,
        *,
        watch_model: bool = True,
    ) -> None:
        self._live, self._keys, self._given, self._seconds = live, keys, given, seconds
        self._watch_model = watch_model
        self._seen = file_stamp(live.snapshot.path)
        self._refused: tuple[Path, object] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headstart-watcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join(timeout=30)

    def look(self) -> None:
        """Look once."""
        store = self._live.store
        self._keys(TokenSet(store.tokens()))
        self._live.follow()
        self._look_for_model(store)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self.look()
            except HeadstartError as error:
                LOG.debug("will look again: %s", error)
            except Exception:
                LOG.exception("looking for changes failed; will look again")

    def _look_for_model(self, store: Store) -> None:
        path = take_over_from(store, self._given)
        now = file_stamp(path)
        present = self._live.snapshot
        replaced = path == present.path and self._watch_model and now != self._seen
        if now is None or (path == present.path and not replaced) or self._refused == (path, now):
            return
        try:
            if model_digest(path) != present.identity or path != present.path:
                self._live.take_over(path)
            self._seen = now
        except HeadstartError as error:
            self._refused = (path, now)  # until it changes again
            LOG.error("the model in %s is not taken over: %s", path, error)


def take_over_from(store: Store, given: Path) -> Path:
    """The folder to serve: the given one, or that which was taken over instead of it."""
    said = store.fact(MODEL_FACT)
    if said is None:
        return given
    fact = json.loads(said)
    return Path(fact["path"]) if fact["instead_of"] == str(given) else given


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
        self.keys: TokenSet | None = None  # unknown until the store was read
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
                self._set_keys(TokenSet(store.tokens()))
                live = LiveModel(store, take_over_from(store, self.path))
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

    def _set_keys(self, keys: TokenSet) -> None:
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
        model_digest(path)
        after = self._live.take_over(path)
        self.store.set_fact(MODEL_FACT, json.dumps({"path": str(path), "instead_of": str(self.path)}))
        return after

    def ready(self) -> None:
        """Raise a problem unless a model is loaded and the store answers."""
        self.snapshot  # noqa: B018 (raises)
        self.store.ping()
