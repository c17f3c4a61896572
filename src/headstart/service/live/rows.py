"""What a live model keeps of rows that were added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.model.inputs.row_records import encoded_rows
from headstart.model.parts.describing import described
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.roster import Roster, RowObservations
from headstart.model.parts.row_cells import RowCells
from headstart.service.live.state import NOTHING, LiveState, kept_keys
from headstart.service.live.taking import Taken


def with_rows(
    state: LiveState,
    new: Mapping[str, Mapping[str, Any] | None],
    given: Taken,
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


def _put(state: LiveState, base: Fitted, rows: list[int], kept: list[RowObservations]) -> Roster:
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
