"""From feature metadata of any kind to vectors of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.config import Config
from headstart.errors import InputError, UnknownNameError, did_you_mean, listed
from headstart.table.columns import COLUMN_TYPES, AnyColumn, Column
from headstart.table.columns.column import missing
from headstart.table.tidying import tidy

MARKED = 0.1  # texts of which this share contains "|" are labels


class MetadataSchema(Config):
    """How each metadata column becomes numbers, fitted once and stored with a model as JSON.

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
        """Learn from a table, one line a feature; ``types`` says what would else be inferred.

        Types are number, date, category, labels, text (``text:128`` for 128 numbers), vector, ignore.
        """
        given = {}
        for name, text in (types or {}).items():
            if name not in table.column_names:
                hint = did_you_mean(name, table.column_names)
                raise UnknownNameError(f"metadata has no column {name!r}{hint} (in metadata_types)")
            given[name] = _parse_type(text, name)
        table = tidy(table)
        columns = []
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            chosen, settings = given.get(name) or (COLUMN_TYPES[infer_type(column)], {})
            fitted = chosen.fit(name, chosen.convert(name, column))
            columns.append(fitted.revised(**settings))
        return cls(columns=tuple(columns))

    @property
    def width(self) -> int:
        """How many numbers a feature is described by."""
        return sum(column.width for column in self.columns)

    def encode_table(self, table: pa.Table) -> NDArray[np.float32]:
        """Encode a table, one line a feature; columns may be missing: (n, width)."""
        table = tidy(table)
        self._refuse_unknown(table.column_names)
        parts = []
        for column in self.columns:
            there = column.name in table.column_names
            found = table.column(column.name).combine_chunks() if there else pa.nulls(len(table))
            parts.append(column.encode(column.convert(column.name, found)))
        return _joined(parts, len(table))

    def encode(self, records: Sequence[Mapping[str, object]]) -> NDArray[np.float32]:
        """Encode features given as {column: value}: (n, width).

        Missing keys are normal, and so are None, NaN and the like.
        """
        for record in records:
            if not isinstance(record, Mapping):
                raise InputError(f"metadata must be given as {{name: value}}; got {record!r}")
            self._refuse_unknown(record)
        return _joined([_encode_records(column, records) for column in self.columns], len(records))

    def describe(self) -> str:
        """Name the columns and their types."""
        return ", ".join(column.describe() for column in self.columns)

    def _refuse_unknown(self, names: Sequence[str] | Mapping[str, object]) -> None:
        known = [column.name for column in self.columns]
        for name in names:
            if name not in known:
                hint = did_you_mean(str(name), known)
                raise UnknownNameError(f"unknown metadata {name!r}; known are {listed(known, 20)}{hint}")


def infer_type(column: pa.Array) -> str:
    """Guess the type of a tidied column.

    >>> infer_type(pa.array(["Alien", "Brazil", "Casablanca"])), infer_type(pa.array(["UK", "US"] * 2))
    ('text', 'category')
    """
    kind, known = column.type, column.drop_null()
    if not len(known):
        return "ignore"
    if pa.types.is_boolean(kind):
        return "category"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if pa.types.is_timestamp(kind):
        return "date"
    if pa.types.is_list(kind):
        alike = len(pc.unique(known.value_lengths())) == 1
        return "vector" if alike and pa.types.is_floating(kind.value_type) else "labels"
    if pa.types.is_string(kind):
        if pc.mean(pc.match_substring(known, "|").cast(pa.int8())).as_py() >= MARKED:
            return "labels"
        return "category" if 2 * len(pc.unique(known)) <= len(known) else "text"
    return "ignore"


def _parse_type(text: str, name: str) -> tuple[type[Column], dict[str, int]]:
    """Read ``number`` or ``text:128``."""
    kind, _, size = str(text).partition(":")
    if kind not in COLUMN_TYPES:
        known = f"({', '.join(COLUMN_TYPES)}){did_you_mean(kind, COLUMN_TYPES)}"
        raise InputError(f"metadata column {name!r}: {text!r} is not a type {known}")
    if size and not (kind == "text" and size.isdecimal() and int(size) > 0):
        raise InputError(
            f"metadata column {name!r}: {text!r} is not a type; only text takes a size, as text:128"
        )
    return COLUMN_TYPES[kind], {"size": int(size)} if size else {}


def _encode_records(column: Column, records: Sequence[Mapping[str, object]]) -> NDArray[np.float32]:
    found = (record.get(column.name) for record in records)
    values = [None if missing(value) else column.accept(column.name, value) for value in found]
    return column.encode(pa.array(values, column.arrow))


def _joined(parts: list[NDArray[np.float32]], height: int) -> NDArray[np.float32]:
    return np.concatenate([np.zeros((height, 0), np.float32), *parts], axis=1)
