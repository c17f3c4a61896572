"""Names that lie in a file, and are found there without reading all of them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.table import Names

_LOOKUPS = 1000  # after so many it pays to hold all names in a dictionary


def name_tensors(names: Iterable[str]) -> dict[str, Tensor]:
    """Names as tensors: their bytes, where each ends, and their hashes in order with their positions."""
    encoded = [name.encode() for name in names]
    hashes = np.array([_hash(each) for each in encoded], dtype=np.uint64).view(np.int64)
    order = np.argsort(hashes, kind="stable")
    ends = np.cumsum([0, *(len(each) for each in encoded)], dtype=np.int64)
    return {
        "bytes": torch.from_numpy(np.frombuffer(b"".join(encoded), np.uint8).copy()),
        "ends": torch.from_numpy(ends),
        "hashes": torch.from_numpy(hashes[order]),
        "order": torch.from_numpy(order),
    }


class SavedNames(Names):
    """Names as ``name_tensors`` made them; each is read when it is asked for."""

    def __init__(self, tensors: dict[str, Tensor], noun: str) -> None:
        self.noun = noun
        self._bytes = tensors["bytes"].numpy()
        self._ends = tensors["ends"].numpy()
        self._lookup = _Lookup(self, tensors["hashes"].numpy(), tensors["order"].numpy())

    @cached_property
    def _names(self) -> tuple[str, ...]:  # type: ignore[override]
        every, ends = self._bytes.tobytes(), self._ends.tolist()
        return tuple(every[start:end].decode() for start, end in itertools.pairwise(ends))

    @property
    def _index(self) -> dict[str, int]:
        if self._lookup.count > _LOOKUPS and self._every is not None:
            return self._every
        return self._lookup  # type: ignore[return-value]  # it does what is asked of the dictionary

    @cached_property
    def _every(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self._names)}

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, position):  # type: ignore[no-untyped-def]  # int -> str, slice -> tuple
        if isinstance(position, slice) or "_names" in self.__dict__:
            return self._names[position]
        return self.at(range(len(self))[position])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    __hash__ = Names.__hash__

    def at(self, position: int) -> str:
        """The name at a position."""
        return self._bytes[self._ends[position] : self._ends[position + 1]].tobytes().decode()


class _Lookup:
    """Finds positions of names by their hashes."""

    def __init__(self, names: SavedNames, hashes: NDArray[np.int64], order: NDArray[np.int64]) -> None:
        self._names, self._hashes, self._order = names, hashes, order
        self.count = 0

    def _find(self, name: object) -> int | None:
        if not isinstance(name, str):
            return None
        self.count += 1
        try:
            wanted = np.array([_hash(name.encode())], dtype=np.uint64).view(np.int64)[0]
        except UnicodeEncodeError:
            return None
        at = int(self._hashes.searchsorted(wanted))
        while at < len(self._hashes) and self._hashes[at] == wanted:
            position = int(self._order[at])
            if self._names.at(position) == name:
                return position
            at += 1
        return None

    def __contains__(self, name: object) -> bool:
        return self._find(name) is not None

    def __getitem__(self, name: str) -> int:
        position = self._find(name)
        if position is None:
            raise KeyError(name)
        return position


def _hash(name: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
