"""The interface of sources: named columns, read in batches of bounded size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headstart.errors import InputError, UnknownNameError, argument, did_you_mean, listed
from headstart.table.names import as_name

BATCH = 1 << 20  # records per batch


class Source(ABC):
    """A file or frame that contains observations or metadata."""

    label: str  # the name of the source in messages
    columns: tuple[str, ...]
    own_names: tuple[object, ...]  # the columns as the source itself calls them

    @abstractmethod
    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns ``names`` unchanged and the columns ``numbers`` as float64, in this order."""

    @abstractmethod
    def read(self, name: str) -> pa.Table:
        """Return all columns and records; ``name`` is the column that contains names."""

    def part(self, rank: int, size: int) -> Source:  # noqa: ARG002
        """The share of one of several processes, none of which reads all; together they have every record.

        The shares follow each other in the order of the processes.
        """
        raise InputError(
            f"{self.label} cannot be read by several processes; under torchrun, observations are a Parquet "
            "file or, better, a folder of Parquet files"
        )

    def place(self, record: int) -> str:
        """Return where the record with this number (from 0) is, for messages."""
        return f"record {record + 1}"

    def require(self, column: str, name: str) -> None:
        """Raise an error that lists the columns if ``column``, the argument ``name``, is none of them."""
        if column not in self.columns:
            raise UnknownNameError(
                f"{self.label} has no column {column!r} ({argument(name, column)}); its columns are "
                f"{listed(self.columns, 20)}{did_you_mean(column, self.columns)}"
            )

    def own(self, columns: Sequence[str]) -> list[Any]:
        """Return what the source itself calls these columns."""
        names = dict(zip(self.columns, self.own_names, strict=True))
        return [names[column] for column in columns]

    def _name_columns(self, own_names: Iterable[object]) -> None:
        """Set the columns. Two columns with the same tidy name are an error."""
        self.own_names = tuple(own_names)
        self.columns = tuple(map(_column_name, self.own_names))
        repeated = [column for column, count in Counter(self.columns).items() if count > 1]
        if repeated:
            pairs = zip(self.own_names, self.columns, strict=True)
            written = {str(own) for own, column in pairs if column == repeated[0]}
            spellings = f" (written as {listed(sorted(written))})" if len(written) > 1 else ""
            raise InputError(f"{self.label} has more than one column called {repeated[0]!r}{spellings}")


def _column_name(column: object) -> str:
    """Return the tidy name of a column. A column without a name, as pandas writes its index, is ""."""
    return "" if isinstance(column, str) and not column.strip() else as_name(column, "column name")


def convert_batch(
    batch: pa.RecordBatch, names: Sequence[str], numbers: Sequence[str], label: str
) -> pa.RecordBatch:
    """Order the columns, decode dictionaries in ``names`` and convert ``numbers`` to float64."""
    columns = []
    for name in names:
        array = batch.column(name)
        columns.append(array.dictionary_decode() if pa.types.is_dictionary(array.type) else array)
    for name in numbers:
        array, arrow_type = batch.column(name), batch.column(name).type
        if not (is_number(arrow_type) or pa.types.is_boolean(arrow_type) or pa.types.is_null(arrow_type)):
            raise InputError(
                f"{label}: column {name!r} contains {_content(array)}; observations must be numbers"
            )
        columns.append(array.cast(pa.float64(), safe=False))
    return pa.record_batch(columns, names=[*names, *numbers])


def _content(array: pa.Array) -> str:
    """Describe what a column contains instead of numbers: ``text, such as 'good'``."""
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    values = array.drop_null()
    if not is_text(array.type):
        return f"{array.type}, such as {values[0].as_py()!r}" if len(values) else str(array.type)
    texts = values.unique().to_pylist()
    not_numbers = [text for text in texts if not _is_number_text(text)]
    content = "text among numbers" if 0 < len(not_numbers) < len(texts) else "text"
    return f"{content}, such as {(not_numbers or texts)[0]!r}" if texts else content


def _is_number_text(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_text(arrow_type: pa.DataType) -> bool:
    """Return whether an Arrow type contains text."""
    return bool(
        pa.types.is_string(arrow_type)
        or pa.types.is_large_string(arrow_type)
        or pa.types.is_string_view(arrow_type)
    )


def is_number(arrow_type: pa.DataType) -> bool:
    """Return whether an Arrow type contains numbers; a boolean is not a number."""
    return bool(
        pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type) or pa.types.is_decimal(arrow_type)
    )
