"""Check the arguments of a model's methods before anything changes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from headstart.core.types import RowStates
from headstart.errors import InputError, UnknownNameError, did_you_mean, for_user, join_names, option_name
from headstart.model.features import Feature
from headstart.model.row_states import compute_row_states
from headstart.model.rows import RowCells, RowMetadata, RowObservations
from headstart.model.state import ModelState
from headstart.table import Kind, Kinds, Names, Table
from headstart.table.columns import is_missing
from headstart.table.kind_inference import KindsLike
from headstart.table.kinds import KIND_NAMES, LARGEST, KindType, require_representable
from headstart.table.names import MAX_SUGGESTIONS, as_name, display_spelling
from headstart.table.reading import Columns, Form, Observations, choose_form, read_long, sort_observations
from headstart.table.sources import TextFormat, open_source
from headstart.table.text_encoders import EncoderLike
from headstart.table.times import time_of, times_of

NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)  # the types that a value may have

NEW_ROW = "this row"  # the name of a row that is passed as its observations


class ReadOptions(TypedDict, total=False):
    """The parameters of ``Table.read`` that ``fit`` and ``evaluate`` pass on."""

    metadata: object
    row_metadata: object
    row: str | None
    feature: str | None
    value: str | None
    time: str | None
    form: Form
    kinds: KindsLike
    metadata_types: Mapping[str, str] | None
    row_metadata_types: Mapping[str, str] | None
    duplicates: Literal["error", "last", "mean"]
    encoders: Mapping[str, EncoderLike] | None
    separator: str | None
    decimal: str | None
    encoding: str | None


def as_table(data: object, method: str, options: ReadOptions, *, quiet: bool) -> Table:
    """Return a table as it is; read a frame or the path of a file with the options of ``Table.read``."""
    for name in options:
        if name not in ReadOptions.__annotations__:
            raise TypeError(f"{method} got an unexpected keyword argument {name!r}")
    if isinstance(data, Table):
        if options:
            raise InputError(
                f"{method}: {join_names(options)} is for a frame or the path of a file; this table has been "
                "read already"
            )
        return data
    if not (is_frame(data) or isinstance(data, (str, os.PathLike))):
        raise InputError(
            f"{method} takes a Table, a frame or the path of a file (see Table.read); got "
            f"{type(data).__name__}"
        )
    return Table.read(data, quiet=quiet, **options)


def require_mapping(given: object, what: str, example: str) -> Mapping[Any, Any]:
    """Return a mapping as it is; refuse anything else."""
    if not isinstance(given, Mapping):
        raise InputError(f"{what} must map names to values, as {example}; got {type(given).__name__}")
    return given


def unique_names(given: Mapping[Any, Any], what: str, of: str = "name") -> list[str]:
    """Return the keys as names of rows or features; refuse 1 and "1" together, which are one name."""
    names: dict[str, object] = {}
    for key in given:
        name = as_name(key, of)
        if name in names:
            both = f"{display_spelling(names[name])} and {display_spelling(key)}"
            raise InputError(f"{what}: {name!r} is given twice, as {both}; keep one")
        names[name] = key
    return list(names)


def as_list(names: Any) -> list[Any]:
    """Return names as a list; a single name, also a string, gives a list of one."""
    single = isinstance(names, str) or np.isscalar(names)
    return [names] if single else list(names)


def whole_number(n: object, what: str) -> int:
    """Return ``n`` if it is a whole number from 1 up."""
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise InputError(f"{what} takes a whole number n from 1 up; got {n!r}")
    return int(n)


def tidy_keys(metadata: Mapping[Any, object], columns: list[str]) -> dict[Any, object]:
    """Return metadata by tidy column names; the schema refuses keys that are not text."""
    tidy: dict[Any, object] = {}
    for key, value in metadata.items():
        column = as_name(key, "column name") if isinstance(key, str) and key not in columns else key
        if column in tidy:
            raise InputError(f"metadata {column!r} is given twice, in two spellings; keep one")
        tidy[column] = value
    return tidy


_OWNERS = ("row", "feature")


def is_observations(given: object) -> bool:
    """Return whether this can be the observations of one row or feature: a mapping, a Series or a frame."""
    return isinstance(given, Mapping) or _native(given) is not None


def is_frame(given: object) -> bool:
    """Return whether this is a data frame of pandas, polars, pyarrow or another library."""
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
        observations = rows.setdefault(as_name(row, "row"), {})
        if is_missing(value):
            continue
        if feature in observations:
            raise InputError(f"{what}: row {row!r} has two values of feature {feature!r}; keep one")
        observations[feature] = value
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
            raise InputError(f"{what}: {display_spelling(name)} is given twice; keep one")
        pairs[name] = value
    return pairs


ObservationsLike = Any  # Mapping[Any, float], or a Series or frame (``as_mapping``)

PARTS = ("metadata", "observations", "kind")


def numbers(observations: object, what: str) -> tuple[list[str], NDArray[np.float64]]:
    """Split a mapping of name → value, a Series or a frame into names and finite numbers."""
    by_name = require_mapping(as_mapping(observations, what), f"{what}: observations", "{'u17': 5}")
    names = unique_names(by_name, what)
    for name, value in zip(names, by_name.values(), strict=True):
        if not isinstance(value, NUMBERS):
            raise InputError(f"{what}: the value at {name!r} must be a number; got {value!r}")
    try:
        values = np.array(list(by_name.values()), dtype=np.float64)
    except OverflowError:
        raise InputError(f"{what}: a value is too large to be a number here") from None
    if not np.isfinite(values).all():
        first = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(
            f"{what}: the value at {names[first]!r} is {values[first]}; leave unknown values out"
        )
    return names, values


def context_of(
    feature: str, observations: object, kind: Kind, rows: Names, advice: str = ""
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the context of a feature as ascending row positions and values."""
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
    return positions[order], values[order]


