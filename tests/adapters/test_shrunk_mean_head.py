"""The mean head of known features, shrunk towards the direction of row means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.oracles.mean_head import slow_change

from headstart.adapters.head_prior import mean_head_change
from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.types import Heads, Knowledge, RowStates
from headstart.table.cells import Cells
from headstart.table.kinds import KindType


def world(seed: int, rows: int = 40, features: int = 9, width: int = 3, certain: bool = False) -> Knowledge:
    generator = torch.Generator().manual_seed(seed)
    activation = torch.randn(rows, width, generator=generator)
    variance = None if certain else torch.rand(rows, width, generator=generator)
    states = RowStates(activation, torch.ones_like(activation), activation, None, variance)
    observed = torch.nonzero(torch.rand(rows, features, generator=generator) < 0.6)
    values = torch.randn(len(observed), generator=generator) + activation[observed[:, 0], 0]
    cells = Cells.from_pairs(observed[:, 0], observed[:, 1], values, rows, features)
    heads = Heads(torch.zeros(features, width), torch.zeros(features))
    kinds = torch.full((features,), KindType.RATING)
    likelihood = Likelihood(LikelihoodConfig(rating_link="identity"))
    return Knowledge(states, cells, heads, torch.zeros(features, 0), kinds, likelihood)


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("features", [2.0, 500.0])
def test_the_change_follows_the_limited_translation_rule(seed: int, certain: bool, features: float) -> None:
    knowledge, random = world(seed, certain=certain), np.random.default_rng(seed)
    mean, factor = random.normal(size=4), random.normal(size=(4, 4))
    covariance = factor @ factor.T
    found = mean_head_change(knowledge, torch.from_numpy(mean), torch.from_numpy(covariance), features)
    np.testing.assert_allclose(found.numpy(), slow_change(knowledge, mean, covariance, features), rtol=1e-4)


def test_the_mean_prediction_of_all_rows_stays() -> None:
    knowledge = world(0)
    change = mean_head_change(knowledge, torch.arange(4.0).double(), torch.eye(4).double(), 5.0)
    outputs = knowledge.states.activation.double() @ change[:-1] + change[-1]
    assert float(change.abs().max()) > 0.01
    assert float(outputs.mean()) == pytest.approx(0, abs=1e-6)


def test_many_features_leave_the_mean_head_as_it_is() -> None:
    change = mean_head_change(world(0), torch.arange(4.0).double(), torch.eye(4).double(), 1e9)
    assert float(change.abs().max()) < 1e-6


def test_rows_that_do_not_differ_change_nothing() -> None:
    knowledge = world(0, certain=True)
    knowledge.states.activation.zero_()
    change = mean_head_change(knowledge, torch.arange(4.0).double(), torch.eye(4).double(), 5.0)
    assert not change.any()
