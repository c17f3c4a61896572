"""Compute the states of rows from their observations: many at once, or one row without the cost of batching.

``updates`` calls these functions for rows of the model, ``inputs`` for rows that are passed to a prediction,
and ``explanation`` reads the inputs of one state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.types import Heads, OneRow, OneState, RowPrior, RowStates
from headstart.errors import NumericalError
from headstart.linalg.array_ops import Array, LinAlgError
from headstart.linalg.packed import last_rows
from headstart.model.observations import FITTED, ObservationList, ObservationLists, reference_part
from headstart.model.rows import Version
from headstart.model.state import ModelState, are_finite
from headstart.table import Cells
from headstart.table.cells import offsets

_AT_ONCE = 2**16  # observations whose heads are reduced to the backbone's activations at a time


def observations_of_row(model: ModelState, row: int) -> ObservationList:
    """Return all observations of a row."""
    observations = model.row_store.observations(row)
    if observations is not None:
        return observations
    if row >= model.fitted_rows:
        return ObservationList.empty(timed=model.clock is not None)
    observations = fitted_observations(model, row)
    known = model.feature_store.slots_by_number(observations.keys) >= 0
    return observations if known.all() else observations.take(known)


def fitted_observations(model: ModelState, row: int) -> ObservationList:
    """Return the observations of a row in the fitted table, including features that were removed since."""
    cells = model.knowledge.cells
    begin, end = cells.indptr.numpy()[row : row + 2]
    numbers, values = cells.index.numpy()[begin:end].astype(np.int64), cells.values.numpy()[begin:end]
    scales = model.feature_store.scales(numbers)
    times = None if model.clock is None else model.clock.table[begin:end]
    weights = None if model.table_weights is None else model.table_weights[begin:end]
    return ObservationList(numbers, scales["offset"] + scales["span"] * values, None, times, weights)


def given_values(model: ModelState, row: int, observations: ObservationList) -> NDArray[np.float64]:
    """Return the numbers of a row's ``observations`` as given, in place of winsorised outliers: (n,)."""
    if model.table_values is None or row >= model.fitted_rows:
        return observations.values
    cells = model.knowledge.cells
    begin, end = cells.indptr.numpy()[row : row + 2]
    arrivals = observations.arrivals
    fitted = np.ones(len(observations.keys), bool) if arrivals is None else arrivals == FITTED
    at = cells.index.numpy()[begin:end].searchsorted(observations.keys[fitted])
    values = observations.values.copy()
    values[fitted] = model.table_values[begin:end][at]
    return values


def row_reference_part(model: ModelState, row: int, observations: ObservationList) -> ObservationList | None:
    """Return the observations that the reference of a row uses; None if it is that of the fit."""
    end = int(observations.keys.searchsorted(len(model.backbone_features)))
    part = observations if end == len(observations.keys) else observations.take(slice(0, end))
    return reference_part(part, fitted=row < model.fitted_rows)


def reads_any_feature(model: ModelState) -> bool:
    """Return whether states of rows can also depend on features added after fit."""
    return model.backbone.reads_any_head and model.adapter.gives_uncertainty


@torch.no_grad()
def compute_row_states(
    model: ModelState,
    lists: ObservationLists,
    names: Sequence[str],
    metadata: NDArray[np.float32] | None = None,
    version: Version = "reference",
) -> RowStates:
    """Compute the states of rows from their observations and their encoded ``metadata`` (rows, width).

    If the model has a local part, the states have the observations of the backbone's features as ``rows``.
    Each observation is read by the reference of its feature, or by the head of the backbone if ``version`` is
    "fit". Observations of removed features, and of features that the backbone cannot read, are left out.
    ``names`` are used in error messages.
    """
    by_any = reads_any_feature(model)
    read = model.feature_store.slots_by_number(lists.keys) >= 0
    if not by_any or version == "fit":
        read &= lists.keys < len(model.backbone_features)
    cells, slots, scales = _scaled_cells(model, lists, read)
    if version == "fit":
        scales["as_fitted"] = True
    try:
        if by_any:
            states = _states_by_heads(model, cells, slots, scales, _row_priors(model, len(names), metadata))
        else:
            states = model.backbone.states(cells)
        states = model.adapter.refine(states)
        finite = are_finite(states)
    except LinAlgError:
        finite = torch.zeros(len(names), dtype=torch.bool)
    if not bool(finite.all()):
        sizes = torch.zeros(len(names)).index_add_(0, cells.lines, cells.values.abs())
        raise extreme_row_error(names[int(torch.where(finite, -1.0, sizes).argmax())])
    return states if model.local is None else states.at(_of_backbone(model, cells))


