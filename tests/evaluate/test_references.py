"""Reference methods for rankings, against dense versions, and in a benchmark."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headstart import Headstart
from headstart.datasets import synthetic_ratings
from headstart.errors import InputError
from headstart.evaluate import Benchmark, BenchmarkConfig, split_observations
from headstart.evaluate.references import ALS, ItemKNN, Popularity
from headstart.table import Cells


def pattern(seed: int, rows: int, features: int, density: float = 0.3) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, features)) < density


def as_cells(mask: np.ndarray) -> Cells:
    lines, index = (torch.from_numpy(part) for part in np.nonzero(mask))
    return Cells.from_pairs(lines, index, torch.ones(len(lines)), *mask.shape)


KNOWN, NEW, ROWS = pattern(0, 30, 20), pattern(1, 4, 30, 0.1), pattern(2, 5, 20, 0.2)


def test_popularity_counts_relevant_cells():
    reference = Popularity(as_cells(KNOWN))
    assert torch.equal(reference.rank_rows(as_cells(NEW))[2], torch.from_numpy(KNOWN.sum(1)).double())
    assert torch.equal(reference.rank_features(as_cells(ROWS))[0], torch.from_numpy(KNOWN.sum(0)).double())


def test_item_knn_adds_up_cosines():
    reference, known = ItemKNN(as_cells(KNOWN)), KNOWN.astype(float)

    def cosines(columns: np.ndarray) -> np.ndarray:
        lengths = np.sqrt(known.sum(0) + 10)[:, None] * np.sqrt(columns.sum(0) + 10)
        return known.T @ columns / lengths

    found = reference.rank_rows(as_cells(NEW)).numpy()
    np.testing.assert_allclose(found, (known @ cosines(NEW.T.astype(float))).T, atol=1e-6)
    own = cosines(known)
    np.fill_diagonal(own, 0)
    np.testing.assert_allclose(reference.rank_features(as_cells(ROWS)).numpy(), ROWS @ own, atol=1e-6)


def test_als_minimises_its_loss():
    reference = ALS(as_cells(KNOWN))
    factors = reference._fold_in(as_cells(NEW), reference.rows).double().requires_grad_()
    rows, clicks = reference.rows.double(), torch.from_numpy(NEW).double()
    output = factors @ rows.T
    loss = (clicks * (1 - output) ** 2).sum() + 0.1 * (output**2).sum()
    penalty = 0.02 * (clicks.sum(1) + 0.1 * len(rows))
    (loss + (penalty[:, None] * factors**2).sum()).backward()
    assert factors.grad is not None
    assert float(factors.grad.abs().max()) < 1e-4


def test_a_benchmark_scores_rankings_of_methods_and_references(tmp_path):
    config = BenchmarkConfig(
        methods=("mean-head", "bayes", "popularity", "item-knn", "als"),
        shots=(0, 4), splits=1, test_share=0.2, row_shots=(0, 4), ranking=True,
    )  # fmt: skip
    results = Benchmark(synthetic_ratings(120, 40, 0.5), config).run(tmp_path / "out")
    for test, shots in (("features", [0, 4]), ("rows", [0, 4])):
        curves = results.curves("ndcg@10", test)
        assert set(curves) == set(config.methods)
        assert all(curve.shots == shots for curve in curves.values())
    ranked = results.curves("ndcg@10")
    assert ranked["bayes"].mean[1] > ranked["mean-head"].mean[1]
    assert "rmse" in results.metrics
    assert "popularity" not in results.curves("rmse")


def test_references_need_rankings():
    with pytest.raises(InputError, match=r"'als' only ranks; score rankings with ranking=True"):
        BenchmarkConfig(methods=("als",)).check_methods()


@pytest.mark.parametrize("on", ["features", "cells"])
def test_evaluate_scores_rankings(on):
    table = synthetic_ratings(rows=80, features=30, density=0.5)
    known, tested = table.with_features(table.features[:24]), table
    if on == "cells":
        known, tested = split_observations(table, 0.2)
    model = Headstart(adapter="bayes", quiet=True).fit(known)
    results = model.evaluate(tested, shots=(0, 4), on=on, by="mean")
    assert {"ndcg@10", "ndcg@50", "recall@10", "map", "mrr", "coverage@10"} <= set(results.metrics)
    assert "ndcg@10" not in model.evaluate(tested, shots=(0, 4), on=on).metrics
    with pytest.raises(InputError, match="by= must be one of"):
        model.evaluate(tested, shots=(0, 4), on=on, by="best")


def test_the_ranking_of_cells_is_that_of_recommend():
    table = synthetic_ratings(rows=60, features=30, density=0.5)
    known, tested = split_observations(table, 0.2)
    model = Headstart(adapter="bayes", quiet=True).fit(known)
    found = {run.metric: run.value for run in model.evaluate(tested, on="cells", by="mean").runs}
    reciprocal = []
    for position, row in enumerate(tested.rows):
        own = tested.row_index == position
        liked = {
            tested.features[int(feature)]
            for feature, value in zip(tested.feature_index[own], tested.values[own], strict=True)
            if value >= 4
        }
        ranked = model.recommend(row, n=30).names
        if liked:
            reciprocal.append(1 / (1 + min(ranked.index(name) for name in liked)))
    assert found["mrr"] == pytest.approx(np.mean(reciprocal))
