"""Row and column means and ALS as references, against dense versions of their formulas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from headstart import Headstart, Table
from headstart.core.value_references import ALS, RowColumnMeans
from headstart.datasets import synthetic_ratings
from headstart.evaluate import Benchmark, BenchmarkConfig
from headstart.table.cells import Cells


def made_cells(rows: int = 60, features: int = 30, seed: int = 0) -> tuple[Cells, np.ndarray, np.ndarray]:
    """Make observations of row effects (std 0.5), feature effects (std 0.3) and noise (std 0.4)."""
    generator = np.random.default_rng(seed)
    truth = 2 + 0.5 * generator.normal(size=(rows, 1)) + 0.3 * generator.normal(size=(1, features))
    values = truth + 0.4 * generator.normal(size=truth.shape)
    row, feature = np.nonzero(generator.random(truth.shape) < 0.4)
    pairs = (torch.from_numpy(part) for part in (row, feature, values[row, feature]))
    return Cells.from_pairs(*pairs, rows, features), values, truth


def test_effects_solve_the_penalised_least_squares() -> None:
    cells, _, _ = made_cells()
    means = RowColumnMeans(cells)
    rows, features = cells.lines.numpy(), cells.index.numpy()
    design = np.zeros((len(rows), 90))
    design[np.arange(len(rows)), rows] = design[np.arange(len(rows)), 60 + features] = 1
    penalty = np.diag([means.row_penalty] * 60 + [means.feature_penalty] * 30)
    effects = np.linalg.solve(design.T @ design + penalty, design.T @ (cells.values.numpy() - means.mean))
    predicted = (means.rows[rows] * means.features[features]).sum(1).numpy()
    np.testing.assert_allclose(predicted, means.mean + design @ effects, atol=0.01)


def test_variances_are_found() -> None:
    cells, _, _ = made_cells(rows=400, features=200)
    means = RowColumnMeans(cells)
    assert means.std == pytest.approx(0.4, rel=0.05)
    assert means.row_penalty == pytest.approx((0.4 / 0.5) ** 2, rel=0.2)
    assert means.feature_penalty == pytest.approx((0.4 / 0.3) ** 2, rel=0.2)


@pytest.mark.parametrize("reference", [RowColumnMeans, ALS])
def test_folding_in_a_known_line_gives_its_vector(reference: type[RowColumnMeans]) -> None:
    cells, _, _ = made_cells()
    fitted = reference(cells)
    torch.testing.assert_close(fitted.fold_features(cells.transpose()), fitted.features, atol=2e-3, rtol=0)
    nothing = cells.keep(torch.zeros_like(cells.index, dtype=torch.bool))
    new_row = fitted.fold_rows(nothing)[0]
    predicted = fitted.features @ new_row
    torch.testing.assert_close(predicted, fitted.mean + fitted.feature_effects, atol=0.2, rtol=0)


def test_als_finds_factors() -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(200, 2)) @ generator.normal(size=(2, 80))
    row, feature = np.nonzero(generator.random(truth.shape) < 0.4)
    pairs = (torch.from_numpy(part) for part in (row, feature, truth[row, feature]))
    cells = Cells.from_pairs(*pairs, 200, 80)
    errors = [
        float((fitted.rows @ fitted.features.T - torch.from_numpy(truth)).square().mean().sqrt())
        for fitted in (RowColumnMeans(cells), ALS(cells))
    ]
    assert errors[1] < 0.3 * errors[0]


def test_a_benchmark_scores_them_on_the_same_cells(tmp_path: Path) -> None:
    config = BenchmarkConfig(
        methods=("mean", "row-column-means", "als-values"), shots=(0, 4), splits=1, test_rows=0.2
    )
    results = Benchmark(synthetic_ratings(120, 60, 0.4), config).run(tmp_path / "b")
    for test in ("features", "rows"):
        targets = {
            (run.n_observations, run.targets)
            for run in results.runs
            if run.test == test and run.metric == "rmse"
        }
        assert len(targets) == len(results.shots_of(test))
    errors = results.curves("rmse")
    assert errors["row-column-means"].mean[1] < errors["mean"].mean[1]


def test_evaluate_puts_the_means_beside_the_model() -> None:
    table = synthetic_ratings(rows=80, features=30, density=0.5)
    new = table.with_features(np.arange(24, 30))
    model = Headstart(adapter="bayes", quiet=True).fit(table.without_features(new.features))
    model.add_row("late", observations={"film 0": 5})
    results = model.evaluate(new, shots=(0, 4))
    assert results.methods == ["bayes", "row-column-means"]
    assert {run.targets for run in results.runs if run.metric == "rmse"} == {results.runs[0].targets}
    held_out = pa.table({"row": ["row 0", "row 1", "row 2"], "feature": ["film 1"] * 3, "value": [3, 4, 5]})
    unseen = model.evaluate(Table.read(held_out, kinds="rating:1:5", quiet=True), on="cells")
    assert set(unseen.methods) <= {"bayes", "row-column-means"}


def test_values_of_different_units_are_not_averaged() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(size=(60, 10)) * 10.0 ** np.arange(10)
    frame = pa.table({"row": [f"r{i}" for i in range(60)], **{f"f{j}": values[:, j] for j in range(10)}})
    table = Table.read(frame, row="row", form="wide", quiet=True)
    new = table.with_features(np.array([8, 9]))
    model = Headstart(adapter="bayes", quiet=True).fit(table.without_features(new.features))
    assert model.evaluate(new, shots=(0, 4)).methods == ["bayes"]
