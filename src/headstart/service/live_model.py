"""Keep the served model equal to the store."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sqlalchemy import Connection

from headstart.errors import InputError, ModelFileError
from headstart.model import Headstart
from headstart.model.features import Feature
from headstart.model.inputs import encoded_rows, new_features
from headstart.model.row_states import compute_row_states, observations_of_row
from headstart.model.rows import RowCells, RowObservations, RowStore
from headstart.model.saving.folder import model_digest
from headstart.model.state import ModelState, find_units
from headstart.model.updates import compute_row_state, has_short_ways, remove_row, with_feature
from headstart.service.errors import LOG
from headstart.service.store import (
    Arrivals,
    Cell,
    Delta,
    Store,
    read_all,
    read_cells,
    read_last_number,
    read_since,
)
from headstart.table import Kinds
from headstart.table.kinds import LARGEST, Kind, KindType


@dataclass(frozen=True)
class LiveState:
    """One moment of a live model. It never changes: ``apply`` gives another one.

    Heads depend on states of rows, and states of rows on heads. If each were computed from what the other
    is at the moment, the result would depend on the order of arrival, and no restart could repeat it. So
    each side reads the other as it is *kept*, and what is kept depends on nothing but the observations:

    - A row or feature of the fitted model is kept as it was fitted.
    - A row that was added is kept as the first 2ᵏ of its observations of fitted features describe it.
    - A feature that was added is kept with the head that its first 2ᵏ observations give, at kept rows.

    2ᵏ is the largest power of two that is not more than the observations there are. So what is kept is
    renewed when they double, which costs a constant time for each observation on average.

    What is *shown* (predicted) takes all observations: a feature's head is made from all of them at kept
    rows, and a row's state from all of them by kept heads.

    Attributes
    ----------
    origin : Fitted
        The model as it was loaded, without what was removed or forgotten since.
    base : Fitted
        Kept rows, and heads from all observations.
    reading : Fitted
        Kept rows and kept heads.
    shown : Fitted
        Rows and heads from all observations.
    number : int
        The number of the last change in the store that is contained.
    left_out : int
        How many observations of the store the model could not take.
    """

    origin: ModelState
    base: ModelState
    reading: ModelState
    shown: ModelState
    number: int = 0
    left_out: int = 0

    @classmethod
    def of(cls, fitted: ModelState) -> Self:
        """A model to which nothing has arrived yet."""
        return cls(fitted, fitted, fitted, fitted)

    @property
    def own_rows(self) -> int:
        """How many rows the model was loaded with; rows after them were added."""
        return len(self.origin.rows)

    @property
    def own_features(self) -> int:
        """How many features the backbone reads: their numbers come first."""
        return len(self.origin.backbone_features)

    def numbers(self, features: list[str]) -> NDArray[np.int64]:
        """The numbers of features in all catalogues."""
        return np.array([self.base.catalogue.number(name) for name in features], dtype=np.int64)

    def with_base(self, base: ModelState) -> Self:
        """Return the state with other kept rows or heads; what is read follows its rows."""
        reading = replace(
            self.reading,
            roster=base.roster,
            knowledge=base.knowledge,
            adapter=base.adapter,
            row_metadata=base.row_metadata,
        )
        return replace(self, base=base, reading=reading, shown=replace(base, roster=self.shown.roster))


NOTHING = RowObservations(np.zeros(0, np.int64), np.zeros(0))


def power_of_two(count: int) -> int:
    """The largest power of two that is not more than a count; 0 of 0."""
    return 1 << (count.bit_length() - 1) if count else 0


def kept_keys(
    everything: NDArray[np.int64], kept: NDArray[np.int64], arriving: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Which observations are kept after more arrive; None if they are the same as before.

    Parameters
    ----------
    everything : ndarray of shape (n,)
        The keys of all observations before, in any order.
    kept : ndarray of shape (m,)
        Those that are kept, where m is the power of two for n.
    arriving : ndarray of shape (k,)
        The keys that arrive, in order; those that are known already are corrections.
    """
    fresh = arriving[~np.isin(arriving, everything)]
    count = len(everything) + len(fresh)
    most = power_of_two(count)
    if most == len(kept):
        return None
    # The next power of two is more than there were before: so all of these are among the first.
    return np.concatenate([everything, fresh[: most - len(everything)]])


