"""Prepare features, histories and tables for lists, pages and exports."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from headstart.core.types import second_moment
from headstart.errors import InputError
from headstart.linalg.packed import weighted_traces
from headstart.model.prediction import Prediction, predict_features
from headstart.model.state import ModelState
from headstart.service.live_model import LiveState
from headstart.service.store import Store, added_features, read_cells
from headstart.table import Names
from headstart.table.kinds import KindType
from headstart.table.metadata import as_array

Sort = Literal["added", "name", "shots", "uncertainty"]

_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class FeatureIndex:
    """All features of one moment of a model, to be searched, sorted and paged.

    Parameters
    ----------
    fitted : Fitted
        The model.
    """

    fitted: ModelState

    @cached_property
    def names(self) -> list[str]:
        """The names, in the order in which the features came."""
        return list(self.fitted.catalogue)

    @cached_property
    def _folded(self) -> list[str]:
        return [name.casefold() for name in self.names]

    @cached_property
    def _slots(self) -> NDArray[np.int64]:
        listing = self.fitted.catalogue.listing
        return listing.present[np.argsort(listing.places[listing.present], kind="stable")]

    @cached_property
    def shots(self) -> NDArray[np.int64]:
        """How many observations each head rests on."""
        return self.fitted.catalogue.listing.shots[self._slots]

    @cached_property
    def uncertainty(self) -> NDArray[np.float64]:
        """``uncertainty_of`` of all features."""
        return self.uncertainty_of(np.arange(len(self.names)))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def place(self, name: str) -> int:
        """The place of a feature among all."""
        return self._places[name]

    def find(self, text: str, sort: Sort, *, descending: bool) -> NDArray[np.int64]:
        """The places of features whose names contain a text, sorted."""
        folded = text.casefold().strip()
        places = np.arange(len(self.names))
        if folded:
            places = np.array([i for i, name in enumerate(self._folded) if folded in name], dtype=np.int64)
        if sort == "name":
            order = np.array(
                sorted(range(len(places)), key=lambda i: self._folded[places[i]]), dtype=np.int64
            )
        elif sort == "added":
            order = np.arange(len(places))
        else:
            keys = self.shots[places] if sort == "shots" else np.nan_to_num(self.uncertainty[places])
            order = np.argsort(-keys if descending else keys, kind="stable")
            return places[order]
        return places[order[::-1] if descending else order]

    @torch.no_grad()
    def uncertainty_of(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """How unsure the heads are: the root of the mean variance of their outputs over all rows.

        In the data's own units, of a feature behind the logistic link in log-odds; NaN where heads have no
        covariance.
        """
        fitted, result = self.fitted, np.full(len(places), np.nan)
        slots = self._slots[places]
        if not len(places) or fitted.catalogue.stored(slice(0, 1)).covariance is None:
            return result
        moment = second_moment(fitted.states)
        for start in range(0, len(slots), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            packed = fitted.catalogue.stored(torch.from_numpy(slots[part])).packed_covariance
            # The mean of [d; 1]ᵀ·C·[d; 1] over rows is the trace of C with the rows' second moment.
            result[part] = weighted_traces(packed, moment.double()).clamp(min=0).sqrt().numpy()
        listing = fitted.catalogue.listing
        types = fitted.modelled(torch.from_numpy(listing.types[slots])).numpy()
        return result * np.where(types == KindType.BINARY, 1.0, listing.spans[slots])


class IndexCache:
    """Keeps the index of the last moment that was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: FeatureIndex | None = None

    def of(self, fitted: ModelState) -> FeatureIndex:
        """The index of this moment."""
        with self._lock:
            if self._held is None or self._held.fitted is not fitted:
                self._held = FeatureIndex(fitted)
            return self._held


_MOST_ROWS = 2000  # over which predictions are averaged or counted

_BINS = 30


def predicted_over_rows(state: LiveState, fitted: ModelState, name: str) -> Prediction:
    """Predict a feature for all rows, or for so many of them, evenly spaced.

    Parameters
    ----------
    state : LiveState
        The model; its rows are predicted.
    fitted : Fitted
        The model that has the feature.
    name : str
        The feature.

    Returns
    -------
    Prediction
        Of rows × 1.
    """
    count = len(fitted.rows)
    rows = np.unique(np.linspace(0, count - 1, min(count, _MOST_ROWS)).round().astype(np.int64))
    names = Names([fitted.rows[row] for row in rows.tolist()], "row")
    return predict_features(fitted, names, state.model.roster.take(rows), [name])


