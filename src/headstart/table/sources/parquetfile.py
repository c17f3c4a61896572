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
    """A Parquet file, or some of its row groups. Only the requested columns are read."""

    def __init__(self, path: Path, groups: Sequence[int] | None = None) -> None:
        self.label, self._path, self._groups = str(path), path, groups
        with self._open() as file:
            self._name_columns(file.schema_arrow.names)
            self.group_sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]

    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns batch by batch, with one batch in memory."""
        with self._open() as file:
            wanted = [*names, *numbers]
            renamed = dict(zip(self.own(wanted), wanted, strict=True))
            for batch in file.iter_batches(BATCH, columns=list(renamed), row_groups=self._groups):
                batch = batch.rename_columns([renamed[name] for name in batch.schema.names])
                yield convert_batch(batch, names, numbers, self.label)

    def part(self, rank: int, size: int) -> Source:
        """Some of the row groups."""
        return ParquetSource(self._path, shares(self.group_sizes, size)[rank])

    def only(self, groups: Sequence[int]) -> ParquetSource:
        """The same file with these row groups only."""
        return ParquetSource(self._path, groups)

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


def shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Part things of these sizes into so many shares of about the same size, which follow each other.

    >>> shares([5, 1, 1, 5, 2], 3)
    [[0], [1, 2], [3, 4]]
    """
    total, before = sum(sizes), 0
    found: list[list[int]] = [[] for _ in range(count)]
    for place, size in enumerate(sizes):
        found[min(count - 1, int((before + size / 2) * count / max(1, total)))].append(place)
        before += size
    return found