@dataclass(frozen=True)
class ResolvedCells:
    """Observations that a model can take, in the order of their arrival.

    Attributes
    ----------
    rows : ndarray of shape (n,)
        The positions of rows.
    places : ndarray of shape (n,)
        The positions of features in ``features``.
    values : ndarray of shape (n,)
        In the data's own units.
    features : list of Feature
        The features in them, as they were before.
    left_out : int
        How many observations could not be taken.
    """

    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    values: NDArray[np.float64]
    features: list[Feature]
    left_out: int

    def by_feature(self) -> list[tuple[Feature, NDArray[np.int64], NDArray[np.float64]]]:
        """Each feature with its rows and values, in the order of their arrival."""
        order = np.argsort(self.places, kind="stable")
        ends = np.cumsum(np.bincount(self.places, minlength=len(self.features)))[:-1]
        rows, values = np.split(self.rows[order], ends), np.split(self.values[order], ends)
        return list(zip(self.features, rows, values, strict=False))  # one empty part of no features


def resolve_cells(
    fitted: ModelState, new_rows: Mapping[str, int], new: Mapping[str, Feature], cells: Sequence[Cell]
) -> ResolvedCells:
    """Leave out what the model cannot take.

    Parameters
    ----------
    fitted : Fitted
        The model before.
    new_rows : mapping of str to int
        The positions of rows that are about to be added.
    new : mapping of str to Feature
        Features that are about to be added.
    cells : sequence of Cell
        Observations, each cell once.
    """
    catalogue = fitted.catalogue
    known_rows = fitted.rows
    at = {row: new_rows.get(row, -1) for row in {cell.row for cell in cells}}
    at |= {row: known_rows.position(row) for row in at if row in known_rows}

    places: dict[str, int] = {}
    features: list[Feature] = []
    for name in dict.fromkeys(cell.feature for cell in cells):
        found = new.get(name) or (catalogue[name] if name in catalogue else None)  # noqa: SIM401
        places[name] = -1 if found is None else len(features)
        if found is not None:
            features.append(found)
    positions = np.array([at[cell.row] for cell in cells], dtype=np.int64)
    columns = np.array([places[cell.feature] for cell in cells], dtype=np.int64)
    numbers = np.array([cell.value for cell in cells], dtype=np.float64)
    fine = (positions >= 0) & (columns >= 0)
    positions, columns, numbers = positions[fine], columns[fine], numbers[fine]
    if len(numbers):
        kinds = Kinds([feature.kind for feature in features])
        possible = ~kinds.impossible(numbers, columns)
        possible &= np.abs(kinds.scale(numbers, columns)) <= LARGEST
        positions, columns, numbers = positions[possible], columns[possible], numbers[possible]
    left_out = len(cells) - len(numbers)
    return ResolvedCells(positions, columns, numbers, features, left_out)


def features_without_heads(fitted: ModelState, given: Mapping[str, Mapping[str, Any]]) -> dict[str, Feature]:
    """New features with their metadata, and without observations.

    Metadata that the model cannot read (a newly fitted one may have other types of columns) is left out.
    """
    samples = {kind: _sample(fitted, kind) for kind in {parts.get("kind") for parts in given.values()}}
    records = [dict(parts.get("metadata") or {}) for parts in given.values()]
    width = 0 if fitted.schema is None else fitted.schema.width
    encoded = np.zeros((len(records), width), np.float32)
    if fitted.schema is not None:
        try:
            encoded = fitted.schema.encode(records, fitted.encoders)
        except InputError:
            for place, record in enumerate(records):
                try:
                    encoded[place] = fitted.schema.encode([record], fitted.encoders)[0]
                except InputError:
                    records[place] = {}
                    encoded[place] = fitted.schema.encode([{}], fitted.encoders)[0]
    none, nothing = np.zeros(0, np.int64), np.zeros(0)
    made = {}
    for place, (name, parts) in enumerate(given.items()):
        sample, record = samples[parts.get("kind")], records[place]
        kept = {key: value for key, value in record.items() if value is not None}
        made[name] = Feature(
            name, sample.kind, False, 0, encoded[place], none, nothing, sample.finds_scale, kept
        )
    return made


