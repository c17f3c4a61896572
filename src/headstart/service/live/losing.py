"""Features that are removed from a live model, and rows that it forgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headstart.model.changing.population import without_row
from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted
from headstart.service.live.state import LiveState


@dataclass
class Again:
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


def without_features(state: LiveState, names: Sequence[str], again: Again) -> LiveState:
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


def without_rows(state: LiveState, names: Sequence[str], again: Again) -> LiveState:
    """Return the state without these rows; unknown ones are passed over."""
    for name in names:
        if name not in state.base.rows:
            continue
        row, listing = state.base.rows.position(name), state.base.catalogue.listing
        held = [listing.features[slot] for slot in listing.observed_by(row).tolist()]
        holders = [feature.name for feature in held if feature is not None]
        origin = without_row(state.origin, row) if row < state.own_rows else state.origin
        reading = _moved_up(state.reading, row)
        shown = state.shown.roster.without(row)
        state = replace(state, origin=origin, reading=reading, shown=state.shown.with_roster(shown))
        state = state.with_base(without_row(state.base, row))
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


def _moved_up(reading: Fitted, row: int) -> Fitted:
    """The kept heads, with contexts that point at a roster without this row; as fitted stays as fitted."""

    def moved(feature: Feature) -> Feature:
        rows, values = feature.rows, feature.values
        if feature.holds(row):
            at = int(np.searchsorted(rows, row))
            rows, values = np.delete(rows, at), np.delete(values, at)
        return replace(feature, rows=rows - (rows > row), values=values)

    after = {name: moved(feature) for name, feature in reading.catalogue.items()}
    return replace(reading, catalogue=reading.catalogue.with_contexts(after))
