"""Write files atomically, read them safely, lock folders, and store tensors in safetensors files."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import mmap
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from headstart.errors import BusyError, ModelFileError, StorageError

# -- atomic writes ----------------------------------------------------------------------------------

_PARTIAL = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}\.partial")  # the names that ``partial_file`` makes

_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space, or name a place on another disk",
    errno.EDQUOT: "your quota is used up; free some space, or name a place on another disk",
    errno.EFBIG: "files may not become so large there; name a place on another disk",
    errno.EROFS: "the disk is read-only; name a place on another disk",
    errno.EACCES: "you may not write there; change the permissions, or name another place",
    errno.EPERM: "you may not write there; change the permissions, or name another place",
    errno.ENAMETOOLONG: "the name is too long; name another place",
    errno.ENOTDIR: "a part of the path is a file, not a folder; name another place",
}

_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # errors of file systems that cannot sync a folder


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash either the old or the new file is complete.

    Once the function has returned, the new file survives a power failure. An error of the disk raises
    ``StorageError``.
    """
    with partial_file(path) as temporary, temporary.open("wb") as file:
        file.write(content)


def write_json(path: Path, facts: Any) -> None:
    """Write indented JSON, atomically."""
    write_bytes(path, json_bytes(facts))


def json_bytes(facts: Any) -> bytes:
    """Return the content that ``write_json`` writes."""
    return (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode()


@contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path``, and replace ``path`` by it if the block raises no error."""
    temporary: Path | None = None
    try:
        with explain_storage_error(path):
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
            os.close(handle)
            temporary = Path(name)
            yield temporary
            sync(temporary)
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
            sync_folder(path.parent)
    except BaseException:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise


def left_over(folder: Path, ours: re.Pattern[str]) -> list[Path]:
    """Return the unfinished files of killed writers, for files whose names match ``ours``.

    The caller must hold the folder's lock: otherwise a writer may still be at work on them.
    """
    return [path for path in folder.iterdir() if is_partial(path.name, ours) and path.is_file()]


def is_partial(name: str, ours: re.Pattern[str]) -> bool:
    """Return whether ``name`` belongs to an unfinished file, for a file whose name matches ``ours``."""
    match = _PARTIAL.fullmatch(name)
    return match is not None and ours.fullmatch(match["name"]) is not None


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, so that they survive a power failure."""
    with explain_storage_error(folder):
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            sync_folder(path.parent)


def sync(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; without it a power failure may undo a rename."""
    if os.name != "posix":
        return  # folders cannot be opened there
    try:
        sync(folder)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


@contextmanager
def explain_storage_error(path: Path) -> Iterator[None]:
    """Raise StorageError, which names the path and says what to do, in place of an OSError of the block."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        _refuse(path, error)


def _refuse(path: Path, error: OSError) -> NoReturn:
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0, "what was there before is unchanged")
    refusal = StorageError(f"{path} cannot be written ({reason}): {advice}")
    refusal.errno = error.errno
    raise refusal from error


def _umask() -> int:
    """Return the process's umask. ``mkstemp`` ignores it and creates private files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


# -- reading ----------------------------------------------------------------------------------------


@contextmanager
def open_regular_file(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file: not a link, pipe or device."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with open(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ModelFileError(f"{path} is not a file")
            yield file
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ModelFileError(f"{path} is a link to another place; copy the file itself there") from None
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from None


def read_regular_file(path: Path) -> bytes:
    """Read a regular file: not a link, pipe or device."""
    with open_regular_file(path) as file:
        return file.read()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file, which is read in blocks."""
    with open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """Read JSON from a regular file. A missing or damaged file raises ``ModelFileError``."""
    try:
        return json.loads(read_regular_file(path).decode())
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist") from None
    except (ValueError, RecursionError) as error:  # ValueError: neither UTF-8 nor JSON
        raise ModelFileError(f"{path} cannot be read: {error}") from None


# -- tensors ----------------------------------------------------------------------------------------


def pack_tensors(tensors: dict[str, Tensor], facts: Any = None) -> bytes:
    """Serialize tensors, and JSON facts about them, as safetensors."""
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    return save(contiguous, metadata={"facts": json.dumps(facts)})


def unpack_tensors(content: bytes) -> dict[str, Tensor]:
    """Return the tensors in the bytes that ``pack_tensors`` returned."""
    try:
        return load(content)
    except (SafetensorError, ValueError) as error:
        raise ModelFileError(f"the weights are damaged: {error}") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Read the tensors and facts of a file that contains the bytes of ``pack_tensors``."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = json.loads((file.metadata() or {}).get("facts", "null"))
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged or cut short: {error}") from None
    return tensors, facts


_TYPE_NAMES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int32: "I32",
    torch.bool: "BOOL",
    torch.uint8: "U8",
}


