"""Joint draws have the covariance of the posterior."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.oracles.sampling import output_covariance

from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.predictive import draw_outputs, draw_scores, predict_grid
from headstart.core.types import Heads, RowStates
from headstart.linalg.packed import pack
from headstart.table.kinds import KindType

ROWS, HEADS, WIDTH = 3, 4, 3


def world() -> tuple[Heads, RowStates]:
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    roots = 0.4 * normal(HEADS, WIDTH + 1, WIDTH + 1)
    noise = normal(HEADS) ** 2 + 0.1
    heads = Heads(normal(HEADS, WIDTH), normal(HEADS), pack(roots @ roots.mT), noise)
    code = torch.zeros(ROWS, 1, dtype=torch.float64)
    return heads, RowStates(
        code, code, normal(ROWS, WIDTH), normal(ROWS) ** 2 + 0.5, 0.2 * normal(ROWS, WIDTH) ** 2
    )


def test_outputs_have_the_covariance_of_the_posterior() -> None:
    heads, states = world()
    drawn = np.stack(list(draw_outputs(heads, states, 60_000, np.random.default_rng(0))))
    mean = (states.activation @ heads.weight.T + heads.bias).numpy()
    expected = output_covariance(heads, states).reshape(ROWS * HEADS, ROWS * HEADS)
    centred = (drawn - mean).reshape(len(drawn), -1)
    found = centred.T @ centred / len(drawn)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    np.testing.assert_allclose(found / scale, expected / scale, atol=0.02)
    assert (np.abs(expected / scale) > 0.2).sum() > 2 * ROWS * HEADS  # some cells are correlated
    predictive = predict_grid(
        heads, states, torch.full((HEADS,), int(KindType.REAL)), Likelihood(LikelihoodConfig())
    )
    np.testing.assert_allclose(np.diag(expected).reshape(ROWS, HEADS), predictive.variance.numpy(), rtol=1e-9)


@pytest.mark.parametrize("kinds", [[KindType.REAL] * 4, [KindType.RATING, KindType.BINARY] * 2])
@pytest.mark.parametrize("link", ["identity", "sigmoid"])
def test_scores_are_standard_normal(kinds: list[KindType], link: str) -> None:
    heads, states = world()
    likelihood = Likelihood(LikelihoodConfig(rating_link=link))
    scores = np.stack(
        list(draw_scores(heads, states, torch.tensor(kinds), likelihood, 20_000, np.random.default_rng(0)))
    )
    np.testing.assert_allclose(scores.mean(0), 0, atol=0.05)
    np.testing.assert_allclose(scores.std(0), 1, atol=0.05)


def test_a_certain_head_leaves_the_noise_only() -> None:
    heads, states = world()
    certain = Heads(heads.weight, heads.bias)
    states = RowStates(states.code, states.code_std, states.activation)
    outputs = list(draw_outputs(certain, states, 2, np.random.default_rng(0)))
    np.testing.assert_array_equal(outputs[0], outputs[1])
