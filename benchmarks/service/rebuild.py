"""Measure the time to start with many features of 10 observations each, by kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import insert

from headstart import Headstart, Table
from headstart.datasets import synthetic_ratings, synthetic_responses
from headstart.service import store as writing
from headstart.service.live_model import LiveModel
from headstart.service.store import Store, digest_of, insert_rows
from headstart.service.tables import CHANGES, FEATURES, OBSERVATIONS

SHOTS = 10


def _reals() -> Table:
    """Draw features of different scales, so that a new one must infer its scale from its observations."""
    random = np.random.default_rng(0)
    factors, loadings = random.normal(size=(2000, 4)), random.normal(size=(600, 4))
    values = (factors @ loadings.T + random.normal(size=(2000, 600))) * random.lognormal(size=600)
    row, feature = np.nonzero(random.random(values.shape) < 0.05)
    long = {
        "row": [f"row {i}" for i in row],
        "feature": [f"item {j}" for j in feature],
        "value": values[row, feature],
    }
    return Table.read(pa.table(long), kinds="real")


TABLES: dict[str, Callable[[], Table]] = {
    "rating": lambda: synthetic_ratings(rows=2000, features=1000, density=0.03),
    "binary": lambda: synthetic_responses(rows=2000, features=600, density=0.1),
    "real": _reals,
}


def rebuild(folder: Path, kind: str, count: int) -> dict[str, Any]:
    """Fit a small model, fill a store with ``count`` features, and start."""
    model = Headstart(adapter="bayes", quiet=True).fit(TABLES[kind]())
    place = folder / kind
    model.save(place)
    with Store(f"sqlite:///{folder}/{kind}.db") as store:
        _fill(store, model, kind, count)
        start, used = time.perf_counter(), time.process_time()
        live = LiveModel(store, place)
        took = {"seconds": time.perf_counter() - start, "CPU seconds": time.process_time() - used}
    return {"features": len(live.snapshot.model_state.feature_store), **took}


def _fill(store: Store, model: Headstart, kind: str, count: int) -> None:
    """Write features with their observations, as if each had arrived in a change of its own."""
    random, rows, at = np.random.default_rng(0), list(model.rows), writing.now()
    metadata = {"rating": '{"year": 1999}', "binary": '{"level": 0.5}'}.get(kind, "{}")
    numbers = range(1, count + 1)
    names = [f"new {number}" for number in numbers]
    every = list(zip(numbers, names, strict=True))
    chosen = random.random((count, len(rows)), dtype=np.float32).argpartition(SHOTS, axis=1)[:, :SHOTS]
    values = {
        "rating": random.integers(1, 6, size=chosen.shape),
        "binary": random.integers(0, 2, size=chosen.shape),
        "real": random.normal(size=chosen.shape) * random.lognormal(size=(count, 1)),
    }[kind].astype(float)
    with store.writing() as connection:
        change = {"at": at, "kind": "feature", "observations": SHOTS}
        connection.execute(insert(CHANGES), [{"number": n, "name": name, **change} for n, name in every])
        feature = {"at": at, "metadata": metadata}
        connection.execute(insert(FEATURES), [{"number": n, "name": name, **feature} for n, name in every])
        ids = insert_rows(connection, {digest_of(connection, row): {"name": row} for row in rows})
        cells = [
            {"number": n, "row": ids[rows[i]], "feature": name, "value": value}
            for (n, name), line, numbers_of_line in zip(every, chosen.tolist(), values.tolist(), strict=True)
            for i, value in zip(line, numbers_of_line, strict=True)
        ]
        connection.execute(insert(OBSERVATIONS), cells)
