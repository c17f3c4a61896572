"""How good predictions are: errors in data units, ranking, calibration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.table.kinds import KindType

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COVERED = 0.9
_HALF_WIDTH = 1.6448536269514722  # standard normal quantile of (1 + COVERED) / 2
_BINS = 15
_TINY = 1e-7  # keeps the log-loss of a certain but wrong prediction finite


@dataclass(frozen=True)
class Metric:
    """How a metric is called, and which way is better."""

    label: str
    better: Literal["lower", "higher", "near"]  # near: the closer to COVERED the better

    def best(self, values: Floats) -> int:
        """Position of the best of these values; NaN is never best."""
        if self.better == "higher":
            return int(np.nanargmax(values))
        return int(np.nanargmin(np.abs(values - COVERED) if self.better == "near" else values))


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
}


class Score(NamedTuple):
    """A metric's value, and how many features and targets it was computed on."""

    value: float
    features: int
    targets: int


def score(
    truth: Floats, mean: Floats, lines: Ints, kinds: Ints, std: Floats | None = None
) -> dict[str, Score]:
    """Compute every metric that fits the kinds at hand; all arrays hold an entry a target.

    ``lines`` says which feature a target belongs to, ``kinds`` its kind. Binary targets get AUROC,
    log-loss and calibration error; the others RMSE and MAE in data units and, if a predictive
    ``std`` is given, the coverage of the 90 % interval.
    """
    binary = kinds == KindType.BINARY
    scores: dict[str, Score] = {}
    if not binary.all():
        of = ~binary
        scores |= _numeric(truth[of], mean[of], lines[of], None if std is None else std[of])
    if binary.any():
        scores |= _binary(truth[binary], mean[binary], lines[binary])
    return {name: found for name, found in scores.items() if np.isfinite(found.value)}


def _numeric(truth: Floats, mean: Floats, lines: Ints, std: Floats | None) -> dict[str, Score]:
    error = np.abs(truth - mean)
    scores = {
        **_both("rmse", error**2, lines, finish=np.sqrt),
        **_both("mae", error, lines),
    }
    if std is not None:
        covered = error <= _HALF_WIDTH * std
        scores["coverage_90"] = Score(float(covered.mean()), len(np.unique(lines)), len(truth))
    return scores


def _binary(truth: Floats, mean: Floats, lines: Ints) -> dict[str, Score]:
    features, targets = len(np.unique(lines)), len(truth)
    each = auroc(truth, mean, lines)
    ranked = np.isfinite(each)
    pooled = auroc(truth, mean, np.zeros_like(lines))
    scores = {"auroc": Score(float(pooled[0]), features, targets)}
    if ranked.any():
        tested = int(np.bincount(lines, minlength=len(each))[ranked].sum())
        scores["auroc_per_feature"] = Score(float(each[ranked].mean()), int(ranked.sum()), tested)
    sure = np.clip(np.where(truth > 0.5, mean, 1 - mean), _TINY, 1)
    scores |= _both("log_loss", -np.log(sure), lines)
    scores["ece"] = Score(calibration_error(truth, mean), features, targets)
    return scores


def _both(
    name: str, losses: Floats, lines: Ints, finish: Callable[[Floats], Floats] = np.asarray
) -> dict[str, Score]:
    """A mean loss pooled over cells, and the average over features of each one's mean loss."""
    counts = np.bincount(lines)
    present = counts > 0
    means = np.bincount(lines, weights=losses)[present] / counts[present]
    features, targets = int(present.sum()), len(losses)
    return {
        name: Score(float(finish(losses.mean())), features, targets),
        f"{name}_per_feature": Score(float(finish(means).mean()), features, targets),
    }


def auroc(truth: Floats, scores: Floats, lines: Ints) -> Floats:
    """Area under the ROC curve of each line: (lines,); NaN where only one class occurs.

    The chance that a 1 is ranked above a 0, from the ranks within each line; ties share a rank.

    >>> auroc(np.array([0., 1, 0, 1, 1]), np.array([.1, .9, .5, .5, .3]), np.array([0, 0, 1, 1, 1]))
    array([1.  , 0.25])
    """
    order = np.lexsort((scores, lines))
    line, value, positive = lines[order], scores[order], truth[order] > 0.5
    starts = np.ones(len(order), dtype=bool)  # of runs of ties
    starts[1:] = (line[1:] != line[:-1]) | (value[1:] != value[:-1])
    first = np.flatnonzero(starts)
    lengths = np.diff(np.append(first, len(order)))
    counts = np.bincount(line)
    before = (np.cumsum(counts) - counts)[line]
    rank = np.repeat(first + (lengths + 1) / 2, lengths) - before  # 1, 2, … within the line
    ones = np.bincount(line, weights=positive)
    zeros = counts - ones
    with np.errstate(invalid="ignore", divide="ignore"):
        area = (np.bincount(line, weights=rank * positive) - ones * (ones + 1) / 2) / (ones * zeros)
    return np.where((ones > 0) & (zeros > 0), area, np.nan)


def calibration_error(truth: Floats, mean: Floats, bins: int = _BINS) -> float:
    """Expected calibration error: how far predicted and true shares of ones lie apart, bin by bin.

    Bins are equally wide and weighted by how many predictions fall into them.

    >>> round(calibration_error(np.array([1., 1, 0, 0]), np.array([.9, .9, .2, .2])), 3)
    0.15
    """
    where = np.minimum((mean * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(where, weights=mean - truth, minlength=bins)
    return float(np.abs(gaps).sum() / len(truth))
