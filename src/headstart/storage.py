"""Files that are whole or not there: tensors and facts written in one atomic step, without pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from headstart.errors import ModelFileError


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves either the old one or the new one, never a part."""
    beside = path.with_name(path.name + ".partial")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


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
