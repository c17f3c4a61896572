"""Open files and frames behind one interface: named columns, read in bounded batches."""

from __future__ import annotations

import codecs
import csv
import gzip
import os
import re
import stat
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from encodings.aliases import aliases
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from headstart.errors import InputError, UnknownNameError, did_you_mean, join_names, option_name
from headstart.table.columns import category
from headstart.table.missing_values import NO_CODES, MissingCodes, as_missing
from headstart.table.names import as_name

SEPARATORS = (",", ";", "\t", "|")

_WORDS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}


@dataclass(frozen=True)
class TextFormat:
    """The format of text files, and codes for missing values. A field that is None has its default.

    Parameters
    ----------
    separator : str, optional
        The character between fields, or "tab". By default it is detected from the header.
    decimal : str, optional
        The decimal point of numbers, "." by default.
    encoding : str, optional
        The encoding, such as "latin-1"; UTF-8 by default.
    missing : MissingCodes, default=NO_CODES
        The observed values, in text files and frames, that stand for "not observed".
    not_applicable : MissingCodes, default=NO_CODES
        Those of ``missing`` that mean "not applicable".

    Examples
    --------
    >>> TextFormat(separator="tab").separator
    '\\t'
    >>> TextFormat(encoding="latn-1")
    Traceback (most recent call last):
    headstart.errors.InputError: encoding 'latn-1' is unknown; did you mean 'latin1'?
    """

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    missing: MissingCodes = NO_CODES
    not_applicable: MissingCodes = NO_CODES

    def __post_init__(self) -> None:
        separator = self.separator
        if isinstance(separator, str):
            separator = _WORDS.get(separator, separator)
            object.__setattr__(self, "separator", separator)
        for name, text in (("separator", separator), ("decimal", self.decimal)):
            if text is not None and not (
                isinstance(text, str) and len(text) == 1 and text.isascii() and text not in '"\r\n\0'
            ):
                example = "';'" if name == "separator" else "','"
                raise InputError(f"{name} must be one character, such as {example}; got {text!r}")
        if self.decimal is not None and (self.decimal.isalnum() or self.decimal in "+-"):
            raise InputError(f"decimal must be a point or a comma; got {self.decimal!r}")
        if separator is not None and separator == (self.decimal or "."):
            raise InputError(f"the separator and the decimal point cannot both be {separator!r}")
        if self.encoding is not None:
            _check_encoding(self.encoding)

    @property
    def given(self) -> bool:
        """Whether any field is set that only text files have."""
        return self != TextFormat(missing=self.missing, not_applicable=self.not_applicable)

    def separator_of(self, header: str, usual: str, wanted: Sequence[str]) -> str:
        """Return the separator of a file with this header.

        This is ``separator`` if it is set, otherwise the separator for which the header has most of the
        ``wanted`` columns; among equals the ``usual`` one if the header contains it, then the one with the
        most columns.

        >>> TextFormat().separator_of("user;film, by name;stars", ",", ["user", "stars"])
        ';'
        >>> TextFormat().separator_of("row;a;b", ",", ["row"])
        ';'
        """
        if self.separator is not None:
            return self.separator

        def score(separator: str) -> tuple[int, bool, int]:
            try:
                fields = next(csv.reader([header], delimiter=separator), [])
            except csv.Error:  # a very long header is one field if the separator is wrong
                fields = []
            cells = {field.strip() for field in fields}
            present = sum(name in cells for name in wanted)
            return present, separator == usual and len(fields) > 1, len(fields)

        allowed = [separator for separator in SEPARATORS if separator != self.decimal]
        return max(allowed, key=score)


def _check_encoding(encoding: object) -> None:
    try:
        codecs.lookup(encoding)  # type: ignore[arg-type]
        "".encode(encoding)  # type: ignore[arg-type]  # some codecs are not for text
    except (LookupError, TypeError, ValueError):
        hint = did_you_mean(str(encoding), set(aliases) | set(aliases.values()))
        raise InputError(f"encoding {encoding!r} is unknown{hint}") from None


