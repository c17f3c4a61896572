"""Locks on folders, between processes and between threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headstart.errors import BusyError
from headstart.storage import make_folder, storing

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

CAN_LOCK = fcntl is not None


class FolderLock:
    """A lock that is held; its ``owner`` may lock the same folder again in the same thread."""

    def __init__(self, owner: object) -> None:
        self.owner = owner


class _Held(threading.local):
    """The locks that this thread holds, by device and inode of the folder."""

    def __init__(self) -> None:
        self.locks: dict[tuple[int, int], FolderLock] = {}


_held = _Held()


@contextmanager
def locked(
    folder: Path, owner: object = None, *, create: bool = False, busy: str | None = None
) -> Iterator[FolderLock]:
    """Hold an exclusive lock on a folder. On systems without ``fcntl`` there is no lock.

    The same ``owner`` may lock a folder again in the same thread. Anyone else in this thread would wait
    for ever and gets a ``BusyError``. Other threads and processes wait; with ``busy`` they do not, and
    this is the message of the ``BusyError`` that they get. With ``create`` a missing folder is made.
    """
    if fcntl is None:
        if create:
            make_folder(folder)
        yield FolderLock(owner)
        return
    held = _held_here(folder, owner)
    if held is not None:
        yield held
        return
    handle = _acquired(folder, create, busy)
    place = _identity(os.fstat(handle))
    lock = _held.locks[place] = FolderLock(owner)
    try:
        yield lock
    finally:
        del _held.locks[place]
        os.close(handle)


def _held_here(folder: Path, owner: object) -> FolderLock | None:
    """The lock if this thread has it for this owner; an error if it has it for another."""
    lock = _held.locks.get(_identity(folder.stat())) if folder.exists() else None
    if lock is None or (owner is not None and lock.owner is owner):
        return lock
    raise BusyError(
        f"{folder} is being changed by this thread already, inside a with block; leave the block first"
    )


def _acquired(folder: Path, create: bool, busy: str | None) -> int:
    """A handle of the folder that has the lock."""
    while True:
        with storing(folder):
            if create:
                make_folder(folder)
            handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if busy is None else fcntl.LOCK_NB))
            if folder.exists() and _identity(folder.stat()) == _identity(os.fstat(handle)):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise BusyError(str(busy)) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # whoever had the lock has removed the folder


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
