"""Work in blocks of lines: every line once, within the budget, and sums as if there were one block."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backbones.conftest import random_cells
from tests.limits import Limits
from tests.limits import limits as set_limits

from headstart.linalg.ragged import (
    TransposedSum,
    column_sums,
    gram,
    line_blocks,
    row_slices,
    segment_weighted_sum,
)
from headstart.table.cells import Cells, offsets


def cells_of(counts: list[int]) -> Cells:
    number = sum(counts)
    return Cells(offsets(torch.tensor(counts)), torch.arange(number) % 7, torch.rand(number), 7)


@given(
    st.lists(st.integers(0, 40), max_size=30), st.integers(0, 500), st.integers(1, 3000), st.integers(1, 99)
)
@settings(max_examples=60, deadline=None)
def test_every_line_is_in_one_block_within_the_budget(
    counts: list[int], per_line: int, budget: int, per_cell: int
) -> None:
    cells, end = cells_of(counts), 0
    with set_limits(block_bytes=budget):
        blocks = list(line_blocks(cells, per_line, per_cell))
    for place, block in blocks:
        assert place.start == end
        end = place.stop
        assert block.counts.tolist() == counts[place]
        held = cells.indptr[place.start]
        assert torch.equal(block.values, cells.values[held : held + len(block.values)])
        taken = per_line * len(block) + per_cell * len(block.index)
        assert len(block) == 1 or taken <= budget
        if end < len(counts):  # another line would have been too much
            assert taken + per_line + per_cell * counts[end] > budget
    assert end == len(counts)


def test_blocks_share_the_observations() -> None:
    cells = cells_of([3, 4, 5])
    block = cells.block(1, 3)
    assert block.values.data_ptr() == cells.values[3:].data_ptr()
    expected = cells.take(torch.tensor([1, 2]))
    assert torch.equal(block.indptr, expected.indptr)
    assert torch.equal(block.index, expected.index)


@pytest.mark.parametrize("budget", [1, 7 * 8, 2**40])
def test_stretches_cover_all_lines(budget: int) -> None:
    parts = list(row_slices(20, 8, budget))
    assert [i for part in parts for i in range(20)[part]] == list(range(20))
    assert max(part.stop - part.start for part in parts) == {1: 1, 56: 7, 2**40: 20}[budget]


@pytest.mark.parametrize("budget", [1, 7 * 64, 2**40])
def test_sums_do_not_depend_on_blocks(budget: int, limits: Limits) -> None:
    limits(block_bytes=budget)
    left, right = torch.rand(50, 3), torch.rand(50, 2)
    torch.testing.assert_close(gram(left, right), left.double().T @ right.double())
    torch.testing.assert_close(column_sums(left), left.double().sum(0))


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_over_lines_add_up_over_blocks(weighted: bool, limits: Limits) -> None:
    limits(block_bytes=300)
    cells = random_cells(30, 9, 0.3, seed=1)
    table, weights = torch.rand(30, 4), torch.rand(len(cells.index)) if weighted else None
    total = torch.zeros(9, 4)
    for place, block in line_blocks(cells, 8):
        held = slice(int(cells.indptr[place.start]), int(cells.indptr[place.stop]))
        TransposedSum(block).add(total, table[place], None if weights is None else weights[held])
    expected = torch.zeros(9, 4)
    for n, (line, index) in enumerate(zip(cells.lines.tolist(), cells.index.tolist(), strict=True)):
        expected[index] += table[line] * (1.0 if weights is None else weights[n])
    torch.testing.assert_close(total, expected)
    if weights is None:
        torch.testing.assert_close(total, segment_weighted_sum(table, cells.transpose()))
