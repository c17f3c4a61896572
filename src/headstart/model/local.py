"""The local part of predictions: the weights of features, and the residuals of rows.

A prediction is moved by Σ_j a_j·R_ij (``core.neighbours``). In the terms of ``updates``, the residuals R_ij
by which row i is predicted are those of its *current* state and all its observations of features of the
backbone. The weights a_j of a new feature are computed from the residuals of the *references* of the rows in
its context, as its head is computed from their reference states. So they depend on the observations of the
model and their order of arrival only. The predictions that residuals are the errors of are those of the
backbone's heads, which never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.core.devices import CPU, move
from headstart.core.neighbours import LocalPart, LocalStrengths, LocalWeights, neighbours_of
from headstart.core.predictive import predict_cells
from headstart.core.types import RowStates
from headstart.model.features import Feature
from headstart.model.observations import ObservationList, ObservationLists
from headstart.model.row_states import backbone_cells, observations_of_row, row_reference_part
from headstart.model.rows import Version
from headstart.model.state import ModelState
from headstart.table import Cells

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def has_local_part(model: ModelState, feature: Feature) -> bool:
    """Return whether the predictions of a ``feature`` have a local part."""
    return model.local is not None and (not feature.in_backbone or model.known_weights is not None)


def local_part(
    model: ModelState, features: Sequence[Feature | None], slots: NDArray[np.int64] | None = None
) -> LocalPart | None:
    """Return the local part of the predictions of ``features``; None if none has one.

    The heads of the features are in ``slots``, by default in the order of the features; a feature is None
    where a slot is not in use.
    """
    if model.local is None:
        return None
    return model.local_cache.last_part(
        features, model.knowledge, lambda: _compute_local_part(model, features, slots)
    )


def _compute_local_part(
    model: ModelState, features: Sequence[Feature | None], slots: NDArray[np.int64] | None
) -> LocalPart | None:
    cached = model.local_cache.weights(model.feature_store.arena, model.knowledge)
    positions, weights, known = [], [], []
    for position, feature in enumerate(features):
        if feature is None or not has_local_part(model, feature):
            continue
        slot = position if slots is None else int(slots[position])
        if feature.in_backbone:
            of_feature = _weights_of_known(model, feature)
        elif slot in cached:
            of_feature = cached[slot]
        else:
            of_feature = cached[slot] = _weights_of_new(model, feature, slot)
        positions.append(position)
        weights.append(of_feature)
        known.append(feature.in_backbone)
    if not positions:
        return None
    stacked, strengths = neighbours_of(model.knowledge).stack(weights), cast(LocalStrengths, model.local)
    return LocalPart(len(features), np.array(positions), stacked, np.array(known), strengths)


def _weights_of_known(model: ModelState, feature: Feature) -> LocalWeights:
    """Return the weights of a feature of the backbone."""
    weights = cast("csr_array", model.known_weights)
    number = model.feature_store.number(feature.name)
    span = slice(*weights.indptr[number : number + 2])
    return LocalWeights(weights.indices[span], weights.data[span])


@torch.no_grad()
def _weights_of_new(model: ModelState, feature: Feature, slot: int) -> LocalWeights:
    """Compute the weights of one new feature from its context and its head in ``slot``.

    Features are computed one by one, so that the result does not depend on others.
    """
    batch = model.batch_of([feature])
    rows, index = np.unique(batch.cells.index.numpy(), return_inverse=True)
    cells = replace(batch.cells, index=torch.from_numpy(index), width=len(rows))
    states = model.row_store.take(rows, "reference").to(torch.float64)
    heads = model.feature_store.heads_at(np.array([slot])).to(torch.float64)
    predictive = predict_cells(heads, states, cells, batch.kinds, model.knowledge.likelihood)
    residuals, observed = predictive.residuals(cells.values.double()), reference_residuals(model, rows)
    (weights,) = neighbours_of(model.knowledge).weights_of(
        replace(batch, cells=cells), residuals, observed, cast(LocalStrengths, model.local)
    )
    return weights


def row_residuals(model: ModelState, states: RowStates) -> csr_array | None:
    """Return the residuals by which rows with these ``states`` are predicted: (rows, known features).

    None if the rows are neither in the model nor given with their observations, or if it has no local part.
    """
    if model.local is None or states.rows is None:
        return None
    if isinstance(states.rows, Cells):
        states = move(states, CPU)
        return neighbours_of(model.knowledge).residuals_at(states.to(torch.float64), cast(Cells, states.rows))
    rows = states.rows.cpu().numpy()
    changed = {row: observations_of_row(model, row) for row in model.row_store.observed_among(rows)}
    return _residuals_of_rows(model, rows, changed, "current")


def reference_residuals(model: ModelState, rows: NDArray[np.int64]) -> csr_array:
    """Return the residuals of the references of ``rows``: (rows, known features)."""
    changed = {}
    for row in model.row_store.observed_among(rows):
        part = row_reference_part(model, row, observations_of_row(model, row))
        if part is not None:
            changed[row] = part
    return _residuals_of_rows(model, rows, changed, "reference")


def _residuals_of_rows(
    model: ModelState, rows: NDArray[np.int64], changed: Mapping[int, ObservationList], version: Version
) -> csr_array:
    """Return the residuals of ``rows`` (n,), which may repeat: (n, known features).

    Those of a row in ``changed`` are the residuals of its observations there, from the ``version`` of its
    state; those of other rows are the residuals of the table.
    """
    from scipy.sparse import vstack

    neighbours = neighbours_of(model.knowledge)
    if not changed:
        return neighbours.residuals[rows]
    positions = np.array(sorted(changed), dtype=np.int64)
    states = model.row_store.take(positions, version).to(torch.float64)
    cells = backbone_cells(model, ObservationLists.of([changed[row] for row in positions.tolist()]))
    changed_residuals = neighbours.residuals_at(states, cells)
    is_changed = np.isin(rows, positions)
    of_table = neighbours.residuals[rows[~is_changed]]
    of_changed = changed_residuals[np.searchsorted(positions, rows[is_changed])]
    order = np.argsort(np.argsort(is_changed, kind="stable"))
    return vstack([of_table, of_changed], format="csr")[order]
