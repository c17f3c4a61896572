"""Hold the features a model can predict, each with its head."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.types import Heads, OneHead
from headstart.errors import UnknownNameError, did_you_mean
from headstart.model.persistent import Arena, PersistentArray
from headstart.table import Kind, MetadataSchema
from headstart.table.names import Names, as_name


@dataclass(frozen=True)
class Feature:
    """What a model holds of one feature besides its head."""

    name: str
    kind: Kind
    in_backbone: bool  # whether the backbone reads it
    shots: int  # how many observations its head rests on
    metadata: NDArray[np.float32]  # encoded
    rows: NDArray[Any]  # the context of an adapter's head (int32 or int64); empty for one of the backbone's
    values: NDArray[np.float64]  # in the data's own units
    finds_scale: bool = False  # whether its center and scale are found from its observations
    record: Mapping[str, object] | None = None  # its metadata as it was given; None if that was not kept
    observed_since: bool = False  # whether it was observed after fit; rows then read its present head
    times: NDArray[np.float64] | None = None  # of its observations, in a model where they age
    now: float | None = None  # the time at which its head was computed

    @property
    def fixed(self) -> bool:
        """Whether its head is the backbone's own, made from observations that are not at hand."""
        return len(self.rows) < self.shots

    def readable(self, schema: MetadataSchema | None) -> dict[str, object]:
        """Its metadata by column: as it was given, or decoded from the numbers if that was not kept."""
        if self.record is not None:
            return dict(self.record)
        return {} if schema is None else schema.decode(self.metadata)

    def holds(self, row: int) -> bool:
        """Whether its context holds the row at this position."""
        at = self._place(row)
        return at < len(self.rows) and int(self.rows[at]) == row

    def value_at(self, row: int) -> float:
        """Return the value of a row of its context."""
        return float(self.values[self._place(row)])

    def _place(self, row: int) -> int:
        """Where a row is in the context, or would be."""
        # A number of another type would let numpy copy all rows to that type first.
        return int(self.rows.searchsorted(self.rows.dtype.type(row)))

    def observed(
        self,
        rows: NDArray[np.int64],
        values: NDArray[np.float64],
        times: NDArray[np.float64] | None = None,
    ) -> Feature:
        """Return the feature with these observations added, a row's later value replacing an earlier one."""
        fresh = ~np.isin(self.rows, rows)
        every = np.concatenate([self.rows[fresh], rows])
        numbers = np.concatenate([self.values[fresh], values])
        order = np.argsort(every)  # a head must not depend on the order observations came in
        both = (
            None if self.times is None or times is None else np.concatenate([self.times[fresh], times])[order]
        )
        return self._holding(every[order], numbers[order], both)

    def with_one(self, row: int, value: float, time: float | None = None) -> Feature:
        """``observed`` of one row."""
        at = self._place(row)
        tail = at + 1 if at < len(self.rows) and self.rows[at] == row else at
        rows = np.concatenate([self.rows[:at], [row], self.rows[tail:]])
        values = np.concatenate([self.values[:at], [value], self.values[tail:]])
        if self.times is None or time is None:
            return self._holding(rows, values)
        return self._holding(rows, values, np.concatenate([self.times[:at], [time], self.times[tail:]]))

    def among(self, rows: NDArray[np.int64]) -> Feature:
        """Return the feature with only its observations at these rows."""
        kept = np.isin(self.rows, rows)
        return self._holding(
            self.rows[kept], self.values[kept], None if self.times is None else self.times[kept]
        )

    def _holding(
        self,
        rows: NDArray[np.int64],
        values: NDArray[np.float64],
        times: NDArray[np.float64] | None = None,
    ) -> Feature:
        return replace(self, shots=len(rows), rows=rows, values=values, times=times, observed_since=True)


class Entry(NamedTuple):
    """A feature and where its head lies."""

    feature: Feature
    slot: int  # of its head in the store
    evidence: Tensor | None  # the sums that the head rests on, if they are kept
    epoch: int  # of the roster, from whose states the sums were made
    number: int  # which stays the same as long as the feature is there, and is never given again

    @property
    def facts(self) -> tuple[float, float, float, float]:
        """Its kind, the offset and span of its scale, and whether it is as fitted."""
        kind, as_fitted = self.feature.kind, self.feature.in_backbone and not self.feature.observed_since
        return float(kind.type), kind.offset, kind.span, float(as_fitted)


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
    """The entries of another mapping but those of some names, which are all in it."""

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
        """The same without one more."""
        return Without(self._entries, self._gone | {name})


