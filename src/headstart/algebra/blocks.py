"""Work in blocks of lines, so that what it needs in between stays within a budget of memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headstart.table.cells import Cells

BUDGET = 2**28  # bytes that one block may take in between
PER_NUMBER = 48  # bytes that a number of a line's matrices takes: about six of them, some in double precision
PER_CELL = 64  # bytes that an observation takes in between: its indices, weights and their order


def stretches(lines: int, per_line: int, budget: int | None = None) -> Iterator[slice]:
    """Cut so many lines into stretches that take ``per_line`` bytes a line, at least a line each.

    >>> list(stretches(5, per_line=4, budget=9))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, (BUDGET if budget is None else budget) // max(1, per_line))
    for start in range(0, lines, step):
        yield slice(start, min(lines, start + step))


def line_blocks(
    cells: Cells, per_line: int, budget: int | None = None, per_cell: int = PER_CELL
) -> Iterator[tuple[slice, Cells]]:
    """Cut cells into blocks of lines that follow each other, each with its place; nothing is copied.

    A block takes ``per_line`` bytes a line and ``per_cell`` bytes an observation, but has at least a line.
    """
    budget = BUDGET if budget is None else budget
    lines, start = len(cells), 0
    # Bytes up to the beginning of each line: it ascends, so the end of a block is found by bisection.
    until = cells.indptr.double() * per_cell + torch.arange(lines + 1, dtype=torch.float64) * per_line
    while start < lines:
        last = int(torch.searchsorted(until, until[start] + budget, right=True)) - 1
        stop = min(lines, max(start + 1, last))
        yield slice(start, stop), cells.block(start, stop)
        start = stop


def column_sums(numbers: Tensor) -> Tensor:
    """The sum of each column (lines, columns), in double precision: (columns,)."""
    total = torch.zeros(numbers.shape[1], dtype=torch.float64)
    for part in stretches(len(numbers), 8 * max(1, numbers.shape[1])):
        total += numbers[part].double().sum(0)
    return total


def gram(left: Tensor, right: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σ weight · left · rightᵀ over lines, in double precision: (columns of left, columns of right)."""
    total = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64)
    for part in stretches(len(left), 8 * max(1, left.shape[1] + right.shape[1])):
        near = left[part].double()
        if weights is not None:
            near = near * weights[part].double()[:, None]
        total += near.T @ right[part].double()
    return total
