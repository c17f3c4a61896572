"""Read observations and metadata from sources into the fields of a table.

The steps: ``read_long`` or ``read_wide`` number the names in the order of the source, ``sort_observations``
sorts by (row, feature), ``merge_duplicates`` keeps one value per cell; ``assemble`` calls them all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.display import count
from headstart.distributed import rows_are_sharded, run_in_each_process
from headstart.errors import InputError, UnknownNameError, for_user, join_names, option_name
from headstart.progress import Reporter
from headstart.table import text_encoders
from headstart.table.cells import (
    MOST_POSITIONS,
    Floats,
    Positions,
    chunk_slices,
    is_sorted,
    smallest_exact,
    take_positions,
)
from headstart.table.kind_inference import KindsLike, check_values, parse_kind, resolve_kinds
from headstart.table.kinds import Kind, Kinds
from headstart.table.labels import LabelledSource, describe_columns, needs_labels, resolve_labels
from headstart.table.metadata import MetadataSchema, align, check_finite, describe_unused, read_metadata
from headstart.table.names import NameNumbering, Names, as_name, sorted_names
from headstart.table.not_applicable import NO_CELLS, NotApplicable, find_cells
from headstart.table.shards import local_source, shard_rows
from headstart.table.sources import Source, TextFormat, is_text_file, open_metadata, open_source
from headstart.table.text_encoders import EncoderLike
from headstart.table.times import check_weights, times_of
from headstart.table.vector_columns import TextColumn
from headstart.table.words import Words

DUPLICATES = ("error", "last", "mean", "sum")

Form = Literal["auto", "long", "wide"]

Axis = Literal["row", "feature"]

Batches = tuple[list[NDArray[Any]], list[NDArray[Any]], list[NDArray[Any]]]  # rows, features, values

T = TypeVar("T")

_FEW = 2**16  # observations up to which sorting by comparison is fast enough, without SciPy

# -- columns and form -------------------------------------------------------------------------------


class Columns(NamedTuple):
    """The columns of row, feature, value, time and weight that the user named; None for the others."""

    row: str | None = None
    feature: str | None = None
    value: str | None = None
    time: str | None = None  # there is none unless it is named
    weight: str | None = None  # there is none unless it is named

    def normalise(self) -> Columns:
        """Return the columns with normalised names."""
        return Columns(*(None if name is None else as_name(name, "column name") for name in self))

    def or_default(self) -> tuple[str, str, str]:
        """Return the columns of row, feature and value, with these words as defaults."""
        return self.row or "row", self.feature or "feature", self.value or "value"


def choose_form(
    source: Source, form: Form, columns: Columns, described: Sequence[str] | None, *, clicks: bool = False
) -> Form:
    """Return "long" or "wide", and check that the source has the columns of that form.

    A column that the user named must exist. ``described`` are the features with metadata, if there is
    metadata: then ``columns.feature`` may be a column of the metadata only. ``clicks`` need no values.
    """
    if form not in ("auto", "long", "wide"):
        raise InputError(f"form must be 'auto', 'long' or 'wide'; got {form!r}")
    row, feature, value = columns.or_default()
    if form == "auto":
        # If one of the other two columns exists, the table is long and the second one is misspelled.
        wide = row in source.columns and feature not in source.columns and value not in source.columns
        form = "wide" if wide else "long"
        if wide and described is not None and not set(described) & set(source.columns):
            described = None  # the metadata does not describe these columns
    required = {"row": row} if form == "wide" else {"row": row, "feature": feature, "value": value}
    if len(set(required.values())) < len(required):
        raise InputError(
            f"row, feature and value must be three different columns; got {join_names(required.values())}"
        )
    if form == "wide":
        if columns.feature is not None and described is None:
            required["feature"] = feature
        if columns.value is not None:
            required["value"] = value
    if clicks and form == "long" and columns.value is None and value not in source.columns:
        del required["value"]
    for name, column in required.items():
        try:
            source.require(column, name)
        except UnknownNameError as error:
            if name != "value" or columns.value is not None:
                raise
            hint = "if every line is a click, a purchase or a view, read it with"
            raise UnknownNameError(f"{error}; {hint} {option_name('kinds', 'click')}") from None
    if columns.time is not None:
        if form == "wide":
            raise InputError(
                f"{option_name('time', columns.time)} names a column of the long form: "
                "one line per observation"
            )
        source.require(columns.time, "time")
        if columns.time in required.values():
            raise InputError(
                f"{option_name('time', columns.time)} names the column of the"
                f" {next(name for name, column in required.items() if column == columns.time)}; the times of"
                " observations are a column of their own"
            )
    if columns.weight is not None:
        source.require(columns.weight, "weight")
        if columns.weight in (*required.values(), columns.time):
            raise InputError(
                f"{option_name('weight', columns.weight)} names a column that has another role already; "
                "weights need a column of their own"
            )
    return form


# -- observations in the order of the source --------------------------------------------------------


@dataclass(frozen=True)
class Observations:
    """Observations in the order of the source. Numbers are positions in ``rows`` and ``features``."""

    rows: list[str]
    features: list[str]
    row_numbers: NDArray[np.int32]  # (n,)
    feature_numbers: NDArray[np.int32]  # (n,)
    values: Floats  # (n,)
    notes: tuple[str, ...]
    spellings: dict[str, str]  # of each row and feature with several spellings, for messages
    times: NDArray[np.float64] | None = None  # (n,)
    weights: NDArray[np.float64] | None = None  # (n,); None: all 1


def read_long(
    source: Source, row: str, feature: str, value: str, time: str | None = None, weight: str | None = None
) -> Observations:
    """Read one observation per line. A line with a null value only adds its names to the table.

    Without a column ``value`` every line is an observation of 1.
    """
    rows, features = NameNumbering("row"), NameNumbering("feature")
    batches: Batches = [], [], []
    records = nulls = 0
    times: list[pa.Array] = []
    weights: list[NDArray[np.float64]] = []
    names = [row, feature] if time is None else [row, feature, time]
    has_values = value in source.columns
    numbers = [column for column in (value if has_values else None, weight) if column is not None]
    for batch in source.batches(names, numbers):
        location = _record_places(source, records)
        row_numbers = rows.number(batch.column(0), location)
        feature_numbers = features.number(batch.column(1), location)
        column = batch.column(len(names)) if has_values else pa.array(np.ones(len(batch)))
        values = column.to_numpy(zero_copy_only=False)
        if time is not None:
            times.append(batch.column(2).filter(column.is_valid()))
        if weight is not None:
            weights.append(_to_floats(batch.column(len(names) + has_values).filter(column.is_valid())))
        if column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            row_numbers, feature_numbers, values = row_numbers[valid], feature_numbers[valid], values[valid]
        if (bad := _first_non_finite(values)) is not None:
            row_name, feature_name = rows.names[row_numbers[bad]], features.names[feature_numbers[bad]]
            raise _non_finite(f"row {row_name!r}, feature {feature_name!r}", values[bad])
        _append(batches, row_numbers, feature_numbers, smallest_exact(values))
        records, nulls = records + len(batch), nulls + column.null_count
    notes = [*source.notes, *rows.notes(), *features.notes()]
    used = (row, feature, value, time, weight)
    if unused := [column for column in source.columns if column not in used]:
        notes.append(f"{source.label}: columns not used: {join_names(unused)}")
    notes += _note_missing(source)
    if nulls:
        notes.append(f"{source.label}: {nulls} lines without a value were not counted as observations")
    observations = _concatenate(source, rows, features.names, batches, notes, features.spellings)
    if time is not None:
        label = f"{source.label}: {time!r}"
        observations = replace(observations, times=times_of(pa.chunked_array(times), label))
    return observations if weight is None else _with_weights(observations, source, weight, weights)


def read_wide(
    source: Source,
    row: str,
    only: Sequence[str] | None = None,
    axis: Axis = "row",
    weight: str | None = None,
) -> Observations:
    """Read one line per row and one column per feature. A blank cell is not observed.

    A column may be blank in all lines. ``only`` restricts the features to some of the columns. Messages call
    the names in the column ``row`` as ``axis`` says. The column ``weight`` holds the weight of all
    observations of a row.
    """
    rows = NameNumbering(axis)
    columns = [column for column in only or source.columns if column not in (row, weight)]
    if not columns:
        raise InputError(
            f"{source.label} has no column besides {row!r}; the wide form needs one column per feature"
        )
    features = [as_name(column, f"feature (a column of {source.label})") for column in columns]
    batches: Batches = [], [], []
    records = 0
    weights: list[NDArray[np.float64]] = []
    for batch in source.batches([row], columns if weight is None else [*columns, weight]):
        row_numbers = rows.number(batch.column(0), _record_places(source, records))
        lines, feature_numbers, values = _observed_cells(batch.select(columns))
        if (bad := _first_non_finite(values)) is not None:
            name, feature = rows.names[row_numbers[lines[bad]]], features[feature_numbers[bad]]
            of_feature = f", feature {feature!r}" if axis == "row" else ""
            raise _non_finite(f"{axis} {name!r}{of_feature}", values[bad])
        _append(batches, row_numbers[lines], feature_numbers.astype(np.int32), smallest_exact(values))
        if weight is not None:
            weights.append(_to_floats(batch.column(weight))[lines])
        records += len(batch)
    notes = [
        *source.notes,
        *rows.notes(),
        f"{source.label}: read in the wide form, one column per feature; "
        f"{option_name('form', 'long')} reads the long form",
        *_note_missing(source),
    ]
    observations = _concatenate(source, rows, features, batches, notes, {})
    return observations if weight is None else _with_weights(observations, source, weight, weights)


def _to_floats(column: pa.Array) -> NDArray[np.float64]:
    """Return numbers of a column, NaN where it is null: (n,)."""
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _with_weights(
    observations: Observations, source: Source, column: str, weights: list[NDArray[np.float64]]
) -> Observations:
    """Return the observations with the checked ``weights`` that batches of the ``column`` hold."""

    def where(i: int) -> str:
        row = observations.rows[observations.row_numbers[i]]
        return f"row {row!r}, feature {observations.features[observations.feature_numbers[i]]!r}"

    checked = check_weights(np.concatenate([*weights, np.zeros(0)]), where)
    if checked is None:
        return observations
    mean, notes = float(checked.mean()), observations.notes
    if not 0.5 <= mean <= 2:
        note = (
            f"{source.label}: the weights {column!r} average {mean:.4g}, so that one observation counts as "
            f"{mean:.4g}; divide survey weights by their mean"
        )
        notes = (*notes, note)
    return replace(observations, weights=checked, notes=notes)


def read_values(source: Source, read: Callable[[Source], T], weight: str | None = None) -> tuple[Source, T]:
    """Read a source; if its values are not numbers, read them as labels. Return the source that was read.

    The column ``weight`` has no labels.
    """
    try:
        return source, read(source)
    except InputError as error:
        if rows_are_sharded():
            raise
        labelled = LabelledSource(source, error, weight)
        return labelled, read(labelled)


def read_context(
    data: object, row: str | None = None, value: str | None = None, text: TextFormat | None = None
) -> dict[str, Any]:
    """Read the observations of one feature from a file or frame with one line per row: {row: value}."""
    return _read_values(data, "row", row, value, text)


def read_row(
    data: object, feature: str | None = None, value: str | None = None, text: TextFormat | None = None
) -> dict[str, Any]:
    """Read the observations of one row from a file or frame with one line per feature: {feature: value}."""
    return _read_values(data, "feature", feature, value, text)


def read_contexts(
    data: object, features: Collection[str], columns: Columns, text: TextFormat | None = None
) -> dict[str, dict[str, Any]]:
    """Read the observations of some ``features`` from a file or frame in the long form.

    Returns ``{feature: {row: value}}``; the observations of other features are left out.
    """
    row, feature, value = columns.normalise().or_default()
    source = open_source(data, (row, feature, value), text)
    choose_form(source, "long", columns, None)
    source, observations = read_values(source, lambda source: read_long(source, row, feature, value))
    wanted = np.array([name in features for name in observations.features], dtype=bool)
    chosen = np.flatnonzero(wanted[observations.feature_numbers])
    values: list[Any] = observations.values[chosen].tolist()
    if source.labels:
        values = [source.labels[int(number)] for number in values]
    contexts: dict[str, dict[str, Any]] = {
        observations.features[number]: {} for number in np.flatnonzero(wanted)
    }
    for line, content in zip(chosen.tolist(), values, strict=True):
        name = observations.features[observations.feature_numbers[line]]
        observer = observations.rows[observations.row_numbers[line]]
        if contexts[name].setdefault(observer, content) != content:
            raise InputError(
                f"{source.label}: row {observer!r}, feature {name!r} has more than one value; keep one"
            )
    return contexts


def _read_values(
    data: object, axis: Axis, column: str | None, value: str | None, text: TextFormat | None
) -> dict[str, Any]:
    """Read {name: value}, where the names are rows or features, as ``axis`` says."""
    column = axis if column is None else as_name(column, "column name")
    value = "value" if value is None else as_name(value, "column name")
    source = open_source(data, (column, value), text)
    source.require(column, axis)
    source.require(value, "value")
    source, observations = read_values(source, lambda source: read_wide(source, column, [value], axis))
    names = (observations.rows[number] for number in observations.row_numbers)
    contents: list[Any] = observations.values.tolist()
    if source.labels:
        contents = [source.labels[int(number)] for number in contents]
    values = dict(zip(names, contents, strict=True))
    if len(values) < len(observations.row_numbers):
        numbers, counts = np.unique(observations.row_numbers, return_counts=True)
        repeated = observations.rows[int(numbers[counts > 1][0])]
        spellings = observations.spellings.get(repeated)
        written = f" (it is written as {spellings})" if spellings else ""
        raise InputError(f"{source.label}: {axis} {repeated!r} has more than one value{written}; keep one")
    return values


def _note_missing(source: Source) -> list[str]:
    """Return a note on the codes for missing values, if there are any."""
    codes = source.missing - source.not_applicable
    return [f"{source.label}: values read as missing: {codes.describe()}"] if codes else []


def _append(batches: Batches, *batch: NDArray[Any]) -> None:
    for arrays, array in zip(batches, batch, strict=True):
        arrays.append(array)


def _record_places(source: Source, start: int) -> Callable[[int], str]:
    return lambda i: f"{source.label}, {source.place(start + i)}"


def _observed_cells(
    batch: pa.RecordBatch,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the line, column and value of every cell that is not null; a NaN is not null."""
    dense = batch.to_tensor(null_to_nan=True).to_numpy()  # (lines, columns)
    observed = ~np.isnan(dense)
    if observed.size - observed.sum() > sum(column.null_count for column in batch.columns):
        validity = [column.is_valid().to_numpy(zero_copy_only=False) for column in batch.columns]
        observed = np.stack(validity, 1)
    lines, columns = np.nonzero(observed)
    return lines, columns, dense[lines, columns]


