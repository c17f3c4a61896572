"""Watcher: looks for changes of other workers, for tokens, and for newly fitted models."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

from headstart.errors import HeadstartError
from headstart.model.saving.identity import identity_of, touched
from headstart.service.live.model import LiveModel
from headstart.service.problems import LOG
from headstart.service.store import Store
from headstart.service.tokens import Keyring

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
        keys: Callable[[Keyring], None],
        given: Path,
        seconds: float,
        *,
        watch_model: bool = True,
    ) -> None:
        self._live, self._keys, self._given, self._seconds = live, keys, given, seconds
        self._watch_model = watch_model
        self._seen = touched(live.snapshot.path)
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
        self._keys(Keyring(store.tokens()))
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
        path = taken_over(store, self._given)
        now = touched(path)
        present = self._live.snapshot
        replaced = path == present.path and self._watch_model and now != self._seen
        if now is None or (path == present.path and not replaced) or self._refused == (path, now):
            return
        try:
            if identity_of(path) != present.identity or path != present.path:
                self._live.take_over(path)
            self._seen = now
        except HeadstartError as error:
            self._refused = (path, now)  # until it changes again
            LOG.error("the model in %s is not taken over: %s", path, error)


def taken_over(store: Store, given: Path) -> Path:
    """The folder to serve: the given one, or that which was taken over instead of it."""
    said = store.fact(MODEL_FACT)
    if said is None:
        return given
    fact = json.loads(said)
    return Path(fact["path"]) if fact["instead_of"] == str(given) else given