def _sample(fitted: ModelState, kind: str | None) -> Feature:
    """A feature of this kind, or of the usual one if the model does not have it."""
    try:
        return new_features(fitted, {"sample of a kind": {"kind": kind}})[0]
    except InputError:
        return new_features(fitted, {"sample of a kind": {}})[0]


def first_contexts(
    fitted: ModelState, given: ResolvedCells, new: Mapping[str, Feature]
) -> tuple[dict[str, Feature], dict[str, Feature]]:
    """New features with all their observations, and with those that are kept; no step for each cell."""
    fresh = np.array([feature.name in new for feature in given.features], dtype=bool)
    chosen = np.flatnonzero(fresh[given.places]) if len(fresh) else np.zeros(0, np.int64)
    places, rows, values = given.places[chosen], given.rows[chosen], given.values[chosen]
    arrival = np.argsort(places, kind="stable")
    counts = np.bincount(places, minlength=len(given.features))
    starts = np.cumsum(counts) - counts
    rank = np.empty(len(chosen), np.int64)
    rank[arrival] = np.arange(len(chosen)) - starts[places[arrival]]
    most = np.array([power_of_two(count) for count in counts.tolist()], dtype=np.int64)
    every, kept = dict(new), dict(new)
    for target, among in ((every, np.ones(len(chosen), dtype=bool)), (kept, rank < most[places])):
        at, own, seen = places[among], rows[among], values[among]
        order = np.lexsort((own, at))
        own, seen = own[order], seen[order]
        ends = np.cumsum(np.bincount(at, minlength=len(given.features))).tolist()
        begins = [0, *ends][: len(ends)]
        observed = [
            _with(feature, own[begin:end], seen[begin:end])
            for feature, begin, end in zip(given.features, begins, ends, strict=True)
            if end > begin
        ]
        target |= {feature.name: feature for feature in find_units(observed, fitted.middle)}
    return every, kept


def _with(feature: Feature, rows: NDArray[np.int64], values: NDArray[np.float64]) -> Feature:
    """The feature with this context; written out, because a copy that is checked costs more."""
    return Feature(
        feature.name,
        feature.kind,
        False,
        len(rows),
        feature.metadata,
        rows,
        values,
        feature.finds_scale,
        feature.record,
        True,
    )


@dataclass
class Dirty:
    """What must be made anew after something was lost, by name.

    Attributes
    ----------
    features : set of str
        Added features whose kept head rested on a row that is lost.
    rows : set of str
        Added rows whose kept state rested on a feature that is lost.
    shown : set of str
        Rows whose shown state did, or was read by a head that is made anew.
    """

    features: set[str] = field(default_factory=set)
    rows: set[str] = field(default_factory=set)
    shown: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.features or self.rows or self.shown)


def without_features(state: LiveState, names: Sequence[str], again: Dirty) -> LiveState:
    """Return the state without these features; unknown ones are passed over."""
    for name in names:
        if name not in state.base.catalogue:
            continue
        number, rows = state.base.catalogue.number(name), state.base.rows
        again.shown |= {rows[row] for row in state.shown.roster.tellers(number).tolist()}
        kept = state.base.roster.tellers(number)
        again.rows |= {rows[row] for row in kept[kept >= state.own_rows].tolist()}
        origin = state.origin.without(name) if name in state.origin.catalogue else state.origin
        state = replace(state, origin=origin, reading=state.reading.without(name))
        state = state.with_base(state.base.without(name))
    return state


