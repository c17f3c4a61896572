"""Where priors start: from known heads, none of which confirms itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from tests.adapters.conftest import Tiny
from tests.oracles.head_prior import metadata_weights
from tests.oracles.ridge import loo_predictions

from headstart.adapters.head_prior import (
    EmpiricalPrior,
    HeadPrior,
    activation_metric,
    empirical_noise,
    empirical_prior,
    mean_squared_weights,
    p_uninformative,
)
from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.types import Description, FeatureBatch, Heads, Knowledge, RowStates
from headstart.linalg.packed import pack, unpack
from headstart.linalg.ridge import LooRidge
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

FEATURES, ROWS, WIDTH = 60, 30, 3
WIDTHS = (2, 3, 4)  # a number and whether it is missing, labels, and noise


def world(*, mixed: bool = False, seed: int = 0) -> Knowledge:
    """Heads that follow the number (bent) and the labels, with covariances, at uncertain rows."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator)

    number = torch.rand(FEATURES, 1, generator=generator)
    labels = torch.eye(3)[torch.randint(3, (FEATURES,), generator=generator)]
    metadata = torch.cat([number, torch.zeros(FEATURES, 1), labels, normal(FEATURES, 4)], dim=1)
    heads = 0.3 * normal(FEATURES, WIDTH + 1) + labels @ normal(3, WIDTH + 1)
    heads = heads + 6 * number * (1 - number) * normal(1, WIDTH + 1)
    some = 0.1 * normal(FEATURES, WIDTH + 1, WIDTH + 1)
    some = some * torch.linspace(0.2, 2, FEATURES)[:, None, None]  # some are known better than others
    states = RowStates(
        normal(ROWS, 2), torch.ones(ROWS, 2), normal(ROWS, WIDTH),
        torch.rand(ROWS, generator=generator) + 0.5, torch.rand(ROWS, WIDTH, generator=generator),
    )  # fmt: skip
    kinds = torch.full((FEATURES,), KindType.RATING)
    if mixed:
        kinds[::2] = KindType.REAL
    index = torch.arange(FEATURES).repeat(ROWS)
    cells = Cells.from_pairs(
        torch.arange(ROWS).repeat_interleave(FEATURES), index, normal(len(index)), ROWS, FEATURES
    )
    likelihood = Likelihood(LikelihoodConfig(rating_link="identity")).requires_grad_(False)
    known = Heads(heads[:, :-1], heads[:, -1], pack(some @ some.mT), torch.ones(FEATURES))
    return Knowledge(states, cells, known, metadata, kinds, likelihood, WIDTHS)


def prepared(knowledge: Knowledge, learned: int = 0) -> HeadPrior:
    prior = HeadPrior(knowledge, learned)
    prior.prepare(knowledge)
    return prior.requires_grad_(False)


def batch_of(knowledge: Knowledge, positions: torch.Tensor | None) -> FeatureBatch:
    return FeatureBatch(knowledge.cells.transpose(), knowledge.metadata, knowledge.kinds, positions=positions)


def unevenly_observed(knowledge: Knowledge) -> Knowledge:
    """With fewer and fewer observations from the first feature to the last."""
    generator = torch.Generator().manual_seed(3)
    chance = torch.linspace(1.0, 0.1, FEATURES)[knowledge.cells.index]
    kept = torch.rand(len(chance), generator=generator) < chance
    return replace(knowledge, cells=knowledge.cells.keep(kept))


