"""Feature metadata as vectors of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.config import Config
from headstart.errors import InputError, UnknownNameError, argument, did_you_mean, listed
from headstart.progress import Reporter
from headstart.table.columns import COLUMN_TYPES, AnyColumn, Column
from headstart.table.columns.column import is_missing
from headstart.table.columns.labels import SEPARATOR
from headstart.table.encoders import EncoderLike
from headstart.table.tidying import tidy

Encoders = Mapping[str, EncoderLike]

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
    def fit(
        cls, table: pa.Table, types: Mapping[str, str] | None = None, encoders: Encoders | None = None
    ) -> MetadataSchema:
        """Fit the columns of a table with one line per feature.

        Parameters
        ----------
        table : pyarrow.Table
            The metadata, without the names of the features.
        types : mapping of str to str, optional
            The types of some columns: number, date, category, labels, text, vector, custom or ignore.
            ``text:128`` hashes the words of a text into 128 numbers, and ``text:MODEL`` names a sentence
            encoder. The types of other columns are inferred.
        encoders : mapping of str to callable, optional
            Functions that encode columns of the type custom: each maps a list of n values to an array
            (n, width).

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
        return cls.fit_encoded(table, types or {}, encoders or {}, Reporter(quiet=True))[0]

    @classmethod
    def fit_encoded(
        cls, table: pa.Table, types: Mapping[str, str], encoders: Encoders, reporter: Reporter
    ) -> tuple[MetadataSchema, dict[str, NDArray[np.float32]]]:
        """Fit the columns, and also return the vectors of those that an encoder encodes.

        The parameters are those of ``fit``; a vector is expensive, so that it should not be computed twice.
        """
        explicit = _explicit_types(table.column_names, types, encoders)
        table = tidy(table)
        columns, vectors = [], {}
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            column_type, detail = explicit.get(name) or (COLUMN_TYPES[infer_type(column)], "")
            fitted, encoded = column_type.fit_encoded(name, column, detail, encoders.get(name), reporter)
            columns.append(fitted)
            if encoded is not None:
                vectors[name] = encoded
        return cls(columns=tuple(columns)), vectors

    @property
    def width(self) -> int:
        """How many numbers encode the metadata of one feature."""
        return sum(column.width for column in self.columns)

    def encode_table(
        self,
        table: pa.Table,
        encoders: Encoders | None = None,
        vectors: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> NDArray[np.float32]:
        """Encode a table with one line per feature.

        Parameters
        ----------
        table : pyarrow.Table
            The metadata. Columns of the schema may be absent; other columns are an error.
        encoders : mapping, optional
            What encodes the columns of the type custom, and the folders of sentence encoders that are not
            where they were.
        vectors : mapping of str to ndarray, optional
            Columns that are encoded already.

        Returns
        -------
        ndarray of shape (n, width)
            The encoded metadata.
        """
        table = tidy(table)
        self._check_names(table.column_names)
        parts = []
        for column in self.columns:
            known = (vectors or {}).get(column.name)
            parts.append(_encode_column(column, table, encoders or {}) if known is None else known)
        return _joined(parts, len(table))

    def vectors(self, table: pa.Table, encoders: Encoders) -> dict[str, NDArray[np.float32]]:
        """Encode only the columns that an encoder encodes, whose vectors cost time: (n, width) each."""
        table = tidy(table)
        slow = [column for column in self.columns if column.takes is not None]
        return {column.name: _encode_column(column, table, encoders) for column in slow}

    def encode(
        self, records: Sequence[Mapping[str, object]], encoders: Encoders | None = None
    ) -> NDArray[np.float32]:
        """Encode records, one per feature.

        Parameters
        ----------
        records : sequence of mappings
            The metadata of each feature as {column: value}. Columns may be absent, and values may be
            missing (None, NaN, NaT or the NA of pandas).
        encoders : mapping, optional
            As in ``encode_table``.

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
        parts = []
        for column in self.columns:
            given = [record.get(column.name) for record in records]
            values = [None if is_missing(value) else value for value in given]
            encoder = (encoders or {}).get(column.name)
            parts.append(column.encode_values(values, encoder, Reporter(quiet=True)))
        return _joined(parts, len(records))

    def decode(self, line: NDArray[np.float32]) -> dict[str, object]:
        """Return what can be read back from the numbers of one feature, by column.

        >>> films = pa.table({"year": [1979, 1985], "genres": [["Horror", "Sci-Fi"], ["Drama"]]})
        >>> schema = MetadataSchema.fit(films)
        >>> schema.decode(schema.encode([{"year": 1982, "genres": ["Drama", "Western"]}])[0])
        {'year': 1982, 'genres': ['Drama']}
        """
        ends = np.cumsum([column.width for column in self.columns]).tolist()
        parts = zip(self.columns, np.split(line, ends[:-1]), strict=True) if self.columns else ()
        decoded = {column.name: column.decode(part) for column, part in parts}
        return {name: value for name, value in decoded.items() if value is not None}

    def describe(self) -> str:
        """Return the names and types of the columns as text."""
        return ", ".join(column.describe() for column in self.columns)

    def check_encoders(self, encoders: Encoders) -> None:
        """Refuse encoders for columns that do not exist or have no use for them."""
        columns = {column.name: column for column in self.columns}
        self._check_names(encoders)
        for name, encoder in encoders.items():
            takes = columns[name].takes
            if takes is None:
                raise InputError(f"metadata {name!r} takes no encoder; its type is {columns[name].spec}")
            if not (callable(encoder) if takes == "function" else isinstance(encoder, (str, Path))):
                raise InputError(f"metadata {name!r}: its encoder must be a {takes}; got {encoder!r}")

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


def _explicit_types(
    columns: Sequence[str], types: Mapping[str, str], encoders: Encoders
) -> dict[str, tuple[type[Column], str]]:
    """Return the class, and what follows the colon, of each column that has a given type or an encoder."""
    for given, place in ((types, "metadata_types"), (encoders, "encoders")):
        for name in given:
            if name not in columns:
                hint = did_you_mean(str(name), columns)
                raise UnknownNameError(f"metadata has no column {name!r}{hint} (in {argument(place)})")
    for name, encoder in encoders.items():
        if not callable(encoder):
            raise InputError(
                f"metadata column {name!r}: its encoder must be a function; got {encoder!r};"
                " a sentence encoder is given as a type, as metadata_types={'title': 'text:FOLDER'}"
            )
    return {
        name: _parse_type(text, name) for name, text in {**dict.fromkeys(encoders, "custom"), **types}.items()
    }


def _parse_type(text: str, name: str) -> tuple[type[Column], str]:
    """Parse ``number`` or ``text:128`` into a column class and what follows the colon."""
    type_name, _, detail = str(text).partition(":")
    if type_name not in COLUMN_TYPES:
        types = f"({', '.join(COLUMN_TYPES)}){did_you_mean(type_name, COLUMN_TYPES)}"
        raise InputError(f"metadata column {name!r}: {text!r} is not a type {types}")
    return COLUMN_TYPES[type_name], detail


def _encode_column(column: Column, table: pa.Table, encoders: Encoders) -> NDArray[np.float32]:
    present = column.name in table.column_names
    values = table.column(column.name).combine_chunks() if present else pa.nulls(len(table))
    return column.encode_using(values, encoders.get(column.name), Reporter(quiet=True))


def _joined(parts: list[NDArray[np.float32]], height: int) -> NDArray[np.float32]:
    return np.concatenate([np.zeros((height, 0), np.float32), *parts], axis=1)
