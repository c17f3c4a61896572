"""Predict cells of a model, in the data's own units.

``predict_features`` predicts all cells of some rows and features, ``predict_pairs`` chosen cells, and
``predict_one_cell`` one cell without the overhead of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.clicks import click_log_odds, is_click
from headstart.core.devices import move
from headstart.core.likelihood import binary_logit
from headstart.core.predictive import predict_cell, predict_cells, predict_grid
from headstart.core.types import OneHead, RowStates
from headstart.errors import InputError
from headstart.linalg.array_ops import logistic
from headstart.linalg.packed import packed_size
from headstart.model.features import Feature, FeatureListing
from headstart.model.levels import (
    category_columns,
    columns_of,
    complete_categories,
    is_level,
    normalise,
    owner_of,
)
from headstart.model.local import has_local_part, local_part, row_residuals
from headstart.model.prediction import (
    Numbers,
    ObservedValues,
    Prediction,
    at_level,
    binary_ends,
    interval,
    interval_ends,
    kind_arrays,
    normal_half_width,
)
from headstart.model.state import ModelState
from headstart.table import Cells, Names
from headstart.table.kinds import Kind, Kinds, KindType, split_column
from headstart.table.margins import Category, Ordinal
from headstart.table.names import as_name
from headstart.training.calibration import USUAL_LEVEL

_ROWS_AT_ONCE = 1024  # rows whose cells are computed together, which bounds the memory

_CELLS_AT_ONCE = 2**21  # cells that are computed together, which bounds the memory

_HEADS_AT_ONCE = 128  # heads whose cells are computed together, which bounds the memory

MAX_CELLS = 50_000_000  # of one prediction, which has two numbers per cell in memory

CPU = torch.device("cpu")


# -- calibration and units, elementwise: for arrays of cells and for the numbers of a single cell -----


def _to_units(mean: Any, std: Any, factor: Any, kind: Any) -> tuple[Any, Any]:
    """Calibrate a Gaussian prediction and convert it to numbers of the kind; see ``Margin``.

    ``factor`` is the calibration factor of the standard deviation; ``kind`` has offset, span, low and high.
    """
    std = _round_to_single(factor * _round_to_single(std)) * kind.span
    return np.minimum(np.maximum(_round_to_single(mean) * kind.span + kind.offset, kind.low), kind.high), std


def _calibrate_probability(
    prediction: Any, std: Any, slope: Any, shift: Any, edge: float, spread: float | None
) -> tuple[Any, Any]:
    """Return the calibrated probability of 1, and the standard deviation of the value."""
    logit = binary_logit(_round_to_single(prediction), _round_to_single(std), edge, spread) * slope + shift
    mean = logistic(logit)
    return mean, np.sqrt(mean * (1 - mean))


def _calibrate_clicks(probability: Any, std: Any, slope: Any, shift: Any, least: Any) -> tuple[Any, Any]:
    """Return the calibrated probability of a click, and the standard deviation of this probability."""
    log_odds, steepness = click_log_odds(_round_to_single(probability), least)
    mean = np.exp(-np.logaddexp(0.0, -(log_odds * slope + shift)))
    return mean, _round_to_single(std) * slope * steepness * mean * (1 - mean)


def _round_to_single(numbers: Any) -> Any:
    """Round to single precision, so that all ways to compute a prediction give the same number."""
    return np.float32(numbers).astype(np.float64)


@dataclass(frozen=True)
class Units:
    """The data's own units of some features, and the calibration of their predictions.

    The methods take cells of any shape (…, n); ``which`` (n,) are the positions of their features.
    """

    kinds: Kinds
    factors: Numbers  # (features, levels): calibration factors of the widths of intervals
    slopes: Numbers  # (features,): of the calibration of the logits of a binary value or a click
    shifts: Numbers  # (features,): of the calibration of these logits
    least: Numbers  # (features,): probabilities of clicks, see ``click_log_odds``
    edge: float  # of the logits of binary values, see ``binary_logit``
    spread: float | None  # of binary values that are predicted as numbers

    @classmethod
    def of(cls, model: ModelState, features: FeatureListing) -> Units:
        """Return the units of ``features``."""
        calibration, kinds = model.calibration, features.kinds
        known = np.array([feature.in_backbone for feature in features.features], dtype=bool)
        table, at = calibration.table, calibration.at(features.shots, known)
        factors = table.factors[model.modelled_types(kinds.types), at]
        clicks = is_click(kinds.types)
        slopes = np.where(clicks, table.click_slopes[at], table.slopes[at])
        shifts = np.where(clicks, table.click_shifts[at], table.shifts[at])
        logit_terms = float(calibration.edge), calibration.spread
        return cls(kinds, factors, slopes, shifts, table.click_least[at], *logit_terms)

    @property
    def interval_factors(self) -> Numbers:
        """The factors relative to the factor of the usual level: (features, levels)."""
        return self.factors / self.factors[:, USUAL_LEVEL, None]

    def apply(self, mean: Tensor, std: Tensor, which: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
        """Calibrate means and standard deviations on the models' scale, and convert them to numbers."""
        scaled_mean, scaled_std = (part.float().cpu().numpy() for part in (mean, std))
        factor = self.factors[which, USUAL_LEVEL]
        means, stds = _to_units(scaled_mean, scaled_std, factor, kind_arrays(self.kinds, which))
        binary = self.kinds.types[which] == KindType.BINARY
        if binary.any():
            features = which[binary]
            means[..., binary], stds[..., binary] = _calibrate_probability(
                scaled_mean[..., binary],
                scaled_std[..., binary],
                self.slopes[features],
                self.shifts[features],
                self.edge,
                self.spread,
            )
        clicks = is_click(self.kinds.types[which])
        if clicks.any():
            features = which[clicks]
            means[..., clicks], stds[..., clicks] = _calibrate_clicks(
                scaled_mean[..., clicks],
                scaled_std[..., clicks],
                self.slopes[features],
                self.shifts[features],
                self.least[features],
            )
        return means, stds


