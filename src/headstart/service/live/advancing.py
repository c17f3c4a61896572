"""From one moment of a live model to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headstart.model.changing.single import described_one, has_short_ways
from headstart.model.parts.describing import described, observations_of_row
from headstart.model.parts.roster import RowObservations
from headstart.model.parts.row_cells import RowCells
from headstart.service.live.arriving import bare_features
from headstart.service.live.delta import Arrivals, Cell, Delta
from headstart.service.live.features import with_features
from headstart.service.live.losing import Again, without_features, without_rows
from headstart.service.live.rows import with_rows
from headstart.service.live.state import NOTHING, LiveState, power_of_two
from headstart.service.live.taking import Taken, taken

_FEW = 8  # rows that are described faster one by one


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
    new = bare_features(state.base, delta.features) if delta.features else {}
    first = len(state.base.rows)
    fresh = {name: first + place for place, name in enumerate(delta.rows)}
    given = taken(state.base, fresh, new, delta.cells)
    state, renewed = with_rows(state, delta.rows, given, _ordered(state, again.rows, before, "row"))
    state, changed = with_features(
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
    if len(rows) <= _FEW and has_short_ways(state.reading):
        for row, observations in zip(rows.tolist(), cells.observations(), strict=True):
            roster = roster.put_one(row, described_one(state.reading, row, observations), observations)
        return replace(state, shown=state.shown.with_roster(roster))
    metadata = None if state.base.row_metadata is None else state.base.row_metadata.encoded[rows]
    states = described(state.reading, cells, [state.base.rows[row] for row in rows], metadata)
    roster = roster.put(rows, states, cells.observations())
    return replace(state, shown=state.shown.with_roster(roster))


def _observed(state: LiveState, row: int) -> RowObservations:
    held = state.shown.roster.observations(row)
    if held is not None:
        return held
    return observations_of_row(state.origin, row) if row < state.own_rows else NOTHING
