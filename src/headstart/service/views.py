"""Compute lists of features, distributions and histories of predictions, and exports, for the routes."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.linalg.packed import weighted_traces
from headstart.model.cell_predictions import predict_features
from headstart.model.levels import category_columns, owner_of
from headstart.model.prediction import Prediction
from headstart.model.scores import average_row
from headstart.model.state import ModelState
from headstart.model.titles import feature_titles
from headstart.service.live_model import LiveState
from headstart.service.store import Store, added_features, read_cells
from headstart.table import Names
from headstart.table.kinds import KindType
from headstart.table.metadata import as_array

Sort = Literal["added", "name", "title", "shots", "uncertainty"]

_HEADS_AT_ONCE = 1 << 14  # features whose uncertainty is computed together

_MAX_ROWS = 2000  # rows over which predictions are averaged or counted

_BINS = 30  # of histograms

_MAX_POINTS, _MAX_POINTS_IN_BACKBONE = 40, 12  # in the history of an added feature and of a fitted one


@dataclass(frozen=True)
class FeatureIndex:
    """An index of all features of a model state, to search and sort them.

    The position of a feature is its number in the order of addition.
    """

    model: ModelState

    @cached_property
    def names(self) -> list[str]:
        """The names of the features in the order of addition."""
        return self.model.feature_store.feature_names

    @cached_property
    def _folded(self) -> list[str]:
        return [name.casefold() for name in self.names]

    @cached_property
    def _searched(self) -> list[str]:
        """The texts that are searched: names, with titles if there are any."""
        titles = feature_titles(self.model, self.names)
        if titles is None:
            return self._folded
        return [f"{name}\n{title.casefold()}" for name, title in zip(self._folded, titles, strict=True)]

    @cached_property
    def _title_keys(self) -> list[str]:
        """The titles by which features are sorted; of a feature without one, its name."""
        titles = feature_titles(self.model, self.names) or [""] * len(self.names)
        return [title.casefold() or name for title, name in zip(titles, self._folded, strict=True)]

    @cached_property
    def _fitted_count(self) -> int:
        """The number of features of the fit, which come first."""
        features = self.model.feature_store.columns.features

        def is_added(slot: int) -> bool:
            feature = features[slot]
            return feature is not None and not feature.in_backbone

        return bisect_left(self._slots.tolist(), True, key=is_added)

    @cached_property
    def _slots(self) -> NDArray[np.int64]:
        """The slots of the features, of a category that of its first level."""
        columns = self.model.feature_store.columns
        slots = columns.used_slots[np.argsort(columns.positions[columns.used_slots], kind="stable")]
        if not columns.has_levels:
            return slots
        names = [category_columns(self.model, name)[:1] or [name] for name in self.names]
        return np.array(self.model.feature_store.slots(name for (name,) in names), dtype=np.int64)

    @cached_property
    def shots(self) -> NDArray[np.int64]:
        """The number of observations in the context of each feature."""
        return self.model.feature_store.columns.shots[self._slots]

    @cached_property
    def uncertainty(self) -> NDArray[np.float64]:
        """The uncertainty of all features; see ``uncertainty_of``."""
        return self.uncertainty_of(np.arange(len(self.names)))

    def find(self, text: str, sort: Sort, *, descending: bool) -> NDArray[np.int64]:
        """Return the positions of the features whose names or titles contain a text, sorted.

        The last added first are the features added since the fit, in reverse order, and then the features of
        the fit in their own order, because these were added together.
        """
        folded = text.casefold().strip()
        positions = np.arange(len(self.names))
        if folded:
            matching = [i for i, searched in enumerate(self._searched) if folded in searched]
            positions = np.array(matching, dtype=np.int64)
        if sort in ("name", "title"):
            keys = self._folded if sort == "name" else self._title_keys
            order = np.array(sorted(range(len(positions)), key=lambda i: keys[positions[i]]), dtype=np.int64)
        elif sort == "added":
            since = positions >= self._fitted_count
            return np.concatenate([positions[since][::-1], positions[~since]]) if descending else positions
        else:
            sizes = self.shots[positions] if sort == "shots" else np.nan_to_num(self.uncertainty[positions])
            order = np.argsort(-sizes if descending else sizes, kind="stable")
            return positions[order]
        return positions[order[::-1] if descending else order]

    def uncertainty_of(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the root of the mean variance over all rows of the heads' outputs: (positions,).

        It is in data units, or in log-odds behind a logistic link, of a category those of its first level;
        NaN if heads have no covariance.
        """
        return self._uncertainty_at(self._slots[positions])

    def uncertainty_of_one(self, name: str) -> float:
        """Return the uncertainty of one feature or level, as in ``uncertainty_of``."""
        columns = category_columns(self.model, name)[:1] or [name]
        return float(self._uncertainty_at(np.array(self.model.feature_store.slots(columns)))[0])

    @torch.no_grad()
    def _uncertainty_at(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the uncertainty of the heads in ``slots`` (n,): (n,)."""
        model, result = self.model, np.full(len(slots), np.nan)
        if not len(slots) or model.feature_store.heads_at(slice(0, 1)).covariance is None:
            return result
        moment = model.states.second_moment
        for start in range(0, len(slots), _HEADS_AT_ONCE):
            part = slice(start, start + _HEADS_AT_ONCE)
            packed = model.feature_store.heads_at(slots[part]).packed_covariance
            # The mean of [d; 1]ᵀ·C·[d; 1] over rows is the trace of C with the rows' second moment.
            result[part] = weighted_traces(packed, moment.double()).clamp(min=0).sqrt().numpy()
        columns = model.feature_store.columns
        types = model.modelled_types(columns.types[slots])
        return result * np.where(types == KindType.BINARY, 1.0, columns.spans[slots])

    def titles(self, positions: NDArray[np.int64]) -> tuple[str, ...] | None:
        """Return the titles of features, empty for a feature without one; None if none has one."""
        return feature_titles(self.model, [self.names[position] for position in positions.tolist()])

    def typical(self, positions: NDArray[np.int64]) -> list[dict[str, float | None]]:
        """Return the mean and the 90 % interval of features at an average row; None of categories."""
        listed = [self.names[position] for position in positions.tolist()]
        names = [name for name in listed if not category_columns(self.model, name)]
        intervals: dict[str, dict[str, float | None]] = {}
        if names:
            row = Names(["average"], "row")
            prediction = predict_features(self.model, row, average_row(self.model), names)
            low, high = prediction.interval(0.9)
            numbers = zip(names, prediction.mean[0].tolist(), low[0].tolist(), high[0].tolist(), strict=True)
            intervals = {
                name: {"mean": mean, "low": start, "high": end} for name, mean, start, end in numbers
            }
        return [intervals.get(name, {"mean": None, "low": None, "high": None}) for name in listed]


class IndexCache:
    """A cache of the index of one model state, the latest that was used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._index: FeatureIndex | None = None

    def of(self, model: ModelState) -> FeatureIndex:
        """Return the index of a model state."""
        with self._lock:
            if self._index is None or self._index.model is not model:
                self._index = FeatureIndex(model)
            return self._index


def predict_over_rows(state: LiveState, model: ModelState, name: str) -> Prediction:
    """Predict a feature for all rows, or for 2000 evenly spaced ones.

    Parameters
    ----------
    state : LiveState
        The model whose row states are used.
    model : ModelState
        The model that has the feature.
    name : str
        The feature.

    Returns
    -------
    Prediction
        Of shape (rows, 1).
    """
    count = len(model.rows)
    rows = np.unique(np.linspace(0, count - 1, min(count, _MAX_ROWS)).round().astype(np.int64))
    owner = owner_of(model.feature_store[name]) if name in model.feature_store else name
    excluded = model.not_applicable.rows_of(owner)
    rows = rows[[model.rows[row] not in excluded for row in rows.tolist()]] if excluded else rows
    names = Names([model.rows[row] for row in rows.tolist()], "row")
    return predict_features(model, names, state.model.row_store.take(rows), [name])


def distribution(state: LiveState, name: str) -> dict[str, Any]:
    """Return a histogram over rows of the predicted means of a feature.

    Returns
    -------
    dict
        The number of rows, the mean over them of the predicted means and of the standard deviations, the
        standard deviation of the means (``spread``), and the counts of the means between ``edges``. Of a
        category, the ``levels`` with the mean of their probabilities and the number of rows at which each is
        the most probable one.
    """
    prediction = predict_over_rows(state, state.model, name)
    if prediction.chances:
        chances, levels = prediction.chances[0], prediction.levels(name)
        return {
            "rows": len(chances),
            "levels": levels,
            "mean": chances.mean(axis=0).tolist(),
            "counts": np.bincount(chances.argmax(axis=1), minlength=len(levels)).tolist(),
        }
    means = prediction.mean.ravel()
    kind = prediction.kinds[0]
    # A kind with bounds always has the same bins, so that two histograms can be compared.
    bounds = (kind.low, kind.high) if np.isfinite([kind.low, kind.high]).all() else None
    counts, edges = np.histogram(np.clip(means, *bounds) if bounds else means, _BINS, bounds)
    return {
        "rows": len(means),
        "mean": float(means.mean()),
        "std": float(prediction.std.mean()),
        "spread": float(means.std()),
        "edges": edges.tolist(),
        "counts": counts.tolist(),
    }


def history(state: LiveState, name: str, arrived: Sequence[str]) -> list[dict[str, Any]]:
    """Return summaries of the predictions of a feature after each of its observations.

    Parameters
    ----------
    state : LiveState
        The model.
    name : str
        The feature.
    arrived : sequence of str
        The rows of the observations that arrived at the service, in order. All other observations of the
        feature are earlier.

    Returns
    -------
    list of dict
        By number of shots: the mean over rows of the predicted means and of the standard deviations, and
        the standard deviation over rows of the means (``spread``).
    """
    base = state.model
    feature = base.feature_store[name]
    if feature.fixed:
        raise InputError(f"feature {name!r} has a fixed head, whose observations are not kept")
    positions = dict.fromkeys(base.rows.position(row) for row in arrived if row in base.rows)
    later = [row for row in positions if feature.is_observed_by(row)]
    first = feature.rows[~np.isin(feature.rows, np.array(later, dtype=np.int64))]
    counts = _spaced_counts(len(later), _MAX_POINTS_IN_BACKBONE if feature.in_backbone else _MAX_POINTS)
    steps = [
        base.with_own_units(feature.restrict_to(np.union1d(first, np.array(later[:count], dtype=np.int64))))
        for count in counts
    ]
    if feature.in_backbone:  # its head depends on its position in the backbone: one pass makes one head
        return [_point(state, base.adapt([step]), name, step.shots) for step in steps]
    # Give each step a name of its own, so that one pass makes the heads of all steps.
    names = [f"step {number} of {name}" for number in range(len(steps))]
    adapted = base.adapt(
        [replace(step, name=step_name) for step_name, step in zip(names, steps, strict=True)]
    )
    return [
        _point(state, adapted, step_name, step.shots) for step_name, step in zip(names, steps, strict=True)
    ]


def _spaced_counts(count: int, limit: int) -> list[int]:
    """Return at most ``limit`` numbers from 0 to ``count``, spaced logarithmically."""
    if count < limit:
        return list(range(count + 1))
    counts = np.unique(np.round(np.geomspace(1, count, limit - 1)).astype(int))
    return [0, *counts.tolist()]


def _point(state: LiveState, model: ModelState, name: str, shots: int) -> dict[str, Any]:
    prediction = predict_over_rows(state, model, name)
    return {
        "shots": shots,
        "mean": float(prediction.mean.mean()),
        "std": float(prediction.std.mean()),
        "spread": float(prediction.mean.std()),
    }


def export(store: Store) -> tuple[pa.Table, pa.Table]:
    """Return the observations in a store, and the metadata of the features that were added through it.

    Parameters
    ----------
    store : Store
        The store of the service.

    Returns
    -------
    observations : pyarrow.Table
        The columns row, feature and value: each cell once, with its latest value.
    metadata : pyarrow.Table
        One line per feature: its name, and all metadata columns that occur.
    """
    with store.reading() as connection:
        cells, features = read_cells(connection), added_features(connection)
    observations = pa.table(
        {
            "row": pa.array([cell.row for cell in cells], pa.string()),
            "feature": pa.array([cell.feature for cell in cells], pa.string()),
            "value": pa.array([cell.value for cell in cells], pa.float64()),
        }
    )
    records = [feature["metadata"] or {} for feature in features.values()]
    names = list(dict.fromkeys(key for record in records for key in record))
    columns = {name: as_array([record.get(name) for record in records]) for name in names}
    return observations, pa.table({"feature": pa.array(list(features), pa.string()), **columns})
