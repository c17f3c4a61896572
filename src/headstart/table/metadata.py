"""Encode the metadata of rows and features as vectors of numbers."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from headstart.config import Config
from headstart.errors import InputError, UnknownNameError, did_you_mean, join_names, option_name
from headstart.progress import Reporter
from headstart.table.columns import (
    SEPARATOR,
    CategoryColumn,
    Column,
    DateColumn,
    IgnoredColumn,
    LabelsColumn,
    NumberColumn,
    Structure,
    is_missing,
)
from headstart.table.names import NameNumbering, Names
from headstart.table.sources import Source, as_microseconds, is_number, is_text
from headstart.table.text_encoders import EncoderLike
from headstart.table.vector_columns import CustomColumn, ImageColumn, TextColumn, TokensColumn, VectorColumn

AnyColumn = Annotated[
    NumberColumn
    | DateColumn
    | CategoryColumn
    | LabelsColumn
    | TextColumn
    | VectorColumn
    | CustomColumn
    | TokensColumn
    | ImageColumn
    | IgnoredColumn,
    Field(discriminator="type"),
]

COLUMN_TYPES: dict[str, type[Column]] = {
    "number": NumberColumn,
    "date": DateColumn,
    "category": CategoryColumn,
    "labels": LabelsColumn,
    "text": TextColumn,
    "vector": VectorColumn,
    "custom": CustomColumn,
    "tokens": TokensColumn,
    "image": ImageColumn,
    "ignore": IgnoredColumn,
}

LABELS_SHARE = 0.1  # a text column is labels if this share of its texts contains the separator


def normalise_metadata(table: pa.Table) -> pa.Table:
    """Convert every column to one of a few types, so that metadata does not depend on its source.

    Numbers become int64 if all are whole, else float64. Texts become strings, and empty texts null.
    Dates become timestamps without a time zone. Lists contain float64 or strings.
    """
    columns = [_normalise_column(column.combine_chunks()) for column in table.columns]
    return pa.table(columns, names=table.column_names)


def read_metadata(source: Source, feature: str, noun: str = "feature") -> tuple[list[str], pa.Table]:
    """Return the distinct names of features (or rows), and a table with one line of metadata per name."""
    source.require(feature, noun)
    table = source.read(feature)
    numbering = NameNumbering(noun)
    column = table.column(feature).combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    numbers = numbering.number(column, lambda i: f"{source.label}, {source.place(i)}")
    names, name_index = numbering.names, numbers.astype(np.int64)
    # pandas writes its index to a CSV file as a column without a name.
    metadata = normalise_metadata(
        table.select([name for name in table.column_names if name not in ("", feature)])
    )
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


def _normalise_column(column: pa.Array) -> pa.Array:
    arrow_type = column.type
    if isinstance(column, pa.ExtensionArray):
        return _normalise_column(column.storage)
    if pa.types.is_dictionary(arrow_type):
        return _normalise_column(column.dictionary_decode())
    if is_text(arrow_type):
        text = column.cast(pa.string())
        return pc.if_else(pc.equal(text, ""), None, text)
    if pa.types.is_integer(arrow_type):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:  # beyond 2**63: identifiers, which must keep all digits
            return column.cast(pa.string())
    if is_number(arrow_type):
        number = column.cast(pa.float64(), safe=False)
        whole = pc.all(pc.equal(number, pc.round(number)), min_count=0).as_py()
        safe = pc.all(pc.less(pc.abs(number), 2.0**53), min_count=0).as_py()
        return number.cast(pa.int64()) if whole and safe else number
    if pa.types.is_date(arrow_type) or pa.types.is_timestamp(arrow_type):
        return as_microseconds(column, "metadata").cast(pa.timestamp("us"))
    if (
        pa.types.is_fixed_size_list(arrow_type)
        or pa.types.is_list(arrow_type)
        or pa.types.is_large_list(arrow_type)
    ):
        return _normalise_list(column)
    return column


def _normalise_list(column: pa.Array) -> pa.Array:
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


Encoders = Mapping[str, EncoderLike]


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
            The types of some columns: number, date, category, labels, text, vector, custom, tokens, image
            or ignore. ``text:128`` hashes the words of a text into 128 numbers, ``text:static`` averages
            its word pieces, and ``text:MODEL`` names a sentence encoder. Other types are inferred.
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
        """Fit the columns, and also return the vectors of the columns with an encoder.

        The parameters are those of ``fit``. Vectors are returned because computing them again is expensive.
        """
        explicit = _explicit_types(table.column_names, types, encoders)
        table = normalise_metadata(table)
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
        """The width of the encoded metadata of one feature."""
        return sum(column.width for column in self.columns)

    @property
    def widths(self) -> tuple[int, ...]:
        """How many numbers encode each column."""
        return tuple(column.width for column in self.columns)

    @property
    def structures(self) -> tuple[Structure | None, ...]:
        """The structure of each column that only networks can read; None for plain numbers."""
        return tuple(column.structure for column in self.columns)

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
            Functions for the columns of the type custom, and new folders of sentence encoders that were
            moved.
        vectors : mapping of str to ndarray, optional
            Columns that are encoded already.

        Returns
        -------
        ndarray of shape (n, width)
            The encoded metadata.
        """
        table = normalise_metadata(table)
        self._check_names(table.column_names)
        parts = []
        for column in self.columns:
            known = (vectors or {}).get(column.name)
            parts.append(_encode_column(column, table, encoders or {}) if known is None else known)
        return _concatenate(parts, len(table))

    def vectors(self, table: pa.Table, encoders: Encoders) -> dict[str, NDArray[np.float32]]:
        """Encode only the columns with an encoder, whose vectors are expensive: (n, width) each."""
        table = normalise_metadata(table)
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
            cells = (record.get(column.name) for record in records)
            values = [None if is_missing(value) else value for value in cells]
            encoder = (encoders or {}).get(column.name)
            if encoder is None and all(value is None for value in values):
                parts.append(np.repeat(self._encode_missing(column), len(values), axis=0))
            else:
                parts.append(column.encode_values(values, encoder, Reporter(quiet=True)))
        return _concatenate(parts, len(records))

    def _encode_missing(self, column: Column) -> NDArray[np.float32]:
        """Encode a missing value of a column without a user's encoder: (1, width); computed once."""
        if column.name not in self._missing:
            self._missing[column.name] = column.encode_values([None], None, Reporter(quiet=True))
        return self._missing[column.name]

    @cached_property
    def _missing(self) -> dict[str, NDArray[np.float32]]:
        """The encoded missing value of each column that was missing so far."""
        return {}

    def describe_unusual(self, records: Sequence[Mapping[str, object]]) -> list[str]:
        """Return a message for each label, category or number in records that the schema does not know.

        >>> schema = MetadataSchema.fit(pa.table({"year": [1979, 1985], "genre": ["Horror", "Horror"]}))
        >>> for message in schema.describe_unusual([{"year": 1986, "genre": "horror"}]):
        ...     print(message)
        metadata 'year': 1986 is far outside of the known range from 1979 to 1985; its effect returns towards
        that of the mean
        metadata 'genre': 'horror' is not known and has no effect; did you mean 'Horror'?
        """
        messages: dict[str, None] = {}
        for column in self.columns:
            for record in records:
                if not is_missing(value := record.get(column.name)):
                    messages.update(dict.fromkeys(column.describe_unusual(value)))
        return list(messages)

    def decode(self, line: NDArray[np.float32]) -> dict[str, object]:
        """Return the metadata that can be recovered from the numbers of one feature, by column.

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
        """Raise an error for encoders of columns that do not exist or take no encoder."""
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
                    f"unknown metadata {name!r}; the columns are {join_names(columns, 20)}{hint}"
                )


def describe_unused(schema: MetadataSchema, table: pa.Table, types: Mapping[str, str]) -> list[str]:
    """Return a note on each column, or part of one, that has no effect although ``types`` does not say so."""
    notes, table = [], normalise_metadata(table)
    for column in schema.columns:
        values = table.column(column.name).combine_chunks()
        if isinstance(column, IgnoredColumn) and types.get(column.name) != "ignore":
            reason = f"it contains {values.type}" if len(values.drop_null()) else "it has no values"
            notes.append(f"metadata column {column.name!r} is not used: {reason}")
        elif isinstance(column, (CategoryColumn, LabelsColumn)):
            number = column.count_distinct(values)
            if number > column.width:
                notes.append(
                    f"metadata column {column.name!r}: the {column.width} most frequent of {number} values"
                    " are used; the others count as unknown"
                )
    return notes


def infer_type(column: pa.Array) -> str:
    """Infer the type of a normalised column.

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
    """Return the class and the text after the colon of each column with an explicit type or an encoder."""
    for mapping, argument in ((types, "metadata_types"), (encoders, "encoders")):
        for name in mapping:
            if name not in columns:
                hint = did_you_mean(str(name), columns)
                raise UnknownNameError(f"metadata has no column {name!r}{hint} (in {option_name(argument)})")
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
    """Parse ``number`` or ``text:128`` into a column class and the text after the colon."""
    type_name, _, detail = str(text).partition(":")
    if type_name not in COLUMN_TYPES:
        types = f"({', '.join(COLUMN_TYPES)}){did_you_mean(type_name, COLUMN_TYPES)}"
        raise InputError(f"metadata column {name!r}: {text!r} is not a type {types}")
    return COLUMN_TYPES[type_name], detail


