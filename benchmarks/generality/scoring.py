"""Score a fitted method on new features, held-out rows, and both at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from generality.methods.protocol import Method, Said
from generality.ordered import Floats, Ints
from generality.trial import BOTH, Trial
from headstart import Table
from headstart.evaluate.metrics import score
from headstart.table.kinds import KindType

KEPT = ("rmse", "rmse_per_feature", "auroc", "auroc_per_feature", "log_loss", "ece")

LEAST = {"rmse": 5, "auroc": 8}  # features; of fewer, a score would be chance
_GOES_WITH = {"rmse": ("rmse",), "auroc": ("auroc", "log_loss", "ece")}


def scored(method: Method, trial: Trial, rows: bool = True) -> Iterator[dict[str, Any]]:
    """Score a fitted method at every number of shots; yield dicts with test, shots, seconds and scores."""
    cells = trial.new_cells
    at = cells.targets
    for shots in trial.shots:
        start = time.perf_counter()
        adapted = method.adapt(trial.context(shots))
        said = method.predict(adapted, cells.feature[at], cells.row[at])
        taken = time.perf_counter() - start
        scores = scores_of(trial, said, cells.value[at], cells.feature[at], trial.new)
        if trial.own_scales and shots < 2:  # nobody can know where such a feature's values lie
            scores = {name: found for name, found in scores.items() if not name.startswith(("rmse", "cov"))}
        yield {"test": "features", "shots": shots, "seconds": taken, "scores": scores}
    if rows and trial.row_cells is not None:
        yield from _of_rows(method, trial)


def _of_rows(method: Method, trial: Trial) -> Iterator[dict[str, Any]]:
    cells, both = trial.row_cells, trial.both_cells
    assert cells is not None
    at = cells.targets
    for shots in cells.shots:
        seen = cells.seen(shots)
        start = time.perf_counter()
        folded = method.fold(cells.feature[seen], cells.row[seen], cells.value[seen])
        if folded is None:
            return
        said = method.predict_rows(folded, None, cells.feature[at], cells.row[at])
        taken = time.perf_counter() - start
        scores = scores_of(trial, said, cells.value[at], cells.feature[at], trial.known)
        yield {"test": "rows", "shots": shots, "seconds": taken, "scores": scores}
        if shots == BOTH and both is not None and BOTH in trial.shots:
            adapted = method.adapt(trial.context(BOTH))
            tested = cells.tested[both.row] & trial.new_cells.tested[both.feature]
            feature, row, value = both.feature[tested], both.row[tested], both.value[tested]
            if len(value) == 0:
                continue
            said = method.predict_rows(folded, adapted, feature, row)
            scores = scores_of(trial, said, value, feature, trial.new)
            yield {"test": "both", "shots": shots, "seconds": 0.0, "scores": scores}


def scores_of(trial: Trial, said: Said, truth: Floats, feature: Ints, table: Table) -> dict[str, float]:
    """Compute all scores of some cells of ``trial.known`` or ``trial.new``.

    Errors are in data units or, where features have scales of their own, in each one's standard
    deviation. Coverage is computed for numbers only; for 0/1 it is not informative.
    """
    if not np.isfinite(said.mean).all():
        raise FloatingPointError("some predictions are not finite")
    deviation = trial.deviation_new if table is trial.new else trial.deviation_known
    kinds = table.kinds.types[feature]
    number = kinds != KindType.BINARY
    unit = np.where(number & trial.own_scales, deviation[feature], 1.0)
    found = score(truth / unit, said.mean / unit, feature, kinds)
    scores = {name: found[name].value for name in KEPT if name in found}
    for name, of in (("rmse", number), ("auroc", ~number)):
        if len(np.unique(feature[of])) < LEAST[name]:
            scores = {
                known: value for known, value in scores.items() if not known.startswith(_GOES_WITH[name])
            }
    if said.intervals is not None and "rmse" in scores:
        for level, (low, high) in said.intervals.items():
            slack = 1e-9 * unit[number]
            inside = (truth[number] >= low[number] - slack) & (truth[number] <= high[number] + slack)
            scores[f"coverage_{round(100 * level)}"] = float(inside.mean())
    return {name: round(float(value), 6) for name, value in scores.items()}