class TensorLayout(NamedTuple):
    """The type and shape of a tensor in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of bytes of the tensor."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


def order_tensors(layouts: Mapping[str, TensorLayout]) -> list[str]:
    """Return the names of tensors in the order of a file: wide numbers first, so that all are aligned."""
    return sorted(layouts, key=lambda name: (-layouts[name].dtype.itemsize, name))


def write_tensors(
    path: Path, layouts: Mapping[str, TensorLayout], pieces: Iterable[Tensor]
) -> tuple[str, int]:
    """Write tensors atomically from consecutive ``pieces``, in the order of ``order_tensors(layouts)``.

    Returns the SHA-256 digest of the file and its size.
    """
    header: dict[str, object] = {"__metadata__": {"facts": "null"}}
    end = 0
    for name in order_tensors(layouts):
        layout, begin = layouts[name], end
        end += layout.size
        header[name] = {
            "dtype": _TYPE_NAMES[layout.dtype],
            "shape": list(layout.shape),
            "data_offsets": [begin, end],
        }
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    digest, size = hashlib.sha256(), 0
    with partial_file(path) as temporary, temporary.open("wb") as file:
        for content in (len(head).to_bytes(8, "little"), head):
            file.write(content)
            digest.update(content)
        for piece in pieces:
            numbers = np.ascontiguousarray(piece.detach().numpy()).reshape(-1).view(np.uint8).data
            file.write(numbers)
            digest.update(numbers)
            size += len(numbers)
        if size != end:
            raise RuntimeError(f"{path}: {size} bytes were given for tensors of {end}")
    return digest.hexdigest(), 8 + len(head) + end


# -- locks ------------------------------------------------------------------------------------------

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

CAN_LOCK = fcntl is not None


class FolderLock:
    """A lock on a folder. Its ``owner`` may lock the same folder again in the same thread."""

    def __init__(self, owner: object) -> None:
        self.owner = owner


class _ThreadLocks(threading.local):
    """The locks of this thread, by device and inode of the folder."""

    def __init__(self) -> None:
        self.locks: dict[tuple[int, int], FolderLock] = {}


_thread = _ThreadLocks()


@contextmanager
def lock_folder(
    folder: Path, owner: object = None, *, create: bool = False, busy: str | None = None
) -> Iterator[FolderLock]:
    """Hold an exclusive lock on a folder during the block.

    The lock is one of the operating system on the folder itself, or without ``fcntl`` (Windows) on a file
    beside it with the ending ``.lock``; it ends with the process.

    The same ``owner`` may lock a folder again in the same thread; another owner in this thread would wait
    forever and gets a ``BusyError``. Other threads and processes wait for the lock; if ``busy`` is given,
    they get a ``BusyError`` with this message instead. ``create`` makes a missing folder.
    """
    present = _own_lock(folder, owner)
    if present is not None:
        yield present
        return
    if fcntl is None:
        with _lock_file_beside(folder, create, busy) as identity:
            lock = _thread.locks[identity] = FolderLock(owner)
            try:
                yield lock
            finally:
                _thread.locks.pop(identity, None)
        return
    handle = _acquire(folder, create, busy)
    identity = _identity(os.fstat(handle))
    lock = _thread.locks[identity] = FolderLock(owner)
    try:
        yield lock
    finally:
        _thread.locks.pop(identity, None)
        if handle in _handles:
            _handles.remove(handle)
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child that was just forked may not have closed its copy
            os.close(handle)


@contextmanager
def _lock_file_beside(folder: Path, create: bool, busy: str | None) -> Iterator[tuple[int, int]]:
    """Lock a file beside the folder during the block, and yield the identity of the folder."""
    from filelock import FileLock, Timeout

    with explain_storage_error(folder):
        if create:
            make_folder(folder)
        resolved = folder.resolve()
        lock = FileLock(resolved.with_name(f"{resolved.name}.lock"))
        try:
            lock.acquire(timeout=-1 if busy is None else 0)
        except Timeout:
            raise BusyError(str(busy)) from None
    try:
        with explain_storage_error(folder):
            identity = _identity(folder.stat())
        yield identity
    finally:
        lock.release()


def _own_lock(folder: Path, owner: object) -> FolderLock | None:
    """Return this thread's lock on the folder, if there is one; raise an error if it has another owner."""
    lock = _thread.locks.get(_identity(folder.stat())) if folder.exists() else None
    if lock is None or (owner is not None and lock.owner is owner):
        return lock
    raise BusyError(
        f"{folder} is being changed by this thread already, inside a with block; leave the block first"
    )