def _check_values(
    values: NDArray[np.float64], names: list[str], kinds: Kinds, what: str, advice: str = ""
) -> None:
    """Refuse values that are impossible for their kinds; ``kinds`` has one for each value."""
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
    """Check new features ``{name: {"metadata": …, …}}`` and return them, still without heads."""
    features = [_new_feature(fitted, name, parts) for name, parts in given.items()]
    records = {
        feature.name: _metadata_of(fitted, feature.name, parts)
        for feature, parts in zip(features, given.values(), strict=True)
    }
    encoded = _encoded_metadata(fitted, records)
    return [
        replace(feature, metadata=vector, record=_without_missing(record))
        for feature, vector, record in zip(features, encoded, records.values(), strict=True)
    ]


def _without_missing(record: Mapping[Any, object]) -> dict[str, object]:
    """Return metadata by tidy column names, without missing values."""
    return {as_name(key, "column name"): value for key, value in record.items() if not is_missing(value)}


def _new_feature(fitted: ModelState, key: object, parts: object) -> Feature:
    """Check a new feature and return it without its head and its metadata."""
    name = as_name(key, "feature")
    if name in fitted.catalogue:
        fixed = fitted.catalogue[name].fixed
        observe = for_user("use observe_feature()", "use headstart observe-feature")
        advice = (
            for_user("fit() again to change it", "fit the model again to change it")
            if fixed
            else f"{observe} to add observations to it"
        )
        raise InputError(f"feature {name!r} is already in the model; {advice}")
    by_part = require_mapping(parts, f"feature {name!r}", "{'metadata': …, 'observations': …}")
    for part in by_part:
        if part not in PARTS:
            raise InputError(f"feature {name!r}: unknown part {part!r}{did_you_mean(str(part), PARTS)}")
    observations = {} if by_part.get("observations") is None else by_part["observations"]
    kind = _kind_of(fitted, name, by_part.get("kind"))
    advice = f"; {option_name('kind')} gives the feature another kind" if by_part.get("kind") is None else ""
    rows, values = context_of(name, observations, kind, fitted.rows, advice)
    finds_scale = fitted.middle is not None and kind == fitted.middle
    no_metadata = np.zeros(0, dtype=np.float32)
    times = None if fitted.clock is None else fitted.clock.times_now(len(rows))
    feature = Feature(name, kind, False, len(rows), no_metadata, rows, values, finds_scale, times=times)
    return fitted.with_own_units(feature)


