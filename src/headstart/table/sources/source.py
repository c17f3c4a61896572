"""What a source is: named columns, gone through in batches of bounded size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from headstart.errors import InputError, UnknownNameError, did_you_mean, listed
from headstart.table.names import as_name

BATCH = 1 << 20  # records held in Arrow form at a time


class Source(ABC):
    """A file or frame that observations or metadata come from."""

    label: str  # how messages call it
    columns: tuple[str, ...]
    typed = True  # whether 17 and "17" can be told apart in it

    @abstractmethod
    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns ``names`` as they are and ``numbers`` as float64, in this order."""

    @abstractmethod
    def read(self, name: str) -> pa.Table:
        """Return everything at once; ``name`` is the column that holds names."""

    def place(self, record: int) -> str:
        """Say where the record of this number (from 0) stands."""
        return f"record {record + 1}"

    def require(self, column: str, argument: str) -> None:
        """Refuse to go on without a column, saying which there are."""
        if column not in self.columns:
            raise UnknownNameError(
                f"{self.label} has no column {column!r} ({argument}={column!r}); its columns are "
                f"{listed(self.columns, 20)}{did_you_mean(column, self.columns)}"
            )

    def _name_columns(self, columns: Iterable[object]) -> None:
        """Set ``columns``, of which no two may bear one name."""
        self.columns = tuple("" if column == "" else as_name(column, "column name") for column in columns)
        repeated = [column for column, times in Counter(self.columns).items() if times > 1]
        if repeated:
            raise InputError(f"{self.label} has more than one column called {listed(repeated)}")


def typed(batch: pa.RecordBatch, names: Sequence[str], numbers: Sequence[str], label: str) -> pa.RecordBatch:
    """Order the columns; make ``numbers`` float64 and rid ``names`` of unused dictionary entries."""
    columns = []
    for name in names:
        array = batch.column(name)
        columns.append(array.dictionary_decode() if pa.types.is_dictionary(array.type) else array)
    for name in numbers:
        array, kind = batch.column(name), batch.column(name).type
        if not (is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise InputError(f"{label}: column {name!r} holds {_told(array)}; observations must be numbers")
        columns.append(array.cast(pa.float64(), safe=False))
    return pa.record_batch(columns, names=[*names, *numbers])


def _told(array: pa.Array) -> str:
    """Say what a column holds in the place of numbers: ``text, such as 'good'``."""
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    known = array.drop_null()
    if not is_text(array.type):
        return f"{array.type}, such as {known[0].as_py()!r}" if len(known) else str(array.type)
    texts = known.unique().to_pylist()
    strange = [text for text in texts if not _reads_as_number(text)]
    what = "text among numbers" if 0 < len(strange) < len(texts) else "text"
    return f"{what}, such as {(strange or texts)[0]!r}" if texts else what


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether an Arrow type holds numbers (a truth value is none)."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
