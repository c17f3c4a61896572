"""Neuropathic pain: the diagnostic labels in the records of simulated patients."""

from __future__ import annotations

import csv as text_csv
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from headstart.datasets.lines import wrong_line
from headstart.errors import InputError, listed
from headstart.table import Table

_URL = "https://github.com/TURuibo/Neuropathic-Pain-Diagnosis-Simulator"
_FILE = "simulated_1000.csv"


def neuropathic(source: str | Path, at_least: int = 50) -> Table:
    """Load records of the Neuropathic Pain Diagnosis Simulator, with one row per patient and binary labels.

    ``source`` is the simulator's CSV file, or a folder that contains ``simulated_1000.csv``. Labels of
    fewer than ``at_least`` patients are left out. There is no metadata.
    """
    path = _find(Path(source))
    expected = {name: lambda text: text in ("0", "1") for name in _header(path)}
    try:
        labels = csv.read_csv(
            path,
            convert_options=csv.ConvertOptions(
                column_types={name: pa.int64() for name in expected}, null_values=[""]
            ),
        )
    except pa.ArrowInvalid:
        raise wrong_line(path, expected) from None
    if labels.num_rows == 0 or any(column.null_count for column in labels.columns):
        raise wrong_line(path, expected)
    present = np.stack([column.to_numpy() for column in labels.columns], axis=1)  # (patients, labels)
    if ((present != 0) & (present != 1)).any():
        raise wrong_line(path, expected)
    common = np.flatnonzero(present.sum(0) >= at_least)
    if len(common) == 0:
        raise InputError(
            f"{path}: none of the {present.shape[1]} labels is present in {at_least} of {len(present)}"
            " patients; lower at_least"
        )
    columns = {"patient": pa.array([f"patient {i}" for i in range(len(present))])}
    columns |= {labels.column_names[j]: pa.array(present[:, j]) for j in common}
    return Table.read(pa.table(columns), row="patient", form="wide", kinds="binary")


def _find(source: Path) -> Path:
    for path in (source, source / _FILE, source / "neuropathic" / _FILE):
        if path.is_file():
            return path
    raise InputError(
        f"there is no {_FILE} in {str(source)!r}; simulate 1000 patients with the Neuropathic Pain Diagnosis "
        f"Simulator ({_URL}) and save them there as CSV, one column per label"
    )


def _header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        names = next(text_csv.reader(file), [])
    repeated = sorted({name for name in names if names.count(name) > 1})
    if len(names) < 2 or repeated:
        reason = f"columns {listed(repeated)} occur twice" if repeated else f"got {names}"
        raise InputError(f"{path}, line 1: expected the names of the diagnostic labels; {reason}")
    return names
