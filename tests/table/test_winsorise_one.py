"""Outliers of one line in numpy, against those of a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headstart.table.cells import Cells
from headstart.table.outliers import winsorise, winsorise_one


@pytest.mark.parametrize("seed", range(8))
def test_outliers_of_one_line_are_winsorised_alike(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=int(random.integers(1, 40))).astype(np.float32).astype(np.float64)
    if seed % 2:
        values[:: max(1, len(values) // 3)] = 1e4
    if seed == 6:
        values[:] = 0.5
    count = len(values)
    cells = Cells(
        torch.tensor([0, count]), torch.arange(count), torch.from_numpy(values).float(), max(1, count)
    )
    expected = winsorise(cells, torch.tensor([True])).values.double().numpy()
    np.testing.assert_allclose(winsorise_one(values), expected, rtol=1e-12)