BATCH = 1 << 20  # records per batch

# The ends of the names of files.
COMMA_SEPARATED, TAB_SEPARATED = (".csv", ".csv.gz"), (".tsv", ".tsv.gz")
PARQUET = (".parquet", ".pq")
TABLES = (*COMMA_SEPARATED, *TAB_SEPARATED, *PARQUET)

_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class Source(ABC):
    """A file or frame that contains observations or metadata."""

    label: str  # the name of the source in messages
    columns: tuple[str, ...]
    own_names: tuple[object, ...]  # the names of the columns in the source, before normalisation
    missing: MissingCodes = NO_CODES  # values of ``numbers`` in ``batches`` that become null
    not_applicable: MissingCodes = NO_CODES  # those of ``missing`` that mean "not applicable"
    notes: tuple[str, ...] = ()  # on parts that are left out or changed
    decimal: str = "."  # the decimal point of numbers in texts
    converts_texts: bool = True  # whether ``batches`` reads texts such as "3" as numbers
    labels: Sequence[str] = ()  # the texts whose positions ``batches`` yields as values; empty: numbers
    _temporary_folder: TemporaryDirectory[str] | None = None  # of a copy; exists as long as the source does

    @abstractmethod
    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns ``names`` unchanged and the columns ``numbers`` as float64, in this order."""

    @abstractmethod
    def read(self, name: str) -> pa.Table:
        """Return all columns and records; ``name`` is the column that contains names."""

    def part(self, rank: int, size: int) -> Source:  # noqa: ARG002
        """Return the share of the process ``rank`` of ``size``. Together, the shares contain every record.

        The shares are consecutive, in the order of the processes.
        """
        raise InputError(
            f"{self.label} cannot be read by several processes; under torchrun, observations are a Parquet "
            "file or, better, a folder of Parquet files"
        )

    def place(self, record: int) -> str:
        """Return where the record with this number (from 0) is, for messages."""
        return f"record {record + 1}"

    def category_orders(self, columns: Sequence[str]) -> dict[str, tuple[str, ...]]:  # noqa: ARG002
        """Return the categories of the ordered categorical columns among ``columns``, in their order."""
        return {}

    def require(self, column: str, name: str) -> None:
        """Raise an error that lists the columns if ``column``, the argument ``name``, is none of them."""
        if column not in self.columns:
            raise UnknownNameError(
                f"{self.label} has no column {column!r} ({option_name(name, column)}); its columns are "
                f"{join_names(self.columns, 20)}{did_you_mean(column, self.columns)}"
            )

    def own(self, columns: Sequence[str]) -> list[Any]:
        """Return these columns' names in the source, before normalisation."""
        names = dict(zip(self.columns, self.own_names, strict=True))
        return [names[column] for column in columns]

    def _name_columns(self, own_names: Iterable[object]) -> None:
        """Set the columns. Two columns with the same normalised name are an error."""
        self.own_names = tuple(own_names)
        self.columns = tuple(map(_column_name, self.own_names))
        repeated = [column for column, count in Counter(self.columns).items() if count > 1]
        if repeated:
            pairs = zip(self.own_names, self.columns, strict=True)
            written = {str(name) for name, column in pairs if column == repeated[0]}
            spellings = f" (written as {join_names(sorted(written))})" if len(written) > 1 else ""
            raise InputError(f"{self.label} has more than one column called {repeated[0]!r}{spellings}")


def _column_name(column: object) -> str:
    """Return the normalised name of a column. A column without a name, as pandas writes its index, is ""."""
    return "" if isinstance(column, str) and not column.strip() else as_name(column, "column name")


