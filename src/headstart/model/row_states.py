"""Compute the states of rows from their observations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.types import Heads, OneRow, OneState, RowBelief, RowStates
from headstart.errors import NumericalError
from headstart.linalg.array_ops import Array, LinAlgError
from headstart.linalg.packed import last_rows
from headstart.model.observations import ObservationList, ObservationLists
from headstart.model.state import ModelState, Reads
from headstart.table import Cells
from headstart.table.cells import offsets
from headstart.table.kinds import KindType

_AT_ONCE = 2**16  # observations whose heads are brought to a row's own form at a time


def observations_of_row(fitted: ModelState, row: int) -> ObservationList:
    """Return all observations of a row."""
    observations = fitted.roster.observations(row)
    if observations is not None:
        return observations
    if row >= fitted.fitted_rows:
        return ObservationList.none(timed=fitted.clock is not None)
    observations = fitted_observations(fitted, row)
    known = fitted.catalogue.slots_by_number(observations.keys) >= 0
    return observations if known.all() else observations.take(known)


def fitted_observations(fitted: ModelState, row: int) -> ObservationList:
    """Return the observations of a row in the table of the fit, also those of features removed since."""
    cells = fitted.knowledge.cells
    begin, end = cells.indptr.numpy()[row : row + 2]
    numbers, values = cells.index.numpy()[begin:end].astype(np.int64), cells.values.numpy()[begin:end]
    facts = fitted.catalogue.facts(numbers)
    times = None if fitted.clock is None else fitted.clock.table[begin:end]
    return ObservationList(numbers, facts[:, 1] + facts[:, 2] * values, None, times)


def reads_any_feature(fitted: ModelState) -> bool:
    """Return whether states of rows can depend on features added after fit, too."""
    return fitted.backbone.reads_any_head and fitted.adapter.gives_uncertainty


@torch.no_grad()
def compute_row_states(
    fitted: ModelState,
    lists: ObservationLists,
    names: Sequence[str],
    metadata: NDArray[np.float32] | None = None,
    which: Reads = "references",
) -> RowStates:
    """Compute the states of rows from their observations and encoded ``metadata`` (rows, width).

    Each observation is read by the reference of its feature, or by the backbone's own heads if ``which`` is
    "fitted". ObservationList of features that were removed, or that the backbone does not know and cannot
    read, are left out. ``names`` are for messages.
    """
    by_any = reads_any_feature(fitted)
    read = fitted.catalogue.slots_by_number(lists.keys) >= 0
    if not by_any or which == "fitted":
        read &= lists.keys < len(fitted.backbone_features)
    cells, slots, facts = _scaled_cells(fitted, lists, read)
    if which == "fitted":
        facts[:, 3] = 1.0
    try:
        if by_any:
            states = _by_heads(fitted, cells, slots, facts, _belief(fitted, len(names), metadata))
        else:
            states = fitted.backbone.states(cells)
        states = fitted.adapter.refine(states)
        finite = torch.stack([part.view(len(names), -1).isfinite().all(1) for part in states.parts()]).all(0)
    except LinAlgError:
        finite = torch.zeros(len(names), dtype=torch.bool)
    if not bool(finite.all()):
        sizes = torch.zeros(len(names)).index_add_(0, cells.lines, cells.values.abs())
        raise row_too_extreme(names[int(torch.where(finite, -1.0, sizes).argmax())])
    return states


def row_too_extreme(name: str) -> NumericalError:
    """Return the error of a row whose numbers are too large to compute with."""
    return NumericalError(
        f"row {name!r}: its observations are so extreme that nothing can be computed from them; "
        "correct them or leave them out"
    )


def has_short_ways(fitted: ModelState) -> bool:
    """Return whether the parts of a model have forms for a single row or feature."""
    adapter, backbone = fitted.adapter, fitted.backbone
    identity = backbone.config.likelihood.rating_link == "identity"
    return adapter.adapts_one and backbone.reads_single_rows and identity


def compute_row_state(
    fitted: ModelState, row: int, observations: ObservationList, which: Reads = "references"
) -> OneState:
    """``compute_row_states`` of one known row, where ``has_short_ways``."""
    try:
        one, known = _one_row(fitted, observations, which)
        state = fitted.backbone.state_of_one(one, known, row_prior_of(fitted, row))
        state = fitted.adapter.refine_one(state)
        finite = math.isfinite(sum(float(np.sum(part)) for part in state.parts()))
    except LinAlgError:
        finite = False
    if not finite:
        raise row_too_extreme(fitted.rows[row])
    return state


def _one_row(fitted: ModelState, observations: ObservationList, which: Reads) -> tuple[OneRow, Array]:
    """Return a row's observations with the heads that read them, and the positions of the backbone's own."""
    numbers, values, times = observations.keys, observations.values, observations.times
    slots, facts = fitted.catalogue.reference_slots(numbers), fitted.catalogue.facts(numbers)
    read = slots >= 0
    if which == "fitted":
        facts[:, 3] = 1.0
        read &= numbers < len(fitted.backbone_features)
    if not read.all():
        numbers, values, slots, facts = numbers[read], values[read], slots[read], facts[read]
        times = None if times is None else times[read]
    scaled = ((values - facts[:, 1]) / facts[:, 2]).astype(np.float32).astype(np.float64)
    as_fitted = facts[:, 3] > 0
    own, others = np.flatnonzero(as_fitted), np.flatnonzero(~as_fitted)
    order = np.concatenate([own, others])
    fitted_heads = [part.numpy() for part in fitted.knowledge.heads.detach().parts()]
    weight, bias, covariance, noise = (
        _gathered(one, numbers[own], other, slots[others])
        for one, other in zip(fitted_heads, fitted.catalogue.stored_arrays, strict=True)
    )
    heads = np.concatenate([weight, bias[:, None]], axis=1, dtype=np.float64)
    kinds = facts[order, 0].astype(np.int64)
    if fitted.binary_as_numbers:
        kinds[kinds == KindType.BINARY] = KindType.RATING
    weights = None
    if fitted.clock is not None and times is not None:
        weights = fitted.clock.weights(times)[order]
    one = OneRow(scaled[order], heads, covariance, noise, kinds, weights)
    return one, numbers[numbers < len(fitted.backbone_features)]


def _gathered(one: Array, at: Array, other: Array, others_at: Array) -> Array:
    """Return entries of two arrays, one after the other, without a copy in between."""
    both = np.empty((len(at) + len(others_at), *one.shape[1:]), dtype=one.dtype)
    np.take(one, at, axis=0, out=both[: len(at)], mode="clip")
    np.take(other, others_at, axis=0, out=both[len(at) :], mode="clip")
    return both


class RowInputs(NamedTuple):
    """The inputs of one row's state: its observations, and the heads that read them, one each."""

    numbers: NDArray[np.int64]  # (n,): of features
    values: NDArray[np.float64]  # (n,): in the data's own units
    cells: Cells  # one line that points at the heads
    known: Cells  # those that the backbone's own features observed, by position there
    heads: Heads
    kinds: Tensor
    belief: RowBelief | None


