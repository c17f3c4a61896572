"""Padded blocks against loops over lines."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backbones.conftest import random_cells
from tests.limits import limits
from tests.linalg.test_symmetric import symmetric

from headstart.linalg import ragged as padding
from headstart.linalg.packed import pack
from headstart.linalg.ragged import groups_of_similar_counts, outputs_at, pad, positions_in_line
from headstart.table.cells import Cells

some_cells = given(
    rows=st.integers(0, 7), features=st.integers(1, 6), density=st.floats(0, 1), seed=st.integers(0, 99)
)


@given(
    counts=st.lists(st.integers(0, 5000), max_size=40),
    apart=st.integers(1, 4),
    size=st.integers(1, 50),
    budget=st.sampled_from([1, 1000, 1 << 22]),
)
@settings(max_examples=100, deadline=None)
def test_every_line_is_in_one_small_block_of_its_like(
    counts: list[int], apart: int, size: int, budget: int
) -> None:
    with limits(padded_numbers_per_block=budget):
        kinds = torch.arange(len(counts)) % apart
        groups = list(groups_of_similar_counts(torch.tensor(counts, dtype=torch.int64), size, kinds))
    assert sorted(line for group in groups for line in group.tolist()) == list(range(len(counts)))
    for group in groups:
        held = [counts[line] for line in group.tolist()]
        assert len(set(kinds[group].tolist())) == 1
        far = [count for count in held if max(held) > 4 * max(count, 1)]
        assert sum(max(held) - count for count in far) * size <= padding._MAX_PADDING
        assert len(held) == 1 or len(held) * (max(held) + 1) * size <= budget


@some_cells
@settings(max_examples=30, deadline=None)
def test_padded_puts_each_observation_in_its_place(
    rows: int, features: int, density: float, seed: int
) -> None:
    cells = random_cells(rows, features, density, seed)
    numbers = torch.stack([cells.values, cells.index.float()], dim=1)
    block, most = pad(numbers, cells), max(cells.counts.tolist(), default=0)
    assert block.shape == (rows, most, 2)
    ends = cells.indptr.tolist()
    for line in range(rows):
        own = numbers[ends[line] : ends[line + 1]]
        assert torch.equal(block[line, : len(own)], own)
        assert not block[line, len(own) :].any()
        assert positions_in_line(cells)[ends[line] : ends[line + 1]].tolist() == list(range(len(own)))


@some_cells
@settings(max_examples=40, deadline=None)
def test_outputs_are_a_loop_over_observations(rows: int, features: int, density: float, seed: int) -> None:
    cells = random_cells(rows, features, density, seed)
    matrices = symmetric(rows, 4, seed)
    vectors = torch.randn(features, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    means, forms = outputs_at(weights, pack(matrices), vectors, cells)
    assert means.shape == forms.shape == (len(cells.index),)
    for n, (line, index) in enumerate(zip(cells.lines.tolist(), cells.index.tolist(), strict=True)):
        v = torch.cat([vectors[index], torch.ones(1, dtype=torch.float64)])
        torch.testing.assert_close(means[n], weights[line] @ v)
        torch.testing.assert_close(forms[n], v @ matrices[line] @ v)


def test_outputs_of_lines_of_very_different_length() -> None:
    counts = torch.tensor([300, 0, 1, 40, 2])
    lines = torch.repeat_interleave(counts)
    index = torch.cat([torch.arange(n) for n in counts.tolist()])
    cells = Cells.from_pairs(lines, index, torch.zeros(len(lines)), 5, 300)
    matrices, vectors = symmetric(5, 3, 0), torch.randn(300, 2, dtype=torch.float64)
    ones = torch.cat([vectors, torch.ones(300, 1, dtype=torch.float64)], dim=1)[index]
    expected = torch.einsum("ni,nij,nj->n", ones, matrices[lines], ones)
    weights = torch.randn(5, 3, dtype=torch.float64)
    means, forms = outputs_at(weights, pack(matrices), vectors, cells)
    torch.testing.assert_close(forms, expected)
    torch.testing.assert_close(means, (ones * weights[lines]).sum(1))
