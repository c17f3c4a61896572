"""Store the features of a model and their heads.

``FeatureStore`` is the part of a ``ModelState`` that maps names to features and heads. ``FeatureColumns`` has
the properties of all features as arrays, for rankings.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.types import Heads, OneHead
from headstart.errors import UnknownNameError, did_you_mean
from headstart.linalg.compact import CompactMatrices, StoredMatrices
from headstart.linalg.packed import frobenius_norms
from headstart.model.observations import ObservationList
from headstart.model.persistent import Arena, PersistentArray, copy_with
from headstart.table import Kind, Kinds, MetadataSchema
from headstart.table.kinds import split_column
from headstart.table.margins import Category
from headstart.table.names import Names, as_name

# How row states read the observations of a feature: the type, offset and span of its kind, and whether its
# reference is the backbone's own head.
SCALE = np.dtype(
    [("type", np.int64), ("offset", np.float64), ("span", np.float64), ("as_fitted", np.bool_)], align=True
)

_ARRAYS = ("positions", "types", "offsets", "spans", "shots", "in_backbone", "fixed")  # of FeatureColumns

_NORMS_AT_ONCE = 256  # covariances whose norms are computed together

_MIN_ROOM = 64  # least number of free slots of a new arena


@dataclass(frozen=True)
class Feature:
    """A feature of a model, without its head.

    Its context (``rows``, ``values``, ``arrivals``, ``times`` and ``weights``) is empty if the head is the
    backbone's own.
    """

    name: str
    kind: Kind
    in_backbone: bool  # whether it is an input of the backbone
    shots: int  # the number of observations that the head was computed from
    metadata: NDArray[np.float32]  # (width,): encoded
    rows: NDArray[Any]  # (n,): the positions of the observed rows, ascending; int32 or int64
    values: NDArray[np.float64]  # (n,): numbers of the kind, see ``Margin``
    finds_scale: bool = False  # whether the center and scale are found from the observations
    record: Mapping[str, object] | None = None  # the metadata by column before encoding; None if unknown
    arrivals: NDArray[np.int64] | None = None  # (n,): see ``ObservationList``; None: all are from the fit
    times: NDArray[np.float64] | None = None  # (n,): None in a model without a half-life
    weights: NDArray[np.float64] | None = None  # (n,): as given; None: all 1

    @property
    def fixed(self) -> bool:
        """Whether the head is the backbone's own, trained on observations that are not in the context."""
        return len(self.rows) < self.shots

    @property
    def observations(self) -> ObservationList:
        """The context, by positions of rows."""
        return ObservationList(self.rows, self.values, self.arrivals, self.times, self.weights)

    @property
    def observed_since(self) -> bool:
        """Whether any observation was added or corrected after ``fit``."""
        return self.observations.since_fit

    def with_observations(self, observations: ObservationList) -> Feature:
        """Return the feature with these ``observations`` as its context."""
        rows, values, arrivals, times, weights = observations
        return copy_with(
            self, shots=len(rows), rows=rows, values=values, arrivals=arrivals, times=times, weights=weights
        )

    def readable_metadata(self, schema: MetadataSchema | None) -> dict[str, object]:
        """Return the metadata by column: the record, or else the decoded numbers."""
        if self.record is not None:
            return dict(self.record)
        return {} if schema is None else schema.decode(self.metadata)

    def is_observed_by(self, row: int) -> bool:
        """Return whether the row at position ``row`` is in the context."""
        # With a number of another type, numpy would first copy all rows to that type.
        index = int(self.rows.searchsorted(self.rows.dtype.type(row)))
        return index < len(self.rows) and int(self.rows[index]) == row

    def value_at(self, row: int) -> float:
        """Return the value of a row in the context."""
        number = self.values[self.rows.searchsorted(self.rows.dtype.type(row))]
        return float(self.kind.margin.to_value(number))

    def restrict_to(self, rows: NDArray[np.int64]) -> Feature:
        """Return the feature with only the observations of these ``rows``."""
        return self.with_observations(self.observations.take(np.isin(self.rows, rows)))

    def without_row(self, row: int) -> Feature:
        """Return the feature without the observation of this ``row``."""
        return self.with_observations(self.observations.take(self.rows != row))


