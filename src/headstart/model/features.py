"""Hold the features a model can predict, each with its head."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.types import Heads, OneHead
from headstart.errors import UnknownNameError, did_you_mean
from headstart.model.observations import ObservationList
from headstart.model.persistent import Arena, PersistentArray
from headstart.table import Kind, MetadataSchema
from headstart.table.names import Names, as_name


@dataclass(frozen=True)
class Feature:
    """A feature of a model, without its head."""

    name: str
    kind: Kind
    in_backbone: bool  # whether the backbone reads it
    shots: int  # the number of observations that its head rests on
    metadata: NDArray[np.float32]  # encoded
    rows: NDArray[Any]  # the context of an adapter's head (int32 or int64); empty for one of the backbone's
    values: NDArray[np.float64]  # in the data's own units
    finds_scale: bool = False  # whether its center and scale are found from its observations
    record: Mapping[str, object] | None = None  # its metadata as the user gave it; None if it is not known
    arrivals: NDArray[np.int64] | None = (
        None  # see ``ObservationList``; None: all are of the table of the fit
    )
    times: NDArray[np.float64] | None = None  # of its observations, in a model whose observations age

    @property
    def fixed(self) -> bool:
        """Whether its head is the backbone's own, made from observations that the feature does not hold."""
        return len(self.rows) < self.shots

    @property
    def observations(self) -> ObservationList:
        """Its context, by the positions of rows."""
        return ObservationList(self.rows, self.values, self.arrivals, self.times)

    @property
    def observed_since(self) -> bool:
        """Whether any of its observations arrived, or was corrected, after ``fit``."""
        return self.observations.since_fit

    def with_observations(self, observations: ObservationList) -> Feature:
        """Return the feature with this context."""
        rows, values, arrivals, times = observations
        return replace(self, shots=len(rows), rows=rows, values=values, arrivals=arrivals, times=times)

    def readable(self, schema: MetadataSchema | None) -> dict[str, object]:
        """Return its metadata by column: as the user gave it, or else decoded from the numbers."""
        if self.record is not None:
            return dict(self.record)
        return {} if schema is None else schema.decode(self.metadata)

    def holds(self, row: int) -> bool:
        """Return whether its context holds the row at this position."""
        # A number of another type would let numpy copy all rows to that type first.
        at = int(self.rows.searchsorted(self.rows.dtype.type(row)))
        return at < len(self.rows) and int(self.rows[at]) == row

    def value_at(self, row: int) -> float:
        """Return the value of a row of its context."""
        return float(self.values[self.rows.searchsorted(self.rows.dtype.type(row))])

    def among(self, rows: NDArray[np.int64]) -> Feature:
        """Return the feature with only its observations at these rows."""
        return self.with_observations(self.observations.take(np.isin(self.rows, rows)))

    def without_row(self, row: int) -> Feature:
        """Return the feature without its observation at this row."""
        return self.with_observations(self.observations.take(self.rows != row))


class Entry(NamedTuple):
    """A feature, and the slots of its heads."""

    feature: Feature
    slot: int  # of its current head
    number: int  # stays the same as long as the feature is in the model, and is never used again
    reference: int = -1  # the slot of its reference; -1: the backbone's own head, as fitted
    reference_kind: Kind | None = None  # with the units of the reference, if it finds them; None: as the kind

    @property
    def facts(self) -> tuple[float, float, float, float]:
        """The kind, offset and span with which rows read it, and whether they read the backbone's head."""
        kind = self.reference_kind or self.feature.kind
        return float(kind.type), kind.offset, kind.span, float(self.reference < 0)

    @property
    def slots(self) -> tuple[int, int]:
        """The slots of its current head and of its reference; the same if there is no reference."""
        return self.slot, self.slot if self.reference < 0 else self.reference


class FeatureColumn(NamedTuple):
    """A feature, the slot of its head and its place in the catalogue."""

    feature: Feature
    slot: int
    place: int


@dataclass(frozen=True)
class FeatureColumns:
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
    recent: tuple[FeatureColumn, ...] = ()  # laid over ``base``
    base: FeatureColumns | None = field(default=None, repr=False)

    @classmethod
    def of(cls, listed: Sequence[FeatureColumn]) -> FeatureColumns:
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

    def overlaid(self, recent: Sequence[FeatureColumn], gone: Sequence[int]) -> FeatureColumns:
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

    def _write(self, listed: Sequence[FeatureColumn]) -> None:
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


