"""Measure the public verbs that people and services wait for, one item at a time, on the default model.

    python benchmarks/verbs.py --data /path/to/data --out benchmarks/verbs_results/movielens-1m.json

``Headstart()`` is fitted on MovieLens-1M, or read from ``--model`` if this folder exists. Each verb takes
turns with a yardstick: the bare numpy or torch arithmetic that it cannot do without. Rows are drawn at
random, features in proportion to their ratings. Printed and written, in milliseconds of CPU time on one
thread, to which other work on the machine adds little: least, median and mean of the verb, the median of the
yardstick, and the ratio of the medians. The size of the saved folder is written, too.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from headstart import Headstart
from headstart.datasets.public import load_dataset
from headstart.linalg.packed import outer_products

Call = Callable[[], object]
Pair = tuple[Call, Call]  # a call of a verb, and its yardstick

WARM_UP = 5
BATCH = 100  # triples of a frame, and features added at once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="folder of the data sets, else HEADSTART_DATA")
    parser.add_argument(
        "--model", type=Path, help="a saved model; it is fitted and saved if it does not exist"
    )
    parser.add_argument("--adapter", default="auto")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--verbs", nargs="+", help="parts of the names of verbs; all by default")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.model or Path(temporary) / "model"
        if not folder.exists():
            table = load_dataset("movielens", options.data)
            Headstart(adapter=options.adapter, quiet=True).fit(table).save(folder)
        megabytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
        calls = Calls(Headstart.load(folder))
        results = {}
        for name, pairs in calls.by_verb().items():
            if options.verbs is None or any(part in name for part in options.verbs):
                repeats = options.repeats if str(BATCH) not in name else max(5, options.repeats // 20)
                results[name] = measure(pairs, repeats)
                print(
                    f"{name:36}", {key: round(value, 3) for key, value in results[name].items()}, flush=True
                )
    print(f"saved folder: {megabytes:.1f} MB; load at the start: {os.getloadavg()[0]:.1f}")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        facts = {"adapter": options.adapter, "folder_megabytes": megabytes, "milliseconds": results}
        options.out.write_text(json.dumps(facts, indent=1) + "\n")


class Calls:
    """Endless random calls of each verb of one model."""

    def __init__(self, model: Headstart) -> None:
        self.model, self.random, self.added = model, np.random.default_rng(1), 0
        self.rows, self.features = list(model.rows), model.features
        shots = np.array([model.feature(name).shots for name in self.features])
        self.popularity = shots / shots.sum()
        states, heads = model.fitted_.states, model.fitted_.feature_store.listing()
        self.activation = states.activation.double().numpy()
        self.heads = model.fitted_.feature_store.heads_at(heads.slots).dense()

    def by_verb(self) -> dict[str, Iterator[Pair]]:
        """Return the calls of every verb, with their yardsticks."""
        return {
            "predict, 1 cell": self.predict_cell(),
            "predict, 1 row × all features": self.predict_row(),
            "recommend, 10 of all features": self.recommend(),
            **{f"add_feature, {shots} observations": self.add_feature(shots) for shots in (0, 1, 16, 128)},
            f"add_features, {BATCH} of 16": self.add_features(BATCH, 16),
            "observe, 1 triple": self.observe(1),
            f"observe, {BATCH} triples": self.observe(BATCH),
        }

    def triples(self, count: int) -> list[tuple[str, str, int]]:
        """Draw observations of different cells."""
        cells: dict[tuple[str, str], int] = {}
        while len(cells) < count:
            feature = self.features[self.random.choice(len(self.features), p=self.popularity)]
            cells[self.rows[self.random.integers(len(self.rows))], feature] = int(self.random.integers(1, 6))
        return [(*cell, value) for cell, value in cells.items()]

    def new_feature(self, shots: int) -> tuple[str, dict[str, int], Call]:
        """Draw a name and observations; also return the fold-in of these observations."""
        self.added += 1
        rows = self.random.choice(len(self.rows), shots, replace=False)
        values = self.random.integers(1, 6, shots)
        observations = {self.rows[row]: int(value) for row, value in zip(rows, values, strict=True)}
        return f"new {self.added}", observations, self.fold_in(rows, values.astype(float))

    def fold_in(self, rows: np.ndarray, values: np.ndarray) -> Call:
        """Return the closed form of one head with its covariance: ridge regression on the activations."""

        def compute() -> object:
            inputs = self.activation[rows]
            precision = inputs.T @ inputs + np.eye(inputs.shape[1])
            covariance = np.linalg.inv(precision)
            return covariance @ (inputs.T @ values), covariance

        return compute

    def add_feature(self, shots: int) -> Iterator[Pair]:
        while True:
            name, observations, bare = self.new_feature(shots)
            yield lambda n=name, o=observations: self.model.add_feature(n, observations=o), bare

    def add_features(self, count: int, shots: int) -> Iterator[Pair]:
        while True:
            drawn = [self.new_feature(shots) for _ in range(count)]
            features = {name: {"observations": observations} for name, observations, _ in drawn}
            bare = [fold for _, _, fold in drawn]
            yield lambda f=features: self.model.add_features(f), lambda b=bare: [fold() for fold in b]

    def observe(self, count: int) -> Iterator[Pair]:
        """Observe triples; the yardstick folds in the features and the rows of all of them."""
        while True:
            triples, bare = self.triples(count), []
            for row, feature, _ in triples:
                context = self.model.fitted_.feature_store[feature]
                bare.append(self.fold_in(context.rows, context.values))
                count_of_row = len(self.model.row(row).observations)
                inputs = self.heads.weight.numpy()[:count_of_row].astype(float)
                bare.append(lambda inputs=inputs: np.linalg.inv(inputs.T @ inputs + np.eye(inputs.shape[1])))
            yield lambda t=triples: self.model.observe(t), lambda b=bare: [fold() for fold in b]

    def predict_cell(self) -> Iterator[Pair]:
        while True:
            ((row, feature, _),) = self.triples(1)
            line, position = self.rows.index(row), self.features.index(feature)
            yield (
                lambda r=row, f=feature: self.model.predict([r], [f]).mean,
                lambda i=line, j=position: self.activation[i] @ self.heads.weight[j].numpy(),
            )

    def predict_row(self) -> Iterator[Pair]:
        """Predict one row; the yardstick is the bare products of means and variances in single precision."""
        while True:
            line = int(self.random.integers(len(self.rows)))
            row = torch.from_numpy(self.activation[line]).float()
            square = outer_products(torch.cat([row, torch.ones(1)])[None])[0]

            def bare(row: torch.Tensor = row, square: torch.Tensor = square) -> object:
                variances = torch.mv(self.heads.packed_covariance, square)
                return torch.addmv(self.heads.bias, self.heads.weight, row), variances

            yield lambda name=self.rows[line]: self.model.predict([name]).mean, bare

    def recommend(self) -> Iterator[Pair]:
        while True:
            line = int(self.random.integers(len(self.rows)))
            row = torch.from_numpy(self.activation[line]).float()
            yield (
                lambda name=self.rows[line]: self.model.recommend(name, 10),
                lambda row=row: torch.addmv(self.heads.bias, self.heads.weight, row).topk(10),
            )


def measure(pairs: Iterator[Pair], repeats: int) -> dict[str, float]:
    """Time calls and yardsticks in turns, in milliseconds of CPU time."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(WARM_UP + repeats):
        for call, durations in zip(next(pairs), times, strict=True):
            start = time.thread_time()
            call()
            durations.append(1000 * (time.thread_time() - start))
    verb, bare = (np.array(durations[WARM_UP:]) for durations in times)
    median, yardstick = float(np.median(verb)), float(np.median(bare))
    return {
        "least": float(verb.min()),
        "median": median,
        "mean": float(verb.mean()),
        "yardstick": yardstick,
        "ratio": median / yardstick,
    }


if __name__ == "__main__":
    main()