@pytest.mark.parametrize("described", [True, False])
def test_the_prior_is_an_honest_regression_of_heads(described: bool) -> None:
    knowledge = world()
    plain = Description.of(knowledge.metadata, WIDTHS)
    description = (
        plain.with_nonlinear_terms(plain.nonlinear_columns())
        if described
        else Description(plain.numbers[:, :0], [])
    )
    prior = empirical_prior(knowledge, knowledge.heads, description)
    known, metric = metadata_weights(knowledge)
    np.testing.assert_allclose(activation_metric(knowledge.states).numpy(), metric, rtol=1e-5)
    theta = knowledge.heads.stacked.double()
    expected = loo_predictions(prior.regression, description.numbers, theta, torch.from_numpy(known)).numpy()
    np.testing.assert_allclose(prior.loo_means.numpy(), expected, rtol=1e-3, atol=1e-4)
    rest, share = theta.numpy() - expected, known / known.sum()
    between = sum(p * np.outer(r, r) for p, r in zip(share, rest, strict=True))
    lines = 1 / (share**2).sum()
    between = np.where(np.eye(WIDTH + 1, dtype=bool), between, between * lines / (lines + WIDTH + 1))
    spread = unpack(knowledge.heads.covariance.double(), WIDTH + 1).numpy()
    within = sum(p * s for p, s in zip(share, spread, strict=True))
    np.testing.assert_allclose(prior.covariance.numpy(), between + within, rtol=1e-3, atol=1e-4)
    if described:
        assert prior.regression.strengths[:2].sum() > 0


@pytest.mark.parametrize("mixed", [False, True], ids=["one kind", "two kinds"])
@pytest.mark.parametrize("learned", [0, 2])
def test_a_known_feature_treated_as_new_gets_what_the_others_predict(mixed: bool, learned: int) -> None:
    knowledge = world(mixed=mixed)
    prior = prepared(knowledge, learned)
    description = Description.of(knowledge.metadata, WIDTHS)
    description = description.with_nonlinear_terms(prior.nonlinear)
    if mixed:
        description = description.with_group(torch.nn.functional.one_hot(knowledge.kinds, 3).float())
    regression = empirical_prior(knowledge, knowledge.heads, description).regression
    known = torch.from_numpy(metadata_weights(knowledge)[0])
    theta = knowledge.heads.stacked.double()
    expected = loo_predictions(regression, description.numbers, theta, known).float()
    assert prior.nonlinear.tolist() == [True] + [False] * 8
    places = torch.tensor([7, 3, 50])
    batch = batch_of(knowledge, torch.arange(FEATURES))
    found = prior.mean(batch)
    torch.testing.assert_close(prior.mean(batch.take(places)), found[places])
    torch.testing.assert_close(found[:, :WIDTH], expected[:, :-1], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found[:, -1], expected[:, -1], rtol=1e-3, atol=1e-3)
    assert not found[:, WIDTH:-1].any()  # of learned activations nothing is expected
    # A stranger with the same metadata is predicted from all features, that one included.
    matrix, constant = regression.linear_map(description.numbers.shape[1])
    strangers = prior.mean(batch_of(knowledge, None))
    fitted = (description.numbers.double() @ matrix + constant).float()
    torch.testing.assert_close(strangers[:, -1], fitted[:, -1], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found - strangers, prior.corrections)
    assert float(prior.corrections.abs().max()) > 1e-2
    covariance = prior.root(torch.float64) @ prior.root(torch.float64).T
    assert covariance.shape == (WIDTH + 1 + learned,) * 2


