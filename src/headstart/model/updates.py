"""Update a fitted model: observe values, add and remove rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.adapters.base import OneContext
from headstart.backbones.factorisation import Factorisation, OneRow, one_state
from headstart.core.predictive import predict_cells, predict_one
from headstart.core.types import OneHead, OneState, RowStates
from headstart.errors import InputError, NumericalError, for_user, join_names, option_name
from headstart.linalg.array_ops import Array, LinAlgError
from headstart.model.features import Feature, FeatureStore
from headstart.model.inputs import NewRows, Triples, rows_of
from headstart.model.row_states import (
    compute_row_states,
    observations_of_row,
    reads_any_feature,
    row_prior_of,
)
from headstart.model.rows import RowCells, RowObservations
from headstart.model.state import SURPRISING, Arrived, ModelState, excess_of, too_extreme
from headstart.table import Cells
from headstart.table.kinds import KindType
from headstart.training.calibration import USUAL_LEVEL


def takes_one(fitted: ModelState, given: Triples) -> bool:
    """Whether there is a short way for these observations: a single one, of parts that have such forms."""
    return len(given.values) == 1 and not given.features[0].finds_scale and has_short_ways(fitted)


def has_short_ways(fitted: ModelState) -> bool:
    """Whether the parts of a model have forms for a single row or feature."""
    adapter, backbone = fitted.adapter, fitted.backbone
    return (
        adapter.adapts_one
        and isinstance(backbone, Factorisation)
        and backbone.config.uncertain_rows
        and backbone.config.likelihood.rating_link == "identity"
    )


def modelled_kind(fitted: ModelState, feature: Feature) -> int:
    """The kind of a feature as the model takes it."""
    return fitted.kind_of(feature)


def head_of(fitted: ModelState, feature: Feature) -> OneHead:
    """The present head of a feature."""
    (slot,) = fitted.catalogue.slots([feature.name])
    return OneHead(*(part[slot] for part in fitted.catalogue.stored_arrays))


def with_row(fitted: ModelState, row: int, number: int, value: float, time: float | None) -> ModelState:
    """Return the model in which a row has also observed this value of the feature of this number."""

    return observe_row(fitted, row, number, value, time, lambda held: compute_row_state(fitted, row, held))


def compute_row_state(fitted: ModelState, row: int, observations: RowObservations) -> OneState:
    """``describing.compute_row_states`` of one row that observed this."""
    try:
        state = fitted.adapter.refine_one(_state(fitted, row, observations))
        finite = math.isfinite(sum(float(np.sum(part)) for part in state.parts()))
    except LinAlgError:
        finite = False
    if not finite:
        raise NumericalError(
            f"row {fitted.rows[row]!r}: its observations are so extreme that nothing can be computed "
            "from them; correct them or leave them out"
        )
    return state


def observe_row(
    fitted: ModelState,
    row: int,
    number: int,
    value: float,
    time: float | None,
    compute_row_states: Callable[[RowObservations], OneState],
) -> ModelState:
    """``observing.observe_rows`` of one observation."""
    held = observations_of_row(fitted, row)
    numbers, values = _inserted(held.numbers, held.values, number, value)
    observations = RowObservations(numbers, values, now=fitted.now)
    if held.times is not None and time is not None:
        observations = observations._replace(times=_inserted(held.numbers, held.times, number, time)[1])
    return replace(fitted, roster=fitted.roster.put_one(row, compute_row_states(observations), observations))


def _inserted(
    places: NDArray[np.int64], values: NDArray[np.float64], place: int, value: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ascending places and their values with one more, or with another value at a place that is there."""
    at = int(places.searchsorted(place))
    tail = at + 1 if at < len(places) and places[at] == place else at
    return (
        np.concatenate([places[:at], [place], places[tail:]]),
        np.concatenate([values[:at], [value], values[tail:]]),
    )


