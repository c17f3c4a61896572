"""Measure the time of a fit of small tables with the defaults, compared with another version of the package.

    OMP_NUM_THREADS=1 python benchmarks/small_fits.py --beside ../before/src --out results.json

The tables have 500 rows and 60 features with a category and a number as metadata, and 3,000 or 10,000
values: ratings, 0/1 or reals. Each version fits a table twice in a fresh process, in turn with the other;
the second fit is compared, because the first one also loads libraries.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROWS, FEATURES, FACTORS, GENRES = 500, 60, 3, 4
SIZES = (3000, 10000)
KINDS = {"rating": "rating:1:5", "binary": "binary", "real": "real"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--beside", type=Path, help="folder src of another version")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.worker[0], int(options.worker[1]))))
        return
    versions = {"this": Path(__file__).resolve().parents[1] / "src"}
    versions |= {} if options.beside is None else {"beside": options.beside.resolve()}
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for kind in KINDS:
        for size in SIZES:
            runs = found[f"{kind} {size}"] = {name: [] for name in versions}
            for _ in range(options.turns):
                for name, source in versions.items():
                    runs[name].append(_run(source, kind, size))
            least = {name: min(run["cpu"] for run in each) for name, each in runs.items()}
            ratio = f", ratio {least['beside'] / least['this']:.2f}" if "beside" in least else ""
            print(f"{kind}, {size} values: {least}{ratio}", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1))


def _run(source: Path, kind: str, size: int) -> dict[str, Any]:
    """Measure one version in a fresh process."""
    command = [sys.executable, __file__, "--worker", kind, str(size)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def measure(kind: str, size: int) -> dict[str, Any]:
    """Fit a table twice; return the CPU seconds of the second fit, and the errors that the judge measured."""
    from headstart import Headstart

    table = make_table(kind, size)
    for _ in range(2):
        start = time.process_time()
        model = Headstart(quiet=True).fit(table)
        seconds = time.process_time() - start
    errors = [round(each.error, 5) for each in model.info.errors]
    return {"cpu": round(seconds, 2), "chosen": model.info.chosen, "errors": errors}


def make_table(kind: str, size: int, seed: int = 0) -> Any:
    """Draw ``size`` values from a model of three factors, whose heads depend on a category."""
    import pyarrow as pa

    from headstart import Table

    random = np.random.default_rng(seed)
    genre = random.integers(0, GENRES, FEATURES)
    rows = random.normal(size=(ROWS, FACTORS))
    heads = 0.6 * random.normal(size=(FEATURES, FACTORS)) + 0.5 * random.normal(size=(GENRES, FACTORS))[genre]
    cells = random.choice(ROWS * FEATURES, size, replace=False)
    row, feature = cells // FEATURES, cells % FEATURES
    values = (rows[row] * heads[feature]).sum(1) + 0.5 * random.normal(size=FEATURES)[feature]
    values += 0.7 * random.normal(size=size)
    if kind == "rating":
        values = np.clip(np.round(3 + values), 1, 5)
    elif kind == "binary":
        values = (values > 0).astype(float)
    names = [f"f{number}" for number in range(FEATURES)]
    metadata = {"feature": names, "genre": [f"g{number}" for number in genre],
                "year": random.integers(1950, 2020, FEATURES).astype(float)}  # fmt: skip
    observed = {"row": [f"r{number}" for number in row], "feature": [names[j] for j in feature],
                "value": values}  # fmt: skip
    return Table.read(pa.table(observed), metadata=pa.table(metadata), kinds=KINDS[kind])


if __name__ == "__main__":
    main()
