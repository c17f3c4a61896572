"""New heads that resemble known ones: beside the posterior written out, and within the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.adapters.conftest import Tiny
from tests.oracles.known_heads import mixture, posterior_of, probabilities

from headstart import Headstart
from headstart.adapters import adapter_config, build_adapter
from headstart.adapters.bayes import BayesHead
from headstart.adapters.known_heads import KnownHeadMixture
from headstart.core.types import VALIDATION_SHOTS
from headstart.datasets import synthetic_ratings
from headstart.errors import UnsupportedError
from headstart.linalg.gaussian import ContextSums, condition_components, condition_on_sums, mix_moments
from headstart.linalg.packed import unpack
from headstart.table.kinds import KindType

COMPONENT_SHARE, SPREAD, TEMPER = 0.75, 0.15, 1.0

RATINGS = {"known": (KindType.RATING,) * 9, "new": (KindType.RATING,) * 6, "link": "identity"}


@pytest.fixture(autouse=True)
def _in_use() -> Iterator[None]:
    with torch.no_grad():
        yield


def built(world: Tiny, share: float, informative: bool) -> BayesHead:
    torch.manual_seed(1)
    adapter = build_adapter(adapter_config("bayes"), world.knowledge).eval()
    assert isinstance(adapter, BayesHead)
    # No zeros: whether metadata are used decides on the shares without shots.
    adapter.prior.base.add_(0.05 * torch.randn_like(adapter.prior.base) if informative else 0.0)
    if not informative:
        adapter.prior.base[:-1] = 0.0
    adapter.set_known_head_shares(share)
    return adapter


def expected(world: Tiny, adapter: BayesHead, feature: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of one new head, by the slow formulas."""
    prior, known = adapter.prior, adapter.known_heads
    assert known is not None
    heads = known.heads.double().numpy()
    root, plain_root = prior.root(torch.float64).numpy(), prior.plain_root.double().numpy()
    given = prior.mean(world.batch)[feature].double().numpy(), root @ root.T
    plain = prior.plain_mean.double().numpy(), plain_root @ plain_root.T
    states, context = adapter.refine(world.knowledge.states), world.context(feature)
    rows = np.array([np.r_[states.activation[row].double().numpy(), 1] for row, _ in context])
    rows = rows.reshape(len(context), len(root))
    noise = np.array(
        [float(prior.log_noise[KindType.RATING].exp() * states.noise[row]) for row, _ in context]
    )
    values = np.array([value for _, value in context])
    doubt = float(prior.p_uninformative)
    gaussian = [(given, 1 - doubt), (plain, doubt)] if adapter.mixes_priors else [(given, 1.0)]
    cases = [(posterior_of(*part, rows, values, noise), weight) for part, weight in gaussian]
    peaks = [posterior_of(head, SPREAD * plain[1], rows, values, noise) for head in heads]
    chances = probabilities(heads, given, plain, 1 - doubt if prior.uses_metadata else 0.0)
    exponent = len(context) / (len(context) + TEMPER)
    weights = [
        *(
            COMPONENT_SHARE * chance * np.exp(exponent * peak[2])
            for chance, peak in zip(chances, peaks, strict=True)
        ),
        (1 - COMPONENT_SHARE) * sum(weight * np.exp(exponent * part[2]) for part, weight in cases),
    ]
    weights = np.array(weights) / np.sum(weights)
    milder = len(context) / (len(context) + 2.0)  # the temper of priors with and without metadata
    shares = np.array([weight * np.exp(milder * part[2]) for part, weight in cases])
    plain_head = mixture(
        [(w, part[0], part[1]) for (part, _), w in zip(cases, shares / shares.sum(), strict=True)]
    )
    like_known = [(share * w, peak[0], peak[1]) for w, peak in zip(weights, peaks, strict=False)]
    return mixture([*like_known, (1 - sum(w for w, *_ in like_known), *plain_head)])


@pytest.mark.parametrize("share", [0.4, 1.0])
@pytest.mark.parametrize("informative", [True, False], ids=["metadata", "no metadata"])
@pytest.mark.parametrize("shots", [(4, 1, 3, 2, 6, 1), (10, 10, 9, 1, 8, 10), (4, 0, 3, 0, 6, 1)])
def test_the_posterior_is_the_mixture_written_out(
    shots: tuple[int, ...], informative: bool, share: float, tiny: Callable[..., Tiny]
) -> None:
    world = tiny(**RATINGS, shots=shots)
    adapter = built(world, share, informative)
    heads = adapter.adapt(world.batch, adapter.refine(world.knowledge.states))
    for feature, count in enumerate(shots):
        mean, covariance = expected(world, adapter, feature, share if count or informative else 0.0)
        found = np.r_[heads.weight[feature].numpy(), heads.bias[feature].numpy()]
        np.testing.assert_allclose(found, mean, rtol=1e-4, atol=1e-5)
        spread = unpack(heads.covariance[feature], len(mean)).numpy()
        np.testing.assert_allclose(spread, covariance, rtol=1e-3, atol=1e-5)