class Without(Mapping[str, Entry]):
    """View another mapping without the entries of some names, which are all in it."""

    def __init__(self, entries: Mapping[str, Entry], gone: frozenset[str]) -> None:
        self._entries, self._gone = entries, gone

    def __len__(self) -> int:
        return len(self._entries) - len(self._gone)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._entries if name not in self._gone)

    def __contains__(self, name: object) -> bool:
        return name not in self._gone and name in self._entries

    def __getitem__(self, name: str) -> Entry:
        if name in self._gone:
            raise KeyError(name)
        return self._entries[name]

    def less(self, name: str) -> Without:
        """Return the view without one more name."""
        return Without(self._entries, self._gone | {name})


def without(
    base: Mapping[str, Entry], recent: dict[str, Entry], name: str
) -> tuple[Mapping[str, Entry], dict[str, Entry]]:
    """Return the entries of a store, ``recent`` ones over a ``base``, without the named feature.

    A dictionary is copied, because a copy is quick to read. Entries of a saved model stay in their file.
    """
    if isinstance(base, dict):
        return {key: entry for key, entry in {**base, **recent}.items() if key != name}, {}
    kept = {key: entry for key, entry in recent.items() if key != name}
    if name not in base:
        return base, kept
    return (base.less(name) if isinstance(base, Without) else Without(base, frozenset([name]))), kept


_MIN_ROOM = 64