def _state(fitted: ModelState, row: int, observations: RowObservations) -> OneState:
    """The state of a row that observed this, as ``describing.compute_row_states``, before it is refined."""
    numbers, values = observations.numbers, observations.values
    slots, facts = fitted.catalogue.slots_by_number(numbers), fitted.catalogue.facts(numbers)
    there = slots >= 0
    if not there.all():  # of features that are no longer there
        numbers, values, slots, facts = numbers[there], values[there], slots[there], facts[there]
    scaled = ((values - facts[:, 1]) / facts[:, 2]).astype(np.float32).astype(np.float64)
    as_fitted = facts[:, 3] > 0
    own, others = np.flatnonzero(as_fitted), np.flatnonzero(~as_fitted)
    order = np.concatenate([own, others])
    fitted_heads = [part.numpy() for part in fitted.knowledge.heads.detach().parts()]
    weight, bias, covariance, noise = (
        _gathered(one, numbers[own], other, slots[others])
        for one, other in zip(fitted_heads, fitted.catalogue.stored_arrays, strict=True)
    )
    heads = np.concatenate([weight, bias[:, None]], axis=1, dtype=np.float64)
    kinds = facts[order, 0].astype(np.int64)
    if fitted.binary_as_numbers:
        kinds[kinds == KindType.BINARY] = KindType.RATING
    weights = None
    if fitted.clock is not None and observations.times is not None:
        weights = fitted.clock.weights(observations.times)[there][order]
    one = OneRow(scaled[order], heads, covariance, noise, kinds, weights)
    belief = row_prior_of(fitted, row)
    known = numbers[numbers < len(fitted.backbone_features)]
    return one_state(cast(Factorisation, fitted.backbone), one, known, belief)


def _gathered(one: Array, at: Array, other: Array, there: Array) -> Array:
    """Parts of two arrays, one after the other, without a copy between."""
    both = np.empty((len(at) + len(there), *one.shape[1:]), dtype=one.dtype)
    np.take(one, at, axis=0, out=both[: len(at)], mode="clip")
    np.take(other, there, axis=0, out=both[len(at) :], mode="clip")
    return both


def with_feature(
    fitted: ModelState, feature: Feature, row: int, value: float, time: float | None
) -> ModelState:
    """Return the model in which a feature is also observed at this row."""
    after = replace(feature.with_one(row, value, time), now=fitted.now)
    kind = modelled_kind(fitted, after)
    activation, *rest = fitted.roster.read_by_heads(after.rows)
    noise, variance = (*rest, None, None)[:2]
    scaled = ((after.values - after.kind.offset) / after.kind.span).astype(np.float32).astype(np.float64)
    weights = None if fitted.clock is None or after.times is None else fitted.clock.weights(after.times)
    context = OneContext(kind, scaled, activation, noise, variance, weights)
    before = head_of(fitted, feature)
    start = np.append(before.weight, before.bias).astype(np.float64)
    try:
        head, evidence = fitted.adapter.adapt_one(context, _prior_means(fitted, after), start)
        finite = math.isfinite(sum(float(np.sum(part)) for part in head))
    except (LinAlgError, ArithmeticError):
        finite = False
    if not finite:
        raise too_extreme(after)
    if kind != KindType.BINARY and _surprises(fitted, head, context, after.shots):
        return fitted.refined(after)  # the general way, in which intervals widen
    catalogue = fitted.catalogue.put_one(after, head, evidence, fitted.roster.epoch)
    return replace(fitted, catalogue=catalogue)


def _prior_means(fitted: ModelState, feature: Feature) -> Array:
    """The prior means of a feature's head with and without metadata: (2, size)."""
    if feature.in_backbone:
        number = fitted.catalogue.number(feature.name)  # its position in the backbone
        return fitted.adapter.one_prior_means(int(number))
    return fitted.adapter.one_prior_means(fitted.batch_of([feature.among(feature.rows[:0])]))


def _surprises(fitted: ModelState, head: OneHead, context: OneContext, shots: int) -> bool:
    """Whether an observation lies so far off that ``widening.widened`` would look closer."""
    factor = fitted.calibration.one_factor(shots, context.kind)
    distance = context.values - (context.activation @ head.weight + head.bias)
    noise = head.noise if context.noise is None else head.noise * context.noise
    return bool((distance**2 > (SURPRISING * factor) ** 2 * 0.999 * noise).any())  # rounding may differ


_SMALL_SAMPLE = 8.0


