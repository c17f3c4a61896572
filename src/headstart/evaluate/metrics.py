"""Compute metrics of predictions: errors in data units, ranking, calibration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.table.kinds import KindType

Floats = NDArray[np.float64]

Ints = NDArray[np.int64]

COVERAGE = 0.9  # the level of the intervals that are tested

_HALF_WIDTH = 1.6448536269514722  # standard normal quantile of (1 + COVERAGE) / 2

_BINS = 15

_TINY = 1e-7  # keeps the log-loss of a certain but wrong prediction finite


@dataclass(frozen=True)
class Metric:
    """The label of a metric, and which values are better."""

    label: str
    better: Literal["lower", "higher", "near"]  # near: values near COVERAGE are better

    @property
    def direction(self) -> str:
        """Which values are better, in words."""
        return f"{COVERAGE:g} is ideal" if self.better == "near" else f"{self.better} is better"

    def best(self, values: Floats) -> int:
        """Return the position of the best value; NaN is never the best."""
        if self.better == "higher":
            return int(np.nanargmax(values))
        return int(np.nanargmin(np.abs(values - COVERAGE) if self.better == "near" else values))


METRICS: dict[str, Metric] = {
    "rmse": Metric("RMSE", "lower"),
    "rmse_per_feature": Metric("RMSE, averaged over features", "lower"),
    "mae": Metric("MAE", "lower"),
    "mae_per_feature": Metric("MAE, averaged over features", "lower"),
    "coverage_90": Metric("Coverage of the 90 % interval", "near"),
    "auroc": Metric("AUROC", "higher"),
    "auroc_per_feature": Metric("AUROC, averaged over features", "higher"),
    "log_loss": Metric("Log-loss", "lower"),
    "log_loss_per_feature": Metric("Log-loss, averaged over features", "lower"),
    "ece": Metric("Expected calibration error", "lower"),
    "log_score": Metric("Log score of categories", "lower"),
    "log_score_per_feature": Metric("Log score of categories, averaged over features", "lower"),
    "accuracy": Metric("Accuracy of categories", "higher"),
    "accuracy_per_feature": Metric("Accuracy of categories, averaged over features", "higher"),
    "ndcg@10": Metric("NDCG@10", "higher"),
    "ndcg@50": Metric("NDCG@50", "higher"),
    "recall@10": Metric("Recall@10", "higher"),
    "recall@50": Metric("Recall@50", "higher"),
    "map": Metric("Mean average precision", "higher"),
    "mrr": Metric("Mean reciprocal rank", "higher"),
    "coverage@10": Metric("Share of candidates among the first 10 of any list", "higher"),
}


def metric_of(name: str) -> Metric:
    """Return the metric with this name; of one that is not among ``METRICS``, lower values are better."""
    return METRICS.get(name, Metric(name, "lower"))


MAIN_METRICS = ("rmse", "auroc", "log_score", "ndcg@10")  # pictures and the command line show these first


class Answers(NamedTuple):
    """Targets that are the levels of categories: all levels of one cell are one answer."""

    features: Ints  # (targets,): the number of the feature of each target
    numbers: Ints  # (targets,): the number of the answer of each target; −1 if it is not a level

    @classmethod
    def of(cls, features: Ints, rows: Ints, is_level: NDArray[np.bool_]) -> Answers:
        """Return the targets of these ``features`` and ``rows`` (targets,) with the numbers of answers."""
        keys = features.astype(np.int64) * (int(rows.max(initial=0)) + 1) + rows
        return cls(features, np.where(is_level, np.unique(keys, return_inverse=True)[1], -1))


class Score(NamedTuple):
    """The value of a metric, and the number of features and targets it was computed from."""

    value: float
    features: int
    targets: int


def score(
    truth: Floats,
    mean: Floats,
    lines: Ints,
    kinds: Ints,
    distance: Floats | None = None,
    ranking: Floats | None = None,
    weights: Floats | None = None,
    answers: Answers | None = None,
) -> dict[str, Score]:
    """Compute all metrics that are defined for the kinds of the targets.

    Parameters
    ----------
    truth : array of shape (targets,)
        The true values in data units.
    mean : array of shape (targets,)
        The predicted means in data units; for binary targets the probability of 1.
    lines : array of shape (targets,)
        The position of each target's feature among the tested features.
    kinds : array of shape (targets,)
        The kind of each target, a ``KindType``.
    distance : array of shape (targets,), optional
        The distances of the true numbers from the predicted ones in predicted standard deviations, to compute
        the coverage of the 90 % interval.
    ranking : array of shape (targets,), optional
        The scores that AUROC compares, by default ``mean``. The benchmark passes uncalibrated probabilities,
        so that calibration does not change rankings.
    weights : array of shape (targets,), optional
        The weights of the targets in all averages, by default 1. Averages over features have equal weights.
    answers : Answers, optional
        The targets that are levels of categories. By default there are none.

    Returns
    -------
    dict
        By name (see ``METRICS``), a ``Score``. Binary targets have AUROC, log-loss and calibration error;
        categories have the log score and accuracy of answers; the others have RMSE, MAE and coverage, except
        clicks, which only rankings can score. Undefined metrics, such as the AUROC of ones only, are left
        out.

    Examples
    --------
    >>> scores = score(np.array([1.0, 5.0]), np.array([2.0, 4.0]), np.array([0, 0]), np.array([1, 1]))
    >>> scores["rmse"]
    Score(value=1.0, features=1, targets=2)
    """
    binary, numeric = kinds == KindType.BINARY, (kinds != KindType.BINARY) & (kinds != KindType.CLICK)
    weights = np.ones(len(truth)) if weights is None else weights
    scores: dict[str, Score] = {}
    if answers is not None and (levels := answers.numbers >= 0).any():
        scores |= _score_answers(
            truth[levels], mean[levels], Answers(*(part[levels] for part in answers)), weights[levels]
        )
        binary = binary & ~levels
    if numeric.any():
        numeric_distance = None if distance is None else distance[numeric]
        scores |= _score_numeric(
            truth[numeric], mean[numeric], lines[numeric], numeric_distance, weights[numeric]
        )
    if binary.any():
        ranking = (mean if ranking is None else ranking)[binary]
        scores |= _score_binary(truth[binary], mean[binary], lines[binary], ranking, weights[binary])
    return {name: value for name, value in scores.items() if np.isfinite(value.value)}


def _score_numeric(
    truth: Floats, mean: Floats, lines: Ints, distance: Floats | None, weights: Floats
) -> dict[str, Score]:
    error = np.abs(truth - mean)
    scores = {
        **_average("rmse", error**2, lines, weights, finish=np.sqrt),
        **_average("mae", error, lines, weights),
    }
    if distance is not None:
        covered = weights[distance <= _HALF_WIDTH].sum() / weights.sum()
        scores["coverage_90"] = Score(float(covered), len(np.unique(lines)), len(truth))
    return scores


def _score_answers(truth: Floats, mean: Floats, answers: Answers, weights: Floats) -> dict[str, Score]:
    """Score the probabilities of the levels of answers, divided by their sum."""
    total = np.bincount(answers.numbers, weights=mean)
    highest = np.zeros(len(total))
    np.maximum.at(highest, answers.numbers, mean)
    observed = truth > 0.5
    number, features, chosen = answers.numbers[observed], answers.features[observed], mean[observed]
    probability = np.clip(chosen / total[number], _TINY, 1)
    correct = (chosen >= highest[number]).astype(np.float64)
    return {
        **_average("log_score", -np.log(probability), features, weights[observed]),
        **_average("accuracy", correct, features, weights[observed]),
    }


def _score_binary(
    truth: Floats, mean: Floats, lines: Ints, ranking: Floats, weights: Floats
) -> dict[str, Score]:
    features, targets = len(np.unique(lines)), len(truth)
    by_feature = auroc(truth, ranking, lines, weights)
    defined = np.isfinite(by_feature)
    pooled = auroc(truth, ranking, np.zeros_like(lines), weights)
    scores = {"auroc": Score(float(pooled[0]), features, targets)}
    if defined.any():
        counts = np.bincount(lines, minlength=len(by_feature))
        scores["auroc_per_feature"] = Score(
            float(by_feature[defined].mean()), int(defined.sum()), int(counts[defined].sum())
        )
    probability = np.clip(np.where(truth > 0.5, mean, 1 - mean), _TINY, 1)  # of the true value
    scores |= _average("log_loss", -np.log(probability), lines, weights)
    scores["ece"] = Score(calibration_error(truth, mean, weights), features, targets)
    return scores


def _average(
    name: str,
    losses: Floats,
    lines: Ints,
    weights: Floats,
    finish: Callable[[Floats], Floats] = np.asarray,
) -> dict[str, Score]:
    """Return the mean loss over all targets, and the average over features of their mean losses."""
    counts = np.bincount(lines, weights=weights)
    present = counts > 0
    weighted = losses * weights
    means = np.bincount(lines, weights=weighted)[present] / counts[present]
    features, targets = int(present.sum()), len(losses)
    return {
        name: Score(float(finish(weighted.sum() / weights.sum())), features, targets),
        f"{name}_per_feature": Score(float(finish(means).mean()), features, targets),
    }


def auroc(truth: Floats, scores: Floats, lines: Ints, weights: Floats | None = None) -> Floats:
    """Return the area under the ROC curve of each line: (lines,); NaN if a line has only one class.

    This is the probability that a 1 has a higher score than a 0, if both are drawn by ``weights`` (n,), which
    are 1 by default. A pair of equal scores counts one half.

    >>> auroc(np.array([0., 1, 0, 1, 1]), np.array([.1, .9, .5, .5, .3]), np.array([0, 0, 1, 1, 1]))
    array([1.  , 0.25])
    """
    order = np.lexsort((scores, lines))
    line, value, positive = lines[order], scores[order], truth[order] > 0.5
    counts = np.ones(len(order)) if weights is None else weights[order]
    starts = np.ones(len(order), dtype=bool)  # of groups of equal scores
    starts[1:] = (line[1:] != line[:-1]) | (value[1:] != value[:-1])
    group = np.cumsum(starts) - 1
    ones, zeros = np.bincount(line, weights=counts * positive), np.bincount(line, weights=counts * ~positive)
    zeros_of_group = np.bincount(group, weights=counts * ~positive)
    before_line = (np.cumsum(zeros) - zeros)[line]
    below = (np.cumsum(zeros_of_group) - zeros_of_group / 2)[group] - before_line  # zeros with lower scores
    with np.errstate(invalid="ignore", divide="ignore"):
        area = np.bincount(line, weights=counts * positive * below) / (ones * zeros)
    return np.where((ones > 0) & (zeros > 0), area, np.nan)


def calibration_error(truth: Floats, mean: Floats, weights: Floats | None = None) -> float:
    """Return the expected calibration error: the mean gap of predicted and true shares of ones.

    The gap is computed in bins of equal width, weighted by their numbers of predictions, or by the sums of
    their ``weights`` (n,).

    >>> round(calibration_error(np.array([1., 1, 0, 0]), np.array([.9, .9, .2, .2])), 3)
    0.15
    """
    bin_index = np.minimum((mean * _BINS).astype(np.int64), _BINS - 1)
    counts = np.ones(len(truth)) if weights is None else weights
    gaps = np.bincount(bin_index, weights=counts * (mean - truth), minlength=_BINS)
    return float(np.abs(gaps).sum() / counts.sum())
