"""From row states and heads to a prediction in the data's own units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.core.devices import moved
from headstart.core.predictive import predict_cells, predict_grid
from headstart.core.states import RowStates
from headstart.model.asking.prediction import Prediction
from headstart.model.asking.units import Numbers, Units, interval
from headstart.model.parts.fitted import Fitted
from headstart.table import Cells, Names

CPU = torch.device("cpu")
_ROWS_AT_ONCE = 1024
_HEADS_AT_ONCE = 128  # whose cells are computed together, so that memory stays small


@torch.no_grad()
def predict_features(
    fitted: Fitted, rows: Names, states: RowStates, names: Sequence[Any], device: torch.device = CPU
) -> Prediction:
    """Predict the features of these names at rows of these states; the device computes."""
    features, heads = fitted.catalogue.take(names)
    units, types = Units.of(fitted, features), fitted.kinds_of(features).to(device)
    which, heads = np.arange(len(features)), moved(heads, device)
    mean, std = np.empty((2, len(rows), len(features)))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        some = moved(states.take(part), device)
        predictive = predict_grid(heads, some, types, fitted.knowledge.likelihood)
        mean[part], std[part] = units.applied(predictive.mean, predictive.std, which)
    columns = Names([feature.name for feature in features], "feature")
    return Prediction(rows, columns, units.kinds, mean, std, units.reach)


@torch.no_grad()
def predict_pairs(
    fitted: Fitted,
    rows: NDArray[np.int64],
    names: Sequence[Any],
    which: NDArray[np.int64],
    level: float,
    device: torch.device = CPU,
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Predict single cells, as ``predict_features`` does, without the other cells of their rows.

    Cell i is that of the row at the position ``rows[i]`` and of the feature ``names[which[i]]``. Returned
    are the mean, the standard deviation, and the low and high end of the interval: four of (n,).
    """
    mean, std, low, high = found = np.empty((4, len(rows)))
    order = np.argsort(which, kind="stable")
    starts = np.searchsorted(which[order], np.arange(len(names) + 1))
    for first in range(0, len(names), _HEADS_AT_ONCE):
        last = min(first + _HEADS_AT_ONCE, len(names))
        here = order[starts[first] : starts[last]]
        features, heads = fitted.catalogue.take(names[first:last])
        own, index = np.unique(rows[here], return_inverse=True)
        indptr, at = (torch.from_numpy(each).to(device) for each in (starts[first : last + 1], index))
        cells = Cells(indptr - indptr[0], at, torch.zeros(len(here), device=device), len(own))
        heads = moved(heads.to(torch.float64), device)
        states = moved(fitted.roster.take(own).to(torch.float64), device)
        types, likelihood = fitted.kinds_of(features).to(device), fitted.knowledge.likelihood
        predictive = predict_cells(heads, states, cells, types, likelihood)
        units, column = Units.of(fitted, features), which[here] - first
        mean[here], std[here] = units.applied(predictive.mean, predictive.std, column)
        low[here], high[here] = interval(mean[here], std[here], units.kinds, units.reach, level, column)
    return found[0], found[1], found[2], found[3]
