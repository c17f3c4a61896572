"""Observations from the batches of a source, in the long or the wide form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.crew import crew
from headstart.errors import InputError, argument, listed
from headstart.table.compact import Floats, exact
from headstart.table.names import as_name
from headstart.table.numbering import NameNumbering
from headstart.table.sources import Source, TextFormat, open_source
from headstart.table.times import times_of

Form = Literal["auto", "long", "wide"]
Batches = tuple[list[NDArray[Any]], list[NDArray[Any]], list[NDArray[Any]]]  # rows, features, values


@dataclass(frozen=True)
class Observations:
    """Observations in the order of the source. Numbers are positions in ``rows`` and ``features``."""

    rows: list[str]
    features: list[str]
    row_numbers: NDArray[np.int32]  # (n,)
    feature_numbers: NDArray[np.int32]  # (n,)
    values: Floats  # (n,)
    notes: tuple[str, ...]
    spellings: dict[str, str]  # how rows and features are written that are written in several ways
    times: NDArray[np.float64] | None = None  # (n,)


class Columns(NamedTuple):
    """The columns of row, feature and value as the user names them; None for one that was not named."""

    row: str | None = None
    feature: str | None = None
    value: str | None = None
    time: str | None = None  # there is none unless it is named

    def tidy(self) -> Columns:
        """Return the columns with tidy names."""
        return Columns(*(None if name is None else as_name(name, "column name") for name in self))

    def or_usual(self) -> tuple[str, str, str]:
        """Return the names with "row", "feature" and "value" for those that were not named."""
        return self.row or "row", self.feature or "feature", self.value or "value"


def choose_form(source: Source, form: Form, columns: Columns, described: Sequence[str] | None) -> Form:
    """Return "long" or "wide", and check that the source has the columns of that form.

    A column that the user named must exist. ``described`` are the features with metadata, if there is
    metadata: then ``columns.feature`` may be a column of the metadata only.
    """
    if form not in ("auto", "long", "wide"):
        raise InputError(f"form must be 'auto', 'long' or 'wide'; got {form!r}")
    row, feature, value = columns.or_usual()
    if form == "auto":
        # If one of the other two columns exists, the table is long and the second one is misspelled.
        wide = row in source.columns and feature not in source.columns and value not in source.columns
        form = "wide" if wide else "long"
        if wide and described is not None and not set(described) & set(source.columns):
            described = None  # the metadata does not describe these columns
    required = {"row": row} if form == "wide" else {"row": row, "feature": feature, "value": value}
    if len(set(required.values())) < len(required):
        raise InputError(
            f"row, feature and value must be three different columns; got {listed(required.values())}"
        )
    if form == "wide":
        if columns.feature is not None and described is None:
            required["feature"] = feature
        if columns.value is not None:
            required["value"] = value
    for name, column in required.items():
        source.require(column, name)
    if columns.time is not None:
        if form == "wide":
            raise InputError(
                f"{argument('time', columns.time)} names a column of the long form: one line per observation"
            )
        source.require(columns.time, "time")
    return form


def read_long(source: Source, row: str, feature: str, value: str, time: str | None = None) -> Observations:
    """Read one observation per line. A line with a null value only adds its names to the table."""
    rows, features = NameNumbering("row"), NameNumbering("feature")
    batches: Batches = [], [], []
    records = nulls = 0
    when: list[pa.Array] = []
    for batch in source.batches([row, feature] if time is None else [row, feature, time], [value]):
        place = _places(source, records)
        row_numbers = rows.number(batch.column(0), place)
        feature_numbers = features.number(batch.column(1), place)
        column = batch.column(batch.num_columns - 1)
        values = column.to_numpy(zero_copy_only=False)
        if time is not None:
            when.append(batch.column(2).filter(column.is_valid()))
        if column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            row_numbers, feature_numbers, values = row_numbers[valid], feature_numbers[valid], values[valid]
        if (bad := _first_non_finite(values)) is not None:
            raise _non_finite(rows.names[row_numbers[bad]], features.names[feature_numbers[bad]], values[bad])
        _append(batches, row_numbers, feature_numbers, exact(values))
        records, nulls = records + len(batch), nulls + column.null_count
    notes = [*rows.notes(), *features.notes()]
    if unused := [column for column in source.columns if column not in (row, feature, value, time)]:
        notes.append(f"{source.label}: columns not used: {listed(unused)}")
    if nulls:
        notes.append(f"{source.label}: {nulls} lines without a value were not counted as observations")
    joined = _joined(source, rows, features.names, batches, notes, features.spellings)
    if time is None:
        return joined
    return replace(joined, times=times_of(pa.chunked_array(when), f"{source.label}: {time!r}"))


def read_context(
    data: object, row: str | None = None, value: str | None = None, text: TextFormat | None = None
) -> dict[str, float]:
    """Read the observations of one feature from a file or frame with one line per row: {row: value}."""
    row, _, value = Columns(row, None, value).tidy().or_usual()
    source = open_source(data, (row, value), text)
    source.require(row, "row")
    source.require(value, "value")
    observations = read_wide(source, row, [value])
    names = (observations.rows[number] for number in observations.row_numbers)
    context = dict(zip(names, observations.values.tolist(), strict=True))
    if len(context) < len(observations.row_numbers):
        numbers, counts = np.unique(observations.row_numbers, return_counts=True)
        repeated = observations.rows[int(numbers[counts > 1][0])]
        written = observations.spellings.get(repeated)
        spelled = f" (it is written as {written})" if written else ""
        raise InputError(f"{source.label}: row {repeated!r} has more than one value{spelled}; keep one")
    return context


def read_wide(source: Source, row: str, only: Sequence[str] | None = None) -> Observations:
    """Read one line per row and one column per feature. A blank cell is not observed.

    A column may be blank in all lines. ``only`` restricts the features to some of the columns.
    """
    rows = NameNumbering("row")
    columns = [column for column in only or source.columns if column != row]
    if not columns:
        raise InputError(
            f"{source.label} has no column besides {row!r}; the wide form needs one column per feature"
        )
    features = [as_name(column, f"feature (a column of {source.label})") for column in columns]
    batches: Batches = [], [], []
    records = 0
    for batch in source.batches([row], columns):
        row_numbers = rows.number(batch.column(0), _places(source, records))
        lines, feature_numbers, values = _observed_cells(batch.select(columns))
        if (bad := _first_non_finite(values)) is not None:
            raise _non_finite(
                rows.names[row_numbers[lines[bad]]], features[feature_numbers[bad]], values[bad]
            )
        _append(batches, row_numbers[lines], feature_numbers.astype(np.int32), exact(values))
        records += len(batch)
    notes = [
        *rows.notes(),
        f"{source.label}: read in the wide form, one column per feature; {argument('form', 'long')} reads the"
        " long form",
    ]
    return _joined(source, rows, features, batches, notes, {})


def _append(batches: Batches, *batch: NDArray[Any]) -> None:
    for arrays, array in zip(batches, batch, strict=True):
        arrays.append(array)


def _places(source: Source, start: int) -> Callable[[int], str]:
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


def _non_finite(row: str, feature: str, value: float) -> InputError:
    return InputError(
        f"the value of row {row!r}, feature {feature!r} is {value}; values must be finite numbers"
        " (leave the cell blank if it is not observed)"
    )


def _joined(
    source: Source,
    rows: NameNumbering,
    features: list[str],
    batches: Batches,
    notes: list[str],
    spellings: dict[str, str],
) -> Observations:
    if not any(map(len, batches[2])) and not crew().launched:  # others may have some
        raise InputError(f"{source.label} contains no observations; at least one is needed")
    pa.default_memory_pool().release_unused()
    joined: list[NDArray[Any]] = []
    for arrays, empty in zip(
        batches, (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)), strict=True
    ):
        joined.append(np.concatenate([*arrays, empty]))
        arrays.clear()  # at most one column is in memory twice
    row_numbers, feature_numbers, values = joined
    values += 0.0  # turns -0.0 into 0.0
    spellings = rows.spellings | spellings
    return Observations(rows.names, features, row_numbers, feature_numbers, values, tuple(notes), spellings)
