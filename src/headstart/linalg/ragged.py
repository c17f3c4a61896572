"""Sums and products over ragged batches (``Cells``), in blocks that fit into memory.

``Cells`` is a ragged batch: each of its *lines* has some observations, and the ``index`` of an observation
is a row of another matrix, here called the table.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headstart.linalg.packed import append_one, unpack
from headstart.parallel import parallel_map
from headstart.table.cells import Cells

BUDGET = 2**28  # bytes of temporary memory per block

PER_NUMBER = 48  # bytes per entry of a line's matrix: about six temporaries, some in double precision

PER_CELL = 64  # bytes per observation: indices, weights and their order

# Below this share of observed cells, computing only these beats one dense product (measured: forwards and
# backwards, a gathered cell costs as much as 100 to 150 cells of a GEMM).
DENSE_FROM = 0.02

_COLUMNS = 32  # columns of a table summed at a time, so that they stay in the processor's cache

_CACHED_TABLE = 2**17  # numbers of a table that stays in the cache as a whole

_INT32_MAX = 2**31 - 1

_BLOCK_SIZE = 1 << 17  # numbers per block: few enough to stay in a processor's cache

_MAX_PADDING = 1 << 16  # zeros of padding that cost less than the calls for one more block


def row_slices(lines: int, per_line: int, budget: int | None = None) -> Iterator[slice]:
    """Cut ``lines`` lines of ``per_line`` bytes into slices of at most ``budget`` bytes or one line.

    >>> list(row_slices(5, per_line=4, budget=9))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, (BUDGET if budget is None else budget) // max(1, per_line))
    for start in range(0, lines, step):
        yield slice(start, min(lines, start + step))


def line_blocks(cells: Cells, per_line: int, per_cell: int = PER_CELL) -> Iterator[tuple[slice, Cells]]:
    """Yield blocks of consecutive lines with their slices, without copying.

    A block of ``per_line`` bytes per line and ``per_cell`` bytes per observation stays within ``BUDGET``
    bytes, or has one line.
    """
    lines, start = len(cells), 0
    # Bytes before each line; ascending, so that the end of a block is found by bisection.
    until = cells.indptr.double() * per_cell + torch.arange(lines + 1, dtype=torch.float64) * per_line
    while start < lines:
        last = int(torch.searchsorted(until, until[start] + BUDGET, right=True)) - 1
        stop = min(lines, max(start + 1, last))
        yield slice(start, stop), cells.block(start, stop)
        start = stop


def column_sums(numbers: Tensor) -> Tensor:
    """Sum each column of (lines, columns) in double precision: (columns,)."""
    total = torch.zeros(numbers.shape[1], dtype=torch.float64)
    for part in row_slices(len(numbers), 8 * max(1, numbers.shape[1])):
        total += numbers[part].double().sum(0)
    return total


def gram(left: Tensor, right: Tensor) -> Tensor:
    """Compute leftᵀ · right in double precision: (columns of left, columns of right)."""
    total = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64)
    for part in row_slices(len(left), 8 * max(1, left.shape[1] + right.shape[1])):
        total += left[part].double().T @ right[part].double()
    return total


