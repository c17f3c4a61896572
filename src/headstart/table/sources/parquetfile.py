"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.errors import InputError
from headstart.table.sources.source import BATCH, Source, convert_batch


class ParquetSource(Source):
    """A Parquet file. Only the requested columns are read."""

    def __init__(self, path: Path) -> None:
        self.label, self._path = str(path), path
        with self._open() as file:
            self._name_columns(file.schema_arrow.names)

    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns batch by batch, with one batch in memory."""
        with self._open() as file:
            wanted = [*names, *numbers]
            renamed = dict(zip(self.own(wanted), wanted, strict=True))
            for batch in file.iter_batches(BATCH, columns=list(renamed)):
                batch = batch.rename_columns([renamed[name] for name in batch.schema.names])
                yield convert_batch(batch, names, numbers, self.label)

    def read(self, name: str) -> pa.Table:  # noqa: ARG002 (a Parquet file stores its types)
        """Return the whole file."""
        with self._open() as file:
            return file.read().rename_columns(list(self.columns))

    @contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        try:
            with pq.ParquetFile(self._path) as file:
                yield file
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.label} is not a readable Parquet file: {error}") from error