def _metadata_of(fitted: ModelState, name: str, parts: Any) -> Mapping[str, object]:
    metadata = parts.get("metadata")
    if metadata is None:
        return {}
    metadata = require_mapping(metadata, f"feature {name!r}: metadata", "{'year': 2026}")
    if fitted.schema is None and metadata:
        raise InputError(f"feature {name!r}: the model was fitted without metadata and can use none")
    return metadata


def _encoded_metadata(fitted: ModelState, records: Mapping[str, Mapping[str, object]]) -> NDArray[np.float32]:
    """Encode the metadata of new features: (n, width); in one call, because encoders are fast on batches."""
    if fitted.schema is None:
        return np.zeros((len(records), 0), dtype=np.float32)
    try:
        columns = [column.name for column in fitted.schema.columns]
        tidy = [tidy_keys(record, columns) for record in records.values()]
        return fitted.schema.encode(tidy, fitted.encoders)
    except InputError as error:
        if len(records) > 1:  # find the feature that caused it
            for name, record in records.items():
                _encoded_metadata(fitted, {name: record})
            raise
        raise type(error)(f"feature {next(iter(records))!r}: {error}") from None


def _kind_of(fitted: ModelState, name: str, given: object) -> Kind:
    """Return the given kind, or the most frequent one; a bare "rating" or "real" has the model's scale."""
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
    # Each real feature of the model has its own scale: the scale of this one is found from its observations.
    return alike[0] if fitted.middle is None else fitted.middle


def _none_of(fitted: ModelState) -> str:
    names = ", ".join(sorted({kind.name for kind in fitted.kinds}))
    advice = f"; give {option_name('kind', 'real')} to read its values as numbers" if "real" in names else ""
    return f"not among those the model was fitted on ({names}){advice}"


def rows_of(fitted: ModelState, rows: Mapping[Any, object]) -> RowCells:
    """Check the observations of new rows, ``{row: {feature: value}}``."""
    checked = []
    for row, observations in rows.items():
        what = f"row {row!r}"
        names, values = numbers(observations, what)
        features = [fitted.catalogue[name] for name in names]
        _check_values(values, names, Kinds([feature.kind for feature in features]), what)
        feature_numbers = np.array([fitted.catalogue.number(name) for name in names], dtype=np.int64)
        order = np.argsort(feature_numbers)
        checked.append(RowObservations(feature_numbers[order], values[order]))
    return RowCells.of(checked)


def encode_rows(fitted: ModelState, rows: Mapping[Any, object]) -> RowStates:
    """Compute the states of new rows, ``{row: {feature: value}}``."""
    return compute_row_states(fitted, rows_of(fitted, rows), [str(row) for row in rows])


class NewRows(NamedTuple):
    """New rows with checked names and metadata."""

    names: list[str]
    given: Mapping[Any, object]  # the observations by row, not yet checked
    records: Sequence[Mapping[str, object]]  # the metadata as given
    encoded: NDArray[np.float32]  # (rows, width): the metadata encoded
    teach: bool  # whether the observations also update the features


def encoded_rows(
    held: RowMetadata | None, names: Sequence[str], given: Mapping[Any, Any] | None
) -> tuple[list[dict[str, object]], NDArray[np.float32]]:
    """Return the metadata of new rows, ``{row: {column: value}}``, as records in their order and encoded."""
    if given is not None and held is None:
        raise InputError("the model was fitted without row metadata and can use none")
    by_row = {} if given is None else require_mapping(given, "metadata of rows", "{'u99': {'age': 31}}")
    tidy = dict(zip(unique_names(by_row, "metadata of rows", "row"), by_row.values(), strict=True))
    unknown = [name for name in tidy if name not in set(names)]
    if unknown:
        raise UnknownNameError(f"metadata is given of row {unknown[0]!r}, which is not among the new rows")
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
    """Observations of rows and features of a model, each cell once, sorted by row and feature."""

    rows: NDArray[np.int64]  # (n,): positions
    features: list[Feature]
    places: NDArray[np.int64]  # (n,): positions in ``features``
    numbers: NDArray[np.int64]  # (n,): of the features in the catalogue
    values: NDArray[np.float64]  # (n,): in the data's own units
    times: NDArray[np.float64] | None = None  # (n,): in a model with a half-life