def _first_non_finite(values: NDArray[np.float64]) -> int | None:
    finite = np.isfinite(values)
    return None if finite.all() else int(np.argmin(finite))


def _non_finite(cell: str, value: float) -> InputError:
    return InputError(
        f"the value of {cell} is {value}; values must be finite numbers"
        " (leave the cell blank if it is not observed)"
    )


def _concatenate(
    source: Source,
    rows: NameNumbering,
    features: list[str],
    batches: Batches,
    notes: list[str],
    spellings: dict[str, str],
) -> Observations:
    if not any(map(len, batches[2])) and not rows_are_sharded():  # other processes may have some
        raise InputError(f"{source.label} contains no observations; at least one is needed")
    pa.default_memory_pool().release_unused()
    columns: list[NDArray[Any]] = []
    for arrays, empty in zip(
        batches, (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)), strict=True
    ):
        columns.append(np.concatenate([*arrays, empty]))
        arrays.clear()  # at most one column is in memory twice
    row_numbers, feature_numbers, values = columns
    values += 0.0  # turns -0.0 into 0.0
    spellings = rows.spellings | spellings
    return Observations(rows.names, features, row_numbers, feature_numbers, values, tuple(notes), spellings)


# -- sorting and merging ----------------------------------------------------------------------------


class SortedObservations(NamedTuple):
    """Observations sorted by (row, feature)."""

    row_index: Positions  # (n,)
    feature_index: Positions  # (n,)
    values: Floats  # (n,)
    times: NDArray[np.float64] | None = None  # (n,)
    weights: NDArray[np.float64] | None = None  # (n,)


