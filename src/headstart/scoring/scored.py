"""What a run of scoring leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Scored:
    """A folder of predictions.

    Attributes
    ----------
    folder : Path
        Where the Parquet files are.
    partitions : int
        How many files there are.
    found : int
        How many of them an earlier run had written.
    lines : int
        How many predictions there are.
    """

    folder: Path
    partitions: int
    found: int
    lines: int

    def __str__(self) -> str:
        earlier = f" ({self.found} of them from an earlier run)" if self.found else ""
        return f"wrote {self.lines} predictions in {self.partitions} files to {self.folder}{earlier}"
