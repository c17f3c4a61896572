"""Rows that are read in company: each as by itself, and as by the general sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.limits import Limits

from headstart.backbones.factorisation import Factorisation, FactorisationConfig
from headstart.backbones.row_posterior import HeadMoments, RowBatch, RowPosterior, SparseRows
from headstart.core.types import Heads, RowStates
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

LATENT, FEATURES = 4, 12


def heads(count: int) -> Heads:
    torch.manual_seed(0)
    root = 0.3 * torch.randn(count, LATENT + 1, LATENT + 1)
    down, across = torch.tril_indices(LATENT + 1, LATENT + 1)
    packed = (root @ root.mT)[:, down, across]
    return Heads(torch.randn(count, LATENT), torch.randn(count), packed, 0.2 + torch.rand(count))


def world(kinds: list[KindType], counts: list[int]) -> tuple[Cells, Heads, torch.Tensor]:
    """Rows of so many observations each; the first rows see features of the first kind alone."""
    torch.manual_seed(1)
    every = torch.tensor([kinds[0]] * (FEATURES // 2) + [kinds[-1]] * (FEATURES - FEATURES // 2))
    index = [
        torch.randperm(FEATURES // 2 if row < 3 else FEATURES)[:count].sort().values
        for row, count in enumerate(counts)
    ]
    where = torch.cat(index)
    indptr = torch.tensor([0, *counts]).cumsum(0)
    values = torch.where(
        every[where] == KindType.BINARY, (torch.rand(len(where)) > 0.5).float(), torch.rand(len(where))
    )
    return Cells(indptr, where, values, FEATURES), heads(FEATURES), every


def backbone(kinds: torch.Tensor) -> Factorisation:
    return Factorisation(FactorisationConfig(latent=LATENT, signature=0), kinds, torch.zeros(0))


MIXES = [[KindType.RATING], [KindType.BINARY], [KindType.REAL], [KindType.RATING, KindType.BINARY]]
COUNTS = [2, 5, 0, 3, 9, 12, 1]


@pytest.mark.parametrize("kinds", MIXES, ids=str)
@pytest.mark.parametrize("budget", [1, 1 << 20])
def test_a_row_is_the_same_alone_and_in_company(kinds: list[KindType], budget: int, limits: Limits) -> None:
    """Also a row of ratings beside rows of other kinds, which take more passes."""
    limits(block_bytes=budget)
    cells, known_heads, every = world(kinds, COUNTS)
    own = torch.full((FEATURES,), -1)
    model = backbone(every)
    together = model.states_from_heads(cells, known_heads, every, own)
    alone = [
        model.states_from_heads(cells.take(torch.tensor([row])), known_heads, every, own)
        for row in range(len(COUNTS))
    ]
    for part, whole in zip(RowStates.concatenate(alone).parts(), together.parts(), strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kinds", MIXES, ids=str)
def test_separated_moments_have_the_same_sums(kinds: list[KindType]) -> None:
    cells, known_heads, every = world(kinds, COUNTS)
    cells = replace(cells, values=cells.values.double())
    double = known_heads.to(torch.float64)
    plain, separated = RowBatch(cells, HeadMoments.of(double, every)), SparseRows(cells, double, every)
    packed = LATENT * (LATENT + 1) // 2
    spread = torch.eye(LATENT).double()[tuple(torch.tril_indices(LATENT, LATENT))].expand(len(COUNTS), packed)
    now = RowPosterior(torch.randn(len(COUNTS), LATENT).double(), spread, torch.ones(len(COUNTS)).double())
    weights, values = torch.rand(2, len(cells.index)).double()
    torch.testing.assert_close(separated.outputs(now), plain.outputs(now))
    torch.testing.assert_close(separated.sums(weights, values), plain.sums(weights, values))