def convert_batch(
    batch: pa.RecordBatch, names: Sequence[str], numbers: Sequence[str], source: Source
) -> pa.RecordBatch:
    """Order the columns, decode dictionaries in ``names`` and convert ``numbers`` to float64.

    The codes for missing values of the ``source`` become null.
    """
    columns = []
    for name in names:
        array = batch.column(name)
        columns.append(array.dictionary_decode() if pa.types.is_dictionary(array.type) else array)
    for name in numbers:
        array = batch.column(name)
        if pa.types.is_dictionary(array.type) and not is_text(array.type.value_type):
            array = array.dictionary_decode()  # a category of numbers or booleans
        array = source.missing.to_null(array)
        arrow_type = array.type
        if not (is_number(arrow_type) or pa.types.is_boolean(arrow_type) or pa.types.is_null(arrow_type)):
            raise InputError(
                f"{source.label}: column {name!r} contains {_content(array)}; observations must be numbers"
                f"{_advice_of(array)}"
            )
        columns.append(_as_doubles(array, f"{source.label}: column {name!r}"))
    return pa.record_batch(columns, names=[*names, *numbers])


def _as_doubles(array: pa.Array, label: str) -> pa.Array:
    """Convert numbers to float64; refuse a whole number that would lose digits."""
    doubles = array.cast(pa.float64(), safe=False)
    if pa.types.is_integer(array.type) and array.type.bit_width == 64:
        inexact = pc.fill_null(pc.not_equal(_exact_integers(doubles, array.type), array), False)
        if pc.any(inexact, min_count=0).as_py():
            raise lost_digits(label, array.filter(inexact)[0].as_py())
    return doubles


def _exact_integers(doubles: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Convert doubles back to whole numbers; the largest, which would overflow, become 0."""
    largest = 2.0**63 if pa.types.is_signed_integer(arrow_type) else 2.0**64
    return pc.if_else(pc.less(doubles, largest), doubles, 0.0).cast(arrow_type, safe=False)


def lost_digits(label: str, number: int) -> InputError:
    """Return the error about a whole number that is too large to be kept with all digits."""
    return InputError(
        f"{label}: the whole number {number} has more digits than a value keeps (beyond 2**53); an identifier"
        " is no value, and a measurement is given as a decimal number or in larger units"
    )


def _content(array: pa.Array) -> str:
    """Describe the content of a column that has no numbers: ``text, such as 'good'``."""
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    values = array.drop_null()
    if not is_text(array.type):
        return f"{array.type}, such as {values[0].as_py()!r}" if len(values) else str(array.type)
    texts = values.unique().to_pylist()
    not_numbers = [text for text in texts if as_number(text) is None]
    content = "text among numbers" if 0 < len(not_numbers) < len(texts) else "text"
    return f"{content}, such as {(not_numbers or texts)[0]!r}" if texts else content


def _advice_of(array: pa.Array) -> str:
    """Return the advice on a column of texts; nothing for other types."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not is_text(array.type):
        return ""
    texts = [text for text in array.drop_null().unique().to_pylist() if as_number(text) is None]
    return advise_on_text(texts[0]) if texts else "; convert the column to numbers"


def advise_on_text(text: str) -> str:
    """Return advice on a text in place of an observed value.

    >>> advise_on_text("TRUE")
    '; write 1 for true or yes and 0 for false or no'
    """
    if text.strip().casefold() in ("true", "false", "yes", "no", "t", "f", "y", "n"):
        return "; write 1 for true or yes and 0 for false or no"
    return (
        "; write answers as numbers, such as 1 to 5 for the steps of a scale, or all of them as labels; if"
        f" the text means 'missing', use {as_missing([text.strip()])}"
    )


def as_number(text: str) -> float | None:
    """Return the number that a text writes; None if it writes none."""
    try:
        return float(text)
    except ValueError:
        return None


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


def as_microseconds(dates: pa.Array | pa.ChunkedArray, label: str) -> pa.Array | pa.ChunkedArray:
    """Convert dates or timestamps to timestamps in microseconds, which drops nanoseconds.

    Dates out of the range of microseconds, about 290,000 years, are an error that begins with ``label``.
    """
    arrow_type = dates.type
    finer = pa.types.is_timestamp(arrow_type) and arrow_type.unit == "ns"
    try:
        return dates.cast(pa.timestamp("us", getattr(arrow_type, "tz", None)), safe=not finer)
    except pa.ArrowInvalid:
        raise InputError(
            f"{label} has a date that is too far from 1970; correct it, or leave it out"
        ) from None


# Texts that mean "not observed". NaN is not one of them: it is a wrong number, and an error.
BLANKS = ("", "NA", "N/A", "n/a", "#N/A", "NULL", "null")

# Bytes parsed at a time. Distinct names are collected in each block, so small blocks are slow. A block
# must be longer than the longest line.
BLOCK = 1 << 24

# Errors that can occur while a file is read.
_PROBLEMS = (UnicodeError, OSError, EOFError, csv.Error, zlib.error)


_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}([.,][0-9]{3})+")  # 1,296, which may be 1296 or 1.296

