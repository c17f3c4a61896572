"""Sums and products over ragged batches, each by the cheapest exact path."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from headstart.table.cells import Cells, offsets

# Below this share of observed cells, touching only those beats one dense product of all of them
# (measured in benchmarks/epochs.py: a gathered cell costs about as much as 70 cells of a GEMM).
DENSE_FROM = 0.014


def _csr(indptr: Tensor, index: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(indptr, index, values, shape)


def _by_index(cells: Cells) -> tuple[Tensor, Tensor]:
    """Order of the observations sorted by what they point at, and where each group begins."""
    return torch.argsort(cells.index), offsets(torch.bincount(cells.index, minlength=cells.width))


class _Bag(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, cells: Cells) -> Tensor:
        ctx.cells = cells
        ones = table.new_ones(len(cells.index))
        return _csr(cells.indptr, cells.index, ones, (len(cells), cells.width)) @ table

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        cells: Cells = ctx.cells
        order, starts = _by_index(cells)
        ones = grad.new_ones(len(order))
        return _csr(starts, cells.lines[order], ones, (cells.width, len(cells))) @ grad, None


def bag(table: Tensor, cells: Cells) -> Tensor:
    """Sum the rows of ``table`` (width, size) that each line points at: (lines, size).

    The same as ``embedding_bag(mode="sum")``; as products of sparse and dense matrices both
    directions run about 1.4 times faster on a CPU.
    """
    result: Tensor = _Bag.apply(table, cells)  # type: ignore[no-untyped-call]
    return result


class _FoldedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slope: Tensor, shift: Tensor, cells: Cells) -> Tensor:
        hidden = slope.index_select(0, cells.index)
        hidden.mul_(cells.values[:, None]).add_(shift.index_select(0, cells.index)).relu_()
        ctx.cells, ctx.positive = cells, hidden > 0
        each = torch.arange(len(cells.index))
        ones = hidden.new_ones(len(each))
        return _csr(cells.indptr, each, ones, (len(cells), len(each))) @ hidden

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        cells: Cells = ctx.cells
        hidden = grad.index_select(0, cells.lines).mul_(ctx.positive)
        order, starts = _by_index(cells)
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
        return torch.linalg.vecdot(left.index_select(0, cells.lines), right.index_select(0, cells.index))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        left, right = ctx.saved_tensors
        cells: Cells = ctx.cells
        to_left = to_right = None
        if ctx.needs_input_grad[0]:
            to_left = _csr(cells.indptr, cells.index, grad, (len(cells), cells.width)) @ right
        if ctx.needs_input_grad[1]:
            order, starts = _by_index(cells)
            shape = (cells.width, len(cells))
            to_right = _csr(starts, cells.lines[order], grad[order], shape) @ left
        return to_left, to_right, None


def products_at(left: Tensor, right: Tensor, cells: Cells) -> Tensor:
    """Compute ``left[line] · right[index]`` for every observation: (n,).

    Either one dense product and a gather, or only the observed cells, whichever costs less.
    """
    area = len(left) * len(right)
    if len(cells.index) >= DENSE_FROM * area:
        dense = left @ right.T
        return dense.view(-1).index_select(0, cells.lines * len(right) + cells.index)
    result: Tensor = _SampledProduct.apply(left, right, cells)  # type: ignore[no-untyped-call]
    return result