def extreme_row_error(name: str) -> NumericalError:
    """Return the error for a row whose numbers are too large to compute with."""
    return NumericalError(
        f"row {name!r}: its observations are so extreme that nothing can be computed from them; "
        "correct them or leave them out"
    )


def has_single_forms(model: ModelState) -> bool:
    """Return whether backbone and adapter have faster forms for a single row or feature."""
    return model.adapter.adapts_one and model.backbone.reads_single_rows


def compute_row_state(
    model: ModelState, row: int, observations: ObservationList, version: Version = "reference"
) -> OneState:
    """Compute the state of one known row as ``compute_row_states`` does, if ``has_single_forms``."""
    try:
        one, known = _one_row(model, observations, version)
        state = model.backbone.state_of_one(one, known, row_prior_of(model, row))
        state = model.adapter.refine_one(state)
        finite = math.isfinite(state.code.sum() + state.activation.sum() + (state.noise or 0.0))
    except LinAlgError:
        finite = False
    if not finite:
        raise extreme_row_error(model.rows[row])
    return state


def _one_row(model: ModelState, observations: ObservationList, version: Version) -> tuple[OneRow, Array]:
    """Return a row's observations with the heads that read them, and its features in the backbone."""
    numbers, values = observations.keys, observations.values
    weights, times = observations.weights, observations.times
    slots, scales = model.feature_store.reference_slots(numbers), model.feature_store.scales(numbers)
    read = slots >= 0
    if version == "fit":
        scales["as_fitted"] = True
        read &= numbers < len(model.backbone_features)
    if not read.all():
        numbers, values, slots, scales = numbers[read], values[read], slots[read], scales[read]
        weights, times = (None if part is None else part[read] for part in (weights, times))
    scaled = ((values - scales["offset"]) / scales["span"]).astype(np.float32).astype(np.float64)
    kinds = model.modelled_types(scales["type"])
    weights = model.weigh(weights, times)
    in_backbone, as_fitted = numbers < len(model.backbone_features), scales["as_fitted"]
    known = numbers[in_backbone]
    fitted_heads = model.knowledge.head_arrays
    if as_fitted.all():
        heads = [part.take(numbers, axis=0) for part in fitted_heads]
        return _join_row(scaled, heads, kinds, weights), known
    unchanged, changed = np.flatnonzero(as_fitted), np.flatnonzero(~as_fitted)
    others = model.feature_store.heads_at(slots[changed]).dense()
    at, latent = np.arange(len(changed)), model.backbone.activation_size
    if model.row_store.width > latent:
        heads = [part.take(known, axis=0) for part in fitted_heads]
        by_backbone = _join_row(
            scaled[in_backbone], heads, kinds[in_backbone], None if weights is None else weights[in_backbone]
        )
        state = model.adapter.refine_one(model.backbone.state_of_one(by_backbone, known))
        learned = torch.from_numpy(state.activation[latent:]).float().expand(len(at), -1)
        others = _reduce_heads(others, learned, latent)
    heads = [
        _gather_two(first, numbers[unchanged], second.numpy(), at)
        for first, second in zip(fitted_heads, others.parts(), strict=True)
    ]
    order = np.concatenate([unchanged, changed])
    return _join_row(scaled[order], heads, kinds[order], None if weights is None else weights[order]), known


def _join_row(values: Array, heads: Sequence[Array], kinds: Array, weights: Array | None) -> OneRow:
    """Return the observations of one row with the parts of their ``heads``."""
    weight, bias, covariance, noise = heads
    means = np.empty((len(bias), weight.shape[1] + 1))
    means[:, :-1], means[:, -1] = weight, bias
    return OneRow(values, means, covariance, noise, kinds, weights)


