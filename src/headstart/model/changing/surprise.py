"""What to say of observations far outside what a model held possible."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.core.predictive import predict_cells, predict_one
from headstart.core.states import OneState
from headstart.model.changing.single import head_of, modelled_kind, takes_one
from headstart.model.inputs.triples import Triples
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.staleness import Arrived, excess_of
from headstart.model.parts.widening import SURPRISING
from headstart.table import Cells
from headstart.table.kinds import KindType
from headstart.training.calibration import USUAL_LEVEL

_SMALL_SAMPLE = 8.0


class Expected(NamedTuple):
    """What was expected of observations, on the models' scale, in an order of its own."""

    mean: NDArray[np.float64]  # (n,)
    std: NDArray[np.float64]  # (n,): calibrated
    binary: NDArray[np.bool_]  # (n,): whether the value has a logistic link
    order: NDArray[np.int64]  # (n,): of the observations


def surprise(fitted: Fitted, given: Triples) -> tuple[str | None, Arrived]:
    """What to say of observations before they are made, if anything, and how well they were foreseen."""
    if not len(given.values):
        return None, fitted.arrived
    expected = one_expected(fitted, given) if takes_one(fitted, given) else _expected(fitted, given)
    lines = given.places[expected.order]
    kinds = [feature.kind for feature in given.features]
    offset, span = (np.array([getattr(kind, part) for kind in kinds])[lines] for part in ("offset", "span"))
    scaled = (given.values[expected.order] - offset) / span
    excess = excess_of(scaled, expected.mean, expected.std, expected.binary)
    arrived = fitted.arrived.joined(excess)
    if not (np.abs(scaled - expected.mean) > 0.99 * SURPRISING * expected.std).any():
        return None, arrived
    binary = np.array([kind.type == KindType.BINARY for kind in kinds], dtype=bool)
    said = None if binary.all() else _said(fitted, given, expected, offset, span, binary[lines])
    return said, arrived  # of binary ones nothing is said: 0 and 1 are always possible


def _said(
    fitted: Fitted,
    given: Triples,
    expected: Expected,
    offset: NDArray[np.float64],
    span: NDArray[np.float64],
    binary: NDArray[np.bool_],
) -> str | None:
    order = expected.order
    lines, values = given.places[order], given.values[order]
    mean, std = offset + span * expected.mean, span * expected.std
    distance = np.abs(values - mean) / np.maximum(std, np.finfo(float).tiny)
    shots = np.array([max(1, feature.shots) for feature in given.features])
    # Of few values the scale is uncertain, if it is found from them.
    finding = np.array([feature.finds_scale for feature in given.features])
    limit = (SURPRISING * (1 + _SMALL_SAMPLE / shots * finding))[lines]
    excess = np.where(binary, 0.0, distance / limit)
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


@torch.no_grad()
def _expected(fitted: Fitted, given: Triples) -> Expected:
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
    factor = fitted.calibration.factor(shots, kinds)[:, USUAL_LEVEL][cells.lines]
    mean, std = predictive.mean.double().numpy(), (factor * predictive.std).double().numpy()
    return Expected(mean, std, (predictive.kinds == KindType.BINARY).numpy(), order)


def one_expected(fitted: Fitted, given: Triples) -> Expected:
    """The same of a single observation."""
    feature, kind = given.features[0], modelled_kind(fitted, given.features[0])
    activation, *rest = fitted.roster.read_by_heads(given.rows)
    noise, variance = (*(part[0] for part in rest), None, None)[:2]
    state = OneState(activation[:0], activation[:0], activation[0], noise, variance)
    binary = kind == KindType.BINARY
    mean, std = predict_one(head_of(fitted, feature), state, binary=binary)
    factor = fitted.calibration.one_factor(feature.shots, kind)
    return Expected(np.array([mean]), np.array([factor * std]), np.array([binary]), np.zeros(1, np.int64))
