"""Measure the time of ``observe`` for one observation, which updates its row and its feature.

    python benchmarks/observing.py --data /path/to/data --out observing.json

A model is fitted on MovieLens-1M, as ratings, as reals (with some noise) and as 0 and 1. It is fitted with
few sweeps, because its accuracy does not matter here. Then it observes single triples with random rows, and
with features in proportion to their ratings. Printed and written, in milliseconds: least and median of the
elapsed time and of the CPU time, to which other work on the machine does not add.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from headstart import Headstart, Kind, Table
from headstart.datasets.public import load_dataset
from headstart.table import Kinds

WARM_UP = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="folder of the data sets, else HEADSTART_DATA")
    parser.add_argument("--triples", type=int, default=400)
    parser.add_argument("--sweeps", type=int, default=6)
    parser.add_argument("--kinds", nargs="+", default=["rating", "real", "binary"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    table, times = load_dataset("movielens", options.data), {}
    for kind in options.kinds:
        backbone = {"name": "factorisation", "sweeps": options.sweeps}
        model = Headstart(adapter="bayes", backbone=backbone, quiet=True).fit(of_kind(table, kind))
        times[kind] = time_observe(model, kind, options.triples)
        print(kind, {name: round(value, 2) for name, value in times[kind].items()}, flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(times, indent=1) + "\n")


def of_kind(table: Table, kind: str) -> Table:
    """Return the same observations as ratings, reals or 0 and 1."""
    if kind == "rating":
        return table
    if kind == "binary":
        kinds = Kinds([Kind.binary()] * len(table.features))
        return replace(table, values=(table.values >= 4).astype(float), kinds=kinds)
    noise = 0.3 * np.random.default_rng(0).normal(size=len(table))
    return replace(
        table, values=table.values + noise, kinds=Kinds([Kind.real(3.5, 1.1)] * len(table.features))
    )


def time_observe(model: Headstart, kind: str, count: int) -> dict[str, float]:
    random = np.random.default_rng(1)
    rows, features = list(model.rows), model.features
    shots = np.array([model.feature(name).shots for name in features])
    draw = {
        "rating": lambda: int(random.integers(1, 6)),
        "real": lambda: float(random.normal(3.5, 1)),
        "binary": lambda: int(random.integers(2)),
    }[kind]
    wall, cpu = [], []
    for _ in range(WARM_UP + count):
        feature = features[random.choice(len(features), p=shots / shots.sum())]
        triple = [(rows[random.integers(len(rows))], feature, draw())]
        start, began = time.perf_counter(), time.thread_time()
        model.observe(triple)
        wall.append(1000 * (time.perf_counter() - start))
        cpu.append(1000 * (time.thread_time() - began))
    times = {"wall": wall[WARM_UP:], "cpu": cpu[WARM_UP:]}
    return {
        f"{name} {statistic}": float(function(milliseconds))
        for name, milliseconds in times.items()
        for statistic, function in (("least", np.min), ("median", np.median))
    }


if __name__ == "__main__":
    main()
