"""The states of many rows by given heads, in blocks that stay in the cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from headstart.algebra.blocks import line_blocks
from headstart.backbones.rows import Readings
from headstart.core.row_prior import RowBelief
from headstart.core.states import RowStates
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

if TYPE_CHECKING:
    from headstart.backbones.factorisation import Factorisation

_CACHED = 2**24  # bytes that one block reads in every pass


def read_rows(
    backbone: Factorisation, cells: Cells, known: Cells, readings: Readings, belief: RowBelief | None
) -> RowStates:
    """The states of rows, in double precision until the end.

    Rows of ratings alone need fewer passes than others, so they are read apart: a row must be the same
    whatever others are described with it.

    Parameters
    ----------
    backbone : Factorisation
        What the rows are read by.
    cells : Cells
        Observations by row, of the features of ``readings``.
    known : Cells
        Those of the backbone's own features, by their numbers there.
    readings : Readings
        The heads that read them.
    belief : RowBelief, optional
        What is believed of the rows before they are observed.
    """
    other = (readings.kinds != KindType.RATING)[cells.index]
    weighed = torch.zeros(len(cells), dtype=torch.bool).index_fill_(0, cells.lines[other], True)
    groups = [torch.nonzero(each)[:, 0] for each in (~weighed, weighed)]
    parts = [
        _read(
            backbone,
            cells.take(group),
            known.take(group),
            readings,
            None if belief is None else belief.take(group),
        )
        for group in groups
        if len(group)
    ]
    return RowStates.concatenate(parts).take(torch.argsort(torch.cat(groups)))


def _read(
    backbone: Factorisation, cells: Cells, known: Cells, readings: Readings, belief: RowBelief | None
) -> RowStates:
    parts, packed = [], 8 * readings.second.shape[1]
    # Each block gathers the heads that it reads once; all passes then find them in the cache.
    for place, block in line_blocks(cells, 4 * packed, _CACHED, per_cell=packed):
        signature = backbone.signature(known.block(place.start, place.stop)).double()
        read, index = torch.unique(block.index, return_inverse=True)
        few = replace(block, index=index, values=block.values.double(), width=len(read))
        here = readings.take(read).double()
        lines = torch.arange(place.start, place.stop)
        own = None if belief is None else belief.take(lines).double()
        posterior = backbone.posterior_from(few, here, here.sums(few), signature, None, belief=own)
        parts.append(backbone.states_of(posterior, signature).to(backbone.weight.dtype))
    return RowStates.concatenate(parts)