@torch.no_grad()
def row_inputs(
    fitted: ModelState,
    observations: ObservationList,
    metadata: NDArray[np.float32] | None = None,
    *,
    as_fitted: bool = False,
) -> RowInputs:
    """Return the inputs of ``compute_row_states`` for a row; those of ``fit`` if ``as_fitted``."""
    lists = ObservationLists.of([observations])
    read = (fitted.catalogue.slots_by_number(lists.keys) >= 0) | as_fitted  # features may have been removed
    cells, slots, facts = _scaled_cells(fitted, lists, read)
    if as_fitted:
        heads = fitted.knowledge.heads.take(cells.index)
    else:
        heads = fitted.catalogue.stored(torch.from_numpy(slots))
        latent = fitted.backbone.activation_size
        if fitted.roster.width > latent:
            heads = _folded(heads, _learned(fitted, cells)[cells.lines], latent)
        heads = _mixed(fitted, cells.index.numpy(), heads, facts[:, 3] > 0)
    numbers = cells.index.numpy()
    known = cells.keep(cells.index < len(fitted.backbone_features))
    each = replace(cells, index=torch.arange(len(numbers)), width=len(numbers))
    values = facts[:, 1] + facts[:, 2] * cells.values.numpy().astype(np.float64)
    kinds = _kinds(fitted, facts)
    return RowInputs(numbers, values, each, known, heads, kinds, _belief(fitted, 1, metadata))


def _scaled_cells(
    fitted: ModelState, lists: ObservationLists, read: NDArray[np.bool_]
) -> tuple[Cells, NDArray[np.int64], NDArray[np.float64]]:
    """Return the observations in a mask: cells by number, the slots of references, and facts of features."""
    lines, numbers = lists.lines[read], lists.keys[read]
    facts = fitted.catalogue.facts(numbers)
    counts = np.bincount(lines, minlength=len(lists.counts))
    values = torch.from_numpy((lists.values[read] - facts[:, 1]) / facts[:, 2]).float()
    weights = None
    if fitted.clock is not None and lists.times is not None:
        aged = fitted.clock.weights_by_line(lists.times[read], lines, len(lists.counts))
        weights = torch.from_numpy(aged).float()
    indptr, index = offsets(torch.from_numpy(counts)), torch.from_numpy(numbers)
    cells = Cells(indptr, index, values, len(fitted.backbone_features), weights)
    return cells, fitted.catalogue.reference_slots(numbers), facts


def _kinds(fitted: ModelState, facts: NDArray[np.float64]) -> Tensor:
    return fitted.modelled(torch.from_numpy(facts[:, 0].astype(np.int64)))


