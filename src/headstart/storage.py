"""Atomic writing and reading of JSON and tensors, without pickle."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from headstart.errors import ModelFileError, StorageError

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
        with storing(path):
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
def storing(path: Path) -> Iterator[None]:
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
    with storing(folder):
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
def opened_own(path: Path) -> Iterator[BinaryIO]:
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


def read_own(path: Path) -> bytes:
    """Read a file that is really in its folder, as ``opened_own`` does."""
    with opened_own(path) as file:
        return file.read()


def read_json(path: Path) -> Any:
    """Read JSON. A missing or damaged file, or a link to another place, raises ``ModelFileError``."""
    try:
        return json.loads(read_own(path).decode())
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist") from None
    except (ValueError, RecursionError) as error:  # ValueError: neither UTF-8 nor JSON
        raise ModelFileError(f"{path} cannot be read: {error}") from None


def pack(tensors: dict[str, Tensor], facts: Any = None) -> bytes:
    """Serialize tensors, and JSON facts about them, as safetensors."""
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    return save(contiguous, metadata={"facts": json.dumps(facts)})


def unpack(content: bytes) -> dict[str, Tensor]:
    """Return the tensors in the bytes that ``pack`` returned."""
    try:
        return load(content)
    except (SafetensorError, ValueError) as error:
        raise ModelFileError(f"the weights are damaged: {error}") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Read the tensors and facts of a file that contains the bytes of ``pack``."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = json.loads((file.metadata() or {}).get("facts", "null"))
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged or cut short: {error}") from None
    return tensors, facts
