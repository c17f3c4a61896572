"""Store the rows of a model with their states, observations and metadata, and the prior from metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.adapters.head_prior import column_gains
from headstart.backbones.base import Backbone
from headstart.core.types import Description, Knowledge, OneState, RowPrior, RowPriorRegression, RowStates
from headstart.linalg.ridge import LooRidge, make_groups
from headstart.model.observations import ObservationList, ObservationLists
from headstart.model.persistent import Arena, PersistentArray, copy_with
from headstart.table import MetadataSchema
from headstart.table.metadata import as_array
from headstart.table.names import Names

_MIN_ROOM, _ROOM_SHARE = 1024, 8  # free slots of a new arena: at least 1024, and an eighth of the rows


Version = Literal["current", "reference", "fit"]  # of the state of a row: see ``RowStore``

_MIN_RELIABILITY = 0.05  # of a row's activation; avoids division by almost zero

_MIN_GAIN = 0.01  # fraction of the leave-one-out error that metadata must explain; less is often chance

_MIN_VARIANCE = 0.05  # lower limit of the variance of rows around their predictions


class HeadInputs(NamedTuple):
    """The parts of row states that heads of single features are computed from, in numpy."""

    code: NDArray[Any] | None  # (rows, code)
    activation: NDArray[Any]  # (rows, width)
    noise: NDArray[Any] | None = None  # (rows,)
    variance: NDArray[Any] | None = None  # (rows, width)
    exposure: NDArray[Any] | None = None  # (rows,)


class RowStore:
    """An immutable collection of rows with their names, states and observations.

    A row has up to three states (see ``updates``): the *current* one, from which it is predicted; its
    *reference*, from which heads of features are computed; and that of the *fit*, from which references of
    features are computed. Most rows have one state for all three. A method that changes rows returns another
    store that shares unchanged states with this one: all states are in an arena, to which new ones are
    appended.
    """

    def __init__(self, names: Names, states: RowStates) -> None:
        self.names = names
        self._arena = Arena(states, 0)
        self._share_slots(np.arange(len(states)))
        self._base: dict[int, ObservationList] = {}
        self._recent: dict[int, ObservationList] = {}  # replaces entries of the base
        # The base and its lists.
        self._cells: tuple[dict[int, ObservationList], ObservationLists] | None = None

    @classmethod
    def from_arena(cls, names: Names, arena: Arena[RowStates]) -> RowStore:
        """Return a store of rows whose states are in ``arena``, in the order of ``names``."""
        store = cls(names, arena.take(slice(0, 0)))
        store._arena = arena
        store._share_slots(np.arange(len(names)))
        store.__dict__["states"] = arena.take(slice(0, len(names))).at(torch.arange(len(names)))
        return store

    def _share_slots(self, slots: NDArray[np.int64]) -> None:
        self._slots = self._references = self._fitted = PersistentArray(slots)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def width(self) -> int:
        """The number of activations of a row."""
        return int(self._arena.items.activation.shape[1])

    @cached_property
    def states(self) -> RowStates:
        """The current states of all rows."""
        slots, rows = self._slots.whole(), torch.arange(len(self))
        if len(self._arena.items) == len(self) and np.array_equal(slots, rows.numpy()):
            return self._arena.items.at(rows)  # without a copy, as no state has changed
        return self._arena.take(torch.from_numpy(slots)).at(rows)

    @property
    def unchanged(self) -> bool:
        """Whether no row was added, observed or removed since fit."""
        return self._references is self._slots

    def take(self, rows: NDArray[np.int64], version: Version = "current") -> RowStates:
        """Return a version of the states of the rows at these positions."""
        if version == "current" and "states" in self.__dict__:
            return self.states.take(torch.from_numpy(rows))
        states = self._arena.take(torch.from_numpy(self._slots_of(version).take(rows)))
        return states.at(torch.from_numpy(rows)) if version == "current" else states

    def _slots_of(self, version: Version) -> PersistentArray:
        """Return the slots of a version of all states."""
        return {"current": self._slots, "reference": self._references, "fit": self._fitted}[version]

    def slots(self) -> NDArray[np.int64]:
        """Return the slots of the current states of all rows."""
        return self._slots.whole()

    def states_at(self, slots: slice) -> RowStates:
        """Return the states in these slots, including states that belong to no row any more."""
        return self._arena.take(slots)

    def version_slots(self, rows: NDArray[np.int64], version: Version) -> NDArray[np.int64]:
        """Return the slots of a version of the states of ``rows`` in ``arena``: (n,)."""
        return self._slots_of(version).take(rows)

    @property
    def arena(self) -> Arena[RowStates]:
        """The arena of the states, in which a slot always has the same state."""
        return self._arena

    def head_inputs(self, slots: NDArray[np.int64], *, code: bool = False) -> HeadInputs:
        """Return the inputs of heads at the states in ``slots``, in numpy; None for parts that they lack."""
        arrays = self._arena.arrays
        codes = arrays[0].take(slots, axis=0) if code else None
        return HeadInputs(codes, *(part.take(slots, axis=0) for part in arrays[2:]))

    def state(self, row: int) -> OneState:
        """Return the current state of one row, without its code."""
        (slot,) = self._slots.take(np.array([row]))
        code, _, *parts = self._arena.arrays
        return OneState(code[:0, 0], code[:0, 0], *(part[slot] for part in parts))

    def activations(self, slots: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return the activations (n, width) and, if states have it, the noise (n,) in ``slots``, in numpy."""
        arrays = self._arena.arrays
        return arrays[2].take(slots, axis=0), arrays[3].take(slots) if len(arrays) > 3 else None

    def are_as_fitted(self, rows: NDArray[np.int64]) -> bool:
        """Return whether the references of these rows are their states of the fit."""
        if self._references is self._fitted:
            return True
        return np.array_equal(self._references.take(rows), self._fitted.take(rows))

    def observations(self, row: int) -> ObservationList | None:
        """Return the observations of a row; None if they are those of the fitted table."""
        observations = self._recent.get(row)
        return self._base.get(row) if observations is None else observations

    @property
    def observed_rows(self) -> list[int]:
        """The positions of the rows that were added or observed since fit, in ascending order."""
        return sorted({*self._base, *self._recent})

    def observed_among(self, rows: NDArray[np.int64]) -> list[int]:
        """Return those of ``rows`` that are ``observed_rows``, in ascending order without repetition."""
        if len(rows) < len(self._base):  # a sorted list of all takes longer
            return [row for row in np.unique(rows).tolist() if self.observations(row) is not None]
        observed: list[int] = np.intersect1d(rows, np.array(self.observed_rows, dtype=np.int64)).tolist()
        return observed

    def observers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ``observed_rows`` that observed any of the features with these numbers."""
        if self._cells is None or self._cells[0] is not self._base:
            self._cells = (self._base, ObservationLists.of(list(self._base.values())))
        lists, base_rows = self._cells[1], np.array([*self._base], dtype=np.int64)
        observers = base_rows[np.unique(lists.lines[np.isin(lists.keys, numbers)])]
        observers = observers[~np.isin(observers, np.array([*self._recent], dtype=np.int64))]
        recent = [
            row for row, observations in self._recent.items() if np.isin(observations.keys, numbers).any()
        ]
        return np.union1d(observers, np.array(recent, dtype=np.int64))

    def put(
        self,
        rows: NDArray[np.int64],
        states: RowStates | Sequence[OneState],
        observations: Sequence[ObservationList],
    ) -> RowStore:
        """Return a store with these current states and observations of ``rows``."""
        after = self._copy()
        slots = after._write(states)
        after._slots = after._slots.put(rows, slots)
        after._store(dict(zip(rows.tolist(), observations, strict=True)))
        return after

    def put_references(self, rows: NDArray[np.int64], states: RowStates | Sequence[OneState]) -> RowStore:
        """Return a store with these references of ``rows``."""
        after = self._copy()
        slots = after._write(states)
        after._references = after._references.put(rows, slots)
        return after

    def reset(self, rows: NDArray[np.int64], *, current: bool) -> RowStore:
        """Return a store in which ``rows`` of the fitted table have the references of the fit again.

        If ``current``, their current states are also those of the fit, and their observations since fit are
        removed.
        """
        after = self._copy()
        slots = self._fitted.take(rows)
        after._references = after._references.put(rows, slots)
        if current:
            after._slots = after._slots.put(rows, slots)
            removed = {*rows.tolist()}
            merged = {**self._base, **self._recent}
            after._base = {row: value for row, value in merged.items() if row not in removed}
            after._recent = {}
        return after

    def with_saved(
        self,
        rows: NDArray[np.int64],
        references: RowStates,
        fitted: RowStates,
        observations: dict[int, ObservationList],
    ) -> RowStore:
        """Return a store with these references, states of the fit and observations of ``rows``."""
        after, states = self._copy(), self.__dict__.get("states")
        after._references = after._references.put(rows, after._write(references))
        after._fitted = after._fitted.put(rows, after._write(fitted))
        after._store(observations)
        if states is not None:
            after.__dict__["states"] = states
        return after

    def add(
        self,
        names: Sequence[str],
        states: RowStates | Sequence[OneState],
        observations: Sequence[ObservationList],
    ) -> RowStore:
        """Return a store with more rows, whose references and current states are ``states``."""
        after = self._copy()
        slots = after._write(states)
        after._store(dict(zip(range(len(self), len(self) + len(names)), observations, strict=True)))
        after._slots = after._slots.extend(slots)
        after._references = after._references.extend(slots)
        after._fitted = after._fitted.extend(slots)
        after.names = Names([*self.names, *names], "row")
        return after

    def remove(self, row: int) -> RowStore:
        """Return a store without a row; the positions of later rows decrease by one."""
        after = self._copy()
        after.names = Names([name for position, name in enumerate(self.names) if position != row], "row")
        for attribute in ("_slots", "_references", "_fitted"):
            setattr(after, attribute, PersistentArray(np.delete(getattr(self, attribute).whole(), row)))
        after._move(*after._used_slots(), 0)  # so that the new arena has no state of the removed row
        merged = {**self._base, **self._recent}
        after._base = {other - (other > row): value for other, value in merged.items() if other != row}
        after._recent = {}
        return after

    def rename(self, row: int, name: str) -> RowStore:
        """Return a store in which a row has the new name ``name``."""
        after = self._copy()
        names = list(self.names)
        names[row] = name
        after.names = Names(names, "row")
        return after

    def _copy(self) -> RowStore:
        after = copy_with(self)
        after.__dict__.pop("states", None)
        return after

    def _write(self, states: RowStates | Sequence[OneState]) -> NDArray[np.int64]:
        """Write states to new slots, in a larger arena if this one is full; return the slots.

        This modifies the store, so it may be called only on a copy that is not yet in use.
        """
        slots = self._arena.append(states)
        if slots is None:
            room = max(_MIN_ROOM, len(self) // _ROOM_SHARE, len(states))
            used, by_version = self._used_slots()
            if 2 * len(used) < self._arena.used:
                self._move(used, by_version, room)
            else:
                self._arena.extend(room)
            slots = self._arena.append(states)
            if slots is None:
                raise RuntimeError("an extended arena has no room")
        return np.arange(slots.start, slots.stop)

    def _used_slots(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the slots in use, and the positions among them of each version's slots: (3, rows)."""
        arrays = [slots.whole() for slots in (self._slots, self._references, self._fitted)]
        used, positions = np.unique(np.concatenate(arrays), return_inverse=True)
        return used, positions.reshape(len(arrays), -1)

    def _move(self, used: NDArray[np.int64], by_version: NDArray[np.int64], room: int) -> None:
        """Copy the states in use (``_used_slots``) to a new arena with ``room`` free slots."""
        self._arena = Arena(self._arena.take(torch.from_numpy(used)), room)
        self._slots, self._references, self._fitted = (PersistentArray(slots) for slots in by_version)

    def _store(self, observations: dict[int, ObservationList]) -> None:
        """Store observations in ``_recent``; merge it into the base once it is long.

        So a change copies about the square root of all entries.
        """
        self._recent = {**self._recent, **observations}
        if len(self._recent) ** 2 > len(self._base):
            self._base, self._recent = {**self._base, **self._recent}, {}