class Entry(NamedTuple):
    """A feature with the slots of its heads in the arena of the store."""

    feature: Feature
    slot: int  # of the current head
    number: int  # constant as long as the feature is in the model, and never used again
    reference: int = -1  # the slot of the reference; -1: the backbone's own head
    reference_kind: Kind | None = None  # the kind with the units of the reference; None: the feature's kind

    @property
    def scale(self) -> tuple[int, float, float, bool]:
        """The ``SCALE`` of the feature."""
        kind = self.reference_kind or self.feature.kind
        return int(kind.type), kind.offset, kind.span, self.reference < 0

    @property
    def slots(self) -> tuple[int, int]:
        """The slots of the current head and of the reference; equal if the reference is the backbone's."""
        return self.slot, self.slot if self.reference < 0 else self.reference


class ListedFeature(NamedTuple):
    """A feature, the slot of its current head, and its position in the order of the store."""

    feature: Feature
    slot: int
    position: int


class FeatureListing(NamedTuple):
    """Some features in order, with the slots of their current heads."""

    features: list[Feature]
    names: Names
    kinds: Kinds
    shots: NDArray[np.int64]  # (features,)
    slots: NDArray[np.int64]  # (features,)

    @classmethod
    def of(cls, features: list[Feature], slots: NDArray[np.int64]) -> FeatureListing:
        """List ``features``, whose current heads are in ``slots``."""
        return cls(
            features,
            Names([feature.name for feature in features], "feature"),
            Kinds([feature.kind for feature in features]),
            np.array([feature.shots for feature in features], dtype=np.int64),
            slots,
        )