class Expected(NamedTuple):
    """What was expected of observations, on the models' scale, in an order of its own."""

    mean: NDArray[np.float64]  # (n,)
    std: NDArray[np.float64]  # (n,): calibrated
    binary: NDArray[np.bool_]  # (n,): whether the value has a logistic link
    order: NDArray[np.int64]  # (n,): of the observations


def describe_surprises(fitted: ModelState, given: Triples) -> tuple[str | None, Arrived]:
    """What to say of observations before they are made, if anything, and how well they were foreseen."""
    if not len(given.values):
        return None, fitted.arrived
    expected = one_expected(fitted, given) if takes_one(fitted, given) else _expected(fitted, given)
    lines = given.places[expected.order]
    kinds = [feature.kind for feature in given.features]
    offset, span = (np.array([getattr(kind, part) for kind in kinds])[lines] for part in ("offset", "span"))
    scaled = (given.values[expected.order] - offset) / span
    excess = excess_of(scaled, expected.mean, expected.std, expected.binary)
    arrived = fitted.arrived.joined(excess)
    if not (np.abs(scaled - expected.mean) > 0.99 * SURPRISING * expected.std).any():
        return None, arrived
    binary = np.array([kind.type == KindType.BINARY for kind in kinds], dtype=bool)
    said = None if binary.all() else _said(fitted, given, expected, offset, span, binary[lines])
    return said, arrived  # of binary ones nothing is said: 0 and 1 are always possible


def _said(
    fitted: ModelState,
    given: Triples,
    expected: Expected,
    offset: NDArray[np.float64],
    span: NDArray[np.float64],
    binary: NDArray[np.bool_],
) -> str | None:
    order = expected.order
    lines, values = given.places[order], given.values[order]
    mean, std = offset + span * expected.mean, span * expected.std
    distance = np.abs(values - mean) / np.maximum(std, np.finfo(float).tiny)
    shots = np.array([max(1, feature.shots) for feature in given.features])
    # Of few values the scale is uncertain, if it is found from them.
    finding = np.array([feature.finds_scale for feature in given.features])
    limit = (SURPRISING * (1 + _SMALL_SAMPLE / shots * finding))[lines]
    excess = np.where(binary, 0.0, distance / limit)
    worst = int(excess.argmax())
    if excess[worst] <= 1:
        return None
    count = int((excess > 1).sum())
    others = f", and {count - 1} more like it" if count > 1 else ""
    return (
        f"feature {given.features[lines[worst]].name!r}: the value {values[worst]:g} at row "
        f"{fitted.rows[given.rows[order][worst]]!r} lies {distance[worst]:.3g} standard deviations from what "
        f"was expected ({mean[worst]:.4g} ± {std[worst]:.2g}){others}; taken all the same: if it is a "
        "mistake, observe the right value"
    )


@torch.no_grad()
def _expected(fitted: ModelState, given: Triples) -> Expected:
    features, heads = fitted.catalogue.take([feature.name for feature in given.features])
    kinds = fitted.kinds_of(features)
    rows, inverse = np.unique(given.rows, return_inverse=True)
    order = np.argsort(given.places * len(rows) + inverse)
    cells = Cells.from_pairs(
        torch.from_numpy(given.places),
        torch.from_numpy(inverse),
        torch.from_numpy(given.values),
        len(features),
        len(rows),
    )
    predictive = predict_cells(heads, fitted.roster.take(rows), cells, kinds, fitted.knowledge.likelihood)
    shots = torch.tensor([feature.shots for feature in features], dtype=torch.int64)
    factor = fitted.calibration.factor(shots, kinds)[:, USUAL_LEVEL][cells.lines]
    mean, std = predictive.mean.double().numpy(), (factor * predictive.std).double().numpy()
    return Expected(mean, std, (predictive.kinds == KindType.BINARY).numpy(), order)


def one_expected(fitted: ModelState, given: Triples) -> Expected:
    """The same of a single observation."""
    feature, kind = given.features[0], modelled_kind(fitted, given.features[0])
    activation, *rest = fitted.roster.read_by_heads(given.rows)
    noise, variance = (*(part[0] for part in rest), None, None)[:2]
    state = OneState(activation[:0], activation[:0], activation[0], noise, variance)
    binary = kind == KindType.BINARY
    mean, std = predict_one(head_of(fitted, feature), state, binary=binary)
    factor = fitted.calibration.one_factor(feature.shots, kind)
    return Expected(np.array([mean]), np.array([factor * std]), np.array([binary]), np.zeros(1, np.int64))


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