class FeatureStore(Mapping[str, Feature]):
    """Features by name, and their heads; it never changes.

    A feature has a *current* head, from which it is predicted, and a *reference*, which rows read (see
    ``updates``). Changes return another store that shares the rest with this one: heads lie in an arena to
    which only new ones are written, and of the names only the recent ones are copied, so that a change costs
    little however many features there are.
    """

    def __init__(self, heads: Heads, own: Names | None = None) -> None:
        """Make an empty store for heads with the parts and sizes of ``heads``.

        ``own`` are the features of the backbone: their positions are their numbers.
        """
        self._base: Mapping[str, Entry] = {}
        self._recent: dict[str, Entry] = {}  # come before those of the same name in the base
        self._arena = Arena(heads.take(torch.zeros(0, dtype=torch.int64)), 0)
        self._own = Names([], "feature") if own is None else own
        # By number: the slots of the current head and of the reference; -1 of a feature not in the store.
        self._slots = PersistentArray(np.full((len(self._own), 2), -1))
        # By number: ``Entry.facts``.
        self._facts = PersistentArray(np.zeros((len(self._own), 4)))
        self._listed: tuple[Mapping[str, Entry], FeatureColumns] | None = None  # of the base
        self._overlaid: tuple[Mapping[str, Entry], FeatureColumns] | None = None  # with the recent ones

    @property
    def listing(self) -> FeatureColumns:
        """All features as arrays, in the order in which their heads are stored."""
        base, recent = self._base, self._recent
        if self._listed is None or self._listed[0] is not base:
            entries = enumerate(base.values())
            self._listed = (
                base,
                FeatureColumns.of([FeatureColumn(each.feature, each.slot, i) for i, each in entries]),
            )
        listing = self._listed[1]
        if not recent:
            return listing
        if self._overlaid is None or self._overlaid[0] is not recent or self._overlaid[1].base is not listing:
            gone = [base[name].slot for name in recent if name in base]
            news = itertools.count(len(base))
            over = [
                FeatureColumn(
                    each.feature,
                    each.slot,
                    int(listing.places[base[name].slot]) if name in base else next(news),
                )
                for name, each in recent.items()
            ]
            self._overlaid = (recent, listing.overlaid(over, gone))
        return self._overlaid[1]

    def slots(self, names: Iterable[object]) -> list[int]:
        """Return the slots of the current heads of these features."""
        return [self._find(name).slot for name in names]

    def stored(self, slots: Tensor | slice) -> Heads:
        """Return the heads in these slots; those of a slice are not copied."""
        return self._arena.take(slots)

    def __len__(self) -> int:
        return len(self._base) + sum(name not in self._base for name in self._recent)

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from (name for name in self._recent if name not in self._base)

    def __contains__(self, name: object) -> bool:
        return name in self._recent or name in self._base

    def __getitem__(self, name: object) -> Feature:
        return self._find(name).feature

    def _find(self, name: object) -> Entry:
        # A name is first looked for as it is, as ``Names`` does: models may be older than tidy names.
        key = name if isinstance(name, str) and name in self else as_name(name, "feature")
        entry = self._recent.get(key) or self._base.get(key)
        if entry is None:
            hint = did_you_mean(key, self if len(self) <= 20_000 else ())
            raise UnknownNameError(f"unknown feature {key!r}{hint}")
        return entry

    def take(self, names: Iterable[object]) -> tuple[list[Feature], Heads]:
        """Return features and their current heads, in this order."""
        entries = [self._find(name) for name in names]
        slots = torch.tensor([entry.slot for entry in entries], dtype=torch.int64)
        return [entry.feature for entry in entries], self._arena.take(slots)

    def arrays(self, name: object) -> tuple[Feature, list[NDArray[np.float32]]]:
        """Return a feature and the parts of its current head, without a copy."""
        entry = self._find(name)
        return entry.feature, [part[entry.slot].numpy() for part in self._arena.parts.parts()]

    def number(self, name: object) -> int:
        """Return the number of a feature, by which rows hold their observations of it."""
        return self._find(name).number

    @property
    def next_number(self) -> int:
        """The number that the next new feature gets."""
        return len(self._slots)

    def slots_by_number(self, numbers: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Return the slots of current heads, by number; -1 of features that are no longer in the model."""
        return (
            self._slots.whole()[numbers, 0] if isinstance(numbers, slice) else self._slots.take(numbers)[:, 0]
        )

    def reference_slots(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of references, by number; -1 of features that are no longer in the model."""
        return self._slots.take(numbers)[:, 1]

    def facts(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ``Entry.facts`` of features by number: (n, 4)."""
        return self._facts.take(numbers)

    def names_by_number(self, numbers: NDArray[np.int64]) -> list[str | None]:
        """Return the names of features, by number; None of features that are no longer in the model."""
        own = len(self._own)
        later = self.by_number() if bool((numbers >= own).any()) else {}
        slots = self.slots_by_number(numbers)
        known = (number if slot >= 0 else None for number, slot in zip(numbers.tolist(), slots, strict=True))
        return [n if n is None else self._own[n] if n < own else later[n].name for n in known]

    def by_number(self) -> dict[int, Feature]:
        """Return all features by their numbers."""
        return {entry.number: entry.feature for entry in (self._find(name) for name in self)}

    def put(
        self,
        features: Sequence[Feature],
        heads: Heads | Sequence[OneHead],
        numbers: Mapping[str, int] | None = None,
    ) -> FeatureStore:
        """Return a store with these features and current heads, instead of those of the same names.

        A new feature that the backbone does not read has its head for a reference, too. ``numbers`` are those
        of new features, if they are decided.
        """
        after, slots = self._written(heads)
        entries = []
        for feature, slot, number in zip(
            features, slots, self._numbers(features, numbers or {}), strict=True
        ):
            old = after._recent.get(feature.name) or after._base.get(feature.name)
            if old is not None:
                entries.append(old._replace(feature=feature, slot=slot))
            else:
                reference = (-1, None) if feature.in_backbone else (slot, feature.kind)
                entries.append(Entry(feature, slot, number, *reference))
        return after._entered(entries)

    def put_references(self, features: Sequence[Feature], heads: Heads | Sequence[OneHead]) -> FeatureStore:
        """Return a store with other references of features; ``features`` have the units of the references."""
        after, slots = self._written(heads)
        entries = [
            after._find(feature.name)._replace(reference=slot, reference_kind=feature.kind)
            for feature, slot in zip(features, slots, strict=True)
        ]
        return after._entered(entries)

    def reset_references(self, names: Iterable[str]) -> FeatureStore:
        """Return a store in which rows read these features of the backbone by its own heads again."""
        entries = [self._find(name)._replace(reference=-1, reference_kind=None) for name in names]
        return copy(self)._entered(entries)

    def reference(self, name: str) -> tuple[int, Kind] | None:
        """Return the slot of a feature's reference and its kind; None if that is the backbone's own head."""
        entry = self._find(name)
        return None if entry.reference < 0 else (entry.reference, entry.reference_kind or entry.feature.kind)

    @property
    def stored_arrays(self) -> list[NDArray[Any]]:
        """The weights, biases, covariances and noises of all stored heads, in numpy."""
        return self._arena.arrays

    def _written(self, heads: Heads | Sequence[OneHead]) -> tuple[FeatureStore, range]:
        """Return a copy, and the slots to which the heads were written, of a larger arena if need be."""
        after, slots = copy(self), self._arena.reserve(len(heads))
        if slots is None:
            after._move(len(heads))
            slots = after._arena.reserve(len(heads))
            if slots is None:
                raise RuntimeError("a new arena has no room")
        after._arena.write(slots, heads)
        return after, slots

    def _entered(self, entries: Sequence[Entry]) -> FeatureStore:
        """Enter entries; for a copy that is not yet in use."""
        numbers = np.array([entry.number for entry in entries], dtype=np.int64)
        more = max(0, int(numbers.max(initial=-1)) + 1 - len(self._slots))
        slots = np.array([entry.slots for entry in entries]).reshape(-1, 2)
        self._slots = self._slots.extend(np.full((more, 2), -1)).put(numbers, slots)
        facts = np.array([entry.facts for entry in entries]).reshape(-1, 4)
        if more or not np.array_equal(self._facts.take(numbers), facts):  # usually they stay the same
            self._facts = self._facts.extend(np.zeros((more, 4))).put(numbers, facts)
        self._recent = {**self._recent, **{entry.feature.name: entry for entry in entries}}
        if len(self._recent) ** 2 > len(self._base):
            self._base, self._recent = {**self._base, **self._recent}, {}
        return self

    def _numbers(self, features: Sequence[Feature], decided: Mapping[str, int]) -> list[int]:
        """Keep the numbers of features in the store, and give new ones to others."""
        numbers, following = [], self.next_number
        for feature in features:
            entry = self._recent.get(feature.name) or self._base.get(feature.name)
            if entry is not None:
                numbers.append(entry.number)
            elif feature.in_backbone:
                numbers.append(self._own.position(feature.name))
            elif feature.name in decided:
                numbers.append(decided[feature.name])
            else:
                numbers.append(following)
                following += 1
        return numbers

    def remove(self, name: object) -> FeatureStore:
        """Return a store without this feature."""
        after, gone = copy(self), self._find(name)
        after._base, after._recent = without(self._base, self._recent, gone.feature.name)
        after._slots = self._slots.put(np.array([gone.number]), np.array([[-1, -1]]))
        return after

    def with_contexts(self, features: Mapping[str, Feature]) -> FeatureStore:
        """Return a store with the same heads of features that have other contexts."""
        after = copy(self)
        every = ((name, self._find(name)) for name in self)
        after._base = {name: entry._replace(feature=features[name]) for name, entry in every}
        after._recent = {}
        return after

    def renamed(self, name: object, other: str, own: Names) -> FeatureStore:
        """Return a store in which a feature has another name; ``own`` are the backbone's names then."""
        after, entry = copy(self), self._find(name)
        changed = entry._replace(feature=replace(entry.feature, name=other))
        every = (changed if (old := self._find(key)) is entry else old for key in self)
        after._base = {each.feature.name: each for each in every}
        after._recent, after._own = {}, own
        return after

    def _move(self, more: int) -> None:
        """Move the heads to an arena of their own, with room for as many again."""
        entries = [self._find(name) for name in self]
        used, places = np.unique(
            np.array([entry.slots for entry in entries], dtype=np.int64).reshape(-1, 2), return_inverse=True
        )
        places = places.reshape(-1, 2)
        # With room for as many heads as there are, the cost of a change is constant on average.
        heads = self._arena.take(torch.from_numpy(used))
        self._arena = Arena(heads, max(_MIN_ROOM, len(used), more))
        self._base = {
            entry.feature.name: entry._replace(slot=slot, reference=-1 if entry.reference < 0 else reference)
            for entry, (slot, reference) in zip(entries, places.tolist(), strict=True)
        }
        self._recent = {}
        slots = np.full((len(self._slots), 2), -1)
        slots[[entry.number for entry in entries]] = places
        self._slots = PersistentArray(slots)
