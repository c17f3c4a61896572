"""Share arrays between versions of a model: a change copies only the changed entries."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.types import Heads, OneHead, OneState, RowStates


class PersistentArray:
    """An array that never changes; changes return another one that shares the rest with it.

    Recent changes lie over a base. Only when there are more of them than the root of the base's length, all
    of it is copied: so a change costs little, however long the array is.

    >>> one = PersistentArray(np.zeros(5))
    >>> other = one.put(np.array([3]), np.array([7.0]))
    >>> one.take(np.array([3, 4])), other.take(np.array([3, 4]))
    (array([0., 0.]), array([7., 0.]))
    """

    def __init__(self, base: NDArray[Any]) -> None:
        self._base = base
        self._positions = np.zeros(0, np.int64)  # ascending
        self._values = base[:0]

    def __len__(self) -> int:
        return len(self._base)

    def take(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """Return the entries at these positions."""
        found = self._base.take(positions, axis=0)
        if len(self._positions):
            at = self._positions.searchsorted(positions)
            at[at == len(self._positions)] = 0
            changed = self._positions.take(at) == positions
            if changed.any():
                found[changed] = self._values[at[changed]]
        return found

    def whole(self) -> NDArray[Any]:
        """Return all entries, not to be written to."""
        if not len(self._positions):
            return self._base
        every = self._base.copy()
        every[self._positions] = self._values
        return every

    def put(self, positions: NDArray[np.int64], values: NDArray[Any]) -> PersistentArray:
        """Return an array with other values at these positions, which differ."""
        if (len(positions) + len(self._positions)) ** 2 > len(self._base):
            every = self._base.copy()
            every[self._positions] = self._values
            every[positions] = values
            return PersistentArray(every)
        after = copy(self)
        if len(positions) == 1:
            at = int(self._positions.searchsorted(positions[0]))
            replaces = at < len(self._positions) and self._positions[at] == positions[0]
            tail = at + 1 if replaces else at
            after._positions = np.concatenate([self._positions[:at], positions, self._positions[tail:]])
            after._values = np.concatenate([self._values[:at], values, self._values[tail:]])
            return after
        kept = ~np.isin(self._positions, positions)
        every = np.concatenate([self._positions[kept], positions])
        order = every.argsort()
        after._positions = every[order]
        after._values = np.concatenate([self._values[kept], values])[order]
        return after

    def extended(self, more: NDArray[Any]) -> PersistentArray:
        """Return a longer array."""
        return PersistentArray(np.concatenate([self.whole(), more])) if len(more) else self


Part = TypeVar("Part", Heads, RowStates)

_CLAIMING = threading.Lock()  # one for all arenas, because a lock of their own could not be copied


class Arena(Generic[Part]):
    """Heads or states in arrays with room for more. A slot is written once, before anyone reads it.

    The tensors own the memory; ``arrays`` are views of them, which copies and pickles of an arena make anew.
    """

    def __init__(self, parts: Part, room: int) -> None:
        self.parts: Part = parts.detach().append_zeros(room)
        self.used = len(parts)

    @classmethod
    def over(cls, parts: Part, used: int) -> Arena[Part]:
        """Return an arena in these very arrays, of which the first ``used`` slots are in use."""
        arena = cls.__new__(cls)
        arena.parts, arena.used = parts, used
        return arena

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the views: a copy of them would not share memory with the copied tensors."""
        return {name: value for name, value in vars(self).items() if name != "arrays"}

    @cached_property
    def arrays(self) -> list[NDArray[Any]]:
        """All parts as numpy arrays, one entry per slot."""
        return [part.numpy() for part in self.parts.parts()]

    def claimed(self, count: int) -> range | None:
        """Reserve ``count`` slots for the caller alone; None if there is no room left."""
        with _CLAIMING:
            if self.used + count > len(self.parts):
                return None
            self.used += count
            return range(self.used - count, self.used)

    def write(self, slots: range, parts: Part | Sequence[OneHead] | Sequence[OneState]) -> None:
        """Fill reserved slots with a batch, or with single items one by one."""
        if isinstance(parts, (Heads, RowStates)):
            for own, given in zip(self.parts.parts(), parts.detach().parts(), strict=True):
                own[slots.start : slots.stop] = given
            return
        arrays = self.arrays
        for slot, item in zip(slots, parts, strict=True):
            numbers = (each for each in item if each is not None)
            for array, number in zip(arrays, numbers, strict=True):
                array[slot] = number

    def take(self, slots: Tensor | slice) -> Part:
        """Return the items in these slots; those of a slice are not copied."""
        return self.parts.take(slots)
