"""Hold the rows a model knows, and compute their states from their observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from headstart.core.types import OneState, RowBelief, RowPrior, RowStates
from headstart.model.persistent import Arena, PersistentArray
from headstart.table import MetadataSchema
from headstart.table.metadata import as_array
from headstart.table.names import Names

_MIN_ROOM, _ROOM_SHARE = 1024, 8


class RowObservations(NamedTuple):
    """What a row's state rests on: numbers of features (see ``Catalogue``), ascending, and values."""

    numbers: NDArray[np.int64]
    values: NDArray[np.float64]  # in the data's own units
    times: NDArray[np.float64] | None = None  # in a model where observations age
    now: float | None = None  # the time at which the state was computed


class StateArrays(NamedTuple):
    """What heads read of one row."""

    activation: NDArray[np.float32]  # (width,)
    noise: float
    variance: NDArray[np.float32] | None  # (width,)


class RowStore:
    """Rows by name, and their states; it never changes.

    Changes return another roster, so that whoever reads this one is not disturbed. The two share what they
    have in common, as catalogues do: states lie in arrays to which only new ones are written.
    """

    def __init__(self, names: Names, states: RowStates) -> None:
        self.names = names
        self.epoch = 0  # how often states of known rows have changed
        self._store = Arena(states, 0)
        self._slots = PersistentArray(np.arange(len(states)))
        self._base: dict[int, RowObservations] = {}
        self._recent: dict[int, RowObservations] = {}  # come before those of the same row in the base
        self._cells: tuple[dict[int, RowObservations], NDArray[np.int64], NDArray[np.int64]] | None = (
            None  # of the base
        )

    @classmethod
    def over(cls, names: Names, store: Arena[RowStates]) -> RowStore:
        """Rows whose states lie in a store, in their order."""
        roster = cls(names, store.take(slice(0, 0)))
        roster._store, roster._slots = store, PersistentArray(np.arange(len(names)))
        roster.__dict__["states"] = store.take(slice(0, len(names)))
        return roster

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def width(self) -> int:
        """How many activations a row has."""
        return int(self._store.parts.activation.shape[1])

    @cached_property
    def states(self) -> RowStates:
        """The states of all rows."""
        if len(self._store.parts) == len(self):  # nothing has changed since they were made
            return self._store.parts
        return self._store.take(torch.from_numpy(self._slots.whole()))

    def take(self, rows: NDArray[np.int64]) -> RowStates:
        """The states of the rows at these positions."""
        if "states" in self.__dict__:
            return self.states.take(torch.from_numpy(rows))
        return self._store.take(torch.from_numpy(self._slots.take(rows)))

    def slots(self) -> NDArray[np.int64]:
        """Where the states of all rows are stored."""
        return self._slots.whole()

    def stored(self, slots: slice) -> RowStates:
        """The states that are stored there, as they lie; some may no longer be, or not yet be, of any row."""
        return self._store.take(slots)

    def read_by_heads(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
        """What heads read of the rows at these positions, in numpy: activation, noise and variance."""
        slots = self._slots.take(rows)
        return tuple(part.take(slots, axis=0) for part in self._store.arrays[2:])

    def arrays(self, row: int) -> StateArrays:
        """The state of one row, without a copy."""
        parts, slot = self._store.parts, int(self._slots.take(np.array([row]))[0])
        noise, variance = parts.noise, parts.variance
        return StateArrays(
            parts.activation[slot].numpy(),
            1.0 if noise is None else float(noise[slot]),
            None if variance is None else variance[slot].numpy(),
        )

    def observations(self, row: int) -> RowObservations | None:
        """What a row's state rests on, if it is another than in the table of the fit."""
        found = self._recent.get(row)
        return self._base.get(row) if found is None else found

    @property
    def observed_rows(self) -> list[int]:
        """The rows whose states rest on more than the table of the fit, in order."""
        return sorted({*self._base, *self._recent})

    def tellers(self, number: int) -> NDArray[np.int64]:
        """The rows whose states rest on an observation of this feature made since fit."""
        if self._cells is None or self._cells[0] is not self._base:
            counts = [len(observations.numbers) for observations in self._base.values()]
            rows = np.repeat(np.array([*self._base], dtype=np.int64), counts)
            numbers = [np.zeros(0, np.int64), *(observations.numbers for observations in self._base.values())]
            self._cells = (self._base, rows, np.concatenate(numbers))
        _, rows, numbers_of = self._cells
        held = rows[numbers_of == number]
        held = held[~np.isin(held, np.array([*self._recent], dtype=np.int64))]
        recent = [row for row, observations in self._recent.items() if number in observations.numbers]
        return np.append(held, np.array(recent, dtype=np.int64))

    def put(
        self, rows: NDArray[np.int64], states: RowStates, observations: Sequence[RowObservations]
    ) -> RowStore:
        """Return a roster in which these rows have other states, which rest on other observations."""
        after = self._copied()
        slots = after._claimed(len(states))
        after._store.write(slots, states)
        after._slots = after._slots.put(rows, np.arange(slots.start, slots.stop))
        after._keep(dict(zip(rows.tolist(), observations, strict=True)))
        after.epoch = self.epoch + 1
        return after

    def put_one(self, row: int, state: OneState, observations: RowObservations) -> RowStore:
        """``put`` of one row."""
        after = self._copied()
        (slot,) = after._claimed(1)
        after._store.write_one(slot, state.parts())
        after._slots = after._slots.put(np.array([row]), np.array([slot]))
        after._keep({row: observations})
        after.epoch = self.epoch + 1
        return after

    def with_observations(self, observations: dict[int, RowObservations]) -> RowStore:
        """Return a roster in which the states of these rows are the same and rest on these observations."""
        after = self._copied()
        after._keep(observations)
        return after

    def restored(self, rows: NDArray[np.int64], of: RowStore) -> RowStore:
        """Return a roster in which these rows are as in another one, whose first rows are the same."""
        after = self._copied()
        slots = after._claimed(len(rows))
        after._store.write(slots, of.take(rows))
        after._slots = after._slots.put(rows, np.arange(slots.start, slots.stop))
        gone = {*rows.tolist()}
        held = {row: own for row in gone if (own := of.observations(row)) is not None}
        every = {**self._base, **self._recent}
        after._base = {row: own for row, own in every.items() if row not in gone} | held
        after._recent = {}
        after.epoch = self.epoch + 1
        return after

    def added(
        self, names: Sequence[str], states: RowStates, observations: Sequence[RowObservations]
    ) -> RowStore:
        """Return a roster with further rows."""
        after = self._copied()
        slots = after._claimed(len(states))
        after._store.write(slots, states)
        after._keep(dict(zip(range(len(self), len(self) + len(names)), observations, strict=True)))
        after._slots = after._slots.extended(np.arange(slots.start, slots.stop))
        after.names = Names([*self.names, *names], "row")
        return after

    def without(self, row: int) -> RowStore:
        """Return a roster without a row; the rows after it move up."""
        names = [name for place, name in enumerate(self.names) if place != row]
        kept = np.delete(np.arange(len(self)), row)
        after = RowStore(Names(names, "row"), self.take(kept))  # so that nothing of the row is left anywhere
        observations = {each: self.observations(each) for each in self.observed_rows if each != row}
        after._base = {each - (each > row): own for each, own in observations.items() if own is not None}
        after.epoch = self.epoch
        return after

    def renamed(self, row: int, name: str) -> RowStore:
        """Return a roster in which a row has another name."""
        after = self._copied()
        names = list(self.names)
        names[row] = name
        after.names = Names(names, "row")
        return after

    def _copied(self) -> RowStore:
        after = copy(self)
        after.__dict__.pop("states", None)
        return after

    def _claimed(self, count: int) -> range:
        """So many slots to write to, of a larger store if there is no room."""
        slots = self._store.claimed(count)
        if slots is None:
            room = max(_MIN_ROOM, len(self) // _ROOM_SHARE, count)
            self._store = Arena(self.take(np.arange(len(self))), room)
            self._slots = PersistentArray(np.arange(len(self)))
            slots = self._store.claimed(count)
            if slots is None:
                raise RuntimeError("a store that was just made has no room")
        return slots

    def _keep(self, observations: dict[int, RowObservations]) -> None:
        self._recent = {**self._recent, **observations}
        if len(self._recent) ** 2 > len(self._base):
            self._base, self._recent = {**self._base, **self._recent}, {}


class RowCells(NamedTuple):
    """Observations of some rows: for each its line, the number of its feature and its value, line by line."""

    counts: NDArray[np.int64]  # (lines,)
    numbers: NDArray[np.int64]  # (n,): of features, ascending within a line
    values: NDArray[np.float64]  # (n,): in the data's own units
    times: NDArray[np.float64] | None = None  # (n,): in a model where observations age

    def observations(self, now: float | None = None) -> list[RowObservations]:
        """What each line holds, for states that are computed at this time."""
        ends = np.cumsum(self.counts)[:-1]
        numbers, values = np.split(self.numbers, ends), np.split(self.values, ends)
        times = [None] * len(numbers) if self.times is None else np.split(self.times, ends)
        return [RowObservations(*each, now) for each in zip(numbers, values, times, strict=True)]

    @classmethod
    def of(cls, observations: list[RowObservations]) -> RowCells:
        """The observations of these rows, one after the other; with times if all of them have some."""
        counts = np.array([len(each.numbers) for each in observations], dtype=np.int64)
        numbers = np.concatenate([np.zeros(0, np.int64), *(each.numbers for each in observations)])
        values = np.concatenate([np.zeros(0), *(each.values for each in observations)])
        times = [each.times for each in observations if each.times is not None]
        known = bool(times) and len(times) == len(observations)
        return cls(counts, numbers, values, np.concatenate(times) if known else None)

    def joined(
        self,
        lines: NDArray[np.int64],
        numbers: NDArray[np.int64],
        values: NDArray[np.float64],
        times: NDArray[np.float64] | None = None,
    ) -> RowCells:
        """Return them with more observations, in any order; one of the same cell replaces the earlier one."""
        every = np.concatenate([np.repeat(np.arange(len(self.counts)), self.counts), lines])
        both, all_values = np.concatenate([self.numbers, numbers]), np.concatenate([self.values, values])
        order = np.lexsort((np.arange(len(both)), both, every))
        last = np.ones(len(order), dtype=bool)
        last[:-1] = (np.diff(every[order]) != 0) | (np.diff(both[order]) != 0)
        kept = order[last]
        when = None if self.times is None or times is None else np.concatenate([self.times, times])[kept]
        counts = np.bincount(every[kept], minlength=len(self.counts))
        return RowCells(counts, both[kept], all_values[kept], when)


@dataclass(frozen=True)
class RowMetadata:
    """The metadata of all rows of a model, in their order. It never changes: a change gives another one."""

    schema: MetadataSchema
    encoded: NDArray[np.float32]  # (rows, width)
    lines: pa.Table  # as it was given, one line per row
    prior: RowPrior | None  # what it says of rows; None if it was found to say nothing

    def belief(self, encoded: NDArray[np.float32]) -> RowBelief | None:
        """What is believed of rows of this metadata."""
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