def _gather_two(first: Array, at_first: Array, second: Array, at_second: Array) -> Array:
    """Concatenate ``first[at_first]`` and ``second[at_second]`` without intermediate copies."""
    both = np.empty((len(at_first) + len(at_second), *first.shape[1:]), dtype=first.dtype)
    np.take(first, at_first, axis=0, out=both[: len(at_first)], mode="clip")
    np.take(second, at_second, axis=0, out=both[len(at_first) :], mode="clip")
    return both


class RowInputs(NamedTuple):
    """The inputs of one row's state: its observations, and one head per observation that reads it."""

    numbers: NDArray[np.int64]  # (n,): the numbers of the features
    values: NDArray[np.float64]  # (n,): numbers of the kind (``Margin``)
    cells: Cells  # one line, whose indices are positions in ``heads``
    known: Cells  # one line with the observations of the backbone's features, by position in the backbone
    heads: Heads
    kinds: Tensor
    row_prior: RowPrior | None  # the prior of the row given its metadata


@torch.no_grad()
def row_inputs(
    model: ModelState,
    observations: ObservationList,
    metadata: NDArray[np.float32] | None = None,
    *,
    as_fitted: bool = False,
) -> RowInputs:
    """Return the inputs of ``compute_row_states`` for one row; the inputs of ``fit`` if ``as_fitted``."""
    lists = ObservationLists.of([observations])
    read = (model.feature_store.slots_by_number(lists.keys) >= 0) | as_fitted  # not features removed since
    by_backbone = as_fitted or not reads_any_feature(model)
    if by_backbone:
        read &= lists.keys < len(model.backbone_features)
    cells, slots, scales = _scaled_cells(model, lists, read)
    if by_backbone:
        heads = model.knowledge.heads.take(cells.index)
    else:
        heads = model.feature_store.heads_at(slots)
        latent = model.backbone.activation_size
        if model.row_store.width > latent:
            heads = _reduce_heads(heads, _learned_activations(model, cells)[cells.lines], latent)
        heads = _use_backbone_heads(model, cells.index.numpy(), heads, scales["as_fitted"])
    numbers = cells.index.numpy()
    known = _of_backbone(model, cells)
    by_head = replace(cells, index=torch.arange(len(numbers)), width=len(numbers))
    values = scales["offset"] + scales["span"] * cells.values.numpy().astype(np.float64)
    kinds = _kinds(model, scales)
    return RowInputs(numbers, values, by_head, known, heads, kinds, _row_priors(model, 1, metadata))


def _scaled_cells(
    model: ModelState, lists: ObservationLists, read: NDArray[np.bool_]
) -> tuple[Cells, NDArray[np.int64], NDArray[np.void]]:
    """Return the observations in the mask ``read`` as scaled cells, whose indices are numbers of features.

    Also returns, for each observation, the slot of its feature's reference (n,) and the feature's ``SCALE``
    (n,). Features added after fit have larger numbers than the width of the cells: callers that read these
    replace both.
    """
    lines, numbers = lists.lines[read], lists.keys[read]
    scales = model.feature_store.scales(numbers)
    counts = np.bincount(lines, minlength=len(lists.counts))
    values = torch.from_numpy((lists.values[read] - scales["offset"]) / scales["span"]).float()
    observed, times = (None if part is None else part[read] for part in (lists.weights, lists.times))
    weighed = model.weigh(observed, times, lines, len(lists.counts))
    weights = None if weighed is None else torch.from_numpy(weighed).float()
    indptr, index = offsets(torch.from_numpy(counts)), torch.from_numpy(numbers)
    cells = Cells(indptr, index, values, len(model.backbone_features), weights)
    return cells, model.feature_store.reference_slots(numbers), scales


def backbone_cells(model: ModelState, lists: ObservationLists) -> Cells:
    """Return the observations of the backbone's features in ``lists`` as scaled cells: rows × features."""
    read = lists.keys < len(model.backbone_features)
    return _scaled_cells(model, lists, read & (model.feature_store.slots_by_number(lists.keys) >= 0))[0]


