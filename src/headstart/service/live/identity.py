"""Which fitted model a folder holds."""

from __future__ import annotations

import hashlib
from pathlib import Path

from headstart.errors import ModelFileError
from headstart.model.folder import INDEX


def identity_of(path: Path) -> str:
    """A short text that differs between fitted models; the same for copies of one."""
    try:
        content = (path / INDEX).read_bytes()
    except OSError:
        raise ModelFileError(f"{path} is not a saved model: {INDEX} cannot be read") from None
    return hashlib.sha256(content).hexdigest()[:12]


def touched(path: Path) -> tuple[int, int, int] | None:
    """What changes when a model is replaced; None if there is none."""
    try:
        found = (path / INDEX).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
