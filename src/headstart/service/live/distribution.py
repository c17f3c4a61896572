"""How the predictions of a feature are distributed over rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from headstart.model.asking.predicting import predict_features
from headstart.model.asking.prediction import Prediction
from headstart.model.parts.fitted import Fitted
from headstart.service.live.state import LiveState
from headstart.table import Names

_MOST_ROWS = 2000  # over which predictions are averaged or counted
_BINS = 30


def predicted_over_rows(state: LiveState, fitted: Fitted, name: str) -> Prediction:
    """Predict a feature for all rows, or for so many of them, evenly spaced.

    Parameters
    ----------
    state : LiveState
        The model; its rows are predicted.
    fitted : Fitted
        The model that has the feature.
    name : str
        The feature.

    Returns
    -------
    Prediction
        Of rows × 1.
    """
    count = len(fitted.rows)
    rows = np.unique(np.linspace(0, count - 1, min(count, _MOST_ROWS)).round().astype(np.int64))
    names = Names([fitted.rows[row] for row in rows.tolist()], "row")
    return predict_features(fitted, names, state.shown.roster.take(rows), [name])


def distribution(state: LiveState, name: str) -> dict[str, Any]:
    """Count the predicted means of a feature of a live model over its rows.

    Returns
    -------
    dict
        The number of rows, the mean over them of the predicted means and of the standard deviations, the
        standard deviation of the means (``spread``), and the counts of the means between ``edges``.
    """
    predicted = predicted_over_rows(state, state.shown, name)
    means = predicted.mean.ravel()
    kind = state.shown.catalogue[name].kind
    # A kind with bounds has the same bins always, so that two distributions can be compared bin by bin.
    bounds = None if kind.low is None or kind.high is None else (float(kind.low), float(kind.high))
    counts, edges = np.histogram(np.clip(means, *bounds) if bounds else means, _BINS, bounds)
    return {
        "rows": len(means),
        "mean": float(means.mean()),
        "std": float(predicted.std.mean()),
        "spread": float(means.std()),
        "edges": edges.tolist(),
        "counts": counts.tolist(),
    }
