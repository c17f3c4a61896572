"""Measure time and memory of reading long tables from CSV and Parquet.

    python benchmarks/reading.py --millions 10

Each file is read in a process of its own, so that the peak memory is that of reading alone.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

ROWS, FEATURES, PART = 200_000, 20_000, 1_000_000


def write(folder: Path, millions: int) -> list[Path]:
    """Write the same observations as CSV and Parquet: ids out of order, ratings from 0.5 to 5."""
    generator = np.random.default_rng(0)
    schema = pa.schema({"row": pa.int64(), "feature": pa.int64(), "value": pa.float64()})
    paths = [folder / "observations.csv", folder / "observations.parquet"]
    with pa_csv.CSVWriter(paths[0], schema) as as_csv, pq.ParquetWriter(paths[1], schema) as as_parquet:
        for part in range(millions):
            row = generator.integers(0, ROWS, PART)
            # Each million has its own features (by residue), so that no (row, feature) occurs twice.
            cell = np.unique(row * (FEATURES // millions) + generator.integers(0, FEATURES // millions, PART))
            generator.shuffle(cell)
            row, feature = np.divmod(cell, FEATURES // millions)
            value = generator.integers(1, 11, len(cell)) / 2
            table = pa.table([row, feature * millions + part, value], schema=schema)
            as_csv.write_table(table)
            as_parquet.write_table(table)
    return paths


def read(path: Path) -> None:
    from headstart.table import Table

    before = _peak()
    start = time.perf_counter()
    table = Table.read(path)
    seconds = time.perf_counter() - start
    print(
        f"{path.suffix:<9}{path.stat().st_size / 1e6:6.0f} MB {seconds:7.1f} s"
        f" {len(table) / seconds / 1e6:7.2f} M observations/s {_peak():7.0f} MB peak"
        f" ({before:.0f} MB of it before reading)   {table!r}"
    )


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, default=10)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(options.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        for path in write(Path(folder), options.millions):
            subprocess.run([sys.executable, __file__, "--read", str(path)], check=True)


if __name__ == "__main__":
    main()
