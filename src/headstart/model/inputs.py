"""Check the arguments of the methods of ``Headstart``, and convert names to positions and values to arrays.

All checks happen before a model changes, so a call with an invalid argument leaves the model unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict, cast, get_args

import numpy as np
from numpy.typing import NDArray

from headstart.core.types import RowStates
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
from headstart.model.levels import category_columns, expand_answers, label_value
from headstart.model.observations import ObservationList, ObservationLists
from headstart.model.row_states import compute_row_states
from headstart.model.rows import RowMetadata
from headstart.model.state import ModelState
from headstart.table import Kind, Kinds, Names, Table
from headstart.table.censored_values import parse_limit
from headstart.table.columns import is_missing
from headstart.table.kind_inference import KindsLike
from headstart.table.kinds import KIND_NAMES, KindType, is_type_of_values, is_value, require_representable
from headstart.table.matrices import is_matrix
from headstart.table.metadata import MetadataSchema
from headstart.table.missing_values import MissingLike, as_missing
from headstart.table.names import as_name, display_spelling
from headstart.table.reading import Form
from headstart.table.sources import advise_on_text, lost_digits
from headstart.table.text_encoders import EncoderLike
from headstart.table.times import check_weights

NEW_ROW = "this row"  # the name of a row that is given by its observations alone

FEATURE_PARTS = (
    "metadata",
    "observations",
    "kind",
    "levels",
    "weight",
)  # the keys of a new feature in add_features()

ObservationsLike = Any  # Mapping[Any, float], or a Series or frame (``as_mapping``)

_OWNERS = ("row", "feature")  # the columns that may hold the names in a frame of observations

_MOST_EXACT = 2**53  # the whole numbers up to it are exact as float64


class ReadOptions(TypedDict, total=False):
    """The parameters of ``Table.read`` that ``fit`` and ``evaluate`` pass on."""

    metadata: object
    row_metadata: object
    row: str | None
    feature: str | None
    value: str | None
    time: str | None
    weight: str | None
    form: Form
    kinds: KindsLike
    metadata_types: Mapping[str, str] | None
    row_metadata_types: Mapping[str, str] | None
    duplicates: Literal["error", "last", "mean"]
    missing: MissingLike
    not_applicable: MissingLike
    encoders: Mapping[str, EncoderLike] | None
    separator: str | None
    decimal: str | None
    encoding: str | None
    row_names: Sequence[object] | None
    feature_names: Sequence[object] | None
    words: Mapping[str, str] | None


def as_table(data: object, method: str, options: ReadOptions, *, quiet: bool) -> Table:
    """Return ``data`` if it is a table; read a frame or the path of a file by ``Table.read``.

    Parameters
    ----------
    data : Table, frame or path
        The observations.
    method : str
        The name of the caller in error messages.
    options : dict
        The parameters of ``Table.read``; they must be empty for a table.
    quiet : bool
        Whether ``Table.read`` prints no notes.
    """
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
    if not (is_frame(data) or is_matrix(data) or isinstance(data, (str, os.PathLike))):
        raise InputError(
            f"{method} takes a Table, a frame, an array or the path of a file (see Table.read); got "
            f"{type(data).__name__}"
        )
    return Table.read(data, quiet=quiet, **options)


def require_mapping(mapping: object, what: str, example: str) -> Mapping[Any, Any]:
    """Return ``mapping``; raise an error with an ``example`` if it is not one."""
    if not isinstance(mapping, Mapping):
        raise InputError(f"{what} must map names to values, as {example}; got {type(mapping).__name__}")
    return mapping


def unique_names(mapping: Mapping[Any, Any], what: str, of: str = "name") -> list[str]:
    """Return the keys as names of rows or features; refuse two keys with the same name, as 1 and "1"."""
    names = [as_name(key, of) for key in mapping]
    if len({*names}) < len(names):
        keys: dict[str, object] = {}
        for name, key in zip(names, mapping, strict=True):
            if name in keys:
                both = f"{display_spelling(keys[name])} and {display_spelling(key)}"
                raise InputError(f"{what}: {name!r} is given twice, as {both}; keep one")
            keys[name] = key
    return names


def as_list(names: Any) -> list[Any]:
    """Return one name or several names as a list."""
    if isinstance(names, str) or np.isscalar(names):
        return [names]
    several = isinstance(names, Iterable) and hasattr(names, "__len__")  # an iterator may be endless
    if not several or isinstance(names, Mapping) or is_frame(names):
        raise InputError(f"names must be a list of names; got {type(names).__name__}")
    return list(names)


def optional_list(names: Any) -> list[Any] | None:
    """Return one name or several names as a list; None, for all of them, stays None."""
    return None if names is None else as_list(names)


def whole_number(n: object, what: str) -> int:
    """Return ``n``; raise an error if it is not a whole number from 1 up."""
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise InputError(f"{what} takes a whole number n from 1 up; got {n!r}")
    return int(n)


def seed_number(seed: object) -> int:
    """Return a ``seed``; raise an error if it is not a whole number from 0 up that fits into 63 bits."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**63:
        raise InputError(
            f"{option_name('random_state')} must be a whole number from 0 up, below 2**63; got {seed!r}"
        )
    return int(seed)


