"""Check what users pass to a model, before anything changes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from headstart.core.types import RowStates
from headstart.errors import InputError, UnknownNameError, did_you_mean, for_user, join_names, option_name
from headstart.model.features import Feature
from headstart.model.observations import ObservationList, ObservationLists
from headstart.model.row_states import compute_row_states
from headstart.model.rows import RowMetadata
from headstart.model.state import ModelState
from headstart.table import Kind, Kinds, Names
from headstart.table.columns import is_missing
from headstart.table.kinds import KIND_NAMES, LARGEST, KindType, require_representable
from headstart.table.names import MAX_SUGGESTIONS, as_name, spelled
from headstart.table.reading import Columns, Observations, choose_form, read_long, sort_observations
from headstart.table.sources import TextFormat, open_source
from headstart.table.times import time_of, times_of

NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)  # the types of values that are taken


def require_mapping(given: object, what: str, example: str) -> Mapping[Any, Any]:
    """Refuse anything that does not map names to something."""
    if not isinstance(given, Mapping):
        raise InputError(f"{what} must map names to values, as {example}; got {type(given).__name__}")
    return given


def unique_names(given: Mapping[Any, Any], what: str, of: str = "name") -> list[str]:
    """The keys as names of rows or features; 1 and "1" are one name, so both at once are refused."""
    names: dict[str, object] = {}
    for key in given:
        name = as_name(key, of)
        if name in names:
            both = f"{spelled(names[name])} and {spelled(key)}"
            raise InputError(f"{what}: {name!r} is given twice, as {both}; keep one")
        names[name] = key
    return list(names)


def as_list(names: Any) -> list[Any]:
    """A single name is a list of one; a string is never a list of letters."""
    single = isinstance(names, str) or np.isscalar(names)
    return [names] if single else list(names)


def whole_number(n: object, what: str) -> int:
    """How many are asked for: a whole number from 1 up."""
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise InputError(f"{what} takes a whole number n from 1 up; got {n!r}")
    return int(n)


def tidy_keys(metadata: Mapping[Any, object], columns: list[str]) -> dict[Any, object]:
    """The metadata by tidy names of columns; what is no name is left to the schema to refuse."""
    tidy: dict[Any, object] = {}
    for key, value in metadata.items():
        column = as_name(key, "column name") if isinstance(key, str) and key not in columns else key
        if column in tidy:
            raise InputError(f"metadata {column!r} is given twice, in two spellings; keep one")
        tidy[column] = value
    return tidy


_OWNERS = ("row", "feature")


def is_observations(given: object) -> bool:
    """Whether this may be the observations of one row or feature: a mapping, a Series or a frame."""
    return isinstance(given, Mapping) or _native(given) is not None


def is_frame(given: object) -> bool:
    """Whether this is a data frame of some library."""
    return isinstance(_native(given), nw.DataFrame)


def as_mapping(given: object, what: str) -> object:
    """Return a Series or frame as a mapping of names to values; anything else as it is.

    The index of a pandas Series holds the names. A frame has two columns: names and values, in this order or
    called ``row`` or ``feature`` and ``value``. A missing value is not observed.
    """
    if isinstance(given, Mapping):
        return given
    frame = _native(given)
    if frame is None:
        return given
    if isinstance(frame, nw.Series):
        native = nw.to_native(frame)
        if not hasattr(native, "index"):
            raise InputError(
                f"{what}: a {type(native).__module__.split('.')[0]} Series has no names; give a frame of "
                "names and values, or a dict"
            )
        return _paired(native.index.tolist(), native.tolist(), what)
    names, values = _columns(frame, what)
    return _paired(frame[names].to_list(), frame[values].to_list(), what)


def as_rows(given: object, what: str) -> object:
    """Return a frame with the columns row, feature and value as ``{row: {feature: value}}``."""
    frame = None if isinstance(given, (Mapping, str)) else _native(given)
    if not isinstance(frame, nw.DataFrame):
        return given
    wanted = ("row", "feature", "value")
    missing = [name for name in wanted if name not in frame.columns]
    if missing:
        raise InputError(
            f"{what}: the frame has no column {missing[0]!r}; its columns are {join_names(frame.columns)}"
        )
    rows: dict[Any, dict[Any, Any]] = {}
    for row, feature, value in zip(*(frame[name].to_list() for name in wanted), strict=True):
        own = rows.setdefault(as_name(row, "row"), {})
        if is_missing(value):
            continue
        if feature in own:
            raise InputError(f"{what}: row {row!r} has two values of feature {feature!r}; keep one")
        own[feature] = value
    return rows


def _native(given: object) -> nw.DataFrame[Any] | nw.Series[Any] | None:
    if isinstance(given, (str, bytes, int, float, list, tuple, set, np.ndarray)) or given is None:
        return None
    try:
        frame = nw.from_native(given, allow_series=True)  # type: ignore[call-overload]
    except TypeError:
        return None
    return frame.collect() if isinstance(frame, nw.LazyFrame) else frame


def _columns(frame: nw.DataFrame[Any], what: str) -> tuple[str, str]:
    owners = [name for name in _OWNERS if name in frame.columns]
    if "value" in frame.columns and len(owners) == 1:
        return owners[0], "value"
    if len(frame.columns) == 2:
        return frame.columns[0], frame.columns[1]
    raise InputError(
        f"{what}: a frame of observations has two columns, names and values; got {join_names(frame.columns)}"
    )


def _paired(names: Iterable[object], values: Iterable[object], what: str) -> dict[object, object]:
    pairs: dict[object, object] = {}
    for name, value in zip(names, values, strict=True):
        if is_missing(value):
            continue
        if name in pairs:
            raise InputError(f"{what}: {spelled(name)} is given twice; keep one")
        pairs[name] = value
    return pairs


ObservationsLike = Any  # Mapping[Any, float], or a Series or frame (``frames.as_mapping``)

PARTS = ("metadata", "observations", "kind")


def numbers(observations: object, what: str) -> tuple[list[str], NDArray[np.float64]]:
    """Part a mapping of name → value, or a Series or frame, into names and finite numbers."""
    given = require_mapping(as_mapping(observations, what), f"{what}: observations", "{'u17': 5}")
    names = unique_names(given, what)
    for name, value in zip(names, given.values(), strict=True):
        if not isinstance(value, NUMBERS):
            raise InputError(f"{what}: the value at {name!r} must be a number; got {value!r}")
    try:
        values = np.array(list(given.values()), dtype=np.float64)
    except OverflowError:
        raise InputError(f"{what}: a value is too large to be a number here") from None
    if not np.isfinite(values).all():
        where = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(
            f"{what}: the value at {names[where]!r} is {values[where]}; leave unknown values out"
        )
    return names, values


def context_of(
    feature: str, observations: object, kind: Kind, rows: Names, advice: str = ""
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Return the context of a feature: row positions, ascending, values, and the order they were given in."""
    what = f"feature {feature!r}"
    names, values = numbers(observations, what)
    _check_values(values, names, Kinds([kind] * len(names)), what, advice)
    try:
        positions = rows.positions(names)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"{what}: {error}; a context can only hold rows the model knows"
            + for_user(" (add_rows() adds new ones)", "")
        ) from None
    order = np.argsort(positions)
    return positions[order], values[order], order