@pytest.mark.parametrize("described", [True, False])
def test_much_observed_features_count_more_for_new_ones(described: bool) -> None:
    knowledge = unevenly_observed(world())
    prior = prepared(
        knowledge if described else replace(knowledge, metadata=knowledge.metadata[:, :0], widths=())
    )
    weights = torch.from_numpy(metadata_weights(knowledge)[0]) * knowledge.count_shots()
    theta = knowledge.heads.stacked.double()
    plain = sum(w * head for w, head in zip(weights, theta, strict=True)) / weights.sum()
    torch.testing.assert_close(prior.plain_mean.double(), plain, rtol=1e-4, atol=1e-5)
    description = (
        Description.of(knowledge.metadata, WIDTHS).with_nonlinear_terms(prior.nonlinear)
        if described
        else None
    )
    if description is not None:
        regression = empirical_prior(
            knowledge, knowledge.heads, description, knowledge.count_shots()
        ).regression
        expected = loo_predictions(regression, description.numbers, theta, weights).float()
        found = prior.mean(batch_of(knowledge, torch.arange(FEATURES)))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_of_known_features_it_is_known_how_much_observed_they_are() -> None:
    """The bias of heads rises with the number of observations: a regression with that column finds it."""
    knowledge = unevenly_observed(world())
    popularity = knowledge.count_shots().log1p()[:, None]
    heads = replace(knowledge.heads, bias=knowledge.heads.bias + 4 * popularity[:, 0])
    knowledge = replace(knowledge, heads=heads)
    prior = prepared(knowledge)
    plain = Description.of(knowledge.metadata, WIDTHS).with_nonlinear_terms(prior.nonlinear)
    batch = batch_of(knowledge, None)
    known = replace(batch, known=torch.arange(FEATURES))
    theta, weights = heads.stacked.double(), torch.from_numpy(metadata_weights(knowledge)[0])
    for description, found in (
        (plain.with_group(popularity), prior.mean(known)),
        (Description(popularity, [torch.tensor([0])]), prior.mean_without_metadata(known)),
    ):
        regression = empirical_prior(knowledge, heads, description).regression
        assert float(regression.strengths[-1]) > 0
        expected = loo_predictions(regression, description.numbers, theta, weights).float()
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    mixed = replace(batch, known=torch.where(torch.arange(FEATURES) % 2 == 0, torch.arange(FEATURES), -1))
    expected = torch.where((mixed.known >= 0)[:, None], prior.mean(known), prior.mean(batch))
    assert torch.equal(prior.mean(mixed), expected)


def test_gains_are_told_by_metadata_column() -> None:
    knowledge = world()
    prior = prepared(knowledge)
    description = Description.of(knowledge.metadata, WIDTHS).with_nonlinear_terms(prior.nonlinear)
    regression = empirical_prior(knowledge, knowledge.heads, description).regression
    of_groups = regression.gains * (
        regression.strengths > 0
    )  # number, labels, noise, the number's bends and spline
    assert len(of_groups) == 5
    expected = [of_groups[0] + of_groups[3] + of_groups[4], of_groups[1], of_groups[2]]
    torch.testing.assert_close(prior.gains.double(), torch.stack(expected), rtol=1e-5, atol=1e-6)
    assert float(prior.gains[0]) > 0.05
    assert float(prior.gains[1]) > 0.05
    assert float(prior.gains[2]) == 0
    assert prior.uses_metadata


def test_metadata_of_noise_leaves_the_plain_prior() -> None:
    knowledge = world()
    noise = torch.randn(FEATURES, 9, generator=torch.Generator().manual_seed(1))
    prior = prepared(replace(knowledge, metadata=noise, widths=(9,)))
    assert not prior.uses_metadata
    assert not prior.gains.any()
    torch.testing.assert_close(prior.base[-1], prior.plain_mean)
    torch.testing.assert_close(prior.root(torch.float32), prior.plain_root)