def truth(value: object, what: str) -> bool:
    """Return ``value``; raise an error if it is neither True nor False: the text "no" would count as true."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{option_name(what)} must be True or False; got {value!r}")
    return bool(value)


def tidy_keys(metadata: Mapping[Any, object], columns: list[str]) -> dict[Any, object]:
    """Return ``metadata`` with the spelling of the model's ``columns`` for its keys.

    Keys that are not text stay, because the schema raises an error about them.
    """
    tidy: dict[Any, object] = {}
    for key, value in metadata.items():
        column = as_name(key, "column name") if isinstance(key, str) and key not in columns else key
        if column in tidy:
            raise InputError(f"metadata {column!r} is given twice, in two spellings; keep one")
        tidy[column] = value
    return tidy


def is_observations(data: object) -> bool:
    """Return whether ``data`` can hold the observations of one row or feature: a mapping, Series or frame."""
    return isinstance(data, Mapping) or _to_narwhals(data) is not None


def is_frame(data: object) -> bool:
    """Return whether ``data`` is a data frame of pandas, polars, pyarrow or another library."""
    return hasattr(_to_narwhals(data), "columns")  # a Series has none


def as_mapping(data: object, what: str) -> object:
    """Convert a Series or frame to a mapping of names to values; return other ``data`` unchanged.

    The index of a pandas Series holds the names. A frame has two columns: names and values, in this order or
    called ``row`` or ``feature`` and ``value``. Missing values are left out.
    """
    if isinstance(data, Mapping):
        return data
    frame = _to_narwhals(data)
    if frame is None:
        return data
    if not hasattr(frame, "columns"):
        native = frame.to_native()
        if not hasattr(native, "index"):
            raise InputError(
                f"{what}: a {type(native).__module__.split('.')[0]} Series has no names; give a frame of "
                "names and values, or a dict"
            )
        return _to_dict(native.index.tolist(), native.tolist(), what)
    names, values = _name_and_value_columns(frame, what)
    return _to_dict(frame[names].to_list(), frame[values].to_list(), what)


def as_row_mapping(data: object, what: str) -> object:
    """Convert a frame with the columns row, feature and value to ``{row: {feature: value}}``.

    Other ``data`` is returned unchanged.
    """
    frame = None if isinstance(data, (Mapping, str)) else _to_narwhals(data)
    if frame is None or not hasattr(frame, "columns"):
        return data
    columns = ("row", "feature", "value")
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise InputError(
            f"{what}: the frame has no column {missing[0]!r}; its columns are {join_names(frame.columns)}"
        )
    rows: dict[Any, dict[Any, Any]] = {}
    for row, feature, value in zip(*(frame[name].to_list() for name in columns), strict=True):
        observations = rows.setdefault(as_name(row, "row"), {})
        if is_missing(value):
            continue
        if feature in observations:
            raise InputError(f"{what}: row {row!r} has two values of feature {feature!r}; keep one")
        observations[feature] = value
    return rows


def _to_narwhals(data: object) -> Any:
    """Return a frame or Series of any library as one of narwhals; None for other ``data``."""
    if isinstance(data, (str, bytes, int, float, list, tuple, set, np.ndarray)) or data is None:
        return None
    import narwhals as nw  # imported here: few calls pass a frame

    try:
        frame: Any = nw.from_native(data, allow_series=True)
    except TypeError:
        return None
    return frame.collect() if isinstance(frame, nw.LazyFrame) else frame


def _name_and_value_columns(frame: Any, what: str) -> tuple[str, str]:
    owners = [name for name in _OWNERS if name in frame.columns]
    if "value" in frame.columns and len(owners) == 1:
        return owners[0], "value"
    if len(frame.columns) == 2:
        return frame.columns[0], frame.columns[1]
    raise InputError(
        f"{what}: a frame of observations has two columns, names and values; got {join_names(frame.columns)}"
    )


def _to_dict(names: Iterable[object], values: Iterable[object], what: str) -> dict[object, object]:
    """Return ``{name: value}`` without missing values; refuse a name that occurs twice."""
    observations: dict[object, object] = {}
    for name, value in zip(names, values, strict=True):
        if is_missing(value):
            continue
        if name in observations:
            raise InputError(f"{what}: {display_spelling(name)} is given twice; keep one")
        observations[name] = value
    return observations


def split_observations(observations: object, what: str) -> tuple[list[str], NDArray[np.float64]]:
    """Split the observations of one row or feature into names and finite values."""
    by_name = require_mapping(as_mapping(observations, what), f"{what}: observations", "{'u17': 5}")
    names = unique_names(by_name, what)
    if not all(map(is_type_of_values, {*map(type, by_name.values())})):
        name, value = next(
            (name, value) for name, value in zip(names, by_name.values(), strict=True) if not is_value(value)
        )
        raise InputError(
            f"{what}: the value at {name!r} must be a number; got {value!r}{advise_on_value(value)}"
        )
    try:
        values = np.array(list(by_name.values()), dtype=np.float64)
    except OverflowError:
        raise InputError(f"{what}: a value is too large to be a number here") from None
    if np.abs(values).max(initial=0.0) >= _MOST_EXACT:
        for name, value in zip(names, by_name.values(), strict=True):
            if isinstance(value, int | np.integer):
                require_digits(value, f"{what}, at {name!r}")
    if not np.isfinite(values).all():
        first = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(
            f"{what}: the value at {names[first]!r} is {values[first]}; leave unknown values out"
        )
    return names, values


def require_digits(value: int | np.integer, what: str) -> None:
    """Raise an error if a whole number loses digits as float64; one that is too large is refused later."""
    if -_MOST_EXACT <= value <= _MOST_EXACT:
        return
    try:
        exact = int(float(value)) == int(value)
    except OverflowError:
        return
    if not exact:
        raise lost_digits(what, int(value))


def advise_on_value(value: object) -> str:
    """Return advice on a text in place of an observed value; nothing for other types."""
    if not isinstance(value, str):
        return ""
    if parse_limit(value) is not None:
        return "; a limit is only read in a table: give its expected value, with a weight below 1"
    yes_or_no = advise_on_text(value) if "1 for true" in advise_on_text(value) else ""
    return yes_or_no or "; write answers as numbers, and leave missing values out"


def check_context(
    feature: str, observations: object, kind: Kind, rows: Names, advice: str = ""
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Check the context of a feature.

    Parameters
    ----------
    feature : str
        The name of the feature.
    observations : dict, Series or frame
        The observations ``{row: value}``.
    kind : Kind
        The kind of the feature.
    rows : Names
        The rows of the model.
    advice : str, default=""
        A clause that ends the message about a value that is impossible for the kind.

    Returns
    -------
    positions : ndarray of shape (n,)
        The positions of the rows, ascending.
    values : ndarray of shape (n,)
        Their numbers.
    order : ndarray of shape (n,)
        The index of each in ``observations``.
    """
    what = f"feature {feature!r}"
    if kind.margin.labels:
        answers = require_mapping(as_mapping(observations, what), f"{what}: observations", "{'u17': 5}")
        observations = {row: label_value(kind, value, what) for row, value in answers.items()}
    names, values = split_observations(observations, what)
    which = np.zeros(len(names), dtype=np.int64)
    values = as_numbers(values, Kinds([kind]), which, what, names, advice)
    try:
        positions = rows.positions(names)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"{what}: {error}; a context can only hold rows the model knows ("
            + for_user("add_rows() adds new ones", "headstart add-rows adds new ones", "add it first")
            + ")"
        ) from None
    order = np.argsort(positions)
    return positions[order], values[order], order


