"""Collect episodes: the residuals of new features of many tables beside those of the known features.

    python benchmarks/shared_network/episodes.py --out FOLDER

Each table is fitted without the features of each fold of the judge, and these are predicted after several
numbers of observations. A file of FOLDER has the episodes of one fold of one table. Finished tables are not
repeated.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headstart import Table
from headstart.adapters.base import adapter_config
from headstart.core.neighbours import neighbours_of
from headstart.core.predictive import predict_cells
from headstart.core.types import VALIDATION_SHOTS
from headstart.errors import HeadstartError
from headstart.progress import Reporter
from headstart.training.episodes import disjoint_tasks, draw_episode
from headstart.training.judge import Judge
from headstart.training.recipe import Recipe, TrainedParts, train
from headstart.training.table_inputs import feature_batch, hide_scales
from shared_network.closed_form import closed_form_shifts
from shared_network.tables import LEAST_COLUMNS, made_up, sources

_MOST_TARGETS = 96  # of one feature
_MORE_TO_DO = 3  # exit code
_QUIET = Reporter(quiet=True)


def _nowhere(_: str) -> None:
    """Return no checkpoint."""


def collect(table: Table) -> list[dict[str, Any]]:
    """Return the arrays of each fold of the judge."""
    judge, found = Judge(table, np.arange(len(table.features)), _QUIET, _nowhere), []
    for held_out in judge.folds:
        others = np.setdiff1d(judge.features, held_out)
        hidden, adapters = hide_scales(table, others), {"bayes": adapter_config("bayes")}
        trained = train(hidden, others, others, Recipe(), adapters, reporter=_QUIET, checkpoint=_nowhere)
        found.append(arrays_of(trained, hidden, others, held_out))
    return found


@torch.no_grad()
def arrays_of(trained: TrainedParts, table: Table, others: Any, held_out: Any) -> dict[str, Any]:
    """Return residuals (rows, known features), and for each number of shots contexts, targets and evidence.

    Arrays of shots k end in ``_k``: ``line``, ``row`` and ``residual`` of the observations of context and
    targets, and ``inputs`` and ``similarity`` (m) of each new feature.
    """
    knowledge, adapter = trained.knowledge, trained.adapters["bayes"].adapter
    neighbours, residuals = neighbours_of(knowledge), neighbours_of(knowledge).residuals
    batch = feature_batch(table.with_features(held_out), table.kinds.take(others).middle_real())
    tasks = disjoint_tasks(batch, knowledge)
    states = adapter.refine_in_blocks(tasks.states[0])
    arrays = {
        "residuals": residuals.toarray().astype(np.float32),
        "usual_variance": np.float32(neighbours.usual_variance),
    }
    generator = torch.Generator().manual_seed(0)
    for shots in VALIDATION_SHOTS:
        enough = torch.nonzero(batch.shots > shots)[:, 0]
        if not len(enough):
            continue
        given = torch.full((len(enough),), shots)
        episode = draw_episode(tasks.take(enough).batch, states, given, generator, _MOST_TARGETS)
        context, heads = episode.context, adapter.adapt(episode.context, states)
        for name, cells in (("context", context.cells), ("target", episode.targets)):
            predictive = predict_cells(heads, states, cells, context.kinds, knowledge.likelihood)
            arrays[f"{name}_line_{shots}"] = enough[cells.lines].numpy()
            arrays[f"{name}_row_{shots}"] = cells.index.numpy()
            arrays[f"{name}_residual_{shots}"] = predictive.residuals(cells.values).numpy().astype(np.float32)
        observed = arrays[f"context_residual_{shots}"].astype(np.float64).reshape(len(enough), shots)
        rows = arrays[f"context_row_{shots}"].astype(np.int64).reshape(len(enough), shots)
        every = [
            neighbours.evidence(metadata, kind, residuals[rows[line]], observed[line], np.ones(shots))
            for line, (metadata, kind) in enumerate(
                zip(context.metadata.numpy(), context.kinds.tolist(), strict=True)
            )
        ]
        arrays[f"inputs_{shots}"] = np.stack([one.inputs for one in every]).astype(np.float32)
        similar = [neighbours.similar_weights(metadata) for metadata in context.metadata.numpy()]
        arrays[f"similarity_{shots}"] = neighbours.stack(similar).toarray().astype(np.float32)
        targets = np.split(episode.targets.index.numpy(), episode.targets.indptr.numpy()[1:-1])
        arrays[f"closed_{shots}"] = closed_form_shifts(
            arrays["residuals"], arrays[f"similarity_{shots}"], rows, observed, targets
        ).astype(np.float32)
    return arrays


def save(folder: Path, name: str, load: Callable[[], Table]) -> None:
    """Collect and save the episodes of one table."""
    start, reason = time.process_time(), "too few columns"
    try:
        table = load()
        folds = collect(table) if table.shape[1] >= LEAST_COLUMNS else []
    except HeadstartError as error:
        folds, reason = [], str(error)
    if not folds:
        (folder / f"{name}.left-out").write_text(reason)
        return
    for number, arrays in enumerate(folds):
        np.savez_compressed(folder / f"{name}.{number}.npz", **arrays)
    print(name, table.shape, len(folds), f"{time.process_time() - start:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--made-up", type=int, default=60, help="number of made-up tables")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time, with exit code 3")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.time()
    jobs = [(source.name, source.load) for source in sources()] + list(made_up(options.made_up))
    for name, load in jobs:
        file = name.replace("/", "~")
        if list(options.out.glob(f"{file}.0.npz")) or (options.out / f"{file}.left-out").exists():
            continue
        if time.time() - start > options.seconds:
            sys.exit(_MORE_TO_DO)
        save(options.out, file, load)


if __name__ == "__main__":
    main()