def sort_observations(
    rows: NDArray[Any],
    features: NDArray[Any],
    values: Floats,
    shape: tuple[int, int],
    times: NDArray[np.float64] | None = None,
    weights: NDArray[np.float64] | None = None,
) -> SortedObservations:
    """Sort observations of a table of this shape by (row, feature). Equal pairs keep their order.

    >>> sort_observations(np.array([1, 0]), np.array([1, 1]), np.array([0.5, 2.0]), (2, 3)).values
    array([2. , 0.5])
    """
    rows, features = (np.asarray(part, dtype=np.int32) for part in (rows, features))
    if is_sorted(rows, features):
        return SortedObservations(rows, features, values, times, weights)
    order, rows, features = _sort_pairs(rows, features, shape)
    times, weights = (None if part is None else take_positions(part, order) for part in (times, weights))
    return SortedObservations(rows, features, take_positions(values, order), times, weights)


def _sort_pairs(
    rows: Positions, features: Positions, shape: tuple[int, int]
) -> tuple[NDArray[Any], Positions, Positions]:
    """Return the order by (row, feature), and the rows and features in this order: three of (n,)."""
    n = len(rows)
    if n < max(_FEW, sum(shape) // 4) or n > MOST_POSITIONS:
        order = np.lexsort((features, rows))
        return order, rows[order], features[order]
    from scipy.sparse import csc_array, csr_array  # imported here: small tables do not need SciPy

    # Two stable counting sorts, by feature and then by row: faster than comparing, with int32 arrays only.
    ones = np.ones(n, np.int8)
    lines = csr_array((ones, features, np.arange(n + 1, dtype=np.int32)), shape=(n, shape[1])).tocsc()
    by_feature = csc_array((lines.indices, take_positions(rows, lines.indices), lines.indptr), shape=shape)
    del lines, ones
    by_row = by_feature.tocsr()
    del by_feature
    sorted_rows = np.repeat(np.arange(shape[0], dtype=np.int32), np.diff(by_row.indptr))
    return by_row.data, sorted_rows, by_row.indices


def merge_duplicates(
    observations: SortedObservations,
    rows: Names,
    features: Names,
    duplicates: str,
    spellings: Mapping[str, str] | None = None,
    labels: Sequence[str] = (),
) -> tuple[SortedObservations, tuple[str, ...]]:
    """Keep one observation per (row, feature), and return notes about the merge.

    Different values of one pair are an error, or are merged by the rule ``duplicates``. ``spellings`` are the
    spellings of names that have several, for the message. Values are positions in ``labels``, if any.
    """
    row_index, feature_index, values, times, weights = observations
    repeated = (row_index[1:] == row_index[:-1]) & (feature_index[1:] == feature_index[:-1])
    if not repeated.any():
        return observations, ()
    differs = values[1:] != values[:-1]
    if weights is not None:
        differs |= weights[1:] != weights[:-1]
    differs &= repeated
    if differs.any() and (duplicates == "error" or (labels and duplicates != "last")):
        first = int(np.argmax(differs))
        cell = rows[row_index[first]], features[feature_index[first]]
        raise _contradiction(observations, first, cell, spellings or {}, labels)
    starts = np.flatnonzero(np.concatenate([[True], ~repeated]))
    latest = None if times is None else np.maximum.reduceat(times, starts)
    if duplicates == "sum":
        summed = np.add.reduceat(values, starts, dtype=np.float64)
        counts = np.diff(np.append(starts, len(values)))
        shared = None if weights is None else np.add.reduceat(weights, starts) / counts
        note = f"{int(repeated.sum())} repeated observations were added up to one per (row, feature)"
        parts = (row_index[starts], feature_index[starts], summed, latest, shared)
        return SortedObservations(*parts), (note,)
    ends = np.append(starts[1:], len(values)) - 1
    merged, merged_weights = values[ends], None if weights is None else weights[ends]
    if differs.any() and duplicates == "mean":
        # Equal values are not averaged: their mean could have a rounding error.
        mixed, counts = np.add.reduceat(np.append(differs, False), starts) > 0, ends - starts + 1
        if weights is None or merged_weights is None:
            means = np.add.reduceat(values, starts, dtype=np.float64) / counts
        else:
            totals = np.add.reduceat(weights, starts)
            means = np.add.reduceat(weights * values, starts, dtype=np.float64) / totals
            merged_weights = np.where(mixed, totals / counts, merged_weights)
        merged = np.where(mixed, means, merged)
    note = f"{int(repeated.sum())} repeated observations were merged into one per (row, feature)"
    if differs.any():
        note += f", {int(differs.sum())} of them contradictory ({option_name('duplicates', duplicates)})"
    parts = (row_index[starts], feature_index[starts], merged, latest, merged_weights)
    return SortedObservations(*parts), (note,)


def _contradiction(
    observations: SortedObservations,
    first: int,
    cell: tuple[str, str],
    spellings: Mapping[str, str],
    labels: Sequence[str],
) -> InputError:
    """Return the error that the observations ``first`` and ``first`` + 1 differ; see ``merge_duplicates``.

    ``cell`` names their row and feature.
    """
    values, weights = observations.values, observations.weights
    several = [
        f"{noun} {name!r} is written as {spellings[name]}"
        for noun, name in zip(("row", "feature"), cell, strict=True)
        if name in spellings
    ]
    one, other = (
        repr(labels[int(value)]) if labels else f"{value:.12g}" for value in values[first : first + 2]
    )
    both = f"as {one} and {other}"
    if weights is not None and values[first] == values[first + 1]:
        both = f"with the weights {weights[first]:.12g} and {weights[first + 1]:.12g}"
    return InputError(
        f"row {cell[0]!r}, feature {cell[1]!r} is observed twice, {both}"
        f"{_in_brackets(several)}; correct the data or use {option_name('duplicates', 'last')}"
        + ("" if labels else f" or {option_name('duplicates', 'mean')}")
    )


def _in_brackets(texts: list[str]) -> str:
    return f" ({'; '.join(texts)})" if texts else ""


# -- the whole table --------------------------------------------------------------------------------


class TableParts(NamedTuple):
    """The fields of a ``Table``."""

    rows: Names
    features: Names
    kinds: Kinds
    row_index: Positions  # (n,)
    feature_index: Positions  # (n,)
    values: Floats  # (n,)
    metadata: pa.Table | None
    schema: MetadataSchema | None
    notes: tuple[str, ...]
    encoders: dict[str, EncoderLike]
    row_metadata: pa.Table | None
    row_schema: MetadataSchema | None
    times: NDArray[np.float64] | None  # (n,)
    weights: NDArray[np.float64] | None  # (n,)
    words: Words
    not_applicable: NotApplicable


def assemble(
    observations: object,
    *,
    metadata: object,
    row_metadata: object,
    columns: Columns,
    form: Form,
    kinds: KindsLike,
    metadata_types: Mapping[str, str] | None,
    row_metadata_types: Mapping[str, str] | None,
    duplicates: str,
    text: TextFormat,
    encoders: Mapping[str, EncoderLike] | None,
    words: Mapping[str, str] | None,
    reporter: Reporter,
) -> tuple[TableParts, dict[str, NDArray[np.float32]]]:
    """Read all fields of a table, and the vectors of the metadata columns with an encoder."""
    opened = run_in_each_process(
        lambda: _open_sources(
            (observations, metadata, row_metadata), columns.normalise(), form, kinds, duplicates, text
        )
    )
    if _is_click(kinds) and duplicates == "error":  # repeated clicks are more clicks
        duplicates = "sum"
    table = _read_observations(opened, duplicates)
    if table.source.labels or needs_labels(kinds):
        table, kinds = _replace_labels(table, kinds)
    if opened.lines is not None:
        described = [table.bases.get(name, name) for name in opened.described]
        table.source_notes.extend(_compare_features(table.observed_features, described))
    resolved, kind_notes = _resolve_kinds(kinds, table.rows, table.features, table.observations, duplicates)
    cells = _not_applicable_cells(opened, table, text)
    features = _feature_metadata(table, metadata_types or {}, {} if encoders is None else encoders, reporter)
    rows = _row_metadata(opened, table.rows, row_metadata_types or {}, reporter)
    index = table.observations
    parts = TableParts(
        rows=table.rows,
        features=table.features,
        kinds=resolved,
        row_index=index.row_index,
        feature_index=index.feature_index,
        values=index.values,
        metadata=features.lines,
        schema=features.schema,
        notes=(*table.source_notes, *table.value_notes, *kind_notes, *features.notes, *rows.notes),
        encoders=features.encoders,
        row_metadata=rows.lines,
        row_schema=rows.schema,
        times=index.times,
        weights=index.weights,
        words=Words.from_columns(*opened.columns.or_default(), words),
        not_applicable=cells,
    )
    return parts, features.vectors


class _RawTable(NamedTuple):
    """A table whose kinds are not resolved yet."""

    source: Source
    rows: Names
    features: Names
    observations: SortedObservations
    described: list[str]  # the features that have metadata
    lines: pa.Table | None  # their metadata
    observed_features: list[str]  # those of ``features`` with observations, before labels are replaced
    bases: Mapping[str, str]  # the feature of each column of a category
    source_notes: list[str]
    value_notes: list[str]


def _read_observations(opened: _OpenSources, duplicates: str) -> _RawTable:
    """Read the observations, number and sort their names, and merge duplicates."""
    columns, long = opened.columns, opened.form == "long"
    row, feature, value = columns.or_default()

    def read(source: Source) -> Observations:
        if long:
            return read_long(source, row, feature, value, columns.time, columns.weight)
        return read_wide(source, row, weight=columns.weight)

    source, unsorted = run_in_each_process(lambda: read_values(opened.source, read, columns.weight))
    unsorted = shard_rows(unsorted, source.label)
    notes = [*unsorted.notes, *opened.notes, *_compare_rows(unsorted.rows, opened.known_rows)]
    # Lines of the long form have no meaningful order. Several processes agree on an order by sorting.
    is_sorted_by_name = long or rows_are_sharded()
    arrange: Callable[[list[str]], Iterable[str]] = sorted_names if is_sorted_by_name else dict.fromkeys
    rows = Names(arrange([*unsorted.rows, *opened.known_rows]), "row")
    features = Names(arrange([*unsorted.features, *opened.described]), "feature")
    row_index = _renumber(unsorted.row_numbers, rows.positions(unsorted.rows))
    feature_index = _renumber(unsorted.feature_numbers, features.positions(unsorted.features))
    values, times, weights = unsorted.values, unsorted.times, unsorted.weights
    observed_features, spellings = unsorted.features, unsorted.spellings
    del unsorted  # sorting needs the most memory
    if times is not None:  # the newest value of a cell must be the last
        order = np.argsort(times, kind="stable")
        row_index, feature_index = row_index[order], feature_index[order]
        values, times = values[order], times[order]
        weights = None if weights is None else weights[order]
    ordered = sort_observations(row_index, feature_index, values, (len(rows), len(features)), times, weights)
    del row_index, feature_index, values, times, weights
    ordered, merge_notes = run_in_each_process(
        lambda: merge_duplicates(ordered, rows, features, duplicates, spellings, source.labels)
    )
    return _RawTable(
        source, rows, features, ordered, opened.described, opened.lines, observed_features, {},
        notes, [*merge_notes],
    )  # fmt: skip


def _replace_labels(table: _RawTable, kinds: KindsLike) -> tuple[_RawTable, KindsLike]:
    """Replace labels by values, and categories by columns; return the kinds of the columns, too."""
    before = table.observations
    labelled = resolve_labels(kinds, table.rows, table.features, *before[:3], table.source)
    times, weights = (
        None if part is None else np.repeat(part, labelled.repeats) for part in (before.times, before.weights)
    )
    if labelled.weights is not None:
        weights = labelled.weights * (1.0 if weights is None else weights)
    described, lines = describe_columns(table.described, table.lines, labelled.bases, labelled.features)
    after = table._replace(
        features=labelled.features,
        observations=SortedObservations(
            labelled.row_index, labelled.feature_index, labelled.values, times, weights
        ),
        described=described,
        lines=lines,
        bases=labelled.bases,
        value_notes=[*labelled.notes, *table.value_notes],
    )
    return after, labelled.kinds


def _not_applicable_cells(opened: _OpenSources, table: _RawTable, text: TextFormat) -> NotApplicable:
    """Return the cells with a code for "not applicable", and add a note on them to the table."""
    if not text.not_applicable:
        return NO_CELLS
    row, feature, value = opened.columns.or_default()
    long, source = opened.form == "long", opened.source
    others = (row, opened.columns.weight)
    coded = [feature, value] if long else [name for name in source.columns if name not in others]
    cells = find_cells(source, text.not_applicable, row, coded, long=long)
    cells = cells.without(_observed_cells_of(cells, table))
    table.source_notes.append(
        f"{count(len(cells), 'cell')} read as not applicable: {text.not_applicable.describe()}"
    )
    return cells


def _observed_cells_of(cells: NotApplicable, table: _RawTable) -> list[tuple[str, str]]:
    """Return those of the ``cells`` that other lines of the source observe."""
    if not len(cells):
        return []
    rows, features, ordered = table.rows, table.features, table.observations
    columns: dict[str, str] = {table.bases.get(name, name): name for name in features}
    known = [cell for cell in cells if cell[1] in columns]
    width = len(features)
    keys = [rows.position(row) * width + features.position(columns[feature]) for row, feature in known]
    observed = np.isin(keys, ordered.row_index.astype(np.int64) * width + ordered.feature_index)
    return [cell for cell, is_observed in zip(known, observed, strict=True) if is_observed]


class _OpenSources(NamedTuple):
    """The source of the observations, which are not read yet, and the metadata."""

    source: Source
    form: Form
    columns: Columns
    described: list[str]  # the features that have metadata
    lines: pa.Table | None  # their metadata
    known_rows: list[str]  # the rows that have metadata
    row_lines: pa.Table | None
    notes: list[str]


def _open_sources(
    sources: tuple[object, object, object],
    columns: Columns,
    form: Form,
    kinds: KindsLike,
    duplicates: str,
    text: TextFormat,
) -> _OpenSources:
    """Open the sources of observations, metadata and row metadata; each process opens its share."""
    _check_arguments(kinds, duplicates)
    observations, metadata, row_metadata = sources
    if rows_are_sharded() and text.not_applicable:
        raise InputError(f"{option_name('not_applicable')} is not supported under torchrun; leave it out")
    if rows_are_sharded() and row_metadata is not None:
        raise InputError(f"{option_name('row_metadata')} is not supported under torchrun; leave it out")
    row, feature, value = columns.or_default()
    source = open_source(observations, (row, feature, value), text)
    source.not_applicable = text.not_applicable
    if text.given and not (is_text_file(observations) or is_text_file(metadata)):
        raise InputError(
            f"{source.label} is not a text file: no separator, decimal point or encoding can be given for it"
        )
    # Metadata is small, so its errors appear before the long work.
    described: list[str] | None = None
    lines: pa.Table | None = None
    notes: list[str] = []
    if metadata is not None:
        metadata_source = open_metadata(metadata, feature, text)
        described, lines = read_metadata(metadata_source, feature)
        notes += _note_unnamed(metadata_source)
    known_rows: list[str] = []
    row_lines: pa.Table | None = None
    if row_metadata is not None:
        row_source = open_source(row_metadata, (row,), text)
        known_rows, row_lines = read_metadata(row_source, row, "row")
        notes += _note_unnamed(row_source)
    form = choose_form(source, form, columns, described, clicks=_is_click(kinds))
    return _OpenSources(
        local_source(source), form, columns, described or [], lines, known_rows, row_lines, notes
    )


def _note_unnamed(source: Source) -> list[str]:
    """Return a note on a column of metadata without a name, as pandas writes its index."""
    return [f"{source.label}: the column without a name is not used"] if "" in source.columns else []


def _is_click(kinds: KindsLike) -> bool:
    """Return whether all features are of the kind click."""
    return isinstance(kinds, (str, Kind)) and str(kinds) == "click"


def _check_arguments(kinds: KindsLike, duplicates: str) -> None:
    if duplicates not in DUPLICATES:
        raise InputError(f"duplicates must be one of {', '.join(DUPLICATES)}; got {duplicates!r}")
    for kind in kinds.values() if isinstance(kinds, Mapping) else () if kinds is None else (kinds,):
        parse_kind(kind)


def _renumber(numbers: Positions, positions: NDArray[np.int64]) -> Positions:
    """Replace the number of each name by its position, in place: (n,)."""
    small = positions.astype(np.int32)
    for part in chunk_slices(len(numbers)):
        numbers[part] = small[numbers[part]]
    return numbers


def _resolve_kinds(
    kinds: KindsLike, rows: Names, features: Names, observations: SortedObservations, duplicates: str
) -> tuple[Kinds, tuple[str, ...]]:
    resolved, notes = resolve_kinds(kinds, features, observations.feature_index, observations.values)
    if kinds is not None:
        run_in_each_process(lambda: check_values(resolved, rows, features, *observations[:3], duplicates))
    return resolved, notes


class _Metadata(NamedTuple):
    """The metadata of features or rows, in their order, and how it is encoded."""

    lines: pa.Table | None
    schema: MetadataSchema | None
    notes: list[str]
    encoders: dict[str, EncoderLike]  # of columns of the type custom
    vectors: dict[str, NDArray[np.float32]]  # of the columns with an encoder


def _feature_metadata(
    table: _RawTable,
    metadata_types: Mapping[str, str],
    encoders: Mapping[str, EncoderLike],
    reporter: Reporter,
) -> _Metadata:
    """Align the metadata of features with the table, infer its schema, and encode texts and images."""
    types = _normalise_keys(metadata_types, "metadata_types must map columns to types, as {'year': 'date'}")
    functions = _normalise_keys(encoders, "encoders must map columns to functions, as {'image': function}")
    lines = None if table.lines is None else align(table.described, table.lines, table.features)
    if lines is None or not lines.num_columns:
        if types or functions:
            argument = option_name("metadata_types" if types else "encoders")
            raise InputError(f"{argument} was given, but there are no columns of metadata to apply it to")
        return _Metadata(None, None, [], functions, {})
    used = [name for name in lines.column_names if types.get(name) != "ignore"]
    check_finite(lines.select(used), table.features)
    schema, vectors = MetadataSchema.fit_encoded(lines, types, functions, reporter)
    notes = [
        f"metadata columns read as {schema.describe()} ({_types_as_option(schema)})",
        *_note_word_pieces(schema, types),
        *describe_unused(schema, lines, types),
    ]
    return _Metadata(lines, schema, notes, functions, vectors)


_FEATURES_ONLY = ("custom", "tokens", "image")  # types of metadata columns that rows do not have


def _row_metadata(
    opened: _OpenSources, rows: Names, row_metadata_types: Mapping[str, str], reporter: Reporter
) -> _Metadata:
    """Align the metadata of rows with the table, and infer its schema."""
    rule = "row_metadata_types must map columns to types, as {'age': 'number'}"
    types, lines = _normalise_keys(row_metadata_types, rule), opened.row_lines
    if lines is None or not lines.num_columns:
        if types:
            raise InputError(
                f"{option_name('row_metadata_types')} was given, but there are no columns of row metadata"
            )
        return _Metadata(None, None, [], {}, {})
    for kind in types.values():
        if str(kind).partition(":")[0] in _FEATURES_ONLY:
            raise InputError(f"row metadata has no columns of the type {kind}; give numbers instead")
    lines = align(opened.known_rows, lines, rows)
    used = [name for name in lines.column_names if types.get(name) != "ignore"]
    check_finite(lines.select(used), rows)
    schema, vectors = MetadataSchema.fit_encoded(lines, types, {}, reporter)
    unused = describe_unused(schema, lines, types)
    notes = [
        f"row metadata columns read as {schema.describe()}",
        *(f"row {note}" for note in unused),
    ]
    return _Metadata(lines, schema, notes, {}, vectors)


def _normalise_keys(mapping: Mapping[str, T], rule: str) -> dict[str, T]:
    if not isinstance(mapping, Mapping):
        raise InputError(f"{rule}; got {mapping!r}")
    return {as_name(name, "column name"): value for name, value in mapping.items()}


def _types_as_option(schema: MetadataSchema) -> str:
    """Write the types as an argument or as options."""
    types = {column.name: column.spec for column in schema.columns}
    options = " ".join(option_name("metadata_types", f"{name}={text}") for name, text in types.items())
    return for_user(f"metadata_types={types!r}", options)


def _note_word_pieces(schema: MetadataSchema, types: dict[str, str]) -> list[str]:
    """Return a note if texts are encoded by word pieces because there is no sentence encoder."""
    names = [
        column.name
        for column in schema.columns
        if isinstance(column, TextColumn) and types.get(column.name, "text") == "text"
    ]
    reason = text_encoders.why_no_default() if names else None
    return [] if reason is None else [f"no sentence encoder for {join_names(names)}: {reason}"]


def _compare_rows(observed: Sequence[str], described: Sequence[str]) -> list[str]:
    """Return a note about rows that have only metadata; refuse metadata of other rows altogether."""
    unobserved = sorted(set(described) - set(observed))
    if not unobserved:
        return []
    if len(unobserved) == len(set(described)):
        raise InputError(
            f"no row of the row metadata has observations: it describes {join_names(unobserved)}, and the "
            f"rows with observations are {join_names(sorted(observed))}; use the same names in both"
        )
    return [f"rows with metadata but no observations: {len(unobserved)} ({join_names(unobserved)})"]


def _compare_features(observed: list[str], described: list[str]) -> list[str]:
    """Return notes about features that have only observations, or only metadata."""
    notes = []
    if without_metadata := sorted(set(observed) - set(described)):
        notes.append(f"features without metadata: {len(without_metadata)} ({join_names(without_metadata)})")
    if unobserved := sorted(set(described) - set(observed)):
        notes.append(
            f"features with metadata but no observations: {len(unobserved)} ({join_names(unobserved)})"
        )
    return notes