def as_numbers(
    values: NDArray[np.float64],
    kinds: Kinds,
    which: NDArray[Any],
    owner: str | Callable[[int], str],
    names: Sequence[str] | None = None,
    advice: str = "",
) -> NDArray[np.float64]:
    """Return observed values as numbers of their kinds; refuse impossible ones.

    Parameters
    ----------
    values : ndarray of shape (n,)
        The values, finite.
    kinds : Kinds
        The kinds of the features.
    which : ndarray of shape (n,)
        The position of each value's kind in ``kinds``.
    owner : str or callable
        The row or feature of all values, for messages; or a function that returns row and feature of the
        value at a position.
    names : sequence of str, optional
        The name of each value, if ``owner`` is the row or feature of all.
    advice : str, default=""
        A clause that ends the message about an impossible value.
    """

    def owner_at(position: int) -> str:
        return owner if isinstance(owner, str) else owner(position)

    def name_at(position: int) -> str:
        return "" if names is None else f" at {names[position]!r}"

    impossible = kinds.impossible(values, which)
    if impossible.any():
        first = int(np.flatnonzero(impossible)[0])
        kind = kinds[which[first]]
        raise InputError(
            f"{owner_at(first)}: the value {values[first]:g}{name_at(first)} is not {kind.allowed} "
            f"(kind {kind.option}){advice}{advise_on_missing(values[first])}"
        )
    numbers: NDArray[np.float64] = kinds.numbers(values, which)
    scaled = kinds.scale_numbers(numbers, which)
    require_representable(values, scaled, lambda position: owner_at(position) + name_at(position))
    return numbers