_WHOLE = re.compile(r"[+-]?[0-9]{16,30}")  # a whole number that float64 may not keep with all digits


class CsvSource(Source):
    """A text file with a header. Names keep their spelling; blank values are null."""

    _digits_checked = False  # whether the digits of very large numbers have been checked

    def __init__(self, path: Path, usual: str, form: TextFormat, wanted: Sequence[str] = ()) -> None:
        """Read the header. ``usual`` is the separator that the file's name stands for."""
        self.label, self._path = str(path), path
        self._encoding, self.decimal = form.encoding or "utf-8", form.decimal or "."
        self.missing = form.missing
        with self._explain_errors():
            with self._open() as file:
                first_line = next((line for line in file if line.strip()), "")
            self._separator = form.separator_of(first_line, usual, wanted)
            header = next((fields for _, fields in self._records()), None)
        if header is None:
            raise InputError(f"{self.label} is empty; expected a header and at least one more line")
        self._name_columns(header)

    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns block by block, the names as dictionary arrays."""
        text = pa.dictionary(pa.int32(), pa.string())
        types = dict.fromkeys(self.own(names), text) | dict.fromkeys(self.own(numbers), pa.float64())
        convert = pa_csv.ConvertOptions(
            include_columns=list(types),
            column_types=types,
            null_values=[*BLANKS, *self.missing.texts],
            decimal_point=self.decimal,
        )
        with self._explain_errors(names, numbers):
            for batch in pa_csv.open_csv(self._path, *self._options(), convert):
                self._refuse_lost_digits(batch, numbers)
                columns = [batch.column(i) for i in range(len(names))]
                columns += [self.missing.to_null(array) for array in batch.columns[len(names) :]]
                yield pa.record_batch(columns, names=[*names, *numbers])

    def read(self, name: str) -> pa.Table:
        """Return the whole file, with inferred column types; names stay text."""
        types = {self.own([name])[0]: pa.string()}
        convert = pa_csv.ConvertOptions(column_types=types, decimal_point=self.decimal)
        with self._explain_errors([name]):
            table = pa_csv.read_csv(self._path, *self._options(), convert)
        table = table.rename_columns(list(self.columns))
        for field in table.schema:
            if pa.types.is_binary(field.type):  # Arrow reads text in another encoding as bytes
                reason = self._reason(UnicodeError())
                raise InputError(f"{self.label} cannot be read: column {field.name!r}: {reason}")
        return table

    def place(self, record: int) -> str:
        """Return the line of a record, counting the header, blank and continued lines."""
        lines = (line for number, (line, _) in enumerate(self._records()) if number == record + 1)
        return f"line {next(lines, record + 2)}"

    def _options(self) -> tuple[pa_csv.ReadOptions, pa_csv.ParseOptions]:
        parse = pa_csv.ParseOptions(delimiter=self._separator, newlines_in_values=True)
        return pa_csv.ReadOptions(block_size=BLOCK, encoding=self._encoding), parse

    def _open(self) -> TextIO:
        opened: Any = gzip.open if self._path.name.lower().endswith(".gz") else open
        encoding = "utf-8-sig" if self._encoding.lower() in ("utf-8", "utf8", "utf_8") else self._encoding
        return opened(self._path, "rt", encoding=encoding, newline="")  # type: ignore[no-any-return]

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line numbers and fields, slowly: for the header and for error messages."""
        with self._open() as file:
            reader = csv.reader(file, delimiter=self._separator)
            yield from ((reader.line_num, fields) for fields in reader if fields)

    @contextmanager
    def _explain_errors(self, names: Sequence[str] = (), numbers: Sequence[str] = ()) -> Iterator[None]:
        """Raise an InputError that says where and why in place of any error while reading."""
        try:
            yield
        except (pa.ArrowException, *_PROBLEMS) as error:
            reason = self._reason(error)
            if names and isinstance(error, (pa.ArrowException, UnicodeError)):
                reason = self._first_error(names, numbers) or reason
            raise InputError(f"{self.label} cannot be read: {reason}") from error

    def _first_error(self, names: Sequence[str], numbers: Sequence[str]) -> str:
        """Describe the first bad line, because Arrow does not say where it is."""
        line, positions = 1, {column: self.columns.index(column) for column in (*names, *numbers)}
        try:
            for line, fields in self._records():
                if len(fields) != len(self.columns):
                    counts = f"{len(fields)} fields where {len(self.columns)} were expected"
                    return f"line {line} has {counts}: {_short(self._separator.join(fields))!r}"
                for column in numbers:
                    text = fields[positions[column]]
                    if line > 1 and text not in self.missing.texts and not _is_number(text, self.decimal):
                        record = ", ".join(f"{name} {fields[positions[name]]!r}" for name in names)
                        other = "," if self.decimal == "." else "."
                        is_other = _is_number(text, other)
                        hint = advise_on_text(text)
                        if is_other:
                            hint = f"; use {option_name('decimal', other)}"
                            if _THOUSANDS.fullmatch(text.strip()):
                                hint += f", or, if {other!r} separates thousands, write numbers without it"
                        return f"line {line}: {text!r} in column {column!r} is not a number ({record}){hint}"
        except _PROBLEMS as error:
            return f"{self._reason(error)} (after line {line})"
        return ""

    def _refuse_lost_digits(self, batch: pa.RecordBatch, numbers: Sequence[str]) -> None:
        """Raise an error for a whole number whose digits were lost when Arrow read it as float64."""
        if self._digits_checked:
            return
        for array in batch.columns[batch.num_columns - len(numbers) :]:
            if pc.any(pc.greater_equal(pc.abs(array), 2.0**53), min_count=0).as_py():
                self._digits_checked = True  # all lines are checked at once, slowly
                positions = {column: self.columns.index(column) for column in numbers}
                for line, fields in self._records():
                    for column, position in positions.items():
                        text = fields[position].strip() if position < len(fields) else ""
                        if _WHOLE.fullmatch(text) and int(float(text)) != int(text):
                            raise lost_digits(f"{self.label}, line {line}: column {column!r}", int(text))
                return

    def _reason(self, error: Exception) -> str:
        if isinstance(error, UnicodeError):
            written = "UTF-8" if self._encoding.lower() == "utf-8" else self._encoding
            return f"it is not {written} text; name its encoding, as in {option_name('encoding', 'latin-1')}"
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return str(error) or type(error).__name__