class CellPrediction(NamedTuple):
    """The prediction of one cell, in the data's own units."""

    mean: float
    std: float
    low: float
    high: float


def predict_one_cell(model: ModelState, row: str, name: str, level: float) -> CellPrediction:
    """Predict the feature ``name`` at one row in numpy; equal to ``predict_features`` up to rounding.

    ``level`` is the probability that the interval contains the value.
    """
    feature, likelihood = model.feature_store[name], model.knowledge.likelihood
    position = model.rows.position(row)
    if (model.rows[position], owner_of(feature)) in model.not_applicable:
        return CellPrediction(np.nan, np.nan, np.nan, np.nan)
    kind = model.kind_of(feature)
    ordinal = isinstance(feature.kind.margin, Ordinal)
    if has_local_part(model, feature) or ordinal or is_level(feature):  # all levels are predicted
        states = model.row_store.take(np.array([position]))
        prediction = predict_features(model, Names([row], "row"), states, [name])
        return CellPrediction(
            *(float(part[0, 0]) for part in (prediction.mean, prediction.std, *prediction.interval(level)))
        )
    state = model.row_store.state(position)
    mean, std = predict_cell(_head_of(model, name, kind), state, kind, likelihood)
    calibration = model.calibration
    table = calibration.table
    at = int(calibration.at(np.asarray(feature.shots), np.asarray(feature.in_backbone)))
    factors = table.factors[kind, at]
    if feature.kind.type == KindType.BINARY:
        terms = table.slopes[at], table.shifts[at], float(calibration.edge), calibration.spread
        mean, std = _calibrate_probability(mean, std, *terms)
        low, high = binary_ends(mean, level)
    else:
        if is_click(kind):
            click_terms = table.click_slopes, table.click_shifts, table.click_least
            mean, std = _calibrate_clicks(mean, std, *(term[at] for term in click_terms))
        else:
            mean, std = _to_units(mean, std, factors[USUAL_LEVEL], feature.kind)
        width = float(at_level(factors, level)) / factors[USUAL_LEVEL]
        low, high = interval_ends(mean, _cached_half_width(level) * std * width, feature.kind)
        margin = feature.kind.margin
        low, high, (mean, std) = margin.to_value(low), margin.to_value(high), margin.moments(mean, std)
    return CellPrediction(float(mean), float(std), float(low), float(high))


def _head_of(model: ModelState, name: str, kind: int) -> OneHead:
    """Return the head of a feature; without a covariance, it is zero and the noise that of the likelihood."""
    (slot,) = model.feature_store.slots([name])
    parts = [part[slot] for part in model.feature_store.stored_arrays]
    if len(parts) == 4:
        return OneHead(*parts)
    size = len(parts[0]) + 1
    covariance = parts[2] if len(parts) > 2 else np.zeros(packed_size(size))
    noise = model.knowledge.likelihood.noise(torch.tensor(kind)).detach()
    return OneHead(parts[0], parts[1], covariance, float(noise))


_cached_half_width = lru_cache(maxsize=64)(normal_half_width)


def require_few_cells(model: ModelState, rows: Names, names: Sequence[Any] | None, draws: int = 1) -> None:
    """Raise an error if a prediction of features, or ``draws`` of it, would not fit into memory.

    ``names`` are the features; None for all.
    """
    features = len(model.feature_store) if names is None else len(columns_of(model, names))
    if len(rows) * features * draws > MAX_CELLS:
        times = f" × {draws} draws" if draws > 1 else ""
        raise InputError(
            f"{len(rows)} rows × {features} features{times} are too many for one prediction "
            f"(at most {MAX_CELLS:,} cells); ask for fewer rows or features at a time"
        )


