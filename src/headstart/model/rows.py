"""Hold the rows of a model with their states and observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from headstart.core.types import OneState, RowBelief, RowPrior, RowStates
from headstart.model.observations import ObservationList, ObservationLists
from headstart.model.persistent import Arena, PersistentArray
from headstart.table import MetadataSchema
from headstart.table.metadata import as_array
from headstart.table.names import Names

_MIN_ROOM, _ROOM_SHARE = 1024, 8


class StateArrays(NamedTuple):
    """The parts of a row's state that heads read."""

    activation: NDArray[np.float32]  # (width,)
    noise: float
    variance: NDArray[np.float32] | None  # (width,)


class RowStore:
    """Rows by name with their states and observations; it never changes.

    A row has up to three states (see ``updates``): the *current* one, from which it is predicted; its
    *reference*, which heads of features read; and the one of the fit, which references of features read.
    Most rows have one state for all three. Changes return another store that shares the rest with this one:
    states lie in an arena to which only new ones are written.
    """

    def __init__(self, names: Names, states: RowStates) -> None:
        self.names = names
        self._arena = Arena(states, 0)
        self._share_slots(np.arange(len(states)))
        self._base: dict[int, ObservationList] = {}
        self._recent: dict[int, ObservationList] = {}  # come before those of the same row in the base
        self._cells: tuple[dict[int, ObservationList], ObservationLists] | None = None  # of the base

    @classmethod
    def over(cls, names: Names, arena: Arena[RowStates]) -> RowStore:
        """Return rows whose states lie in ``arena``, in their order."""
        store = cls(names, arena.take(slice(0, 0)))
        store._arena = arena
        store._share_slots(np.arange(len(names)))
        store.__dict__["states"] = arena.take(slice(0, len(names)))
        return store

    def _share_slots(self, slots: NDArray[np.int64]) -> None:
        self._slots = self._references = self._fitted = PersistentArray(slots)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def width(self) -> int:
        """The number of activations of a row."""
        return int(self._arena.parts.activation.shape[1])

    @cached_property
    def states(self) -> RowStates:
        """The current states of all rows."""
        slots = self._slots.whole()
        if len(self._arena.parts) == len(self) and np.array_equal(slots, np.arange(len(self))):
            return self._arena.parts  # nothing has changed since they were made
        return self._arena.take(torch.from_numpy(slots))

    @property
    def unchanged(self) -> bool:
        """Whether all rows have the states of the fit."""
        return self._references is self._slots

    def take(self, rows: NDArray[np.int64]) -> RowStates:
        """Return the current states of the rows at these positions."""
        if "states" in self.__dict__:
            return self.states.take(torch.from_numpy(rows))
        return self._arena.take(torch.from_numpy(self._slots.take(rows)))

    def take_references(self, rows: NDArray[np.int64]) -> RowStates:
        """Return the references of the rows at these positions."""
        return self._arena.take(torch.from_numpy(self._references.take(rows)))

    def take_fitted(self, rows: NDArray[np.int64]) -> RowStates:
        """Return the states that ``fit`` gave these rows, which must be rows of its table."""
        return self._arena.take(torch.from_numpy(self._fitted.take(rows)))

    def slots(self) -> NDArray[np.int64]:
        """Return the slots of the current states of all rows."""
        return self._slots.whole()

    def stored(self, slots: slice) -> RowStates:
        """Return the states in these slots; some may belong to no row."""
        return self._arena.take(slots)

    def head_inputs(
        self, rows: NDArray[np.int64], which: Literal["current", "references", "fitted"]
    ) -> tuple[NDArray[Any], ...]:
        """Return activation, noise and variance of rows in numpy, as far as the states have them."""
        by_kind = {"current": self._slots, "references": self._references, "fitted": self._fitted}
        slots = by_kind[which].take(rows)
        return tuple(part.take(slots, axis=0) for part in self._arena.arrays[2:])

    def arrays(self, row: int) -> StateArrays:
        """Return the current state of one row, without a copy."""
        parts, slot = self._arena.parts, int(self._slots.take(np.array([row]))[0])
        noise, variance = parts.noise, parts.variance
        return StateArrays(
            parts.activation[slot].numpy(),
            1.0 if noise is None else float(noise[slot]),
            None if variance is None else variance[slot].numpy(),
        )

    def observations(self, row: int) -> ObservationList | None:
        """Return the observations of a row; None if they are those of the table of the fit."""
        found = self._recent.get(row)
        return self._base.get(row) if found is None else found

    @property
    def observed_rows(self) -> list[int]:
        """The rows that were added or observed after fit, in order."""
        return sorted({*self._base, *self._recent})

    def observers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of ``observed_rows`` that observed any feature of these numbers, in order."""
        if self._cells is None or self._cells[0] is not self._base:
            self._cells = (self._base, ObservationLists.of(list(self._base.values())))
        lists, every = self._cells[1], np.array([*self._base], dtype=np.int64)
        found = every[np.unique(lists.lines[np.isin(lists.keys, numbers)])]
        found = found[~np.isin(found, np.array([*self._recent], dtype=np.int64))]
        recent = [row for row, each in self._recent.items() if np.isin(each.keys, numbers).any()]
        return np.union1d(found, np.array(recent, dtype=np.int64))

    def put(
        self,
        rows: NDArray[np.int64],
        states: RowStates | Sequence[OneState],
        observations: Sequence[ObservationList],
    ) -> RowStore:
        """Return a store in which these rows have other current states and observations."""
        after = self._copied()
        slots = after._written(states)
        after._slots = after._slots.put(rows, slots)
        after._keep(dict(zip(rows.tolist(), observations, strict=True)))
        return after

    def put_references(self, rows: NDArray[np.int64], states: RowStates | Sequence[OneState]) -> RowStore:
        """Return a store in which these rows have other references."""
        after = self._copied()
        slots = after._written(states)
        after._references = after._references.put(rows, slots)
        return after

    def reset(self, rows: NDArray[np.int64], *, current: bool) -> RowStore:
        """Return a store in which rows of the table have the references of the fit again.

        If ``current``, they also have the states of the fit, and observed nothing since.
        """
        after = self._copied()
        slots = self._fitted.take(rows)
        after._references = after._references.put(rows, slots)
        if current:
            after._slots = after._slots.put(rows, slots)
            gone = {*rows.tolist()}
            every = {**self._base, **self._recent}
            after._base = {row: each for row, each in every.items() if row not in gone}
            after._recent = {}
        return after

    def with_saved(
        self,
        rows: NDArray[np.int64],
        references: RowStates,
        fitted: RowStates,
        observations: dict[int, ObservationList],
    ) -> RowStore:
        """Return a store in which these rows have these references, states of the fit and observations."""
        after, states = self._copied(), self.__dict__.get("states")
        after._references = after._references.put(rows, after._written(references))
        after._fitted = after._fitted.put(rows, after._written(fitted))
        after._keep(observations)
        if states is not None:
            after.__dict__["states"] = states
        return after

    def saved(self, rows: NDArray[np.int64]) -> tuple[RowStates, RowStates]:
        """Return the references of rows and their states of the fit, for ``with_saved``."""
        return self.take_references(rows), self.take_fitted(rows)

    def added(
        self,
        names: Sequence[str],
        states: RowStates | Sequence[OneState],
        observations: Sequence[ObservationList],
    ) -> RowStore:
        """Return a store with further rows, whose references and current states are ``states``."""
        after = self._copied()
        slots = after._written(states)
        after._keep(dict(zip(range(len(self), len(self) + len(names)), observations, strict=True)))
        after._slots = after._slots.extended(slots)
        after._references = after._references.extended(slots)
        after._fitted = after._fitted.extended(slots)
        after.names = Names([*self.names, *names], "row")
        return after

    def without(self, row: int) -> RowStore:
        """Return a store without a row; the rows after it move up."""
        after = self._copied()
        after.names = Names([name for position, name in enumerate(self.names) if position != row], "row")
        for each in ("_slots", "_references", "_fitted"):
            setattr(after, each, PersistentArray(np.delete(getattr(self, each).whole(), row)))
        after._move(0)  # so that no state of the row is left anywhere
        every = {**self._base, **self._recent}
        after._base = {other - (other > row): each for other, each in every.items() if other != row}
        after._recent = {}
        return after

    def renamed(self, row: int, name: str) -> RowStore:
        """Return a store in which a row has another name."""
        after = self._copied()
        names = list(self.names)
        names[row] = name
        after.names = Names(names, "row")
        return after

    def _copied(self) -> RowStore:
        after = copy(self)
        after.__dict__.pop("states", None)
        return after

    def _written(self, states: RowStates | Sequence[OneState]) -> NDArray[np.int64]:
        """Write states to new slots, of a larger arena if there is no room; for a copy not yet in use."""
        slots = self._arena.claimed(len(states))
        if slots is None:
            self._move(max(_MIN_ROOM, len(self) // _ROOM_SHARE, len(states)))
            slots = self._arena.claimed(len(states))
            if slots is None:
                raise RuntimeError("a new arena has no room")
        self._arena.write(slots, states)
        return np.arange(slots.start, slots.stop)

    def _move(self, room: int) -> None:
        """Copy the states in use to another arena with this much room."""
        arrays = [each.whole() for each in (self._slots, self._references, self._fitted)]
        used, slots = np.unique(np.concatenate(arrays), return_inverse=True)
        self._arena = Arena(self._arena.take(torch.from_numpy(used)), room)
        parts = np.split(slots, len(arrays))
        self._slots, self._references, self._fitted = (PersistentArray(part) for part in parts)

    def _keep(self, observations: dict[int, ObservationList]) -> None:
        self._recent = {**self._recent, **observations}
        if len(self._recent) ** 2 > len(self._base):
            self._base, self._recent = {**self._base, **self._recent}, {}


@dataclass(frozen=True)
class RowMetadata:
    """The metadata of all rows of a model, in their order; it never changes."""

    schema: MetadataSchema
    encoded: NDArray[np.float32]  # (rows, width)
    lines: pa.Table  # as the user gave it, one line per row
    prior: RowPrior | None  # the prior of rows that it implies; None if it was found to imply none

    def belief(self, encoded: NDArray[np.float32]) -> RowBelief | None:
        """Return the prior of rows with this encoded metadata (rows, width)."""
        return None if self.prior is None else self.prior.belief(torch.from_numpy(encoded))

    def added(self, records: Sequence[Mapping[str, object]], encoded: NDArray[np.float32]) -> RowMetadata:
        """Return the metadata with that of further rows."""
        columns = [column.name for column in self.schema.columns]
        every = [*self.lines.to_pylist(), *records]
        lines = pa.table({name: as_array([record.get(name) for record in every]) for name in columns})
        return replace(self, encoded=np.concatenate([self.encoded, encoded]), lines=lines)

    def without(self, row: int) -> RowMetadata:
        """Return the metadata without that of a row."""
        kept = np.delete(np.arange(len(self.encoded)), row)
        return replace(self, encoded=self.encoded[kept], lines=self.lines.take(pa.array(kept)))
