"""Writing a safetensors file piece by piece, so that no more than a piece is in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headstart.storage import partial_file

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


def ordered(layouts: Mapping[str, Layout]) -> list[str]:
    """The names of tensors in the order of a file: wide numbers first, so that all are aligned."""
    return sorted(layouts, key=lambda name: (-layouts[name].dtype.itemsize, name))


def written(path: Path, layouts: Mapping[str, Layout], pieces: Iterable[Tensor]) -> tuple[str, int]:
    """Write tensors of these layouts, given in pieces one after the other in their order, atomically.

    Returns the SHA-256 of the file and its size.
    """
    header: dict[str, object] = {"__metadata__": {"facts": "null"}}
    end = 0
    for name in ordered(layouts):
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