def predict_features(
    model: ModelState,
    rows: Names,
    states: RowStates,
    names: Sequence[Any] | None = None,
    device: torch.device = CPU,
) -> Prediction:
    """Predict the features ``names``, by default all, at rows with these ``states``, on ``device``.

    A name ``FEATURE=LEVEL`` is the event that a category has this level: a binary feature.
    """
    columns = model.feature_store.listing(None if names is None else columns_of(model, names))
    if not any(isinstance(margin, Category) for margin in columns.kinds.margins):
        return _predict_columns(model, rows, states, columns, device)
    # The probabilities of the levels of a category add up to 1: all of them are computed.
    whole = model.feature_store.listing(complete_categories(model, columns.features))
    predicted = _predict_columns(model, rows, states, whole, device)
    if names is None:
        names = model.feature_store.feature_names
    return collapse_levels(predicted, [(name, category_columns(model, name)) for name in names])


def collapse_levels(columns: Prediction, features: Sequence[tuple[Any, list[str]]]) -> Prediction:
    """Return the prediction of features from that of all columns.

    ``features`` are the names, each with the columns of its levels; empty for a feature that is a column.
    """
    groups = [columns.features.positions(levels or [name]) for name, levels in features]
    parts = columns.take_features(np.array([group[0] for group in groups], dtype=np.int64))
    center, scale = parts.center.copy(), parts.scale.copy()
    chances, names, kinds = {}, list(parts.features), list(parts.kinds)
    for position, ((name, levels), group) in enumerate(zip(features, groups, strict=True)):
        if levels:
            chances[position] = columns.center[:, group]
            center[:, position] = scale[:, position] = np.nan
            names[position] = as_name(name, "feature")
            kinds[position] = Kind(Category(tuple(split_column(level)[1] for level in levels)))
        elif isinstance(kinds[position].margin, Category):
            kinds[position] = Kind.binary()
    return replace(
        parts,
        features=Names(names, "feature"),
        kinds=Kinds(kinds),
        center=center,
        scale=scale,
        chances=chances,
    )


