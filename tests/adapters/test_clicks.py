"""Clicks: rows and heads in closed form, against regressions with every zero written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.oracles.clicks import dense_head_posterior, dense_row_posterior, exposure

from headstart.adapters.base import OneContext, adapter_config
from headstart.backbones.base import backbone_config
from headstart.core.clicks import confidence, estimate_exposure, usual_count
from headstart.core.types import OneRow
from headstart.datasets import synthetic_clicks
from headstart.linalg.packed import unpack
from headstart.progress import Reporter
from headstart.table.kinds import KindType
from headstart.training.recipe import Recipe, train
from headstart.training.table_inputs import feature_batch


@pytest.fixture(scope="module")
def trained():
    table = synthetic_clicks(rows=50, features=30, density=0.25, seed=1, counts=True)
    every = np.arange(len(table.features))
    recipe = Recipe(backbone=backbone_config({"name": "factorisation", "latent": 4, "sweeps": 6}))
    parts = train(
        table, every, every, recipe, {"bayes": adapter_config("bayes")},
        reporter=Reporter(quiet=True), checkpoint=lambda _: None,
    )  # fmt: skip
    return table, parts


def dense(table) -> np.ndarray:
    """Return the confidence of every cell, 0 without a click: (rows, features)."""
    matrix = np.zeros(table.shape)
    matrix[table.row_index, table.feature_index] = np.log2(1 + table.values)
    return matrix


def test_rows_read_every_zero(trained):
    table, parts = trained
    backbone, states, matrix = parts.backbone, parts.knowledge.states, dense(table)
    heads = backbone.heads.stacked.double().numpy()
    covariances = unpack(backbone.covariance.double(), 5).numpy()
    usual = float(backbone.usual_clicks)
    clicks = (matrix > 0).sum(1)
    assert usual == pytest.approx((clicks**2).sum() / clicks.sum())
    for row in range(len(matrix)):
        exposed = exposure(clicks[row], usual)
        mean, covariance = dense_row_posterior(
            matrix[row], heads, covariances, float(backbone.precision[KindType.CLICK]), 1.0, exposed,
            np.zeros(4), np.eye(4),
        )  # fmt: skip
        np.testing.assert_allclose(states.activation[row], mean, atol=2e-5)
        np.testing.assert_allclose(states.variance[row], np.diag(covariance), atol=2e-5)
        assert float(states.exposure[row]) == pytest.approx(exposed, rel=1e-5)


def test_all_forms_of_a_row_agree(trained):
    table, parts = trained
    backbone, cells, heads = parts.backbone, table.cells(), parts.knowledge.heads
    own = torch.arange(len(table.features))
    several = backbone.states_from_heads(cells, heads, backbone.kinds, own)
    for part, other in zip(several.parts(), parts.knowledge.states.parts(), strict=True):
        torch.testing.assert_close(part, other, atol=1e-5, rtol=1e-4)
    alone = backbone.states_from_heads(cells.take(torch.tensor([3])), heads, backbone.kinds, own)
    for part, other in zip(alone.parts(), several.parts(), strict=True):
        torch.testing.assert_close(part, other[3:4], atol=1e-6, rtol=1e-5)


def test_a_new_row_is_less_exposed(trained):
    table, parts = trained
    backbone = parts.backbone
    row = table.cells().take(torch.tensor([0]))
    few = backbone.states(row.keep(torch.arange(len(row.index)) < 2))
    assert float(few.exposure[0]) == pytest.approx(3 / (1 + float(backbone.usual_clicks)))


def contexts(table, shots: int):
    """Return the features of a table as new ones, each with its first clicks."""
    batch = feature_batch(table)
    ranks = torch.cat([torch.arange(int(count)) for count in batch.cells.counts])
    return batch.observing(batch.cells.keep(ranks < shots))


@pytest.mark.parametrize("shots", [0, 2, 100])
@pytest.mark.parametrize("given", [None, 0.3])
def test_heads_read_every_zero(trained, shots, given):
    table, parts = trained
    adapter = parts.adapters["bayes"].adapter
    states, batch = adapter.refine(parts.knowledge.states), contexts(table, shots)
    if given is not None:
        batch = replace(batch, exposure=torch.full((len(batch),), given, dtype=torch.float64))
    adapter.prior.p_uninformative.fill_(0.0)  # one prior
    heads = adapter.adapt(batch, states)
    noise = float(adapter.prior.noise(batch.kinds)[0])
    root = adapter.prior.root(torch.float64).detach()
    means = adapter.prior.mean(batch).detach().double().numpy()
    activation, variance = states.activation.double().numpy(), states.variance.double().numpy()
    row_noise = states.noise.double().numpy() * noise + variance @ adapter.mean_squares.double().numpy()
    for feature in range(len(batch)):
        cells = batch.cells.take(torch.tensor([feature]))
        values = np.zeros(len(activation))
        values[cells.index.numpy()] = confidence(cells.values.double().numpy())
        exposed = given or exposure(values.sum(), float(adapter.prior.usual_clicks))
        mean, covariance = dense_head_posterior(
            values, activation, variance, noise, row_noise, exposed * states.exposure.double().numpy(),
            means[feature], (root @ root.T).numpy(),
        )  # fmt: skip
        np.testing.assert_allclose(np.append(heads.weight[feature], heads.bias[feature]), mean, atol=1e-6)
        np.testing.assert_allclose(unpack(heads.covariance[feature], 5), covariance, atol=1e-6)


def test_one_head_is_the_batched_one(trained):
    table, parts = trained
    adapter = parts.adapters["bayes"].adapter
    states, batch = adapter.refine(parts.knowledge.states), contexts(table, 4)
    heads = adapter.adapt(batch, states)
    for feature in range(0, len(batch), 7):
        one = batch.take(torch.tensor([feature]))
        index = one.cells.index
        context = OneContext(
            int(KindType.CLICK), one.metadata[0].numpy(), -1, one.cells.values.double().numpy(), None,
            states.activation[index].numpy(), states.noise[index].numpy(), states.variance[index].numpy(),
        )  # fmt: skip
        head = adapter.adapt_one(context)
        np.testing.assert_allclose(head.weight, heads.weight[feature], atol=1e-5)
        np.testing.assert_allclose(head.covariance, heads.covariance[feature], atol=1e-5)


def test_known_features_are_fully_exposed(trained):
    table, parts = trained
    prior = parts.adapters["bayes"].adapter.prior
    batch = replace(contexts(table, 1), known=torch.arange(len(table.features)))
    assert torch.equal(prior.exposure(batch, batch.shots), torch.ones(len(batch), dtype=torch.float64))


def test_zeros_of_less_exposed_features_count_less(trained):
    table, parts = trained
    adapter = parts.adapters["bayes"].adapter
    states, batch = adapter.refine(parts.knowledge.states), contexts(table, 3)
    means = []
    for exposed in (0.05, 0.5, 1.0):
        given = replace(batch, exposure=torch.full((len(batch),), exposed, dtype=torch.float64))
        heads = adapter.adapt(given, states)
        means.append(float((states.activation @ heads.weight.T + heads.bias).mean()))
    assert means[0] > means[1] > means[2]


def test_exposure_grows_with_clicks_up_to_1():
    usual = usual_count(torch.tensor([1, 1, 10]))
    assert float(usual) == pytest.approx(102 / 12)
    numbers = estimate_exposure(torch.tensor([0.0, 3.0, 100.0]), usual)
    np.testing.assert_allclose(numbers, [1 / 9.5, 4 / 9.5, 1.0])
    assert estimate_exposure(3, 8.5) == pytest.approx(4 / 9.5)


def test_a_single_row_in_numpy_reads_zeros(trained):
    table, parts = trained
    backbone, matrix = parts.backbone, dense(table)
    observed = np.flatnonzero(matrix[5])
    row = OneRow(
        2 ** matrix[5, observed] - 1,
        backbone.heads.stacked[observed].double().numpy(),
        backbone.covariance[observed].numpy(),
        (1 / backbone.observation_precision[observed]).double().numpy(),
        np.full(len(observed), KindType.CLICK),
    )
    state = backbone.state_of_one(row, observed)
    np.testing.assert_allclose(state.activation, parts.knowledge.states.activation[5], atol=1e-5)
    assert state.exposure == pytest.approx(float(parts.knowledge.states.exposure[5]), rel=1e-5)