def without_rows(state: LiveState, names: Sequence[str], again: Dirty) -> LiveState:
    """Return the state without these rows; unknown ones are passed over."""
    for name in names:
        if name not in state.base.rows:
            continue
        row, listing = state.base.rows.position(name), state.base.catalogue.listing
        held = [listing.features[slot] for slot in listing.observed_by(row).tolist()]
        holders = [feature.name for feature in held if feature is not None]
        origin = remove_row(state.origin, row) if row < state.own_rows else state.origin
        reading = _moved_up(state.reading, row)
        shown = state.shown.roster.without(row)
        state = replace(state, origin=origin, reading=reading, shown=state.shown.with_roster(shown))
        state = state.with_base(remove_row(state.base, row))
        again.features |= {each for each in holders if each not in origin.catalogue}
        later = [
            each for each in holders if each in origin.catalogue and not origin.catalogue[each].in_backbone
        ]
        if later:  # added before the model was saved: kept as in the saved model
            features, heads = origin.catalogue.take(later)
            catalogue = state.reading.catalogue.put(features, heads)
            state = replace(state, reading=replace(state.reading, catalogue=catalogue))
        for each in later:
            tellers = state.shown.roster.tellers(state.base.catalogue.number(each)).tolist()
            again.shown |= {state.base.rows[row] for row in tellers}
        again.rows.discard(name)
        again.shown.discard(name)
    return state


def _moved_up(reading: ModelState, row: int) -> ModelState:
    """The kept heads, with contexts that point at a roster without this row; as fitted stays as fitted."""

    def moved(feature: Feature) -> Feature:
        rows, values = feature.rows, feature.values
        if feature.holds(row):
            at = int(np.searchsorted(rows, row))
            rows, values = np.delete(rows, at), np.delete(values, at)
        return replace(feature, rows=rows - (rows > row), values=values)

    after = {name: moved(feature) for name, feature in reading.catalogue.items()}
    return replace(reading, catalogue=reading.catalogue.with_contexts(after))


def with_rows(
    state: LiveState,
    new: Mapping[str, Mapping[str, Any] | None],
    given: ResolvedCells,
    again: Mapping[int, NDArray[np.int64]],
) -> tuple[LiveState, list[int]]:
    """The state with new rows, and with what is kept of added rows; the rows whose kept states changed."""
    base, own = state.base, state.own_features
    catalogue, first = base.catalogue, len(base.rows)
    fitted = np.array(
        [catalogue.number(feature.name) if feature.name in catalogue else own for feature in given.features],
        dtype=np.int64,
    )
    numbers = fitted[given.places] if len(fitted) else np.zeros(0, np.int64)
    telling = (given.rows >= state.own_rows) & (numbers < own)
    rows, numbers, values = given.rows[telling], numbers[telling], given.values[telling]
    order = np.argsort(rows, kind="stable")
    touched, starts = np.unique(rows[order], return_index=True)
    parts = {int(row): part for row, part in zip(touched, np.split(order, starts[1:]), strict=False)}
    kept: dict[int, RowObservations] = {}
    for row in {*parts, *again, *range(first, first + len(new))}:
        part = parts.get(row, order[:0])
        everything = _known(state, row, own) if row < first else NOTHING
        before = (base.roster.observations(row) or NOTHING) if row < first else NOTHING
        keys = again.get(row)
        if keys is None:
            keys = kept_keys(everything.numbers, before.numbers, numbers[part])
        if keys is None:
            if row < first and not np.isin(numbers[part], before.numbers).any():
                continue
            keys = before.numbers
        joined = RowCells.of([everything]).joined(np.zeros(len(part), np.int64), numbers[part], values[part])
        among = np.isin(joined.numbers, keys)
        kept[row] = RowObservations(joined.numbers[among], joined.values[among])
    old = sorted(row for row in kept if row < first)
    if old:
        base = replace(base, roster=_put(state, base, old, [kept[row] for row in old]))
    if new:
        base = _added(state, base, new, [kept[row] for row in range(first, first + len(new))])
    state = state.with_base(base)
    if new:  # what is shown of them follows with all others'
        blank = base.roster.take(np.arange(first, len(base.rows)))
        roster = state.shown.roster.added(list(new), blank, [NOTHING] * len(new))
        state = replace(state, shown=state.shown.with_roster(roster))
    return state, old


