"""Parquet files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.errors import InputError
from headstart.table.sources.source import BATCH, Source, convert_batch

_PART_BATCH = 1 << 16  # records at a time, where only a part of a row group may be needed


class ParquetSource(Source):
    """A Parquet file. Only the requested columns are read."""

    def __init__(self, path: Path) -> None:
        self.label, self.path = str(path), path
        with self._open() as file:
            self._name_columns(file.schema_arrow.names)
            self.records = int(file.metadata.num_rows)

    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns batch by batch, with one batch in memory."""
        with self._open() as file:
            wanted = [*names, *numbers]
            renamed = dict(zip(self.own(wanted), wanted, strict=True))
            for batch in file.iter_batches(BATCH, columns=list(renamed)):
                batch = batch.rename_columns([renamed[name] for name in batch.schema.names])
                yield convert_batch(batch, names, numbers, self.label)

    def part(self, names: Sequence[str], start: int, stop: int) -> pa.Table:
        """Return columns of the records from ``start`` up to ``stop``; only their row groups are read."""
        parts = []
        with self._open() as file:
            own = self.own(names)
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            begins = list(itertools.accumulate(sizes, initial=0))
            groups = [i for i, size in enumerate(sizes) if begins[i] < stop and start < begins[i] + size]
            at = begins[groups[0]] if groups else 0
            for batch in file.iter_batches(_PART_BATCH, row_groups=groups, columns=own):
                low, high = max(start - at, 0), min(stop - at, len(batch))
                if low < high:
                    parts.append(batch.slice(low, high - low))
                at += len(batch)
            schema = pa.schema([file.schema_arrow.field(each) for each in own])
        return pa.Table.from_batches(parts, None if parts else schema).select(own).rename_columns(list(names))

    def read(self, name: str) -> pa.Table:  # noqa: ARG002 (a Parquet file stores its types)
        """Return the whole file."""
        with self._open() as file:
            return file.read().rename_columns(list(self.columns))

    @contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        try:
            with pq.ParquetFile(self.path) as file:
                yield file
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.label} is not a readable Parquet file: {error}") from error