def test_the_share_of_features_that_metadata_misleads_about() -> None:
    """Expectation maximisation with densities by scipy, one feature at a time."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(40, 2, generator=generator)
    told = theta + 0.1 * torch.randn(40, 2, generator=generator)
    told[:12] = torch.randn(12, 2, generator=generator)  # of these metadata says something else
    heads, none = Heads(theta[:, :1], theta[:, 1]), torch.zeros(0)
    covariances = 0.05 * torch.eye(2), torch.tensor([[1.0, 0.2], [0.2, 1.2]])
    priors = [
        EmpiricalPrior(none, none, means, covariance, LooRidge([]))
        for means, covariance in zip((told, torch.zeros(40, 2)), covariances, strict=True)
    ]
    densities = [
        [
            multivariate_normal(prior.loo_means[j].numpy(), prior.covariance.numpy()).pdf(theta[j].numpy())
            for j in range(40)
        ]
        for prior in priors
    ]
    share = 0.25
    for _ in range(50):
        total = 0.0
        for told_so, plain in zip(*densities, strict=True):
            total += share * plain / (share * plain + (1 - share) * told_so)
        share = (total + 2.5) / 50
    found = float(p_uninformative(heads, *priors))
    assert found == pytest.approx(share, rel=1e-3)
    assert 0.2 < found < 0.4
    few = [replace(prior, loo_means=prior.loo_means[:0]) for prior in priors]
    assert float(p_uninformative(heads.take(torch.arange(0)), *few)) == pytest.approx(0.25)


@pytest.mark.parametrize("vague", [True, False])
def test_the_noise_starts_from_the_backbones_residuals(vague: bool, tiny: Callable[..., Tiny]) -> None:
    world = tiny(link="identity", vague=vague)
    knowledge = world.knowledge
    if vague:
        spread = torch.diag_embed(torch.rand(9, 6, generator=torch.Generator().manual_seed(0)))
        heads = Heads(knowledge.heads.weight.detach(), knowledge.heads.bias.detach(), pack(spread))
        knowledge = replace(knowledge, heads=heads)
    head, states = knowledge.heads.detach(), knowledge.states
    squared: dict[int, list[float]] = {}
    for j, kind in enumerate(knowledge.kinds.tolist()):
        for row, x in world.column(j):
            error = float(states.activation[row] @ head.weight[j] + head.bias[j] - x) ** 2
            if vague:
                d = torch.cat([states.activation[row], torch.ones(1)])
                error += float(d @ spread[j] @ d)
                for k in range(5):
                    error += float((head.weight[j, k] ** 2 + spread[j, k, k]) * states.variance[row, k])
                error /= float(states.noise[row])
            squared.setdefault(kind, []).append(error)
    found = empirical_noise(knowledge)
    for kind in (KindType.RATING, KindType.REAL):
        assert float(found[kind]) == pytest.approx(np.mean(squared[kind]), rel=1e-4)
    new = Heads(head.weight, head.bias, head.covariance, torch.linspace(0.1, 0.9, 9))
    found = empirical_noise(replace(knowledge, new_heads=new))
    for kind in (KindType.RATING, KindType.REAL):
        own = [float(new.noise[j]) for j in knowledge.cells.index.tolist() if knowledge.kinds[j] == kind]
        assert float(found[kind]) == pytest.approx(np.mean(own), rel=1e-4)


def test_mean_squares_count_features_by_their_observations() -> None:
    knowledge = world()
    kept = knowledge.cells.index % 7 < knowledge.cells.lines % 5
    knowledge = replace(knowledge, cells=knowledge.cells.keep(kept))
    counts = np.bincount(knowledge.cells.index.numpy(), minlength=FEATURES) + 1e-3
    spread = unpack(knowledge.heads.covariance, WIDTH + 1).numpy()
    expected = np.zeros(WIDTH)
    for j in range(FEATURES):
        own = knowledge.heads.weight[j].numpy() ** 2 + spread[j].diagonal()[:-1]
        expected += counts[j] / counts.sum() * own
    found = mean_squared_weights(knowledge, knowledge.heads)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


def test_features_without_metadata_are_described_one_by_one_or_together() -> None:
    knowledge = world(mixed=True)
    prior = HeadPrior(replace(knowledge, metadata=knowledge.metadata[:, :0], widths=()))
    metadata, kinds = np.zeros((4, 0), np.float32), np.full(4, KindType.REAL)
    for some in (slice(0, 1), slice(0, 3), slice(0, 4), 0, slice(0, 2)):
        described = prior.describe(metadata[some], kinds[some])
        assert described.shape == (*kinds[some].shape, prior.types + 1)
        assert (described[..., KindType.REAL] == 1).all()