def _known(state: LiveState, row: int, own: int) -> RowObservations:
    """What an added row observed of fitted features that are still there."""
    held = state.shown.roster.observations(row) or NOTHING
    there = held.numbers < own
    there[there] = state.base.catalogue.slots_by_number(held.numbers[there]) >= 0
    return RowObservations(held.numbers[there], held.values[there])


def _put(state: LiveState, base: ModelState, rows: list[int], kept: list[RowObservations]) -> RowStore:
    places = np.array(rows, dtype=np.int64)
    metadata = None if base.row_metadata is None else base.row_metadata.encoded[places]
    names = [base.rows[row] for row in rows]
    states = compute_row_states(state.reading, RowCells.of(kept), names, metadata)
    return base.roster.put(places, states, kept)


def _added(
    state: LiveState,
    base: ModelState,
    new: Mapping[str, Mapping[str, Any] | None],
    kept: list[RowObservations],
) -> ModelState:
    names = list(new)
    given = {name: metadata for name, metadata in new.items() if metadata}
    records, encoded = encoded_rows(base.row_metadata, names, given or None)
    held = base.row_metadata
    states = compute_row_states(state.reading, RowCells.of(kept), names, None if held is None else encoded)
    return replace(
        base,
        roster=base.roster.added(names, states, kept),
        row_metadata=None if held is None else held.added(records, encoded),
    )


_FEATURES_AT_ONCE = 1 << 15

_FEW_FEATURES = 8  # features whose kept sums are worth more than one pass for all


def with_features(
    state: LiveState,
    given: ResolvedCells,
    new: Mapping[str, Feature],
    renewed: list[int],
    again: Mapping[int, NDArray[np.int64]],
) -> tuple[LiveState, list[str]]:
    """The state with new features and observations; the features whose kept heads changed."""
    base, reading = state.base, state.reading
    every, kept = first_contexts(base, given, new) if new else ({}, {})
    refined = 0
    for feature, rows, values in given.by_feature():
        own = feature.name not in state.origin.catalogue
        if feature.fixed or not len(rows) or feature.name in new:
            continue
        refined += 1
        every[feature.name] = base.with_own_units(feature.observed(rows, values))
        if own:
            held = reading.catalogue[feature.name]
            keys = kept_keys(feature.rows, held.rows, rows)
            if keys is not None or np.isin(rows, held.rows).any():
                kept[feature.name] = every[feature.name].among(held.rows if keys is None else keys)
    for row, feature in _holders(base, renewed):
        every.setdefault(feature.name, feature)
        if feature.name not in state.origin.catalogue and reading.catalogue[feature.name].holds(row):
            held = reading.catalogue[feature.name]
            kept.setdefault(feature.name, every[feature.name].among(held.rows))
    for name in (name for name in reading.catalogue if again and reading.catalogue.number(name) in again):
        feature = every.get(name) or base.catalogue[name]
        kept[name] = feature.among(again[reading.catalogue.number(name)])
    few = refined == len(every) <= _FEW_FEATURES and not (renewed or new)
    base = _headed(base, every, given if few else None)
    state = state.with_base(base)
    changed = [name for name in kept if name not in new]  # no row has read a new one
    return replace(state, reading=_kept(state.reading, base, new, kept)), changed


