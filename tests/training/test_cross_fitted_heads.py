"""Heads of known features as if they were new: against a loop over features and their observations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.limits import Limits
from tests.oracles.cross_fitted_heads import cross_fitted_heads
from tests.training.test_episodes import FEATURES, sampled, some_cells, world

from headstart.adapters.head_prior import empirical_noise, empirical_prior
from headstart.core.types import Description
from headstart.training.cross_fitted_heads import cross_fit_heads
from headstart.training.episodes import cross_fitted_tasks, disjoint_tasks


def test_each_head_comes_from_rows_that_know_nothing_of_it() -> None:
    batch, backbone, knowledge = world(some_cells())
    tasks = cross_fitted_tasks(batch, backbone, knowledge, seed=0)
    found = cross_fit_heads(knowledge, tasks)
    for one, other in zip(found.new_heads.parts(), cross_fitted_heads(knowledge, tasks).parts(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert found.heads is knowledge.heads
    assert float(found.new_heads.noise.mean()) > float(empirical_noise(knowledge)[1])  # it was too small


def test_sampled_features_alone_get_new_heads(limits: Limits) -> None:
    tasks, knowledge = sampled(limits)
    found = cross_fit_heads(knowledge, tasks)
    some = tasks.batch.positions
    expected = cross_fitted_heads(knowledge, tasks)
    for one, other in zip(found.new_heads.take(some).parts(), expected.parts(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert torch.equal(found.cross_fitted, some)
    others = np.setdiff1d(np.arange(FEATURES), some.numpy())
    assert torch.equal(found.new_heads.weight[others], knowledge.heads.weight[others])
    # The usual noise of the others is that of the sampled ones, each counting by its observations.
    counts = knowledge.count_shots()[some]
    usual = float((counts * expected.noise).sum() / counts.sum())
    np.testing.assert_allclose(found.new_heads.noise[others], usual, rtol=1e-3)
    # A prior is learned from the sampled ones alone, and predicts all.
    nothing = Description(torch.zeros(FEATURES, 0), [])
    prior = empirical_prior(found, found.new_heads, nothing, knowledge.count_shots())
    part = Description(torch.zeros(len(some), 0), [])
    alone = empirical_prior(found, found.new_heads.take(some), part, counts)
    torch.testing.assert_close(prior.loo_means[some], alone.loo_means)
    torch.testing.assert_close(prior.loo_means[others], alone.constant.expand(len(others), -1))
    torch.testing.assert_close(prior.covariance, alone.covariance)


@pytest.mark.parametrize("name", ["pvae"])
def test_behind_a_logistic_link_heads_stay(name: str) -> None:
    batch, backbone, knowledge = world(some_cells(), name)
    tasks = cross_fitted_tasks(batch, backbone, knowledge, seed=0)
    assert cross_fit_heads(knowledge, tasks).new_heads is None


def test_features_that_were_never_hidden_say_nothing_of_new_ones() -> None:
    batch, _, knowledge = world(some_cells())
    assert cross_fit_heads(knowledge, disjoint_tasks(batch, knowledge)).new_heads is None
