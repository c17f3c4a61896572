"""The local part of new features: its formulas, one number after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, vstack
from tests.limits import Limits
from tests.oracles.neighbours import inputs_of, posterior_of, prior_variance_of, residuals_of, similarity_of

from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.local_prior import INPUTS, LocalPrior, posterior_weights, relative_variance, shared_layers
from headstart.core.neighbours import (
    CHOSEN,
    NO_WEIGHTS,
    LocalPart,
    LocalStrengths,
    LocalWeights,
    Neighbours,
    weighted_sums,
)
from headstart.core.predictive import Predictive
from headstart.core.types import VALIDATION_SHOTS, FeatureBatch, Heads, Knowledge, RowStates
from headstart.errors import InputError
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

ROWS, FEATURES, WIDTH = 30, 50, 3


def knowledge_of(kind: KindType, seed: int = 0, features: int = FEATURES) -> Knowledge:
    random = np.random.default_rng(seed)
    row, feature = np.nonzero(random.random((ROWS, features)) < 0.4)
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
            torch.from_numpy(row), torch.from_numpy(feature), torch.from_numpy(values).float(), ROWS, features
        ),
        Heads(
            torch.randn(features, WIDTH, generator=draw),
            torch.randn(features, generator=draw),
            None,
            0.5 + torch.rand(features, generator=draw),
        ),
        torch.rand(features, 4, generator=draw),
        torch.full((features,), int(kind)),
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


METADATA = np.array([0.9, 0.1, 0.2, 0.4], np.float32)


def context_of(shots: int, seed: int = 1) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    return random.permutation(ROWS)[:shots], random.normal(size=shots)


def test_weights_of_similar_features_are_squared_cosines(knowledge: Knowledge) -> None:
    weights = Neighbours(knowledge).similar_weights(METADATA)
    slow = similarity_of(knowledge, METADATA, list(range(FEATURES)))
    assert as_dict(weights) == pytest.approx({j: m for j, m in slow.items() if m > 0}, abs=1e-6)
    assert Neighbours(knowledge).similar_weights(METADATA[:0]) == NO_WEIGHTS


@pytest.mark.parametrize("weighted", [False, True])
def test_chosen_weights_are_the_posterior_mean_under_the_shared_prior(
    knowledge: Knowledge, weighted: bool
) -> None:
    neighbours, (rows, residuals), kind = Neighbours(knowledge), context_of(12), int(knowledge.kinds[0])
    weights = np.random.default_rng(2).uniform(0.1, 1, size=12) if weighted else np.ones(12)
    context = rows.tolist(), residuals.tolist(), weights.tolist()
    inputs = inputs_of(knowledge, METADATA, kind, *context)
    observed = neighbours.residuals[rows]
    evidence = neighbours.evidence(METADATA, kind, observed, residuals, weights)
    for j, of in enumerate(inputs):
        assert dict(zip(INPUTS, evidence.inputs[j].tolist(), strict=True)) == pytest.approx(of, abs=1e-5)
    usual, known = neighbours.usual_variance, residuals_of(knowledge)
    assert usual == pytest.approx(0.3 * ROWS / sum(residual**2 for residual in known.values()), rel=1e-5)
    variances = [prior_variance_of(shared_layers(), list(of.values()), usual) for of in inputs]
    matrix = np.array([[known.get((row, j), 0.0) for j in range(FEATURES)] for row in rows.tolist()])
    slow = posterior_of(variances, matrix, *context[1:])
    fast = neighbours.chosen_weights(METADATA, kind, observed, residuals, weights if weighted else None)
    assert fast.features.tolist() == np.flatnonzero(slow).tolist()
    assert fast.values == pytest.approx(slow[slow != 0], rel=1e-3, abs=1e-5)


def test_blocks_that_bound_memory_change_no_evidence_and_no_shift(limits: Limits) -> None:
    knowledge, (rows, residuals) = knowledge_of(KindType.RATING), context_of(12)

    def results() -> tuple[Any, Any, Any]:
        neighbours = Neighbours(knowledge)
        arguments = METADATA, int(KindType.RATING), neighbours.residuals[rows], residuals
        matrix = neighbours.stack([neighbours.chosen_weights(*arguments)] * 3)
        targets = knowledge.cells.transpose().take(torch.arange(3))
        shifts = LocalPart.of_new(matrix).shifts_at(targets, neighbours.residuals)
        sums = weighted_sums(neighbours.residuals, matrix)
        return neighbours.evidence(*arguments, np.ones(12)).inputs, shifts, sums

    whole = results()
    for numbers in (1, 4 * FEATURES):
        limits(local_numbers_per_block=numbers)
        for part, expected in zip(results(), whole, strict=True):
            np.testing.assert_array_equal(part, expected)


def test_both_forms_of_the_posterior_agree() -> None:
    random = torch.Generator().manual_seed(0)
    variance = torch.rand(6, generator=random).double()
    for shots in (1, 5, 6, 7, 40):
        matrix, context = (torch.randn(shots, size, generator=random).double() for size in (6, 1))
        weights = 0.1 + torch.rand(shots, generator=random).double()
        slow = posterior_of(variance.tolist(), matrix.numpy(), context[:, 0].tolist(), weights.tolist())
        arguments = variance, matrix, context[:, 0], weights
        fast = posterior_weights(*arguments)
        assert fast.tolist() == pytest.approx(slow.tolist(), abs=1e-9)
        in_numpy = posterior_weights(*(argument.numpy() for argument in arguments))
        np.testing.assert_allclose(in_numpy, fast.numpy(), rtol=1e-9)


def test_the_network_in_training_is_the_one_in_use() -> None:
    prior = LocalPrior().double()
    for layer, (weight, bias) in zip(prior.layers, shared_layers(), strict=True):
        layer.weight.data, layer.bias.data = torch.from_numpy(weight), torch.from_numpy(bias)
    inputs = np.random.default_rng(0).normal(size=(5, len(INPUTS)))
    trained = prior(torch.from_numpy(inputs)).detach().numpy()
    np.testing.assert_allclose(relative_variance(inputs, shared_layers()), trained, rtol=1e-9)


def test_chosen_weights_ignore_the_order_and_rows_without_residuals(knowledge: Knowledge) -> None:
    neighbours, (rows, residuals), kind = Neighbours(knowledge), context_of(9), int(knowledge.kinds[0])
    observed, nothing = neighbours.residuals[rows], csr_array((1, FEATURES))
    weights = as_dict(neighbours.chosen_weights(METADATA, kind, observed, residuals))
    order = np.random.default_rng(3).permutation(9)
    again = neighbours.chosen_weights(METADATA, kind, observed[order], residuals[order])
    assert as_dict(again) == pytest.approx(weights)
    more = vstack([observed, nothing], format="csr")
    longer = neighbours.chosen_weights(METADATA, kind, more, np.append(residuals, 2.0), np.ones(10))
    assert as_dict(longer) == pytest.approx(weights)
    assert neighbours.chosen_weights(METADATA, kind, nothing, np.ones(1)) == NO_WEIGHTS
    assert neighbours.chosen_weights(METADATA, kind, observed[:0], residuals[:0]) == NO_WEIGHTS


def test_a_table_without_metadata_has_chosen_weights(knowledge: Knowledge) -> None:
    neighbours = Neighbours(replace(knowledge, metadata=torch.zeros(FEATURES, 0)))
    rows, residuals = context_of(5)
    kind, observed = int(knowledge.kinds[0]), neighbours.residuals[rows]
    assert len(neighbours.chosen_weights(METADATA[:0], kind, observed, residuals).features)


def test_few_features_of_a_large_table_are_chosen() -> None:
    knowledge = knowledge_of(KindType.RATING, features=2 * CHOSEN)
    neighbours, (rows, residuals) = Neighbours(knowledge), context_of(20)
    arguments = METADATA, int(KindType.RATING), neighbours.residuals[rows], residuals, np.ones(20)
    evidence = neighbours.evidence(*arguments)
    assert len(evidence.features) == CHOSEN
    assert len(neighbours.evidence(*arguments, most=7).features) == 7
    log_gain = evidence.inputs[:, INPUTS.index("log gain")]
    assert log_gain.max() == pytest.approx(evidence.inputs[0, INPUTS.index("log largest gain")])


def test_outputs_are_sums_over_observed_neighbours_whatever_else_is_asked(knowledge: Knowledge) -> None:
    neighbours, random = Neighbours(knowledge), np.random.default_rng(2)
    weights = [
        LocalWeights(np.sort(random.permutation(FEATURES)[:5]), random.normal(size=5)) for _ in range(7)
    ]
    rows = np.array([3, 1, 8, 3, 0])
    slow, residuals = residuals_of(knowledge), neighbours.residuals[rows]
    expected = [
        [sum(slow.get((row, feature), 0.0) * a for feature, a in as_dict(each).items()) for each in weights]
        for row in rows
    ]
    whole = weighted_sums(residuals, neighbours.stack(weights))
    np.testing.assert_allclose(whole, expected, atol=1e-5)
    for line in range(len(rows)):
        for column, each in enumerate(weights):
            alone = weighted_sums(residuals[[line]], neighbours.stack([each]))
            assert alone[0, 0] == whole[line, column]  # bit for bit
    many = weighted_sums(neighbours.residuals[np.tile(rows, 3)], neighbours.stack(weights[:2]))
    assert np.array_equal(many[:5], whole[:, :2])


def test_a_local_part_moves_the_predictions_of_its_features_only(knowledge: Knowledge) -> None:
    neighbours = Neighbours(knowledge)
    weights = neighbours.stack([LocalWeights(np.arange(FEATURES), np.full(FEATURES, 0.1))])
    local = LocalPart(3, np.array([1]), weights, np.array([False]), LocalStrengths())
    kinds = knowledge.kinds[:3]
    outputs = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3)
    predictive = Predictive(
        outputs, torch.full_like(outputs, 0.2), torch.tensor(0.3), kinds, knowledge.likelihood
    )
    residuals = neighbours.residuals[[4, 9]]
    moved = local.shift(predictive, residuals)
    assert torch.equal(moved.logits[:, [0, 2]], outputs[:, [0, 2]])
    steps = weighted_sums(residuals, weights)[:, 0]
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
    assert local.shifts_at(cells, neighbours.residuals) == pytest.approx([*steps, 0.0])


def test_the_strength_of_known_features_depends_on_the_row(knowledge: Knowledge) -> None:
    neighbours, strengths = Neighbours(knowledge), LocalStrengths(known=(0, 0, 0, 0, 0.5, 1, 1, 1, 1))
    rows = neighbours.residuals[[4, 9, 5]]
    rows = vstack([rows[:2], csr_array(rows[2:].multiply(np.arange(FEATURES) < 12))], format="csr")
    rows.eliminate_zeros()
    weights = neighbours.stack([LocalWeights(np.arange(FEATURES), np.full(FEATURES, 0.1))] * 2)
    local = LocalPart(2, np.arange(2), weights, np.array([False, True]), strengths)
    counts = np.diff(rows.indptr)
    assert counts[0] >= 16 > counts[2]
    factors = [np.interp(np.log1p(n), np.log1p(VALIDATION_SHOTS), strengths.known) for n in counts]
    cells = Cells.from_pairs(torch.tensor([0, 0, 0, 1, 1, 1]), torch.arange(6) % 3, torch.zeros(6), 2, 3)
    shifts = local.shifts_at(cells, rows)
    assert shifts[3:] == pytest.approx(shifts[:3] * factors)
    outputs = torch.zeros(3, 2, dtype=torch.float64)
    noise, kinds = torch.tensor(0.3), knowledge.kinds[:2]
    predictive = Predictive(outputs, torch.zeros_like(outputs), noise, kinds, knowledge.likelihood)
    moved = local.shift(predictive, rows).logits - outputs
    assert moved[:, 1].tolist() == pytest.approx((moved[:, 0].numpy() * factors).tolist())
    numbers, terms = local.take(np.array([1])).terms(rows[[2]])
    assert terms.sum() == pytest.approx(shifts[5])
    assert set(numbers.tolist()) <= set(range(12))


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
    (weights,) = neighbours.weights_of(batch, residuals, neighbours.residuals, strengths)
    similar = as_dict(neighbours.similar_weights(metadata[0].numpy()))
    context = neighbours.residuals[rows.numpy()], residuals.double().numpy()
    chosen = as_dict(neighbours.chosen_weights(metadata[0].numpy(), int(batch.kinds[0]), *context))
    expected = {
        feature: 0.5 * similar.get(feature, 0.0) + 2.0 * chosen.get(feature, 0.0)
        for feature in similar.keys() | chosen.keys()
    }
    assert as_dict(weights) == pytest.approx(expected)


def test_strengths_have_one_number_for_each_number_of_shots() -> None:
    with pytest.raises(InputError, match="similar"):
        LocalStrengths(similar=(1.0,), chosen=(0.0,) * 9)
