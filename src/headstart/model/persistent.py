"""Share arrays between versions of a model: a change copies only the changed entries."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from copy import copy
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.types import Heads, RowStates


class PersistentArray:
    """An array that never changes; changes return another one, and the two share what they have in common.

    What changed lately lies over a base. Only when that is more than the root of the base's length, all of
    it is copied: so a change costs little, however long the array is.

    >>> one = Layered(np.zeros(5))
    >>> other = one.put(np.array([3]), np.array([7.0]))
    >>> one.take(np.array([3, 4])), other.take(np.array([3, 4]))
    (array([0., 0.]), array([7., 0.]))
    """

    def __init__(self, base: NDArray[Any]) -> None:
        self._base = base
        self._places = np.zeros(0, np.int64)  # ascending
        self._values = base[:0]

    def __len__(self) -> int:
        return len(self._base)

    def take(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """What lies at these places."""
        found = self._base.take(places, axis=0)
        if len(self._places):
            at = self._places.searchsorted(places)
            at[at == len(self._places)] = 0
            changed = self._places.take(at) == places
            if changed.any():
                found[changed] = self._values[at[changed]]
        return found

    def whole(self) -> NDArray[Any]:
        """All of it, not to be written to."""
        if not len(self._places):
            return self._base
        every = self._base.copy()
        every[self._places] = self._values
        return every

    def put(self, places: NDArray[np.int64], values: NDArray[Any]) -> PersistentArray:
        """Return an array with other values at these places, which differ."""
        if (len(places) + len(self._places)) ** 2 > len(self._base):
            every = self._base.copy()
            every[self._places] = self._values
            every[places] = values
            return PersistentArray(every)
        after = copy(self)
        if len(places) == 1:
            at = int(self._places.searchsorted(places[0]))
            there = at < len(self._places) and self._places[at] == places[0]
            tail = at + 1 if there else at
            after._places = np.concatenate([self._places[:at], places, self._places[tail:]])
            after._values = np.concatenate([self._values[:at], values, self._values[tail:]])
            return after
        kept = ~np.isin(self._places, places)
        every = np.concatenate([self._places[kept], places])
        order = every.argsort()
        after._places = every[order]
        after._values = np.concatenate([self._values[kept], values])[order]
        return after

    def extended(self, more: NDArray[Any]) -> PersistentArray:
        """Return a longer array."""
        return PersistentArray(np.concatenate([self.whole(), more])) if len(more) else self


Part = TypeVar("Part", Heads, RowStates)

_CLAIMING = threading.Lock()  # one for all stores, because a lock of their own could not be copied


class Arena(Generic[Part]):
    """Heads or states in arrays with room for more. A slot is written once, before anyone knows of it."""

    def __init__(self, parts: Part, room: int) -> None:
        self.parts: Part = parts.detach().grown(room)
        self.arrays = [part.numpy() for part in self.parts.parts()]  # the same memory
        self.used = len(parts)

    @classmethod
    def over(cls, parts: Part, used: int) -> Arena[Part]:
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
