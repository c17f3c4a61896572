"""Centre and scale of new real features: against numerical integration, and what must hold of any."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import invgamma
from tests.oracles.integration import posterior_of_scale

from headstart.adapters.unknown_scale import (
    ScalePrior,
    _matching_freedom,
    _weighted_median,
    basis_from_sums,
    shrinkage_scale,
)
from headstart.core.types import Scales
from headstart.linalg.gaussian import ContextSums

SIZE = 3  # two activations and the bias
COVARIANCE = torch.tensor([[0.5, 0.1], [0.1, 0.3]], dtype=torch.float64)


def known(features: int = 30, seed: int = 0) -> Scales:
    """Scales over three orders of magnitude, and centres within a few of them."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp(1.5 * torch.randn(features, generator=generator, dtype=torch.float64))
    return Scales(scale * torch.randn(features, generator=generator, dtype=torch.float64) + 1, scale)


def prepared(scales: Scales, noise: torch.Tensor | None = None) -> ScalePrior:
    prior = ScalePrior(scales, len(scales.scale))
    prior.prepare(scales, noise)
    return prior


def contexts(shots: list[int], seed: int = 0) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Activations with a 1, values, and weights of each feature."""
    random = np.random.default_rng(seed)
    made = []
    for k in shots:
        rows = np.c_[random.normal(size=(k, SIZE - 1)), np.ones(k)]
        values = random.normal(size=k) + 0.7 * rows[:, 0] + 1
        made.append((rows, values, random.uniform(0.5, 3, k)))
    return made


def sums_of(made: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> ContextSums:
    parts = [
        (len(x), np.einsum("k,ki,kj->ij", w, a, a), a.T @ (w * x), float((w * x**2).sum()))
        for a, x, w in made
    ]
    return ContextSums(*(torch.from_numpy(np.array(each, dtype=float)) for each in zip(*parts, strict=True)))


def answers(prior: ScalePrior, sums: ContextSums, means: torch.Tensor) -> list[torch.Tensor]:
    return list(prior.posterior(basis_from_sums(sums, means, COVARIANCE), means, COVARIANCE))


def test_features_do_not_hang_on_each_other() -> None:
    prior = prepared(known(), torch.linspace(0.5, 2, 30))
    sums = sums_of(contexts([0, 1, 2, 5, 9]))
    means = torch.linspace(-2, 2, 10, dtype=torch.float64).view(5, SIZE - 1)
    every, order = answers(prior, sums, means), torch.tensor([3, 0, 4, 2, 1])
    turned = answers(prior, ContextSums(*(part[order] for part in sums)), means[order])
    alone = [answers(prior, ContextSums(*(part[[i]] for part in sums)), means[[i]]) for i in range(5)]
    for number, whole in enumerate(every):
        torch.testing.assert_close(turned[number], whole[order])
        torch.testing.assert_close(torch.cat([each[number] for each in alone]), whole)


@pytest.mark.parametrize("unit", [1e-3, 7.0])
def test_other_units_change_nothing_but_the_units(unit: float) -> None:
    scales, noise = known(), torch.linspace(0.5, 2, 30)
    means = 0.3 * torch.ones(4, SIZE - 1, dtype=torch.float64)
    made = contexts([0, 1, 3, 20])
    one = answers(prepared(scales, noise), sums_of(made), means)
    other_scales = Scales(unit * scales.centre, unit * scales.scale)
    prior = prepared(other_scales, noise)
    assert float(prior.centre) == pytest.approx(unit * float(prepared(scales).centre))
    other = answers(prior, sums_of([(a, unit * x, w) for a, x, w in made]), means)
    for mine, yours, power in zip(one, other, (1, 2, 2), strict=True):
        torch.testing.assert_close(yours, unit**power * mine, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("centre", "scale"), [(2.0, 1.0), (40.0, 0.3), (-500.0, 90.0)])
def test_many_observations_tell_centre_scale_and_noise(centre: float, scale: float) -> None:
    """Also of a feature unlike all known ones."""
    random = np.random.default_rng(0)
    rows = np.c_[random.normal(size=(4000, SIZE - 1)), np.ones(4000)]
    pattern = np.array([0.8, -0.4])
    values = centre + scale * (rows[:, :-1] @ pattern + random.normal(size=4000))
    prior = prepared(known())
    made = [(rows, values - float(prior.centre), np.ones(4000))]
    mean, covariance, noise = answers(prior, sums_of(made), torch.zeros(1, SIZE - 1, dtype=torch.float64))
    assert float(mean[0, -1] + prior.centre) == pytest.approx(centre, abs=0.06 * scale)
    np.testing.assert_allclose(mean[0, :-1].numpy(), scale * pattern, atol=0.06 * scale)
    assert float(noise[0]) == pytest.approx(scale**2, rel=0.1)
    np.testing.assert_allclose(covariance[0].diagonal().numpy(), np.full(SIZE, scale**2 / 4000), rtol=0.15)


@pytest.mark.parametrize("shots", [0, 1, 4, 12])
def test_a_part_is_what_numerical_integration_finds(shots: int) -> None:
    """Without a predicted pattern all is conjugate, so nothing is approximate."""
    prior = prepared(known())
    freedoms = torch.linspace(5, 9, len(prior.centre_variance_ratio)).double()
    prior.freedom.copy_(freedoms)  # enough for E[s²] to exist
    made = contexts([shots], seed=shots)
    sums, means = sums_of(made), torch.zeros(1, SIZE - 1, dtype=torch.float64)
    found, noises, chosen = (
        [],
        [],
        [0, 1, len(prior.centre_variance_ratio) // 2, len(prior.centre_variance_ratio) - 2],
    )
    for part in chosen:
        numbers = (float(each[part]) for each in (prior.centre_variance_ratio, prior.freedom, prior.square))
        evidence, expected, mean, covariance = posterior_of_scale(made[0], COVARIANCE.numpy(), *numbers)
        alone = prepared(known())
        for name in ("centre_variance_ratio", "freedom", "square"):
            getattr(alone, name).fill_(getattr(prior, name)[part])
        mine, spread, noise = answers(alone, sums, means)
        np.testing.assert_allclose(float(noise[0]), expected, rtol=1e-3)
        np.testing.assert_allclose(mine[0].numpy(), mean, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(spread[0].numpy(), covariance, rtol=1e-3, atol=1e-9)
        found.append(evidence)
        noises.append(float(noise[0]))
    # Two parts share the noise by their tempered evidence.
    for one, other in ((0, 1), (0, 2), (2, 3)) if shots else ():
        prior.share.zero_()
        prior.share[[chosen[one], chosen[other]]] = 0.5
        odds = np.exp(shots / (shots + 2) * (found[one] - found[other]))
        expected = (odds * noises[one] + noises[other]) / (odds + 1)
        assert float(answers(prior, sums, means)[2][0]) == pytest.approx(expected, rel=1e-3)


def test_a_predicted_pattern_is_taken_as_large_as_costs_least() -> None:
    """c·m against s·m, in units of s: (c − s)² / s² is least on average at E[1/s] / E[1/s²]."""
    for freedom, square in ((3.0, 2.0), (40.0, 0.1)):
        given = invgamma(freedom / 2, scale=freedom * square / 2)
        s = np.sqrt(given.ppf((np.arange(200_000) + 0.5) / 200_000))
        found = float(shrinkage_scale(torch.tensor(freedom), torch.tensor(square)))
        assert found == pytest.approx((1 / s).mean() / (1 / s**2).mean(), rel=1e-3)


def test_known_features_are_matched() -> None:
    scales = known(60)
    prior = prepared(scales)
    assert len(prior.centre_variance_ratio) == 2 * 6 + 1
    assert float(prior.share.sum()) == pytest.approx(1)
    total = lambda centre: float(((scales.centre - centre).abs() / scales.scale).sum())  # noqa: E731
    assert total(prior.centre) <= min(total(each) for each in scales.centre) + 1e-9
    for variance in (0.2, 1.0, 5.0):
        freedom = _matching_freedom(torch.tensor(variance, dtype=torch.float64))
        drawn = invgamma(float(freedom) / 2).rvs(200_000, random_state=0)
        assert np.log(drawn).var() == pytest.approx(variance, rel=0.03)
    assert float(_weighted_median(torch.tensor([3.0, 1.0, 9.0]), torch.tensor([1.0, 1.0, 5.0]))) == 9
    noise = torch.linspace(0.1, 4, 60)
    levels = prepared(scales, noise).level.tolist()
    expected = [np.exp(np.log(part).mean()) for part in np.array_split(noise.double().numpy(), 5)]
    np.testing.assert_allclose(levels, expected, rtol=1e-5)


def test_few_known_features_are_one_part() -> None:
    prior = prepared(known(3))
    assert len(prior.centre_variance_ratio) == 3
    sums = sums_of(contexts([0, 1, 6]))
    for each in answers(prior, sums, torch.zeros(3, SIZE - 1, dtype=torch.float64)):
        assert bool(each.isfinite().all())