def _check_values(
    values: NDArray[np.float64], names: list[str], kinds: Kinds, what: str, advice: str = ""
) -> None:
    """Refuse values that features of these kinds, one a value, cannot take."""
    wrong = kinds.impossible(values, np.arange(len(values)))
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"{what}: the value {values[first]:g} at {names[first]!r} is not {kinds[first].allowed} "
            f"(kind {kinds[first]}){advice}"
        )
    scaled = kinds.scale(values, np.arange(len(values)))
    require_representable(values, scaled, lambda i: f"{what} at {names[i]!r}")


def new_features(fitted: ModelState, given: Mapping[Any, object]) -> list[Feature]:
    """Check everything that is given of new features and return the features, without heads yet."""
    features = [_new_feature(fitted, name, parts) for name, parts in given.items()]
    records = {
        feature.name: _metadata_of(fitted, feature.name, parts)
        for feature, parts in zip(features, given.values(), strict=True)
    }
    encoded = _encoded_metadata(fitted, records)
    every = zip(features, encoded, records.values(), strict=True)
    return [replace(feature, metadata=line, record=_as_given(own)) for feature, line, own in every]


def _as_given(record: Mapping[Any, object]) -> dict[str, object]:
    """The metadata under the tidy names of its columns, without what is missing."""
    return {as_name(key, "column name"): value for key, value in record.items() if not is_missing(value)}


def _new_feature(fitted: ModelState, given: object, parts: object) -> Feature:
    """Check a new feature and return it without a head and without its metadata."""
    name = as_name(given, "feature")
    if name in fitted.catalogue:
        fixed = fitted.catalogue[name].fixed
        observe = for_user("use observe()", "use headstart observe") + " to add observations to it"
        advice = (
            for_user("fit() again to change it", "fit the model again to change it") if fixed else observe
        )
        raise InputError(f"feature {name!r} is already in the model; {advice}")
    said = require_mapping(parts, f"feature {name!r}", "{'metadata': …, 'observations': …}")
    for part in said:
        if part not in PARTS:
            raise InputError(f"feature {name!r}: unknown part {part!r}{did_you_mean(str(part), PARTS)}")
    observations = {} if said.get("observations") is None else said["observations"]
    kind = _kind_of(fitted, name, said.get("kind"))
    advice = f"; {option_name('kind')} gives the feature another kind" if said.get("kind") is None else ""
    rows, values, order = context_of(name, observations, kind, fitted.rows, advice)
    finds_scale = fitted.middle is not None and kind == fitted.middle
    blank = np.zeros(0, dtype=np.float32)
    times = None if fitted.clock is None else fitted.clock.times_now(len(rows))
    feature = Feature(name, kind, False, len(rows), blank, rows, values, finds_scale)
    return fitted.with_own_units(replace(feature, arrivals=fitted.arrivals + order, times=times))


