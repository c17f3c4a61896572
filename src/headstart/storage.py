"""Files that are whole or not there: tensors and facts written in one atomic step, without pickle."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from headstart.errors import ModelFileError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves either the old one or the new one, never a part."""
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The permissions new files lose; a temporary file begins with fewer than a plain one has."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time change a folder. Where the system has no such locks, all may."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write_json(path: Path, facts: Any) -> None:
    """Write facts as readable JSON, atomically."""
    write_bytes(path, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read facts back; a missing or damaged file is a clear error."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from None


def pack(tensors: dict[str, Tensor], facts: Any = None) -> bytes:
    """Put tensors, and facts that belong to them, into one block of bytes."""
    clean = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    return save(clean, metadata={"facts": json.dumps(facts)})


def unpack(content: bytes) -> dict[str, Tensor]:
    """Take the tensors out of what ``pack`` made."""
    try:
        return load(content)
    except (SafetensorError, ValueError) as error:
        raise ModelFileError(f"the weights are damaged: {error}") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Read what ``pack`` made and ``write_bytes`` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = json.loads((file.metadata() or {}).get("facts", "null"))
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged or cut short: {error}") from None
    return tensors, facts