def _encode_column(column: Column, table: pa.Table, encoders: Encoders) -> NDArray[np.float32]:
    position = table.schema.get_field_index(column.name)  # a look-up by name lists all columns
    values = table.column(position).combine_chunks() if position >= 0 else pa.nulls(len(table))
    return column.encode_using(values, encoders.get(column.name), Reporter(quiet=True))


def _concatenate(parts: list[NDArray[np.float32]], height: int) -> NDArray[np.float32]:
    return np.concatenate([np.zeros((height, 0), np.float32), *parts], axis=1)


def as_array(values: list[object]) -> pa.Array:
    """Convert values to an Arrow array; values of types that Arrow does not know become text."""
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return pa.array([as_text(value) for value in values], pa.string())


def as_text(value: object) -> str | None:
    """Convert a value to text; a list of labels becomes one text."""
    if isinstance(value, (list, tuple, set)):
        return SEPARATOR.join(map(str, value))
    return None if is_missing(value) else str(value)


def as_bytes(records: Sequence[Mapping[str, object]], columns: Sequence[str]) -> Tensor:
    """Serialise records as one tensor of bytes."""
    table = pa.table({name: as_array([record.get(name) for record in records]) for name in columns})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return torch.from_numpy(np.frombuffer(sink.getvalue(), dtype=np.uint8).copy())


