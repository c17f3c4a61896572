"""Intervals that hold what they say, on made-up residuals."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from scipy.stats import norm
from tests.limits import Limits

from headstart.adapters.base import Adapter, AdapterConfig
from headstart.core.likelihood import Likelihood, LikelihoodConfig, soft_logit
from headstart.core.predictive import Predictive
from headstart.core.types import VALIDATION_SHOTS, FeatureBatch, Heads, Knowledge, RowStates
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.training import calibration
from headstart.training.calibration import LEVELS, USUAL_LEVEL, Calibration, Outcome, RowOutcomes
from headstart.training.comparison import predict_held_out
from headstart.training.episodes import disjoint_tasks

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


def measured(adapter: Adapter, knowledge: Knowledge, batch: FeatureBatch) -> Calibration:
    outcomes = predict_held_out(adapter, knowledge.likelihood, disjoint_tasks(batch, knowledge), seed=0)
    return Calibration.fit(outcomes, VALIDATION_SHOTS, by_level=adapter.gives_uncertainty)


@pytest.mark.parametrize("shape", ["normal", "heavy", "skewed"])
@pytest.mark.parametrize("much", [0.4, 1.0, 3.0])
def test_intervals_of_every_level_come_to_hold_what_they_say(shape: str, much: float, limits: Limits) -> None:
    limits(shrinkage_features=0)  # as if features were without number
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
    found = measured(adapter, knowledge, batch)
    for shots in (0, 1, 7, 128, 5000):
        factors = found.factor(torch.full((30,), shots), kinds)
        assert factors.shape == (30, len(LEVELS))
        for level, factor in zip(LEVELS, factors.T, strict=True):
            covered = values.abs() <= norm.ppf(0.5 + level / 2) * factor[:, None] * own
            if (factor > 0.2).all() and (factor < 5).all():  # nothing is corrected further than that
                assert float(covered.double().mean()) == pytest.approx(level, abs=0.01)
            if shape == "normal":
                assert float(factor.mean()) == pytest.approx(much, rel=0.05)


def test_few_features_are_believed_little() -> None:
    """Heads that claim far too little: the more features show it, the more their claims are widened."""
    generator, factors = torch.Generator().manual_seed(0), []
    for features in (1, 4, 16, 64):
        values = 4 * CLAIMED * torch.randn(features, ROWS, generator=generator) * row_noise().sqrt()
        kinds = torch.full((features,), KindType.RATING)
        knowledge, batch = world(values, kinds, row_noise())
        found = measured(Claims(ClaimsConfig(), knowledge), knowledge, batch)
        factors.append(float(found.factor(torch.zeros(1), kinds[:1])[0, USUAL_LEVEL]))
        expected = 4 ** (features / (features + 10))  # so many features count half
        assert factors[-1] == pytest.approx(expected, rel=0.1)
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
    found = measured(adapter, knowledge, batch)
    # The factor multiplies the standard deviation that the likelihood has, to make that of the errors.
    likely = knowledge.likelihood.noise(kinds).detach().sqrt()
    told = found.factor(torch.full((30,), 4), kinds) * likely[:, None]
    torch.testing.assert_close(
        told[:2], torch.tensor([[0.2], [3.0]]).expand(-1, len(LEVELS)), rtol=0.05, atol=0
    )
    for place, kind in ((0, KindType.RATING), (1, KindType.REAL)):
        likely = knowledge.likelihood.noise(kinds[place]).detach()
        spread = float((values[place::3].square().mean() / likely).sqrt())
        np.testing.assert_allclose(found.factors[kind].numpy(), spread, rtol=0.05)
    assert bool((found.factors[KindType.BINARY] == 1).all())


def test_between_measured_shots_it_is_interpolated_in_their_logarithm() -> None:
    marks, generator = torch.tensor(VALIDATION_SHOTS), torch.Generator().manual_seed(0)
    numbers = torch.rand(3, len(marks), len(LEVELS), generator=generator) + 0.5
    slopes, shifts = torch.rand(2, len(marks), generator=generator) + 0.5
    made_up = replace(Calibration.none(VALIDATION_SHOTS), factors=numbers, slopes=slopes, shifts=shifts)
    for kind in (KindType.BINARY, KindType.RATING, KindType.REAL):
        at = torch.full((len(marks),), kind)
        torch.testing.assert_close(made_up.factor(marks, at), numbers[kind])
    asked = torch.tensor([3, 6, 11, 50, 127, 129, 100_000])

    def between(column: torch.Tensor) -> np.ndarray:
        return np.interp(np.log1p(asked.numpy()), np.log1p(marks.numpy()), column.numpy())

    found = made_up.factor(asked, torch.full((len(asked),), KindType.REAL))
    for level in range(len(LEVELS)):
        np.testing.assert_allclose(
            found[:, level].numpy(), between(numbers[KindType.REAL, :, level]), rtol=1e-5
        )
    chance = torch.rand(5, len(asked), generator=generator) * 0.8 + 0.1
    logit = np.log(chance.numpy() / (1 - chance.numpy())) * between(slopes) + between(shifts)
    corrected = made_up.probability(chance, chance, asked).numpy()
    np.testing.assert_allclose(corrected, 1 / (1 + np.exp(-logit)), rtol=1e-4)


def test_a_calibration_of_nothing_changes_nothing() -> None:
    none = Calibration.none(VALIDATION_SHOTS)
    shots = torch.tensor([0, 3, 500])
    assert bool((none.factor(shots, torch.tensor([0, 1, 2])) == 1).all())
    chance = torch.tensor([[0.2, 0.5, 0.9]])
    torch.testing.assert_close(none.probability(chance, chance, shots).float(), chance)


def tossed(features: int, slope: float, shift: float, number: bool, seed: int = 0) -> Outcome:
    """Predictions of binary values whose true logit is slope × the predicted one + shift."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=features * ROWS)
    truth = random.random(len(logits)) < 1 / (1 + np.exp(-(slope * logits + shift)))
    logits = torch.from_numpy(logits)
    nothing, kind = torch.zeros_like(logits), KindType.RATING if number else KindType.BINARY
    likelihood = Likelihood(LikelihoodConfig(rating_link="identity"))
    output = logits
    if number:  # the numbers with these logits
        edge, grid = 0.2 * min(truth.mean(), 1 - truth.mean()), np.linspace(-3, 4, 100_000)
        output = torch.from_numpy(np.interp(logits.numpy(), soft_logit(grid, edge), grid))
    kinds = torch.full(logits.shape, kind)
    feature = torch.arange(features).repeat_interleave(ROWS)
    share = truth.mean()
    predictive = Predictive(output, nothing, nothing + share * (1 - share), kinds, likelihood)
    if not number:
        predictive = Predictive(output, nothing, nothing, kinds, likelihood)
    return Outcome(predictive, torch.from_numpy(truth).double(), feature, torch.ones_like(feature).bool())


