"""CSV and TSV files, plain or gzipped, read in blocks by Arrow. Errors name the line."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.csv as pa_csv

from headstart.errors import InputError
from headstart.table.sources.source import Source

# Texts that mean "not observed". NaN is not one of them: it is a wrong number, and an error.
BLANKS = ("", "NA", "N/A", "n/a", "#N/A", "NULL", "null")
# Bytes parsed at a time. Distinct names are collected in each block, so small blocks are slow. A block
# must be longer than the longest line.
BLOCK = 1 << 24


class CsvSource(Source):
    """A text file with a header. Names keep their spelling; blank values are null."""

    typed = False

    def __init__(self, path: Path, delimiter: str) -> None:
        self.label, self._path, self._delimiter = str(path), path, delimiter
        with self._explained():
            header = next((fields for _, fields in self._records()), None)
        if header is None:
            raise InputError(f"{self.label} is empty; expected a header and at least one more line")
        self._name_columns(header)

    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns block by block, the names as dictionary arrays."""
        text = pa.dictionary(pa.int32(), pa.string())
        types = dict.fromkeys(names, text) | dict.fromkeys(numbers, pa.float64())
        convert = pa_csv.ConvertOptions(
            include_columns=[*names, *numbers], column_types=types, null_values=list(BLANKS)
        )
        with self._explained(names, numbers):
            yield from pa_csv.open_csv(self._path, *self._options(), convert)

    def read(self, name: str) -> pa.Table:
        """Return the whole file, with inferred column types; names stay text."""
        convert = pa_csv.ConvertOptions(column_types={name: pa.string()})
        with self._explained([name]):
            return pa_csv.read_csv(self._path, *self._options(), convert)

    def place(self, record: int) -> str:
        """Return the line of a record, counting the header, blank and continued lines."""
        lines = (line for number, (line, _) in enumerate(self._records()) if number == record + 1)
        return f"line {next(lines, record + 2)}"

    def _options(self) -> tuple[pa_csv.ReadOptions, pa_csv.ParseOptions]:
        parse = pa_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        return pa_csv.ReadOptions(block_size=BLOCK), parse

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line numbers and fields, slowly: for the header and for error messages."""
        opened: Any = gzip.open if self._path.name.lower().endswith(".gz") else open
        file: TextIO
        with opened(self._path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=self._delimiter)
            yield from ((reader.line_num, fields) for fields in reader if fields)

    @contextmanager
    def _explained(self, names: Sequence[str] = (), numbers: Sequence[str] = ()) -> Iterator[None]:
        """Turn any error while reading into an ``InputError`` that says where and why."""
        try:
            yield
        except (pa.ArrowException, UnicodeDecodeError, OSError, EOFError, csv.Error) as error:
            reason = str(error)
            if names and isinstance(error, pa.ArrowException):
                reason = self._first_error(names, numbers) or reason
            elif isinstance(error, UnicodeDecodeError):
                reason = "it is not UTF-8 text"
            raise InputError(f"{self.label} cannot be read: {reason}") from error

    def _first_error(self, names: Sequence[str], numbers: Sequence[str]) -> str:
        """Describe the first bad line, because Arrow does not say where it is."""
        line, positions = 1, {column: self.columns.index(column) for column in (*names, *numbers)}
        try:
            for line, fields in self._records():
                if len(fields) != len(self.columns):
                    counts = f"{len(fields)} fields where {len(self.columns)} were expected"
                    return f"line {line} has {counts}: {_short(self._delimiter.join(fields))!r}"
                for column in numbers:
                    if line > 1 and not _is_number(text := fields[positions[column]]):
                        record = ", ".join(f"{name} {fields[positions[name]]!r}" for name in names)
                        return f"line {line}: {text!r} in column {column!r} is not a number ({record})"
        except UnicodeDecodeError:
            return f"it is not UTF-8 text (after line {line})"
        except (OSError, EOFError, csv.Error) as error:
            return f"{error} (after line {line})"
        return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.strip() in BLANKS
    return True


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:100] + "…"
