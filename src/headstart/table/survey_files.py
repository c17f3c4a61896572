"""Read files of statistical programs (SPSS, Stata, SAS) and of Excel, by packages that are optional."""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headstart.errors import InputError, join_names
from headstart.table.missing_values import NO_CODES, MissingCodes, as_missing, is_no_answer
from headstart.table.sources import FrameSource, Source, is_number

_READERS = {".sav": "read_sav", ".zsav": "read_sav", ".dta": "read_dta", ".sas7bdat": "read_sas7bdat"}

_EXCEL = ".xlsx"

MAX_EXCEL_BYTES = 500_000_000  # unpacked; a file of less than 1 MB could unpack to more than the memory

SUFFIXES = (*_READERS, _EXCEL)


def is_survey_file(name: str) -> bool:
    """Return whether the name of a file is that of a statistical program or of Excel.

    >>> is_survey_file("Wave3.SAV"), is_survey_file("wave3.csv")
    (True, False)
    """
    return name.lower().endswith(SUFFIXES)


def open_survey_file(
    path: Path, label: str, wanted: Sequence[str], missing: MissingCodes = NO_CODES
) -> Source:
    """Open a file with its records; ``wanted`` are the columns that may contain text.

    Values among the codes ``missing`` are not observed, and are no levels.
    """
    if path.name.lower().endswith(_EXCEL):
        return FrameSource(_read_excel(path, label), wanted, missing, label)
    columns, facts = _read(path, label)
    numeric = [name for name, column in columns.items() if is_number(column.type) or column.type == pa.null()]
    left_out = [name for name in columns if name not in numeric and name not in wanted]
    chosen = {name: column for name, column in columns.items() if name not in left_out}
    labelled = {
        name: labels for name, labels in facts.variable_value_labels.items() if name in chosen and labels
    }
    for name in labelled.keys() - set(wanted):
        chosen[name] = missing.to_null(chosen[name])
        labelled[name] = {code: text for code, text in labelled[name].items() if code not in missing.numbers}
    answers = _answers(path, label, chosen, labelled, facts.variable_measure)
    source = FrameSource(pa.table(chosen | answers), (), missing, label)
    if left_out:
        source.notes += (f"{label}: variables of text or dates were left out: {join_names(left_out)}",)
    codes = [name for name in labelled if name not in answers and name not in wanted]
    if codes:
        code, text = next(iter(labelled[codes[0]].items()))
        source.notes += (
            f"{label}: the values of {len(codes)} variables have labels and are read as their codes, as "
            f"{code} for {text!r} of {codes[0]!r}: their measure is not nominal or ordinal, or a value has "
            "no label",
        )
        doubtful = {
            code: str(text)
            for name in codes
            for code, text in labelled[name].items()
            if is_no_answer(str(text)) and pc.any(pc.equal(chosen[name], code)).as_py()
        }
        if doubtful:
            texts = ", ".join(f"{code:g} ({text})" for code, text in sorted(doubtful.items()))
            source.notes += (
                f"{label}: the labels of some values may mean 'missing': {texts}; if they do, use "
                f"{as_missing(sorted(doubtful))}",
            )
    return source


def _answers(
    path: Path,
    label: str,
    columns: dict[str, pa.Array],
    labelled: dict[str, dict[Any, str]],
    measures: dict[str, str],
) -> dict[str, pa.Array]:
    """Return the columns whose values are labels: of nominal variables, and of ordinal ones in their order.

    A column stays unchanged if a value has no label, or two values have the same one.
    """
    chosen = [name for name in labelled if measures.get(name) in ("nominal", "ordinal")]
    if not chosen:
        return {}
    missing = _read(path, label, user_missing=True, metadataonly=True)[1].missing_ranges
    answers = {}
    for name in chosen:
        ranges = [(part["lo"], part["hi"]) for part in missing.get(name, ())]
        codes = sorted(
            code for code in labelled[name] if not any(low <= code <= high for low, high in ranges)
        )
        texts = [str(labelled[name][code]) for code in codes]
        indices = pc.index_in(columns[name], pa.array(codes, columns[name].type))
        if indices.null_count == columns[name].null_count and len(set(texts)) == len(texts) >= 2:
            ordered = measures[name] == "ordinal"
            answers[name] = pa.DictionaryArray.from_arrays(indices, pa.array(texts), ordered=ordered)
    return answers


def open_variable_labels(path: Path, label: str, feature: str) -> Source:
    """Open the variables of a file as metadata: one line per variable, with the text of its label."""
    if path.name.lower().endswith(_EXCEL):
        return FrameSource(_read_excel(path, label), (feature,), NO_CODES, label)
    _, facts = _read(path, label, metadataonly=True)
    texts = [facts.column_names_to_labels.get(name) or None for name in facts.column_names]
    lines = pa.table({feature: facts.column_names, "label": pa.array(texts, pa.string())})
    return FrameSource(lines, (), NO_CODES, label)


def _read(path: Path, label: str, **options: Any) -> tuple[dict[str, pa.Array], Any]:
    """Read the columns of a file, and its facts; user-missing codes, NaN and None are null."""
    pyreadstat = _import("pyreadstat", "survey", label)
    read = getattr(pyreadstat, _READERS[path.suffix.lower()])
    try:
        columns, facts = read(str(path), output_format="dict", **options)
    except Exception as error:  # pyreadstat has errors of its own, and those of encodings
        raise InputError(f"{label} cannot be read: {error}") from error
    return {name: pa.array(column, from_pandas=True) for name, column in columns.items()}, facts


def _read_excel(path: Path, label: str) -> Any:
    """Read the first sheet of a workbook."""
    _import("openpyxl", "excel", label)
    try:
        with zipfile.ZipFile(path) as parts:
            size = sum(part.file_size for part in parts.infolist())
        if size > MAX_EXCEL_BYTES:
            raise InputError(
                f"{label} has {size / 1e6:,.0f} MB when it is unpacked; save tables of more than "
                f"{MAX_EXCEL_BYTES / 1e6:,.0f} MB as CSV or Parquet"
            )
        return _import("pandas", "excel", label).read_excel(path)
    except InputError:
        raise
    except Exception as error:  # a damaged file raises many errors
        raise InputError(f"{label} cannot be read: {error}") from error


def _import(package: str, extra: str, label: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(
            f"{label} needs {package}, which is not installed; run: pip install 'headstart[{extra}]'"
        ) from None
