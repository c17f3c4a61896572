"""Atomic writing and reading of JSON and tensors, without pickle."""

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
    """Write a file atomically: after a crash the old file or the new file is there, never a part."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """Return the process's umask. ``mkstemp`` ignores it and creates private files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder. On systems without ``fcntl`` there is no lock."""
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
    """Write indented JSON, atomically."""
    write_bytes(path, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON. A missing or damaged file raises ``ModelFileError``."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
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
