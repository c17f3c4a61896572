"""Files of tensors that are mapped into memory: what is not asked for is not read."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headstart.errors import ModelFileError
from headstart.storage import opened_own

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
        with opened_own(path) as file:
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
