"""Compute the states of rows from their observations."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backbones.base import OpenBackbone
from headstart.core.types import Heads, RowBelief, RowStates
from headstart.errors import NumericalError
from headstart.linalg.array_ops import LinAlgError
from headstart.linalg.packed import pack, unpack
from headstart.model.rows import RowCells, RowObservations
from headstart.model.state import ModelState
from headstart.table import Cells
from headstart.table.cells import offsets

_AT_ONCE = 2**16  # observations whose heads are brought to a row's own form at a time


def observations_of_row(fitted: ModelState, row: int) -> RowObservations:
    """What the state of a known row rests on."""
    observations = fitted.roster.observations(row)
    if observations is not None:
        return observations
    cells = fitted.knowledge.cells
    if row >= len(cells):  # of a model saved before such rows kept what they observed
        return RowObservations(np.zeros(0, np.int64), np.zeros(0))
    begin, end = cells.indptr.numpy()[row : row + 2]
    numbers, values = cells.index.numpy()[begin:end].astype(np.int64), cells.values.numpy()[begin:end]
    facts = fitted.catalogue.facts(numbers)
    in_units = facts[:, 1] + facts[:, 2] * values
    if fitted.clock is None:
        return RowObservations(numbers, in_units)
    return RowObservations(numbers, in_units, fitted.clock.table[begin:end], fitted.clock.fitted_at)


def reads_any_feature(fitted: ModelState) -> bool:
    """Whether rows are described by features added after fit too."""
    return isinstance(fitted.backbone, OpenBackbone) and fitted.adapter.gives_uncertainty


@torch.no_grad()
def compute_row_states(
    fitted: ModelState, given: RowCells, names: list[str], metadata: NDArray[np.float32] | None = None
) -> RowStates:
    """The states of rows that observed this and have this ``metadata`` (rows, width), encoded.

    Each observation is read by the present head of its feature: the backbone's own as long as nothing has
    been observed of the feature since fit. What cannot be read, of features that are no longer there or
    that the backbone does not know and cannot learn of, is left out. ``names`` are for messages.
    """
    by_any = reads_any_feature(fitted)
    cells, slots, facts = _readable(fitted, given, by_any=by_any)
    try:
        belief = _belief(fitted, len(names), metadata)
        if belief is None and (not by_any or bool(facts[:, 3].all())):
            states = fitted.backbone.states(cells)  # all is as fitted: the backbone itself reads it
        else:
            states = _by_heads(fitted, cells, slots, facts, belief)
        states = fitted.adapter.refine(states)
        finite = torch.stack([part.view(len(names), -1).isfinite().all(1) for part in states.parts()]).all(0)
    except LinAlgError:
        finite = torch.zeros(len(names), dtype=torch.bool)
    if not bool(finite.all()):
        sizes = torch.zeros(len(names)).index_add_(0, cells.lines, cells.values.abs())
        worst = names[int(torch.where(finite, -1.0, sizes).argmax())]
        raise NumericalError(
            f"row {worst!r}: its observations are so extreme that nothing can be computed from them; "
            "correct them or leave them out"
        )
    return states


class RowInputs(NamedTuple):
    """One row as it is read: its observations, and the heads by which they are read, one each."""

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
    observations: RowObservations,
    metadata: NDArray[np.float32] | None = None,
    *,
    as_fitted: bool = False,
) -> RowInputs:
    """Collect the inputs of ``compute_row_states`` for a row; those of ``fit`` if ``as_fitted``."""
    given = RowCells.of([observations])
    if as_fitted:  # features may have been removed since
        facts = fitted.catalogue.facts(observations.numbers)
        cells = _scaled(fitted, given.counts, observations, facts)
        heads = fitted.knowledge.heads.take(cells.index)
    else:
        cells, slots, facts = _readable(fitted, given, by_any=True, now=observations.now)
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


def _readable(
    fitted: ModelState, given: RowCells, *, by_any: bool, now: float | None = None
) -> tuple[Cells, NDArray[np.int64], NDArray[np.float64]]:
    """What can be read of observations: cells by number, the slots of their heads, facts."""
    slots = fitted.catalogue.slots_by_number(given.numbers)
    read = slots >= 0 if by_any else (slots >= 0) & (given.numbers < len(fitted.backbone_features))
    lines = np.repeat(np.arange(len(given.counts)), given.counts)[read]
    times = None if given.times is None else given.times[read]
    observations = RowObservations(given.numbers[read], given.values[read], times, now)
    facts = fitted.catalogue.facts(observations.numbers)
    counts = np.bincount(lines, minlength=len(given.counts))
    return _scaled(fitted, counts, observations, facts), slots[read], facts


def _scaled(
    fitted: ModelState, counts: NDArray[np.int64], observations: RowObservations, facts: NDArray[np.float64]
) -> Cells:
    values = torch.from_numpy((observations.values - facts[:, 1]) / facts[:, 2]).float()
    weights = None
    if fitted.clock is not None and observations.times is not None:
        weights = torch.from_numpy(fitted.clock.weights(observations.times, observations.now)).float()
    indptr, index = offsets(torch.from_numpy(counts)), torch.from_numpy(observations.numbers)
    return Cells(indptr, index, values, len(fitted.backbone_features), weights)


def _kinds(fitted: ModelState, facts: NDArray[np.float64]) -> Tensor:
    return fitted.modelled(torch.from_numpy(facts[:, 0].astype(np.int64)))


def _learned(fitted: ModelState, cells: Cells) -> Tensor:
    """The activations that the adapter learned, as rows' own features tell them: (rows, learned).

    They are functions of a row's code; what a head makes of them is a constant, another one for every row.
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
    """The states of rows whose observations are read by the heads of the catalogue."""
    backbone = fitted.backbone
    if not isinstance(backbone, OpenBackbone):
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
    """What the metadata of rows says of them; where none is given, what missing metadata says."""
    held = fitted.row_metadata
    if held is None or held.prior is None:
        return None
    return held.belief(held.schema.encode([{}] * rows) if metadata is None else metadata)


