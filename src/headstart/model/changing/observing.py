"""Observations that change features and rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headstart.core.states import RowStates
from headstart.errors import InputError, argument, listed, worded
from headstart.model.changing.single import takes_one, with_feature, with_row
from headstart.model.inputs.triples import Triples
from headstart.model.parts.describing import described, describes_by_any, observations_of_row
from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.row_cells import RowCells

# From what rows observed, their names and metadata, their states.
Describe = Callable[[RowCells, list[str], "NDArray[np.float32] | None"], RowStates]
Update = Literal["both", "features", "rows"]
UPDATES = ("both", "features", "rows")
_FEATURES_AT_ONCE = 1024


@dataclass(frozen=True)
class Observed:
    """What ``observe`` changed.

    Attributes
    ----------
    observations : int
        How many observations were taken.
    features, rows : tuple of str
        The features whose heads, and the rows whose states were computed anew.
    """

    observations: int
    features: tuple[str, ...]
    rows: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.observations} observations taken; {len(self.features)} features and {len(self.rows)} rows"
            " changed"
        )


def require_possible(fitted: Fitted, features: list[Feature], update: str) -> None:
    """Refuse what the parts of this model cannot do, and say why."""
    if update not in UPDATES:
        raise InputError(f"update must be one of {', '.join(UPDATES)}; got {update!r}")
    if update != "rows":
        for feature in features:
            if feature.fixed:
                raise InputError(
                    f"feature {feature.name!r} was trained into the backbone, whose heads are fixed with "
                    f"this adapter; fit with {argument('adapter', 'bayes')} to observe any feature further"
                    + (f", or give {argument('update', 'rows')}" if update == "both" else "")
                )
    if update != "features" and not describes_by_any(fitted):
        later = [feature.name for feature in features if not feature.in_backbone]
        if later:
            part = (
                f"the backbone {fitted.settings.backbone.name!r} reads the features of its table only"
                if fitted.adapter.gives_uncertainty
                else f"the adapter {fitted.settings.chosen_adapter.name!r} does not know how sure it is"
            )
            raise InputError(
                f"rows cannot be described by features added after fit ({listed(later, 3)}): {part}; give "
                f"{argument('update', 'features')}, or {worded('fit() again', 'use headstart refit')}"
            )


def observed(fitted: Fitted, given: Triples, update: str) -> tuple[Fitted, Observed]:
    """Return the model with these observations taken by rows, then by features, or by one of them.

    A row is read by the heads that its features have before the call; a feature by the states that its rows
    have after it.
    """
    rows = np.unique(given.rows) if update != "features" else given.rows[:0]
    features = given.features if update != "rows" else []
    if takes_one(fitted, given):
        row, value = int(given.rows[0]), float(given.values[0])
        time = None if given.times is None else float(given.times[0])
        if len(rows):
            fitted = with_row(fitted, row, int(given.numbers[0]), value, time)
        if features:
            fitted = with_feature(fitted, features[0], row, value, time)
    else:
        if len(rows):
            fitted = rows_observed(fitted, given, functools.partial(described, fitted))
        if features:
            fitted = with_features(fitted, observed_features(fitted, given))
    names = tuple(fitted.rows[row] for row in rows)
    return fitted, Observed(len(given.values), tuple(feature.name for feature in features), names)


def rows_observed(fitted: Fitted, given: Triples, described: Describe) -> Fitted:
    """Return the model in which rows have also observed this, with the states that ``described`` gives."""
    rows = np.unique(given.rows)
    known = RowCells.of([observations_of_row(fitted, int(row)) for row in rows])
    cells = known.joined(np.searchsorted(rows, given.rows), given.numbers, given.values, given.times)
    metadata = None if fitted.row_metadata is None else fitted.row_metadata.encoded[rows]
    states = described(cells, [fitted.rows[row] for row in rows], metadata)
    return replace(fitted, roster=fitted.roster.put(rows, states, cells.observations(fitted.now)))


def observed_features(fitted: Fitted, given: Triples) -> list[Feature]:
    """The features with these observations, whose rows are in order, taken too; without heads yet."""
    order = np.argsort(given.places, kind="stable")  # rows stay in order within a feature
    ends = np.cumsum(np.bincount(given.places, minlength=len(given.features)))[:-1]
    rows, values = np.split(given.rows[order], ends), np.split(given.values[order], ends)
    times = [None] * len(rows) if given.times is None else np.split(given.times[order], ends)
    every = zip(given.features, rows, values, times, strict=True)
    return [fitted.with_own_units(feature.observed(own, seen, when)) for feature, own, seen, when in every]


def with_features(fitted: Fitted, features: list[Feature]) -> Fitted:
    """Return the model with the heads of these features computed from all that they observed."""
    if len(features) == 1:
        return fitted.refined(features[0])
    for start in range(0, len(features), _FEATURES_AT_ONCE):
        fitted = fitted.adapted(features[start : start + _FEATURES_AT_ONCE])
    return fitted
