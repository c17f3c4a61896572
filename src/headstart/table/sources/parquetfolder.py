"""Folders of Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path

import pyarrow as pa

from headstart.errors import InputError, listed
from headstart.table.sources.parquetfile import ParquetSource, shares
from headstart.table.sources.source import Source

PARQUET = (".parquet", ".pq")


class ParquetFolder(Source):
    """A folder of Parquet files with the same columns, read one after the other in the order of their names.

    Files whose names begin with a dot or an underscore, as other programs write them beside their data, do
    not count.
    """

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        paths = sorted(each for each in path.iterdir() if not each.name.startswith((".", "_")))
        others = [each.name for each in paths if not (each.is_file() and each.name.lower().endswith(PARQUET))]
        if others:
            raise InputError(
                f"{path} is a folder that does not only hold .parquet files ({listed(others, 3)}); name one "
                "file, or a folder of Parquet files"
            )
        if not paths:
            raise InputError(f"{path} is a folder without .parquet files")
        self._files = [ParquetSource(each) for each in paths]
        self.own_names, self.columns = self._files[0].own_names, self._files[0].columns
        for file in self._files[1:]:
            if set(file.columns) != set(self.columns):
                raise InputError(
                    f"the files of {path} must have the same columns: {self._files[0].label} has "
                    f"{listed(self.columns)}, but {file.label} has {listed(file.columns)}"
                )

    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns batch by batch, with one batch in memory."""
        for file in self._files:
            yield from file.batches(names, numbers)

    def part(self, rank: int, size: int) -> Source:
        """Some of the files, or some row groups of them where there are few files."""
        groups = [(file, group) for file in self._files for group in range(len(file.group_sizes))]
        sizes = [file.group_sizes[group] for file, group in groups]
        own: dict[ParquetSource, list[int]] = {}
        for place in shares(sizes, size)[rank]:
            file, group = groups[place]
            own.setdefault(file, []).append(group)
        part = copy(self)
        part._files = [file.only(chosen) for file, chosen in own.items()]
        return part

    def read(self, name: str) -> pa.Table:
        """Return all files as one table."""
        tables = [file.read(name).select(list(self.columns)) for file in self._files]
        try:
            return pa.concat_tables(tables, promote_options="permissive")
        except pa.ArrowException as error:
            raise InputError(f"the files of {self.label} cannot be joined: {error}") from None