def _kept(
    reading: ModelState, base: ModelState, new: Mapping[str, Feature], kept: Mapping[str, Feature]
) -> ModelState:
    """The kept heads after these features have other contexts.

    Where everything is kept, the head is that from all observations. New features get theirs first and in
    the order of ``new``, so that they have the same numbers in both catalogues.
    """
    whole = [name for name, feature in kept.items() if feature.shots == base.catalogue[name].shots]
    copied = [*new, *(name for name in whole if name not in new)]
    if copied:
        features, heads = base.catalogue.take(copied)
        reading = replace(reading, catalogue=reading.catalogue.put(features, heads))
    same = {*whole}
    others = [each for name, each in kept.items() if name not in same]
    parts = {each.name: each for each in find_units(others, base.middle)}
    return _headed(reading, parts, None)


def _holders(base: ModelState, rows: list[int]) -> Iterator[tuple[int, Feature]]:
    """The features whose contexts hold these rows, with each."""
    if not rows:
        return
    listing = base.catalogue.listing
    for row in rows:
        for feature in (listing.features[slot] for slot in listing.observed_by(row).tolist()):
            if feature is not None and not feature.fixed:
                yield row, feature


def _headed(fitted: ModelState, features: Mapping[str, Feature], given: ResolvedCells | None) -> ModelState:
    """The model with the heads of these features; from kept sums if ``given`` says what is new in each."""
    if given is not None:
        short = has_short_ways(fitted)
        for feature, rows, values in given.by_feature():
            if feature.name not in features:
                continue
            before, order = fitted.catalogue[feature.name], np.argsort(rows)
            if short and len(rows) == 1 and not before.finds_scale:
                fitted = with_feature(fitted, before, int(rows[0]), float(values[0]), None)
            else:
                fitted = fitted.observed(before, rows[order], values[order])
        return fitted
    every = list(features.values())
    for start in range(0, len(every), _FEATURES_AT_ONCE):
        fitted = fitted.adapted(every[start : start + _FEATURES_AT_ONCE])
    return fitted


_FEW_ROWS = 8  # rows that are described faster one by one


def apply(state: LiveState, delta: Delta, arrivals: Arrivals) -> LiveState:
    """Return the state after these changes; the given one stays as it is.

    Parameters
    ----------
    state : LiveState
        The state before.
    delta : Delta
        What changes.
    arrivals : callable
        Gives the observations that arrived of some features or rows, without what ``delta`` loses; asked
        only if something is lost.
    """
    again = Dirty()
    state = without_features(state, delta.lost_features, again)
    state = without_rows(state, delta.lost_rows, again)
    before = arrivals(sorted(again.features), sorted(again.rows | again.shown)) if again else []
    state = _restored(state, again, before)
    new = features_without_heads(state.base, delta.features) if delta.features else {}
    first = len(state.base.rows)
    fresh = {name: first + place for place, name in enumerate(delta.rows)}
    given = resolve_cells(state.base, fresh, new, delta.cells)
    state, renewed = with_rows(state, delta.rows, given, _ordered(state, again.rows, before, "row"))
    state, changed = with_features(
        state, given, new, renewed, _ordered(state, again.features, before, "feature")
    )
    dirty = {state.base.rows.position(name) for name in again.shown}
    state = _described(state, given, changed, dirty | {*fresh.values()})
    return replace(state, left_out=state.left_out + given.left_out)


def _restored(state: LiveState, again: Dirty, before: Sequence[Cell]) -> LiveState:
    """The state in which rows of the fitted model are as fitted again if nothing is left that arrived."""
    arrived = {cell.row for cell in before if cell.feature in state.base.catalogue}
    bare = sorted(state.base.rows.position(name) for name in again.shown - arrived)
    own = np.array([row for row in bare if row < state.own_rows], dtype=np.int64)
    if not len(own):
        return state
    again.shown -= {state.base.rows[row] for row in own.tolist()}
    return replace(
        state, shown=state.shown.with_roster(state.shown.roster.restored(own, state.origin.roster))
    )


