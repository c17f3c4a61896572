"""Intervals that hold what they say, on made-up residuals."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from headstart.adapters.protocol import Adapter, AdapterConfig
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.states import RowStates
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.training import calibration
from headstart.training.calibration import QUANTILE, Calibration
from headstart.training.metatraining import VALIDATION_SHOTS
from headstart.training.tasks import disjoint_tasks

ROWS, CLAIMED = 400, 0.3  # the standard deviation that heads claim, at a row of usual noise


class ClaimsConfig(AdapterConfig):
    name: Literal["claims"] = "claims"


class Claims(Adapter):
    """Predicts 0 everywhere and claims, or not, to know how far off that is."""

    gives_uncertainty = True

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        weight, bias = torch.zeros(len(batch), 1), torch.zeros(len(batch))
        if not self.gives_uncertainty:
            return Heads(weight, bias)
        return Heads(weight, bias, torch.zeros(len(batch), 3), torch.full((len(batch),), CLAIMED**2))


def world(
    values: torch.Tensor, kinds: torch.Tensor, noise: torch.Tensor | None = None
) -> tuple[Knowledge, FeatureBatch]:
    """Features (lines) observed at every row with these values."""
    features = len(kinds)
    states = RowStates(torch.zeros(ROWS, 1), torch.ones(ROWS, 1), torch.zeros(ROWS, 1), noise)
    likelihood = Likelihood(LikelihoodConfig(rating_link="identity"))
    lines, index = torch.arange(features).repeat_interleave(ROWS), torch.arange(ROWS).repeat(features)
    cells = Cells.from_pairs(lines, index, values.flatten(), features, ROWS)
    none = torch.zeros(features, 0)
    heads = Heads(torch.zeros(features, 1), torch.zeros(features))
    knowledge = Knowledge(states, cells.transpose(), heads, none, kinds, likelihood)
    return knowledge, FeatureBatch(cells, none, kinds)


def row_noise() -> torch.Tensor:
    return torch.linspace(0.5, 2, ROWS)


@pytest.mark.parametrize("shape", ["normal", "heavy", "skewed"])
@pytest.mark.parametrize("much", [0.2, 1.0, 5.0])
def test_intervals_come_to_hold_nine_in_ten(shape: str, much: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_FEATURES_TO_BELIEVE", 0)  # as if features were without number
    random = np.random.default_rng(0)
    size = (30, ROWS)
    drawn = {
        "normal": random.normal(size=size),
        "heavy": random.standard_t(3, size=size),
        "skewed": random.exponential(size=size) - 1,
    }[shape]
    own = CLAIMED * row_noise().sqrt()
    values = torch.from_numpy(much * drawn).float() * own
    kinds = torch.tensor([KindType.RATING, KindType.REAL] * 15)
    knowledge, batch = world(values, kinds, row_noise())
    adapter = Claims(ClaimsConfig(), knowledge)
    found = Calibration.fit(adapter, knowledge.likelihood, disjoint_tasks(batch, knowledge), seed=0)
    for shots in (0, 1, 7, 128, 5000):
        factor = found.factor(torch.full((30,), shots), kinds)
        covered = values.abs() <= QUANTILE * factor[:, None] * own
        assert float(covered.double().mean()) == pytest.approx(0.9, abs=0.01)
        if shape == "normal":
            assert float(factor.mean()) == pytest.approx(much, rel=0.05)


def test_few_features_are_believed_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that claim far too little: the more features show it, the more their claims are widened."""
    generator, factors = torch.Generator().manual_seed(0), []
    for features in (1, 4, 16, 64):
        values = 4 * CLAIMED * torch.randn(features, ROWS, generator=generator) * row_noise().sqrt()
        kinds = torch.full((features,), KindType.RATING)
        knowledge, batch = world(values, kinds, row_noise())
        adapter, tasks = Claims(ClaimsConfig(), knowledge), disjoint_tasks(batch, knowledge)
        found = Calibration.fit(adapter, knowledge.likelihood, tasks, seed=0)
        factors.append(float(found.factor(torch.zeros(1), kinds[:1])))
    assert 1 < factors[0] < factors[1] < factors[2] < factors[3] < 4.2


def test_heads_that_claim_nothing_get_the_spread_that_was_measured() -> None:
    random = np.random.default_rng(0)
    kinds = torch.tensor([KindType.RATING, KindType.REAL, KindType.BINARY] * 10)
    scale = torch.tensor([0.2, 3.0, 1.0])[torch.arange(30) % 3]
    values = torch.from_numpy(random.normal(size=(30, ROWS))).float() * scale[:, None]
    knowledge, batch = world(values, kinds)
    with torch.no_grad():
        knowledge.likelihood.real_log_variance.fill_(0.7)
    adapter = Claims(ClaimsConfig(), knowledge)
    adapter.gives_uncertainty = False
    found = Calibration.fit(adapter, knowledge.likelihood, disjoint_tasks(batch, knowledge), seed=0)
    # The factor multiplies the standard deviation that the likelihood has, to make that of the errors.
    told = found.factor(torch.full((30,), 4), kinds) * knowledge.likelihood.noise(kinds).detach().sqrt()
    torch.testing.assert_close(told[:2], torch.tensor([0.2, 3.0]), rtol=0.05, atol=0)
    for place, kind in ((0, KindType.RATING), (1, KindType.REAL)):
        likely = knowledge.likelihood.noise(kinds[place]).detach()
        spread = float((values[place::3].square().mean() / likely).sqrt())
        assert found.factors[kind].tolist() == pytest.approx([spread] * len(VALIDATION_SHOTS), rel=0.05)
    assert bool((found.factors[KindType.BINARY] == 1).all())


def test_between_measured_shots_it_is_interpolated_in_their_logarithm() -> None:
    marks = torch.tensor(VALIDATION_SHOTS)
    numbers = torch.rand(3, len(marks), generator=torch.Generator().manual_seed(0)) + 0.5
    made_up = Calibration(marks, numbers)
    for kind in (KindType.BINARY, KindType.RATING, KindType.REAL):
        at = torch.full((len(marks),), kind)
        torch.testing.assert_close(made_up.factor(marks, at), numbers[kind])
    asked = torch.tensor([3, 6, 11, 50, 127, 129, 100_000])
    expected = np.interp(np.log1p(asked.numpy()), np.log1p(marks.numpy()), numbers[KindType.REAL].numpy())
    found = made_up.factor(asked, torch.full((len(asked),), KindType.REAL))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_where_no_feature_has_so_many_shots_the_last_measure_holds() -> None:
    values = CLAIMED * torch.randn(6, ROWS, generator=torch.Generator().manual_seed(0)) * row_noise().sqrt()
    kinds = torch.full((6,), KindType.RATING)
    knowledge, batch = world(values, kinds, row_noise())
    few = batch.observing(batch.cells.keep(batch.cells.index < 10))
    adapter = Claims(ClaimsConfig(), knowledge)
    found = Calibration.fit(adapter, knowledge.likelihood, disjoint_tasks(few, knowledge), seed=0)
    last = VALIDATION_SHOTS.index(8)
    assert bool((found.factors[KindType.RATING, last:] == found.factors[KindType.RATING, last]).all())
    assert bool(found.factors.isfinite().all())
