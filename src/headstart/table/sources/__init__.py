"""Files and frames behind one interface: :func:`open_source`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from headstart.errors import InputError, did_you_mean
from headstart.table.sources.csvfile import CsvSource
from headstart.table.sources.frame import FrameSource
from headstart.table.sources.parquetfile import ParquetSource
from headstart.table.sources.source import Source

__all__ = ["Source", "open_source"]

READABLE = ".csv, .csv.gz, .tsv, .tsv.gz or .parquet"


def open_source(data: object, index: Sequence[str] = ()) -> Source:
    """Open a path or a frame. The columns in ``index`` may also be levels of a pandas index."""
    if not isinstance(data, str | os.PathLike):
        return FrameSource(data, index)
    path = Path(data)
    if path.is_dir():
        raise InputError(f"{path} is a folder; pass the path of a {READABLE} file")
    if not path.exists():
        files = os.listdir(path.parent) if path.parent.is_dir() else []
        raise InputError(f"there is no file {path}{did_you_mean(path.name, files)}")
    name = path.name.lower()
    if name.endswith((".csv", ".csv.gz")):
        return CsvSource(path, ",")
    if name.endswith((".tsv", ".tsv.gz")):
        return CsvSource(path, "\t")
    if name.endswith((".parquet", ".pq")):
        return ParquetSource(path)
    raise InputError(f"{path} has an unsupported file type; expected {READABLE}")
