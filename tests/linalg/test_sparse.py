"""Every fast path against a loop that anyone can check."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backbones.conftest import random_cells
from tests.limits import Limits, limits
from torch.nn import functional as F

from headstart.linalg import ragged as sparse
from headstart.table.cells import Cells

shapes = given(
    rows=st.integers(1, 7), features=st.integers(1, 6), density=st.floats(0, 1), seed=st.integers(0, 99)
)


def lines_of(cells: Cells) -> list[list[tuple[int, float]]]:
    ends = cells.indptr.tolist()
    pairs = list(zip(cells.index.tolist(), cells.values.tolist(), strict=True))
    return [pairs[a:b] for a, b in pairwise(ends)]


def gradients(output: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    weights = torch.arange(output.numel(), dtype=output.dtype).view_as(output).sin()
    return list(torch.autograd.grad((output * weights).sum(), inputs))


@shapes
@settings(max_examples=30, deadline=None)
def test_bag_is_a_loop_of_sums(rows: int, features: int, density: float, seed: int) -> None:
    cells = random_cells(rows, features, density, seed)
    table = torch.randn(features, 4, dtype=torch.float64, requires_grad=True)
    for weighted in (False, True):
        weights = cells.values.double() if weighted else None
        fast = sparse.segment_weighted_sum(table, cells, weights)
        slow = torch.stack(
            [sum((table[j] * (x if weighted else 1) for j, x in line), torch.zeros(4).double())
             for line in lines_of(cells)]
        )  # fmt: skip
        torch.testing.assert_close(fast, slow)
        if len(cells.index):
            torch.testing.assert_close(gradients(fast, table), gradients(slow, table))


@shapes
@settings(max_examples=20, deadline=None)
def test_softmax_and_largest_are_those_of_each_line(
    rows: int, features: int, density: float, seed: int
) -> None:
    cells = random_cells(rows, features, density, seed)
    numbers = 300 * torch.randn(len(cells.index), 2, generator=torch.Generator().manual_seed(seed))
    numbers = numbers.double().requires_grad_()
    shares, largest = sparse.segment_softmax(numbers, cells), sparse.segment_max(numbers, cells)
    lines = [numbers[a:b] for a, b in pairwise(cells.indptr.tolist())]
    slow = torch.cat([torch.softmax(line, dim=0) for line in lines])
    slow_largest = torch.stack([line.max(0).values if len(line) else torch.zeros(2) for line in lines])
    torch.testing.assert_close(shares, slow)
    torch.testing.assert_close(largest, slow_largest.double())
    if len(cells.index):
        torch.testing.assert_close(gradients(shares, numbers), gradients(slow, numbers))
        torch.testing.assert_close(gradients(largest, numbers), gradients(slow_largest, numbers))


@shapes
@settings(max_examples=30, deadline=None)
def test_folded_sum_is_a_loop_of_relus(rows: int, features: int, density: float, seed: int) -> None:
    cells = random_cells(rows, features, density, seed, grid=None)
    cells = Cells(cells.indptr, cells.index, cells.values.double(), cells.width)
    slope = torch.randn(features, 3, dtype=torch.float64, requires_grad=True)
    shift = torch.randn(features, 3, dtype=torch.float64, requires_grad=True)
    fast = sparse.folded_sum(slope, shift, cells)
    slow = torch.stack(
        [sum((torch.relu(x * slope[j] + shift[j]) for j, x in line), torch.zeros(3).double())
         for line in lines_of(cells)]
    )  # fmt: skip
    torch.testing.assert_close(fast, slow)
    if len(cells.index):
        torch.testing.assert_close(gradients(fast, slope, shift), gradients(slow, slope, shift))


@pytest.mark.parametrize("dense_from", [0.0, 2.0], ids=["dense", "only observed cells"])
@shapes
@settings(max_examples=30, deadline=None)
def test_products_at_is_a_loop_of_dots(
    dense_from: float, rows: int, features: int, density: float, seed: int
) -> None:
    cells = random_cells(rows, features, density, seed)
    left = torch.randn(rows, 5, dtype=torch.float64, requires_grad=True)
    right = torch.randn(features, 5, dtype=torch.float64, requires_grad=True)
    with limits(dense_from_density=dense_from):
        fast = sparse.sampled_products(left, right, cells)
    dots = [left[i] @ right[j] for i, line in enumerate(lines_of(cells)) for j, _ in line]
    slow = torch.stack(dots) if dots else torch.zeros(0).double()
    torch.testing.assert_close(fast, slow)
    if dots:
        torch.testing.assert_close(gradients(fast, left, right), gradients(slow, left, right))


def test_segment_sum_agrees_with_embedding_bag() -> None:
    hidden = torch.randn(9, 3, requires_grad=True)
    indptr = torch.tensor([0, 2, 2, 9])
    expected = F.embedding_bag(torch.arange(9), hidden, indptr[:-1], mode="sum")
    found = sparse.segment_sum(hidden, indptr)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, hidden), gradients(expected, hidden))


@shapes
@settings(max_examples=30, deadline=None)
def test_sums_backwards_are_loops_however_often_they_are_asked_for(
    rows: int, features: int, density: float, seed: int
) -> None:
    cells = random_cells(rows, features, density, seed)
    back = sparse.TransposedSum(cells)
    generator = torch.Generator().manual_seed(seed)
    for weighted in (False, True, False):
        table = torch.randn(rows, 3, dtype=torch.float64, generator=generator)
        weights = torch.rand(len(cells.index), dtype=torch.float64, generator=generator)
        found = torch.ones(features, 3, dtype=torch.float64)
        expected = found.clone()
        back.add(found, table, weights if weighted else None)
        pairs = zip(cells.lines.tolist(), cells.index.tolist(), weights, strict=True)
        for line, index, weight in pairs:
            expected[index] += (weight if weighted else 1) * table[line]
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_products_do_not_depend_on_how_an_index_is_held(kind: torch.dtype) -> None:
    cells = random_cells(7, 5, 0.6, 3)
    held = replace(cells, index=cells.index.to(kind))
    left, right = torch.randn(7, 3), torch.randn(5, 3)
    torch.testing.assert_close(
        sparse.segment_weighted_sum(right, held), sparse.segment_weighted_sum(right, cells)
    )
    torch.testing.assert_close(
        sparse.sampled_products(left, right, held), sparse.sampled_products(left, right, cells)
    )
    torch.testing.assert_close(
        sparse.folded_sum(right, right, held), sparse.folded_sum(right, right, cells), rtol=0, atol=0
    )


def test_places_in_a_dense_product_are_counted_in_eight_bytes(limits: Limits) -> None:
    """Of 100,000 rows and 50,000 features a place is beyond 2³¹; the product itself is not made here."""
    lines, index = torch.tensor([0, 42_950, 99_999]), torch.tensor([7, 49_999, 49_999])
    cells = Cells.from_pairs(lines, index, torch.ones(3), 100_000, 50_000)
    assert (cells.lines * cells.width + cells.index).tolist() == [7, 42_950 * 50_000 + 49_999, 4_999_999_999]
    left, right = torch.randn(100_000, 2), torch.randn(50_000, 2)
    limits(dense_from_density=1.0)
    expected = (left[lines] * right[index]).sum(1)
    torch.testing.assert_close(sparse.sampled_products(left, right, cells), expected)
    found = sparse.segment_weighted_sum(right, cells)
    torch.testing.assert_close(found[lines], right[index])
