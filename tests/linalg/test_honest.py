"""Honest regression: against ridge regression written out, line by line left out."""

from __future__ import annotations

import pytest
import torch
from tests.oracles.ridge import loo_predictions
from torch import Tensor

from headstart.linalg.packed import make_positive_definite, pack
from headstart.linalg.ridge import (
    MAX_COLUMNS,
    LooRidge,
    _best_strength,
    _gains_alone,
    loo_covariance,
    make_groups,
    reliability,
)


def made_up(
    lines: int, widths: list[int], used: list[bool], seed: int = 0
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Columns in groups, of which some tell of the targets."""
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randn(lines, sum(widths), generator=generator, dtype=torch.float64)
    groups = list(torch.split(torch.arange(sum(widths)), widths))
    targets = 0.5 * torch.randn(lines, 3, generator=generator, dtype=torch.float64)
    for group, told in zip(groups, used, strict=True):
        if told:
            targets += columns[:, group] @ torch.randn(
                len(group), 3, generator=generator, dtype=torch.float64
            )
    return columns, groups, targets


@pytest.mark.parametrize("widths", [[2, 3], [60]], ids=["few columns", "many columns"])
def test_predictions_are_those_of_the_other_lines(widths: list[int]) -> None:
    columns, groups, targets = made_up(30, widths, [True] * len(widths))
    weights = torch.rand(30, dtype=torch.float64) + 0.2
    regression = LooRidge(make_groups(columns, groups))
    regression.strengths = torch.full((len(groups),), 0.3, dtype=torch.float64)
    predicted = regression.fit(columns, targets, weights)
    torch.testing.assert_close(
        predicted, loo_predictions(regression, columns, targets, weights), rtol=1e-6, atol=1e-6
    )


def test_the_map_gives_what_the_fit_gives() -> None:
    columns, groups, targets = made_up(40, [2, 3, 1], [True, False, True])
    regression = LooRidge(make_groups(columns, groups))
    regression.strengths = torch.tensor([1.0, 0.0, 0.1], dtype=torch.float64)
    regression.fit(columns, targets, torch.ones(40, dtype=torch.float64))
    matrix, constant = regression.linear_map(columns.shape[1])
    design = regression._design(columns)
    torch.testing.assert_close(columns @ matrix + constant, design @ regression.coefficients)
    assert bool((matrix[groups[1]] == 0).all())


@pytest.mark.parametrize("seed", range(5))
def test_groups_that_say_nothing_are_left_out_and_those_that_do_are_let_in(seed: int) -> None:
    columns, groups, targets = made_up(120, [2, 4, 3], [True, False, False], seed)
    regression = LooRidge(make_groups(columns, groups))
    regression.choose(columns, targets, torch.ones(120), torch.eye(3))
    assert regression.strengths[0] > 0
    assert regression.gains[0] > 0.2
    assert regression.strengths[1:].tolist() == [0.0, 0.0]


def test_a_hundred_columns_of_noise_are_left_out() -> None:
    let_in = 0
    for seed in range(5):
        columns, groups, targets = made_up(60, [1] * 100, [False] * 100, seed)
        regression = LooRidge(make_groups(columns, groups))
        regression.choose(columns, targets, torch.ones(60), torch.eye(3))
        assert sorted(m for members in regression.members for m in members) == list(range(100))
        let_in += int((regression.strengths > 0).sum())
    assert let_in <= 1  # by chance


def test_wide_constant_and_empty_groups() -> None:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(50, 1000, generator=generator)
    columns = torch.cat([wide, torch.ones(50, 2)], dim=1)
    groups = [torch.arange(1000), torch.arange(1000, 1002), torch.zeros(0, dtype=torch.int64)]
    made = make_groups(columns, groups, generator)
    assert [group.width for group in made] == [49, 0, 0]
    many = make_groups(torch.randn(2000, 600, generator=generator), [torch.arange(600)], generator)
    assert many[0].width == MAX_COLUMNS
    regression = LooRidge(made)
    targets = wide[:, :1] @ torch.ones(1, 2) + 0.01 * torch.randn(50, 2, generator=generator)
    regression.choose(columns, targets, torch.ones(50), torch.eye(2))
    assert regression.fit(columns, targets, torch.ones(50)).isfinite().all()


def test_without_groups_it_is_the_mean_of_the_others() -> None:
    targets = torch.randn(10, 2, dtype=torch.float64)
    regression = LooRidge([])
    regression.choose(targets, targets, torch.ones(10), torch.eye(2))
    others = (targets.sum(0) - targets) / 9
    torch.testing.assert_close(regression.fit(targets, targets, torch.ones(10)), others, rtol=1e-5, atol=1e-5)


def test_the_covariance_adds_what_is_not_known_of_heads() -> None:
    residual = torch.randn(200, 3, dtype=torch.float64)
    spread = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    weights = torch.ones(200, dtype=torch.float64)
    between = residual.T @ residual / 200
    share = 200 / 203
    expected = share * between + (1 - share) * torch.diag(between.diagonal()) + spread
    torch.testing.assert_close(loo_covariance(residual, spread, weights), make_positive_definite(expected))


def test_reliability_is_the_share_of_variance_that_observations_removed() -> None:
    prior = torch.diag(torch.tensor([4.0, 1.0], dtype=torch.float64))
    metric = torch.tensor([[1.0, 0.2], [0.2, 2.0]], dtype=torch.float64)
    spread = torch.stack([0.25 * prior, prior, 0 * prior])
    found = reliability(pack(spread), prior, metric)
    torch.testing.assert_close(found, torch.tensor([0.75, 1e-3, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_gains_of_all_groups_equal_those_of_each(width: int) -> None:
    """All groups at once give the gains of one group after the other."""
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(7, 50, width, dtype=torch.float64, generator=generator)
    parts[3] = 0.0
    goal = parts[0, :, :1] * torch.tensor([[1.0, -0.5, 0.2]], dtype=torch.float64)
    goal = goal + torch.randn(50, 3, dtype=torch.float64, generator=generator)
    weights = torch.rand(50, dtype=torch.float64, generator=generator)
    constant, owner = torch.ones(50, 1, dtype=torch.float64), torch.tensor([0] * width + [-1])
    expected = [
        _best_strength(
            torch.cat([part, constant], 1), owner, torch.zeros(1), 0, goal, weights, torch.zeros(())
        )[1]
        for part in parts
    ]
    assert expected[0] > 0.1
    torch.testing.assert_close(_gains_alone(parts, goal, weights), torch.tensor(expected).double())
