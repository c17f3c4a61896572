"""Write and read files safely: atomic replacement, folder locks, memory maps, tensors in pieces."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from headstart.errors import BusyError, ModelFileError, StorageError

_PARTIAL = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}\.partial")  # as ``partial_file`` names them

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

_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # of file systems that cannot sync a folder


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash the old file or the new file is there, never a part.

    When it returns, the new file survives a power failure. An error of the disk raises ``StorageError``.
    """
    with partial_file(path) as temporary, temporary.open("wb") as file:
        file.write(content)


@contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """Give a file beside ``path`` to write to, which takes its place when the block ends without an error."""
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


@contextmanager
def explain_storage_error(path: Path) -> Iterator[None]:
    """Turn errors of the disk inside the block into ones that name the path and say what to do."""
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


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that they survive a power failure."""
    with explain_storage_error(folder):
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for each in missing:
            sync_folder(each.parent)


def left_over(folder: Path, ours: re.Pattern[str]) -> list[Path]:
    """The unfinished files of writers that were killed, of files whose names match ``ours``.

    Only who holds the folder's lock knows that no writer is at work on them.
    """
    return [path for path in folder.iterdir() if is_partial(path.name, ours) and path.is_file()]


def is_partial(name: str, ours: re.Pattern[str]) -> bool:
    """Whether a file of this name is an unfinished one, of a file whose name matches ``ours``."""
    match = _PARTIAL.fullmatch(name)
    return match is not None and ours.fullmatch(match["name"]) is not None


def _umask() -> int:
    """Return the process's umask. ``mkstemp`` ignores it and creates private files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, facts: Any) -> None:
    """Write indented JSON, atomically."""
    write_bytes(path, json_bytes(facts))


def json_bytes(facts: Any) -> bytes:
    """What ``write_json`` writes."""
    return (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode()


@contextmanager
def open_regular_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that is really in its folder: not a link to another place, nor a pipe or a device."""
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
    """Read a file that is really in its folder, as ``open_regular_file`` does."""
    with open_regular_file(path) as file:
        return file.read()


def read_json(path: Path) -> Any:
    """Read JSON. A missing or damaged file, or a link to another place, raises ``ModelFileError``."""
    try:
        return json.loads(read_regular_file(path).decode())
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist") from None
    except (ValueError, RecursionError) as error:  # ValueError: neither UTF-8 nor JSON
        raise ModelFileError(f"{path} cannot be read: {error}") from None


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
def lock_folder(
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
        with explain_storage_error(folder):
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


class _Place(NamedTuple):
    """Where a tensor lies in a file."""

    type: type[np.generic]
    shape: tuple[int, ...]
    start: int
    end: int


class MappedFile:
    """The tensors of a safetensors file. They may be written to; that changes neither the file nor others.

    The file must not be written to meanwhile. It may be removed or replaced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_regular_file(path) as file:
            self.size = os.fstat(file.fileno()).st_size
            try:
                self._all = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                self.facts, self._places = self._header()
                if max((place.end for place in self._places.values()), default=0) != self.size:
                    raise ValueError("its length is another than it says")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ModelFileError(f"{path} is damaged or cut short: {error}") from None
            self._handle = os.dup(file.fileno())

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def _header(self) -> tuple[Any, dict[str, _Place]]:
        length = int.from_bytes(self._all[:8], "little")
        if length > self.size - 8:
            raise ValueError("its header is cut short")
        header = json.loads(self._all[8 : 8 + length])
        facts = json.loads(header.pop("__metadata__", {}).get("facts", "null"))
        places = {}
        for name, own in header.items():
            start, end = (8 + length + int(offset) for offset in own["data_offsets"])
            place = _Place(_TYPES[own["dtype"]], tuple(own["shape"]), start, end)
            if np.dtype(place.type).itemsize * int(np.prod(place.shape)) != end - start:
                raise ValueError(f"its tensor {name!r} has another length than it says")
            places[name] = place
        return facts, places

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by name."""
        return {name: self._tensor(self._all, place, place.start) for name, place in self._places.items()}

    def with_room(self, name: str, room: int) -> Tensor:
        """A tensor with so many lines of zeros after its own, not shared with that of ``tensors``.

        In the memory that maps it, the room lies over what follows the tensor in the file.
        """
        place = self._places[name]
        lines = place.shape[0]
        wanted = place._replace(shape=(lines + room, *place.shape[1:]))
        first = place.start - place.start % mmap.ALLOCATIONGRANULARITY
        end = place.start + np.dtype(place.type).itemsize * int(np.prod(wanted.shape))
        if end > self.size:  # nothing follows it
            own = self._tensor(self._all, place, place.start)
            return torch.cat([own, own.new_zeros(room, *place.shape[1:])])
        memory = mmap.mmap(self._handle, end - first, access=mmap.ACCESS_COPY, offset=first)
        tensor = self._tensor(memory, wanted, place.start - first)
        tensor[lines:] = 0
        return tensor

    @staticmethod
    def _tensor(memory: mmap.mmap, place: _Place, start: int) -> Tensor:
        count = int(np.prod(place.shape))
        if count == 0:
            return torch.from_numpy(np.zeros(place.shape, place.type))
        return torch.from_numpy(np.frombuffer(memory, place.type, count, start).reshape(place.shape))


_NAMES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bool: "BOOL",
    torch.uint8: "U8",
}


class Layout(NamedTuple):
    """What a tensor in a file is like."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


def order_tensors(layouts: Mapping[str, Layout]) -> list[str]:
    """The names of tensors in the order of a file: wide numbers first, so that all are aligned."""
    return sorted(layouts, key=lambda name: (-layouts[name].dtype.itemsize, name))


def write_tensors(path: Path, layouts: Mapping[str, Layout], pieces: Iterable[Tensor]) -> tuple[str, int]:
    """Write tensors of these layouts, given in pieces one after the other in their order, atomically.

    Returns the SHA-256 of the file and its size.
    """
    header: dict[str, object] = {"__metadata__": {"facts": "null"}}
    end = 0
    for name in order_tensors(layouts):
        layout, begin = layouts[name], end
        end += layout.size
        header[name] = {
            "dtype": _NAMES[layout.dtype],
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
