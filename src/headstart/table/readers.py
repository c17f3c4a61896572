"""From the batches of a source to observations, in the long form or the wide one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.errors import InputError, listed
from headstart.table.coder import NameCoder, without_points
from headstart.table.names import as_name
from headstart.table.sources import Source, open_source

Form = Literal["auto", "long", "wide"]
Parts = tuple[list[NDArray[Any]], list[NDArray[Any]], list[NDArray[Any]]]  # rows, features, values


@dataclass(frozen=True)
class Observations:
    """Observations as they came: the names met, and the codes of each observation's two."""

    rows: list[str]
    features: list[str]
    row_codes: NDArray[np.int32]  # (n,)
    feature_codes: NDArray[np.int32]  # (n,)
    values: NDArray[np.float64]  # (n,)
    notes: tuple[str, ...]


def choose_form(source: Source, form: Form, row: str, feature: str, value: str) -> Form:
    """Decide between the long and the wide form, and make sure that its columns are there."""
    if form not in ("auto", "long", "wide"):
        raise InputError(f"form must be 'auto', 'long' or 'wide'; got {form!r}")
    if form == "auto":
        # With one of the other two there, it is a long table of which a column was named wrongly.
        wide = row in source.columns and feature not in source.columns and value not in source.columns
        form = "wide" if wide else "long"
    wanted = {"row": row} if form == "wide" else {"row": row, "feature": feature, "value": value}
    if len(set(wanted.values())) < len(wanted):
        raise InputError(f"row, feature and value must be three columns; got {listed(wanted.values())}")
    for argument, column in wanted.items():
        source.require(column, argument)
    return form


def read_long(source: Source, row: str, feature: str, value: str) -> Observations:
    """Read (row, feature, value) lines. A null value is no observation, but its names count."""
    rows, features = NameCoder("row"), NameCoder("feature")
    parts: Parts = [], [], []
    seen = blank = 0
    for batch in source.batches([row, feature], [value]):
        place = _places(source, seen)
        row_codes = rows.encode(batch.column(0), place)
        feature_codes = features.encode(batch.column(1), place)
        column = batch.column(2)
        values = column.to_numpy(zero_copy_only=False)
        if column.null_count:
            known = column.is_valid().to_numpy(zero_copy_only=False)
            row_codes, feature_codes, values = row_codes[known], feature_codes[known], values[known]
        if (bad := _first_non_finite(values)) is not None:
            raise _non_finite(rows.names[row_codes[bad]], features.names[feature_codes[bad]], values[bad])
        _add(parts, row_codes, feature_codes, values)
        seen, blank = seen + len(batch), blank + column.null_count
    notes = []
    if unused := [column for column in source.columns if column not in (row, feature, value)]:
        notes.append(f"{source.label}: not used: {listed(unused)}")
    if blank:
        notes.append(f"{source.label}: {blank} lines without a value are no observations")
    return _joined(source, rows.names, features.names, parts, notes)


def read_context(data: object, row: str, value: str) -> dict[str, float]:
    """Read the observations of one feature from a file or frame: a row's name and its value a line."""
    source = open_source(data, (row, value))
    source.require(row, "row")
    source.require(value, "value")
    found = read_wide(source, row, [value])
    context = dict(zip((found.rows[code] for code in found.row_codes), found.values.tolist(), strict=True))
    if len(context) < len(found.row_codes):
        codes, counts = np.unique(found.row_codes, return_counts=True)
        twice = found.rows[int(codes[counts > 1][0])]
        raise InputError(f"{source.label}: row {twice!r} has more than one value; keep one")
    return context


def read_wide(source: Source, row: str, only: Sequence[str] | None = None) -> Observations:
    """Read a line a row and a column a feature. Blanks are not observed; a column may be all blank."""
    rows = NameCoder("row")
    columns = [column for column in only or source.columns if column != row]
    if not columns:
        raise InputError(f"{source.label} has no column beside {row!r}; expected one a feature")
    features = [as_name(column, f"feature (a column of {source.label})") for column in columns]
    parts: Parts = [], [], []
    seen = 0
    for batch in source.batches([row], columns):
        row_codes = rows.encode(batch.column(0), _places(source, seen))
        lines, at, values = _known_cells(batch.select(columns))
        if (bad := _first_non_finite(values)) is not None:
            raise _non_finite(rows.names[row_codes[lines[bad]]], features[at[bad]], values[bad])
        _add(parts, row_codes[lines], at.astype(np.int32), values)
        seen += len(batch)
    notes = [f"{source.label}: read in the wide form, a column a feature; pass form='long' if it is not"]
    return _joined(source, rows.names, features, parts, notes)


def _add(parts: Parts, *batch: NDArray[Any]) -> None:
    for column, piece in zip(parts, batch, strict=True):
        column.append(piece)


def _places(source: Source, start: int) -> Callable[[int], str]:
    return lambda i: f"{source.label}, {source.place(start + i)}"


def _known_cells(batch: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Line, column and value of every cell that is not null, be it NaN."""
    dense = batch.to_tensor(null_to_nan=True).to_numpy()  # (lines, columns)
    known = ~np.isnan(dense)
    if known.size - known.sum() > sum(column.null_count for column in batch.columns):
        known = np.stack([column.is_valid().to_numpy(zero_copy_only=False) for column in batch.columns], 1)
    lines, at = np.nonzero(known)
    return lines, at, dense[lines, at]


def _first_non_finite(values: NDArray[np.float64]) -> int | None:
    finite = np.isfinite(values)
    return None if finite.all() else int(np.argmin(finite))


def _non_finite(row: str, feature: str, value: float) -> InputError:
    return InputError(
        f"the value of row {row!r}, feature {feature!r} is {value}; values must be finite numbers"
        " (leave blank what is not observed)"
    )


def _joined(
    source: Source, rows: list[str], features: list[str], parts: Parts, notes: list[str]
) -> Observations:
    if not any(map(len, parts[2])):
        raise InputError(f"{source.label} holds no observation at all; a table needs some")
    if not source.typed:
        rows, features = without_points(rows), without_points(features)
    pa.default_memory_pool().release_unused()
    joined: list[NDArray[Any]] = []
    for column in parts:
        joined.append(np.concatenate(column))
        column.clear()  # so that no more than one column is held twice
    row_codes, feature_codes, values = joined
    values += 0.0  # no negative zeros
    return Observations(rows, features, row_codes, feature_codes, values, tuple(notes))
