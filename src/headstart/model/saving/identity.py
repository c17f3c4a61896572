"""Which fitted model a folder holds."""

from __future__ import annotations

import hashlib
from pathlib import Path

from headstart.errors import ModelFileError
from headstart.model.saving.opening import INDEX, changing_files


def identity_of(path: Path) -> str:
    """A short text that differs between models, also after a change of one; the same for copies."""
    try:
        content = b"".join(each.read_bytes() for each in changing_files(path))
    except OSError:
        raise ModelFileError(f"{path} is not a saved model: {INDEX} cannot be read") from None
    return hashlib.sha256(content).hexdigest()[:12]


def touched(path: Path) -> tuple[tuple[int, int, int], ...] | None:
    """What changes when a model is replaced or changed; None if there is none."""
    try:
        found = [each.stat() for each in changing_files(path)]
    except OSError:
        return None
    return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)
