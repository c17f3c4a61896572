"""Sum and multiply over ragged batches, each by the cheapest exact path."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headstart.linalg.packed import append_one, unpack
from headstart.parallel import parallel_map
from headstart.table.cells import Cells

BUDGET = 2**28  # bytes that one block may take in between

PER_NUMBER = 48  # bytes that a number of a line's matrices takes: about six of them, some in double precision

PER_CELL = 64  # bytes that an observation takes in between: its indices, weights and their order


def row_slices(lines: int, per_line: int, budget: int | None = None) -> Iterator[slice]:
    """Cut so many lines into stretches that take ``per_line`` bytes a line, at least a line each.

    >>> list(row_slices(5, per_line=4, budget=9))
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
    for part in row_slices(len(numbers), 8 * max(1, numbers.shape[1])):
        total += numbers[part].double().sum(0)
    return total


def gram(left: Tensor, right: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σ weight · left · rightᵀ over lines, in double precision: (columns of left, columns of right)."""
    total = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64)
    for part in row_slices(len(left), 8 * max(1, left.shape[1] + right.shape[1])):
        near = left[part].double()
        if weights is not None:
            near = near * weights[part].double()[:, None]
        total += near.T @ right[part].double()
    return total


# Below this share of observed cells, touching only those beats one dense product of all of them
# (measured: with its way back, a gathered cell costs as much as 100 to 150 cells of a GEMM).
DENSE_FROM = 0.02

_COLUMNS = 32  # of a table that are summed at a time, so that the processor's cache holds them

_MOST_SMALL = 2**31 - 1  # observations, lines or positions that numbers of 4 bytes tell apart


def _csr(indptr: Tensor, index: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    # Both must be of one type. MKL takes 4 bytes: of 8 it would make copies for every product.
    small = len(index) <= _MOST_SMALL and max(shape) <= _MOST_SMALL
    indptr, index = (part.int() if small else part.long() for part in (indptr, index))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(indptr, index, values, shape, check_invariants=False)


def _product(matrix: Tensor, table: Tensor) -> Tensor:
    """matrix · table of a sparse matrix (lines, width) and a table (width, size): (lines, size).

    A wide table is read in slices of columns, which is 1.5 to 4 times as fast: rows are picked from it at
    random, and a slice of all of them stays in the processor's cache.
    """
    size = table.shape[1]
    if size < 2 * _COLUMNS or table.device.type != "cpu":
        return matrix @ table
    result = table.new_empty(matrix.shape[0], size)

    def fill(start: int) -> None:
        part = slice(start, start + _COLUMNS)
        result[:, part] = matrix @ table[:, part].contiguous()

    for _ in parallel_map(fill, range(0, size, _COLUMNS)):
        pass
    return result


def _by_index(cells: Cells) -> tuple[Tensor, Tensor, Tensor]:
    """The observations grouped by what they point at: where groups begin, their order, their lines.

    SciPy's change from compressed rows to columns counts instead of sorting: 6 times faster than argsort.
    """
    if cells.index.device.type != "cpu":  # SciPy reads main memory only
        order, starts = cells.by_index()
        return starts, order, cells.lines[order]
    from scipy.sparse import csr_array  # imported here: few uses of the package need SciPy

    each = np.arange(len(cells.index), dtype=np.int32)
    rows = csr_array((each, cells.index.numpy(), cells.indptr.numpy()), shape=(len(cells), cells.width))
    columns = rows.tocsc()
    starts, order, lines = (torch.from_numpy(a) for a in (columns.indptr, columns.data, columns.indices))
    return starts, order, lines


class _Bag(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, cells: Cells, weights: Tensor | None) -> Tensor:
        ctx.cells = cells
        ctx.weights = table.new_ones(len(cells.index)) if weights is None else weights
        return _product(_csr(cells.indptr, cells.index, ctx.weights, (len(cells), cells.width)), table)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cells: Cells = ctx.cells
        starts, order, lines = _by_index(cells)
        back = _csr(starts, lines, ctx.weights[order], (cells.width, len(cells)))
        return _product(back, grad), None, None


def segment_weighted_sum(table: Tensor, cells: Cells, weights: Tensor | None = None) -> Tensor:
    """Sum the rows of ``table`` (width, size) that each line points at: (lines, size).

    The same as ``embedding_bag(mode="sum")`` with ``weights`` (n,) if given; as products of sparse
    and dense matrices both directions run about 1.4 times faster on a CPU.
    """
    if len(cells) == 1 and not torch.is_grad_enabled():  # one line needs no sparse matrix
        picked = table.index_select(0, cells.index)
        return picked.sum(0, keepdim=True) if weights is None else weights[None] @ picked
    result: Tensor = _Bag.apply(table, cells, weights)  # type: ignore[no-untyped-call]
    return result


class TransposedSum:
    """Sum over the lines that point at each index: ``segment_weighted_sum`` of the transposed cells.

    The observations are put into the order of the index once, for any number of sums.
    """

    def __init__(self, cells: Cells) -> None:
        self._starts, self._order, self._lines = _by_index(cells)
        self._shape = (cells.width, len(cells))

    def add(self, total: Tensor, table: Tensor, weights: Tensor | None = None) -> None:
        """Add to ``total`` (width, size) the rows of ``table`` (lines, size), weighted by (n,) if given."""
        if len(self._order) == 0:
            return
        ordered = table.new_ones(len(self._order)) if weights is None else weights[self._order]
        total += _product(_csr(self._starts, self._lines, ordered, self._shape), table)


class _SegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, indptr: Tensor) -> Tensor:
        ctx.counts = indptr.diff()
        each = torch.arange(len(hidden), device=hidden.device)
        return _csr(indptr, each, hidden.new_ones(len(each)), (len(ctx.counts), len(each))) @ hidden

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.index_select(0, torch.repeat_interleave(ctx.counts)), None


def segment_sum(hidden: Tensor, indptr: Tensor) -> Tensor:
    """Sum ``hidden`` (n, size) over each line's stretch ``indptr[i]:indptr[i+1]``: (lines, size)."""
    if len(indptr) == 2 and not torch.is_grad_enabled():
        return hidden.sum(0, keepdim=True)
    result: Tensor = _SegmentSum.apply(hidden, indptr)  # type: ignore[no-untyped-call]
    return result


class _FoldedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slope: Tensor, shift: Tensor, cells: Cells) -> Tensor:
        hidden = shift.index_select(0, cells.index)
        hidden.addcmul_(cells.values[:, None], slope.index_select(0, cells.index)).relu_()
        ctx.cells, ctx.hidden = cells, hidden
        each = torch.arange(len(cells.index), device=hidden.device)
        ones = hidden.new_ones(len(each))
        return _csr(cells.indptr, each, ones, (len(cells), len(each))) @ hidden

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        cells: Cells = ctx.cells
        spread = grad.index_select(0, cells.lines)
        hidden = torch.ops.aten.threshold_backward(spread, ctx.hidden, 0)  # through the ReLU
        starts, order, _ = _by_index(cells)
        shape = (cells.width, len(order))
        to_slope = _csr(starts, order, cells.values[order], shape) @ hidden
        to_shift = _csr(starts, order, grad.new_ones(len(order)), shape) @ hidden
        return to_slope, to_shift, None


