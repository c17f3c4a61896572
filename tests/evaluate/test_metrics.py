from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, mean_absolute_error, roc_auc_score, root_mean_squared_error

from headstart.evaluate.metrics import METRICS, auroc, calibration_error, score


def cells(seed: int, features: int = 7, n: int = 200, grid: int = 6):
    """Random scores on a coarse grid, so that ties occur; feature 0 has no target, 1 only ones."""
    rng = np.random.default_rng(seed)
    lines = np.sort(rng.integers(1, features, n))
    truth = rng.integers(0, 2, n).astype(np.float64)
    truth[lines == 1] = 1
    return truth, rng.integers(0, grid + 1, n) / grid, lines


@given(st.integers(0, 10_000))
@settings(deadline=None)  # the first call imports parts of scikit-learn
def test_auroc_of_each_line_is_scikit_learns(seed):
    truth, scores, lines = cells(seed)
    order = np.random.default_rng(seed).permutation(len(lines))  # lines need not come sorted
    areas = auroc(truth[order], scores[order], lines[order])
    for line, area in enumerate(areas):
        own = lines == line
        if len(np.unique(truth[own])) < 2:
            assert np.isnan(area)
        else:
            assert area == pytest.approx(roc_auc_score(truth[own], scores[own]))


def test_binary_scores_are_scikit_learns():
    truth, mean, lines = cells(0)
    mean = np.clip(mean, 0.01, 0.99)
    found = score(truth, mean, lines, np.zeros(len(lines), np.int64))
    assert found["auroc"].value == pytest.approx(roc_auc_score(truth, mean))
    assert found["log_loss"].value == pytest.approx(log_loss(truth, mean))
    present = np.unique(lines)
    each = [log_loss(truth[lines == j], mean[lines == j], labels=[0, 1]) for j in present]
    assert found["log_loss_per_feature"].value == pytest.approx(np.mean(each))
    both = [j for j in present if len(np.unique(truth[lines == j])) == 2]
    areas = [roc_auc_score(truth[lines == j], mean[lines == j]) for j in both]
    assert found["auroc_per_feature"].value == pytest.approx(np.mean(areas))
    assert found["auroc_per_feature"].features == len(both) == len(present) - 1
    assert found["auroc_per_feature"].targets == int(np.isin(lines, both).sum())
    assert (found["auroc"].features, found["auroc"].targets) == (len(present), len(lines))
    assert "rmse" not in found


def test_numeric_scores_are_scikit_learns():
    rng = np.random.default_rng(1)
    lines = np.array([0, 0, 0, 2, 2])
    truth, mean = rng.normal(size=5), rng.normal(size=5)
    found = score(truth, mean, lines, np.full(5, 1))
    assert found["rmse"].value == pytest.approx(root_mean_squared_error(truth, mean))
    assert found["mae"].value == pytest.approx(mean_absolute_error(truth, mean))
    each = [root_mean_squared_error(truth[lines == j], mean[lines == j]) for j in (0, 2)]
    assert found["rmse_per_feature"].value == pytest.approx(np.mean(each))
    assert found["rmse"].features == 2
    assert "coverage_90" not in found
    assert "auroc" not in found


def test_each_metric_is_computed_over_the_features_of_its_kind():
    truth, mean = np.array([1.0, 0.0, 3.0, 50.0]), np.array([0.9, 0.2, 4.0, 53.0])
    found = score(truth, mean, np.array([0, 0, 1, 2]), np.array([0, 0, 1, 2]))
    assert found["rmse"].value == pytest.approx(np.sqrt((1 + 9) / 2))
    assert (found["rmse"].features, found["rmse"].targets) == (2, 2)
    assert (found["auroc"].value, found["auroc"].features) == (1.0, 1)
    assert list(found) == [name for name in METRICS if name in found]


def test_coverage_of_the_right_interval_is_ninety_percent():
    rng = np.random.default_rng(0)
    std = rng.uniform(0.5, 3, 20_000)
    truth = rng.normal(0, std)
    kinds, lines = np.full(20_000, 2), np.zeros(20_000, np.int64)
    covered = score(truth, np.zeros(20_000), lines, kinds, np.abs(truth) / std)["coverage_90"].value
    assert covered == pytest.approx(0.9, abs=0.01)


def test_calibration_error_is_small_for_honest_probabilities_and_large_for_bold_ones():
    rng = np.random.default_rng(0)
    honest = rng.uniform(size=50_000)
    truth = (rng.uniform(size=50_000) < honest).astype(float)
    assert calibration_error(truth, honest) < 0.01
    assert calibration_error(truth, (honest > 0.5).astype(float)) > 0.2


def test_a_certain_wrong_prediction_costs_much_but_not_infinitely_much():
    found = score(np.array([1.0, 0.0]), np.array([0.0, 0.0]), np.array([0, 0]), np.array([0, 0]))
    assert 7 < found["log_loss"].value < 9


def test_one_class_only_gives_no_auroc():
    found = score(np.ones(3), np.full(3, 0.7), np.zeros(3, np.int64), np.zeros(3, np.int64))
    assert "auroc" not in found
    assert "auroc_per_feature" not in found
    assert "log_loss" in found


def test_best_knows_which_way_is_better():
    values = np.array([0.8, np.nan, 0.95])
    assert METRICS["rmse"].best(values) == 0
    assert METRICS["auroc"].best(values) == 2
    assert METRICS["coverage_90"].best(values) == 2


def test_auroc_ranks_by_other_scores_if_they_are_given():
    truth, lines, kinds = np.array([0.0, 1, 0, 1]), np.zeros(4, int), np.zeros(4, int)
    saturated, scores = np.ones(4), np.array([0.1, 0.8, 0.3, 0.9])
    assert score(truth, saturated, lines, kinds)["auroc"].value == 0.5
    ranked = score(truth, saturated, lines, kinds, ranking=scores)
    assert ranked["auroc"].value == ranked["auroc_per_feature"].value == 1
    assert ranked["log_loss"].value == score(truth, saturated, lines, kinds)["log_loss"].value
