from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from tests.oracles.integration import moments_behind_link

from headstart.core import Likelihood, LikelihoodConfig
from headstart.table.kinds import KindType


def test_logit_inverts_mean_for_every_kind() -> None:
    for link in ("sigmoid", "identity"):
        likelihood = Likelihood(LikelihoodConfig(rating_link=link))
        kinds = torch.tensor([KindType.BINARY, KindType.RATING, KindType.REAL])
        mean = torch.tensor([0.2, 0.7, 0.9])
        torch.testing.assert_close(likelihood.mean(likelihood.logit(mean, kinds), kinds), mean)


def test_logit_is_finite_at_the_ends() -> None:
    likelihood = Likelihood(LikelihoodConfig())
    ends = torch.tensor([0.0, 1.0])
    assert torch.isfinite(likelihood.logit(ends, torch.tensor([KindType.BINARY, KindType.RATING]))).all()


def test_kinds_broadcast_against_a_matrix_of_logits() -> None:
    likelihood = Likelihood(LikelihoodConfig(rating_link="identity"))
    logits = torch.tensor([[0.0, 3.0], [1.0, -2.0]])
    mean = likelihood.mean(logits, torch.tensor([KindType.BINARY, KindType.REAL]))
    torch.testing.assert_close(mean, torch.stack([logits[:, 0].sigmoid(), logits[:, 1]], dim=1))


LOGITS = (-3.0, -1.0, 0.0, 0.5, 2.0)


def sigmoid(x: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-x))


def told(
    likelihood: Likelihood, logit: float, variance: float, noise: float, kind: int
) -> tuple[float, float]:
    given = (torch.tensor([x], dtype=torch.float64) for x in (logit, variance, noise))
    mean, total = likelihood.predictive(*given, torch.tensor([kind]))
    return float(mean), float(total)


@pytest.mark.parametrize("logit", LOGITS)
@pytest.mark.parametrize(("variance", "noise"), [(0.0, 0.0), (0.3, 0.1), (1.0, 0.5), (4.0, 1.0), (9.0, 0.0)])
def test_a_binary_prediction_is_the_logistic_function_over_a_gaussian(
    logit: float, variance: float, noise: float
) -> None:
    mean, total = told(Likelihood(LikelihoodConfig()), logit, variance, noise, KindType.BINARY)
    expected, _ = moments_behind_link(sigmoid, logit, variance + noise)
    assert mean == pytest.approx(expected, abs=0.02)
    assert total == pytest.approx(mean * (1 - mean))  # a coin's


@pytest.mark.parametrize("logit", LOGITS)
@pytest.mark.parametrize(("variance", "noise"), [(0.0, 0.01), (0.1, 0.02), (0.5, 0.02)])
def test_a_squashed_rating_is_the_logistic_function_over_a_gaussian_plus_noise(
    logit: float, variance: float, noise: float
) -> None:
    mean, total = told(Likelihood(LikelihoodConfig()), logit, variance, noise, KindType.RATING)
    expected, spread = moments_behind_link(sigmoid, logit, variance)
    assert mean == pytest.approx(expected, abs=0.01)
    assert total == pytest.approx(spread + noise, abs=0.01)


def test_a_gaussian_prediction_is_exact() -> None:
    likelihood = Likelihood(LikelihoodConfig(rating_link="identity"))
    for kind in (KindType.RATING, KindType.REAL):
        mean, total = told(likelihood, 0.3, 0.7, 0.4, kind)
        expected, spread = moments_behind_link(lambda x: x, 0.3, 0.7 + 0.4)
        assert mean == pytest.approx(expected, abs=1e-8)
        assert total == pytest.approx(spread, rel=1e-6)


@pytest.mark.parametrize("link", ["sigmoid", "identity"])
def test_predictive_nll_of_a_mix_of_kinds_is_each_cell_under_its_own_distribution(link: str) -> None:
    likelihood = Likelihood(LikelihoodConfig(rating_link=link))
    kinds = torch.tensor(
        [KindType.BINARY, KindType.RATING, KindType.REAL, KindType.BINARY, KindType.RATING, KindType.REAL]
    )
    logits = torch.tensor([0.4, -0.3, 1.2, -2.0, 0.6, 0.0], dtype=torch.float64)
    variance = torch.tensor([0.5, 0.1, 0.8, 2.0, 0.0, 0.3], dtype=torch.float64)
    noise = torch.tensor([0.1, 0.05, 0.5, 0.2, 0.04, 1.5], dtype=torch.float64)
    values = torch.tensor([1.0, 0.25, -0.4, 0.0, 0.75, 2.0], dtype=torch.float64)
    found = likelihood.predictive_nll(logits, variance, noise, values, kinds)
    mean, total = likelihood.predictive(logits, variance, noise, kinds)
    for n, kind in enumerate(kinds.tolist()):
        alone = told(likelihood, float(logits[n]), float(variance[n]), float(noise[n]), kind)
        assert alone == pytest.approx((float(mean[n]), float(total[n])))
        if kind == KindType.BINARY:
            expected = -np.log(alone[0] if values[n] == 1 else 1 - alone[0])
            exact, _ = moments_behind_link(sigmoid, float(logits[n]), float(variance[n] + noise[n]))
            assert found[n] == pytest.approx(-np.log(exact if values[n] == 1 else 1 - exact), rel=0.02)
        else:
            expected = -norm.logpdf(float(values[n]), alone[0], np.sqrt(alone[1]))
        assert found[n] == pytest.approx(expected)


def test_an_extreme_binary_logit_has_a_finite_loss() -> None:
    likelihood = Likelihood(LikelihoodConfig())
    zero = torch.zeros(2)
    loss = likelihood.predictive_nll(
        torch.tensor([80.0, -80.0]), zero, zero, zero, torch.tensor([KindType.BINARY] * 2)
    )
    torch.testing.assert_close(loss, torch.tensor([80.0, 0.0]))
