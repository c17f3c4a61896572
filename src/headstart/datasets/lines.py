"""Reading comma-separated files whose faults are told by line and text."""

from __future__ import annotations

import csv as plain
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from headstart.errors import InputError


def read_numbers(path: Path, expected: Mapping[str, Callable[[str], bool]]) -> pa.Table:
    """Read whole numbers from the columns ``expected`` names; other columns are passed over.

    Each column comes with a test of its texts, which is asked only if something is wrong with the file.
    """
    _check_header(path, list(expected))
    try:
        found = csv.read_csv(
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
    if found.num_rows == 0 or any(column.null_count for column in found.columns):
        raise wrong_line(path, expected)
    return found


def wrong_line(path: Path, expected: Mapping[str, Callable[[str], bool]]) -> InputError:
    """Say which line cannot be read; slow, but only errors come here."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = plain.reader(file)
        header = next(reader, [])
        told = f"expected {len(header)} fields with whole numbers in {', '.join(expected)}"
        number = 1
        for number, fields in enumerate(reader, start=2):
            line = dict(zip(header, fields, strict=False))
            if len(fields) != len(header) or not all(test(line[name]) for name, test in expected.items()):
                return InputError(f"{path}, line {number}: {told}; got {','.join(fields)!r}")
    if number == 1:
        return InputError(f"{path} holds nothing but its header; it may be cut short: download it again")
    return InputError(f"{path} cannot be read as comma-separated text; {told}")


def _check_header(path: Path, wanted: list[str]) -> None:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        header = next(plain.reader(file), [])
    if missing := [name for name in wanted if name not in header]:
        told = ",".join(header)[:120]
        raise InputError(f"{path}, line 1: there is no column {missing[0]!r}; got {told!r}")
