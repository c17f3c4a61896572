"""From row states and heads to a prediction in the data's own units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from headstart.core.predictive import predict_grid
from headstart.core.states import RowStates
from headstart.model.asking.prediction import Prediction
from headstart.model.parts.fitted import Fitted
from headstart.table import Kinds, Names
from headstart.table.kinds import KindType
from headstart.training.calibration import USUAL_LEVEL

_ROWS_AT_ONCE = 1024


@torch.no_grad()
def predict_features(fitted: Fitted, rows: Names, states: RowStates, names: Sequence[Any]) -> Prediction:
    """Predict the features of these names at rows of these states."""
    features, heads = fitted.catalogue.take(names)
    kinds = Kinds([feature.kind for feature in features])
    types = fitted.kinds_of(features)
    shots = torch.tensor([feature.shots for feature in features], dtype=torch.int64)
    factors = fitted.calibration.factor(shots, types).double()
    factor = factors[:, USUAL_LEVEL]
    mean, std = np.empty((2, len(rows), len(features)))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        predictive = predict_grid(heads, states.take(part), types, fitted.knowledge.likelihood)
        mean[part] = predictive.mean.float().numpy()
        std[part] = (factor * predictive.std.float()).float().numpy()
    std *= kinds.spans
    binary = kinds.types == KindType.BINARY
    if binary.any():
        chances = torch.from_numpy(mean[:, binary])
        mean[:, binary] = fitted.calibration.probability(chances, shots[torch.from_numpy(binary)]).numpy()
    std[:, binary] = np.sqrt(mean[:, binary] * (1 - mean[:, binary]))
    mean = kinds.unscale(mean, np.arange(len(kinds)))
    lows, highs = (np.array([getattr(kind, end) for kind in kinds]) for end in ("low", "high"))
    columns = Names([feature.name for feature in features], "feature")
    reach = (factors / factor[:, None]).numpy()
    return Prediction(rows, columns, kinds, np.clip(mean, lows, highs, out=mean), std, reach)