def _metadata_of(fitted: ModelState, name: str, parts: Any) -> Mapping[str, object]:
    given = parts.get("metadata")
    metadata = (
        {} if given is None else require_mapping(given, f"feature {name!r}: metadata", "{'year': 2026}")
    )
    if fitted.schema is None and metadata:
        raise InputError(f"feature {name!r}: the model was fitted without metadata and can use none")
    return metadata


def _encoded_metadata(fitted: ModelState, records: Mapping[str, Mapping[str, object]]) -> NDArray[np.float32]:
    """Encode the metadata of new features together, because encoders are fast on many values: (n, width)."""
    if fitted.schema is None:
        return np.zeros((len(records), 0), dtype=np.float32)
    try:
        columns = [column.name for column in fitted.schema.columns]
        tidy = [tidy_keys(record, columns) for record in records.values()]
        return fitted.schema.encode(tidy, fitted.encoders)
    except InputError as error:
        if len(records) > 1:  # find the feature that it is about
            for name, record in records.items():
                _encoded_metadata(fitted, {name: record})
            raise
        raise type(error)(f"feature {next(iter(records))!r}: {error}") from None


def _kind_of(fitted: ModelState, name: str, given: object) -> Kind:
    """The kind said, or the usual one; a bare "rating" or "real" takes the model's ends or scale."""
    wanted = fitted.kinds[0].name if given is None else str(given)
    if isinstance(given, Kind) or wanted not in KIND_NAMES:
        kind = given if isinstance(given, Kind) else Kind.parse(wanted)
        if kind.type not in {other.type for other in fitted.kinds}:
            raise InputError(f"feature {name!r}: kind {kind} is {_none_of(fitted)}")
        return kind
    alike = [kind for kind in fitted.kinds if kind.name == wanted]
    if not alike:
        raise InputError(f"feature {name!r}: kind {wanted} is {_none_of(fitted)}")
    if len(alike) == 1 or (given is None and alike[0].type != KindType.REAL):
        return alike[0]
    if alike[0].type != KindType.REAL:
        raise InputError(f"feature {name!r}: say its ends, as {option_name('kind', str(alike[0]))}")
    # The model's real features each have a scale of their own: this one's is found from its observations.
    return alike[0] if fitted.middle is None else fitted.middle


def _none_of(fitted: ModelState) -> str:
    there = ", ".join(sorted({kind.name for kind in fitted.kinds}))
    advice = f"; give {option_name('kind', 'real')} to read its values as numbers" if "real" in there else ""
    return f"not among those the model was fitted on ({there}){advice}"


def rows_of(fitted: ModelState, rows: Mapping[Any, object]) -> tuple[ObservationLists, NDArray[np.int64]]:
    """Check the observations of new rows; also return the order in which they were given."""
    checked, orders, first = [], [np.zeros(0, np.int64)], 0
    for row, observations in rows.items():
        what = f"row {row!r}"
        names, values = numbers(observations, what)
        features = [fitted.catalogue[name] for name in names]
        _check_values(values, names, Kinds([feature.kind for feature in features]), what)
        places = np.array([fitted.catalogue.number(name) for name in names], dtype=np.int64)
        order = np.argsort(places)
        checked.append(ObservationList(places[order], values[order]))
        orders.append(first + order)
        first += len(order)
    return ObservationLists.of(checked), np.concatenate(orders)


def encode_rows(fitted: ModelState, rows: Mapping[Any, object]) -> RowStates:
    """The states of new rows."""
    return compute_row_states(fitted, rows_of(fitted, rows)[0], [str(row) for row in rows])


class NewRows(NamedTuple):
    """Rows that are to be added, after all of it was checked."""

    names: list[str]
    given: Mapping[Any, object]  # the observations of each, as they were given
    records: Sequence[Mapping[str, object]]  # their metadata as it was given
    encoded: NDArray[np.float32]  # (rows, width): the same as numbers
    teach: bool  # whether their observations refine the features, too


