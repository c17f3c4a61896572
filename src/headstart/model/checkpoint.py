"""The folder in which a fit keeps its progress until the model is saved.

``fit.json`` says of which fit it is; beside it lies one file for each part that is trained. It is written
first and removed last, so a folder without it holds nothing of ours but perhaps an unfinished file.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headstart.crew import crew
from headstart.errors import InputError, listed
from headstart.locking import CAN_LOCK, locked
from headstart.model.parts.settings import Settings
from headstart.storage import left_over, read_json, storing, write_json
from headstart.table import Table

MARK = "fit.json"
_PART = re.compile(r"[\w.-]+\.safetensors")
_OURS = re.compile(rf"{re.escape(MARK)}|{_PART.pattern}")
_FIT = object()  # who holds the lock: the command and the fit that it calls


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Keep all other fits out of a checkpoint's folder; it is removed at the end if it is empty."""
    if not crew().leads:
        yield
        return
    busy = f"{folder} is in use by another fit; wait until it ends, or name another folder"
    with locked(folder, _FIT, create=True, busy=busy):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


def part_file(folder: Path, part: str) -> Path:
    """The file for the progress of one part of a fit."""
    return folder / f"{part}.safetensors"


def open_checkpoint(folder: Path, table: Table, settings: Settings, resume: bool) -> None:
    """Make the folder ready, which must be locked: continue with what it holds, or start anew."""
    facts = {"table": table.fingerprint(), "settings": json.loads(settings.model_dump_json())}
    crew().agreed(lambda: _open(folder, facts, resume) if crew().leads else None)


def _open(folder: Path, facts: dict[str, Any], resume: bool) -> None:
    mark = folder / MARK
    if resume and mark.exists():
        if read_json(mark) != facts:
            raise InputError(
                f"{folder} holds the checkpoint of a fit with other data or settings; "
                "resume with the same ones, or start anew without resume"
            )
        return
    left = left_over(folder, _OURS)
    others = sorted(each.name for each in folder.iterdir() if each not in left)
    if others and not mark.exists():
        raise InputError(
            f"{folder} is not empty ({listed(others, 3)}) and holds no checkpoint; name another folder"
        )
    discard(folder)
    write_json(mark, facts)


def is_resumable(folder: Path) -> bool:
    """Whether a folder holds progress that a fit can continue with."""
    return (folder / MARK).exists() and any(_PART.fullmatch(each.name) for each in folder.iterdir())


def discard(folder: Path) -> None:
    """Remove the progress of a fit from its folder, which must be locked."""
    with storing(folder):
        for each in [
            *(left_over(folder, _OURS) if CAN_LOCK else []),
            *(each for each in folder.iterdir() if _PART.fullmatch(each.name)),
            folder / MARK,
        ]:
            each.unlink(missing_ok=True)