def _of_backbone(model: ModelState, cells: Cells) -> Cells:
    """Return the observations of features of the backbone among ``cells``."""
    return cells.keep(cells.index < len(model.backbone_features))


def _kinds(model: ModelState, scales: NDArray[np.void]) -> Tensor:
    return model.modelled_types(torch.from_numpy(scales["type"]))


def _learned_activations(model: ModelState, cells: Cells) -> Tensor:
    """Return the activations that the adapter adds to those of the backbone: (rows, learned).

    They are functions of the code that the backbone computes from a row's observations of its features.
    """
    known = cells.keep(cells.index < model.backbone.features)
    states = model.adapter.refine(_states_by_backbone(model, known, None))
    return states.activation[:, model.backbone.activation_size :]


def _states_by_backbone(model: ModelState, cells: Cells, row_prior: RowPrior | None) -> RowStates:
    """Compute the states of rows whose observations are read by heads of the backbone."""
    knowledge = model.knowledge
    positions, index = torch.unique(cells.index, return_inverse=True)
    by_head = replace(cells, index=index, width=len(positions))
    heads, kinds = knowledge.heads.detach().take(positions), knowledge.kinds[positions]
    return model.backbone.states_from_heads(by_head, heads, kinds, positions, row_prior)


def _states_by_heads(
    model: ModelState,
    cells: Cells,
    slots: NDArray[np.int64],
    scales: NDArray[np.void],
    row_prior: RowPrior | None,
) -> RowStates:
    """Compute the states of rows whose observations are read by references of features."""
    backbone, latent = model.backbone, model.backbone.activation_size
    as_fitted = scales["as_fitted"]
    if as_fitted.all():
        return _states_by_backbone(model, cells, row_prior)
    if model.row_store.width == latent:
        return backbone.states_from_heads(*_with_references(model, cells, slots, scales), row_prior)
    lines = cells.lines.numpy()
    changed = np.bincount(lines, ~as_fitted, minlength=len(cells)) > 0
    parts, order = [], [np.flatnonzero(~changed), np.flatnonzero(changed)]
    if len(order[0]):
        rows = torch.from_numpy(order[0])
        parts.append(
            _states_by_backbone(model, cells.take(rows), None if row_prior is None else row_prior.take(rows))
        )
    rows, read = torch.from_numpy(order[1]), changed[lines]
    cells, slots, scales = cells.take(rows), slots[read], scales[read]
    learned = _learned_activations(model, cells)
    for start, stop in _blocks(cells.indptr):
        block = cells.take(torch.arange(start, stop))
        span = slice(int(cells.indptr[start]), int(cells.indptr[stop]))
        prior = None if row_prior is None else row_prior.take(rows[start:stop])
        heads = _with_references(model, block, slots[span], scales[span], learned[start:stop])
        parts.append(backbone.states_from_heads(*heads, prior))
    return RowStates.concatenate(parts).take(torch.from_numpy(np.argsort(np.concatenate(order))))


def _with_references(
    model: ModelState,
    cells: Cells,
    slots: NDArray[np.int64],
    scales: NDArray[np.void],
    learned: Tensor | None = None,
) -> tuple[Cells, Heads, Tensor, Tensor]:
    """Return the first arguments of ``states_from_heads`` for rows that references of features read.

    ``slots`` and ``scales`` (n,) belong to the observed features. The references are reduced to the
    activations of the backbone by the ``learned`` activations of the rows (rows, learned), if there are any.
    Only heads that differ from those of the backbone are taken from the feature store.
    """
    numbers, kinds, as_fitted = cells.index.numpy(), _kinds(model, scales), scales["as_fitted"]
    own, changed = np.flatnonzero(as_fitted), np.flatnonzero(~as_fitted)
    _, first, inverse = np.unique(numbers[own], return_index=True, return_inverse=True)
    if learned is None:
        _, first_changed, inverse_changed = np.unique(
            numbers[changed], return_index=True, return_inverse=True
        )
        changed_heads = changed[first_changed]
        references = model.feature_store.heads_at(slots[changed_heads]).dense()
    else:  # a reduced head depends on the row
        changed_heads, inverse_changed = changed, np.arange(len(changed))
        rows = cells.lines[torch.from_numpy(changed)]
        latent = model.backbone.activation_size
        references = _reduce_heads(model.feature_store.heads_at(slots[changed]), learned[rows], latent)
    chosen, index = np.concatenate([own[first], changed_heads]), np.empty(len(numbers), np.int64)
    index[own], index[changed] = inverse, len(first) + inverse_changed
    backbone_heads = model.knowledge.heads.detach().take(torch.from_numpy(numbers[own[first]]))
    heads = Heads.concatenate([backbone_heads, references]) if len(first) else references
    by_head = replace(cells, index=torch.from_numpy(index), width=len(chosen))
    return by_head, heads, kinds[torch.from_numpy(chosen)], _backbone_positions(model, numbers[chosen])


