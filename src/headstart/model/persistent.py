"""Arrays that versions of a model share: a change copies only a few entries.

``FeatureStore`` and ``RowStore`` keep heads and states in an ``Arena``, and their slots in a
``PersistentArray``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.types import Heads, OneHead, OneState, RowStates

Item = TypeVar("Item")

_ROOM_SHARE = 8  # an array that is extended gets room for an eighth of its entries

_SHORT = 2**18  # bytes of an array that is copied in less time than its changes are looked up


def copy_with(item: Item, **changes: Any) -> Item:
    """Return a shallow copy with some attributes changed, of an object without ``__post_init__``.

    It takes a tenth of the time of ``dataclasses.replace`` and ``copy.copy``.
    """
    after = object.__new__(type(item))
    vars(after).update(vars(item), **changes)
    return after


_WRITING = threading.Lock()  # shared by all arrays and arenas, because one with a lock cannot be copied


class PersistentArray:
    """An immutable array; methods that change it return another one that shares unchanged entries.

    A change of a short array copies it. Changes of a long one are stored beside a base array, which is copied
    only when their number exceeds the square root of its length, so the average cost of a change grows with
    this root. There is room after the base, in which the first array that is extended writes its further
    entries.

    >>> one = PersistentArray(np.zeros(5))
    >>> other = one.put(np.array([3]), np.array([7.0]))
    >>> one.take(np.array([3, 4])), other.take(np.array([3, 4]))
    (array([0., 0.]), array([7., 0.]))
    """

    def __init__(self, base: NDArray[Any]) -> None:
        self._base = base
        self._room: tuple[NDArray[Any], list[int]] | None = None  # the base with room, and its entries in use
        self._positions = np.zeros(0, np.int64)  # ascending
        self._values = base[:0]

    def __len__(self) -> int:
        return len(self._base)

    def take(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """Return the entries at these positions."""
        entries = self._base.take(positions, axis=0)
        if len(self._positions):
            at = self._positions.searchsorted(positions)
            at[at == len(self._positions)] = 0
            changed = self._positions.take(at) == positions
            if changed.any():
                entries[changed] = self._values[at[changed]]
        return entries

    def whole(self) -> NDArray[Any]:
        """Return all entries; the caller must not write to them."""
        if not len(self._positions):
            return self._base
        entries = self._base.copy()
        entries[self._positions] = self._values
        return entries

    def put(self, positions: NDArray[np.int64], values: NDArray[Any]) -> PersistentArray:
        """Return an array with ``values`` at ``positions``, which must be distinct."""
        changes = len(positions) + len(self._positions)
        if self._base.nbytes <= _SHORT or changes**2 > len(self._base):
            entries = self._base.copy()
            entries[self._positions] = self._values
            entries[positions] = values
            return PersistentArray(entries)
        after = copy_with(self)
        if len(positions) == 1:
            at = int(self._positions.searchsorted(positions[0]))
            replaces = at < len(self._positions) and self._positions[at] == positions[0]
            tail = at + 1 if replaces else at
            after._positions = np.concatenate([self._positions[:at], positions, self._positions[tail:]])
            after._values = np.concatenate([self._values[:at], values, self._values[tail:]])
            return after
        others = ~np.isin(self._positions, positions)
        merged = np.concatenate([self._positions[others], positions])
        order = merged.argsort()
        after._positions = merged[order]
        after._values = np.concatenate([self._values[others], values])[order]
        return after

    def put_or_extend(
        self, positions: NDArray[np.int64], values: NDArray[Any], missing: float
    ) -> PersistentArray:
        """Return an array with ``values`` at ``positions``, which may be beyond its end.

        Entries between the end and the positions are ``missing``.
        """
        count = len(self)
        if len(positions) and np.array_equal(positions, np.arange(count, count + len(positions))):
            return self.extend(values)
        more = int(positions.max(initial=-1)) + 1 - count
        after = self.extend(np.full((max(0, more), *values.shape[1:]), missing, values.dtype))
        return after.put(positions, values)

    def extend(self, more: NDArray[Any]) -> PersistentArray:
        """Return the array with ``more`` entries appended."""
        if not len(more):
            return self
        start, end = len(self), len(self) + len(more)
        with _WRITING:
            if self._room is None or self._room[1][0] != start or end > len(self._room[0]):
                after = PersistentArray(self.whole())
                room = np.empty((end + start // _ROOM_SHARE, *self._base.shape[1:]), self._base.dtype)
                room[:start] = after._base
                after._room = room, [end]
            else:
                after, room = copy_with(self), self._room[0]
                self._room[1][0] = end
        room[start:end] = more
        after._base = room[:end]
        return after


Items = TypeVar("Items", Heads, RowStates)


class Arena(Generic[Items]):
    """Heads or states in tensors with room for more. A slot is written once, before it is read.

    Parameters
    ----------
    items : Heads or RowStates
        The items of the first slots.
    room : int
        The number of free slots after them.
    """

    def __init__(self, items: Items, room: int) -> None:
        self.used = len(items)
        self._hold(items.detach().append_zeros(room))

    @classmethod
    def wrap(cls, items: Items, used: int) -> Arena[Items]:
        """Return an arena that shares the memory of ``items``, whose first ``used`` slots are in use."""
        arena = cls.__new__(cls)
        arena.used = used
        arena._hold(items)
        return arena

    def _hold(self, items: Items) -> None:
        self.items: Items = items
        # Views of all parts in numpy, with one entry per slot.
        self.arrays: list[NDArray[Any]] = [part.numpy() for part in items.parts()]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out ``arrays``: copies of these views would not share memory with the copied tensors."""
        return {"items": self.items, "used": self.used}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.used = state["used"]
        self._hold(state["items"])

    def append(self, items: Items | Sequence[OneHead] | Sequence[OneState]) -> range | None:
        """Write a batch, or a sequence of single items, to free slots; return None if there are too few."""
        with _WRITING:
            slots = range(self.used, self.used + len(items))
            if slots.stop > len(self.items):
                return None
            self._write(slots, items)
            self.used = slots.stop
        return slots

    def extend(self, room: int) -> None:
        """Move the items to larger tensors with ``room`` more slots; the slots of the items stay."""
        with _WRITING:
            self._hold(self.items.append_zeros(room))

    def _write(self, slots: range, items: Items | Sequence[OneHead] | Sequence[OneState]) -> None:
        if isinstance(items, (Heads, RowStates)):
            items = items.dense() if isinstance(items, Heads) else items
            for target, source in zip(self.items.parts(), items.detach().parts(), strict=True):
                target[slots.start : slots.stop] = source
            return
        for slot, item in zip(slots, items, strict=True):
            numbers = (part for part in item if part is not None)
            for array, number in zip(self.arrays, numbers, strict=True):
                array[slot] = number

    def take(self, slots: Tensor | slice) -> Items:
        """Return the items in these slots, without a copy if ``slots`` is a slice."""
        return self.items.take(slots)
