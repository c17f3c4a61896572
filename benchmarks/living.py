"""Compare a model that observes arriving values with a model that is fitted again.

    python benchmarks/living.py --data /path/to/data --set movielens --out living

Two parts. **Stream**: a model is fitted on half of the observations of every row (in a random order). The
other half then arrives in random order, in blocks; a tenth of all observations is in neither half and
measures the error. Measured at each step: the error of the model without changes (frozen), of the same
model after ``observe`` (living), and of a model fitted on all observations so far (refit). **New
features**: rows with observations of only 16 features that were added after ``fit``, compared with the same
rows where these features were in the table from the start. Written: ``living-SET.json``.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from headstart import Headstart, Table
from headstart.datasets.public import load_dataset
from headstart.table import Names

NEW_FEATURES = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="folder of the data sets, else HEADSTART_DATA")
    parser.add_argument("--set", default="movielens", choices=("movielens", "elearning"))
    parser.add_argument("--rows", type=float, default=1.0, help="share of the rows that is used")
    parser.add_argument("--steps", type=int, default=4, help="how often errors are measured")
    parser.add_argument("--blocks", type=int, default=10, help="blocks of observations between two steps")
    parser.add_argument("--adapter", default="bayes")
    parser.add_argument("--skip", default="", help="stream or features: the part to leave out")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    table = some_rows(load_dataset(options.set, options.data), options.rows)
    results: dict[str, object] = {
        "set": options.set, "rows": len(table.rows), "features": len(table.features),
        "observations": len(table), "adapter": options.adapter, "threads": torch.get_num_threads(),
    }  # fmt: skip
    if options.skip != "features":
        results["rows known by new features"] = new_features(table, options.adapter)
        print(results["rows known by new features"], flush=True)
    if options.skip != "stream":
        results["stream"] = stream(table, options.adapter, options.steps, options.blocks)
    (options.out / f"living-{options.set}.json").write_text(json.dumps(results, indent=1) + "\n")


def some_rows(table: Table, share: float) -> Table:
    selected = np.random.default_rng(0).random(len(table.rows)) < share
    inside, positions = selected[table.row_index], np.cumsum(selected) - 1
    names = Names(
        [name for name, is_selected in zip(table.rows, selected, strict=True) if is_selected], "row"
    )
    return replace(table, rows=names, row_index=positions[table.row_index[inside]],
                   feature_index=table.feature_index[inside], values=table.values[inside])  # fmt: skip


def part(table: Table, mask: NDArray[np.bool_]) -> Table:
    return replace(table, row_index=table.row_index[mask], feature_index=table.feature_index[mask],
                   values=table.values[mask])  # fmt: skip


def frame(table: Table, cells: NDArray[np.int64]) -> pa.Table:
    rows, features = np.array(list(table.rows)), np.array(list(table.features))
    return pa.table({"row": rows[table.row_index[cells]], "feature": features[table.feature_index[cells]],
                     "value": table.values[cells]})  # fmt: skip


def errors(model: Headstart, table: Table, cells: NDArray[np.int64]) -> dict[str, float]:
    """Return the RMSE at these cells, for features of the model."""
    known = np.array([name in model.fitted_.feature_store for name in table.features])
    cells = cells[known[table.feature_index[cells]]]
    names = [name for name, is_known in zip(table.features, known, strict=True) if is_known]
    column = np.cumsum(known) - 1
    squared, total = 0.0, 0
    for rows in np.array_split(np.unique(table.row_index[cells]), 16):
        here = cells[np.isin(table.row_index[cells], rows)]
        if len(here) == 0:
            continue
        predicted = model.predict([table.rows[row] for row in rows], names).mean
        at = np.searchsorted(rows, table.row_index[here]), column[table.feature_index[here]]
        squared += float(((predicted[at] - table.values[here]) ** 2).sum())
        total += len(here)
    return {"rmse": (squared / total) ** 0.5, "cells": total}


def stream(table: Table, adapter: str, steps: int, blocks: int) -> list[dict[str, object]]:
    random = np.random.default_rng(1)
    test = random.random(len(table)) < 0.1
    order = np.lexsort((random.random(len(table)), table.row_index))
    counts = np.bincount(table.row_index, minlength=len(table.rows))
    rank = np.empty(len(table), dtype=np.int64)
    rank[order] = np.arange(len(table)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = (rank < counts[table.row_index] / 2) & ~test
    arriving = random.permutation(np.flatnonzero(~first & ~test))
    living = Headstart(adapter=adapter, quiet=True).fit(part(table, first))
    frozen = errors(living, table, np.flatnonzero(test))["rmse"]
    found: list[dict[str, object]] = [{"share": 0.0, "frozen": frozen, "living": frozen, "refit": frozen}]
    print(found[-1], flush=True)
    for step, cells in enumerate(np.array_split(arriving, steps), start=1):
        began = time.perf_counter()
        for block in np.array_split(cells, blocks):
            living.observe(frame(table, block))
        seconds = time.perf_counter() - began
        seen = first.copy()
        seen[np.concatenate(np.array_split(arriving, steps)[:step])] = True
        began = time.perf_counter()
        refit = Headstart(adapter=adapter, quiet=True).fit(part(table, seen))
        fitting = time.perf_counter() - began
        test_cells = np.flatnonzero(test)
        rmse = {
            "living": errors(living, table, test_cells)["rmse"],
            "refit": errors(refit, table, test_cells)["rmse"],
        }
        found.append({
            "share": step / steps, "frozen": frozen, **rmse,
            "living / refit": rmse["living"] / rmse["refit"],
            "ms per observation": 1e3 * seconds / len(cells), "seconds of refit": fitting,
        })  # fmt: skip
        print(found[-1], flush=True)
    return found


def new_features(table: Table, adapter: str) -> dict[str, float]:
    """Return the errors at rows whose observed features were added after ``fit``, or were in the table."""
    random = np.random.default_rng(2)
    popular = np.argsort(-table.counts)[: 8 * NEW_FEATURES]
    later = random.choice(popular, NEW_FEATURES, replace=False)
    new_rows = random.random(len(table.rows)) < 0.2
    old, inside = ~new_rows[table.row_index], np.isin(table.feature_index, later)
    targets = np.flatnonzero(~old & ~inside)
    contexts: dict[str, dict[str, float]] = {table.rows[row]: {} for row in np.flatnonzero(new_rows)}
    for cell in np.flatnonzero(~old & inside):
        row, feature = table.row_index[cell], table.feature_index[cell]
        contexts[table.rows[row]][table.features[feature]] = table.values[cell]
    without = Headstart(adapter=adapter, quiet=True).fit(_old_rows(part(table, old & ~inside), new_rows))
    for feature in table.features.take(later):
        if feature in without.features:
            without.remove_feature(feature)  # it had no observations in the table
    rows_of = part(table, old)
    without.add_features({
        feature: {"observations": rows_of.observations_of(feature), "metadata": _metadata(table, feature)}
        for feature in table.features.take(later)
    })  # fmt: skip
    before = Headstart(adapter=adapter, quiet=True).fit(_old_rows(part(table, old), new_rows))
    found = {
        "spread": float(table.values[targets].std()),
        "observed per row": np.mean([len(t) for t in contexts.values()]),
    }
    for name, model, observations in (
        ("nothing observed", without, {row: {} for row in contexts}),
        ("features added after fit", without, contexts),
        ("features in the table", before, contexts),
    ):
        model = _copy(model)
        model.add_rows(observations)
        found[name] = errors(model, table, targets)["rmse"]
    return found


def _old_rows(table: Table, new: NDArray[np.bool_]) -> Table:
    positions = np.cumsum(~new) - 1
    names = Names([name for name, is_new in zip(table.rows, new, strict=True) if not is_new], "row")
    return replace(table, rows=names, row_index=positions[table.row_index])


def _copy(model: Headstart) -> Headstart:
    other = Headstart(**model.get_params())
    other.fitted_ = model.fitted_
    return other


def _metadata(table: Table, feature: str) -> dict[str, object]:
    if table.metadata is None:
        return {}
    line: dict[str, object] = table.metadata.slice(table.features.position(feature), 1).to_pylist()[0]
    return line


if __name__ == "__main__":
    main()
