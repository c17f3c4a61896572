"""Clicks: Headstart beside popularity, item-kNN, ALS and the library implicit, on three tables.

    OMP_NUM_THREADS=1 python benchmarks/peers/clicks.py --data DATA --out OUT [--seeds 0,1,2] [--tables NAME]

A rating of 4 or more is a click. *New features*: a tenth of the features is held out; all rows are ranked for
each of them after 0, 1, 2, 4, 8, 16 and 32 of its clicks (NDCG@50). *Known features*: a fifth of the clicks
is held out; all features without a click are ranked for each row (NDCG@10). Settings were chosen with the
seeds 100 and 101. Without the library implicit its lines are left out. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.adapters.base import adapter_config
from headstart.datasets import movielens_1m, movielens_small, synthetic_clicks
from headstart.evaluate import REFERENCES, KShotTest, Lists, score_lists, split_features, split_observations
from headstart.evaluate.references import Reference
from headstart.evaluate.scoring import Grid, heads_of, known_heads, relevant_cells, score_reference
from headstart.progress import Reporter
from headstart.table import Cells, Table
from headstart.training.recipe import Recipe, TrainedParts, train
from headstart.training.table_inputs import feature_batch

SHOTS = (0, 1, 2, 4, 8, 16, 32)


class Implicit(Reference):
    """ALS of the library implicit; a new feature by ``recalculate_item``, nothing at 0 clicks."""

    factors, alpha, regularization, iterations = 64, 10.0, 50.0, 15

    def __init__(self, known: Cells) -> None:
        super().__init__(known)
        from implicit.cpu.als import AlternatingLeastSquares
        from scipy.sparse import csr_matrix

        ones = np.ones(len(known.index), dtype=np.float32)
        matrix = csr_matrix((ones, known.index.numpy(), known.indptr.numpy()), (len(known), known.width))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of settings that only matter with many cores
            self.model = AlternatingLeastSquares(
                factors=self.factors, alpha=self.alpha, regularization=self.regularization,
                iterations=self.iterations, num_threads=1, random_state=0,
            )  # fmt: skip
            self.model.fit(matrix, show_progress=False)

    def rank_rows(self, contexts: Cells) -> torch.Tensor:
        from scipy.sparse import csr_matrix

        ones = np.ones(len(contexts.index), dtype=np.float32)
        shape = (len(contexts), len(self.known))
        clicks = csr_matrix((ones, contexts.index.numpy(), contexts.indptr.numpy()), shape)
        features = self.model.recalculate_item(np.arange(len(contexts)), clicks)
        return torch.from_numpy(np.asarray(features @ self.model.user_factors.T))

    def rank_features(self, contexts: Cells) -> torch.Tensor:
        if len(contexts) != len(self.known):
            raise ValueError("only known rows are ranked for")
        return torch.from_numpy(self.model.user_factors @ self.model.item_factors.T)


def references() -> dict[str, Callable[[Cells], Reference]]:
    """Return the reference methods, with implicit if it is installed."""
    try:
        import implicit.cpu.als  # noqa: F401
    except ImportError:
        return dict(REFERENCES)
    return {**REFERENCES, "implicit": Implicit}


TABLES: dict[str, Callable[[Path | None], Table]] = {
    "movielens-small": lambda _: movielens_small().as_clicks(4),
    "movielens-1m": lambda data: movielens_1m(data).as_clicks(4),
    "simulated": lambda _: synthetic_clicks(1500, 600, density=0.05),
}


def fit(table: Table, features: Any, seed: int) -> TrainedParts:
    """Train the default of ``fit`` on some features of a table of clicks."""
    return train(
        table, features, features, Recipe(random_state=seed), {"headstart": adapter_config("bayes")},
        reporter=Reporter(quiet=True), checkpoint=lambda _: None,
    )  # fmt: skip


def score_new_features(table: Table, seed: int) -> dict[str, list[float]]:
    """Return NDCG@50 of the ranking of rows for held-out features, by method and clicks."""
    split = split_features(table, 0.1, None, seed)
    new = table.with_features(split.meta_test)
    test = KShotTest(feature_batch(new), new.kinds, SHOTS, seed)
    known = relevant_cells(feature_batch(table.with_features(split.train))).transpose()
    found = {}
    for name, reference in references().items():
        runs = score_reference(name, reference(known), test, None)
        found[name] = [run.value for run in runs if run.metric == "ndcg@50"]
    trained = fit(table, split.train, seed)
    adapter, likelihood = trained.adapters["headstart"].adapter, trained.knowledge.likelihood
    states = adapter.refine(trained.knowledge.states)
    found["headstart"] = [
        score_lists(
            Grid(heads_of(adapter, test.context(shots), states), states, test.modelled, likelihood).rows_for,
            test.lists(),
        )["ndcg@50"].value
        for shots in SHOTS
    ]
    found["tested"] = [float(len(test))]
    return found


def score_known_features(table: Table, seed: int) -> dict[str, list[float]]:
    """Return NDCG@10 of the ranking of features for rows, on held-out clicks, by method."""
    known, held_out = split_observations(table, 0.2, seed)
    cells = known.cells()
    lists = Lists(held_out.cells(), cells)
    found = {}
    for name, reference in references().items():
        scores = reference(cells).rank_features(cells)
        found[name] = [score_lists(lambda part, scores=scores: scores[part], lists)["ndcg@10"].value]
    features = np.arange(len(table.features))
    trained = fit(known, features, seed)
    adapter, likelihood = trained.adapters["headstart"].adapter, trained.knowledge.likelihood
    states = adapter.refine(trained.knowledge.states)
    batch = replace(feature_batch(known), known=torch.arange(len(features)))
    heads = known_heads(adapter, trained.knowledge, batch, states)
    scored = score_lists(Grid(heads, states, batch.kinds, likelihood).features_for, lists)
    found["headstart"] = [scored["ndcg@10"].value]
    return found


def main() -> None:
    """Run and write one JSON file per table and seed, and ``summary.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tables", default=",".join(TABLES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    lines = []
    for name in options.tables.split(","):
        results = []
        for seed in map(int, options.seeds.split(",")):
            path = options.out / f"{name}-{seed}.json"
            if not path.exists():
                table = TABLES[name](options.data)
                found = {"new": score_new_features(table, seed), "known": score_known_features(table, seed)}
                path.write_text(json.dumps(found, indent=1))
            results.append(json.loads(path.read_text()))
        lines += summarise(name, results)
    (options.out / "summary.md").write_text("\n".join(lines))
    print("\n".join(lines))


def summarise(name: str, results: list[dict[str, dict[str, list[float]]]]) -> list[str]:
    """Return the lines of a Markdown table: means over seeds, the best of each column in bold."""
    methods = [method for method in results[0]["new"] if method != "tested"]
    tested = sum(result["new"]["tested"][0] for result in results)
    means = np.array(
        [
            np.mean([[*result["new"][method], *result["known"][method]] for result in results], axis=0)
            for method in methods
        ]
    )
    head = ["clicks", *map(str, SHOTS), "known features"]
    lines = [f"**{name}**: {len(results)} splits, {tested:.0f} new features", "", f"| {' | '.join(head)} |"]
    lines.append("|---|" + "---:|" * (len(head) - 1))
    for method, numbers in zip(methods, means, strict=True):
        texts = [
            f"**{number:.3f}**" if number == column.max() else f"{number:.3f}"
            for number, column in zip(numbers, means.T, strict=True)
        ]
        lines.append(f"| {method} | {' | '.join(texts)} |")
    return [*lines, ""]


if __name__ == "__main__":
    main()