def require_possible(fitted: ModelState, features: list[Feature], update: str) -> None:
    """Refuse what the parts of this model cannot do, and say why."""
    if update not in UPDATES:
        raise InputError(f"update must be one of {', '.join(UPDATES)}; got {update!r}")
    if update != "rows":
        for feature in features:
            if feature.fixed:
                raise InputError(
                    f"feature {feature.name!r} was trained into the backbone, whose heads are fixed with "
                    f"this adapter; fit with {option_name('adapter', 'bayes')} to observe any feature further"
                    + (f", or give {option_name('update', 'rows')}" if update == "both" else "")
                )
    if update != "features" and not reads_any_feature(fitted):
        later = [feature.name for feature in features if not feature.in_backbone]
        if later:
            part = (
                f"the backbone {fitted.settings.backbone.name!r} reads the features of its table only"
                if fitted.adapter.gives_uncertainty
                else f"the adapter {fitted.settings.chosen_adapter.name!r} does not know how sure it is"
            )
            raise InputError(
                f"rows cannot be described by features added after fit ({join_names(later, 3)}): {part}; "
                "give "
                f"{option_name('update', 'features')}, or {for_user('fit() again', 'use headstart refit')}"
            )


def observe_triples(fitted: ModelState, given: Triples, update: str) -> tuple[ModelState, Observed]:
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
            fitted = observe_rows(fitted, given, functools.partial(compute_row_states, fitted))
        if features:
            fitted = with_features(fitted, observe_features(fitted, given))
    names = tuple(fitted.rows[row] for row in rows)
    return fitted, Observed(len(given.values), tuple(feature.name for feature in features), names)


def observe_rows(fitted: ModelState, given: Triples, compute_row_states: Describe) -> ModelState:
    """Return the model in which rows have also observed these values, with new states."""
    rows = np.unique(given.rows)
    known = RowCells.of([observations_of_row(fitted, int(row)) for row in rows])
    cells = known.joined(np.searchsorted(rows, given.rows), given.numbers, given.values, given.times)
    metadata = None if fitted.row_metadata is None else fitted.row_metadata.encoded[rows]
    states = compute_row_states(cells, [fitted.rows[row] for row in rows], metadata)
    return replace(fitted, roster=fitted.roster.put(rows, states, cells.observations(fitted.now)))


def observe_features(fitted: ModelState, given: Triples) -> list[Feature]:
    """The features with these observations, whose rows are in order, taken too; without heads yet."""
    order = np.argsort(given.places, kind="stable")  # rows stay in order within a feature
    ends = np.cumsum(np.bincount(given.places, minlength=len(given.features)))[:-1]
    rows, values = np.split(given.rows[order], ends), np.split(given.values[order], ends)
    times = [None] * len(rows) if given.times is None else np.split(given.times[order], ends)
    every = zip(given.features, rows, values, times, strict=True)
    return [fitted.with_own_units(feature.observed(own, seen, when)) for feature, own, seen, when in every]


def with_features(fitted: ModelState, features: list[Feature]) -> ModelState:
    """Return the model with the heads of these features computed from all that they observed."""
    if len(features) == 1:
        return fitted.refined(features[0])
    for start in range(0, len(features), _FEATURES_AT_ONCE):
        fitted = fitted.adapted(features[start : start + _FEATURES_AT_ONCE])
    return fitted


class Taken(NamedTuple):
    """The model after observations, what changed in it, and what is to be said of them, if anything."""

    fitted: ModelState
    said: Observed
    surprising: str | None


def take_observations(fitted: ModelState, given: Triples, update: str, *, one: bool) -> Taken:
    """Take observations that were checked; ``one`` says that they were given as those of one feature."""
    before = fitted
    if fitted.clock is not None:
        fitted = replace(fitted, clock=fitted.clock.moved(given.times))
    if one and update == "features":
        (feature,) = given.features
        after = fitted.observed(feature, given.rows, given.values, given.times)
        said = Observed(len(given.rows), (feature.name,), ())
    else:
        after, said = observe_triples(fitted, given, update)
    surprising, arrived = describe_surprises(before, given)
    return Taken(replace(after, arrived=arrived), said, surprising)