_handles: set[int] = set()  # of the folders that this process has locked


def _leave_locks_to_parent() -> None:
    """Close the handles of locks in a forked child, which would keep them when its parent has ended."""
    for handle in _handles:
        os.close(handle)
    _handles.clear()
    _thread.locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks_to_parent)


def _acquire(folder: Path, create: bool, busy: str | None) -> int:
    """Lock the folder and return its handle."""
    while True:
        with explain_storage_error(folder):
            if create:
                make_folder(folder)
            handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if busy is None else fcntl.LOCK_NB))
            if folder.exists() and _identity(folder.stat()) == _identity(os.fstat(handle)):
                _handles.add(handle)
                return handle
        except BlockingIOError:
            os.close(handle)
            raise BusyError(str(busy)) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the previous holder of the lock has removed the folder


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


# -- memory maps ------------------------------------------------------------------------------------

_TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


class _Entry(NamedTuple):
    """The type, shape and position of a tensor in a file."""

    type: type[np.generic]
    shape: tuple[int, ...]
    start: int
    end: int


class MappedFile:
    """The tensors of a safetensors file, mapped into memory. Writing to a tensor does not change the file.

    The file must not be written to while it is mapped. It may be removed or replaced.
    """

    _handle = -1  # a file descriptor; -1 if the file could not be opened

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_regular_file(path) as file:
            self.size = os.fstat(file.fileno()).st_size
            try:
                self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                self.facts, self._entries = self._header()
            except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
                raise ModelFileError(f"{path} is damaged or cut short: {error}") from None
            self._handle = os.dup(file.fileno())

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)

    def _header(self) -> tuple[Any, dict[str, _Entry]]:
        length = int.from_bytes(self._memory[:8], "little")
        if length > self.size - 8:
            raise ValueError("its header is cut short")
        header = json.loads(self._memory[8 : 8 + length])
        facts = json.loads(header.pop("__metadata__", {}).get("facts", "null"))
        entries, end = {}, 8 + length
        for name, fields in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            shape, start = tuple(fields["shape"]), end
            end = 8 + length + fields["data_offsets"][1]
            entry = _Entry(_TYPES[fields["dtype"]], shape, start, end)
            # A crafted shape, such as one whose product overflows, must not ask for more than the file has.
            if not all(type(size) is int and 0 <= size <= self.size for size in shape):
                raise ValueError(f"its tensor {name!r} has the shape {list(shape)}")
            numbers = math.prod(shape)
            if (
                fields["data_offsets"][0] != start - 8 - length
                or entry.type().itemsize * numbers != end - start
            ):
                raise ValueError(f"its tensor {name!r} has another length than it says")
            entries[name] = entry
        if end != self.size:
            raise ValueError("its length is another than it says")
        return facts, entries

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors, by name."""
        return {name: self._tensor(self._memory, entry, entry.start) for name, entry in self._entries.items()}

    def with_room(self, name: str, room: int) -> Tensor:
        """Return a copy of a tensor with ``room`` more rows of zeros.

        The copy is a mapping of its own; its additional rows overwrite, in memory only, the content that
        follows the tensor in the file.
        """
        entry = self._entries[name]
        rows = entry.shape[0]
        extended = entry._replace(shape=(rows + room, *entry.shape[1:]))
        first = entry.start - entry.start % mmap.ALLOCATIONGRANULARITY
        end = entry.start + np.dtype(entry.type).itemsize * int(np.prod(extended.shape))
        if end > self.size:  # the file ends too early
            tensor = self._tensor(self._memory, entry, entry.start)
            return torch.cat([tensor, tensor.new_zeros(room, *entry.shape[1:])])
        memory = mmap.mmap(self._handle, end - first, access=mmap.ACCESS_COPY, offset=first)
        tensor = self._tensor(memory, extended, entry.start - first)
        tensor[rows:] = 0
        return tensor

    @staticmethod
    def _tensor(memory: mmap.mmap, entry: _Entry, start: int) -> Tensor:
        count = int(np.prod(entry.shape))
        if count == 0:
            return torch.from_numpy(np.zeros(entry.shape, entry.type))
        return torch.from_numpy(np.frombuffer(memory, entry.type, count, start).reshape(entry.shape))