@dataclass(frozen=True)
class FeatureColumns:
    """The properties of features that rankings read, as arrays with one entry per slot of the stored heads.

    Arrays of all features are built once. After a change, ``update`` copies them and writes only the changed
    features, so that the next ranking stays fast.
    """

    features: list[Feature | None]  # None where the slot is not in use
    positions: NDArray[np.int64]  # in the order of the store; −1 where the slot is not in use
    types: NDArray[np.int64]  # of kinds
    offsets: NDArray[np.float64]
    spans: NDArray[np.float64]
    shots: NDArray[np.int64]
    in_backbone: NDArray[np.bool_]
    fixed: NDArray[np.bool_]
    recent: tuple[ListedFeature, ...] = ()  # the features that differ from ``base``
    base: FeatureColumns | None = field(default=None, repr=False)

    @classmethod
    def of(cls, listed: Sequence[ListedFeature]) -> FeatureColumns:
        """Return the columns of the features ``listed``."""
        size = max((entry.slot for entry in listed), default=-1) + 1
        columns = cls(
            features=[None] * size,
            positions=np.full(size, -1),
            types=np.zeros(size, np.int64),
            offsets=np.zeros(size),
            spans=np.ones(size),
            shots=np.zeros(size, np.int64),
            in_backbone=np.zeros(size, bool),
            fixed=np.zeros(size, bool),
        )
        columns._write(listed)
        return columns

    def update(self, recent: Sequence[ListedFeature], freed: Sequence[int]) -> FeatureColumns:
        """Return a copy with the features ``recent``; the slots ``freed`` are no longer in use."""
        more = max(0, max((entry.slot for entry in recent), default=-1) + 1 - len(self.features))
        columns = replace(
            self,
            features=self.features + [None] * more,
            **{name: _extend(getattr(self, name), more) for name in _ARRAYS},
            recent=tuple(recent),
            base=self,
        )
        for slot in freed:
            columns.features[slot] = None
        columns.positions[list(freed)] = -1
        columns._write(recent)
        return columns

    @cached_property
    def used_slots(self) -> NDArray[np.int64]:
        """The slots in use, in ascending order."""
        return np.flatnonzero(self.positions >= 0)

    @cached_property
    def listing(self) -> FeatureListing:
        """All features in the order of the store."""
        slots = self.used_slots[np.argsort(self.positions[self.used_slots])]
        features = [feature for slot in slots.tolist() if (feature := self.features[slot]) is not None]
        return FeatureListing.of(features, slots)

    @cached_property
    def kinds(self) -> NDArray[np.int64]:
        """The types of kinds of all features, without repetition."""
        return np.unique(self.types[self.used_slots])

    @cached_property
    def _levels(self) -> Counter[str]:
        """The number of columns of each category."""
        columns = (feature for feature in self.features if feature is not None and "=" in feature.name)
        return Counter(split_column(f.name)[0] for f in columns if isinstance(f.kind.margin, Category))

    @property
    def most_levels(self) -> int:
        """The number of columns of the largest category; 1 if there is none."""
        return max(self._levels.values(), default=1)

    @property
    def has_levels(self) -> bool:
        """Whether some columns are levels of categories."""
        return len(self._levels) > 0

    @cached_property
    def any_fixed(self) -> bool:
        """Whether any head is the backbone's own."""
        return bool(self.fixed[self.used_slots].any())

    def find_different_units(self, slots: NDArray[np.int64]) -> int | None:
        """Return the first slot whose feature has another kind or other units than ``slots[0]``, or None."""
        return self._different_units if slots is self.used_slots else self._compare_units(slots)

    @cached_property
    def _different_units(self) -> int | None:
        """The result of ``find_different_units`` for all features, which most rankings need."""
        return self._compare_units(self.used_slots)

    def _compare_units(self, slots: NDArray[np.int64]) -> int | None:
        kinds = np.stack([column[slots] for column in (self.types, self.offsets, self.spans)])
        differ = (kinds != kinds[:, :1]).any(axis=0)
        if not differ.any():
            margins = [feature.kind.margin for slot in slots if (feature := self.features[slot]) is not None]
            differ = np.array([margin != margins[0] for margin in margins], dtype=bool)
        return int(slots[differ.argmax()]) if differ.any() else None

    def values_of(self, slots: NDArray[np.int64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert scores (n,) of the features in ``slots`` (n,), all of one kind, to the units of values."""
        numbers = scores * self.spans[slots] + self.offsets[slots]
        feature = self.features[slots[0]] if len(slots) else None
        return numbers if feature is None else np.asarray(feature.kind.margin.unrounded(numbers))

    def observed_by(self, row: int) -> NDArray[np.int64]:
        """Return the slots of the features with this ``row`` in their context, in ascending order."""
        starts, slots = (self.base or self)._slots_by_row
        slots = slots[starts[row] : starts[row + 1]] if row + 1 < len(starts) else slots[:0]
        slots = slots[self.positions[slots] >= 0]
        recent = [entry.slot for entry in self.recent if entry.feature.is_observed_by(row)]
        return np.union1d(slots.astype(np.int64), np.array(recent, dtype=np.int64))

    @cached_property
    def _slots_by_row(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The slots of the features that each row observed: the start of each row's slots, and all slots."""
        from scipy.sparse import csr_array  # transposes in linear time, without sorting

        no_rows = np.zeros(0, np.int64)
        contexts = [no_rows if feature is None else feature.rows for feature in self.features]
        starts = np.append(0, np.cumsum([len(rows) for rows in contexts], dtype=np.int64))
        rows = np.concatenate([*contexts, no_rows])
        shape = (len(contexts), int(rows.max(initial=-1)) + 1)
        by_row = csr_array((np.ones(len(rows), np.int8), rows, starts), shape=shape).tocsc()
        return by_row.indptr, by_row.indices

    def _write(self, listed: Sequence[ListedFeature]) -> None:
        """Write features to their slots; only for columns that are not yet in use."""
        slots = [entry.slot for entry in listed]
        kinds = [entry.feature.kind for entry in listed]
        self.positions[slots] = [entry.position for entry in listed]
        self.types[slots] = [kind.type for kind in kinds]
        self.offsets[slots] = [kind.offset for kind in kinds]
        self.spans[slots] = [kind.span for kind in kinds]
        self.shots[slots] = [entry.feature.shots for entry in listed]
        self.in_backbone[slots] = [entry.feature.in_backbone for entry in listed]
        self.fixed[slots] = [entry.feature.fixed for entry in listed]
        for entry in listed:
            self.features[entry.slot] = entry.feature


def _extend(array: NDArray[Any], more: int) -> NDArray[Any]:
    """Return a copy with ``more`` entries of -1 at the end."""
    return np.concatenate([array, np.full(more, -1).astype(array.dtype)])


@runtime_checkable
class EntriesInFile(Protocol):
    """Entries that are read from a file on demand; it says which were observed since fit."""

    def names_observed_since(self) -> list[str]:
        """Return the names of the features that were observed since fit."""


class EntriesWithout(Mapping[str, Entry]):
    """A view of a mapping without some of its names."""

    def __init__(self, entries: Mapping[str, Entry], removed: frozenset[str]) -> None:
        self._entries, self._removed = entries, removed

    def __len__(self) -> int:
        return len(self._entries) - len(self._removed)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._entries if name not in self._removed)

    def __contains__(self, name: object) -> bool:
        return name not in self._removed and name in self._entries

    def __getitem__(self, name: str) -> Entry:
        if name in self._removed:
            raise KeyError(name)
        return self._entries[name]

    def names_observed_since(self) -> list[str]:
        """Return the names of the features that were observed since fit, or of all features."""
        return [name for name in _maybe_observed_since(self._entries) if name not in self._removed]

    def remove(self, name: str) -> EntriesWithout:
        """Return the view without one more name."""
        return EntriesWithout(self._entries, self._removed | {name})


def _maybe_observed_since(entries: Mapping[str, Entry]) -> Iterable[str]:
    """Return the names of the features observed since fit, or of all features if they are in memory."""
    return entries.names_observed_since() if isinstance(entries, EntriesInFile) else entries


@dataclass(frozen=True)
class ObservedSince:
    """The features of a store that were observed since fit, by name."""

    features: dict[str, Feature]

    @classmethod
    def of(cls, features: Iterable[Feature]) -> ObservedSince:
        """Return those ``features`` that were observed since fit."""
        return cls({feature.name: feature for feature in features if feature.observed_since})

    def replace(self, entries: Mapping[str, Entry]) -> ObservedSince:
        """Return the features after a change to ``entries``."""
        unchanged = {name: feature for name, feature in self.features.items() if name not in entries}
        return ObservedSince(unchanged | self.of(entry.feature for entry in entries.values()).features)

    @cached_property
    def _contexts(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The ends of the features' contexts, and the rows of all contexts, one after the other."""
        contexts = [feature.rows for feature in self.features.values()]
        ends = np.cumsum([len(rows) for rows in contexts], dtype=np.int64)
        return ends, np.concatenate([np.zeros(0, np.int32), *contexts])

    def at(self, rows: NDArray[np.int64]) -> list[Feature]:
        """Return the features that have any of ``rows`` in their context."""
        ends, observed = self._contexts
        if len(rows) == 1:
            hits = np.flatnonzero(observed == observed.dtype.type(rows[0]))
        else:
            hits = np.flatnonzero(np.isin(observed, rows.astype(observed.dtype)))
        features = list(self.features.values())
        return [features[owner] for owner in np.unique(ends.searchsorted(hits, side="right"))]


def remove_entry(
    base: Mapping[str, Entry], recent: dict[str, Entry], name: str
) -> tuple[Mapping[str, Entry], dict[str, Entry]]:
    """Return the entries ``base`` and ``recent`` of a store without the feature ``name``.

    A dictionary is copied, because a copy is faster to read than a view. The entries of a saved model stay in
    their file, behind a view.
    """
    if isinstance(base, dict):
        return {key: entry for key, entry in {**base, **recent}.items() if key != name}, {}
    recent = {key: entry for key, entry in recent.items() if key != name}
    if name not in base:
        return base, recent
    view = base if isinstance(base, EntriesWithout) else EntriesWithout(base, frozenset())
    return view.remove(name), recent


def _group_columns(entries: Mapping[str, Entry], groups: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return ``groups`` with the columns of categories in ``entries``, by the name of their feature."""
    result = {feature: list(columns) for feature, columns in groups.items()}
    for name in entries:
        if "=" in name and isinstance(entries[name].feature.kind.margin, Category):
            result.setdefault(split_column(name)[0], []).append(name)
    return result


class FeatureStore(Mapping[str, Feature]):
    """An immutable mapping of names to features, with their heads.

    Each feature has a *current* head, which predicts it, and a *reference* head, which row states are
    computed with (see ``updates``). A method that changes the store returns another one and shares the
    unchanged parts with it: heads are appended to a common arena, and only the entries of recently changed
    features are copied. So the cost of a change does not depend on the number of features.

    Parameters
    ----------
    heads : Heads
        An example of the heads to store, which determines their parts and sizes.
    backbone_features : Names, default=None
        The features of the backbone. Their positions are their numbers.
    """

    def __init__(self, heads: Heads, backbone_features: Names | None = None) -> None:
        self._base: Mapping[str, Entry] = {}
        self._recent: dict[str, Entry] = {}  # these replace entries of the same name in the base
        self._arena = Arena(heads.take(torch.zeros(0, dtype=torch.int64)), 0)
        self._backbone_features = Names([], "feature") if backbone_features is None else backbone_features
        count = len(self._backbone_features)
        # By number: the slots of the current head and of the reference; -1 for a feature not in the store.
        self._slots = PersistentArray(np.full((count, 2), -1))
        self._scales = PersistentArray(np.zeros(count, SCALE))  # by number
        # Columns with the entries that they were computed from: of the base alone, and with recent entries.
        self._base_columns: tuple[Mapping[str, Entry], FeatureColumns] | None = None
        self._base_categories: tuple[Mapping[str, Entry], dict[str, list[str]]] | None = None
        self._all_columns: tuple[Mapping[str, Entry], FeatureColumns] | None = None
        # The norms of covariances by slot, with the arena of the slots; stores of one model share the list.
        self._norms: list[tuple[Arena[Heads] | None, Tensor]] = [(None, torch.zeros(0))]
        # The features of a base that were observed since fit, with this base.
        self._base_since: tuple[Mapping[str, Entry], ObservedSince] | None = None

    @classmethod
    def from_entries(
        cls,
        entries: Mapping[str, Entry],
        arena: Arena[Heads],
        slots: NDArray[np.int64],
        scales: NDArray[np.void],
        backbone_features: Names,
    ) -> FeatureStore:
        """Return a store of ``entries``, whose heads are in ``arena``.

        ``slots`` (numbers, 2) and ``scales`` (numbers,) are the slots and scales of the entries, by number.
        """
        store = cls(arena.take(slice(0, 0)), backbone_features)
        store._base, store._arena = entries, arena
        store._slots, store._scales = PersistentArray(slots), PersistentArray(scales)
        return store

    @property
    def columns(self) -> FeatureColumns:
        """The properties of all features as arrays, by the slots of their current heads."""
        base, recent = self._base, self._recent
        if self._base_columns is None or self._base_columns[0] is not base:
            listed = [ListedFeature(entry.feature, entry.slot, i) for i, entry in enumerate(base.values())]
            self._base_columns = (base, FeatureColumns.of(listed))
        columns = self._base_columns[1]
        if not recent:
            return columns
        cached = self._all_columns
        if cached is None or cached[0] is not recent or cached[1].base is not columns:
            freed = [base[name].slot for name in recent if name in base]
            next_position = itertools.count(len(base))
            changed = [
                ListedFeature(
                    entry.feature,
                    entry.slot,
                    int(columns.positions[base[name].slot]) if name in base else next(next_position),
                )
                for name, entry in recent.items()
            ]
            cached = self._all_columns = (recent, columns.update(changed, freed))
        return cached[1]

    def observed_since_at(self, rows: NDArray[np.int64]) -> list[Feature]:
        """Return the features that were observed since fit and have any of ``rows`` in their context."""
        base, recent = self._base, self._recent
        if self._base_since is None or self._base_since[0] is not base:
            names = _maybe_observed_since(base)
            self._base_since = (base, ObservedSince.of(base[name].feature for name in names))
        of_base = [feature for feature in self._base_since[1].at(rows) if feature.name not in recent]
        return of_base + ObservedSince.of(entry.feature for entry in recent.values()).at(rows)

    def slots(self, names: Iterable[object]) -> list[int]:
        """Return the slots of the current heads of these features."""
        return [self._find(name).slot for name in names]

    def __len__(self) -> int:
        return len(self._base) + sum(name not in self._base for name in self._recent)

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from (name for name in self._recent if name not in self._base)

    def __contains__(self, name: object) -> bool:
        return name in self._recent or name in self._base

    def __getitem__(self, name: object) -> Feature:
        return self._find(name).feature

    def _entry(self, name: str) -> Entry | None:
        return self._recent.get(name) or self._base.get(name)

    def _find(self, name: object) -> Entry:
        # The exact name comes first, as in ``Names``.
        key = name if isinstance(name, str) and name in self else as_name(name, "feature")
        entry = self._entry(key)
        if entry is None and (columns := self.categories.get(key)):
            raise UnknownNameError(
                f"feature {key!r} is a category; name one of its levels, as {columns[0]!r}"
            )
        if entry is None:
            hint = did_you_mean(key, self if len(self) <= 20_000 else ())
            raise UnknownNameError(f"unknown feature {key!r}{hint}")
        return entry

    def listing(self, names: Iterable[object] | None = None) -> FeatureListing:
        """List features in the order of ``names``, by default all features."""
        if names is None:
            return self.columns.listing
        entries = [self._find(name) for name in names]
        slots = np.array([entry.slot for entry in entries], dtype=np.int64)
        return FeatureListing.of([entry.feature for entry in entries], slots)

    def heads_at(self, slots: NDArray[np.int64] | Tensor | slice) -> Heads:
        """Return the heads in these ``slots``; a slice is not copied."""
        return self._arena.take(torch.from_numpy(slots) if isinstance(slots, np.ndarray) else slots)

    def heads_for_grid(self, slots: NDArray[np.int64]) -> tuple[Heads, Tensor]:
        """Return the heads in ``slots`` without copying their covariances, and the positions of these."""
        stored, positions = self._arena.items, torch.from_numpy(slots)
        noise = None if stored.noise is None else stored.noise.index_select(0, positions)
        weight, bias = (part.index_select(0, positions) for part in (stored.weight, stored.bias))
        return Heads(weight, bias, stored.covariance, noise), positions

    def take(self, names: Iterable[object]) -> tuple[list[Feature], Heads]:
        """Return features and their current heads, in this order."""
        entries = [self._find(name) for name in names]
        slots = torch.tensor([entry.slot for entry in entries], dtype=torch.int64)
        return [entry.feature for entry in entries], self._arena.take(slots)

    def number(self, name: object) -> int:
        """Return the number of a feature, which is its key in the observations of rows."""
        return self._find(name).number

    @property
    def next_number(self) -> int:
        """The number of the next new feature."""
        return len(self._slots)

    def slots_by_number(self, numbers: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Return the slots of the current heads of features, by number; -1 for a removed feature."""
        if isinstance(numbers, slice):
            return self._slots.whole()[numbers, 0]
        return self._slots.take(numbers)[:, 0]

    def reference_slots(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of the references of features, by number; -1 for a removed feature."""
        return self._slots.take(numbers)[:, 1]

    def scales(self, numbers: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the ``SCALE`` of features, by number: (n,)."""
        return self._scales.take(numbers)

    def names_by_number(self, numbers: NDArray[np.int64]) -> list[str | None]:
        """Return the names of features, by number; None for a removed feature."""
        names = self._backbone_features
        added = self.by_number() if bool((numbers >= len(names)).any()) else {}
        slots = self.slots_by_number(numbers)
        return [
            None if slot < 0 else names[number] if number < len(names) else added[number].name
            for number, slot in zip(numbers.tolist(), slots, strict=True)
        ]

    def by_number(self) -> dict[int, Feature]:
        """Return all features by their numbers."""
        return {entry.number: entry.feature for entry in (self._find(name) for name in self)}

    def put(
        self,
        features: Sequence[Feature],
        heads: Heads | Sequence[OneHead],
        numbers: Mapping[str, int] | None = None,
    ) -> FeatureStore:
        """Return a store with these ``features`` and current ``heads``, replacing any of the same names.

        The head of a new feature is also its reference, unless the backbone has one. ``numbers`` may give new
        features their numbers.
        """
        after, slots = self._write(heads)
        entries = []
        for feature, slot, number in zip(
            features, slots, self._assign_numbers(features, numbers or {}), strict=True
        ):
            old = after._entry(feature.name)
            if old is not None:
                entries.append(old._replace(feature=feature, slot=slot))
            else:
                reference = (-1, None) if feature.in_backbone else (slot, feature.kind)
                entries.append(Entry(feature, slot, number, *reference))
        return after._enter(entries)

    def put_references(self, features: Sequence[Feature], heads: Heads | Sequence[OneHead]) -> FeatureStore:
        """Return a store with ``heads`` as references of ``features``, whose kinds have their units."""
        after, slots = self._write(heads)
        entries = [
            after._find(feature.name)._replace(reference=slot, reference_kind=feature.kind)
            for feature, slot in zip(features, slots, strict=True)
        ]
        return after._enter(entries)

    def reset_references(self, names: Iterable[str]) -> FeatureStore:
        """Return a store in which the references of these features are the backbone's own heads again."""
        entries = [self._find(name)._replace(reference=-1, reference_kind=None) for name in names]
        return copy_with(self)._enter(entries)

    @property
    def categories(self) -> dict[str, list[str]]:
        """The columns of each feature of the kind category, by the name of the feature."""
        if self._base_categories is None or self._base_categories[0] is not self._base:
            self._base_categories = (self._base, _group_columns(self._base, {}))
        groups = self._base_categories[1]
        columns = {
            name: entry for name, entry in self._recent.items() if "=" in name and name not in self._base
        }
        return _group_columns(columns, groups) if columns else groups

    @property
    def feature_names(self) -> list[str]:
        """The names of all features, in order: a category is one of them, in place of its columns."""
        owners = {column: name for name, columns in self.categories.items() for column in columns}
        if not owners:
            return list(self)
        return list(dict.fromkeys(owners.get(column, column) for column in self))

    def reference(self, name: str) -> tuple[int, Kind] | None:
        """Return the slot and the kind of a feature's reference; None if it is the backbone's own head."""
        entry = self._find(name)
        return None if entry.reference < 0 else (entry.reference, entry.reference_kind or entry.feature.kind)

    @property
    def arena(self) -> Arena[Heads]:
        """The arena of the heads, in which a slot always has the same head."""
        return self._arena

    def covariance_norms(self, slots: NDArray[np.int64]) -> Tensor:
        """Return the Frobenius norms of the covariances of heads by slot; only those in ``slots`` are known.

        Norms are computed when they are first needed. Stores that share an arena share them: a slot always
        has the same head.
        """
        arena, norms = self._norms[0]
        if arena is not self._arena:
            norms = torch.zeros(0)
        size = int(slots.max(initial=-1)) + 1
        if len(norms) < size:
            norms = torch.cat([norms, torch.full((size - len(norms),), torch.nan)])
        unknown = slots[np.isnan(norms.numpy()[slots])]
        if len(unknown):
            norms = norms.clone()
            for part in torch.split(torch.from_numpy(unknown), _NORMS_AT_ONCE):
                norms[part] = frobenius_norms(self._arena.take(part).packed_covariance)
        self._norms[0] = self._arena, norms
        return norms

    @property
    def stored_arrays(self) -> list[NDArray[Any]]:
        """The weights, biases, covariances and noises of all stored heads, in numpy."""
        return self._arena.arrays

    def with_compact_covariances(self, matrices: CompactMatrices) -> FeatureStore:
        """Return a store with the same heads, whose covariances are ``matrices``, by slot."""
        heads = self._arena.take(slice(0, self._arena.used))
        after, stored = copy_with(self), cast(Tensor, StoredMatrices(matrices))
        after._arena = Arena(replace(heads, covariance=stored), _MIN_ROOM)
        return after

    def _write(self, heads: Heads | Sequence[OneHead]) -> tuple[FeatureStore, range]:
        """Write heads to free slots, of a larger arena if necessary; return a copy and the slots."""
        after = copy_with(self)
        if (
            self._arena.used == 0
            and isinstance(heads, Heads)
            and isinstance(heads.covariance, StoredMatrices)
        ):
            after._arena = Arena(heads, _MIN_ROOM)
            return after, range(len(heads))
        slots = self._arena.append(heads)
        if slots is None:
            after._grow_arena(len(heads))
            slots = after._arena.append(heads)
            if slots is None:
                raise RuntimeError("a new arena has no room")
        return after, slots

    def _enter(self, entries: Sequence[Entry]) -> FeatureStore:
        """Add or replace entries in place, and return the store; only for a copy that is not yet in use."""
        numbers = np.array([entry.number for entry in entries], dtype=np.int64)
        slots = np.array([entry.slots for entry in entries]).reshape(-1, 2)
        self._slots = self._slots.put_or_extend(numbers, slots, -1)
        olds = (self._entry(entry.feature.name) for entry in entries)
        same = (
            old is not None and old.scale == entry.scale for old, entry in zip(olds, entries, strict=True)
        )
        if not all(same):  # most changes keep them
            scales = np.array([entry.scale for entry in entries], dtype=SCALE)
            self._scales = self._scales.put_or_extend(numbers, scales, 0)
        self._recent = {**self._recent, **{entry.feature.name: entry for entry in entries}}
        if len(self._recent) ** 2 > len(self._base):
            since, old = self._base_since, self._base
            self._base = {**self._base, **self._recent}
            if since is not None and since[0] is old:
                self._base_since = (self._base, since[1].replace(self._recent))
            self._recent = {}
        return self

    def _assign_numbers(self, features: Sequence[Feature], chosen: Mapping[str, int]) -> list[int]:
        """Return the numbers of features in the store, and new or ``chosen`` numbers for the others."""
        numbers, next_number = [], self.next_number
        for feature in features:
            entry = self._entry(feature.name)
            if entry is not None:
                numbers.append(entry.number)
            elif feature.in_backbone:
                numbers.append(self._backbone_features.position(feature.name))
            elif feature.name in chosen:
                numbers.append(chosen[feature.name])
            else:
                numbers.append(next_number)
                next_number += 1
        return numbers

    def remove(self, name: object) -> FeatureStore:
        """Return a store without the feature ``name``."""
        after, removed = copy_with(self), self._find(name)
        after._base, after._recent = remove_entry(self._base, self._recent, removed.feature.name)
        after._slots = self._slots.put(np.array([removed.number]), np.array([[-1, -1]]))
        return after

    def remove_row(self, row: int) -> tuple[FeatureStore, list[Feature]]:
        """Return a store without ``row`` in any context, and its observers before the removal.

        The positions of later rows decrease by one. Heads do not change.
        """
        entries = [self._recent.get(name) or self._base[name] for name in self]
        contexts = [entry.feature.rows for entry in entries]
        ends = np.cumsum([len(rows) for rows in contexts], dtype=np.int64)
        rows = np.concatenate([*contexts, np.zeros(0, np.int32)])
        at = np.flatnonzero(rows == row)
        rows -= rows > row
        base: dict[str, Entry] = {}
        start = 0
        for entry, end in zip(entries, ends.tolist(), strict=True):
            feature = copy_with(entry.feature, rows=rows[start:end])
            base[feature.name] = Entry(feature, *entry[1:])
            start = end
        observers = [entries[i].feature for i in ends.searchsorted(at, side="right").tolist()]
        for feature in observers:
            context = feature.without_row(row)
            shifted = copy_with(context, rows=context.rows - (context.rows > row))
            base[feature.name] = base[feature.name]._replace(feature=shifted)
        after = copy_with(self)
        after._base, after._recent = base, {}
        return after, observers

    def with_contexts(self, features: Mapping[str, Feature]) -> FeatureStore:
        """Return a store with the same heads and other contexts; ``features`` has every feature by name."""
        after = copy_with(self)
        after._base = {name: self._find(name)._replace(feature=features[name]) for name in self}
        after._recent = {}
        return after

    def rename(self, name: object, new_name: str, backbone_features: Names) -> FeatureStore:
        """Return a store in which a feature has another name.

        ``backbone_features`` are the names of the backbone's features after the change.
        """
        after, old_name = copy_with(self), self._find(name).feature.name
        base = {}
        for key in self:
            entry = self._find(key)
            if key == old_name:
                entry = entry._replace(feature=replace(entry.feature, name=new_name))
            base[entry.feature.name] = entry
        after._base = base
        after._recent, after._backbone_features = {}, backbone_features
        return after

    def _grow_arena(self, more: int) -> None:
        """Move the heads in use to a new arena with room for ``more``; only for a copy not yet in use.

        The room for as many heads again makes the average cost of a change constant.
        """
        entries = [self._find(name) for name in self]
        old_slots = np.array([entry.slots for entry in entries], dtype=np.int64).reshape(-1, 2)
        used, new_slots = np.unique(old_slots, return_inverse=True)
        new_slots = new_slots.reshape(-1, 2)
        heads = self._arena.take(torch.from_numpy(used))
        self._arena = Arena(heads, max(_MIN_ROOM, len(used), more))
        self._base = {
            entry.feature.name: entry._replace(slot=slot, reference=-1 if entry.reference < 0 else reference)
            for entry, (slot, reference) in zip(entries, new_slots.tolist(), strict=True)
        }
        self._recent = {}
        slots = np.full((len(self._slots), 2), -1)
        slots[[entry.number for entry in entries]] = new_slots
        self._slots = PersistentArray(slots)