def _is_number(text: str, decimal: str) -> bool:
    """Return whether a text with this decimal point is a number, or blank."""
    if decimal != "." and "." in text:
        return False
    return as_number(text.replace(decimal, ".")) is not None or text.strip() in BLANKS


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:100] + "…"


class FrameSource(Source):
    """A pandas, polars or pyarrow frame, or another frame that narwhals supports, eager or lazy.

    A level of a pandas index whose name is in ``index`` counts as a column.
    """

    converts_texts = False

    def __init__(
        self, frame: Any, index: Sequence[str], missing: MissingCodes, label: str = "the frame"
    ) -> None:
        import narwhals as nw  # imported here: a saved model is read without it
        from narwhals.exceptions import NarwhalsError

        self.missing, self.label = missing, label
        levels = getattr(getattr(frame, "index", None), "names", [])
        if any(level in index for level in levels):  # the result of pivot or set_index
            frame = frame.reset_index()
        try:
            self._frame: Any = nw.from_native(frame)
            own_names = list(self._frame.collect_schema().names())
        except TypeError:
            raise InputError(
                f"expected a path or a pandas, polars or pyarrow frame; got {type(frame).__name__}"
            ) from None
        except (NarwhalsError, UnicodeError) as error:
            raise InputError(f"{label} cannot be used: {' '.join(str(error).split())}") from error
        self._name_columns(own_names)

    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns in slices."""
        for batch in self._table([*names, *numbers], names).to_batches(BATCH):
            yield convert_batch(batch, names, numbers, self)

    def category_orders(self, columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the categories of the ordered categorical columns among ``columns``, in their order."""
        orders, unobserved = {}, {*BLANKS, *self.missing.texts}
        for column, array in zip(columns, self._table(columns, ()).columns, strict=True):
            if pa.types.is_dictionary(array.type) and array.type.ordered and array.num_chunks:
                categories = [str(value) for value in array.chunk(0).dictionary.to_pylist()]
                orders[column] = tuple(text for text in categories if text not in unobserved)
        return orders

    def read(self, name: str) -> pa.Table:
        """Return the whole frame."""
        return self._table(self.columns, [name])

    def _table(self, columns: Sequence[str], names: Sequence[str]) -> pa.Table:
        import narwhals as nw

        own_names = self.own(columns)
        frame = self._frame.select([nw.col(own_name) for own_name in own_names])
        frame = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
        arrays = [
            _to_arrow(frame.get_column(own_name), column, column in names)
            for own_name, column in zip(own_names, columns, strict=True)
        ]
        return pa.table(arrays, names=list(columns))


