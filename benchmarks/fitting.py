"""Measure the time of a fit with the defaults, alone or compared with another version of the package.

    OMP_NUM_THREADS=1 python benchmarks/fitting.py --data DATA --set movielens --beside ../before/src

Each fit is a fresh process; the versions take turns, so that a busy machine slows both. CPU seconds are
compared, because other processes affect them less. ``--split`` is the seed that draws a tenth of the
features, which are held out; the error of their predictions from their first observations is printed with
the time.
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

SHOTS = (0, 1, 2, 4, 8, 16, 32)
BATCH = 128  # features added at once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the data sets; by default $HEADSTART_DATA")
    parser.add_argument("--set", default="movielens", help="data set, as headstart benchmark names it")
    parser.add_argument("--split", type=int, default=100)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--beside", type=Path, help="folder src of another version")
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(fit(options.data, options.set, options.split)))
        return
    here = Path(__file__).resolve().parents[1] / "src"
    versions = {"this": here} | ({} if options.beside is None else {"beside": options.beside.resolve()})
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in versions}
    for _ in range(options.turns):
        for name, source in versions.items():
            found[name].append(_run(source, options))
            print(name, found[name][-1], flush=True)
    least = {name: min(run["cpu"] for run in runs) for name, runs in found.items()}
    print("least CPU seconds:", {name: round(seconds, 1) for name, seconds in least.items()})
    if options.beside is not None:
        print(f"ratio: {least['beside'] / least['this']:.2f}")
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1))


def _run(source: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one version in a fresh process."""
    command = [sys.executable, __file__, "--worker", "--set", options.set, "--split", str(options.split)]
    command += [] if options.data is None else ["--data", str(options.data)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def fit(data: Path | None, name: str, split: int) -> dict[str, Any]:
    """Fit the default without the features of a split, then predict these from their first observations."""
    from headstart import Headstart
    from headstart.datasets import load_dataset

    table = load_dataset(name, data)
    # Drawn here, not by the package: other versions must hold out the same features.
    order = np.random.default_rng(split).permutation(len(table.features))
    new = np.sort(order[: len(order) // 10])
    known = table.with_features(np.setdiff1d(np.arange(len(table.features)), new))
    cpu, wall = time.process_time(), time.perf_counter()
    model = Headstart(quiet=True).fit(known)
    facts = {"cpu": round(time.process_time() - cpu, 1), "wall": round(time.perf_counter() - wall, 1)}
    return {**facts, "rmse": [round(error, 4) for error in _errors(model, table.with_features(new))]}


def _errors(model: Any, table: Any) -> list[float]:
    """Return the RMSE at each number of shots, on observations after the largest number, in data units."""
    order = np.random.default_rng(0).permutation(len(table))
    order = order[np.argsort(table.feature_index[order], kind="stable")]
    feature = table.feature_index[order].astype(np.int64)
    rank = np.arange(len(order)) - np.searchsorted(feature, feature)
    rows, names = list(table.rows), list(table.features)
    metadata = [{}] * len(names) if table.metadata is None else table.metadata.to_pylist()
    large = np.flatnonzero(np.bincount(feature, minlength=len(names)) > SHOTS[-1])
    errors = []
    for shots in SHOTS:
        squared, count = 0.0, 0
        for start in range(0, len(large), BATCH):
            part = large[start : start + BATCH]
            new = {}
            for position in part.tolist():
                context = order[(feature == position) & (rank < shots)]
                described = {key: value for key, value in metadata[position].items() if value is not None}
                new[names[position]] = {
                    "metadata": described or None,
                    "observations": {rows[table.row_index[i]]: float(table.values[i]) for i in context},
                }
            model.add_features(new)
            mean = np.asarray(model.predict(rows, list(new)).mean)
            for column, position in enumerate(part.tolist()):
                targets = order[(feature == position) & (rank >= SHOTS[-1])]
                residuals = mean[table.row_index[targets], column] - table.values[targets]
                squared, count = squared + float((residuals**2).sum()), count + len(targets)
                model.remove_feature(names[position])
        errors.append((squared / count) ** 0.5)
    return errors


if __name__ == "__main__":
    main()
