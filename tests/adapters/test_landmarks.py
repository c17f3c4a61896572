from __future__ import annotations

import numpy as np
import torch

from headstart.adapters.head_prior import ReferenceFeatures
from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.types import Heads, Knowledge, RowStates
from headstart.table.cells import Cells
from headstart.table.kinds import KindType


def known(rows: int = 50, features: int = 5, latent: int = 3) -> Knowledge:
    torch.manual_seed(0)
    activation = torch.randn(rows, latent)
    activation[7] *= 40.0
    heads = Heads(torch.randn(features, latent), torch.randn(features))
    line, index = torch.cartesian_prod(torch.arange(rows), torch.arange(features)).T
    cells = Cells.from_pairs(line, index, torch.randn(rows * features), rows, features)
    kinds = torch.full((features,), int(KindType.REAL))
    kinds[1] = int(KindType.RATING)
    states = RowStates(activation, torch.zeros_like(activation), activation)
    likelihood = Likelihood(LikelihoodConfig(rating_link="identity"))
    return Knowledge(states, cells, heads, torch.zeros(features, 0), kinds, likelihood)


def test_extents_are_median_distances_of_predictions_in_units_of_the_usual_one() -> None:
    knowledge = known()
    landmarks = ReferenceFeatures.of(knowledge)
    activation = knowledge.states.activation.double().numpy()
    expected = []
    for i in range(len(activation)):
        relative = []
        for j in (0, 2, 3, 4):  # the second feature is no real
            weight = knowledge.heads.weight[j].double().numpy()
            outputs = np.sort(activation @ weight)
            middle = outputs[(len(outputs) - 1) // 2]
            usual = np.sort(np.abs(outputs - middle))[(len(outputs) - 1) // 2]
            relative.append(abs(activation[i] @ weight - middle) / usual)
        expected.append(max(1.0, np.sort(relative)[(len(relative) - 1) // 2]))
    found = landmarks.row_scales(knowledge.states.activation).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.argmax() == 7
    assert found[7] > 10


def test_activations_that_an_adapter_added_are_left_out() -> None:
    knowledge = known()
    landmarks, states = ReferenceFeatures.of(knowledge), knowledge.states
    wider = torch.cat([states.activation, torch.ones(50, 2)], dim=1)
    assert torch.equal(landmarks.row_scales(wider), landmarks.row_scales(states.activation))