def folded_sum(slope: Tensor, shift: Tensor, cells: Cells) -> Tensor:
    """Sum ``relu(value * slope[j] + shift[j])`` over each line's observations: (lines, size)."""
    result: Tensor = _FoldedSum.apply(slope, shift, cells)  # type: ignore[no-untyped-call]
    return result


class _SampledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, cells: Cells) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.cells = cells
        near, far = left.index_select(0, cells.lines), right.index_select(0, cells.index)
        return (near * far).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        left, right = ctx.saved_tensors
        cells: Cells = ctx.cells
        to_left = to_right = None
        if ctx.needs_input_grad[0]:
            to_left = _csr(cells.indptr, cells.index, grad, (len(cells), cells.width)) @ right
        if ctx.needs_input_grad[1]:
            starts, order, lines = _by_index(cells)
            to_right = _csr(starts, lines, grad[order], (cells.width, len(cells))) @ left
        return to_left, to_right, None


def sampled_products(left: Tensor, right: Tensor, cells: Cells) -> Tensor:
    """Compute ``left[line] · right[index]`` for every observation: (n,).

    Either one dense product and a gather, or only the observed cells, whichever costs less.
    """
    area = len(left) * len(right)
    if len(cells.index) >= DENSE_FROM * area:
        dense = left @ right.T
        return dense.view(-1).index_select(0, cells.lines * len(right) + cells.index)
    result: Tensor = _SampledProduct.apply(left, right, cells)  # type: ignore[no-untyped-call]
    return result


def all_equal(cells: Cells) -> tuple[Tensor, Tensor]:
    """Whether each line has two or more values, all of them equal, and the first: two of (lines,)."""
    values = torch.cat([cells.values, cells.values.new_zeros(1)])
    first = values[cells.indptr[:-1]]
    different = (cells.values != first[cells.lines]).to(cells.values.dtype)
    return (cells.counts > 1) & (segment_sum(different[:, None], cells.indptr)[:, 0] == 0), first