def _refuse_strange_objects(native: Any, arrow_type: pa.DataType, column: str) -> None:
    """Raise an error for objects in a pandas column that are neither a number nor a date.

    Arrow converts complex numbers and UUIDs among others to numbers without a word.
    """
    if str(getattr(native, "dtype", "")) != "object":
        return
    if is_number(arrow_type):
        expected: tuple[type, ...] = (bool, int, float, Decimal, np.bool_, np.integer, np.floating)
    elif pa.types.is_timestamp(arrow_type) or pa.types.is_date(arrow_type):
        expected = (date, float, np.datetime64)
    else:
        return
    for kind in set(map(type, native)):
        missing = kind is type(None) or kind.__name__ in ("NAType", "NaTType")
        if not missing and (not issubclass(kind, expected) or kind is np.timedelta64):
            what = "numbers" if is_number(arrow_type) else "dates"
            raise InputError(f"the frame's column {column!r} contains {kind.__name__} among {what}")


def _to_arrow(series: Any, column: str, has_names: bool) -> pa.Array | pa.ChunkedArray:
    try:
        array = series.to_arrow()
        _refuse_strange_objects(series.to_native(), array.type, column)
        return array
    except (pa.ArrowException, TypeError, UnicodeError) as error:
        # Possibly a pandas column of objects of several types, such as 17 and "u17".
        try:
            indices, values = series.to_native().factorize()
        except (AttributeError, TypeError):
            reason = " ".join(str(error).split())
            raise InputError(f"the frame's column {column!r} cannot be read: {reason}") from error
    noun = f"name (column {column!r})"
    texts = [as_name(value, noun) if has_names else category(value) or str(value) for value in values]
    return pa.DictionaryArray.from_arrays(
        pa.array(indices, pa.int32(), mask=indices < 0), pa.array(texts, pa.string())
    )