def add_rows(fitted: ModelState, new: NewRows) -> ModelState:
    """Return the model with new rows; their observations also refine the features if they teach."""
    cells = rows_of(fitted, new.given)
    if fitted.clock is not None:
        cells = cells._replace(times=fitted.clock.times_now(len(cells.values)))
    by_number = fitted.catalogue.by_number() if new.teach else {}
    features = [by_number[number] for number in np.unique(cells.numbers).tolist()] if new.teach else []
    if new.teach:
        require_possible(fitted, features, "both")
    held = fitted.row_metadata
    states = compute_row_states(fitted, cells, new.names, None if held is None else new.encoded)
    first = len(fitted.rows)
    fitted = replace(
        fitted,
        roster=fitted.roster.added(new.names, states, cells.observations(fitted.now)),
        row_metadata=None if held is None else held.added(new.records, new.encoded),
    )
    if not features:
        return fitted
    rows = first + np.repeat(np.arange(len(new.names)), cells.counts)
    _, places = np.unique(cells.numbers, return_inverse=True)
    take_observations = Triples(rows, features, places, cells.numbers, cells.values, cells.times)
    return with_features(fitted, observe_features(fitted, take_observations))


def remove_row(fitted: ModelState, row: int) -> ModelState:
    """Return the model without a row and without what it observed."""
    fitted_on = row < len(fitted.knowledge.cells)
    fixed = next((feature for feature in fitted.catalogue.values() if feature.fixed), None)
    if fitted_on and fixed is not None:
        raise InputError(
            f"row {fitted.rows[row]!r} cannot be taken out of the features it was fitted with: heads such as "
            f"that of {fixed.name!r} are fixed with this adapter; fit with "
            f"{option_name('adapter', 'bayes')}, "
            "or fit again without the row"
        )
    features = list(fitted.catalogue.values())
    holding = np.array([feature.holds(row) for feature in features], dtype=bool)
    catalogue = _moved_up(fitted, features, row)
    knowledge, adapter, clock = fitted.knowledge, fitted.adapter, fitted.clock
    if fitted_on:
        if clock is not None:
            held_by = slice(int(knowledge.cells.indptr[row]), int(knowledge.cells.indptr[row + 1]))
            clock = replace(clock, table=np.delete(clock.table, held_by))
        kept = torch.from_numpy(np.delete(np.arange(len(knowledge.cells)), row))
        knowledge = replace(knowledge, cells=knowledge.cells.take(kept), states=knowledge.states.take(kept))
        adapter = copy(adapter)
        adapter.knowledge = knowledge
    held = fitted.row_metadata
    after = replace(
        fitted,
        roster=fitted.roster.without(row),
        catalogue=catalogue,
        knowledge=knowledge,
        adapter=adapter,
        clock=clock,
        row_metadata=None if held is None else held.without(row),
    )
    changed = [after.catalogue[feature.name] for feature, held in zip(features, holding, strict=True) if held]
    return with_features(after, [after.with_own_units(feature) for feature in changed])


def _moved_up(fitted: ModelState, features: list[Feature], row: int) -> FeatureStore:
    """The catalogue whose contexts are those of a roster without this row."""
    by_feature = fitted.knowledge.cells.transpose()
    after = {}
    for feature in features:
        if feature.holds(row):
            feature = feature.among(feature.rows[feature.rows != row])
            if feature.in_backbone and row >= by_feature.width:  # perhaps it is again as it was fitted
                position = fitted.backbone_features.position(feature.name)
                held = slice(int(by_feature.indptr[position]), int(by_feature.indptr[position + 1]))
                scaled = (feature.values - feature.kind.offset) / feature.kind.span
                same = np.array_equal(feature.rows, by_feature.index[held].numpy()) and np.allclose(
                    scaled, by_feature.values[held].numpy(), rtol=1e-6, atol=1e-6
                )
                feature = replace(feature, observed_since=not same)
        after[feature.name] = replace(feature, rows=feature.rows - (feature.rows > row))
    return fitted.catalogue.with_contexts(after)
