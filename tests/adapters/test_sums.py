"""Sums over contexts, by every path, against a loop over observations."""

from __future__ import annotations

import pytest
import torch
from tests.backbones.conftest import random_cells
from tests.limits import Limits

from headstart.linalg.gaussian import sum_contexts


@pytest.mark.parametrize("padding", [0, 10**6], ids=["segments", "padded"])
@pytest.mark.parametrize("budget", [1, 7 * 32 * 4, 2**40])
@pytest.mark.parametrize("features", [0, 1, 6])
def test_sums_are_those_of_a_loop(features: int, budget: int, padding: int, limits: Limits) -> None:
    limits(block_bytes=budget)
    limits(padding_factor=padding)
    cells = random_cells(features, 40, 0.4, seed=2)
    activation, weights = torch.randn(40, 3), torch.rand(len(cells.index), dtype=torch.float64)
    found = sum_contexts(cells, activation, weights)
    total, linear = torch.zeros(features, 4, 4).double(), torch.zeros(features, 4).double()
    square = torch.zeros(features).double()
    each = zip(cells.lines.tolist(), cells.index.tolist(), cells.values.double(), weights, strict=True)
    for line, row, x, w in each:
        d = torch.cat([activation[row], torch.ones(1)]).double()
        total[line] += w * torch.outer(d, d)
        linear[line] += w * x * d
        square[line] += w * x**2
    for one, other in zip(found, (cells.counts.double(), total, linear, square), strict=True):
        torch.testing.assert_close(one, other)