class ParquetSource(Source):
    """A Parquet file, or some of its row groups. Only the requested columns are read."""

    def __init__(
        self, path: Path, missing: MissingCodes = NO_CODES, groups: Sequence[int] | None = None
    ) -> None:
        self.label, self.missing, self._path, self._groups = str(path), missing, path, groups
        with self._open() as file:
            self._name_columns(file.schema_arrow.names)
            self.group_sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]

    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns batch by batch, with one batch in memory."""
        with self._open() as file:
            wanted = [*names, *numbers]
            renamed = dict(zip(self.own(wanted), wanted, strict=True))
            for batch in file.iter_batches(BATCH, columns=list(renamed), row_groups=self._groups):
                batch = batch.rename_columns([renamed[name] for name in batch.schema.names])
                yield convert_batch(batch, names, numbers, self)

    def part(self, rank: int, size: int) -> Source:
        """Return some of the row groups."""
        return self.only(shares(self.group_sizes, size)[rank])

    def only(self, groups: Sequence[int]) -> ParquetSource:
        """Return the same file with these row groups only."""
        return ParquetSource(self._path, self.missing, groups)

    def read(self, name: str) -> pa.Table:  # noqa: ARG002 (a Parquet file stores its types)
        """Return the whole file."""
        with self._open() as file:
            return file.read().rename_columns(list(self.columns))

    @contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        try:
            with pq.ParquetFile(self._path) as file:
                yield file
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.label} is not a readable Parquet file: {error}") from error


def shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Divide items of these ``sizes`` into ``count`` consecutive shares of about the same total size.

    >>> shares([5, 1, 1, 5, 2], 3)
    [[0], [1, 2], [3, 4]]
    """
    total, before = sum(sizes), 0
    result: list[list[int]] = [[] for _ in range(count)]
    for position, size in enumerate(sizes):
        result[min(count - 1, int((before + size / 2) * count / max(1, total)))].append(position)
        before += size
    return result


