"""Feature metadata brought to one shape, whatever it was read from."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.table.coder import NameCoder, merged, without_points
from headstart.table.names import Names
from headstart.table.sources import Source
from headstart.table.sources.source import is_number, is_text


def tidy(table: pa.Table) -> pa.Table:
    """Give every column one of a few types, so that equal metadata is equal whatever it came from.

    Numbers become int64 if whole, else float64; texts string, with blank ones null; moments naive
    timestamps; lists of either.
    """
    columns = [_tidied(column.combine_chunks()) for column in table.columns]
    return pa.table(columns, names=table.column_names)


def read_metadata(source: Source, feature: str) -> tuple[list[str], pa.Table]:
    """Read the names of features and, line by line, what is known of each; no name occurs twice."""
    source.require(feature, "feature")
    table = source.read(feature)
    coder = NameCoder("feature")
    column = table.column(feature).combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    met = coder.encode(column, lambda i: f"{source.label}, {source.place(i)}")
    names, final = merged(coder.names if source.typed else without_points(coder.names))
    codes = final[met]
    # A column without a name is what pandas leaves of its index in a CSV file.
    rest = tidy(table.select([name for name in table.column_names if name not in ("", feature)]))
    if len(names) < len(codes):
        first = _first_lines(codes, len(names))
        _refuse_contradictions(rest, codes, first, names)
        rest = rest.take(pa.array(first))
    return names, rest


def align(names: list[str], lines: pa.Table, features: Names) -> pa.Table:
    """Put the lines in the order of ``features``; those without a line get nulls."""
    where = np.full(len(features), -1)
    where[features.positions(names)] = np.arange(len(names))
    return lines.take(pa.array(where, mask=where < 0)).combine_chunks()


def refuse_non_finite(lines: pa.Table, features: Names) -> None:
    """Refuse a NaN or infinite number, naming its feature; what is not known should be null."""
    for name, column in zip(lines.column_names, lines.columns, strict=True):
        if pa.types.is_floating(column.type):
            bad = pc.fill_null(pc.invert(pc.is_finite(column)), False).to_numpy()
            if bad.any():
                line = int(np.argmax(bad))
                raise InputError(
                    f"metadata of feature {features[line]!r}: {name!r} is {column[line].as_py()};"
                    " numbers must be finite (leave blank what is not known)"
                )


def _tidied(column: pa.Array) -> pa.Array:
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _tidied(column.storage)
    if pa.types.is_dictionary(kind):
        return _tidied(column.dictionary_decode())
    if is_text(kind):
        text = column.cast(pa.string())
        return pc.if_else(pc.equal(text, ""), None, text)
    if is_number(kind):
        number = column.cast(pa.float64(), safe=False)
        whole = pc.all(pc.equal(number, pc.round(number)), min_count=0).as_py()
        safe = pc.all(pc.less(pc.abs(number), 2.0**53), min_count=0).as_py()
        return number.cast(pa.int64()) if whole and safe else number
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pa.timestamp("us"))
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _tidied_list(column)
    return column


def _tidied_list(column: pa.Array) -> pa.Array:
    inner = column.type.value_type
    if is_number(inner):
        return column.cast(pa.list_(pa.float64()), safe=False)
    if pa.types.is_dictionary(inner) or pa.types.is_null(inner) or is_text(inner):
        return column.cast(pa.list_(pa.string()))
    return column


def _first_lines(codes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    first = np.full(count, len(codes))
    np.minimum.at(first, codes, np.arange(len(codes)))
    return first


def _refuse_contradictions(
    lines: pa.Table, codes: NDArray[np.int64], first: NDArray[np.int64], names: list[str]
) -> None:
    again = np.flatnonzero(first[codes] != np.arange(len(codes)))
    for name in lines.column_names:
        column = lines.column(name)
        repeated, original = column.take(pa.array(again)), column.take(pa.array(first[codes[again]]))
        for line, one, other in zip(again, repeated.to_pylist(), original.to_pylist(), strict=True):
            if one != other:
                raise InputError(
                    f"feature {names[codes[line]]!r} has two lines of metadata that differ in column"
                    f" {name!r}: {other!r} and {one!r}"
                )