@pytest.mark.parametrize("number", [False, True], ids=["logistic", "0 and 1 as numbers"])
@pytest.mark.parametrize(("slope", "shift"), [(1.0, 0.0), (0.5, 0.7), (2.0, -1.0)])
def test_probabilities_are_put_right(slope: float, shift: float, number: bool, limits: Limits) -> None:
    outcome = tossed(40, slope, shift, number)
    marks = (0, 4)
    drawn = Calibration.fit({0: outcome}, marks, by_level=True)
    assert float(drawn.slopes[0]) == pytest.approx(slope**0.8, rel=0.1)  # 40 features are believed 40 / 50
    assert float(drawn.shifts[0]) == pytest.approx(0.8 * shift, abs=0.06)
    assert torch.equal(drawn.slopes[:1], drawn.slopes[1:])  # what was measured last still holds
    limits(shrinkage_features=0)
    found = Calibration.fit({0: outcome}, marks, by_level=True)
    assert float(found.slopes[0]) == pytest.approx(slope, rel=0.06)
    assert float(found.shifts[0]) == pytest.approx(shift, abs=0.06)
    predicted = outcome.predictive
    chance = found.probability(predicted.mean, predicted.std, torch.zeros(len(outcome.truth)))
    for low in np.arange(0.1, 0.9, 0.1):  # what is said with a probability comes true as often
        inside = (chance > low) & (chance <= low + 0.1)
        if int(inside.sum()) > 200:
            often = float(outcome.truth[inside].mean())
            assert often == pytest.approx(float(chance[inside].mean()), abs=0.08)
    assert bool((found.factors == 1).all())  # a binary value has no interval to widen


