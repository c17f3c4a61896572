"""The journal of a saved model: what was changed since all of it was written, one line per change.

A line has a length with a checksum of its own, a digest and JSON. The digest is of the JSON and of the digest
before it, the first one of the model's: so no line can be changed, left out, moved or be of another model
unnoticed. A line that ends too early is of a writer that was killed, and counts as never written.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.errors import ModelFileError
from headstart.storage import read_own, storing, sync_folder

Call = dict[str, Any]  # a change: its verb, and all that it needs to be made again

_SIZES = 16  # hexadecimal digits: eight of the length and eight of its checksum
_DIGEST = 64
_BEFORE = _SIZES + 1 + _DIGEST + 1  # of a line, before its JSON


@dataclass(frozen=True)
class Journal:
    """What a journal holds.

    Attributes
    ----------
    path : Path
        Its file, which need not exist.
    changes : list
        The calls of each change; those of one change are made as a whole.
    digest : str
        That of the last line, or of the model if there is none.
    size : int
        How many bytes of the file are whole lines.
    """

    path: Path
    changes: list[list[Call]]
    digest: str
    size: int


def journal_name(base: str) -> str:
    """The name of the journal of a model with this checksum."""
    return f"journal-{base[:16]}.jsonl"


def read_journal(path: Path, base: str) -> Journal:
    """Read the journal of the model with this checksum; a missing file is an empty one.

    Raises
    ------
    ModelFileError
        If a line is damaged, or is not one of this model.
    """
    try:
        content = read_own(path)
    except FileNotFoundError:
        return Journal(path, [], base, 0)
    changes: list[list[Call]] = []
    digest, start = base, 0
    while True:
        length = _length(path, content, start, len(changes))
        if length is None or start + _BEFORE + length + 1 > len(content):
            return Journal(path, changes, digest, start)
        text = content[start + _BEFORE : start + _BEFORE + length]
        digest = _digest(digest, text)
        line = content[start : start + _BEFORE + length + 1]
        if line != _line(digest, text):
            raise _damaged(path, len(changes))
        changes.append(json.loads(text))
        start += len(line)


def line_of(digest: str, calls: Sequence[Call]) -> bytes:
    """The line of a change that follows the line of this digest."""
    text = json.dumps(calls, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    return _line(_digest(digest, text), text)


def append(journal: Journal, line: bytes) -> None:
    """Add a line; when this returns, it survives a power failure. If the disk refuses, nothing is added."""
    new = not journal.path.exists()
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with storing(journal.path):
        handle = os.open(journal.path, flags, 0o666)
        try:
            os.ftruncate(handle, journal.size)  # what a killed writer left is no line
            try:
                _write_all(handle, line, journal.size)
                os.fsync(handle)
            except BaseException:
                os.ftruncate(handle, journal.size)
                raise
        finally:
            os.close(handle)
        if new:
            sync_folder(journal.path.parent)


def _write_all(handle: int, line: bytes, at: int) -> None:
    os.lseek(handle, at, os.SEEK_SET)
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _length(path: Path, content: bytes, start: int, number: int) -> int | None:
    """The length of the JSON of the line that starts here; None if not all of its length is there."""
    sizes = content[start : start + _SIZES]
    if len(sizes) < _SIZES:
        return None
    if sizes[8:] != _checksum(sizes[:8]):
        raise _damaged(path, number)
    return int(sizes[:8], 16)


def _line(digest: str, text: bytes) -> bytes:
    length = f"{len(text):08x}".encode()
    return b"%s%s %s %s\n" % (length, _checksum(length), digest.encode(), text)


def _checksum(length: bytes) -> bytes:
    return f"{zlib.crc32(length):08x}".encode()


def _digest(before: str, text: bytes) -> str:
    return hashlib.sha256(before.encode() + text).hexdigest()


def _damaged(path: Path, number: int) -> ModelFileError:
    return ModelFileError(
        f"{path} is damaged: its line {number + 1} does not match its checksum, or is of another model; "
        "restore it from a copy, or remove the file to go back to the model without the changes in it"
    )