@dataclass(frozen=True)
class RowMetadata:
    """The metadata of all rows of a model, in the order of the rows, and the prior of rows given it."""

    schema: MetadataSchema
    encoded: NDArray[np.float32]  # (rows, width)
    lines: pa.Table  # as passed by the user, one line per row
    prior: RowPriorRegression | None  # None if the metadata is not informative

    def prior_of(self, encoded: NDArray[np.float32]) -> RowPrior | None:
        """Return the prior of rows given their encoded metadata (rows, width)."""
        return None if self.prior is None else self.prior.prior_of(torch.from_numpy(encoded))

    def add(self, records: Sequence[Mapping[str, object]], encoded: NDArray[np.float32]) -> RowMetadata:
        """Return the metadata with ``records`` and ``encoded`` of more rows appended."""
        columns = [column.name for column in self.schema.columns]
        all_records = [*self.lines.to_pylist(), *records]
        lines = pa.table({name: as_array([record.get(name) for record in all_records]) for name in columns})
        return replace(self, encoded=np.concatenate([self.encoded, encoded]), lines=lines)

    def remove(self, row: int) -> RowMetadata:
        """Return the metadata without the row at this position."""
        others = np.delete(np.arange(len(self.encoded)), row)
        return replace(self, encoded=self.encoded[others], lines=self.lines.take(pa.array(others)))


