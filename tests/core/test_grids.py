"""Grids of predictions: the cheap ways for one row, one head and few heads against the obvious one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.oracles.predictive import grid_variances

from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.predictive import GRID, grid_logits, predict_grid
from headstart.core.types import Heads, RowStates
from headstart.linalg.packed import affine_quadratic_form, pack, quadratic_forms

WIDTH = 6


def world(rows: int, heads: int, *, sure: bool = False, known: bool = False) -> tuple[Heads, RowStates]:
    random = torch.Generator().manual_seed(rows * 100 + heads)
    some = torch.randn(heads, WIDTH + 1, WIDTH + 1, generator=random)
    covariance = None if sure else pack(some @ some.mT)
    weight, bias = torch.randn(heads, WIDTH, generator=random), torch.randn(heads, generator=random)
    states = RowStates(
        torch.zeros(rows, 1),
        torch.zeros(rows, 1),
        torch.randn(rows, WIDTH, generator=random),
        None,
        None if known else torch.rand(rows, WIDTH, generator=random),
    )
    return Heads(weight, bias, covariance), states


@pytest.mark.parametrize("heads", [1, 3, 20])
@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_every_way_gives_the_same_grid(rows: int, heads: int, sure: bool, known: bool) -> None:
    some, states = world(rows, heads, sure=sure, known=known)
    double = GRID.moments(some.to(torch.float64), states.to(torch.float64))[1]
    np.testing.assert_allclose(double, grid_variances(some, states), rtol=1e-6)
    slow = states.activation.double() @ some.weight.double().T + some.bias.double()
    np.testing.assert_allclose(grid_logits(some, states), slow, rtol=1e-12)
    single = GRID.moments(some.to(torch.float32), states.to(torch.float32))[1]
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single, grid_variances(some, states), rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("heads", [3, 20])
def test_covariances_can_stay_in_a_larger_tensor(rows: int, heads: int) -> None:
    some, states = world(rows, heads)
    positions = torch.arange(2 * heads - 1, 0, -2)
    larger = torch.zeros(2 * heads, some.packed_covariance.shape[1])
    larger[positions] = some.packed_covariance
    kinds, likelihood = torch.ones(heads, dtype=torch.int64), Likelihood(LikelihoodConfig())
    found = predict_grid(replace(some, covariance=larger), states, kinds, likelihood, positions=positions)
    np.testing.assert_allclose(found.variance, predict_grid(some, states, kinds, likelihood).variance)


def test_a_form_with_a_one_and_with_spread() -> None:
    random = torch.Generator().manual_seed(0)
    vectors, some = (torch.randn(5, n, generator=random, dtype=torch.float64) for n in (3, 4))
    matrix = some[:4].T @ some[:4]
    with_one = torch.cat([vectors, torch.ones(5, 1)], dim=1)
    slow = torch.stack([row @ matrix @ row for row in with_one])
    np.testing.assert_allclose(affine_quadratic_form(vectors, matrix), slow)
    spread = torch.rand(5, 3, generator=random, dtype=torch.float64)
    added = slow + spread @ matrix.diagonal()[:-1]
    np.testing.assert_allclose(quadratic_forms(with_one, pack(matrix)[None], spread)[:, 0], added)


def test_the_second_moment_is_kept_for_the_same_states() -> None:
    _, states = world(9, 1)
    rows = np.c_[states.activation.double().numpy(), np.ones(9)]
    np.testing.assert_allclose(states.second_moment, rows.T @ rows / 9, rtol=1e-12)
    assert states.second_moment is states.second_moment
    _, others = world(8, 1)
    assert others.second_moment is not states.second_moment
