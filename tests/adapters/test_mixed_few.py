"""The posterior under a prior of several parts, by small systems where there are few shots."""

from __future__ import annotations

import pytest
import torch

from headstart.linalg.gaussian import ContextSums, mixed, mixed_few

PARTS, SIZE = 2, 6


@pytest.mark.parametrize("shots", [0, 1, 3, 5])
def test_small_systems_give_the_same_as_large_ones(shots: int) -> None:
    generator = torch.Generator().manual_seed(shots)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows, values, weights = normal(7, shots, SIZE), normal(7, shots), normal(7, shots).exp()
    weights[3:, shots // 2 :] = 0  # padded
    rows[3:, shots // 2 :], values[3:, shots // 2 :] = 0, 0
    means, roots = normal(7, PARTS, SIZE), normal(PARTS, SIZE, SIZE)
    shares = torch.tensor([0.7, 0.3], dtype=torch.float64)
    weighted = rows * weights[..., None]
    sums = ContextSums(
        (weights > 0).sum(1).double(),
        weighted.mT @ rows,
        (weighted * values[..., None]).sum(1),
        (weights * values**2).sum(1),
    )
    expected = mixed(sums, means, roots, shares)
    found = mixed_few(rows, values, weights, sums.counts, means, roots, shares)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
