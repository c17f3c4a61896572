"""Observations and states of rows that several processes have, brought together at all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.algebra.padding import places
from headstart.algebra.shared import uniform_at
from headstart.core.states import RowStates
from headstart.crew import crew
from headstart.table.cells import Cells, index_type, offsets, ranges


def gathered_states(states: RowStates) -> RowStates:
    """The states of the rows of all processes."""
    return states if crew().alone else states.each(lambda part: crew().gathered(part.contiguous()))


def gathered_cells(cells: Cells, rows: int) -> Cells:
    """The observations of all processes, of ``cells`` with one line per feature; this one has so many rows.

    Observations of a feature are in the order of rows, as they would be in one process.
    """
    if crew().alone:
        return cells
    start, whole = crew().span(rows)
    lines = crew().gathered(cells.lines)
    order = torch.argsort(lines, stable=True)
    moved = cells.index.to(index_type(whole)) + start
    index, values = crew().gathered(moved)[order], crew().gathered(cells.values)[order]
    return Cells(offsets(torch.bincount(lines, minlength=len(cells))), index, values, whole)


def gathered_sample(cells: Cells, rows: int, most: int, generator: torch.Generator) -> Cells:
    """At most so many observations of each feature, drawn at random as one process would from all.

    Every process draws among its own and sends only what may be among the drawn ones of all.
    """
    start, whole = crew().span(rows)
    counts = crew().gathered(cells.counts[None])  # (processes, features)
    before, total = counts[: crew().rank].sum(0), counts.sum(0)
    mine = ranges(offsets(total)[:-1] + before, cells.counts)
    keys = uniform_at(mine, int(total.sum()), generator)
    kept = _first(cells.lines, keys, cells, most)
    lines, keys = crew().gathered(cells.lines[kept]), crew().gathered(keys[kept])
    moved = cells.index[kept].to(index_type(whole)) + start
    index, values = crew().gathered(moved), crew().gathered(cells.values[kept])
    order = torch.argsort(lines, stable=True)
    lines, keys, index, values = lines[order], keys[order], index[order], values[order]
    every = Cells(offsets(torch.bincount(lines, minlength=len(cells))), index, values, whole)
    return every.keep(_first(lines, keys, every, most))


def _first(lines: Tensor, keys: Tensor, cells: Cells, most: int) -> Tensor:
    """Which observations have one of the ``most`` smallest keys of their line: (n,)."""
    order = torch.argsort(lines + keys)
    rank = torch.empty_like(order)
    rank[order] = places(cells)
    return rank < most
