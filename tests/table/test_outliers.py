from __future__ import annotations

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.oracles.outliers import scales_of_rows, winsorised

from headstart.table.cells import Cells
from headstart.table.outliers import row_scales, winsorise


def cells_of(lines: list[list[float]]) -> Cells:
    counts = torch.tensor([0, *(len(line) for line in lines)])
    values = torch.tensor([value for line in lines for value in line], dtype=torch.float32)
    index = torch.cat([torch.arange(len(line)) for line in lines])
    return Cells(counts.cumsum(0), index, values, max(map(len, lines)))


@example([[0.0, 0.0, 1.0, 4.02e-10]])
@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=30), min_size=1, max_size=5))
def test_equals_the_slow_version(lines: list[list[float]]) -> None:
    tamed = winsorise(cells_of(lines), torch.ones(len(lines), dtype=torch.bool))
    expected = [value for line in lines for value in winsorised(line)]
    np.testing.assert_allclose(tamed.values.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_value_far_off_is_brought_back_and_the_rest_stays() -> None:
    line = [0.1, -0.3, 0.4, 0.0, 100.0, 0.2, -0.1, 0.3]
    both = cells_of([line, line])
    tamed = winsorise(both, torch.tensor([True, False]))
    np.testing.assert_allclose(
        tamed.values[:8].numpy(), [0.1, -0.3, 0.4, 0.0, 0.4, 0.2, -0.1, 0.3], rtol=1e-6
    )
    assert torch.equal(tamed.values[8:], both.values[8:])


def test_zeros_and_a_few_counts_are_left_as_they_are() -> None:
    counts = cells_of([[0.0] * 20 + [1.0, 2.0, 3.0]])
    assert torch.equal(winsorise(counts, torch.tensor([True])).values, counts.values)


def table_of(values: np.ndarray, seen: np.ndarray) -> Cells:
    """One line per column, as features come to be tamed."""
    feature, row = (torch.from_numpy(part) for part in np.nonzero(seen.T))
    numbers = torch.from_numpy(values.T[seen.T]).float()
    return Cells.from_pairs(feature, row, numbers, values.shape[1], values.shape[0])


def test_extents_equal_the_slow_version() -> None:
    random = np.random.default_rng(0)
    values = random.standard_t(2, size=(40, 7)).astype(np.float32).astype(np.float64)
    seen = random.random(values.shape) < 0.5
    cells = table_of(values, seen)
    found = row_scales(cells, torch.ones(7, dtype=torch.bool))
    np.testing.assert_allclose(found.numpy(), scales_of_rows(values, seen)[cells.index.numpy()], rtol=1e-5)


def test_a_row_that_is_far_off_everywhere_is_left_as_it_is() -> None:
    random = np.random.default_rng(1)
    values = random.normal(size=(30, 8))
    values[4] += 300.0  # of this row all values are large
    values[9, 2] = 300.0  # of this one a single value is
    cells = table_of(values, np.ones(values.shape, dtype=bool))
    real = torch.ones(8, dtype=torch.bool)
    tamed = winsorise(cells, real, row_scales(cells, real)).values.reshape(8, 30)
    assert torch.equal(tamed[:, 4], cells.values.reshape(8, 30)[:, 4])
    assert tamed[2, 9] < 10
