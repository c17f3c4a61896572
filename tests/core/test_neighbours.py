"""The local part of new features: its formulas, one number after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.oracles.neighbours import chosen_weights_of, residuals_of, similar_weights_of

from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.neighbours import (
    NO_WEIGHTS,
    LocalPart,
    LocalStrengths,
    LocalWeights,
    Neighbours,
)
from headstart.core.predictive import Predictive
from headstart.core.types import VALIDATION_SHOTS, FeatureBatch, Heads, Knowledge, RowStates
from headstart.errors import InputError
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

ROWS, FEATURES, WIDTH = 30, 50, 3


def knowledge_of(kind: KindType, seed: int = 0) -> Knowledge:
    random = np.random.default_rng(seed)
    row, feature = np.nonzero(random.random((ROWS, FEATURES)) < 0.4)
    values = random.normal(size=len(row))
    if kind == KindType.BINARY:
        values = (values > 0).astype(float)
    draw = torch.Generator().manual_seed(seed)
    return Knowledge(
        RowStates(
            torch.randn(ROWS, WIDTH, generator=draw),
            torch.rand(ROWS, WIDTH, generator=draw),
            torch.randn(ROWS, WIDTH, generator=draw),
            0.5 + torch.rand(ROWS, generator=draw),
            torch.rand(ROWS, WIDTH, generator=draw),
        ),
        Cells.from_pairs(
            torch.from_numpy(row), torch.from_numpy(feature), torch.from_numpy(values).float(), ROWS, FEATURES
        ),
        Heads(
            torch.randn(FEATURES, WIDTH, generator=draw),
            torch.randn(FEATURES, generator=draw),
            None,
            0.5 + torch.rand(FEATURES, generator=draw),
        ),
        torch.rand(FEATURES, 4, generator=draw),
        torch.full((FEATURES,), int(kind)),
        Likelihood(LikelihoodConfig(rating_link="identity")),
    )


@pytest.fixture(params=[KindType.BINARY, KindType.RATING, KindType.REAL])
def knowledge(request: pytest.FixtureRequest) -> Knowledge:
    return knowledge_of(request.param)


def as_dict(weights: LocalWeights) -> dict[int, Any]:
    return dict(zip(weights.features.tolist(), weights.values.tolist(), strict=True))


def test_residuals_are_standardised_errors_of_the_backbone(knowledge: Knowledge) -> None:
    matrix = Neighbours(knowledge).residuals
    slow = residuals_of(knowledge)
    assert matrix.nnz == len(slow)
    fast = {(row, feature): matrix[row, feature] for row, feature in slow}
    assert fast == pytest.approx(slow, abs=1e-5)


def test_weights_of_similar_features_are_squared_cosines(knowledge: Knowledge) -> None:
    metadata = np.array([0.9, 0.1, 0.2, 0.4], np.float32)
    weights = Neighbours(knowledge).similar_weights(metadata)
    assert as_dict(weights) == pytest.approx(similar_weights_of(knowledge, metadata), abs=1e-6)
    assert Neighbours(knowledge).similar_weights(metadata[:0]) == NO_WEIGHTS


@pytest.mark.parametrize("weighted", [False, True])
def test_chosen_weights_are_a_ridge_regression(knowledge: Knowledge, weighted: bool) -> None:
    random = np.random.default_rng(1)
    rows, residuals = np.sort(random.permutation(ROWS)[:12]), random.normal(size=12)
    weights = random.uniform(0.1, 1, size=12) if weighted else np.ones(12)
    fast = Neighbours(knowledge).chosen_weights(rows, residuals, weights if weighted else None)
    slow = chosen_weights_of(knowledge, rows.tolist(), residuals.tolist(), weights.tolist())
    assert len(fast.features) == 32
    assert as_dict(fast) == pytest.approx(slow, rel=1e-4, abs=1e-6)


def test_chosen_weights_ignore_the_order_and_rows_outside_the_table(knowledge: Knowledge) -> None:
    neighbours, random = Neighbours(knowledge), np.random.default_rng(1)
    rows, residuals = random.permutation(ROWS)[:9], random.normal(size=9)
    weights = as_dict(neighbours.chosen_weights(rows, residuals))
    order = random.permutation(9)
    assert as_dict(neighbours.chosen_weights(rows[order], residuals[order])) == pytest.approx(weights)
    more = neighbours.chosen_weights(np.append(rows, ROWS + 3), np.append(residuals, 2.0))
    assert as_dict(more) == pytest.approx(weights)
    assert neighbours.chosen_weights(np.array([ROWS]), np.ones(1)) == NO_WEIGHTS
    assert neighbours.chosen_weights(rows[:0], residuals[:0]) == NO_WEIGHTS


def test_outputs_are_sums_over_observed_neighbours_whatever_else_is_asked(knowledge: Knowledge) -> None:
    neighbours, random = Neighbours(knowledge), np.random.default_rng(2)
    weights = [
        LocalWeights(np.sort(random.permutation(FEATURES)[:5]), random.normal(size=5)) for _ in range(7)
    ]
    rows = np.array([3, -1, 8, ROWS, 0])
    slow = residuals_of(knowledge)
    expected = [
        [sum(slow.get((row, feature), 0.0) * a for feature, a in as_dict(each).items()) for each in weights]
        for row in rows
    ]
    whole = neighbours.outputs(rows, neighbours.stack(weights))
    np.testing.assert_allclose(whole, expected, atol=1e-5)
    for line, row in enumerate(rows):
        for column, each in enumerate(weights):
            alone = neighbours.outputs(np.array([row]), neighbours.stack([each]))
            assert alone[0, 0] == whole[line, column]  # bit for bit
    many = neighbours.outputs(np.tile(rows, 3), neighbours.stack(weights[:2]))
    assert np.array_equal(many[:5], whole[:, :2])


def test_a_local_part_moves_the_predictions_of_its_features_only(knowledge: Knowledge) -> None:
    neighbours = Neighbours(knowledge)
    weights = neighbours.stack([LocalWeights(np.arange(FEATURES), np.full(FEATURES, 0.1))])
    local = LocalPart(3, np.array([1]), weights, neighbours)
    kinds = knowledge.kinds[:3]
    outputs = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3)
    predictive = Predictive(
        outputs, torch.full_like(outputs, 0.2), torch.tensor(0.3), kinds, knowledge.likelihood
    )
    rows = torch.tensor([4, 9])
    moved = local.shift(predictive, rows)
    assert torch.equal(moved.logits[:, [0, 2]], outputs[:, [0, 2]])
    steps = neighbours.outputs(rows.numpy(), weights)[:, 0]
    change = (moved.mean - predictive.mean)[:, 1].numpy()
    if int(kinds[0]) == KindType.BINARY:  # along the tangent of the link
        slope = (predictive.mean * (1 - predictive.mean))[:, 1].numpy()
        small = predictive.shifted(torch.full_like(outputs, 1e-4)).mean - predictive.mean
        np.testing.assert_allclose(small[:, 1].numpy(), 1e-4 * np.sqrt(slope), rtol=1e-3)
    else:
        np.testing.assert_allclose(change, steps * np.sqrt(0.3), rtol=1e-6)
    assert local.shift(predictive, None) is predictive
    taken = local.take(np.array([2, 1, 0, 1]))
    assert taken.positions.tolist() == [1, 3]
    assert taken.size == 4
    cells = Cells.from_pairs(torch.tensor([1, 1, 2]), torch.tensor([4, 9, 4]), torch.zeros(3), 3, ROWS)
    assert local.shifts_at(cells) == pytest.approx([*steps, 0.0])


def test_weights_are_interpolated_between_numbers_of_shots(knowledge: Knowledge) -> None:
    strengths = LocalStrengths(similar=(0.5,) * 9, chosen=(0.0, *(float(i) for i in range(8))))
    assert strengths.at(0) == (0.5, 0.0)
    assert strengths.at(VALIDATION_SHOTS[4]) == (0.5, 3.0)
    assert strengths.at(10_000) == (0.5, 7.0)
    neighbours, metadata = Neighbours(knowledge), torch.rand(1, 4)
    rows = torch.tensor([2, 5, 11, 20])
    cells = Cells.from_pairs(torch.zeros(4, dtype=torch.int64), rows, torch.zeros(4), 1, ROWS)
    residuals = torch.tensor([1.0, -1.0, 0.5, 2.0])
    batch = FeatureBatch(cells, metadata, knowledge.kinds[:1])
    (weights,) = neighbours.weights_of(batch, residuals, strengths)
    similar = as_dict(neighbours.similar_weights(metadata[0].numpy()))
    chosen = as_dict(neighbours.chosen_weights(rows.numpy(), residuals.double().numpy()))
    expected = {
        feature: 0.5 * similar.get(feature, 0.0) + 2.0 * chosen.get(feature, 0.0)
        for feature in similar.keys() | chosen.keys()
    }
    assert as_dict(weights) == pytest.approx(expected)


def test_strengths_have_one_number_for_each_number_of_shots() -> None:
    with pytest.raises(InputError, match="similar"):
        LocalStrengths(similar=(1.0,), chosen=(0.0,) * 9)