def _row_priors(model: ModelState, rows: int, metadata: NDArray[np.float32] | None) -> RowPrior | None:
    """Return the prior of rows given their encoded ``metadata``, which is missing if None."""
    model_metadata = model.row_metadata
    if model_metadata is None or model_metadata.prior is None:
        return None
    return model_metadata.prior_of(
        model_metadata.schema.encode([{}] * rows) if metadata is None else metadata
    )


def row_prior_of(model: ModelState, row: int) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Return the prior of one row given its metadata, in numpy: the mean's shift, and the covariance."""
    metadata = model.row_metadata
    prior = None if metadata is None else metadata.prior_of(metadata.encoded[row : row + 1])
    return None if prior is None else (prior.shift[0].numpy(), prior.covariance.numpy())


def _blocks(indptr: Tensor) -> list[tuple[int, int]]:
    """Split the lines into ranges with a bounded number of observations each."""
    marks = torch.div(indptr[1:], _AT_ONCE, rounding_mode="floor")
    ends = [*(torch.nonzero(marks.diff())[:, 0] + 1).tolist(), len(indptr) - 1]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _use_backbone_heads(
    model: ModelState, numbers: NDArray[np.int64], heads: Heads, as_fitted: NDArray[np.bool_]
) -> Heads:
    """Return ``heads``, replaced by the heads of the backbone where ``as_fitted``."""
    heads = heads.dense()
    if not as_fitted.any():
        return heads
    where = torch.from_numpy(as_fitted)
    backbone_heads = model.knowledge.heads.take(torch.from_numpy(numbers[as_fitted]))
    if as_fitted.all():
        return backbone_heads
    parts = []
    for part, replacement in zip(heads.parts(), backbone_heads.parts(), strict=True):
        part = part.clone()
        part[where] = replacement.to(part.dtype)
        parts.append(part)
    return Heads(*parts)


def _backbone_positions(model: ModelState, numbers: NDArray[np.int64]) -> Tensor:
    """Return the positions of features in the backbone, which are their numbers; -1 for other features."""
    return torch.from_numpy(np.where(numbers < len(model.backbone_features), numbers, -1))


def _reduce_heads(heads: Heads, learned: Tensor, latent: int) -> Heads:
    """Reduce heads to the first ``latent`` activations, given the values of the others (heads, learned).

    With φ the values of the others, w₂·φ becomes a part of the bias: the reduced head is
    (w₁, b + w₂·φ) = A·(w₁, w₂, b), with the covariance A·C·Aᵀ.
    """
    heads, size = heads.dense(), heads.weight.shape[1] + 1
    shared = latent * (latent + 1) // 2  # entries of the packed covariance of w₁, which comes first
    others = torch.cat([learned, learned.new_ones(len(heads), 1)], dim=1)[:, None]  # (φ, 1)
    last = others @ last_rows(heads.packed_covariance, size, latent)  # of b + w₂·φ with (w₁, w₂, b)
    variance = (last[..., latent:] * others).sum(2)
    covariance = torch.cat([heads.packed_covariance[:, :shared], last[:, 0, :latent], variance], dim=1)
    bias = heads.bias + (heads.weight[:, latent:] * learned).sum(1)
    return Heads(heads.weight[:, :latent], bias, covariance, heads.noise)
