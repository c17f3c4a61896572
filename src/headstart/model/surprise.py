"""What to say of observations far outside what a model held possible."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.predictive import Predictive, predict_cells
from headstart.model.fitted import Fitted
from headstart.model.staleness import Arrived, excess_of
from headstart.model.triples import Triples
from headstart.model.widening import SURPRISING
from headstart.table import Cells
from headstart.table.kinds import KindType
from headstart.training.calibration import USUAL_LEVEL

_SMALL_SAMPLE = 8.0


@torch.no_grad()
def surprise(fitted: Fitted, given: Triples) -> tuple[str | None, Arrived]:
    """What to say of observations before they are made, if anything, and how well they were foreseen."""
    if not len(given.values):
        return None, fitted.arrived
    predictive, factor, order = _expected(fitted, given)
    kinds = [feature.kind for feature in given.features]
    offset, span = (np.array([getattr(kind, part) for kind in kinds])[given.places[order]]
                    for part in ("offset", "span"))  # fmt: skip
    scaled = torch.from_numpy((given.values[order] - offset) / span)
    arrived = fitted.arrived.joined(excess_of(predictive, scaled, factor))
    binary = np.array([feature.kind.type == KindType.BINARY for feature in given.features], dtype=bool)
    said = None if binary.all() else _said(fitted, given, predictive, factor, order, binary)
    return said, arrived  # of binary ones nothing is said: 0 and 1 are always possible


def _said(
    fitted: Fitted,
    given: Triples,
    predictive: Predictive,
    factor: Tensor,
    order: NDArray[np.int64],
    binary: NDArray[np.bool_],
) -> str | None:
    lines = given.places[order]
    kinds = [feature.kind for feature in given.features]
    offset, span = (np.array([getattr(kind, part) for kind in kinds])[lines] for part in ("offset", "span"))
    values = given.values[order]
    mean, std = offset + span * predictive.mean.numpy(), span * (factor * predictive.std).numpy()
    distance = np.abs(values - mean) / np.maximum(std, np.finfo(float).tiny)
    shots = np.array([max(1, feature.shots) for feature in given.features])
    # Of few values the scale is uncertain, if it is found from them.
    finding = np.array([feature.finds_scale for feature in given.features])
    limit = (SURPRISING * (1 + _SMALL_SAMPLE / shots * finding))[lines]
    excess = np.where(binary[lines], 0.0, distance / limit)
    worst = int(excess.argmax())
    if excess[worst] <= 1:
        return None
    count = int((excess > 1).sum())
    others = f", and {count - 1} more like it" if count > 1 else ""
    return (
        f"feature {given.features[lines[worst]].name!r}: the value {values[worst]:g} at row "
        f"{fitted.rows[given.rows[order][worst]]!r} lies {distance[worst]:.3g} standard deviations from what "
        f"was expected ({mean[worst]:.4g} ± {std[worst]:.2g}){others}; taken all the same: if it is a "
        "mistake, observe the right value"
    )


def _expected(fitted: Fitted, given: Triples) -> tuple[Predictive, Tensor, NDArray[np.int64]]:
    """The predictive of the observations, the factors of their calibration, and their order in both."""
    features, heads = fitted.catalogue.take([feature.name for feature in given.features])
    kinds = fitted.kinds_of(features)
    rows, inverse = np.unique(given.rows, return_inverse=True)
    order = np.argsort(given.places * len(rows) + inverse)
    cells = Cells.from_pairs(
        torch.from_numpy(given.places),
        torch.from_numpy(inverse),
        torch.from_numpy(given.values),
        len(features),
        len(rows),
    )
    predictive = predict_cells(heads, fitted.roster.take(rows), cells, kinds, fitted.knowledge.likelihood)
    shots = torch.tensor([feature.shots for feature in features], dtype=torch.int64)
    return predictive, fitted.calibration.factor(shots, kinds)[:, USUAL_LEVEL][cells.lines], order
