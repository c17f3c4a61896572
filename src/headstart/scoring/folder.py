"""The folder that a run writes to: one Parquet file per partition, and a manifest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.errors import InputError
from headstart.storage import left_over, partial_file, read_json, write_json

# Names with an underscore are passed over by whoever reads a folder of Parquet files.
MANIFEST = "_scoring.json"
COPY = "_records.parquet"  # of records that are not in Parquet files
_FORMAT = 1
_OURS = re.compile(rf"part-\d{{6,}}\.parquet|{re.escape(MANIFEST)}|{re.escape(COPY)}")
_WORDS = {"model": "another model", "records": "other records", "partition_size": "another partition size"}


class ScoringFolder:
    """A folder of predictions, of which some may be there already."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, number: int) -> Path:
        """Where the predictions of a partition are."""
        return self.path / f"part-{number:06d}.parquet"

    def require_ours(self) -> None:
        """Refuse a folder with other files, which might be mixed up with predictions."""
        if self.path.is_dir() and not (self.path / MANIFEST).exists():
            unfinished = left_over(self.path, _OURS)
            others = [each.name for each in self.path.iterdir() if each not in unfinished]
            if others:
                raise InputError(
                    f"{self.path} holds other files, such as {min(others)!r}; name a new or empty folder"
                )
        elif self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; name a folder")

    def begin(self, facts: dict[str, Any]) -> None:
        """Write the manifest of a run, or refuse to go on with a run of another manifest."""
        facts = {"format": _FORMAT, **facts}
        place = self.path / MANIFEST
        if not place.exists():
            write_json(place, facts)
            return
        before = read_json(place)
        before = before if isinstance(before, dict) else {}
        differ = [name for name in facts if before.get(name) != facts[name]]
        if differ:
            raise InputError(
                f"{self.path} holds predictions of {_difference(differ[0], before, facts)}; name another "
                "folder, or remove this one to start anew"
            )

    def tidy(self) -> None:
        """Remove what killed writers left unfinished; only whoever holds the folder's lock may do so."""
        for each in left_over(self.path, _OURS):
            each.unlink(missing_ok=True)

    def missing(self, partitions: int) -> list[int]:
        """The partitions that are not there yet, or cannot be read."""
        return [number for number in range(partitions) if self._lines(number) is None]

    def lines(self, partitions: int) -> int:
        """How many predictions there are in all."""
        return sum(self._lines(number) or 0 for number in range(partitions))

    def _lines(self, number: int) -> int | None:
        try:
            return int(pq.read_metadata(self.file(number)).num_rows)
        except (OSError, pa.ArrowException):
            return None

    def write(self, number: int, predictions: pa.Table) -> None:
        """Write the predictions of a partition, in one step."""
        with partial_file(self.file(number)) as temporary:
            pq.write_table(predictions, temporary, compression="zstd")


def _difference(name: str, before: dict[str, Any], now: dict[str, Any]) -> str:
    if name != "question":
        return _WORDS.get(name, f"another {name}")
    old, new = before.get(name), now[name]
    old = old if isinstance(old, dict) else {}
    changed = [key for key in new if old.get(key) != new[key]]
    if "features" in changed:
        return "other features"
    return "another question: " + ", ".join(f"{key} was {old.get(key)} and is {new[key]}" for key in changed)