@torch.no_grad()
def _predict_columns(
    model: ModelState, rows: Names, states: RowStates, features: FeatureListing, device: torch.device
) -> Prediction:
    """Predict columns of the model, of categories all levels."""
    units, likelihood = Units.of(model, features), model.knowledge.likelihood
    types = torch.from_numpy(model.modelled_types(units.kinds.types)).to(device)
    center, scale = np.empty((2, len(rows), len(features.names)))
    step = max(1, _CELLS_AT_ONCE // max(1, min(len(rows), _ROWS_AT_ONCE)))
    for first in range(0, len(features.names), step):
        which = np.arange(first, min(first + step, len(features.names)))
        columns, positions = slice(first, first + len(which)), None
        if device.type == "cpu":
            heads, positions = model.feature_store.heads_for_grid(features.slots[which])
        else:
            heads = move(model.feature_store.heads_at(features.slots[which]).dense(), device)
        whole_listing = len(which) == len(features.names)
        listed = features.features if whole_listing else features.features[columns]
        local = local_part(model, listed, features.slots[which])
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            block = move(states if len(rows) <= _ROWS_AT_ONCE else states.take(part), device)
            predictive = predict_grid(heads, block, types[columns], likelihood, positions=positions)
            if local is not None:
                predictive = local.shift(predictive, row_residuals(model, block))
            numbers = units.apply(predictive.mean, predictive.std, which)
            center[part, columns], scale[part, columns] = numbers
    if any(isinstance(margin, Category) for margin in features.kinds.margins):
        strength = float(model.calibration.level_strength)
        center = normalise(list(features.names), features.features, center, strength)
        binary = units.kinds.types == KindType.BINARY
        scale[:, binary] = np.sqrt(center[:, binary] * (1 - center[:, binary]))
    observed = ObservedValues(features.features, model.feature_store)
    return Prediction(rows, features.names, units.kinds, center, scale, units.interval_factors, observed)


@torch.no_grad()
def predict_pairs(
    model: ModelState,
    rows: NDArray[np.int64],
    names: Sequence[Any],
    which: NDArray[np.int64],
    level: float,
    device: torch.device = CPU,
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Predict pairs of a row and a feature, without the rest of the grid.

    Parameters
    ----------
    model : ModelState
        The model.
    rows : ndarray of shape (n,)
        The position of each pair's row.
    names : sequence of str
        Features of the model.
    which : ndarray of shape (n,)
        The position in ``names`` of each pair's feature.
    level : float
        The probability that an interval contains the value.
    device : torch.device
        The device for the computation.

    Returns
    -------
    mean, std, low, high : ndarray of shape (n,)
        The predictions and the ends of their intervals.
    """
    results = np.empty((4, len(rows)))
    order = np.argsort(which, kind="stable")
    starts = np.searchsorted(which[order], np.arange(len(names) + 1))
    for first in range(0, len(names), _HEADS_AT_ONCE):
        last = min(first + _HEADS_AT_ONCE, len(names))
        pairs = order[starts[first] : starts[last]]
        features = model.feature_store.listing(names[first:last])
        ends = starts[first : last + 1] - starts[first]
        results[:, pairs] = _predict_sorted_pairs(model, rows[pairs], features, ends, level, device)
    if len(model.not_applicable):
        owners = [owner_of(model.feature_store[name]) for name in names]
        positions = zip(rows.tolist(), which.tolist(), strict=True)
        left_out = [(model.rows[row], owners[at]) in model.not_applicable for row, at in positions]
        results[:, left_out] = np.nan
    mean, std, low, high = results
    return mean, std, low, high


def _predict_sorted_pairs(
    model: ModelState,
    rows: NDArray[np.int64],
    features: FeatureListing,
    ends: NDArray[np.int64],
    level: float,
    device: torch.device,
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Predict the pairs of ``features`` with ``rows`` (n,), which are sorted by feature.

    ``ends`` (features + 1,) say where the pairs of each feature start, and the last ones end.
    """
    column = np.repeat(np.arange(len(features.names)), np.diff(ends))
    unique_rows, inverse = np.unique(rows, return_inverse=True)
    indptr, index = (torch.from_numpy(part).to(device) for part in (ends, inverse))
    cells = Cells(indptr, index, torch.zeros(len(rows), device=device), len(unique_rows))
    heads = model.feature_store.heads_at(features.slots)
    heads = move(heads.to(torch.float64).dense(), device)
    states = move(model.row_store.take(unique_rows).to(torch.float64), device)
    types = torch.from_numpy(model.modelled_types(features.kinds.types)).to(device)
    predictive = predict_cells(heads, states, cells, types, model.knowledge.likelihood)
    local, residuals = local_part(model, features.features, features.slots), row_residuals(model, states)
    if local is not None and residuals is not None:
        predictive = local.shift_cells(predictive, cells, residuals)
    units = Units.of(model, features)
    center, scale = units.apply(predictive.mean, predictive.std, column)
    spans = [slice(*span) for span in pairwise(ends.tolist())]
    for span, feature in zip(spans, features.features, strict=True):
        if is_level(feature):  # its probability depends on those of all levels
            prediction = _predict_column(model, rows[span], feature)
            center[span], scale[span] = prediction.center[:, 0], prediction.scale[:, 0]
    mean, std = units.kinds.moments(center, scale, column)
    low, high = interval(center, scale, units.kinds, units.interval_factors, level, column)
    for position, (span, feature) in enumerate(zip(spans, features.features, strict=True)):
        if isinstance(feature.kind.margin, Ordinal):  # its intervals end at levels
            factors = units.interval_factors[position : position + 1]
            prediction = _as_column(feature, center[span], scale[span], factors)
            low[span], high[span] = (part[:, 0] for part in prediction.interval(level))
    return mean, std, low, high


def _predict_column(model: ModelState, rows: NDArray[np.int64], feature: Feature) -> Prediction:
    """Predict one feature at ``rows`` (n,), which can contain a row several times: (n, 1)."""
    return predict_features(model, _numbered_rows(len(rows)), model.row_store.take(rows), [feature.name])


def _as_column(feature: Feature, center: Numbers, scale: Numbers, factors: Numbers) -> Prediction:
    """Return the prediction of one feature with this ``center`` (n,) and ``scale`` (n,): (n, 1)."""
    return Prediction(
        _numbered_rows(len(center)),
        Names([feature.name], "feature"),
        Kinds([feature.kind]),
        center[:, None],
        scale[:, None],
        factors,
        [feature.values],
    )


def _numbered_rows(count: int) -> Names:
    """Return names for ``count`` predictions whose rows may be the same."""
    return Names([str(number) for number in range(count)], "row")


def leave_out(model: ModelState, prediction: Prediction) -> Prediction:
    """Return a prediction of rows of the model without its cells that are not applicable."""
    if not len(model.not_applicable):
        return prediction
    known = model.feature_store
    owners = [owner_of(known[name]) if name in known else name for name in prediction.features]
    mask = model.not_applicable.mask(list(prediction.rows), owners)
    if not mask.any():
        return prediction
    center, scale = (np.where(mask, np.nan, part) for part in (prediction.center, prediction.scale))
    chances = {
        position: np.where(mask[:, position, None], np.nan, part)
        for position, part in prediction.chances.items()
    }
    return replace(prediction, center=center, scale=scale, chances=chances, not_applicable=mask)