def without(
    base: Mapping[str, Entry], recent: dict[str, Entry], name: str
) -> tuple[Mapping[str, Entry], dict[str, Entry]]:
    """The entries of a catalogue, in two parts of which the second comes first, without those of a name.

    Of entries in a dictionary a new one is made, which is quick to read. Others stay in their file.
    """
    if isinstance(base, dict):
        return {key: entry for key, entry in {**base, **recent}.items() if key != name}, {}
    kept = {key: entry for key, entry in recent.items() if key != name}
    if name not in base:
        return base, kept
    return (base.less(name) if isinstance(base, Without) else Without(base, frozenset([name]))), kept


Evidence = Sequence[Tensor | None]  # the sums that heads rest on, of those that rest on some

_MIN_ROOM = 64


class FeatureStore(Mapping[str, Feature]):
    """Features by name, and their heads; it never changes.

    ``put`` and ``remove`` return another catalogue, so that whoever reads this one is not disturbed. The
    two share what they have in common: heads lie in arrays to which only new ones are written, and of the
    names only the recent ones are copied, so that a change costs little however many features there are.
    """

    def __init__(self, heads: Heads, own: Names | None = None) -> None:
        """``heads`` shows what the heads to come are made of; none of them is kept.

        ``own`` are the features of the backbone: their positions there are their numbers.
        """
        self._base: Mapping[str, Entry] = {}
        self._recent: dict[str, Entry] = {}  # come before those of the same name in the base
        self._store = Arena(heads.take(torch.zeros(0, dtype=torch.int64)), 0)
        self._own = Names([], "feature") if own is None else own
        self._slots = PersistentArray(
            np.full(len(self._own), -1)
        )  # by number; -1 of a feature that is not there
        # By number: kind, offset and span of the scale, whether as fitted.
        self._facts = PersistentArray(np.zeros((len(self._own), 4)))
        self._listed: tuple[Mapping[str, Entry], FeatureColumns] | None = None  # of the base
        self._overlaid: tuple[Mapping[str, Entry], FeatureColumns] | None = (
            None  # of the base with the recent ones
        )

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
        """Where the heads of these features are stored."""
        return [self._find(name).slot for name in names]

    def stored(self, slots: Tensor | slice) -> Heads:
        """The heads in these slots; those of a slice are not copied."""
        return self._store.take(slots)

    @property
    def evidence(self) -> Mapping[str, Tensor]:
        """By name, the sums that a streaming adapter's heads rest on, of features observed further."""
        return self.evidence_at(None)

    def evidence_at(self, epoch: int | None) -> Mapping[str, Tensor]:
        """By name, the sums made from the states of this epoch of the roster; of any if it is None."""
        entries = ((name, self._find(name)) for name in self)
        kept = ((name, entry) for name, entry in entries if epoch is None or entry.epoch == epoch)
        return MappingProxyType({name: e.evidence for name, e in kept if e.evidence is not None})

    def evidence_of(self, name: str, epoch: int) -> Tensor | None:
        """The sums that one feature's head rests on, if they are kept and no row's state changed since."""
        return entry.evidence if (entry := self._find(name)).epoch == epoch else None

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
        """Return features and their heads, in this order."""
        entries = [self._find(name) for name in names]
        slots = torch.tensor([entry.slot for entry in entries], dtype=torch.int64)
        return [entry.feature for entry in entries], self._store.take(slots)

    def arrays(self, name: object) -> tuple[Feature, list[NDArray[np.float32]]]:
        """A feature and the parts of its head, without a copy."""
        entry = self._find(name)
        return entry.feature, [part[entry.slot].numpy() for part in self._store.parts.parts()]

    def number(self, name: object) -> int:
        """The number of a feature, by which rows hold what they observed of it."""
        return self._find(name).number

    def slots_by_number(self, numbers: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Where the heads of features lie, by number; -1 of features that are no longer there."""
        return self._slots.whole()[numbers] if isinstance(numbers, slice) else self._slots.take(numbers)

    def facts(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """The kind, the offset and span of the scale of features, and whether they are as fitted, by number.

        A feature of the backbone is as fitted while nothing is observed of it after ``fit``: (n, 4).
        """
        return self._facts.take(numbers)

    def names_by_number(self, numbers: NDArray[np.int64]) -> list[str | None]:
        """The names of features, by number; None of features that are no longer there."""
        own = len(self._own)
        later = self.by_number() if bool((numbers >= own).any()) else {}
        slots = self._slots.take(numbers)
        there = (number if slot >= 0 else None for number, slot in zip(numbers.tolist(), slots, strict=True))
        return [n if n is None else self._own[n] if n < own else later[n].name for n in there]

    def by_number(self) -> dict[int, Feature]:
        """All features by their numbers."""
        return {entry.number: entry.feature for entry in (self._find(name) for name in self)}

    def put(
        self, features: list[Feature], heads: Heads, evidence: Evidence | None = None, epoch: int = 0
    ) -> FeatureStore:
        """Return a catalogue with these features too, or in the place of those of the same name.

        ``evidence`` are the sums that their heads rest on, if any, made from the states of this ``epoch``.
        """
        after, slots = self._copied(len(features))
        after._store.write(slots, heads)
        return after._entered(features, slots, evidence or [None] * len(features), epoch)

    def put_one(self, feature: Feature, head: OneHead, evidence: Tensor | None, epoch: int) -> FeatureStore:
        """``put`` of one feature."""
        after, slots = self._copied(1)
        after._store.write_one(slots.start, head)
        return after._entered([feature], slots, [evidence], epoch)

    @property
    def stored_arrays(self) -> list[NDArray[Any]]:
        """The weights, biases, covariances and noises of all stored heads, in numpy."""
        return self._store.arrays

    def _copied(self, count: int) -> tuple[FeatureStore, range]:
        """A copy, and so many slots to write to, of a larger store if there is no room."""
        after, slots = copy(self), self._store.claimed(count)
        if slots is None:
            after._move(count)
            slots = range(after._store.used, after._store.used + count)
            after._store.used = slots.stop
        return after, slots

    def _entered(self, features: list[Feature], slots: range, evidence: Evidence, epoch: int) -> FeatureStore:
        """Enter features whose heads lie in these slots; for a copy that no one knows of yet."""
        numbers = self._numbers(features)
        new = {
            feature.name: Entry(feature, slot, own, epoch, number)
            for feature, slot, own, number in zip(features, slots, evidence, numbers, strict=True)
        }
        more, at = max(0, max(numbers, default=-1) + 1 - len(self._slots)), np.array(numbers, dtype=np.int64)
        self._slots = self._slots.extended(np.full(more, -1)).put(at, np.arange(slots.start, slots.stop))
        facts = np.array([entry.facts for entry in new.values()]).reshape(-1, 4)
        if more or not np.array_equal(self._facts.take(at), facts):  # usually they stay the same
            self._facts = self._facts.extended(np.zeros((more, 4))).put(at, facts)
        self._recent = {**self._recent, **new}
        if len(self._recent) ** 2 > len(self._base):
            self._base, self._recent = {**self._base, **self._recent}, {}
        return self

    def _numbers(self, features: list[Feature]) -> list[int]:
        """Keep the numbers of features that are there, and give new ones to others."""
        numbers, following = [], len(self._slots)
        for feature in features:
            entry = self._recent.get(feature.name) or self._base.get(feature.name)
            if entry is not None:
                numbers.append(entry.number)
            elif feature.in_backbone:
                numbers.append(self._own.position(feature.name))
            else:
                numbers.append(following)
                following += 1
        return numbers

    def remove(self, name: object) -> FeatureStore:
        """Return a catalogue without this feature."""
        after, gone = copy(self), self._find(name)
        after._base, after._recent = without(self._base, self._recent, gone.feature.name)
        after._slots = self._slots.put(np.array([gone.number]), np.array([-1]))
        return after

    def with_contexts(self, features: Mapping[str, Feature]) -> FeatureStore:
        """Return a catalogue with the same heads of features that have other contexts; sums are dropped."""
        after = copy(self)
        every = ((name, self._find(name)) for name in self)
        after._base = {name: e._replace(feature=features[name], evidence=None) for name, e in every}
        after._recent = {}
        numbers = [entry.number for entry in after._base.values()]
        facts = np.array([entry.facts for entry in after._base.values()]).reshape(-1, 4)
        after._facts = self._facts.put(np.array(numbers, dtype=np.int64), facts)
        return after

    def renamed(self, name: object, other: str, own: Names) -> FeatureStore:
        """Return a catalogue in which a feature has another name; ``own`` are the backbone's names then."""
        after, entry = copy(self), self._find(name)
        changed = entry._replace(feature=replace(entry.feature, name=other))
        every = (changed if (old := self._find(key)) is entry else old for key in self)
        after._base = {each.feature.name: each for each in every}
        after._recent, after._own = {}, own
        return after

    def _move(self, more: int) -> None:
        """Move the heads to a store of their own, where there is room for as many again."""
        _, heads = self.take(self)
        entries = {name: self._find(name) for name in self}
        # With room for as many as there are, the cost of a change is constant on average.
        self._store = Arena(heads, max(_MIN_ROOM, len(entries), more))
        self._base = {name: entry._replace(slot=slot) for slot, (name, entry) in enumerate(entries.items())}
        self._recent = {}
        slots = np.full(len(self._slots), -1)
        slots[[entry.number for entry in entries.values()]] = np.arange(len(entries))
        self._slots = PersistentArray(slots)
