"""The closed-form heads: against a loop over features, from sums, and where their prior starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.adapters.conftest import Tiny, some_cells

from headstart.adapters import adapter_config, build_adapter
from headstart.adapters.bayes import ClosedFormAdapter
from headstart.adapters.chn_bayes import CHNBayes
from headstart.core.types import FeatureBatch, Heads
from headstart.linalg.gaussian import condition_on_sums, mix
from headstart.linalg.packed import unpack
from headstart.table.kinds import KindType

NAMES = ["bayes", "chn-bayes"]
GAUSSIAN = {
    "known": (KindType.RATING, KindType.REAL) * 5,
    "new": (KindType.RATING, KindType.REAL) * 3,
    "link": "identity",
}


@pytest.fixture(autouse=True)
def _in_use() -> Iterator[None]:
    """Heads of a model in use are made without gradients."""
    with torch.no_grad():
        yield


def built(name: str, world: Tiny) -> ClosedFormAdapter:
    torch.manual_seed(1)
    adapter = build_adapter(
        adapter_config({"name": name, **({} if name == "bayes" else {"activations": 2})}), world.knowledge
    )
    assert isinstance(adapter, ClosedFormAdapter)
    for parameter in (*adapter.parameters(), adapter.prior.base):
        parameter.add_(0.05 * torch.randn_like(parameter))  # away from where it starts
    return adapter.eval()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shots", [(4, 0, 3, 0, 6, 1), (10, 10, 9, 1, 8, 10)])
@pytest.mark.parametrize("vague", [True, False], ids=["vague rows", "known rows"])
def test_a_head_is_the_textbooks_posterior(
    name: str, shots: tuple[int, ...], vague: bool, tiny: Callable[..., Tiny]
) -> None:
    world = tiny(**GAUSSIAN, shots=shots, vague=vague)
    adapter = built(name, world)
    adapter.prior.p_uninformative.zero_()  # metadata is not doubted here
    states = adapter.refine(world.knowledge.states)
    heads = adapter.adapt(world.batch, states)
    description = adapter.prior.describe(world.batch.metadata, world.batch.kinds)
    means = adapter.prior.mean(world.batch)
    sums = adapter.context_sums(world.batch, states, means)
    priors = adapter.prior_mean(description, means, sums).double().numpy()
    root = adapter.prior.root(adapter.dtype).numpy()
    for n, kind in enumerate(world.batch.kinds.tolist()):
        precision = np.linalg.inv(root @ root.T)
        pull = precision @ priors[n]
        for row, x in world.context(n):
            d = np.r_[states.activation[row].double().numpy(), 1]
            noise = float(adapter.prior.log_noise[kind].exp() * states.noise[row])
            for k in range(5 if vague else 0):  # what is not known of the row, by what heads usually weigh it
                noise += float(states.variance[row, k] * adapter.mean_squares[k].clamp(min=0))
            weight = 1 / noise
            precision, pull = precision + weight * np.outer(d, d), pull + weight * x * d
        found = np.r_[heads.weight[n].numpy(), heads.bias[n].numpy()]
        np.testing.assert_allclose(found, np.linalg.solve(precision, pull), rtol=1e-4, atol=1e-5)
        spread = unpack(heads.covariance[n], adapter.prior.size).numpy()
        np.testing.assert_allclose(spread, np.linalg.inv(precision), rtol=1e-4, atol=1e-5)
        assert float(heads.noise[n]) == pytest.approx(float(adapter.prior.log_noise[kind].exp()))


@pytest.mark.parametrize("shots", [(4, 0, 3, 0, 6, 1), (10, 10, 9, 1, 8, 10)])
def test_a_context_may_show_that_metadata_misleads(shots: tuple[int, ...], tiny: Callable[..., Tiny]) -> None:
    """Two priors, with metadata and without, weighed by the evidence of the context."""
    world = tiny(**GAUSSIAN, shots=shots, vague=True)
    adapter = built("bayes", world)
    adapter.prior.p_uninformative.fill_(0.3)
    assert adapter.prior.uses_metadata
    states = adapter.refine(world.knowledge.states)
    heads = adapter.adapt(world.batch, states)
    sums = adapter._sum_contexts(world.batch, states)
    root = adapter.prior.root(torch.float64)
    means = torch.stack(
        [adapter.prior.mean(world.batch).double(), adapter.prior.plain_mean.double().expand(6, -1)], dim=1
    )
    roots = torch.stack([root, adapter.prior.plain_root.double()])
    shares = torch.tensor([0.7, 0.3], dtype=torch.float64)
    mean, covariance = mix(condition_on_sums(sums, means, roots), shares, sums.counts)
    found = torch.cat([heads.weight, heads.bias[:, None]], dim=1).double()
    torch.testing.assert_close(found, mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(heads.covariances(6).double(), covariance, rtol=1e-4, atol=1e-5)
    # Where metadata says nothing, there is nothing to doubt.
    adapter.prior.base[:-1] = 0
    assert not adapter.mixes_priors


def close(one: Heads, other: Heads) -> None:
    for mine, yours in zip(one.parts(), other.parts(), strict=True):
        torch.testing.assert_close(mine, yours, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [KindType.BINARY, KindType.RATING, KindType.REAL])
@pytest.mark.parametrize("link", ["identity", "sigmoid"])
def test_more_shots_only_sharpen_up_to_thousands(
    name: str, kind: int, link: str, tiny: Callable[..., Tiny]
) -> None:
    world = tiny(known=(kind,) * 9, new=(kind,), shots=(1,), link=link)
    adapter, states = built(name, world), world.knowledge.states
    many = states.take(torch.arange(10).repeat(400))
    cells = some_cells(torch.tensor([kind]), torch.tensor([4000]), 4000, torch.Generator().manual_seed(0))
    refined, spreads = adapter.refine(many), []
    for shots in (0, 4, 40, 400, 4000):
        part = cells.keep(torch.arange(4000) < shots)
        heads = adapter.adapt(FeatureBatch(part, world.batch.metadata, world.batch.kinds), refined)
        assert all(bool(part.isfinite().all()) for part in heads.parts())
        spread = unpack(heads.covariance[0].double(), adapter.prior.size)
        assert float(torch.linalg.eigvalsh(spread).min()) > -1e-6
        ones = torch.cat([refined.activation[:10], torch.ones(10, 1)], dim=1).double()
        spreads.append(float(torch.einsum("ni,ij,nj->n", ones, spread, ones).mean()))
    assert all(after < before for before, after in pairwise(spreads))
    assert 4 < spreads[3] / spreads[4] < 25  # about 1/k


def test_learned_activations_come_after_the_backbones(tiny: Callable[..., Tiny]) -> None:
    world = tiny()
    adapter = built("chn-bayes", world)
    assert isinstance(adapter, CHNBayes)
    states = world.knowledge.states
    refined = adapter.refine(states)
    assert torch.equal(refined.activation[:, :5], states.activation)
    assert adapter.phi is not None
    torch.testing.assert_close(refined.activation[:, 5:], torch.tanh(adapter.phi(states.code)))
    assert refined.noise is not None
    assert bool((refined.noise > 0).all())
    plain = build_adapter(adapter_config({"name": "chn-bayes", "activations": 0}), world.knowledge)
    assert torch.equal(plain.refine(states).activation, states.activation)


def test_nothing_of_the_closed_form_is_meta_trained(tiny: Callable[..., Tiny]) -> None:
    assert not build_adapter(adapter_config("bayes"), tiny().knowledge).learns
    assert build_adapter(adapter_config("chn-bayes"), tiny().knowledge).learns


@pytest.mark.parametrize("name", NAMES)
def test_heads_are_solved_in_single_while_training_and_in_double_in_use(
    name: str, tiny: Callable[..., Tiny]
) -> None:
    world = tiny(**GAUSSIAN)
    adapter = built(name, world)
    adapter.prior.p_uninformative.zero_()  # metadata is doubted in use only
    for learning in (True, False):  # whether there are gradients does not matter
        with torch.set_grad_enabled(learning):
            assert adapter.eval().dtype == torch.float64
            in_use = world.adapted(adapter)
            adapter.train()
            assert adapter.dtype == torch.float32
            for module in adapter.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.eval()
            in_training = world.adapted(adapter)
        for one, other in zip(in_use.parts(), in_training.parts(), strict=True):
            assert one.dtype == other.dtype == torch.float32
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
