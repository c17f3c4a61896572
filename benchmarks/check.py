"""Compare the hot paths with stored ratios: a change that makes one of them slower is noticed.

    make bench-check
    python benchmarks/check.py --store     # after a change that is meant to be slower or faster

Each path is timed in CPU time on one thread, in turns with a yardstick of plain NumPy and Python, and its
fastest time is divided by the fastest time of the yardstick. So machines of different speed have similar
ratios, and other work on the machine changes them little. A ratio above 1.5 times the stored one, in two
rounds, is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch are imported

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch

from headstart import Headstart, Table

RATIOS = Path(__file__).with_name("check.json")
TOLERANCE = 1.5  # of the stored ratio; two runs on one machine differ by up to 1.2
ROWS, FEATURES, OBSERVATIONS = 2000, 300, 60_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--store", action="store_true", help="store the measured ratios as the expected ones")
    parser.add_argument("--turns", type=int, default=5, help="how often each path is timed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = hot_paths(Path(folder))
        ratios = measure(paths, yardstick, options.turns)
        if options.store:
            rounded = {name: round(ratio, 4) for name, ratio in ratios.items()}
            RATIOS.write_text(json.dumps(rounded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"stored {len(ratios)} ratios in {RATIOS}")
            return 0
        expected = json.loads(RATIOS.read_text(encoding="utf-8"))
        if slower(ratios, expected):  # perhaps only disturbed: measure these once more
            again = {name: paths[name] for name in slower(ratios, expected) if name in paths}
            repeated = measure(again, yardstick, options.turns)
            ratios |= {name: min(ratio, ratios[name]) for name, ratio in repeated.items()}
    print(f"{'path':<24}{'ratio':>10}{'stored':>10}{'change':>9}")
    for name, ratio in ratios.items():
        print(f"{name:<24}{ratio:>10.3f}{expected[name]:>10.3f}{ratio / expected[name]:>9.2f}")
    problems = slower(ratios, expected)
    for name in problems:
        print(f"error: {name} takes more than {TOLERANCE} times the stored ratio", file=sys.stderr)
    return 1 if problems else 0


def slower(ratios: dict[str, float], expected: dict[str, float]) -> list[str]:
    """Return the paths whose ratio is above the stored one by more than the tolerance.

    >>> slower({"predict": 0.7, "observe": 0.4}, {"predict": 0.4, "observe": 0.4})
    ['predict']
    """
    return [name for name, ratio in ratios.items() if ratio > TOLERANCE * expected[name]]


def measure(
    paths: dict[str, Callable[[], object]], beside: Callable[[], object], turns: int
) -> dict[str, float]:
    """Return the fastest CPU time of each path divided by the fastest one of the yardstick ``beside``."""
    times: dict[str, list[float]] = {name: [] for name in paths}
    own = []
    for path in paths.values():  # the first call also imports and fills caches
        path()
    for _ in range(turns):
        for name, path in paths.items():
            own.append(cpu_time(beside))
            times[name].append(cpu_time(path))
    return {name: min(values) / min(own) for name, values in times.items()}


def cpu_time(path: Callable[[], object]) -> float:
    start = time.process_time()
    path()
    return time.process_time() - start


def yardstick() -> None:
    """Work as the package does: matrix products, small solves and loops of Python."""
    generator = np.random.default_rng(0)
    large, small = generator.normal(size=(600, 600)), generator.normal(size=(40, 40)) + 40 * np.eye(40)
    for _ in range(4):
        large @ large
    for _ in range(300):
        np.linalg.solve(small, small[0])
    {name: len(name) for name in map(str, range(40_000))}


def hot_paths(folder: Path) -> dict[str, Callable[[], object]]:
    """Return the paths that are timed, by name; each call does the same work."""
    observations = ratings()
    pyarrow.csv.write_csv(observations, folder / "ratings.csv")
    table = Table.read(observations, kinds="rating:1:5", quiet=True)
    model = Headstart(adapter="bayes", quiet=True).fit(table)
    model.save(folder / "model")
    rows, features, number = model.rows[:300], model.features, count()
    context = {row: 1 + place % 5 for place, row in enumerate(rows[:16])}

    def add() -> None:
        name = f"new {next(number)}"
        model.add_feature(name, observations=context)
        model.remove_feature(name)

    def repeat(times: int, call: Callable[[int], object]) -> Callable[[], object]:
        return lambda: [call(place) for place in range(times)]

    return {
        "read 60,000 lines": lambda: Table.read(folder / "ratings.csv", kinds="rating:1:5", quiet=True),
        "fit": lambda: Headstart(adapter="bayes", quiet=True).fit(table),
        "add and remove ×10": repeat(10, lambda _: add()),
        "observe ×10": repeat(10, lambda i: model.observe([(rows[i], features[i], 1 + i % 5)])),
        "predict 300 × 300": lambda: model.predict(rows, features),
        "predict a cell ×50": repeat(50, lambda i: model.predict([rows[i]], [features[i]])),
        "recommend ×10": repeat(10, lambda i: model.recommend(rows[i])),
        "suggest": lambda: model.suggest(features[0]),
        "load": lambda: Headstart.load(folder / "model"),
    }


def ratings() -> pa.Table:
    """Draw ratings of 1 to 5 from factors, with a long tail of features."""
    generator = np.random.default_rng(0)
    popularity = np.arange(1, FEATURES + 1) ** -0.7
    cells = np.unique(
        generator.integers(ROWS, size=OBSERVATIONS) * FEATURES
        + generator.choice(FEATURES, OBSERVATIONS, p=popularity / popularity.sum())
    )
    row, feature = np.divmod(cells, FEATURES)
    scores = (generator.normal(size=(ROWS, 4))[row] * generator.normal(size=(FEATURES, 4))[feature]).sum(1)
    values = np.clip(np.round(3.5 + 0.5 * scores + generator.normal(size=len(cells))), 1, 5).astype(int)
    names = {"row": [f"u{i}" for i in row], "feature": [f"f{j}" for j in feature]}
    return pa.table({**names, "value": values})


if __name__ == "__main__":
    sys.exit(main())