def test_known_features_keep_the_gaussian_prior(tiny: Callable[..., Tiny]) -> None:
    world = tiny(**RATINGS)
    known = replace(world.batch, known=torch.tensor([0, -1, 2, -1, 4, -1]))
    before = built(world, 0.0, informative=True).adapt(known, world.knowledge.states)
    after = built(world, 1.0, informative=True).adapt(known, world.knowledge.states)
    for plain, mixed in zip(before.parts(), after.parts(), strict=True):
        assert torch.equal(plain[[0, 2, 4]], mixed[[0, 2, 4]])
    assert not torch.allclose(before.weight[5], after.weight[5])


def test_a_feature_treated_as_new_does_not_resemble_itself(tiny: Callable[..., Tiny]) -> None:
    world = tiny(**RATINGS, shots=(6, 6, 6, 6, 6, 6))
    adapter = built(world, 1.0, informative=True)
    assert adapter.known_heads is not None
    of_itself = replace(world.batch, positions=adapter.known_heads.positions[:6])
    heads = adapter.adapt(of_itself, adapter.refine(world.knowledge.states))
    changed = adapter.known_heads.heads
    changed[0] += 0.5  # the head of the first feature
    again = adapter.adapt(of_itself, adapter.refine(world.knowledge.states))
    assert torch.allclose(heads.weight[0], again.weight[0], atol=1e-6)
    assert not torch.allclose(heads.weight[1:], again.weight[1:], atol=1e-6)


def test_shares_follow_the_shots_in_both_libraries(tiny: Callable[..., Tiny]) -> None:
    adapter = built(tiny(**RATINGS), 0.0, informative=True)
    adapter.set_known_head_shares(torch.linspace(0, 1, len(VALIDATION_SHOTS)))
    assert adapter.known_heads is not None
    prior = KnownHeadMixture.of(adapter.known_heads, adapter.prior)
    counts = torch.tensor([0.0, 1.0, 3.0, 20.0, 128.0, 999.0], dtype=torch.float64)
    shares = prior.share(counts)
    np.testing.assert_allclose(shares, prior.numpy().share(counts.numpy()), atol=1e-6)
    assert shares[0] == 0
    assert shares[-1] == shares[-2] == 1


def test_features_in_groups_gain_by_it() -> None:
    """Half of the heads are close to one vector, half to another; a new feature has the first one."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(2, 4))
    heads = centres[np.arange(40) % 2] + 0.05 * random.normal(size=(40, 4))
    rows = np.c_[random.normal(size=(3, 3)), np.ones(3)]
    values, root = rows @ centres[0], np.linalg.cholesky(np.cov(heads.T))
    weights = np.full(3, 2.0)
    gram = rows.T @ (weights[:, None] * rows)
    sums = ContextSums(np.float64(3), gram, rows.T @ (weights * values), weights @ values**2)
    gaussian = condition_on_sums(sums, heads.mean(0)[None], root[None]).mean[0]
    peaks = condition_components(sums, heads, SPREAD**0.5 * root)
    evidence = np.exp(peaks.log_evidence - peaks.log_evidence.max())
    mean, _ = mix_moments(evidence / evidence.sum(), peaks.means, peaks.gain.T @ peaks.gain)
    assert np.linalg.norm(mean - centres[0]) < 0.6 * np.linalg.norm(gaussian - centres[0])


def test_other_adapters_refuse_it(tiny: Callable[..., Tiny]) -> None:
    world = tiny(**RATINGS)
    with pytest.raises(UnsupportedError, match="'mean' cannot mix known heads"):
        build_adapter(adapter_config("mean"), world.knowledge).set_known_head_shares(1.0)
    with pytest.raises(UnsupportedError, match="'chn-bayes' cannot mix known heads"):
        build_adapter(adapter_config("chn-bayes"), world.knowledge).set_known_head_shares(1.0)


def test_a_single_feature_has_the_head_of_a_batch() -> None:
    """Added one by one, the heads come from numpy; added together, from torch."""
    table = synthetic_ratings(rows=80, features=24, density=0.5)
    model = Headstart(adapter="bayes", quiet=True).fit(table)
    adapter = model.state.adapter
    adapter.set_known_head_shares(0.8)
    observed = {f"row {row}": float(1 + row % 5) for row in range(12)}
    contexts = {f"new {k}": dict(list(observed.items())[:k]) for k in (0, 1, 3, 12)}
    model.add_features({name: {"observations": context} for name, context in contexts.items()})
    together = model.predict(features=list(contexts))
    for name, context in contexts.items():
        model.remove_feature(name)
        model.add_feature(name, observations=context)
    alone = model.predict(features=list(contexts))
    np.testing.assert_allclose(together.mean, alone.mean, atol=1e-5)
    np.testing.assert_allclose(together.std, alone.std, atol=1e-5)
    adapter.set_known_head_shares(0.0)
    for name, context in contexts.items():
        model.remove_feature(name)
        model.add_feature(name, observations=context)
    assert np.abs(model.predict(features=list(contexts)).mean - alone.mean).max() > 0.01