def advise_on_missing(value: float) -> str:
    """Return the advice of a command on a value that may be a code for a missing value."""
    return for_user("", f"; if it means 'missing', use {as_missing([value])}")


def check_new_features(model: ModelState, features: Mapping[Any, object]) -> list[Feature]:
    """Check new features, ``{name: {"metadata": …, …}}``, and return them without heads."""
    checked = [_new_feature(model, name, parts) for name, parts in features.items()]
    records = {
        feature.name: _metadata_of(model, feature.name, parts)
        for feature, parts in zip(checked, features.values(), strict=True)
    }
    encoded = _encode_metadata(model, records)
    return [
        replace(feature, metadata=vector, record=_drop_missing(record))
        for feature, vector, record in zip(checked, encoded, records.values(), strict=True)
    ]


def describe_unusual(
    schema: MetadataSchema | None, records: Sequence[Mapping[str, object] | None]
) -> list[str]:
    """Return messages about metadata of new features or rows that is not known to the model, at most six."""
    messages = [] if schema is None else schema.describe_unusual([record or {} for record in records])
    more = [f"{len(messages) - 5} more"] if len(messages) > 5 else []
    return messages[:5] + more


def _drop_missing(record: Mapping[Any, object]) -> dict[str, object]:
    """Return metadata by tidy column names, without missing values."""
    return {as_name(key, "column name"): value for key, value in record.items() if not is_missing(value)}