def _csr(indptr: Tensor, index: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    # Both indices must have one type. MKL uses 4 bytes, and would copy 8-byte indices for every product.
    small = len(index) <= _INT32_MAX and max(shape) <= _INT32_MAX
    indptr, index = (part.int() if small else part.long() for part in (indptr, index))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(indptr, index, values, shape, check_invariants=False)


def _product(matrix: Tensor, table: Tensor) -> Tensor:
    """Multiply a sparse matrix (lines, width) by a dense table (width, size): (lines, size).

    A wide table is multiplied in slices of columns, which is 1.5 to 4 times as fast: its rows are accessed
    at random, and a slice stays in the processor's cache, as a small table does.
    """
    size = table.shape[1]
    if size < 2 * _COLUMNS or table.numel() <= _CACHED_TABLE or table.device.type != "cpu":
        return matrix @ table
    result = table.new_empty(matrix.shape[0], size)

    def fill(start: int) -> None:
        part = slice(start, start + _COLUMNS)
        result[:, part] = matrix @ table[:, part].contiguous()

    for _ in parallel_map(fill, range(0, size, _COLUMNS)):
        pass
    return result


def _group_by_index(cells: Cells) -> tuple[Tensor, Tensor, Tensor]:
    """Group the observations by index: the start of each group, the order, and the lines in this order.

    SciPy converts compressed rows to columns by counting, 6 times as fast as argsort.
    """
    if cells.index.device.type != "cpu":  # SciPy reads main memory only
        order, starts = cells.by_index()
        return starts, order, cells.lines[order]
    from scipy.sparse import csr_array  # imported here: few uses of the package need SciPy

    positions = np.arange(len(cells.index), dtype=np.int32)
    rows = csr_array((positions, cells.index.numpy(), cells.indptr.numpy()), shape=(len(cells), cells.width))
    columns = rows.tocsc()
    starts, order, lines = (torch.from_numpy(a) for a in (columns.indptr, columns.data, columns.indices))
    return starts, order, lines


class _SegmentWeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, cells: Cells, weights: Tensor | None) -> Tensor:
        ctx.cells = cells
        ctx.weights = table.new_ones(len(cells.index)) if weights is None else weights
        return _product(_csr(cells.indptr, cells.index, ctx.weights, (len(cells), cells.width)), table)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cells: Cells = ctx.cells
        starts, order, lines = _group_by_index(cells)
        back = _csr(starts, lines, ctx.weights[order], (cells.width, len(cells)))
        return _product(back, grad), None, None


def segment_weighted_sum(table: Tensor, cells: Cells, weights: Tensor | None = None) -> Tensor:
    """Sum the rows of ``table`` (width, size) at each line's indices, with ``weights`` (n,): (lines, size).

    It equals ``embedding_bag(mode="sum")``; as products of sparse and dense matrices, forward and backward
    are about 1.4 times as fast on a CPU.
    """
    if len(cells) == 1 and not torch.is_grad_enabled():  # one line needs no sparse matrix
        rows = table.index_select(0, cells.index)
        return rows.sum(0, keepdim=True) if weights is None else weights[None] @ rows
    result: Tensor = _SegmentWeightedSum.apply(table, cells, weights)  # type: ignore[no-untyped-call]
    return result


class TransposedSum:
    """The sums of ``segment_weighted_sum`` over transposed cells.

    The observations are sorted by index once, for any number of sums.
    """

    def __init__(self, cells: Cells) -> None:
        self._starts, self._order, self._lines = _group_by_index(cells)
        self._shape = (cells.width, len(cells))

    def add(self, total: Tensor, table: Tensor, weights: Tensor | None = None) -> None:
        """Add the weighted sums of the rows of ``table`` (lines, size) to ``total`` (width, size)."""
        if len(self._order) == 0:
            return
        ordered = table.new_ones(len(self._order)) if weights is None else weights[self._order]
        total += _product(_csr(self._starts, self._lines, ordered, self._shape), table)


class _SegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, indptr: Tensor) -> Tensor:
        ctx.counts = indptr.diff()
        positions = torch.arange(len(hidden), device=hidden.device)
        ones = hidden.new_ones(len(positions))
        return _csr(indptr, positions, ones, (len(ctx.counts), len(positions))) @ hidden

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.index_select(0, torch.repeat_interleave(ctx.counts)), None


def segment_sum(hidden: Tensor, indptr: Tensor) -> Tensor:
    """Sum ``hidden`` (n, size) over each line's slice ``indptr[i]:indptr[i+1]``: (lines, size)."""
    if len(indptr) == 2 and not torch.is_grad_enabled():
        return hidden.sum(0, keepdim=True)
    result: Tensor = _SegmentSum.apply(hidden, indptr)  # type: ignore[no-untyped-call]
    return result


def segment_max(hidden: Tensor, cells: Cells) -> Tensor:
    """Return the largest of ``hidden`` (n, size) over the observations of each line: (lines, size).

    It is 0 for a line without observations.
    """
    line = cells.lines[:, None].expand_as(hidden)
    zeros = hidden.new_zeros(len(cells), hidden.shape[1])
    return zeros.scatter_reduce(0, line, hidden, "amax", include_self=False)


def segment_softmax(scores: Tensor, cells: Cells) -> Tensor:
    """Return exp(``scores``) (n, size), divided by its sum over the line: (n, size)."""
    largest = segment_max(scores.detach(), cells)  # without it, large scores overflow
    powers = (scores - largest[cells.lines]).exp()
    return powers / segment_sum(powers, cells.indptr)[cells.lines]


