"""What to say of observations far outside what a model held possible."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.model.catalogue import Feature
from headstart.model.fitted import Fitted
from headstart.model.predicting import predict_features
from headstart.model.widening import SURPRISING
from headstart.table.kinds import KindType

_SMALL_SAMPLE = 8.0


def surprise(
    fitted: Fitted, feature: Feature, rows: NDArray[np.int64], values: NDArray[np.float64]
) -> str | None:
    """What to say of observations before they are made, or None if they are within what was expected."""
    if len(rows) == 0 or feature.kind.type == KindType.BINARY:  # 0 and 1 are always possible
        return None
    names = fitted.rows.take(rows)
    states = fitted.states.take(torch.from_numpy(rows))
    expected = predict_features(fitted, names, states, [feature.name])
    mean, std = expected.mean[:, 0], expected.std[:, 0]
    distance = np.abs(values - mean) / np.maximum(std, np.finfo(float).tiny)
    worst = int(distance.argmax())
    # Of few values the scale is uncertain, if it is found from them.
    limit = SURPRISING * (1 + _SMALL_SAMPLE / max(1, feature.shots) * feature.finds_scale)
    if distance[worst] <= limit:
        return None
    count = int((distance > limit).sum())
    others = f", and {count - 1} more like it" if count > 1 else ""
    return (
        f"feature {feature.name!r}: the value {values[worst]:g} at row {names[worst]!r} lies "
        f"{distance[worst]:.3g} standard deviations from what was expected ({mean[worst]:.4g} ± "
        f"{std[worst]:.2g}){others}; taken all the same: if it is a mistake, observe the right value"
    )
