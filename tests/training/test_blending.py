"""The shares of a blend, measured on features held back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from tests.model.conftest import ratings_table

from headstart.adapters import adapter_config
from headstart.adapters.chn_bayes import CHNBayes
from headstart.core.types import VALIDATION_SHOTS, FeatureBatch, Heads, RowStates, interpolate
from headstart.datasets.synthetic import synthetic_diagnoses
from headstart.progress import Reporter
from headstart.table import Table
from headstart.training.judge import blend_outcomes, isotonic_decreasing, outcomes_of
from headstart.training.recipe import Prepared, Recipe, prepare


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0.1, 3)), min_size=1, max_size=9))
def test_shares_that_do_not_rise_are_the_nearest(pairs: list[tuple[float, float]]) -> None:
    values, weights = np.array(pairs).T
    expected = IsotonicRegression(increasing=False).fit_transform(
        np.arange(len(values)), values, sample_weight=weights
    )
    found = isotonic_decreasing(torch.from_numpy(values), torch.from_numpy(weights))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def prepared_for(table: Table) -> Prepared:
    features = np.arange(len(table.features))
    return prepare(
        table, features, features, Recipe(metatraining={"epochs": 3}), True,
        reporter=Reporter(quiet=True), checkpoint=lambda _: None,
    )  # fmt: skip


@pytest.mark.parametrize("make", [lambda: ratings_table(80, 40), lambda: synthetic_diagnoses(80, 30)])
def test_the_blend_predicts_as_its_outcomes_say(make: Callable[[], Table]) -> None:
    prepared = prepared_for(make())
    own = prepared.train(adapter_config("chn-bayes-blend"), "blend", {})
    adapter, likelihood = own.adapter, prepared.knowledge.likelihood
    assert isinstance(adapter, CHNBayes)
    blend, closed = blend_outcomes(adapter, likelihood, prepared.validation, seed=0, all_binary=False)
    shares = adapter.shares
    assert bool(((shares >= 0) & (shares <= 1)).all())
    assert bool((shares.diff() <= 1e-6).all())
    measured = outcomes_of(adapter, likelihood, prepared.validation, seed=0)
    for shots, outcome in measured.items():
        torch.testing.assert_close(
            outcome.predictive.mean, blend[shots].predictive.mean, rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(outcome.predictive.std, blend[shots].predictive.std, rtol=1e-3, atol=1e-4)
        assert torch.equal(outcome.truth, closed[shots].truth)
    assert set(own.judged) == {"bayes", "chn-bayes"}


def test_between_the_measured_shots_shares_are_interpolated() -> None:
    prepared = prepared_for(ratings_table(80, 40))
    adapter = prepared.train(adapter_config("chn-bayes-blend"), "blend", {}).adapter
    assert isinstance(adapter, CHNBayes)
    left, right, share = interpolate(torch.tensor(VALIDATION_SHOTS), torch.tensor([0, 3, 1000]))
    expected = torch.lerp(adapter.shares[left], adapter.shares[right], share)
    assert torch.equal(adapter.share(torch.tensor([0, 3, 1000])), expected)
    assert float(expected[0]) == float(adapter.shares[0])
    assert float(expected[2]) == float(adapter.shares[-1])


def test_networks_that_are_wrong_get_nothing_of_the_blend(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the doubt that few features leave: 4 of them are held back."""
    prepared = prepared_for(ratings_table(60, 40))
    adapter = prepared.train(adapter_config("chn-bayes-blend"), "blend", {}).adapter
    assert isinstance(adapter, CHNBayes)
    adapt = adapter.adapt

    def wrong(batch: FeatureBatch, states: RowStates) -> Heads:
        heads = adapt(batch, states)
        if float(adapter.shares[0]) == 1.0:  # networks alone
            heads.bias.add_(5.0)
        return heads

    monkeypatch.setattr(adapter, "adapt", wrong)
    blend_outcomes(adapter, prepared.knowledge.likelihood, prepared.validation, seed=0, all_binary=False)
    assert float(adapter.shares.max()) <= 0.5 * 10 / (10 + 4) + 0.05