def _ordered(
    state: LiveState, names: set[str], before: Sequence[Cell], noun: str
) -> dict[int, NDArray[np.int64]]:
    """What is kept of rows or features that must be made anew: positions or numbers, by number."""
    base, found = state.base, {}
    for name in sorted(names):
        if noun == "feature":
            keys = [base.rows.position(each.row) for each in before if each.feature == name]
            found[base.catalogue.number(name)] = np.array(keys[: power_of_two(len(keys))], dtype=np.int64)
        else:
            seen = [each.feature for each in before if each.row == name and each.feature in base.catalogue]
            numbers = [number for number in map(base.catalogue.number, seen) if number < state.own_features]
            place = base.rows.position(name)
            found[place] = np.array(numbers[: power_of_two(len(numbers))], dtype=np.int64)
    return found


def _described(state: LiveState, given: ResolvedCells, changed: list[str], dirty: set[int]) -> LiveState:
    """The state with what is shown of rows that observed something, or were read by heads that changed."""
    roster, catalogue = state.shown.roster, state.base.catalogue
    numbers = state.numbers([feature.name for feature in given.features])
    numbers = numbers[given.places] if len(numbers) else np.zeros(0, np.int64)
    for name in changed:
        dirty.update(roster.tellers(catalogue.number(name)).tolist())
    dirty.update(np.unique(given.rows).tolist())
    if not dirty:
        return state
    rows = np.array(sorted(dirty), dtype=np.int64)
    known = RowCells.of([_observed(state, int(row)) for row in rows])
    cells = known.joined(np.searchsorted(rows, given.rows), numbers, given.values)
    if len(rows) <= _FEW_ROWS and has_short_ways(state.reading):
        for row, observations in zip(rows.tolist(), cells.observations(), strict=True):
            roster = roster.put_one(row, compute_row_state(state.reading, row, observations), observations)
        return replace(state, shown=state.shown.with_roster(roster))
    metadata = None if state.base.row_metadata is None else state.base.row_metadata.encoded[rows]
    states = compute_row_states(state.reading, cells, [state.base.rows[row] for row in rows], metadata)
    roster = roster.put(rows, states, cells.observations())
    return replace(state, shown=state.shown.with_roster(roster))


def _observed(state: LiveState, row: int) -> RowObservations:
    held = state.shown.roster.observations(row)
    if held is not None:
        return held
    return observations_of_row(state.origin, row) if row < state.own_rows else NOTHING


@dataclass(frozen=True)
class Snapshot:
    """What one answer is made from: it never changes.

    Attributes
    ----------
    state : LiveState
        The parts of the model.
    model : Headstart
        The same with all verbs that ask; nothing must be changed through it.
    identity : str
        Which fitted model it is.
    path : Path
        Its folder.
    """

    state: LiveState
    model: Headstart
    identity: str
    path: Path

    @property
    def shown(self) -> ModelState:
        """The model as it is shown."""
        return self.state.shown

    @classmethod
    def of(cls, state: LiveState, identity: str, path: Path) -> Snapshot:
        """A moment of a live model."""
        return cls(state, Headstart._holding(state.shown), identity, path)