class _FoldedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slope: Tensor, shift: Tensor, cells: Cells) -> Tensor:
        hidden = shift.index_select(0, cells.index)
        hidden.addcmul_(cells.values[:, None], slope.index_select(0, cells.index)).relu_()
        ctx.cells, ctx.hidden = cells, hidden
        positions = torch.arange(len(cells.index), device=hidden.device)
        ones = hidden.new_ones(len(positions))
        return _csr(cells.indptr, positions, ones, (len(cells), len(positions))) @ hidden

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        cells: Cells = ctx.cells
        by_observation = grad.index_select(0, cells.lines)
        hidden = torch.ops.aten.threshold_backward(by_observation, ctx.hidden, 0)  # through the ReLU
        starts, order, _ = _group_by_index(cells)
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
        return (left.index_select(0, cells.lines) * right.index_select(0, cells.index)).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        left, right = ctx.saved_tensors
        cells: Cells = ctx.cells
        to_left = to_right = None
        if ctx.needs_input_grad[0]:
            to_left = _csr(cells.indptr, cells.index, grad, (len(cells), cells.width)) @ right
        if ctx.needs_input_grad[1]:
            starts, order, lines = _group_by_index(cells)
            to_right = _csr(starts, lines, grad[order], (cells.width, len(cells))) @ left
        return to_left, to_right, None


def sampled_products(left: Tensor, right: Tensor, cells: Cells) -> Tensor:
    """Compute ``left[line] · right[index]`` for every observation: (n,).

    Chooses the cheaper way: one dense product and a gather, or the observed cells only.
    """
    area = len(left) * len(right)
    if len(cells.index) >= DENSE_FROM * area:
        dense = left @ right.T
        return dense.view(-1).index_select(0, cells.lines * len(right) + cells.index)
    result: Tensor = _SampledProduct.apply(left, right, cells)  # type: ignore[no-untyped-call]
    return result


def all_equal(cells: Cells) -> tuple[Tensor, Tensor]:
    """Return whether each line has two or more values, all equal, and its first value: two of (lines,)."""
    values = torch.cat([cells.values, cells.values.new_zeros(1)])
    first = values[cells.indptr[:-1]]
    different = (cells.values != first[cells.lines]).to(cells.values.dtype)
    return (cells.counts > 1) & (segment_sum(different[:, None], cells.indptr)[:, 0] == 0), first


