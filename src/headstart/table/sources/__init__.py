"""Files and frames behind one interface: :func:`open_source`."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from headstart.errors import InputError, did_you_mean
from headstart.table.sources.csvfile import CsvSource
from headstart.table.sources.frame import FrameSource
from headstart.table.sources.parquetfile import ParquetSource
from headstart.table.sources.parquetfolder import ParquetFolder
from headstart.table.sources.source import Source
from headstart.table.sources.textformat import TextFormat

__all__ = ["Source", "TextFormat", "is_text_file", "open_source"]

READABLE = ".csv, .csv.gz, .tsv, .tsv.gz or .parquet file, or a folder of .parquet files"


def open_source(data: object, columns: Sequence[str] = (), form: TextFormat | None = None) -> Source:
    """Open a path or a frame.

    ``columns`` are the columns that will be needed: they may also be levels of a pandas index, and they
    help to detect the separator of a text file, whose ``form`` may be given, too.
    """
    if not isinstance(data, str | os.PathLike):
        return FrameSource(data, columns)
    path = Path(data)
    form = form or TextFormat()
    try:
        if _is_folder(path):
            return ParquetFolder(path)
        name = path.name.lower()
        if name.endswith((".csv", ".csv.gz")):
            return CsvSource(path, ",", form, columns)
        if name.endswith((".tsv", ".tsv.gz")):
            return CsvSource(path, "\t", form, columns)
        if name.endswith((".parquet", ".pq")):
            return ParquetSource(path)
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
    return not str(data).lower().endswith((".parquet", ".pq")) and not os.path.isdir(data)


def _is_folder(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        files = os.listdir(path.parent) if path.parent.is_dir() else []
        raise InputError(f"there is no file {path}{did_you_mean(path.name, files)}") from None
    return stat.S_ISDIR(mode)
