"""Centre and scale of features: from rows the same as from sums over them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headstart.adapters.unknown_scale import ScalePrior, basis_from_rows, basis_from_sums
from headstart.core.types import Scales
from headstart.linalg.gaussian import ContextSums

SIZE = 7  # six activations and the bias


def prepared(features: int, seed: int = 0) -> ScalePrior:
    random = np.random.default_rng(seed)
    scale = torch.from_numpy(np.exp(random.normal(size=features)))
    scales = Scales(scale * torch.from_numpy(random.normal(size=features)) + 1, scale)
    prior = ScalePrior(scales, features)
    prior.prepare(scales, torch.from_numpy(random.uniform(0.3, 3, features)))
    return prior


def covariance(seed: int = 0) -> torch.Tensor:
    root = torch.from_numpy(np.random.default_rng(seed).normal(size=(SIZE - 1, SIZE - 1)))
    return root @ root.T / SIZE + 0.1 * torch.eye(SIZE - 1, dtype=torch.float64)


def contexts(shots: list[int], seed: int = 0, far: float = 0.0) -> tuple[list[torch.Tensor], ContextSums]:
    """The same contexts, padded (rows, values, weights, counts) and as sums."""
    random, most = np.random.default_rng(seed), max(shots)
    there = np.arange(most) < np.array(shots)[:, None]
    rows = random.normal(size=(len(shots), most, SIZE - 1)) * there[..., None]
    values = (random.normal(size=there.shape) + 0.7 * rows[..., 0] + far) * there
    weights = random.uniform(0.2, 3, there.shape) * there
    full = np.concatenate([rows, there[..., None]], axis=2)
    sums = (
        there.sum(1).astype(float),
        np.einsum("fk,fki,fkj->fij", weights, full, full),
        np.einsum("fk,fki->fi", weights * values, full),
        (weights * values**2).sum(1),
    )
    padded = (rows, values, weights, sums[0])
    return [torch.from_numpy(part) for part in padded], ContextSums(*map(torch.from_numpy, sums))


@pytest.mark.parametrize("known", [3, 12, 60])
@pytest.mark.parametrize("strength", [0.0, 0.4, 30.0])
@pytest.mark.parametrize("far", [0.0, 200.0])
@pytest.mark.parametrize("shots", [[0, 1, 2, 3, 6, 6], [7, 8, 20, 60, 0, 1]])
def test_both_forms_agree(known: int, strength: float, far: float, shots: list[int]) -> None:
    prior, spread = prepared(known), covariance()
    padded, sums = contexts(shots, seed=known, far=far)
    random = np.random.default_rng(1)
    means = strength * torch.from_numpy(random.normal(size=(6, SIZE - 1)))
    expected = prior.posterior(basis_from_sums(sums, means, spread), means, spread)
    found = prior.posterior(basis_from_rows(*padded, means, spread), means, spread)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-9 * float(other.abs().max()))


def test_padding_and_company_change_nothing() -> None:
    prior, spread = prepared(30), covariance()
    padded, _ = contexts([1, 4, 6], seed=3)
    means = torch.ones(3, SIZE - 1, dtype=torch.float64)
    together = prior.posterior(basis_from_rows(*padded, means, spread), means, spread)
    for place, shots in enumerate((1, 4, 6)):
        rows, values, weights = (part[[place], :shots] for part in padded[:3])
        basis = basis_from_rows(rows, values, weights, padded[3][[place]], means[[place]], spread)
        alone = prior.posterior(basis, means[[place]], spread)
        for part, whole in zip(alone, together, strict=True):
            torch.testing.assert_close(part[0], whole[place], rtol=1e-10, atol=1e-12)
