"""Measure the time of a new feature by the public verb: the default and the methods of the paper's Table 1.

    python benchmarks/new_features.py --data /path/to/data --out benchmarks/verbs_results/new-features.json

Models of MovieLens-1M with the default backbone and different adapters get new films with the metadata of
known ones and k random ratings: one film by one ``add_feature``, and many by one ``add_features``. The
adapters take turns, so that other load on the machine affects all of them. Printed and written are the
medians of milliseconds of CPU time per film, on one thread. Networks are trained for one epoch: training does
not change the time of a head. ``--model`` is a saved default model; without it the default is fitted.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart import Headstart
from headstart.datasets.public import load_dataset

SHOTS = (1, 4, 16)
ADAPTERS = ("knn-10", "train-10", "chn", "chn-bayes", "chn-bayes-blend", "bayes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="folder of the data sets, else HEADSTART_DATA")
    parser.add_argument("--model", type=Path, help="a saved default model")
    parser.add_argument("--adapters", nargs="+", default=ADAPTERS)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--batch", type=int, default=128, help="films added at once")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    table = load_dataset("movielens", options.data)
    models = {}
    for name in options.adapters:
        learns = name.startswith("chn")
        short: dict[str, Any] = {"metatraining": {"epochs": 1}} if learns else {}
        models[name] = Headstart(adapter=name, quiet=True, **short).fit(table)
        print(f"{name} is fitted", flush=True)
    default = Headstart(quiet=True).fit(table) if options.model is None else Headstart.load(options.model)
    models["default"] = default
    single = {shots: measure(models, shots, 1, options.repeats) for shots in SHOTS}
    batched = {shots: measure(models, shots, options.batch, options.repeats // 4) for shots in SHOTS}
    load = os.getloadavg()[0]
    for title, found in (("add_feature", single), (f"add_features of {options.batch}", batched)):
        print(f"{title}, ms per film; load {load:.1f}")
        for name in models:
            print(f"{name:16}", *(f"{found[shots][name]:8.3f}" for shots in SHOTS))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        facts = {"chosen": default.info.chosen, "load": load, "batch": options.batch}
        times = {"single": single, "batched": batched}
        options.out.write_text(json.dumps(facts | times, indent=1) + "\n")


def measure(models: dict[str, Headstart], shots: int, count: int, repeats: int) -> dict[str, float]:
    """Return the median CPU milliseconds per film of each model, in turns."""
    random, times = np.random.default_rng(shots), {name: list[float]() for name in models}
    for turn in range(repeats + 2):
        for name, model in models.items():
            films = {f"new {count} {shots} {turn} {i}": new_film(model, shots, random) for i in range(count)}
            call = add_one(model, films) if count == 1 else add_all(model, films)
            start = time.process_time()
            call()
            times[name].append(1000 * (time.process_time() - start) / count)
    return {name: float(np.median(each[2:])) for name, each in times.items()}  # the first turns warm up


def new_film(model: Headstart, shots: int, random: np.random.Generator) -> dict[str, Any]:
    """Return the metadata of a random known film, and random ratings."""
    known = model.feature(model.features[int(random.integers(len(model.features)))])
    rows = random.choice(len(model.rows), shots, replace=False)
    ratings = {model.rows[row]: int(random.integers(1, 6)) for row in rows.tolist()}
    return {"metadata": dict(known.metadata), "observations": ratings}


def add_one(model: Headstart, films: dict[str, dict[str, Any]]) -> Callable[[], object]:
    ((name, parts),) = films.items()
    return lambda: model.add_feature(name, **parts)


def add_all(model: Headstart, films: dict[str, dict[str, Any]]) -> Callable[[], object]:
    return lambda: model.add_features(films)


if __name__ == "__main__":
    main()
