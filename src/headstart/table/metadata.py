"""Feature metadata as vectors of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.config import Config
from headstart.errors import InputError, UnknownNameError, argument, did_you_mean, listed
from headstart.table.columns import COLUMN_TYPES, AnyColumn, Column
from headstart.table.columns.column import is_missing
from headstart.table.columns.labels import SEPARATOR
from headstart.table.tidying import tidy

MAX_TEXT_SIZE = 16_384  # numbers per text; they are stored for every feature
LABELS_SHARE = 0.1  # a text column is labels if this share of its texts contains the separator


class MetadataSchema(Config):
    """How each metadata column is encoded as numbers. It is fitted once and saved with a model as JSON.

    Parameters
    ----------
    columns : tuple of Column
        The fitted columns, one for each metadata column. ``MetadataSchema.fit`` creates them.

    Examples
    --------
    >>> films = pa.table({"year": [1979, 1985, None], "genres": ["Horror|Sci-Fi", "Sci-Fi", "Drama"]})
    >>> schema = MetadataSchema.fit(films)
    >>> schema.describe()
    'year: number, genres: labels'
    >>> schema.encode([{"year": 1982, "genres": ["Sci-Fi", "Western"]}, {}])
    array([[0.5, 0. , 0. , 0. , 1. ],
           [0.5, 1. , 0. , 0. , 0. ]], dtype=float32)
    """

    columns: tuple[AnyColumn, ...]

    @classmethod
    def fit(cls, table: pa.Table, types: Mapping[str, str] | None = None) -> MetadataSchema:
        """Fit the columns of a table with one line per feature.

        Parameters
        ----------
        table : pyarrow.Table
            The metadata, without the names of the features.
        types : mapping of str to str, optional
            The types of some columns: number, date, category, labels, text, vector or ignore.
            ``text:128`` encodes a text as 128 numbers. The types of other columns are inferred.

        Returns
        -------
        MetadataSchema
            The fitted schema.

        Raises
        ------
        InputError
            If a type does not exist, or a column contains values that do not have its type.
        UnknownNameError
            If ``types`` contains a column that the table does not have.
        """
        explicit = {}
        for name, text in (types or {}).items():
            if name not in table.column_names:
                hint = did_you_mean(name, table.column_names)
                raise UnknownNameError(
                    f"metadata has no column {name!r}{hint} (in {argument('metadata_types')})"
                )
            explicit[name] = _parse_type(text, name)
        table = tidy(table)
        columns = []
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            column_type, settings = explicit.get(name) or (COLUMN_TYPES[infer_type(column)], {})
            fitted = column_type.fit(name, column_type.convert(name, column))
            columns.append(fitted.revised(**settings))
        return cls(columns=tuple(columns))

    @property
    def width(self) -> int:
        """How many numbers encode the metadata of one feature."""
        return sum(column.width for column in self.columns)

    def encode_table(self, table: pa.Table) -> NDArray[np.float32]:
        """Encode a table with one line per feature.

        Parameters
        ----------
        table : pyarrow.Table
            The metadata. Columns of the schema may be absent; other columns are an error.

        Returns
        -------
        ndarray of shape (n, width)
            The encoded metadata.
        """
        table = tidy(table)
        self._check_names(table.column_names)
        parts = []
        for column in self.columns:
            present = column.name in table.column_names
            values = table.column(column.name).combine_chunks() if present else pa.nulls(len(table))
            parts.append(column.encode(column.convert(column.name, values)))
        return _joined(parts, len(table))

    def encode(self, records: Sequence[Mapping[str, object]]) -> NDArray[np.float32]:
        """Encode records, one per feature.

        Parameters
        ----------
        records : sequence of mappings
            The metadata of each feature as {column: value}. Columns may be absent, and values may be
            missing (None, NaN, NaT or the NA of pandas).

        Returns
        -------
        ndarray of shape (n, width)
            The encoded metadata.

        Raises
        ------
        InputError
            If a value does not have the type of its column.
        UnknownNameError
            If a record contains a column that the schema does not have.
        """
        for record in records:
            if not isinstance(record, Mapping):
                raise InputError(f"metadata must be given as {{name: value}}; got {record!r}")
            self._check_names(record)
        return _joined([_encode_records(column, records) for column in self.columns], len(records))

    def describe(self) -> str:
        """Return the names and types of the columns as text."""
        return ", ".join(column.describe() for column in self.columns)

    def _check_names(self, names: Sequence[str] | Mapping[str, object]) -> None:
        columns = [column.name for column in self.columns]
        for name in names:
            if name not in columns:
                hint = did_you_mean(str(name), columns)
                raise UnknownNameError(
                    f"unknown metadata {name!r}; the columns are {listed(columns, 20)}{hint}"
                )


def infer_type(column: pa.Array) -> str:
    """Infer the type of a tidy column.

    >>> infer_type(pa.array(["Alien", "Brazil", "Casablanca"])), infer_type(pa.array(["UK", "US"] * 2))
    ('text', 'category')
    """
    arrow_type, values = column.type, column.drop_null()
    if not len(values):
        return "ignore"
    if pa.types.is_boolean(arrow_type):
        return "category"
    if pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type):
        return "number"
    if pa.types.is_timestamp(arrow_type):
        return "date"
    if pa.types.is_list(arrow_type):
        same_length = len(pc.unique(values.value_lengths())) == 1
        return "vector" if same_length and pa.types.is_floating(arrow_type.value_type) else "labels"
    if pa.types.is_string(arrow_type):
        if pc.mean(pc.match_substring(values, SEPARATOR).cast(pa.int8())).as_py() >= LABELS_SHARE:
            return "labels"
        return "category" if 2 * len(pc.unique(values)) <= len(values) else "text"
    return "ignore"


def _parse_type(text: str, name: str) -> tuple[type[Column], dict[str, int]]:
    """Parse ``number`` or ``text:128`` into a column class and its settings."""
    type_name, _, size = str(text).partition(":")
    if type_name not in COLUMN_TYPES:
        types = f"({', '.join(COLUMN_TYPES)}){did_you_mean(type_name, COLUMN_TYPES)}"
        raise InputError(f"metadata column {name!r}: {text!r} is not a type {types}")
    if size and not (type_name == "text" and size.isdecimal() and size.strip("0")):
        raise InputError(
            f"metadata column {name!r}: {text!r} is not a type; only text takes a size, as text:128"
        )
    if size and (len(size) > 9 or int(size) > MAX_TEXT_SIZE):
        raise InputError(
            f"metadata column {name!r}: {text[:60]!r} is too large; at most text:{MAX_TEXT_SIZE}"
        )
    return COLUMN_TYPES[type_name], {"size": int(size)} if size else {}


def _encode_records(column: Column, records: Sequence[Mapping[str, object]]) -> NDArray[np.float32]:
    values = [
        None if is_missing(value) else column.accept(column.name, value)
        for value in (record.get(column.name) for record in records)
    ]
    return column.encode(pa.array(values, column.arrow))


def _joined(parts: list[NDArray[np.float32]], height: int) -> NDArray[np.float32]:
    return np.concatenate([np.zeros((height, 0), np.float32), *parts], axis=1)