def _new_feature(model: ModelState, key: object, parts: object) -> Feature:
    """Check a new feature; its head and its metadata follow later."""
    name = as_name(key, "feature")
    if name in model.feature_store:
        if model.feature_store[name].fixed:
            advice = for_user("fit() again to change it", "fit the model again to change it")
        else:
            observe = for_user("use observe_feature()", "use headstart observe-feature")
            advice = f"{observe} to add observations to it"
        raise InputError(f"feature {name!r} is already in the model; {advice}")
    if category_columns(model, name):
        raise InputError(f"feature {name!r} is already in the model")
    by_part = require_mapping(parts, f"feature {name!r}", "{'metadata': …, 'observations': …}")
    for part in by_part:
        if part not in FEATURE_PARTS:
            raise InputError(
                f"feature {name!r}: unknown part {part!r}{did_you_mean(str(part), FEATURE_PARTS)}"
            )
    observations = {} if by_part.get("observations") is None else by_part["observations"]
    kind = _feature_kind(model, name, by_part.get("kind"))
    advice = f"; {option_name('kind')} gives the feature another kind" if by_part.get("kind") is None else ""
    rows, values, order = check_context(name, observations, kind, model.rows, advice)
    finds_scale = kind.shares_units(model.middle)
    no_metadata = np.zeros(0, dtype=np.float32)
    times = None if model.clock is None else model.clock.times_now(len(rows))
    weights = context_weights(model, by_part.get("weight"), rows, f"feature {name!r}")
    feature = Feature(name, kind, False, len(rows), no_metadata, rows, values, finds_scale, weights=weights)
    return model.with_own_units(replace(feature, arrivals=model.arrivals + order, times=times))


def _metadata_of(model: ModelState, name: str, parts: Any) -> Mapping[str, object]:
    """Return the metadata of a new feature by column, not yet encoded."""
    metadata = parts.get("metadata")
    if metadata is None:
        return {}
    metadata = require_mapping(metadata, f"feature {name!r}: metadata", "{'year': 2026}")
    if model.schema is None and metadata:
        raise InputError(f"feature {name!r}: the model was fitted without metadata and can use none")
    return metadata


def _encode_metadata(model: ModelState, records: Mapping[str, Mapping[str, object]]) -> NDArray[np.float32]:
    """Encode the metadata of new features, ``{name: {column: value}}``: (n, width).

    All are encoded in one call, because encoders are fast on batches.
    """
    if model.schema is None:
        return np.zeros((len(records), 0), dtype=np.float32)
    try:
        columns = [column.name for column in model.schema.columns]
        tidy = [tidy_keys(record, columns) for record in records.values()]
        return model.schema.encode(tidy, model.encoders)
    except InputError as error:
        if len(records) > 1:  # encode one at a time, so that the message names the feature
            for name, record in records.items():
                _encode_metadata(model, {name: record})
            raise
        raise type(error)(f"feature {next(iter(records))!r}: {error}") from None