def distribution(state: LiveState, name: str) -> dict[str, Any]:
    """Count the predicted means of a feature of a live model over its rows.

    Returns
    -------
    dict
        The number of rows, the mean over them of the predicted means and of the standard deviations, the
        standard deviation of the means (``spread``), and the counts of the means between ``edges``.
    """
    predicted = predicted_over_rows(state, state.model, name)
    means = predicted.mean.ravel()
    kind = state.model.catalogue[name].kind
    # A kind with bounds has the same bins always, so that two distributions can be compared bin by bin.
    bounds = None if kind.low is None or kind.high is None else (float(kind.low), float(kind.high))
    counts, edges = np.histogram(np.clip(means, *bounds) if bounds else means, _BINS, bounds)
    return {
        "rows": len(means),
        "mean": float(means.mean()),
        "std": float(predicted.std.mean()),
        "spread": float(means.std()),
        "edges": edges.tolist(),
        "counts": counts.tolist(),
    }


_MOST_ADDED, _MOST_FITTED = 40, 12  # points of the history of an added and of a fitted feature


def history(state: LiveState, name: str, arrived: Sequence[str]) -> list[dict[str, Any]]:
    """The predictions of a feature after each number of observations, from the first on.

    Parameters
    ----------
    state : LiveState
        The model.
    name : str
        The feature.
    arrived : sequence of str
        The rows whose observations arrived, in order; all others of the feature come before them.

    Returns
    -------
    list of dict
        By number of shots: the mean over rows of the predicted means and of the standard deviations, and
        the standard deviation of the means, which says how much rows differ.
    """
    base = state.model
    feature = base.catalogue[name]
    if feature.fixed:
        raise InputError(f"feature {name!r} has a fixed head, whose observations are not kept")
    later = dict.fromkeys(base.rows.position(row) for row in arrived if row in base.rows)
    order = [row for row in later if feature.holds(row)]
    first = feature.rows[~np.isin(feature.rows, np.array(order, dtype=np.int64))]
    marks = _marks(len(order), _MOST_FITTED if feature.in_backbone else _MOST_ADDED)
    steps = [
        base.with_own_units(feature.among(np.union1d(first, np.array(order[:count], dtype=np.int64))))
        for count in marks
    ]
    if feature.in_backbone:  # such heads depend on which feature it is, so that one pass can make only one
        return [_point(state, base.adapted([step]), name, step.shots) for step in steps]
    # Each step is a feature of its own for a moment, so that one pass makes all heads.
    names = [f"step {place} of {name}" for place in range(len(steps))]
    made = base.adapted([replace(step, name=own) for own, step in zip(names, steps, strict=True)])
    return [_point(state, made, own, step.shots) for own, step in zip(names, steps, strict=True)]


def _marks(count: int, most: int) -> list[int]:
    """At most so many numbers from 0 to a count, dense at the beginning."""
    if count < most:
        return list(range(count + 1))
    marks = np.unique(np.round(np.geomspace(1, count, most - 1)).astype(int))
    return [0, *marks.tolist()]


def _point(state: LiveState, made: Any, name: str, shots: int) -> dict[str, Any]:
    predicted = predicted_over_rows(state, made, name)
    return {
        "shots": shots,
        "mean": float(predicted.mean.mean()),
        "std": float(predicted.std.mean()),
        "spread": float(predicted.mean.std()),
    }


def export(store: Store) -> tuple[pa.Table, pa.Table]:
    """The observations that arrived, in the long form, and the metadata of the features that were added.

    Parameters
    ----------
    store : Store
        What arrived.

    Returns
    -------
    observations : pyarrow.Table
        The columns row, feature and value: each cell once, with its latest value.
    metadata : pyarrow.Table
        One line per feature: its name, and a column for each that any of them has.
    """
    with store.reading() as connection:
        lines, features = read_cells(connection), added_features(connection)
    observations = pa.table(
        {
            "row": pa.array([line.row for line in lines], pa.string()),
            "feature": pa.array([line.feature for line in lines], pa.string()),
            "value": pa.array([line.value for line in lines], pa.float64()),
        }
    )
    records = [given["metadata"] or {} for given in features.values()]
    columns = list(dict.fromkeys(key for record in records for key in record))
    described = {name: as_array([record.get(name) for record in records]) for name in columns}
    return observations, pa.table({"feature": pa.array(list(features), pa.string()), **described})
