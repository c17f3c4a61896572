"""CSV files of whole numbers, with errors that quote the bad line."""

from __future__ import annotations

import csv as text_csv
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from headstart.errors import InputError


def read_numbers(path: Path, expected: Mapping[str, Callable[[str], bool]]) -> pa.Table:
    """Read the columns in ``expected`` as whole numbers. Other columns are ignored.

    ``expected`` maps each column to a check of its texts, which finds the bad line after an error.
    """
    _check_header(path, list(expected))
    try:
        table = csv.read_csv(
            path,
            parse_options=csv.ParseOptions(newlines_in_values=False),
            convert_options=csv.ConvertOptions(
                include_columns=list(expected),
                column_types={name: pa.int64() for name in expected},
                null_values=[""],
            ),
        )
    except pa.ArrowInvalid:
        raise wrong_line(path, expected) from None
    if table.num_rows == 0 or any(column.null_count for column in table.columns):
        raise wrong_line(path, expected)
    return table


def wrong_line(path: Path, expected: Mapping[str, Callable[[str], bool]]) -> InputError:
    """Return an error that quotes the first bad line. This is slow, but only runs after an error."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = text_csv.reader(file)
        header = next(reader, [])
        description = f"expected {len(header)} fields with whole numbers in {', '.join(expected)}"
        number = 1
        for number, fields in enumerate(reader, start=2):
            line = dict(zip(header, fields, strict=False))
            if len(fields) != len(header) or not all(test(line[name]) for name, test in expected.items()):
                return InputError(f"{path}, line {number}: {description}; got {','.join(fields)!r}")
    if number == 1:
        return InputError(f"{path} contains only a header; it may be incomplete: download it again")
    return InputError(f"{path} cannot be read as comma-separated text; {description}")


def _check_header(path: Path, names: list[str]) -> None:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        header = next(text_csv.reader(file), [])
    if missing := [name for name in names if name not in header]:
        text = ",".join(header)[:120]
        raise InputError(f"{path}, line 1: there is no column {missing[0]!r}; got {text!r}")
