"""The comparison of imputers: its cells are removed as it says, and the page shows its stored results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import imputation

ROOT = Path(__file__).parents[2]


def test_cells_are_removed_by_the_mechanism() -> None:
    values = np.random.default_rng(0).normal(size=(2000, 6))
    at_random, depending = (np.isnan(imputation.remove(values, name, 0)) for name in ("MCAR", "MAR"))
    assert abs(at_random.mean() - 0.2) < 0.02
    assert not depending[:, :2].any()
    high = values[:, :2].sum(1) > 1
    assert depending[high, 2:].mean() > 2 * depending[~high, 2:].mean()


def test_measures_by_hand() -> None:
    values = np.array([[0.0, 1.0], [2.0, 3.0]])
    holes = np.array([[np.nan, 1.0], [2.0, 3.0]])
    draws = np.stack([np.array([[shift, 1.0], [2.0, 3.0]]) for shift in (-1.0, 0.0, 1.0, 2.0)])
    found = imputation.measure(lambda holes, seed: (draws.mean(0), draws, None), values, holes, 0)
    assert (found["rmse"], found["cells"], found["means"]) == (0.5, 1.0, 1.0)


def test_the_page_shows_the_stored_results() -> None:
    results = json.loads((ROOT / "benchmarks/imputation_results/imputation.json").read_text())
    assert imputation.report(results) in (ROOT / "docs/imputation.md").read_text()
