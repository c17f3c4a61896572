"""Arrays that change without being copied."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Layered:
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

    def put(self, places: NDArray[np.int64], values: NDArray[Any]) -> Layered:
        """Return an array with other values at these places, which differ."""
        if (len(places) + len(self._places)) ** 2 > len(self._base):
            every = self._base.copy()
            every[self._places] = self._values
            every[places] = values
            return Layered(every)
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

    def extended(self, more: NDArray[Any]) -> Layered:
        """Return a longer array."""
        return Layered(np.concatenate([self.whole(), more])) if len(more) else self