def encoded_rows(
    held: RowMetadata | None, names: Sequence[str], given: Mapping[Any, Any] | None
) -> tuple[list[dict[str, object]], NDArray[np.float32]]:
    """The metadata that is given of new rows, by their names: as it was given, and encoded."""
    if given is not None and held is None:
        raise InputError("the model was fitted without row metadata and can use none")
    said = {} if given is None else require_mapping(given, "metadata of rows", "{'u99': {'age': 31}}")
    tidy = dict(zip(unique_names(said, "metadata of rows", "row"), said.values(), strict=True))
    strange = [name for name in tidy if name not in set(names)]
    if strange:
        raise UnknownNameError(f"metadata is given of row {strange[0]!r}, which is not among the new rows")
    if held is None:
        return [{} for _ in names], np.zeros((len(names), 0), np.float32)
    columns = [column.name for column in held.schema.columns]
    records: list[dict[str, object]] = []
    for name in names:
        record = require_mapping(tidy.get(name) or {}, f"row {name!r}: metadata", "{'age': 31}")
        records.append(tidy_keys(record, columns))
        try:
            if len(record):
                held.schema.encode([records[-1]])
        except InputError as error:
            raise type(error)(f"row {name!r}: {error}") from None
    return records, held.schema.encode(records) if records else held.encoded[:0]


class Triples(NamedTuple):
    """Observations of rows and features that a model knows, each cell once, sorted by row and feature."""

    rows: NDArray[np.int64]  # (n,): positions
    features: list[Feature]
    places: NDArray[np.int64]  # (n,): positions in ``features``
    numbers: NDArray[np.int64]  # (n,): of the features in the catalogue
    values: NDArray[np.float64]  # (n,): in the data's own units
    times: NDArray[np.float64] | None  # (n,): in a model where observations age
    order: NDArray[np.int64]  # (n,): in which they were given


def read_triples(
    fitted: ModelState, given: object, columns: Columns, text: TextFormat | None = None, time: object = None
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
                    f"{option_name('time')} of a frame or file is the name of a column; got {time!r}"
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
    fitted: ModelState,
    feature: Feature,
    rows: NDArray[np.int64],
    values: NDArray[np.float64],
    order: NDArray[np.int64],
    time: object = None,
) -> Triples:
    """Return the checked observations of one feature, made at one time, as triples."""
    require_clock(fitted, time)
    numbers = np.full(len(rows), fitted.catalogue.number(feature.name))
    times = None if fitted.clock is None else np.full(len(rows), time_of(_required(time), "time"))
    return Triples(rows, [feature], np.zeros(len(rows), np.int64), numbers, values, times, order)


def require_clock(fitted: ModelState, time: object) -> None:
    """Refuse a time where observations do not age."""
    if time is not None and fitted.clock is None:
        raise InputError(
            f"{option_name('time')} was given, but the model has no half-life: its observations do not age; "
            f"leave it out, or fit with {option_name('half_life', '180 days')}"
        )


def _required(time: object) -> object:
    if time is None:
        raise InputError(
            "the observations of this model age: say when they were made, as "
            + for_user("time='2026-05-17', or (row, feature, value, time)", "--time COLUMN")
        )
    return time


def _with_times(
    fitted: ModelState, given: Sequence[Any], time: object
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


def _usual(fitted: ModelState, given: Any, time: object) -> Triples | None:
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
    return triples_of(fitted, held, position, np.array([value], np.float64), np.zeros(1, np.int64), time)


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


def _row_positions(fitted: ModelState, rows: list[Any]) -> NDArray[np.int64]:
    try:
        return fitted.rows.positions(rows)
    except UnknownNameError as error:
        advice = for_user("add_rows() adds new ones", "headstart add-rows adds new ones")
        raise UnknownNameError(f"{error}; {advice}") from None


def _features(fitted: ModelState, given: list[Any]) -> tuple[Names, list[Feature], NDArray[np.int64]]:
    """The features of these names, each once, and where each of the names is among them."""
    catalogue = fitted.catalogue
    names = [
        name if isinstance(name, str) and name in catalogue else as_name(name, "feature") for name in given
    ]
    unique = list(dict.fromkeys(names))
    unknown = [name for name in unique if name not in catalogue]
    if unknown:
        advice = for_user("add_feature() adds new ones", "headstart add adds new ones")
        near = did_you_mean(unknown[0], catalogue if len(catalogue) <= MAX_SUGGESTIONS else ())
        what = f"feature {unknown[0]!r}{near}" if len(unknown) == 1 else f"features: {join_names(unknown)}"
        raise UnknownNameError(f"unknown {what}; {advice}")
    places = {name: place for place, name in enumerate(unique)}
    features = [catalogue[name] for name in unique]
    return Names(unique, "feature"), features, np.array([places[name] for name in names], dtype=np.int64)


def _checked(
    fitted: ModelState,
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
    require_representable(values, kinds.scale(values, index), where)
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
    # ``np.unique`` sorts by row and feature, too, and finds the first line of each cell.
    _, order = np.unique(rows.astype(np.int64) * len(names) + index, return_index=True)
    return Triples(at[once], features, of[once], numbers[of[once]], values[once], kept, order)