def _learned(fitted: ModelState, cells: Cells) -> Tensor:
    """Return the activations that the adapter learned, given the rows' fitted features: (rows, learned).

    They are functions of a row's code; their product with a head is a constant of each row.
    """
    own = cells.keep(cells.index < fitted.backbone.features)
    states = fitted.adapter.refine(fitted.backbone.states(own))
    return states.activation[:, fitted.backbone.activation_size :]


def _by_heads(
    fitted: ModelState,
    cells: Cells,
    slots: NDArray[np.int64],
    facts: NDArray[np.float64],
    belief: RowBelief | None,
) -> RowStates:
    """Return the states of rows whose observations are read by references of features."""
    backbone = fitted.backbone
    if not backbone.reads_any_head:
        raise TypeError(f"{backbone.config.name} describes rows by its own features only")
    latent, numbers = backbone.activation_size, cells.index.numpy()
    kinds = _kinds(fitted, facts)
    if fitted.roster.width == latent:
        unique, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        heads = _mixed(
            fitted, unique, fitted.catalogue.stored(torch.from_numpy(slots[first])), facts[first, 3] > 0
        )
        few = replace(cells, index=torch.from_numpy(inverse), width=len(unique))
        return backbone.states_by(few, heads, kinds[torch.from_numpy(first)], _own(fitted, unique), belief)
    learned, parts = _learned(fitted, cells), []
    for start, stop in _blocks(cells.indptr):
        part, held = (
            cells.take(torch.arange(start, stop)),
            slice(int(cells.indptr[start]), int(cells.indptr[stop])),
        )
        heads = _folded(
            fitted.catalogue.stored(torch.from_numpy(slots[held])), learned[start:stop][part.lines], latent
        )
        heads = _mixed(fitted, numbers[held], heads, facts[held, 3] > 0)
        each = replace(part, index=torch.arange(len(part.index)), width=len(part.index))
        here = None if belief is None else belief.take(torch.arange(start, stop))
        parts.append(backbone.states_by(each, heads, kinds[held], _own(fitted, numbers[held]), here))
    return RowStates.concatenate(parts)


def _belief(fitted: ModelState, rows: int, metadata: NDArray[np.float32] | None) -> RowBelief | None:
    """Return the prior of rows with this metadata; where none is given, that of missing metadata."""
    held = fitted.row_metadata
    if held is None or held.prior is None:
        return None
    return held.belief(held.schema.encode([{}] * rows) if metadata is None else metadata)


def row_prior_of(fitted: ModelState, row: int) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Return the prior of one row given its metadata, in numpy: a shift, and the covariance around it."""
    held = fitted.row_metadata
    if held is None or held.prior is None:
        return None
    belief = held.belief(held.encoded[row : row + 1])
    return None if belief is None else (belief.shift[0].numpy(), belief.covariance.numpy())


def _blocks(indptr: Tensor) -> list[tuple[int, int]]:
    """Return ranges of lines with a bounded number of observations each."""
    marks = torch.div(indptr[1:], _AT_ONCE, rounding_mode="floor")
    ends = [*(torch.nonzero(marks.diff())[:, 0] + 1).tolist(), len(indptr) - 1]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _mixed(
    fitted: ModelState, numbers: NDArray[np.int64], heads: Heads, as_fitted: NDArray[np.bool_]
) -> Heads:
    """Return the given heads, with the backbone's own where features are as fitted."""
    if not as_fitted.any():
        return heads
    where = torch.from_numpy(as_fitted)
    own = fitted.knowledge.heads.take(torch.from_numpy(numbers[as_fitted]))
    if as_fitted.all():
        return own
    changed = []
    for part, other in zip(heads.parts(), own.parts(), strict=True):
        part = part.clone()
        part[where] = other.to(part.dtype)
        changed.append(part)
    return Heads(*changed)


def _own(fitted: ModelState, numbers: NDArray[np.int64]) -> Tensor:
    """Return the positions of features among the backbone's, which are their numbers; -1 of others."""
    return torch.from_numpy(np.where(numbers < len(fitted.backbone_features), numbers, -1))


def _folded(heads: Heads, learned: Tensor, latent: int) -> Heads:
    """Return heads of the first activations only, given the values of the others (heads, learned).

    w₂·φ becomes part of the bias: (w₁, b + w₂·φ) = A·(w₁, w₂, b), and the covariance A·C·Aᵀ.
    """
    size = heads.weight.shape[1] + 1
    shared = latent * (latent + 1) // 2  # entries of the packed covariance of w₁, which comes first
    others = torch.cat([learned, learned.new_ones(len(heads), 1)], dim=1)[:, None]  # (φ, 1)
    last = others @ last_rows(heads.packed_covariance, size, latent)  # of b + w₂·φ with (w₁, w₂, b)
    variance = (last[..., latent:] * others).sum(2)
    covariance = torch.cat([heads.packed_covariance[:, :shared], last[:, 0, :latent], variance], dim=1)
    bias = heads.bias + (heads.weight[:, latent:] * learned).sum(1)
    return Heads(heads.weight[:, :latent], bias, covariance, heads.noise)