def records_from(content: Tensor | None, count: int) -> list[dict[str, object] | None]:
    """Return the records in the bytes of ``as_bytes``, one per feature; None for each without bytes."""
    if content is None:
        return [None] * count
    table = table_from(content)
    if table.num_columns and table.num_rows != count:
        raise InputError("its metadata does not agree with its features")
    lines = table.to_pylist() if table.num_columns else [{}] * count
    return [{key: value for key, value in line.items() if value is not None} for line in lines]


def table_from(content: Tensor) -> pa.Table:
    """Return the table in the bytes of ``as_bytes`` without copying them.

    The bytes may come from anyone, so a table that would become larger than they are is refused: compressed
    buffers, repeated values, and lists of more values than there are bits.
    """
    try:
        buffer = pa.py_buffer(content.numpy())
        for message in pa.ipc.MessageReader.open_stream(buffer):
            if message.type not in ("schema", "record batch") or _is_compressed(message):
                raise InputError("its metadata is compressed or encoded in another way than it was saved")
        with pa.ipc.open_stream(buffer) as reader:
            table = reader.read_all()
        values = sum(_count_values(chunk) for column in table.columns for chunk in column.chunks)
        if values > 8 * len(content):
            raise InputError(f"its metadata claims {values} values in {len(content)} bytes")
        table.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, struct.error, UnicodeDecodeError) as error:
        raise InputError(f"its metadata cannot be read: {error}") from None
    return table


def _is_compressed(message: pa.ipc.Message) -> bool:
    """Return whether the buffers of a message are compressed, which its table ``RecordBatch`` says.

    Flatbuffers: a table starts with the distance back to the list of the positions of its fields.
    """
    content = message.metadata.to_pybytes()

    def field(table: int, number: int) -> int:
        """Return the position of a field; 0 if it is absent."""
        fields = table - struct.unpack_from("<i", content, table)[0]
        size, at = struct.unpack_from("<H", content, fields)[0], 4 + 2 * number
        offset = struct.unpack_from("<H", content, fields + at)[0] if at < size else 0
        return table + offset if offset else 0

    def follow(position: int) -> int:
        return position + int(struct.unpack_from("<I", content, position)[0])

    header = field(follow(0), 2)
    return message.type == "record batch" and bool(field(follow(header), 3))


def _count_values(array: pa.Array) -> int:
    """Return the number of values in an array and its lists; refuse types that ``as_bytes`` never writes."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return len(array) + _count_values(array.values)
    if pa.types.is_struct(kind):
        return len(array) + sum(_count_values(array.field(i)) for i in range(kind.num_fields))
    if kind.num_fields or pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        raise InputError(f"its metadata has the type {kind}")
    return len(array)
