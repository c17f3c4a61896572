"""Streaming in the paper's model: predict each observation of a new feature, then add it to the context.

    python benchmarks/ablation/prequential.py elearning --splits 0,1,2

The observations of a new feature arrive one by one in a random order. Each is predicted from those before it,
and scored (prequential, or test-then-train, evaluation). Features with more than 128 observations are tested,
so that every number of observations so far has the same features. The states of rows do not change.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ablation.protocol import METRICS, ResultFile, Split, load, preset_of, run_command_line
from headstart.adapters.base import Adapter
from headstart.core import FeatureBatch, Knowledge, predict_cells
from headstart.evaluate.metrics import auroc
from headstart.evaluate.splits import split_features
from headstart.parallel import thread_pool
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.cells import Cells
from headstart.training.episodes import random_ranks
from headstart.training.judge import train_best
from headstart.training.recipe import Recipe
from headstart.training.table_inputs import feature_batch, modelled_table

LENGTH = 128  # observations per feature

BINS = (0, 1, 2, 4, 8, 16, 32, 64, 128)  # of the observations so far: 0, 1, 2 to 3, 4 to 7, …

ORDERS = 4  # random orders of each feature's observations


@dataclass(frozen=True)
class Stream:
    """Predictions and values of the observations of all features, in order of arrival."""

    mean: NDArray[np.float64]  # (arrivals, features)
    truth: NDArray[np.float64]  # (arrivals, features)

    def scores(self, metric: str) -> dict[int, float]:
        """Return the score of each bin of observations so far, by its first number."""
        scores = {}
        for first, stop in pairwise(BINS):
            mean, truth = self.mean[first:stop].ravel(), self.truth[first:stop].ravel()
            if metric == "rmse":
                scores[first] = float(np.sqrt(np.mean((mean - truth) ** 2)))
            else:
                scores[first] = float(auroc(truth, mean, np.zeros(len(truth), dtype=np.int64))[0])
        return scores


def order_observations(batch: FeatureBatch, seed: int) -> FeatureBatch:
    """Return the features with more than ``LENGTH`` observations, with their observations in random order."""
    batch = batch.take(torch.nonzero(batch.shots > LENGTH)[:, 0])
    cells = batch.cells
    order = torch.empty_like(cells.index, dtype=torch.int64)
    rank = random_ranks(cells, torch.Generator().manual_seed(seed))
    order[rank + cells.indptr[cells.lines]] = torch.arange(len(order))
    return batch.observing(cells.at(cells.indptr, order))


@torch.no_grad()
def stream(adapter: Adapter, knowledge: Knowledge, batch: FeatureBatch) -> Stream:
    """Predict the first ``LENGTH`` observations of each feature of ``batch``, one after the other."""
    states = adapter.refine(knowledge.states)
    starts, count = batch.cells.indptr[:-1], len(batch)
    means, truths = [], []
    for arrived in range(LENGTH):
        heads = adapter.adapt(batch.observing(_slice(batch.cells, starts, 0, arrived)), states)
        target = _slice(batch.cells, starts, arrived, arrived + 1)
        predicted = predict_cells(heads, states, target, batch.kinds, knowledge.likelihood)
        means.append(predicted.mean.double().numpy().reshape(count))
        truths.append(target.values.double().numpy())
    return Stream(np.stack(means), np.stack(truths))


def _slice(cells: Cells, starts: Tensor, first: int, stop: int) -> Cells:
    """Return the observations from ``first`` to before ``stop`` of each line."""
    positions = (starts[:, None] + torch.arange(first, stop)).reshape(-1)
    return cells.at(torch.arange(len(starts) + 1) * (stop - first), positions)


def run(dataset: str, seed: int, folder: Path) -> None:
    """Stream the new features of one split through the paper's model and through the default."""
    table, preset, metric = load(dataset), preset_of(dataset), METRICS[dataset]
    facts = {"dataset": dataset, "metric": metric, "study": "prequential"}
    results = ResultFile(f"prequential-{dataset}", {**facts, "settings": preset.model_dump(mode="json")})
    split = split_features(table, preset.test_share, preset.meta_share, seed)
    new = table.with_features(split.meta_test)
    span = float(new.kinds.spans[0])  # all features have one kind

    def scored(adapter: Adapter, knowledge: Knowledge, features: Table) -> dict[int, float]:
        batch = feature_batch(features)
        streams = [stream(adapter, knowledge, order_observations(batch, order)) for order in range(ORDERS)]
        mean, truth = (
            np.concatenate([getattr(s, name) for s in streams], axis=1) for name in ("mean", "truth")
        )
        unit = span if metric == "rmse" else 1.0
        return {first: unit * value for first, value in Stream(mean, truth).scores(metric).items()}

    if not results.has(seed, "CHN on the P-VAE"):
        paper = Split.prepare(table, preset, seed, checkpoint=folder / f"{dataset}-{seed}-pvae.safetensors")
        adapter = paper.train(preset.chn).adapter
        results.add(seed, "CHN on the P-VAE", scored(adapter, paper.trainer.knowledge, new))
    if not results.has(seed, "the default"):
        features = np.sort(np.concatenate([split.train, split.meta_train]))
        with thread_pool():
            best, recipe, judgement = train_best(
                table,
                features,
                Recipe(random_state=seed),
                reporter=Reporter(quiet=True),
                checkpoint=lambda part: folder / f"{dataset}-{seed}-default-{part}.safetensors",
            )
        print("the default chose", judgement.chosen, flush=True)
        linked = modelled_table(table, recipe.binary_link).with_features(split.meta_test)
        results.add(seed, "the default", scored(best.adapters["adapter"].adapter, best.knowledge, linked))


def main() -> None:
    """Stream the data sets and splits on the command line."""
    run_command_line(__doc__, run)


if __name__ == "__main__":
    main()
