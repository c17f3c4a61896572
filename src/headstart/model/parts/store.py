"""Arrays of heads or row states that many models share: only new entries are written."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from torch import Tensor

from headstart.core.heads import Heads
from headstart.core.states import RowStates

Part = TypeVar("Part", Heads, RowStates)

_CLAIMING = threading.Lock()  # one for all stores, because a lock of their own could not be copied


class Store(Generic[Part]):
    """Heads or states in arrays with room for more. A slot is written once, before anyone knows of it."""

    def __init__(self, parts: Part, room: int) -> None:
        self.parts: Part = parts.detach().grown(room)
        self.arrays = [part.numpy() for part in self.parts.parts()]  # the same memory
        self.used = len(parts)

    @classmethod
    def over(cls, parts: Part, used: int) -> Store[Part]:
        """A store in these very arrays, of which so many slots are in use and the others are room."""
        store = cls.__new__(cls)
        store.parts, store.used = parts, used
        store.arrays = [part.numpy() for part in parts.parts()]
        return store

    def claimed(self, count: int) -> range | None:
        """So many slots that no one else writes to, or None if there is no room left."""
        with _CLAIMING:
            if self.used + count > len(self.parts):
                return None
            self.used += count
            return range(self.used - count, self.used)

    def write(self, slots: range, parts: Part) -> None:
        """Fill slots that were claimed."""
        for held, given in zip(self.parts.parts(), parts.detach().parts(), strict=True):
            held[slots.start : slots.stop] = given

    def write_one(self, slot: int, parts: Iterable[Any]) -> None:
        """Fill one slot that was claimed with these numbers."""
        for held, given in zip(self.arrays, parts, strict=True):
            held[slot] = given

    def take(self, slots: Tensor | slice) -> Part:
        """Return what these slots hold; what a slice of them holds is not copied."""
        return self.parts.take(slots)