@torch.no_grad()
def fit_row_prior(
    backbone: Backbone, knowledge: Knowledge, encoded: Tensor, widths: tuple[int, ...]
) -> RowPriorRegression | None:
    """Regress the activations of rows on their ``encoded`` metadata (rows, columns).

    Return None if metadata does not lower the leave-one-out error. ``LooRidge`` uses a metadata column only
    if it lowers this error by more than uninformative columns would by chance. ``widths`` are the numbers of
    encoded columns of each metadata column.
    """
    states = knowledge.states
    if states.variance is None or len(encoded) < 2 or encoded.shape[1] == 0:
        return None
    # The posterior mean of a row is shrunk to its prior mean by its reliability: undo the shrinkage.
    reliability = (1 - states.variance).clamp(_MIN_RELIABILITY, 1)
    targets = (states.activation - backbone.prior_means(knowledge.cells)) / reliability
    weights = (1 - states.variance).mean(1).clamp(min=1e-6)
    linear = Description.of(encoded, widths)
    nonlinear = linear.nonlinear_columns()
    description = linear.with_cubic_terms(nonlinear)
    regression = LooRidge(make_groups(description.numbers, description.groups))
    regression.choose(description.numbers, targets, weights, knowledge.heads.mean_weight_moment())
    if float(regression.gains.sum()) < _MIN_GAIN:
        return None
    predicted = regression.fit(description.numbers, targets, weights)
    matrix, constant = regression.linear_map(description.numbers.shape[1])
    dtype = targets.dtype
    gains = column_gains(regression, widths, nonlinear)
    covariance = _residual_covariance(predicted, weights).to(dtype)
    return RowPriorRegression(matrix.to(dtype), constant.to(dtype), covariance, nonlinear, gains)


def _residual_covariance(predicted: Tensor, weights: Tensor) -> Tensor:
    """Return the covariance of rows around their leave-one-out predictions: (size, size).

    The covariance of rows under the backbone's prior is the identity.
    """
    share = (weights / weights.sum()).double()
    centred = predicted.double() - share @ predicted.double()
    explained = (centred * share[:, None]).T @ centred
    values, vectors = torch.linalg.eigh(torch.eye(len(explained), dtype=torch.float64) - explained)
    covariance: Tensor = (vectors * values.clamp(_MIN_VARIANCE, 1.0)) @ vectors.T
    return covariance