def row_prior_of(fitted: ModelState, row: int) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """What the metadata of one row says of it, in numpy: a shift, and the covariance around it."""
    held = fitted.row_metadata
    if held is None or held.prior is None:
        return None
    belief = held.belief(held.encoded[row : row + 1])
    return None if belief is None else (belief.shift[0].numpy(), belief.covariance.numpy())


def _blocks(indptr: Tensor) -> list[tuple[int, int]]:
    """Stretches of lines with not too many observations each."""
    marks = torch.div(indptr[1:], _AT_ONCE, rounding_mode="floor")
    ends = [*(torch.nonzero(marks.diff())[:, 0] + 1).tolist(), len(indptr) - 1]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _mixed(
    fitted: ModelState, numbers: NDArray[np.int64], heads: Heads, as_fitted: NDArray[np.bool_]
) -> Heads:
    """The given heads, but for features that are as fitted the backbone's own."""
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
    """The positions of features among the backbone's, which are their numbers; -1 of others."""
    return torch.from_numpy(np.where(numbers < len(fitted.backbone_features), numbers, -1))


def _folded(heads: Heads, learned: Tensor, latent: int) -> Heads:
    """Heads of the first activations only, given the values of the others (heads, learned).

    w₂·φ becomes part of the bias: (w₁, b + w₂·φ) = A·(w₁, w₂, b), and the covariance A·C·Aᵀ.
    """
    size = heads.weight.shape[1] + 1
    turn = heads.weight.new_zeros(len(heads), latent + 1, size)
    turn[:, torch.arange(latent), torch.arange(latent)] = 1.0
    turn[:, latent, latent:-1], turn[:, latent, -1] = learned, 1.0
    covariance = turn @ unpack(heads.packed_covariance, size) @ turn.mT
    bias = heads.bias + (heads.weight[:, latent:] * learned).sum(1)
    return Heads(heads.weight[:, :latent], bias, pack(covariance), heads.noise)
