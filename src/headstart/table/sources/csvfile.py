"""CSV and TSV files, plain or gzipped, read in blocks by Arrow. Errors name the line."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.csv as pa_csv

from headstart.errors import InputError, argument
from headstart.table.sources.source import Source
from headstart.table.sources.textformat import TextFormat

# Texts that mean "not observed". NaN is not one of them: it is a wrong number, and an error.
BLANKS = ("", "NA", "N/A", "n/a", "#N/A", "NULL", "null")
# Bytes parsed at a time. Distinct names are collected in each block, so small blocks are slow. A block
# must be longer than the longest line.
BLOCK = 1 << 24
# What can happen while a file is read.
_PROBLEMS = (UnicodeError, OSError, EOFError, csv.Error, zlib.error)


class CsvSource(Source):
    """A text file with a header. Names keep their spelling; blank values are null."""

    def __init__(self, path: Path, usual: str, form: TextFormat, wanted: Sequence[str] = ()) -> None:
        """Read the header. ``usual`` is the separator that the file's name stands for."""
        self.label, self._path = str(path), path
        self._encoding, self._decimal = form.encoding or "utf-8", form.decimal or "."
        with self._explained():
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
            null_values=list(BLANKS),
            decimal_point=self._decimal,
        )
        with self._explained(names, numbers):
            for batch in pa_csv.open_csv(self._path, *self._options(), convert):
                yield batch.rename_columns([*names, *numbers])

    def read(self, name: str) -> pa.Table:
        """Return the whole file, with inferred column types; names stay text."""
        types = {self.own([name])[0]: pa.string()}
        convert = pa_csv.ConvertOptions(column_types=types, decimal_point=self._decimal)
        with self._explained([name]):
            table = pa_csv.read_csv(self._path, *self._options(), convert)
            return table.rename_columns(list(self.columns))

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
    def _explained(self, names: Sequence[str] = (), numbers: Sequence[str] = ()) -> Iterator[None]:
        """Turn any error while reading into an ``InputError`` that says where and why."""
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
                    if line > 1 and not _is_number(text := fields[positions[column]], self._decimal):
                        record = ", ".join(f"{name} {fields[positions[name]]!r}" for name in names)
                        other = "," if self._decimal == "." else "."
                        hint = f"; use {argument('decimal', other)}" if _is_number(text, other) else ""
                        return f"line {line}: {text!r} in column {column!r} is not a number ({record}){hint}"
        except _PROBLEMS as error:
            return f"{self._reason(error)} (after line {line})"
        return ""

    def _reason(self, error: Exception) -> str:
        if isinstance(error, UnicodeError):
            written = "UTF-8" if self._encoding.lower() == "utf-8" else self._encoding
            return f"it is not {written} text; name its encoding, as in {argument('encoding', 'latin-1')}"
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return str(error) or type(error).__name__


def _is_number(text: str, decimal: str) -> bool:
    if decimal != "." and "." in text:
        return False
    try:
        float(text.replace(decimal, "."))
    except ValueError:
        return text.strip() in BLANKS
    return True


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:100] + "…"