def groups_of_similar_counts(
    counts: Tensor, size: int, keep_apart: Tensor | None = None, budget: int | None = None
) -> Iterator[Tensor]:
    """Divide lines into groups of similar counts, to be padded to blocks of ``size`` numbers per observation.

    The counts of a group differ at most fourfold, or so little that padding costs less than another block.
    No group mixes two values of ``keep_apart`` (lines,), and a block of more than one line has at most
    ``budget`` numbers. Every line is in exactly one group.

    >>> [group.tolist() for group in groups_of_similar_counts(torch.tensor([9, 0, 1, 12]), size=2)]
    [[1, 2, 0, 3]]
    >>> [group.tolist() for group in groups_of_similar_counts(torch.tensor([9, 0, 1, 12]), size=2**15)]
    [[1, 2], [0], [3]]
    """
    kinds = torch.zeros_like(counts) if keep_apart is None else keep_apart.long()
    order = torch.argsort(counts + (kinds << 40), stable=True)
    ordered = counts[order]
    bucket = torch.ceil(torch.log2(ordered.float() + 1) / 2).long() + 100 * kinds[order]
    names, lengths = torch.unique_consecutive(bucket, return_counts=True)
    start = stop = 0
    for number, length in enumerate(lengths.tolist()):
        stop += length
        if number + 1 < len(names) and int(names[number]) // 100 == int(names[number + 1]) // 100:
            longest = int(ordered[stop + int(lengths[number + 1]) - 1])
            zeros = ((stop - start) * longest - int(ordered[start:stop].sum())) * size
            if zeros <= _MAX_PADDING:
                continue
        yield from torch.split(
            order[start:stop], max(1, (budget or _BLOCK_SIZE) // ((int(ordered[stop - 1]) + 1) * size))
        )
        start = stop


def positions_in_line(cells: Cells) -> Tensor:
    """Return the position of each observation within its line: (n,)."""
    return torch.arange(len(cells.index), device=cells.index.device) - cells.indptr[cells.lines]


def ranks_in_line(cells: Cells, keys: Tensor) -> Tensor:
    """Return the rank of each observation among those of its line, by ``keys`` (n,) in [0, 1): (n,)."""
    order = torch.argsort(cells.lines + keys)
    ranks = torch.empty_like(order)
    ranks[order] = positions_in_line(cells)
    return ranks


def pad(numbers: Tensor, cells: Cells) -> Tensor:
    """Pad ``numbers`` of the observations (n, …) with zeros to a block (lines, most, …)."""
    most = int(cells.counts.max()) if len(cells.index) else 0
    if most * len(cells) == len(numbers):
        return numbers.reshape(len(cells), most, *numbers.shape[1:])  # no line is shorter
    block = numbers.new_zeros(len(cells), most, *numbers.shape[1:])
    block[cells.lines, positions_in_line(cells)] = numbers
    return block


def pad_rows(vectors: Tensor, cells: Cells) -> Tensor:
    """Gather [v; 1] of the ``vectors`` (width, size − 1) at each line's indices: (lines, most, size).

    Shorter lines are padded with an arbitrary vector, which needs the weight 0.
    """
    index = pad(cells.index, cells)
    return append_one(vectors.index_select(0, index.view(-1))).view(*index.shape, vectors.shape[1] + 1)


def outputs_at(weights: Tensor, matrices: Tensor, vectors: Tensor, cells: Cells) -> tuple[Tensor, Tensor]:
    """Compute w·[v; 1] and [v; 1]ᵀ·M·[v; 1] for every observation: two of (n,).

    w and M belong to the line: ``weights`` (lines, size), ``matrices`` (lines, packed). v belongs to the
    index: ``vectors`` (width, size − 1).
    """
    size = vectors.shape[1] + 1
    if len(cells) == 1:  # one matrix product is cheaper than blocks
        rows = append_one(vectors.index_select(0, cells.index))
        return rows @ weights[0], ((rows @ unpack(matrices, size)[0]) * rows).sum(1)

    def compute(block: Tensor, group: Tensor) -> tuple[Tensor, ...]:
        mean = (block @ weights[group][:, :, None])[:, :, 0]
        return mean, ((block @ unpack(matrices[group], size)) * block).sum(2)

    means, forms = _at_observations(compute, 2, vectors, cells)
    return means, forms


def hidden_outputs_at(hidden: Tensor, outer: Tensor, vectors: Tensor, cells: Cells) -> Tensor:
    """Compute v·relu(U·[d; 1]) for every observation: (n,).

    U and v belong to the line: ``hidden`` (lines, units, size), ``outer`` (lines, units). d belongs to the
    index: ``vectors`` (width, size − 1).
    """

    def compute(block: Tensor, group: Tensor) -> tuple[Tensor, ...]:
        units = (block @ hidden[group].transpose(1, 2)).relu()
        return ((units @ outer[group][:, :, None])[:, :, 0],)

    return _at_observations(compute, 1, vectors, cells, hidden.shape[1])[0]


def _at_observations(
    compute: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    results: int,
    vectors: Tensor,
    cells: Cells,
    columns: int = 1,
) -> list[Tensor]:
    """Compute ``results`` numbers of every observation in padded blocks of similar lines: (n,) each.

    ``compute`` maps [v; 1] at the observations of some lines (lines, most, size) and the positions of these
    lines to numbers (lines, most). It needs the memory of ``columns`` or of size numbers per observation,
    of the larger of both.
    """
    size = vectors.shape[1] + 1
    positions = torch.arange(len(cells.index), device=cells.index.device)
    numbered = Cells(cells.indptr, positions, cells.values, len(positions))
    parts: list[list[Tensor]] = [[vectors.new_zeros(0)] for _ in range(results)]
    order = [positions[:0]]
    for group in groups_of_similar_counts(cells.counts, max(size, columns)):
        part = numbered.take(group)
        block = pad_rows(vectors, replace(part, index=cells.index[part.index]))
        in_block = part.lines * block.shape[1] + positions_in_line(part)
        for numbers, computed in zip(parts, compute(block, group), strict=True):
            numbers.append(computed.reshape(-1).index_select(0, in_block))
        order.append(part.index)
    original = torch.argsort(torch.cat(order))
    return [torch.cat(numbers)[original] for numbers in parts]
