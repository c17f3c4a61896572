"""From one moment of a live model to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.model.describing import described, observations_of_row
from headstart.model.feature import Feature
from headstart.model.fitted import Fitted
from headstart.model.intake import new_features
from headstart.model.roster import RowObservations
from headstart.model.row_cells import RowCells
from headstart.model.row_metadata import encoded_rows
from headstart.service.live.delta import Arrivals, Cell, Delta
from headstart.service.live.losing import Again, without_features, without_rows
from headstart.service.live.state import NOTHING, LiveState, kept_keys, power_of_two
from headstart.service.live.taking import Taken, taken

_FEATURES_AT_ONCE = 8192
_FEW = 8  # features whose kept sums are worth more than one pass for all


def advanced(state: LiveState, delta: Delta, arrivals: Arrivals) -> LiveState:
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
    again = Again()
    state = without_features(state, delta.lost_features, again)
    state = without_rows(state, delta.lost_rows, again)
    before = arrivals(sorted(again.features), sorted(again.rows | again.shown)) if again else []
    state = _restored(state, again, before)
    new = {feature.name: feature for feature in new_features(state.base, dict(delta.features))}
    first = len(state.base.rows)
    fresh = {name: first + place for place, name in enumerate(delta.rows)}
    given = taken(state.base, fresh, new, delta.cells)
    state, renewed = _with_rows(state, delta.rows, given, _ordered(state, again.rows, before, "row"))
    state, changed = _with_features(
        state, given, new, renewed, _ordered(state, again.features, before, "feature")
    )
    dirty = {state.base.rows.position(name) for name in again.shown}
    state = _described(state, given, changed, dirty | {*fresh.values()})
    return replace(state, left_out=state.left_out + given.left_out)


def _restored(state: LiveState, again: Again, before: Sequence[Cell]) -> LiveState:
    """The state in which rows of the fitted model are as fitted again if nothing is left that arrived."""
    arrived = {cell.row for cell in before if cell.feature in state.base.catalogue}
    bare = sorted(state.base.rows.position(name) for name in again.shown - arrived)
    own = np.array([row for row in bare if row < state.own_rows], dtype=np.int64)
    if not len(own):
        return state
    again.shown -= {state.base.rows[row] for row in own.tolist()}
    return replace(state, shown=state.shown.with_roster(state.shown.roster.restored(own, state.origin.roster)))


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
            told = [each.feature for each in before if each.row == name and each.feature in base.catalogue]
            numbers = [number for number in map(base.catalogue.number, told) if number < state.own_features]
            place = base.rows.position(name)
            found[place] = np.array(numbers[: power_of_two(len(numbers))], dtype=np.int64)
    return found


def _with_rows(
    state: LiveState,
    new: Mapping[str, Mapping[str, Any] | None],
    given: Taken,
    again: Mapping[int, NDArray[np.int64]],
) -> tuple[LiveState, list[int]]:
    """The state with new rows, and with what is kept of added rows; the rows whose kept states changed."""
    base, own = state.base, state.own_features
    catalogue, first = base.catalogue, len(base.rows)
    fitted = np.array(
        [
            catalogue.number(feature.name) if feature.name in catalogue else own
            for feature in given.features
        ],
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
        told = RowCells.of([everything]).joined(np.zeros(len(part), np.int64), numbers[part], values[part])
        among = np.isin(told.numbers, keys)
        kept[row] = RowObservations(told.numbers[among], told.values[among])
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


def _put(state: LiveState, base: Fitted, rows: list[int], kept: list[RowObservations]) -> Any:
    places = np.array(rows, dtype=np.int64)
    metadata = None if base.row_metadata is None else base.row_metadata.encoded[places]
    names = [base.rows[row] for row in rows]
    states = described(state.reading, RowCells.of(kept), names, metadata)
    return base.roster.put(places, states, kept)


def _added(
    state: LiveState,
    base: Fitted,
    new: Mapping[str, Mapping[str, Any] | None],
    kept: list[RowObservations],
) -> Fitted:
    names = list(new)
    given = {name: metadata for name, metadata in new.items() if metadata}
    records, encoded = encoded_rows(base.row_metadata, names, given or None)
    held = base.row_metadata
    states = described(state.reading, RowCells.of(kept), names, None if held is None else encoded)
    return replace(
        base,
        roster=base.roster.added(names, states, kept),
        row_metadata=None if held is None else held.added(records, encoded),
    )


def _with_features(
    state: LiveState,
    given: Taken,
    new: Mapping[str, Feature],
    renewed: list[int],
    again: Mapping[int, NDArray[np.int64]],
) -> tuple[LiveState, list[str]]:
    """The state with new features and observations; the features whose kept heads changed."""
    base, reading = state.base, state.reading
    every: dict[str, Feature] = dict(new)
    kept: dict[str, Feature] = {}
    told = 0
    for feature, rows, values in given.by_feature():
        own = feature.name not in state.origin.catalogue
        if feature.fixed or not len(rows):
            continue
        told += 1
        every[feature.name] = base.with_own_units(feature.observed(rows, values))
        if own:
            held = reading.catalogue[feature.name] if feature.name in reading.catalogue else feature
            keys = kept_keys(feature.rows, held.rows, rows)
            if keys is not None or np.isin(rows, held.rows).any():
                kept[feature.name] = every[feature.name].among(held.rows if keys is None else keys)
    listing = base.catalogue.listing if renewed else None
    for row in renewed if listing is not None else []:
        for slot in listing.observed_by(row).tolist():
            feature = listing.features[slot]
            every.setdefault(feature.name, feature)
            if feature.name not in state.origin.catalogue:
                held = reading.catalogue[feature.name]
                if held.holds(row):
                    kept.setdefault(feature.name, every[feature.name].among(held.rows))
    for name in (name for name in reading.catalogue if again and reading.catalogue.number(name) in again):
        feature = every.get(name) or base.catalogue[name]
        kept[name] = feature.among(again[reading.catalogue.number(name)])
    for name, feature in new.items():
        kept.setdefault(name, feature)
    base = _headed(base, every, given if told == len(every) <= _FEW and not renewed else None)
    state = state.with_base(base)
    units = {name: base.with_own_units(feature) for name, feature in kept.items()}
    # New features come first and in one order, so that they have the same numbers in both catalogues.
    ordered = {name: units[name] for name in [*new, *(name for name in units if name not in new)]}
    return replace(state, reading=_headed(state.reading, ordered, None)), list(ordered)


def _headed(fitted: Fitted, features: Mapping[str, Feature], given: Taken | None) -> Fitted:
    """The model with the heads of these features; from kept sums if ``given`` says what is new in each."""
    if given is not None:
        for feature, rows, values in given.by_feature():
            if feature.name in fitted.catalogue and feature.name in features:
                order = np.argsort(rows)
                fitted = fitted.observed(fitted.catalogue[feature.name], rows[order], values[order])
            elif feature.name in features:
                fitted = fitted.adapted([features[feature.name]])
        return fitted
    every = list(features.values())
    for start in range(0, len(every), _FEATURES_AT_ONCE):
        fitted = fitted.adapted(every[start : start + _FEATURES_AT_ONCE])
    return fitted


def _described(state: LiveState, given: Taken, changed: list[str], dirty: set[int]) -> LiveState:
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
    metadata = None if state.base.row_metadata is None else state.base.row_metadata.encoded[rows]
    states = described(state.reading, cells, [state.base.rows[row] for row in rows], metadata)
    roster = roster.put(rows, states, cells.observations())
    return replace(state, shown=state.shown.with_roster(roster))


def _observed(state: LiveState, row: int) -> RowObservations:
    held = state.shown.roster.observations(row)
    if held is not None:
        return held
    return observations_of_row(state.origin, row) if row < state.own_rows else NOTHING