class LiveModel:
    """The fitted model of a folder with everything that the store holds.

    Readers take ``snapshot`` once and wait for no one. ``lock`` is held by whoever publishes another one.

    Parameters
    ----------
    store : Store
        What arrived.
    path : Path
        The folder of the fitted model; it is only read.
    """

    def __init__(self, store: Store, path: Path) -> None:
        self.store = store
        self.lock = threading.RLock()
        self.snapshot = self._loaded(path)

    def _loaded(self, path: Path) -> Snapshot:
        """Load a model and take everything that is in the store."""
        start = time.monotonic()
        identity = model_digest(path)
        fitted = Headstart.load(path).fitted_
        if fitted.clock is not None:
            raise ModelFileError(
                f"{path} is a model whose observations age, which cannot be served yet; "
                "fit one without half_life"
            )
        state = LiveState.of(fitted)
        with self.store.reading() as connection, _in_bulk():
            state = self.rebuilt(state, connection)
        LOG.info("took %s and %d changes in %.1f s", path, state.number, time.monotonic() - start)
        if state.left_out:
            LOG.warning("%d observations of the store cannot be taken by %s", state.left_out, path)
        return Snapshot.of(state, identity, path)

    def rebuilt(self, state: LiveState, connection: Connection) -> LiveState:
        """The state of a model to which nothing has arrived, after everything in the store."""
        delta, number = read_all(connection, state.base.rows), read_last_number(connection)
        there = arrivals_from(connection)
        state = apply(state, Delta(delta.lost_features, delta.lost_rows), there)
        return replace(apply(state, fitting(state, delta), there), number=number)

    def caught_up(self, connection: Connection) -> LiveState:
        """The present state after all changes in the store, as this connection sees it."""
        state = self.snapshot.state
        number = read_last_number(connection)
        if number == state.number:
            return state
        delta = read_since(connection, state.number, state.base.rows)
        there = arrivals_from(connection)
        lost = apply(state, Delta(delta.lost_features, delta.lost_rows), there)
        return replace(apply(lost, fitting(lost, delta), there), number=number)

    def publish(self, state: LiveState) -> Snapshot:
        """Let all answers from now on be made from this state."""
        present = self.snapshot
        self.snapshot = Snapshot.of(state, present.identity, present.path)
        return self.snapshot

    def follow(self) -> bool:
        """Take what other workers wrote; return whether there was anything."""
        if self.store.last_number() == self.snapshot.state.number:
            return False
        with self.lock, self.store.reading() as connection:
            state = self.caught_up(connection)
            if state is self.snapshot.state:
                return False
            self.publish(state)
        return True

    def take_over(self, path: Path) -> Snapshot:
        """Serve another fitted model, with everything that arrived; answers never stop meanwhile."""
        fresh = self._loaded(path)  # takes long, without the lock
        with self.lock:
            present, self.snapshot = self.snapshot, fresh
            try:
                with self.store.reading() as connection:
                    self.publish(self.caught_up(connection))
            except BaseException:
                self.snapshot = present
                raise
        LOG.info("serving model %s of %s", fresh.identity, path)
        return self.snapshot


@contextmanager
def _in_bulk() -> Iterator[None]:
    """Make millions of objects, which all stay, without looking for garbage among them again and again.

    In blocks that stay in the cache a second thread costs more than it saves: twice the time on two cores.
    """
    before, threads = gc.isenabled(), torch.get_num_threads()
    gc.disable()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if before:
            gc.enable()


def arrivals_from(connection: Connection) -> Arrivals:
    """What arrived, as a connection sees it."""
    return lambda features, rows: read_cells(connection, features, rows)


def fitting(state: LiveState, delta: Delta) -> Delta:
    """What of a change a model can take: not what it knows already, and no metadata that it cannot read.

    A newly fitted model may know features and rows that were added before, and may lack others that have
    observations: a row that it lacks is added.
    """
    base, schema = state.base, state.base.schema
    columns = set() if schema is None else {column.name for column in schema.columns}
    kinds = {kind.type for kind in base.kinds}
    features = {}
    for name, given in delta.features.items():
        if name in base.catalogue:
            continue
        metadata = {key: value for key, value in (given["metadata"] or {}).items() if key in columns}
        features[name] = {"metadata": metadata or None, "kind": _possible(given["kind"], kinds)}
    rows = {
        name: metadata if base.row_metadata is not None else None
        for name, metadata in delta.rows.items()
        if name not in base.rows
    }
    known = base.rows
    missing = {row for row in {cell.row for cell in delta.cells} if row not in known and row not in rows}
    for cell in delta.cells if missing else []:  # in the order of arrival
        if cell.row in missing and (cell.feature in base.catalogue or cell.feature in features):
            rows.setdefault(cell.row, None)
    return Delta(features=features, rows=rows, cells=delta.cells)


def _possible(kind: str | None, types: set[KindType]) -> str | None:
    if kind is None:
        return None
    return kind if kind in ("real", "rating", "binary") or Kind.parse(kind).type in types else None