_BUDGET = 1 << 17  # numbers in one block: few enough to stay in a processor's cache

_WORTH = 1 << 16  # zeros of padding that cost less than the calls for one more block


def blocks(
    counts: Tensor, size: int, apart: Tensor | None = None, budget: int | None = None
) -> Iterator[Tensor]:
    """Part lines into groups of similar counts whose blocks stay small.

    Counts of a group differ at most fourfold, or so little that padding costs less than another block. No
    group mixes two values of ``apart`` (lines,), and a block of more than one line has at most ``budget``
    numbers. Every line is in exactly one group.

    >>> [group.tolist() for group in blocks(torch.tensor([9, 0, 1, 12]), size=2)]
    [[1, 2, 0, 3]]
    >>> [group.tolist() for group in blocks(torch.tensor([9, 0, 1, 12]), size=2**15)]
    [[1, 2], [0], [3]]
    """
    kinds = torch.zeros_like(counts) if apart is None else apart.long()
    order = torch.argsort(counts + (kinds << 40), stable=True)
    ordered = counts[order]
    bucket = torch.ceil(torch.log2(ordered.float() + 1) / 2).long() + 100 * kinds[order]
    names, lengths = torch.unique_consecutive(bucket, return_counts=True)
    start = stop = 0
    for place, length in enumerate(lengths.tolist()):
        stop += length
        if place + 1 < len(names) and int(names[place]) // 100 == int(names[place + 1]) // 100:
            longest = int(ordered[stop + int(lengths[place + 1]) - 1])
            zeros = ((stop - start) * longest - int(ordered[start:stop].sum())) * size
            if zeros <= _WORTH:
                continue
        yield from torch.split(
            order[start:stop], max(1, (budget or _BUDGET) // ((int(ordered[stop - 1]) + 1) * size))
        )
        start = stop


def places(cells: Cells) -> Tensor:
    """The place of each observation in its line: (n,)."""
    return torch.arange(len(cells.index), device=cells.index.device) - cells.indptr[cells.lines]


def pad(numbers: Tensor, cells: Cells) -> Tensor:
    """Put what there is of each observation (n, …) into a block of (lines, most, …), zeros elsewhere."""
    most = int(cells.counts.max()) if len(cells.index) else 0
    block = numbers.new_zeros(len(cells), most, *numbers.shape[1:])
    block[cells.lines, places(cells)] = numbers
    return block


def pad_rows(vectors: Tensor, cells: Cells) -> Tensor:
    """[v; 1] of the ``vectors`` (width, size − 1) that each line points at: (lines, most, size).

    Where a line ends before the longest one, some vector fills its place: give it no weight.
    """
    index = pad(cells.index, cells)
    return append_one(vectors.index_select(0, index.view(-1))).view(*index.shape, vectors.shape[1] + 1)


def outputs_at(weights: Tensor, matrices: Tensor, vectors: Tensor, cells: Cells) -> tuple[Tensor, Tensor]:
    """w·[v; 1] and [v; 1]ᵀ·M·[v; 1] with each line's w and packed M, and each observation's v: two of (n,).

    ``weights`` is (lines, size), ``matrices`` (lines, packed), ``vectors`` (width, size − 1).
    """
    size = vectors.shape[1] + 1
    if len(cells) == 1:  # one product of matrices; parting a single line into blocks would cost more
        near = append_one(vectors.index_select(0, cells.index))
        return near @ weights[0], ((near @ unpack(matrices, size)[0]) * near).sum(1)
    where = torch.arange(len(cells.index), device=cells.index.device)
    origins = Cells(cells.indptr, where, cells.values, len(where))
    means, forms, order = [vectors.new_zeros(0)], [vectors.new_zeros(0)], [where[:0]]
    for group in blocks(cells.counts, size):
        part = origins.take(group)
        block = pad_rows(vectors, replace(part, index=cells.index[part.index]))
        at = part.lines * block.shape[1] + places(part)
        mean = (block @ weights[group][:, :, None]).view(-1)
        form = ((block @ unpack(matrices[group], size)) * block).sum(2).view(-1)
        means.append(mean.index_select(0, at))
        forms.append(form.index_select(0, at))
        order.append(part.index)
    back = torch.argsort(torch.cat(order))
    return torch.cat(means)[back], torch.cat(forms)[back]
