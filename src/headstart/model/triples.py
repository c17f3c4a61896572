"""Read and check observations of rows and features: triples, answers of one row or feature, frames and files.

``Headstart.observe``, ``observe_feature`` and ``observe_row`` turn their arguments into ``Triples`` here,
before the model changes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.errors import (
    InputError,
    UnknownNameError,
    did_you_mean,
    for_user,
    join_names,
    option_name,
    with_advice,
)
from headstart.model.features import Feature
from headstart.model.inputs import (
    ObservationsLike,
    advise_on_value,
    answer_weights,
    answers_of,
    as_mapping,
    as_numbers,
    check_context,
    context_weights,
    require_digits,
    require_mapping,
    require_weights,
    row_positions,
    split_observations,
    weights_of,
)
from headstart.model.levels import category_columns, expand_triples, require_whole
from headstart.model.state import ModelState
from headstart.table import Kinds, Names
from headstart.table.kinds import LARGEST, is_value
from headstart.table.names import MAX_SUGGESTIONS, as_name
from headstart.table.reading import (
    Columns,
    Observations,
    choose_form,
    read_long,
    read_values,
    sort_observations,
)
from headstart.table.sources import TextFormat, as_number, open_source
from headstart.table.times import time_of, times_of


class Triples(NamedTuple):
    """Observations of rows and features of a model, each cell once, sorted by row and feature."""

    rows: NDArray[np.int64]  # (n,): positions in the model
    features: list[Feature]  # without repetition
    feature_positions: NDArray[np.int64]  # (n,): positions in ``features``
    numbers: NDArray[np.int64]  # (n,): numbers of the features in the feature store
    values: NDArray[np.float64]  # (n,): numbers of the kinds, see ``Margin``
    times: NDArray[np.float64] | None  # (n,): None in a model without a half-life
    order: NDArray[np.int64]  # (n,): the index of each observation in the argument of the caller
    weights: NDArray[np.float64] | None = None  # (n,): as given; None: all 1


def read_triples(
    model: ModelState,
    data: object,
    columns: Columns,
    text: TextFormat | None = None,
    time: object = None,
    weight: object = None,
) -> Triples:
    """Read and check observations of rows and features of the model.

    Parameters
    ----------
    model : ModelState
        The model.
    data : list of (row, feature, value), frame, path or ReadSource
        The observations; an entry of a list may also be (row, feature, value, time).
    columns : Columns
        The columns of a frame or file.
    text : TextFormat, default=None
        The format of a text file.
    time : object, default=None
        The time of all entries of a list, or the column of times of a frame or file.
    weight : object, default=None
        The weight of all entries of a list, or their weights; or the column of weights of a frame or file.

    Raises
    ------
    InputError
        If a name is not in the model, a value is impossible for its kind, or a cell has two values.
    """
    require_clock(model, time)
    require_weights(model, weight)
    if isinstance(data, (list, tuple)):
        data, repeats = expand_triples(model, data)
        if isinstance(weight, (list, tuple, np.ndarray)) and len(weight) == len(repeats):
            weight = np.repeat(np.asarray(weight), repeats)
    if isinstance(data, list) and len(data) == 1:
        triple = _single_triple(model, data[0], time, weight)
        if triple is not None:
            return triple
    times: NDArray[np.float64] | None = None
    if isinstance(data, (list, tuple)):
        if text is not None and text.missing:
            raise InputError("missing= is for a frame or a file; leave missing values out of a list")
        data, times = _split_times(model, data, time)
        weights = weights_of(weight, len(data), lambda i: f"entry {i}")
        rows, features, values = _split_triples(data)
        row_numbers = feature_numbers = np.arange(len(rows), dtype=np.int32)
    else:
        opened = open_observations(model, data, columns, text, time, weight)
        source, labels = opened.observations, opened.labels
        if labels or any(
            category_columns(model, name) for name in source.features if name not in model.feature_store
        ):
            return _read_answers(model, source, labels)
        rows, features, times, weights = source.rows, source.features, source.times, source.weights
        values = source.values.astype(np.float64)
        row_numbers, feature_numbers = source.row_numbers, source.feature_numbers
    row_index = row_positions(model, rows)[row_numbers]
    names, known, feature_index = _find_features(model, features)
    feature_index = feature_index[feature_numbers]
    return _check_triples(model, names, known, row_index, feature_index, values, times, weights)


@dataclass(frozen=True)
class ReadSource:
    """Observations read from a frame or file, and the labels of their values if these are texts."""

    observations: Observations
    labels: Sequence[str]


def open_observations(
    model: ModelState, data: object, columns: Columns, text: TextFormat | None, time: object, weight: object
) -> ReadSource:
    """Read a frame or file of observations once; the parameters are those of ``read_triples``."""
    if isinstance(data, ReadSource):
        return data
    if model.clock is not None:
        if time is not None and not isinstance(time, str):
            raise InputError(
                f"{option_name('time')} of a frame or file is the name of a column; got {time!r}"
            )
        columns = columns._replace(time=time or "time")
    if weight is not None and not isinstance(weight, str):
        raise InputError(
            f"{option_name('weight')} of a frame or file is the name of a column; got {weight!r}"
        )
    return _read_source(data, columns._replace(weight=weight), text)


def open_entries(
    model: ModelState, data: object, columns: Columns, text: TextFormat | None, time: object, weight: object
) -> Sequence[Any] | ReadSource:
    """Return a list of observations unchanged, or a frame or file read once.

    The parameters are those of ``read_triples``.
    """
    require_clock(model, time)
    require_weights(model, weight)
    if isinstance(data, (list, tuple)):
        return data
    return open_observations(model, data, columns, text, time, weight)


class UnknownNames(NamedTuple):
    """The rows and features of observations that are not in a model, in order of occurrence."""

    rows: list[str]
    features: list[str]


def find_unknown(model: ModelState, data: Sequence[Any] | ReadSource) -> UnknownNames:
    """Return the names in observations that are not in the model; invalid entries are ignored here."""
    if isinstance(data, ReadSource):
        rows, features = data.observations.rows, data.observations.features
    else:
        entries = [entry for entry in data if _is_entry(entry)]
        rows = list(dict.fromkeys(as_name(entry[0], "row") for entry in entries))
        features = list(dict.fromkeys(as_name(entry[1], "feature") for entry in entries))
    return UnknownNames(
        [row for row in rows if row not in model.rows],
        [name for name in features if name not in model.feature_store and not category_columns(model, name)],
    )


def drop_unknown(
    data: Sequence[Any] | ReadSource, weight: object, unknown: UnknownNames
) -> tuple[Sequence[Any] | ReadSource, object]:
    """Return the observations and their weights without those of ``unknown`` rows and features."""
    rows, features = set(unknown.rows), set(unknown.features)
    if isinstance(data, ReadSource):
        source = data.observations
        known_rows = np.array([row not in rows for row in source.rows], dtype=bool)
        known_features = np.array([name not in features for name in source.features], dtype=bool)
        known = known_rows[source.row_numbers] & known_features[source.feature_numbers]
        used_rows, row_numbers = np.unique(source.row_numbers[known], return_inverse=True)
        used_features, feature_numbers = np.unique(source.feature_numbers[known], return_inverse=True)
        selected = replace(
            source,
            rows=[source.rows[number] for number in used_rows],
            features=[source.features[number] for number in used_features],
            row_numbers=row_numbers.astype(np.int32),
            feature_numbers=feature_numbers.astype(np.int32),
            values=source.values[known],
            times=None if source.times is None else source.times[known],
            weights=None if source.weights is None else source.weights[known],
        )
        return ReadSource(selected, data.labels), weight
    positions = [
        position
        for position, entry in enumerate(data)
        if not _is_entry(entry)
        or (as_name(entry[0], "row") not in rows and as_name(entry[1], "feature") not in features)
    ]
    if isinstance(weight, (list, tuple, np.ndarray)) and len(weight) == len(data):
        weight = [weight[position] for position in positions]
    return [data[position] for position in positions], weight


def _is_entry(entry: object) -> bool:
    return isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) in (3, 4)


def _read_answers(model: ModelState, source: Observations, labels: Sequence[str]) -> Triples:
    """Return observations with labels and categories, one by one; values are positions in ``labels``."""
    values: list[Any] = source.values.tolist()
    if labels:
        texts = [labels[int(value)] for value in values]
        values = [text if (number := as_number(text)) is None else number for text in texts]
    entries: list[tuple[Any, ...]] = list(
        zip(
            (source.rows[i] for i in source.row_numbers),
            (source.features[i] for i in source.feature_numbers),
            values,
            strict=True,
        )
    )
    if source.times is not None:
        entries = [(*entry, time) for entry, time in zip(entries, source.times.tolist(), strict=True)]
    weight = None if source.weights is None else source.weights.tolist()
    return read_triples(model, entries, Columns(), weight=weight)


def feature_triples(
    model: ModelState,
    feature: object,
    observations: ObservationsLike,
    time: object = None,
    weight: object = None,
) -> Triples:
    """Check the observations ``{row: value}`` of one feature and return them as triples."""
    require_whole(model, feature, "observe")
    if category_columns(model, feature):
        what = f"feature {feature!r}"
        answers = require_mapping(as_mapping(observations, what), f"{what}: observations", "{'u17': 'B'}")
        entries = [(row, feature, value) for row, value in answers.items()]
        weights = answer_weights(model, weight, list(answers), what)
        return read_triples(model, entries, Columns(), time=time, weight=weights)
    known = model.feature_store[feature]
    context = check_context(known.name, observations, known.kind, model.rows)
    return _context_triples(model, known, *context, time, weight)


def _context_triples(
    model: ModelState,
    feature: Feature,
    rows: NDArray[np.int64],
    values: NDArray[np.float64],
    order: NDArray[np.int64],
    time: object = None,
    weight: object = None,
) -> Triples:
    """Return observations of one feature, checked by ``check_context``, as triples of one time and weight."""
    require_clock(model, time)
    numbers = np.full(len(rows), model.feature_store.number(feature.name))
    times = None if model.clock is None else np.full(len(rows), time_of(_require_time(time), "time"))
    weights = context_weights(model, weight, rows, f"feature {feature.name!r}")
    feature_positions = np.zeros(len(rows), np.int64)
    return Triples(rows, [feature], feature_positions, numbers, values, times, order, weights)


def row_triples(
    model: ModelState,
    row: object,
    observations: ObservationsLike,
    time: object = None,
    weight: object = None,
) -> Triples:
    """Check the observations ``{feature: value}`` of one row and return them as triples."""
    name = as_name(row, "row")
    features, values = split_observations(answers_of(model, name, observations), f"row {name!r}")
    triples = [(name, feature, value) for feature, value in zip(features, values.tolist(), strict=True)]
    return read_triples(model, triples, Columns(), time=time, weight=weight)


def require_clock(model: ModelState, time: object) -> None:
    """Raise an error if a time is given to a model without a half-life."""
    if time is not None and model.clock is None:
        raise InputError(
            f"{option_name('time')} was given, but the model has no half-life: its observations do not age; "
            f"leave it out, or fit with {option_name('half_life', '180 days')}"
        )


def _require_time(time: object) -> object:
    """Return ``time``; raise an error if it is missing."""
    if time is None:
        raise InputError(
            "the observations of this model age: say when they were made, as "
            + for_user("time='2026-05-17', or (row, feature, value, time)", "--time COLUMN")
        )
    return time


def _split_times(
    model: ModelState, entries: Sequence[Any], time: object
) -> tuple[Sequence[Any], NDArray[np.float64] | None]:
    """Split entries (row, feature, value, time) into triples and times; ``time`` is one time for all."""
    timed = [
        isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 4 for entry in entries
    ]
    if any(timed):
        if time is not None:
            raise InputError("the time is given twice, in the list and as an argument; keep one")
        require_clock(model, True)
        if not all(timed):
            raise InputError(f"entry {timed.index(False)} has no time: {entries[timed.index(False)]!r}")
        return [tuple(entry[:3]) for entry in entries], times_of([entry[3] for entry in entries], "time")
    if model.clock is None:
        return entries, None
    return entries, np.full(len(entries), time_of(_require_time(time), "time"))


def _single_triple(model: ModelState, entry: Any, time: object, weight: object) -> Triples | None:
    """Check a single entry quickly; return None unless it is valid, and let the general check report why."""
    if not isinstance(entry, tuple) or len(entry) not in (3, 4):
        return None
    if len(entry) == 4:
        if time is not None or model.clock is None:
            return None
        entry, time = entry[:3], entry[3]
    row, feature, value = entry
    typed = isinstance(row, str) and isinstance(feature, str) and isinstance(value, (int, float))
    loses_digits = isinstance(value, int) and abs(value) > 2**53
    if not typed or loses_digits or row not in model.rows or feature not in model.feature_store:
        return None
    known = model.feature_store[feature]
    kind = known.kind
    if not (abs(value) <= LARGEST and kind.allows(value)):
        return None
    number = kind.margin.to_number(float(value))
    if not abs(number - kind.offset) <= LARGEST * kind.span:
        return None
    position = np.array([model.rows.position(row)])
    return _context_triples(
        model, known, position, np.array([number], np.float64), np.zeros(1, np.int64), time, weight
    )


def _split_triples(triples: Sequence[Any]) -> tuple[list[Any], list[Any], NDArray[np.float64]]:
    """Split a list of (row, feature, value) into rows, features and finite values."""
    for entry, triple in enumerate(triples):
        if isinstance(triple, (str, Mapping)) or not isinstance(triple, Sequence) or len(triple) != 3:
            raise InputError(
                f"observe() takes a list of (row, feature, value), as [('u17', 'Alien', 5)]; entry {entry} "
                f"is {triple!r}"
            )
    values = np.empty(len(triples))
    for entry, (row, feature, value) in enumerate(triples):
        if not is_value(value):
            raise InputError(
                f"row {row!r}, feature {feature!r}: the value must be a number; got {value!r}"
                f"{advise_on_value(value)}"
            )
        if isinstance(value, int | np.integer):
            require_digits(value, f"row {row!r}, feature {feature!r}")
        try:
            values[entry] = value
        except OverflowError:
            values[entry] = np.inf
        if not np.isfinite(values[entry]):
            raise InputError(
                f"row {row!r}, feature {feature!r}: the value is {value}; leave unknown values out"
            )
    return [triple[0] for triple in triples], [triple[1] for triple in triples], values


def _read_source(data: object, columns: Columns, text: TextFormat | None) -> ReadSource:
    """Read a frame or a file in the long form."""
    # The attributes of the class: a lazy frame warns where its own are read.
    is_frame = hasattr(type(data), "columns") or hasattr(type(data), "schema")
    if not (isinstance(data, (str, os.PathLike)) or is_frame):
        raise InputError(
            "observe() takes a list of (row, feature, value), a frame or the path of a file; got "
            f"{type(data).__name__}; observe_feature() takes the observations of one feature"
        )
    columns = columns.normalise()
    row, feature, value = columns.or_default()
    source = open_source(data, (row, feature, value), text)
    choose_form(source, "long", columns, None)
    source, observations = read_values(
        source,
        lambda source: read_long(source, row, feature, value, columns.time, columns.weight),
        columns.weight,
    )
    return ReadSource(observations, source.labels)


def _find_features(model: ModelState, keys: list[Any]) -> tuple[Names, list[Feature], NDArray[np.int64]]:
    """Return the names and features of ``keys`` without repetition, and the position of each key there."""
    feature_store = model.feature_store
    names = [
        key if isinstance(key, str) and key in feature_store else as_name(key, "feature") for key in keys
    ]
    unique = list(dict.fromkeys(names))
    unknown = [name for name in unique if name not in feature_store]
    if unknown:
        advice = for_user(
            "add_features() adds new ones, or unknown='add'",
            "headstart add-features adds new ones, or --unknown add",
            "add it first" if len(unknown) == 1 else "add them first",
        )
        near = did_you_mean(unknown[0], feature_store if len(feature_store) <= MAX_SUGGESTIONS else ())
        what = f"feature {unknown[0]!r}{near}" if len(unknown) == 1 else f"features: {join_names(unknown)}"
        raise UnknownNameError(with_advice(f"unknown {what}", advice))
    positions = {name: position for position, name in enumerate(unique)}
    features = [feature_store[name] for name in unique]
    return Names(unique, "feature"), features, np.array([positions[name] for name in names], dtype=np.int64)


def _check_triples(
    model: ModelState,
    names: Names,
    features: list[Feature],
    rows: NDArray[np.int64],
    index: NDArray[np.int64],
    values: NDArray[np.float64],
    times: NDArray[np.float64] | None,
    weights: NDArray[np.float64] | None,
) -> Triples:
    """Refuse impossible values and contradictions, sort by row and feature, and drop repetitions.

    Observation i is the value ``values[i]`` of the row at position ``rows[i]`` at ``features[index[i]]``.
    """
    kinds = Kinds([feature.kind for feature in features])

    def where(observation: int) -> str:
        return f"row {model.rows[rows[observation]]!r}, feature {names[index[observation]]!r}"

    values = as_numbers(values, kinds, index, where)
    numbers = np.array([model.feature_store.number(feature.name) for feature in features], dtype=np.int64)
    # Unique cells have the same order as sorted observations; the index is that of their first occurrence.
    _, order = np.unique(rows.astype(np.int64) * len(names) + index, return_index=True)
    ordered = sort_observations(rows, index, values, (len(model.rows), len(names)), times, weights)
    rows, index = ordered.row_index.astype(np.int64), ordered.feature_index.astype(np.int64)
    values, times, weights = ordered.values.astype(np.float64), ordered.times, ordered.weights
    repeated = (rows[1:] == rows[:-1]) & (index[1:] == index[:-1])
    differs = values[1:] != values[:-1]
    if weights is not None:
        differs = differs | (weights[1:] != weights[:-1])
    if (repeated & differs).any():
        first = int(np.argmax(repeated & differs))

        def as_given(observation: int) -> str:
            weight = "" if weights is None else f" (weight {weights[observation]:g})"
            return f"{kinds[index[observation]].margin.to_value(values[observation]):.12g}{weight}"

        raise InputError(
            f"row {model.rows[rows[first]]!r}, feature {names[index[first]]!r} is given twice, as "
            f"{as_given(first)} and {as_given(first + 1)}; keep one"
        )
    first_of_cell = np.concatenate([np.ones(min(1, len(rows)), dtype=bool), ~repeated])
    rows, index, values = rows[first_of_cell], index[first_of_cell], values[first_of_cell]
    times, weights = (None if part is None else part[first_of_cell] for part in (times, weights))
    return Triples(rows, features, index, numbers[index], values, times, order, weights)