def _feature_kind(model: ModelState, name: str, kind: object) -> Kind:
    """Return the kind of a new feature.

    ``kind`` is a ``Kind`` or a text such as "rating:1:5". A name alone, such as "rating", means the scale of
    the model's features, and None the most frequent kind of the model.
    """
    kind_name = model.kinds[0].name if kind is None else str(kind)
    if isinstance(kind, Kind) or kind_name not in KIND_NAMES:
        parsed = kind if isinstance(kind, Kind) else Kind.parse(kind_name)
        if parsed.type not in {known.type for known in model.kinds}:
            raise InputError(f"feature {name!r}: kind {parsed} is {_not_among_kinds(model)}")
        if parsed.margin.is_complete:
            return parsed
        same = [known for known in model.kinds if known.option == parsed.option]
        # Levels that the model does not know get scores as if all were equally frequent.
        nothing = np.zeros(0)
        return same[0] if same else replace(parsed, margin=parsed.margin.learn(nothing, nothing, 0))
    matches = [known for known in model.kinds if known.name == kind_name]
    if not matches:
        raise InputError(f"feature {name!r}: kind {kind_name} is {_not_among_kinds(model)}")
    first = matches[0]
    if len(matches) == 1 or (kind is None and first.type != KindType.REAL):
        return first
    if plain := [known for known in matches if known.type != KindType.REAL and known.option == kind_name]:
        return plain[0]  # 0 and 1 without labels
    if first.type != KindType.REAL:
        raise InputError(f"feature {name!r}: say its ends, as {option_name('kind', first.option)}")
    # Each real feature of the model has its own scale: the scale of this one is found from its observations.
    middle = model.middle
    return first if middle is None else first.with_units(middle.first, middle.second)


def _not_among_kinds(model: ModelState) -> str:
    """Return the end of the message about a kind that the model was not fitted on."""
    names = ", ".join(sorted({kind.name for kind in model.kinds}))
    advice = f"; give {option_name('kind', 'real')} to read its values as numbers" if "real" in names else ""
    return f"not among those the model was fitted on ({names}){advice}"


def answers_of(model: ModelState, row: object, observations: object) -> dict[Any, Any]:
    """Return the observations ``{feature: value}`` of a row with labels and categories as numbers."""
    what = f"row {row!r}"
    answers = require_mapping(as_mapping(observations, what), f"{what}: observations", "{'Alien': 5}")
    return expand_answers(model, answers, what)


def check_rows(model: ModelState, rows: Mapping[Any, object]) -> tuple[ObservationLists, NDArray[np.int64]]:
    """Check the observations of rows, ``{row: {feature: value}}``.

    Returns
    -------
    lists : ObservationLists
        The observations of each row, by ascending numbers of features.
    order : ndarray of shape (n,)
        The index of each observation in the order of ``rows``.
    """
    checked, orders, first = [], [np.zeros(0, np.int64)], 0
    for row, observations in rows.items():
        what = f"row {row!r}"
        names, values = split_observations(answers_of(model, row, observations), what)
        features = [model.feature_store[name] for name in names]
        kinds = Kinds([feature.kind for feature in features])
        values = as_numbers(values, kinds, np.arange(len(values)), what, names)
        feature_numbers = np.array([model.feature_store.number(name) for name in names], dtype=np.int64)
        order = np.argsort(feature_numbers)
        checked.append(ObservationList(feature_numbers[order], values[order]))
        orders.append(first + order)
        first += len(order)
    return ObservationLists.of(checked), np.concatenate(orders)


def encode_rows(model: ModelState, rows: Mapping[Any, object]) -> RowStates:
    """Compute the states of rows that are not in the model, ``{row: {feature: value}}``."""
    return compute_row_states(model, check_rows(model, rows)[0], [str(row) for row in rows])


def rows_with_states(model: ModelState, rows: Any, what: str) -> tuple[Names, RowStates]:
    """Return the names and states of rows.

    Parameters
    ----------
    model : ModelState
        The model.
    rows : list, dict, frame, Table or None
        Names of rows of the model, all by default; or rows that are not in the model, with their
        observations.
    what : str
        The name of the caller in messages.
    """
    if isinstance(rows, Table):
        lists = _lists_of_table(model, rows)
        return rows.rows, compute_row_states(model, lists, list(rows.rows))
    rows = as_row_mapping(rows, what)
    if isinstance(rows, Mapping):
        return Names(unique_names(rows, what, "row"), "row"), encode_rows(model, rows)
    if rows is None:
        return model.rows, model.states
    names = Names([as_name(row, "row") for row in as_list(rows)], "row")
    try:
        return names, model.row_store.take(model.rows.positions(names))
    except UnknownNameError as error:
        python = "a row that is not in the model is given with its observations, as {'u99': {'Alien': 5}}"
        advice = for_user(python, "--new-rows FILE predicts rows from their observations")
        raise UnknownNameError(with_advice(str(error), advice)) from None