def test_numbers_with_small_errors_have_steeper_logits() -> None:
    """A sixteenth of the variance doubles the logits, whatever the number of shots."""
    outcome = tossed(40, 1.0, -1.0, True)
    share = float(outcome.truth.mean())
    found = Calibration.fit({0: outcome}, (0,), by_level=True)
    mean, none = outcome.predictive.mean, torch.zeros(len(outcome.truth))
    usual, small = ((share * (1 - share) / part) ** 0.5 for part in (1, 16))
    plain, steep = (torch.logit(found.probability(mean, none + std, none)) for std in (usual, small))
    slope, shift = float(found.slopes[0]), float(found.shifts[0])
    torch.testing.assert_close(steep, 2 * (plain - shift) + shift, rtol=1e-4, atol=1e-4)
    expected = slope * soft_logit(mean, float(found.edge)) + shift
    np.testing.assert_allclose(plain, expected, rtol=1e-4, atol=1e-6)
    probabilities = tossed(40, 1.0, -1.0, False)
    logistic = Calibration.fit({0: probabilities}, (0,), by_level=True)
    chances = [
        logistic.probability(probabilities.predictive.mean, none + std, none) for std in (usual, small)
    ]
    assert torch.equal(*chances)  # those of a logistic link know the errors already


def test_predictions_below_0_do_not_flatten_the_others() -> None:
    """A 1 where a number below 0 was predicted must not make all probabilities too flat."""
    outcome = tossed(40, 1.0, -1.0, True)
    low = torch.rand(len(outcome.truth), generator=torch.Generator().manual_seed(0)) < 0.2
    output = torch.where(low, -0.05, outcome.predictive.logits)
    truth = torch.where(low, (torch.arange(len(low)) % 10 == 0).double(), outcome.truth)
    predictive = replace(outcome.predictive, logits=output)
    found = Calibration.fit({0: replace(outcome, predictive=predictive, truth=truth)}, (0,), by_level=True)
    chance = found.probability(output, predictive.std, torch.zeros(len(truth)))
    clipped, _ = calibration._platt(torch.logit(output, eps=1e-4), truth, 0.8)
    assert float(found.slopes[0]) > 1.5 * clipped
    assert float(chance[low].mean()) == pytest.approx(0.1, abs=0.06)


def test_where_no_feature_has_so_many_shots_the_last_measure_holds() -> None:
    values = CLAIMED * torch.randn(6, ROWS, generator=torch.Generator().manual_seed(0)) * row_noise().sqrt()
    kinds = torch.full((6,), KindType.RATING)
    knowledge, batch = world(values, kinds, row_noise())
    few = batch.observing(batch.cells.keep(batch.cells.index < 10))
    found = measured(Claims(ClaimsConfig(), knowledge), knowledge, few)
    last = VALIDATION_SHOTS.index(8)
    assert bool((found.factors[KindType.RATING, last:] == found.factors[KindType.RATING, last]).all())
    assert bool(found.factors.isfinite().all())


def log_likelihood(logits: torch.Tensor, truth: torch.Tensor) -> float:
    return float((truth * logits - torch.nn.functional.softplus(logits)).sum())


@pytest.mark.parametrize("shift", [-2.0, 0.0, 2.0])
@pytest.mark.parametrize("slope", [0.0, 0.25, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0, 3.0, 10.0, 20.0])
@pytest.mark.parametrize("count", [10, 20_000])
def test_platt_scaling_never_lowers_the_likelihood(
    spread: float, slope: float, shift: float, count: int
) -> None:
    """Within its bounds, and close to the truth where many values determine it."""
    random = np.random.default_rng(0)
    logits = torch.from_numpy(np.clip(spread * random.normal(size=count), -9, 9))
    truth = torch.from_numpy(
        (random.random(count) < 1 / (1 + np.exp(-(slope * logits.numpy() + shift)))) + 0.0
    )
    for share in (0.3, 1.0):
        found_slope, found_shift = calibration._platt(logits, truth, share)
        assert 0.2 <= found_slope <= 3
        assert abs(found_shift) <= 5
        assert log_likelihood(found_slope * logits + found_shift, truth) >= log_likelihood(logits, truth)
    if count > 10 and spread in (1.0, 3.0) and 0.25 <= slope <= 2:
        assert found_slope == pytest.approx(slope, abs=0.08)
        assert found_shift == pytest.approx(shift, abs=0.1)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("count", [1, 10, 5000])
def test_platt_scaling_of_one_class_stays_within_its_bounds(value: float, count: int) -> None:
    logits = torch.linspace(-3, 3, count, dtype=torch.float64)
    truth = torch.full((count,), value, dtype=torch.float64)
    slope, shift = calibration._platt(logits, truth, 1.0)
    assert 0.2 <= slope <= 3
    assert abs(shift) <= 5
    assert (shift > 0) == (value == 1)
    assert log_likelihood(slope * logits + shift, truth) >= log_likelihood(logits, truth)