class ParquetFolder(Source):
    """A folder of Parquet files with the same columns, read one after the other in the order of their names.

    Files whose names begin with a dot or an underscore, as other programs write them beside their data, do
    not count.
    """

    def __init__(self, path: Path, missing: MissingCodes) -> None:
        self.label, self.missing = str(path), missing
        paths = sorted(file for file in path.iterdir() if not file.name.startswith((".", "_")))
        others = [file.name for file in paths if not (file.is_file() and file.name.lower().endswith(PARQUET))]
        if others:
            raise InputError(
                f"{path} is a folder that does not only hold .parquet files ({join_names(others, 3)}); "
                "name one file, or a folder of Parquet files"
            )
        if not paths:
            raise InputError(f"{path} is a folder without .parquet files")
        self._files = [ParquetSource(file, missing) for file in paths]
        self.own_names, self.columns = self._files[0].own_names, self._files[0].columns
        for file in self._files[1:]:
            if set(file.columns) != set(self.columns):
                raise InputError(
                    f"the files of {path} must have the same columns: {self._files[0].label} has "
                    f"{join_names(self.columns)}, but {file.label} has {join_names(file.columns)}"
                )

    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns batch by batch, with one batch in memory."""
        for file in self._files:
            yield from file.batches(names, numbers)

    def part(self, rank: int, size: int) -> Source:
        """Return some of the row groups of all files."""
        groups = [(file, group) for file in self._files for group in range(len(file.group_sizes))]
        sizes = [file.group_sizes[group] for file, group in groups]
        chosen: dict[ParquetSource, list[int]] = {}
        for number in shares(sizes, size)[rank]:
            file, group = groups[number]
            chosen.setdefault(file, []).append(group)
        part = copy(self)
        part._files = [file.only(groups) for file, groups in chosen.items()]
        return part

    def read(self, name: str) -> pa.Table:
        """Return all files as one table."""
        tables = [file.read(name).select(list(self.columns)) for file in self._files]
        try:
            return pa.concat_tables(tables, promote_options="permissive")
        except pa.ArrowException as error:
            raise InputError(f"the files of {self.label} cannot be joined: {error}") from None


READABLE = (
    ".csv, .csv.gz, .tsv, .tsv.gz, .parquet, .sav, .dta, .sas7bdat or .xlsx file, or a folder of .parquet "
    "files"
)


def open_source(data: object, columns: Sequence[str] = (), form: TextFormat | None = None) -> Source:
    """Open a path, the address of a file (such as ``s3://``), a frame, an array or a sparse matrix.

    ``columns`` are the columns that will be needed: they may also be levels of a pandas index, and they
    help to detect the separator of a text file, whose ``form`` may be given, too.
    """
    from headstart.table import matrices

    form = form or TextFormat()
    if matrices.is_matrix(data):
        data = matrices.matrix_source(data)
    if isinstance(data, Source):
        data.missing = form.missing
        return data
    if not isinstance(data, str | os.PathLike):
        return FrameSource(data, columns, form.missing)
    if is_address(data):
        return _open_copy(str(data), lambda path: _open_path(path, columns, form))
    return _open_path(Path(data), columns, form)


def open_metadata(data: object, column: str, form: TextFormat | None = None) -> Source:
    """Open metadata with names in ``column``; of an SPSS, Stata or SAS file, the labels of its variables."""
    from headstart.table import survey_files

    if isinstance(data, str | os.PathLike) and survey_files.is_survey_file(str(data)):
        if is_address(data):
            return _open_copy(
                str(data), lambda path: survey_files.open_variable_labels(path, str(data), column)
            )
        _is_folder(Path(data))  # raises an error if there is no such file
        return survey_files.open_variable_labels(Path(data), str(data), column)
    return open_source(data, (column,), form)


def is_address(data: object) -> bool:
    """Return whether ``data`` is an address with a protocol.

    >>> is_address("s3://bucket/ratings.csv"), is_address("ratings.csv")
    (True, False)
    """
    return isinstance(data, str) and _ADDRESS.match(data) is not None


def _open_copy(address: str, opened: Callable[[Path], Source]) -> Source:
    """Open a temporary copy of a file or folder at an address; it is removed with the source."""
    import fsspec

    folder = TemporaryDirectory(prefix="headstart-")
    try:
        system, remote = fsspec.core.url_to_fs(address)
        copy_path = Path(folder.name) / Path(remote).name
        if system.isdir(remote):
            copy_path.mkdir()
            for file in system.ls(remote, detail=False):
                system.get_file(file, str(copy_path / Path(file).name))
        else:
            system.get_file(remote, str(copy_path))
    except FileNotFoundError:
        raise InputError(f"there is no file {address}") from None
    except ImportError as error:  # the package of a protocol is missing
        raise InputError(f"{address!r} cannot be read: {error}") from None
    except Exception as error:  # each protocol has errors of its own
        raise InputError(f"{address!r} cannot be read: {error or type(error).__name__}") from error
    try:
        source = opened(copy_path)
    except InputError as error:
        raise type(error)(str(error).replace(str(copy_path), address)) from None
    source.label, source._temporary_folder = address, folder
    return source


def _open_path(path: Path, columns: Sequence[str], form: TextFormat) -> Source:
    """Open a file or a folder of this machine."""
    from headstart.table import survey_files

    try:
        if _is_folder(path):
            return ParquetFolder(path, form.missing)
        name = path.name.lower()
        if name.endswith(COMMA_SEPARATED):
            return CsvSource(path, ",", form, columns)
        if name.endswith(TAB_SEPARATED):
            return CsvSource(path, "\t", form, columns)
        if name.endswith(PARQUET):
            return ParquetSource(path, form.missing)
        if survey_files.is_survey_file(name):
            return survey_files.open_survey_file(path, str(path), columns, form.missing)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{str(path)!r} cannot be read: {reason}") from error
    raise InputError(f"{path} has an unsupported file type; expected {READABLE}")


def is_text_file(data: object) -> bool:
    """Return whether a source is a text file, for which a ``TextFormat`` can be given."""
    if not isinstance(data, str | os.PathLike):
        return False
    return str(data).lower().endswith((*COMMA_SEPARATED, *TAB_SEPARATED))


def _is_folder(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        files = os.listdir(path.parent) if path.parent.is_dir() else []
        raise InputError(f"there is no file {path}{did_you_mean(path.name, files)}") from None
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise InputError(
            f"{path} is neither a file nor a folder, but a pipe, a socket or a device, which cannot be read"
            " twice; write its content to a file"
        )
    return stat.S_ISDIR(mode)
