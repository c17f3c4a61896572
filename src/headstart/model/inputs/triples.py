"""Observations as (row, feature, value), checked before anything changes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError, UnknownNameError, argument, did_you_mean, listed, worded
from headstart.model.inputs.given import NUMBERS
from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted
from headstart.table import Kinds, Names
from headstart.table.kinds import KindType
from headstart.table.limits import LARGEST, require_carried
from headstart.table.names import MAX_SUGGESTIONS, as_name
from headstart.table.readers import Columns, Observations, choose_form, read_long
from headstart.table.sorting import sort_observations
from headstart.table.sources import TextFormat, open_source
from headstart.table.times import time_of, times_of


class Triples(NamedTuple):
    """Observations of rows and features that a model knows, each cell once, sorted by row and feature."""

    rows: NDArray[np.int64]  # (n,): positions
    features: list[Feature]
    places: NDArray[np.int64]  # (n,): positions in ``features``
    numbers: NDArray[np.int64]  # (n,): of the features in the catalogue
    values: NDArray[np.float64]  # (n,): in the data's own units
    times: NDArray[np.float64] | None = None  # (n,): in a model where observations age


def read_triples(
    fitted: Fitted, given: object, columns: Columns, text: TextFormat | None = None, time: object = None
) -> Triples:
    """Turn a list of (row, feature, value), a frame or a file into observations of this model.

    Raises
    ------
    InputError
        If anything cannot be used: names that are not there, values of another kind, two values of one cell.
    """
    require_clock(fitted, time)
    if isinstance(given, list) and len(given) == 1 and (one := _usual(fitted, given[0], time)) is not None:
        return one
    times: NDArray[np.float64] | None = None
    if isinstance(given, (list, tuple)):
        given, times = _with_times(fitted, given, time)
        rows, features, values = _of_list(given)
        row_numbers = feature_numbers = np.arange(len(rows), dtype=np.int32)
    else:
        if fitted.clock is not None:
            if time is not None and not isinstance(time, str):
                raise InputError(
                    f"{argument('time')} of a frame or file is the name of a column; got {time!r}"
                )
            columns = columns._replace(time=time or "time")
        read = _of_source(given, columns, text)
        rows, features, times = read.rows, read.features, read.times
        values = read.values.astype(np.float64)
        row_numbers, feature_numbers = read.row_numbers, read.feature_numbers
    row_index = _row_positions(fitted, rows)[row_numbers]
    names, held, feature_index = _features(fitted, features)
    return _checked(fitted, names, held, row_index, feature_index[feature_numbers], values, times)


def triples_of(
    fitted: Fitted,
    feature: Feature,
    rows: NDArray[np.int64],
    values: NDArray[np.float64],
    time: object = None,
) -> Triples:
    """The observations of one feature, made at one time, as triples; they are checked already."""
    require_clock(fitted, time)
    numbers = np.full(len(rows), fitted.catalogue.number(feature.name))
    times = None if fitted.clock is None else np.full(len(rows), time_of(_required(time), "time"))
    return Triples(rows, [feature], np.zeros(len(rows), np.int64), numbers, values, times)


def require_clock(fitted: Fitted, time: object) -> None:
    """Refuse a time where observations do not age."""
    if time is not None and fitted.clock is None:
        raise InputError(
            f"{argument('time')} was given, but the model has no half-life: its observations do not age; "
            f"leave it out, or fit with {argument('half_life', '180 days')}"
        )


def _required(time: object) -> object:
    if time is None:
        raise InputError(
            "the observations of this model age: say when they were made, as "
            + worded("time='2026-05-17', or (row, feature, value, time)", "--time COLUMN")
        )
    return time


def _with_times(
    fitted: Fitted, given: Sequence[Any], time: object
) -> tuple[Sequence[Any], NDArray[np.float64] | None]:
    """Part a list of (row, feature, value, time) into triples and times."""
    longer = [isinstance(each, Sequence) and not isinstance(each, str) and len(each) == 4 for each in given]
    if any(longer):
        if time is not None:
            raise InputError("the time is given twice, in the list and by itself; keep one")
        require_clock(fitted, True)
        if not all(longer):
            raise InputError(f"entry {longer.index(False)} has no time: {given[longer.index(False)]!r}")
        return [tuple(each[:3]) for each in given], times_of([each[3] for each in given], "time")
    if fitted.clock is None:
        return given, None
    return given, np.full(len(given), time_of(_required(time), "time"))


def _usual(fitted: Fitted, given: Any, time: object) -> Triples | None:
    """A single triple of known names and a possible value; None of any other, which is checked in full."""
    if not isinstance(given, tuple) or len(given) not in (3, 4):
        return None
    if len(given) == 4:
        if time is not None or fitted.clock is None:
            return None
        given, time = given[:3], given[3]
    row, feature, value = given
    known = isinstance(row, str) and isinstance(feature, str) and isinstance(value, (int, float))
    if not known or row not in fitted.rows or feature not in fitted.catalogue:
        return None
    held = fitted.catalogue[feature]
    scaled = (value - held.kind.offset) / held.kind.span if abs(value) <= LARGEST else np.nan
    inside = 0 <= scaled <= 1 if held.kind.type == KindType.RATING else scaled in (0, 1)
    if not (inside or (held.kind.type == KindType.REAL and abs(scaled) <= LARGEST)):
        return None
    position = np.array([fitted.rows.position(row)])
    return triples_of(fitted, held, position, np.array([value], np.float64), time)


def _of_list(given: Sequence[Any]) -> tuple[list[Any], list[Any], NDArray[np.float64]]:
    for place, each in enumerate(given):
        if isinstance(each, (str, Mapping)) or not isinstance(each, Sequence) or len(each) != 3:
            raise InputError(
                f"observe() takes a list of (row, feature, value), as [('u17', 'Alien', 5)]; entry {place} "
                f"is {each!r}"
            )
    values = np.empty(len(given))
    for place, (row, feature, value) in enumerate(given):
        if not isinstance(value, NUMBERS):
            raise InputError(f"row {row!r}, feature {feature!r}: the value must be a number; got {value!r}")
        try:
            values[place] = value
        except OverflowError:
            values[place] = np.inf
        if not np.isfinite(values[place]):
            raise InputError(
                f"row {row!r}, feature {feature!r}: the value is {value}; leave unknown values out"
            )
    return [each[0] for each in given], [each[1] for each in given], values


def _of_source(given: object, columns: Columns, text: TextFormat | None) -> Observations:
    if isinstance(given, (str, bytes)) or not (
        isinstance(given, os.PathLike) or hasattr(given, "columns") or hasattr(given, "schema")
    ):
        raise InputError(
            "observe() takes a feature's name and its observations, a list of (row, feature, value), a frame"
            f" or the path of a file; got {type(given).__name__}"
        )
    columns = columns.tidy()
    row, feature, value = columns.or_usual()
    source = open_source(given, (row, feature, value), text)
    choose_form(source, "long", columns, None)
    return read_long(source, row, feature, value, columns.time)


def _row_positions(fitted: Fitted, rows: list[Any]) -> NDArray[np.int64]:
    try:
        return fitted.rows.positions(rows)
    except UnknownNameError as error:
        advice = worded("add_rows() adds new ones", "headstart add-rows adds new ones")
        raise UnknownNameError(f"{error}; {advice}") from None


def _features(fitted: Fitted, given: list[Any]) -> tuple[Names, list[Feature], NDArray[np.int64]]:
    """The features of these names, each once, and where each of the names is among them."""
    catalogue = fitted.catalogue
    names = [
        name if isinstance(name, str) and name in catalogue else as_name(name, "feature") for name in given
    ]
    unique = list(dict.fromkeys(names))
    unknown = [name for name in unique if name not in catalogue]
    if unknown:
        advice = worded("add_feature() adds new ones", "headstart add adds new ones")
        near = did_you_mean(unknown[0], catalogue if len(catalogue) <= MAX_SUGGESTIONS else ())
        what = f"feature {unknown[0]!r}{near}" if len(unknown) == 1 else f"features: {listed(unknown)}"
        raise UnknownNameError(f"unknown {what}; {advice}")
    places = {name: place for place, name in enumerate(unique)}
    features = [catalogue[name] for name in unique]
    return Names(unique, "feature"), features, np.array([places[name] for name in names], dtype=np.int64)


def _checked(
    fitted: Fitted,
    names: Names,
    features: list[Feature],
    rows: NDArray[np.int64],
    index: NDArray[np.int64],
    values: NDArray[np.float64],
    times: NDArray[np.float64] | None,
) -> Triples:
    kinds = Kinds([feature.kind for feature in features])

    def where(place: int) -> str:
        return f"row {fitted.rows[rows[place]]!r}, feature {names[index[place]]!r}"

    wrong = kinds.impossible(values, index)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        kind = kinds[index[first]]
        raise InputError(f"{where(first)}: the value {values[first]:g} is not {kind.allowed} (kind {kind})")
    require_carried(values, kinds.scale(values, index), where)
    numbers = np.array([fitted.catalogue.number(feature.name) for feature in features], dtype=np.int64)
    ordered = sort_observations(rows, index, values, (len(fitted.rows), len(names)), times)
    at, of = ordered.row_index.astype(np.int64), ordered.feature_index.astype(np.int64)
    values, times = ordered.values.astype(np.float64), ordered.times
    again = (at[1:] == at[:-1]) & (of[1:] == of[:-1])
    if (again & (values[1:] != values[:-1])).any():
        first = int(np.argmax(again & (values[1:] != values[:-1])))
        raise InputError(
            f"row {fitted.rows[at[first]]!r}, feature {names[of[first]]!r} is given twice, as "
            f"{values[first]:.12g} and {values[first + 1]:.12g}; keep one"
        )
    once = np.concatenate([np.ones(min(1, len(at)), dtype=bool), ~again])
    kept = None if times is None else times[once]
    return Triples(at[once], features, of[once], numbers[of[once]], values[once], kept)