def test_overconfident_predictions_are_not_shifted() -> None:
    """Undamped Newton steps diverge here: they gave a shift of 9.5."""
    random = np.random.default_rng(0)
    logits = torch.from_numpy(3 * random.normal(size=4000))
    truth = torch.from_numpy((random.random(4000) < torch.sigmoid(0.25 * logits).numpy()).astype(float))
    slope, shift = calibration._platt(logits, truth, 1.0)
    assert slope == pytest.approx(0.25, abs=0.03)
    assert shift == pytest.approx(0, abs=0.1)


def clicked(features: int, rows: int, slope: float, shift: float) -> Outcome:
    """Predictions of clicks whose true log-odds are slope × the predicted ones + shift; zeros are sampled."""
    random = np.random.default_rng(0)
    chance = np.exp(random.normal(-3, 1, features * rows)).clip(1e-3, 0.8)
    odds = slope * np.log(chance / (1 - chance)) + shift
    truth = random.random(len(chance)) < 1 / (1 + np.exp(-odds))
    kept = truth | (random.random(len(truth)) < 0.25)  # a fourth of the zeros, which count four times
    probability, clicks = torch.from_numpy(chance[kept]), torch.from_numpy(truth[kept])
    nothing = torch.zeros_like(probability)
    kinds = torch.full(probability.shape, KindType.CLICK)
    likelihood = Likelihood(LikelihoodConfig(rating_link="identity"))
    output = probability / (1 + probability)  # the output whose ``click_probability`` this is
    predictive = Predictive(output, nothing, nothing + 0.1, kinds, likelihood)
    feature = torch.arange(features).repeat_interleave(rows)[torch.from_numpy(kept)]
    return Outcome(
        predictive, clicks.double(), feature, torch.zeros_like(clicks), torch.where(clicks, 1.0, 4.0)
    )


@pytest.mark.parametrize(("slope", "shift"), [(1.0, 0.0), (1.4, 0.5), (0.7, -1.0)])
def test_probabilities_of_clicks_are_put_right(slope: float, shift: float) -> None:
    outcome = clicked(60, 400, slope, shift)
    found = Calibration.fit({0: outcome}, (0, 4), by_level=True)
    chance = found.click_probability(outcome.predictive.mean, torch.zeros(len(outcome.truth)))
    raw = outcome.predictive.mean
    order = torch.argsort(raw)
    assert bool((chance[order].diff() >= 0).all())  # the ranking stays
    for low, high in ((0.0, 0.03), (0.03, 0.1), (0.1, 0.3)):  # what is said comes true as often
        inside = (chance > low) & (chance <= high)
        counts = outcome.weights[inside].double()
        often, said = (
            float((part[inside].double() * counts).sum() / counts.sum()) for part in (outcome.truth, chance)
        )
        assert often == pytest.approx(said, rel=0.25)
    assert bool((found.slopes == 1).all() and (found.factors == 1).all())


def test_known_features_are_calibrated_on_held_out_rows(limits: Limits) -> None:
    """Intervals of each level contain their share, given the factors of the features' shots."""
    limits(shrinkage_features=0)
    random = np.random.default_rng(0)
    count, kinds = 20_000, torch.full((20_000,), KindType.REAL)
    shots = torch.from_numpy(random.choice([0, 4], count))
    marks = (0, 4)
    before = Calibration.none(marks)
    before.factors[KindType.REAL] = torch.tensor([[2.0], [0.5]]).expand(-1, len(LEVELS))
    spread = torch.where(shots == 0, 2.0, 0.5).double()  # as the calibration says, but 1.5 times as wide
    truth = 1.5 * spread * torch.from_numpy(random.standard_t(4, count))
    nothing, likelihood = torch.zeros(count).double(), Likelihood(LikelihoodConfig(rating_link="identity"))
    predictive = Predictive(nothing, nothing, nothing + 1, kinds, likelihood)
    row = torch.arange(count) % 100
    rows = RowOutcomes(Outcome(predictive, truth, row, torch.zeros(count).bool()), shots, shots)
    after = before.fit_known(rows)
    assert torch.equal(after.factor(shots, kinds), before.factor(shots, kinds))  # those of new features
    factors = after.factor(shots, kinds, torch.ones(count).bool())
    for position, level in enumerate(LEVELS):
        half_width = norm.ppf(0.5 + level / 2) * factors[:, position]
        assert float((truth.abs() <= half_width).float().mean()) == pytest.approx(level, abs=0.002)
    at = after.at(np.array([0, 4, 4]), np.array([False, False, True]))
    slow = after.factor(torch.tensor([0, 4, 4]), kinds[:3], torch.tensor([False, False, True]))
    np.testing.assert_allclose(after.table.factors[KindType.REAL, at], slow.numpy(), rtol=1e-6)