def read_triples(
    fitted: ModelState, data: object, columns: Columns, text: TextFormat | None = None, time: object = None
) -> Triples:
    """Read observations of this model from a list of (row, feature, value), a frame or a file.

    Raises
    ------
    InputError
        If a name is not in the model, a value is impossible for its kind, or a cell has two values.
    """
    require_clock(fitted, time)
    if isinstance(data, list) and len(data) == 1 and (one := _one_triple(fitted, data[0], time)) is not None:
        return one
    times: NDArray[np.float64] | None = None
    if isinstance(data, (list, tuple)):
        data, times = _split_times(fitted, data, time)
        rows, features, values = _split_triples(data)
        row_numbers = feature_numbers = np.arange(len(rows), dtype=np.int32)
    else:
        if fitted.clock is not None:
            if time is not None and not isinstance(time, str):
                raise InputError(
                    f"{option_name('time')} of a frame or file is the name of a column; got {time!r}"
                )
            columns = columns._replace(time=time or "time")
        read = _read_source(data, columns, text)
        rows, features, times = read.rows, read.features, read.times
        values = read.values.astype(np.float64)
        row_numbers, feature_numbers = read.row_numbers, read.feature_numbers
    row_index = _row_positions(fitted, rows)[row_numbers]
    names, known, feature_index = _features(fitted, features)
    return _checked(fitted, names, known, row_index, feature_index[feature_numbers], values, times)


def triples_of(
    fitted: ModelState,
    feature: Feature,
    rows: NDArray[np.int64],
    values: NDArray[np.float64],
    time: object = None,
) -> Triples:
    """Return checked observations of one feature at one time as triples."""
    require_clock(fitted, time)
    numbers = np.full(len(rows), fitted.catalogue.number(feature.name))
    times = None if fitted.clock is None else np.full(len(rows), time_of(_required(time), "time"))
    return Triples(rows, [feature], np.zeros(len(rows), np.int64), numbers, values, times)


def triples_of_row(
    fitted: ModelState, row: object, observations: ObservationsLike, time: object = None
) -> Triples:
    """Check the observations ``{feature: value}`` of one row and return them as triples."""
    name = as_name(row, "row")
    features, values = numbers(observations, f"row {name!r}")
    triples = [(name, feature, value) for feature, value in zip(features, values.tolist(), strict=True)]
    return read_triples(fitted, triples, Columns(), time=time)


def require_clock(fitted: ModelState, time: object) -> None:
    """Refuse a time in a model without a half-life."""
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


def _split_times(
    fitted: ModelState, given: Sequence[Any], time: object
) -> tuple[Sequence[Any], NDArray[np.float64] | None]:
    """Split a list of (row, feature, value, time) into triples and times."""
    timed = [isinstance(each, Sequence) and not isinstance(each, str) and len(each) == 4 for each in given]
    if any(timed):
        if time is not None:
            raise InputError("the time is given twice, in the list and by itself; keep one")
        require_clock(fitted, True)
        if not all(timed):
            raise InputError(f"entry {timed.index(False)} has no time: {given[timed.index(False)]!r}")
        return [tuple(each[:3]) for each in given], times_of([each[3] for each in given], "time")
    if fitted.clock is None:
        return given, None
    return given, np.full(len(given), time_of(_required(time), "time"))


def _one_triple(fitted: ModelState, given: Any, time: object) -> Triples | None:
    """Return a single valid triple; None for any other, which the full check reports."""
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
    stored = fitted.catalogue[feature]
    scaled = (value - stored.kind.offset) / stored.kind.span if abs(value) <= LARGEST else np.nan
    possible = 0 <= scaled <= 1 if stored.kind.type == KindType.RATING else scaled in (0, 1)
    if not (possible or (stored.kind.type == KindType.REAL and abs(scaled) <= LARGEST)):
        return None
    position = np.array([fitted.rows.position(row)])
    return triples_of(fitted, stored, position, np.array([value], np.float64), time)


