"""Feature metadata of any source, converted to a few Arrow types."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.table.names import Names
from headstart.table.numbering import NameNumbering
from headstart.table.sources import Source
from headstart.table.sources.source import is_number, is_text


def tidy(table: pa.Table) -> pa.Table:
    """Convert every column to one of a few types, so that metadata does not depend on its source.

    Numbers become int64 if all are whole, else float64. Texts become strings, and empty texts null.
    Dates become timestamps without a time zone. Lists contain float64 or strings.
    """
    columns = [_tidy_column(column.combine_chunks()) for column in table.columns]
    return pa.table(columns, names=table.column_names)


def read_metadata(source: Source, feature: str, noun: str = "feature") -> tuple[list[str], pa.Table]:
    """Return the names of features (or rows), each once, and a table with one line of metadata per name."""
    source.require(feature, noun)
    table = source.read(feature)
    numbering = NameNumbering(noun)
    column = table.column(feature).combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    numbers = numbering.number(column, lambda i: f"{source.label}, {source.place(i)}")
    names, name_index = numbering.names, numbers.astype(np.int64)
    # pandas writes its index to a CSV file as a column without a name.
    metadata = tidy(table.select([name for name in table.column_names if name not in ("", feature)]))
    if len(names) < len(name_index):
        first = _first_lines(name_index, len(names))
        _check_repeated_lines(metadata, name_index, first, names)
        metadata = metadata.take(pa.array(first))
    return names, metadata


def align(names: list[str], metadata: pa.Table, features: Names) -> pa.Table:
    """Sort the lines of metadata by ``features``. A feature without a line gets nulls."""
    lines = np.full(len(features), -1)
    lines[features.positions(names)] = np.arange(len(names))
    return metadata.take(pa.array(lines, mask=lines < 0)).combine_chunks()


def check_finite(metadata: pa.Table, features: Names) -> None:
    """Raise an error for the first number that is NaN or infinite. A missing number must be null."""
    for name, column in zip(metadata.column_names, metadata.columns, strict=True):
        if pa.types.is_floating(column.type):
            bad = pc.fill_null(pc.invert(pc.is_finite(column)), False).to_numpy()
            if bad.any():
                line = int(np.argmax(bad))
                raise InputError(
                    f"metadata of feature {features[line]!r}: {name!r} is {column[line].as_py()};"
                    " numbers must be finite (leave the cell blank if the number is missing)"
                )


def _tidy_column(column: pa.Array) -> pa.Array:
    arrow_type = column.type
    if isinstance(column, pa.ExtensionArray):
        return _tidy_column(column.storage)
    if pa.types.is_dictionary(arrow_type):
        return _tidy_column(column.dictionary_decode())
    if is_text(arrow_type):
        text = column.cast(pa.string())
        return pc.if_else(pc.equal(text, ""), None, text)
    if is_number(arrow_type):
        number = column.cast(pa.float64(), safe=False)
        whole = pc.all(pc.equal(number, pc.round(number)), min_count=0).as_py()
        safe = pc.all(pc.less(pc.abs(number), 2.0**53), min_count=0).as_py()
        return number.cast(pa.int64()) if whole and safe else number
    if pa.types.is_date(arrow_type) or pa.types.is_timestamp(arrow_type):
        zone = getattr(arrow_type, "tz", None)
        return column.cast(pa.timestamp("us", zone), safe=False).cast(pa.timestamp("us"))
    if (
        pa.types.is_fixed_size_list(arrow_type)
        or pa.types.is_list(arrow_type)
        or pa.types.is_large_list(arrow_type)
    ):
        return _tidy_list(column)
    return column


def _tidy_list(column: pa.Array) -> pa.Array:
    value_type = column.type.value_type
    if is_number(value_type):
        return column.cast(pa.list_(pa.float64()), safe=False)
    if pa.types.is_dictionary(value_type) or pa.types.is_null(value_type) or is_text(value_type):
        return column.cast(pa.list_(pa.string()))
    return column


def _first_lines(name_index: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    first = np.full(count, len(name_index))
    np.minimum.at(first, name_index, np.arange(len(name_index)))
    return first


def _check_repeated_lines(
    metadata: pa.Table, name_index: NDArray[np.int64], first: NDArray[np.int64], names: list[str]
) -> None:
    """Raise an error if a later line of a feature differs from its first line."""
    repeated = np.flatnonzero(first[name_index] != np.arange(len(name_index)))
    originals = first[name_index[repeated]]
    for column_name in metadata.column_names:
        column = metadata.column(column_name)
        values = column.take(pa.array(repeated)).to_pylist()
        original_values = column.take(pa.array(originals)).to_pylist()
        for line, value, original in zip(repeated, values, original_values, strict=True):
            if value != original:
                raise InputError(
                    f"feature {names[name_index[line]]!r} has two lines of metadata that differ in column"
                    f" {column_name!r}: {original!r} and {value!r}; keep one"
                )
