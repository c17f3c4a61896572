"""The records to predict, in partitions that any worker can read by itself."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headstart.errors import InputError, argument
from headstart.table.names import as_name
from headstart.table.sources import Source, TextFormat, open_source
from headstart.table.sources.parquetfile import ParquetSource
from headstart.table.sources.parquetfolder import PARQUET

_BATCH = 1 << 16  # records at a time, because only a part of a row group may be needed


@dataclass(frozen=True)
class Partition:
    """A stretch of records of one file, or of the model's own rows."""

    path: Path | None  # a Parquet file; None: the model's own rows
    label: str  # what messages call the file
    start: int
    stop: int

    def read(self, columns: Sequence[str]) -> pa.Table:
        """The records, with these columns, as ``row`` and ``feature``; only their row groups are read."""
        if self.path is None:
            raise ValueError("the model's own rows lie in no file")
        own, parts = ParquetSource(self.path).own(columns), []
        try:
            with pq.ParquetFile(self.path) as file:
                sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
                begins = list(itertools.accumulate(sizes, initial=0))
                needed = [
                    i for i in range(len(sizes)) if begins[i] < self.stop and self.start < begins[i + 1]
                ]
                at = begins[needed[0]]
                for batch in file.iter_batches(_BATCH, row_groups=needed, columns=own):
                    low, high = max(self.start - at, 0), min(self.stop - at, len(batch))
                    parts += [batch.slice(low, high - low)] if low < high else []
                    at += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.label} cannot be read: {error}") from error
        found = pa.Table.from_batches(parts).select(own)
        return found.rename_columns(["row", "feature"][: len(columns)])

    def place(self, record: int) -> str:
        """Where a record is, for messages."""
        return f"{self.label}, record {self.start + record + 1}"


@dataclass(frozen=True)
class Records:
    """All records, and what they are recognised by."""

    partitions: tuple[Partition, ...]
    identity: str  # the same for the same records only


def opened(data: object, columns: Sequence[str], form: TextFormat, what: str) -> Source:
    """Open the records that an argument names: a path, a frame or a list of names of rows."""
    names = not isinstance(data, str) and isinstance(data, (Sequence, np.ndarray))
    if names and len(columns) > 1:
        raise InputError(
            f"{argument(what)} takes a file, a folder or a frame with the columns {columns[0]!r} and "
            f"{columns[1]!r}; got {type(data).__name__}"
        )
    if names:
        data = pa.table({columns[0]: pa.array([as_name(each, "row") for each in data], pa.string())})  # type: ignore[attr-defined]
    source = open_source(data, columns, form)
    if names:
        source.label = argument(what)
    for column, name in zip(columns, ("row", "feature"), strict=False):
        source.require(column, name)
    return source


def own_rows(count: int, size: int) -> Records:
    """The model's own rows, ``size`` at a time."""
    return Records(tuple(_cut(None, "the model", count, size)), "all rows of the model")


def parquet_files(data: object) -> list[Path] | None:
    """The Parquet files that records consist of; None if they must be copied into one first."""
    if not isinstance(data, str | os.PathLike):
        return None
    path = Path(data).resolve()
    if path.is_dir():
        return sorted(each for each in path.iterdir() if not each.name.startswith((".", "_")))
    return [path] if path.name.lower().endswith(PARQUET) else None


def records_of(files: Sequence[Path], label: str | None, size: int) -> Records:
    """The records of Parquet files, at most ``size`` at a time; no partition spans two files."""
    partitions, digest = [], hashlib.sha256()
    for path in files:
        partitions += _cut(path, label or str(path), pq.read_metadata(path).num_rows, size)
        with path.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    if not partitions:
        raise InputError(f"{label or files[0]} has no records")
    return Records(tuple(partitions), digest.hexdigest())


def copy_records(source: Source, columns: Sequence[str], to: Path) -> None:
    """Write the records of any source to a Parquet file, block by block."""
    writer: pq.ParquetWriter | None = None
    try:
        for batch in source.batches(columns, ()):
            if writer is None:
                writer = pq.ParquetWriter(to, batch.schema)
            writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise InputError(f"{source.label} has no records")


def _cut(path: Path | None, label: str, count: int, size: int) -> list[Partition]:
    starts = range(0, count, size)
    return [Partition(path, label, start, min(start + size, count)) for start in starts]
