"""The features of a catalogue as arrays, in the order in which their heads are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.model.parts.feature import Feature


class Listed(NamedTuple):
    """A feature, the slot of its head and its place in the catalogue."""

    feature: Feature
    slot: int
    place: int


@dataclass(frozen=True)
class Listing:
    """What rankings read of features, one entry per slot of the stored heads.

    The listing of many features is made once. Features that changed since then are laid over it, so that
    a change does not make the next ranking slow.
    """

    features: list[Feature | None]  # None where the head is no longer of any feature
    places: NDArray[np.int64]  # in the catalogue's order; −1 where there is no feature
    types: NDArray[np.int64]
    offsets: NDArray[np.float64]
    spans: NDArray[np.float64]
    shots: NDArray[np.int64]
    fixed: NDArray[np.bool_]
    recent: tuple[Listed, ...] = ()  # laid over ``base``
    base: Listing | None = field(default=None, repr=False)

    @classmethod
    def of(cls, listed: Sequence[Listed]) -> Listing:
        """List these features."""
        size = max((each.slot for each in listed), default=-1) + 1
        empty = cls(
            [None] * size,
            np.full(size, -1),
            np.zeros(size, np.int64),
            np.zeros(size),
            np.ones(size),
            np.zeros(size, np.int64),
            np.zeros(size, bool),
        )
        empty._write(listed)
        return empty

    def overlaid(self, recent: Sequence[Listed], gone: Sequence[int]) -> Listing:
        """Return the listing with these features too; the slots in ``gone`` are no longer in use."""
        more = max((each.slot for each in recent), default=-1) + 1 - len(self.features)
        grown = replace(
            self,
            features=self.features + [None] * max(0, more),
            **{name: _grown(getattr(self, name), max(0, more)) for name in _ARRAYS},
            recent=tuple(recent),
            base=self,
        )
        for slot in gone:
            grown.features[slot] = None
        grown.places[list(gone)] = -1
        grown._write(recent)
        return grown

    @cached_property
    def present(self) -> NDArray[np.int64]:
        """The slots in use, in ascending order."""
        return np.flatnonzero(self.places >= 0)

    @cached_property
    def kinds(self) -> NDArray[np.int64]:
        """The types of kinds that there are."""
        return np.unique(self.types[self.present])

    @cached_property
    def any_fixed(self) -> bool:
        """Whether any head is the backbone's own."""
        return bool(self.fixed[self.present].any())

    @cached_property
    def odd(self) -> int | None:
        """``unlike`` of all features."""
        return self.unlike(self.present)

    def unlike(self, slots: NDArray[np.int64]) -> int | None:
        """The first of these slots whose feature has another kind or other units than the first of all."""
        kinds = np.stack([each[slots] for each in (self.types, self.offsets, self.spans)])
        differ = (kinds != kinds[:, :1]).any(axis=0)
        return int(slots[differ.argmax()]) if differ.any() else None

    def observed_by(self, row: int) -> NDArray[np.int64]:
        """The slots of the features whose context holds this row, in ascending order."""
        slots = (self.base or self)._held_by(row)
        slots = slots[self.places[slots] >= 0]
        further = [each.slot for each in self.recent if each.feature.holds(row)]
        return np.union1d(slots, np.array(further, dtype=np.int64))

    def _held_by(self, row: int) -> NDArray[np.int64]:
        starts, slots = self._by_row
        if row + 1 >= len(starts):
            return np.zeros(0, dtype=np.int64)
        return slots[starts[row] : starts[row + 1]].astype(np.int64)

    @cached_property
    def _by_row(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The slots by row: where each row's begin, and all of them."""
        from scipy.sparse import csr_array  # its change to columns counts instead of sorting

        contexts = [np.zeros(0, np.int64) if each is None else each.rows for each in self.features]
        starts = np.append(0, np.cumsum([len(rows) for rows in contexts], dtype=np.int64))
        rows = np.concatenate([*contexts, np.zeros(0, np.int64)])
        shape = (len(contexts), int(rows.max(initial=-1)) + 1)
        by_row = csr_array((np.ones(len(rows), np.int8), rows, starts), shape=shape).tocsc()
        return by_row.indptr, by_row.indices

    def _write(self, listed: Sequence[Listed]) -> None:
        slots = [each.slot for each in listed]
        kinds = [each.feature.kind for each in listed]
        self.places[slots] = [each.place for each in listed]
        self.types[slots] = [kind.type for kind in kinds]
        self.offsets[slots] = [kind.offset for kind in kinds]
        self.spans[slots] = [kind.span for kind in kinds]
        self.shots[slots] = [each.feature.shots for each in listed]
        self.fixed[slots] = [each.feature.fixed for each in listed]
        for each in listed:
            self.features[each.slot] = each.feature


_ARRAYS = ("places", "types", "offsets", "spans", "shots", "fixed")


def _grown(array: NDArray[Any], more: int) -> NDArray[Any]:
    return np.concatenate([array, np.full(more, -1).astype(array.dtype)])
