"""Vectors of texts, kept on disk between runs."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import sqlite3

Vector = NDArray[np.float32]
T = TypeVar("T")

VARIABLE = "HEADSTART_CACHE"
LIMIT = 512 * 2**20  # bytes on disk, about 300,000 vectors of 384 numbers
_AT_ONCE = 500  # texts per query
_DAY = 86_400


class VectorCache:
    """A file of vectors in a folder, found by encoder and text. It contains digests, not the texts.

    A cache is a convenience: where it cannot be read or written, everything works without it.

    Parameters
    ----------
    folder : Path
        The folder. It is created when the first vector is kept.
    limit : int, default=536870912
        The most bytes to keep. Beyond, the vectors that were not used for the longest time are removed.
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.path = folder / "text-vectors.sqlite"
        self.limit = limit

    @classmethod
    def usual(cls) -> VectorCache | None:
        """Return the user's cache, or None if the variable HEADSTART_CACHE is "off".

        The variable may also name the folder.
        """
        given = os.environ.get(VARIABLE, "")
        if given.lower() in ("off", "0", "no"):
            return None
        return cls(Path(given).expanduser() if given else _user_folder() / "headstart")

    def get(self, encoder: str, texts: Sequence[str]) -> dict[str, Vector]:
        """Return the vectors that are kept, by text."""
        if not self.path.exists():
            return {}
        return self._transact(lambda database: _found(database, encoder, texts), {})

    def put(self, encoder: str, vectors: Mapping[str, Vector]) -> None:
        """Keep vectors by text."""
        now = int(time.time())
        lines = [(_key(encoder, text), v.astype("<f4").tobytes(), now) for text, v in vectors.items()]

        def insert(database: sqlite3.Connection) -> None:
            database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", lines)
            self._trim(database)

        self._transact(insert, None)

    def size(self) -> int:
        """Return how many bytes the kept vectors take on disk."""
        return self._transact(_bytes, 0) if self.path.exists() else 0

    def _trim(self, database: sqlite3.Connection) -> None:
        size = _bytes(database)
        if size <= self.limit:
            return
        count = database.execute("SELECT COUNT(*) FROM vectors").fetchone()[0]
        surplus = count - int(count * 0.8 * self.limit / size)
        # The pages that become free are used again, so the file does not grow beyond the limit.
        database.execute(
            "DELETE FROM vectors WHERE rowid IN (SELECT rowid FROM vectors ORDER BY used, rowid LIMIT ?)",
            [surplus],
        )

    def _transact(self, action: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Run an action on the file as one transaction; return ``otherwise`` if the file does not work."""
        try:
            import sqlite3
        except ImportError:  # some builds of Python do not contain it
            return otherwise
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=5.0)) as database, database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS vectors (key BLOB UNIQUE, vector BLOB, used INTEGER)"
                )
                return action(database)
        except (OSError, sqlite3.OperationalError):
            return otherwise  # a full or read-only disk, or another process that writes for long
        except sqlite3.DatabaseError:
            with suppress(OSError):
                self.path.unlink()  # damaged
            return otherwise


def _found(database: sqlite3.Connection, encoder: str, texts: Sequence[str]) -> dict[str, Vector]:
    found: dict[str, Vector] = {}
    now = int(time.time())
    for start in range(0, len(texts), _AT_ONCE):
        by_key = {_key(encoder, text): text for text in texts[start : start + _AT_ONCE]}
        marks = ",".join("?" * len(by_key))
        query = f"SELECT key, vector FROM vectors WHERE key IN ({marks})"
        found |= {by_key[key]: np.frombuffer(line, "<f4") for key, line in database.execute(query, [*by_key])}
        # Once a day is enough to know which vectors are in use, and saves most of the writing.
        update = f"UPDATE vectors SET used = ? WHERE used < ? AND key IN ({marks})"
        database.execute(update, [now, now - _DAY, *by_key])
    return found


def _key(encoder: str, text: str) -> bytes:
    return hashlib.sha256(f"{encoder}\0{text}".encode("utf-8", "surrogatepass")).digest()


def _bytes(database: sqlite3.Connection) -> int:
    pages, free, page = (
        int(database.execute(f"PRAGMA {what}").fetchone()[0])
        for what in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * page


def _user_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