def _lists_of_table(model: ModelState, table: Table) -> ObservationLists:
    """Check the observations of a table whose rows are not in the model; its features are."""
    features = [model.feature_store[name] for name in table.features]
    kinds = Kinds([feature.kind for feature in features])
    values, index = table.values.astype(np.float64), table.feature_index

    def where(i: int) -> str:
        return f"row {table.rows[table.row_index[i]]!r}, feature {table.features[index[i]]!r}"

    numbers = as_numbers(values, kinds, index, where)
    keys = np.array([model.feature_store.number(name) for name in table.features], dtype=np.int64)[index]
    order = np.lexsort((keys, table.row_index))
    counts = np.bincount(table.row_index, minlength=len(table.rows))
    return ObservationLists(counts, keys[order], numbers[order])


class NewRows(NamedTuple):
    """New rows with checked names and metadata."""

    names: list[str]
    observations: Mapping[Any, object]  # {row: {feature: value}}, not yet checked
    records: Sequence[Mapping[str, object]]  # the metadata of each row, {column: value}
    encoded: NDArray[np.float32]  # (rows, width): the encoded metadata
    update_features: bool  # whether the observations also update the heads of their features


def check_new_rows(
    model: ModelState, rows: Mapping[Any, ObservationsLike] | Any, metadata: object, update: object
) -> NewRows:
    """Check new rows with their metadata; the parameters are those of ``Headstart.add_rows``."""
    by_name = require_mapping(as_row_mapping(rows, "add_rows()"), "add_rows()", "{'u99': {'Alien': 5}}")
    names = unique_names(by_name, "add_rows()", "row")
    if not isinstance(update, str) or update not in ("rows", "both"):
        raise InputError(f"add_rows(): update must be 'rows' or 'both'; got {update!r}")
    if existing := [name for name in names if name in model.rows]:
        raise InputError(f"row {existing[0]!r} is already in the model")
    records, encoded = encode_row_metadata(model.row_metadata, names, metadata)
    answers = {row: answers_of(model, row, observations) for row, observations in by_name.items()}
    return NewRows(names, answers, records, encoded, update_features=update == "both")


def encode_row_metadata(
    row_metadata: RowMetadata | None, names: Sequence[str], metadata: object
) -> tuple[list[dict[str, object]], NDArray[np.float32]]:
    """Check and encode the metadata of new rows.

    Parameters
    ----------
    row_metadata : RowMetadata or None
        The row metadata of the model, with the schema.
    names : sequence of str
        The new rows.
    metadata : dict or None
        ``{row: {column: value}}``; rows and columns may be missing.

    Returns
    -------
    records : list of dict
        The metadata of each row, ``{column: value}``.
    encoded : ndarray of shape (rows, width)
        The encoded metadata.
    """
    if metadata is not None and row_metadata is None:
        raise InputError("the model was fitted without row metadata and can use none")
    by_row = {} if metadata is None else require_mapping(metadata, "metadata of rows", "{'u99': {'age': 31}}")
    tidy = dict(zip(unique_names(by_row, "metadata of rows", "row"), by_row.values(), strict=True))
    unknown = [name for name in tidy if name not in set(names)]
    if unknown:
        raise UnknownNameError(f"metadata is given of row {unknown[0]!r}, which is not among the new rows")
    if row_metadata is None:
        return [{} for _ in names], np.zeros((len(names), 0), np.float32)
    columns = [column.name for column in row_metadata.schema.columns]
    records: list[dict[str, object]] = []
    for name in names:
        record = require_mapping(tidy.get(name) or {}, f"row {name!r}: metadata", "{'age': 31}")
        records.append(tidy_keys(record, columns))
        try:
            if len(record):
                row_metadata.schema.encode([records[-1]])
        except InputError as error:
            raise type(error)(f"row {name!r}: {error}") from None
    return records, row_metadata.schema.encode(records) if records else row_metadata.encoded[:0]


