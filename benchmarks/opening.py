"""Measure the time to open a saved model, and to add one observation to it.

    python benchmarks/opening.py --features 1000 10000 100000 --out opening.json

A small model is fitted, and many features are added with three observations each. Printed and written, in
milliseconds of CPU time, the least of ``--repeats``: reading the whole model; ``load``;
``load(verify=False)``; adding one observation and saving the whole model; and the same by ``updating``,
with an empty journal and with a journal of ``--changes`` changes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from headstart import Headstart, Table
from headstart.model.saving.loading import read_whole

ROWS, FITTED, AT_ONCE = 400, 60, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--features", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    small, found = fit_small_model(), {}
    for features in options.features:
        with tempfile.TemporaryDirectory() as folder:
            found[features] = measure(
                add_features(small, features), Path(folder), options.changes, options.repeats
            )
        print(features, {name: round(value, 1) for name, value in found[features].items()}, flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def fit_small_model() -> Headstart:
    """Fit a model of ``FITTED`` features."""
    random = np.random.default_rng(0)
    outputs = random.normal(size=(ROWS, 8)) @ random.normal(size=(8, FITTED))
    values = np.clip(np.round(3 + 0.8 * (outputs + 0.5 * random.normal(size=outputs.shape))), 1, 5)
    row, feature = np.nonzero(random.random(values.shape) < 0.5)
    columns = {"row": [f"u{i}" for i in row], "feature": [f"f{j}" for j in feature]}
    table = Table.read(pa.table({**columns, "value": values[row, feature]}), kinds="rating:1:5", quiet=True)
    backbone = {"name": "factorisation", "latent": 32}
    return Headstart(adapter="bayes", backbone=backbone, quiet=True).fit(table)


def add_features(small: Headstart, features: int) -> Headstart:
    """Return the model with further features, ``features`` in all."""
    model = Headstart(**small.get_params())
    model.fitted_ = small.fitted_
    for start in range(FITTED, features, AT_ONCE):
        model.add_features(
            {
                f"n{i}": {"observations": {f"u{(i * 7 + j * 13) % ROWS}": 1 + (i + j) % 5 for j in range(3)}}
                for i in range(start, min(features, start + AT_ONCE))
            }
        )
    return model


def measure(model: Headstart, folder: Path, changes: int, repeats: int) -> dict[str, float]:
    """Return all times of a model in milliseconds, and its size in megabytes."""
    place, count = folder / "m", 0
    model.save(place)
    size = sum(path.stat().st_size for path in place.iterdir()) / 1e6

    def save_whole() -> None:
        changed = Headstart(**model.get_params())
        changed.fitted_ = read_whole(place).model
        changed.observe([("u1", "n100", 3)])
        changed.save(folder / "other")

    def append_to_journal() -> None:
        nonlocal count
        count += 1
        with Headstart.updating(place) as changed:
            changed.observe([(f"u{count}", f"n{100 + count}", 3)])

    times = {
        "megabytes": size,
        "read whole": least(lambda: read_whole(place), repeats),
        "load": least(lambda: Headstart.load(place), repeats),
        "load without verifying": least(lambda: Headstart.load(place, verify=False), repeats),
        "observe and save all": least(save_whole, max(1, repeats // 2)),
        "observe to the journal": least(append_to_journal, repeats),
    }
    while count < changes:
        append_to_journal()
    return {**times, f"the same after {changes} changes": least(append_to_journal, repeats)}


def least(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(1000 * (time.process_time() - start))
    return min(times)


if __name__ == "__main__":
    main()