def _split_triples(given: Sequence[Any]) -> tuple[list[Any], list[Any], NDArray[np.float64]]:
    for entry, triple in enumerate(given):
        if isinstance(triple, (str, Mapping)) or not isinstance(triple, Sequence) or len(triple) != 3:
            raise InputError(
                f"observe() takes a list of (row, feature, value), as [('u17', 'Alien', 5)]; entry {entry} "
                f"is {triple!r}"
            )
    values = np.empty(len(given))
    for entry, (row, feature, value) in enumerate(given):
        if not isinstance(value, NUMBERS):
            raise InputError(f"row {row!r}, feature {feature!r}: the value must be a number; got {value!r}")
        try:
            values[entry] = value
        except OverflowError:
            values[entry] = np.inf
        if not np.isfinite(values[entry]):
            raise InputError(
                f"row {row!r}, feature {feature!r}: the value is {value}; leave unknown values out"
            )
    return [each[0] for each in given], [each[1] for each in given], values


def _read_source(data: object, columns: Columns, text: TextFormat | None) -> Observations:
    if not (isinstance(data, (str, os.PathLike)) or hasattr(data, "columns") or hasattr(data, "schema")):
        raise InputError(
            "observe() takes a list of (row, feature, value), a frame or the path of a file; got "
            f"{type(data).__name__}; observe_feature() takes the observations of one feature"
        )
    columns = columns.normalise()
    row, feature, value = columns.or_default()
    source = open_source(data, (row, feature, value), text)
    choose_form(source, "long", columns, None)
    return read_long(source, row, feature, value, columns.time)


def _row_positions(fitted: ModelState, rows: list[Any]) -> NDArray[np.int64]:
    try:
        return fitted.rows.positions(rows)
    except UnknownNameError as error:
        advice = for_user("add_rows() adds new ones", "headstart add-rows adds new ones")
        raise UnknownNameError(f"{error}; {advice}") from None


def _features(fitted: ModelState, given: list[Any]) -> tuple[Names, list[Feature], NDArray[np.int64]]:
    """Return the features of these names, each once, and the position of each name among them."""
    catalogue = fitted.catalogue
    names = [
        name if isinstance(name, str) and name in catalogue else as_name(name, "feature") for name in given
    ]
    unique = list(dict.fromkeys(names))
    unknown = [name for name in unique if name not in catalogue]
    if unknown:
        advice = for_user("add_feature() adds new ones", "headstart add-feature adds new ones")
        near = did_you_mean(unknown[0], catalogue if len(catalogue) <= MAX_SUGGESTIONS else ())
        what = f"feature {unknown[0]!r}{near}" if len(unknown) == 1 else f"features: {join_names(unknown)}"
        raise UnknownNameError(f"unknown {what}; {advice}")
    positions = {name: position for position, name in enumerate(unique)}
    features = [catalogue[name] for name in unique]
    return Names(unique, "feature"), features, np.array([positions[name] for name in names], dtype=np.int64)


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

    def where(observation: int) -> str:
        return f"row {fitted.rows[rows[observation]]!r}, feature {names[index[observation]]!r}"

    wrong = kinds.impossible(values, index)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        kind = kinds[index[first]]
        raise InputError(f"{where(first)}: the value {values[first]:g} is not {kind.allowed} (kind {kind})")
    require_representable(values, kinds.scale(values, index), where)
    numbers = np.array([fitted.catalogue.number(feature.name) for feature in features], dtype=np.int64)
    ordered = sort_observations(rows, index, values, (len(fitted.rows), len(names)), times)
    rows, index = ordered.row_index.astype(np.int64), ordered.feature_index.astype(np.int64)
    values, times = ordered.values.astype(np.float64), ordered.times
    repeated = (rows[1:] == rows[:-1]) & (index[1:] == index[:-1])
    if (repeated & (values[1:] != values[:-1])).any():
        first = int(np.argmax(repeated & (values[1:] != values[:-1])))
        raise InputError(
            f"row {fitted.rows[rows[first]]!r}, feature {names[index[first]]!r} is given twice, as "
            f"{values[first]:.12g} and {values[first + 1]:.12g}; keep one"
        )
    once = np.concatenate([np.ones(min(1, len(rows)), dtype=bool), ~repeated])
    times = None if times is None else times[once]
    return Triples(rows[once], features, index[once], numbers[index[once]], values[once], times)
