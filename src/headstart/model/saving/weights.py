"""The file of a model's weights, written piece by piece and named after its content."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from headstart.storage import storing, sync_folder
from headstart.streaming import Layout, written

_UNNAMED = f"weights-{'0' * 16}.safetensors"  # until the hash of its content is known


def write_weights(
    folder: Path, layouts: Mapping[str, Layout], pieces: Iterable[Tensor]
) -> tuple[str, str, int]:
    """Write tensors of these layouts, given in pieces in their order; returns name, digest and size."""
    digest, size = written(folder / _UNNAMED, layouts, pieces)
    name = f"weights-{digest[:16]}.safetensors"
    with storing(folder / name):
        os.replace(folder / _UNNAMED, folder / name)
        sync_folder(folder)
    return name, digest, size