Unknown = Literal["error", "add", "skip"]


def check_unknown(unknown: object) -> Unknown:
    """Return what to do with unknown names; raise an error if it is none of the choices."""
    if not isinstance(unknown, str) or unknown not in get_args(Unknown):
        choices = "'error', 'add' or 'skip'"
        raise InputError(f"{option_name('unknown')} must be {choices}; got {unknown!r}")
    return cast(Unknown, unknown)


def require_weights(model: ModelState, weight: object) -> None:
    """Raise an error if a weight is given to a model whose parts read no weights."""
    if weight is not None and not (model.adapter.supports_weights and model.backbone.supports_weights):
        raise InputError(
            f"{option_name('weight')} was given, but the observations of this model all count alike; leave "
            f"it out, or fit with {option_name('backbone', 'factorisation')} and "
            f"{option_name('adapter', 'bayes')}, chn-bayes or auto"
        )


def context_weights(
    model: ModelState, weight: object, rows: NDArray[np.int64], what: str
) -> NDArray[np.float64] | None:
    """Return the weights of the observations of ``rows`` (n,) of one feature: (n,); None: all 1.

    ``weight`` is one number, or ``{row: number}``; rows that are not named have the weight 1.
    """
    require_weights(model, weight)
    if isinstance(weight, Mapping):
        weight_of_row = dict(
            zip(model.rows.positions(unique_names(weight, what, "row")), weight.values(), strict=True)
        )
        unknown = [position for position in weight_of_row if position not in set(rows.tolist())]
        if unknown:
            raise InputError(f"{what}: row {model.rows[unknown[0]]!r} has a weight and no observation")
        weight = [weight_of_row.get(position, 1.0) for position in rows.tolist()]
    return weights_of(weight, len(rows), lambda i: f"{what}, row {model.rows[rows[i]]!r}")


def answer_weights(model: ModelState, weight: object, rows: list[Any], what: str) -> object:
    """Return the weights of the answers of ``rows`` to a category, one for each; one number stays one."""
    if not isinstance(weight, Mapping):
        return weight
    positions = row_positions(model, rows)
    weights = context_weights(model, weight, positions, what)
    return None if weights is None else weights.tolist()


def weights_of(weight: object, count: int, where: Callable[[int], str]) -> NDArray[np.float64] | None:
    """Return checked weights of ``count`` observations, from one number or one for each; None: all 1."""
    if weight is None:
        return None
    numbers = [weight] * count if is_value(weight) else weight
    if not isinstance(numbers, (list, tuple, np.ndarray)) or not all(is_value(number) for number in numbers):
        raise InputError(f"{option_name('weight')} must be a number above 0, or one for each; got {weight!r}")
    if len(numbers) != count:
        raise InputError(
            f"{option_name('weight')} has {len(numbers)} numbers for {count} observations; give one for each"
        )
    return check_weights(np.array(numbers, dtype=np.float64), where)


def row_positions(model: ModelState, rows: list[Any]) -> NDArray[np.int64]:
    """Return the positions of rows; raise an error with advice if one is not in the model."""
    try:
        return model.rows.positions(rows)
    except UnknownNameError as error:
        advice = for_user(
            "add_rows() adds new ones, or unknown='add'",
            "headstart add-rows adds new ones, or --unknown add",
            "add it first",
        )
        raise UnknownNameError(with_advice(str(error), advice)) from None
