"""The P-VAE against slow, obvious versions written from the paper's formulas."""

from __future__ import annotations

import math

import pytest
import torch
from tests.backbones.conftest import random_cells
from tests.limits import Limits
from tests.linalg.test_sparse import lines_of
from tests.oracles.set_encoder import encode_sets
from torch.distributions import Bernoulli, Normal, kl_divergence

from headstart.backbones.pvae import PVAE, PVAEConfig, SetEncoder
from headstart.core import LikelihoodConfig
from headstart.table.cells import Cells
from headstart.table.kinds import KindType


@pytest.mark.parametrize("pooling", ["sum", "root"])
@pytest.mark.parametrize("path", ["tabled", "folded", "off the grid"])
def test_set_encoder_paths_equal_the_slow_one(pooling: str, path: str, limits: Limits) -> None:
    limits(grid_cost=1e9 if path == "folded" else 0.0)
    cells = random_cells(6, 5, 0.6, seed=1, grid=None if path == "off the grid" else 5)
    encoder = SetEncoder(5, 4, 7, torch.linspace(0, 1, 5), pooling)  # type: ignore[arg-type]
    torch.nn.init.normal_(encoder.bias)
    tabled = encoder._on_grid(cells) is not None
    assert tabled == (path == "tabled")
    torch.testing.assert_close(encoder(cells), encode_sets(encoder, cells))


def test_paths_give_the_same_gradients(limits: Limits) -> None:
    cells = random_cells(8, 5, 0.6, seed=2)
    encoder = SetEncoder(5, 4, 7, torch.linspace(0, 1, 5), "root")
    found = []
    for cost in (0.0, 1e9):
        limits(grid_cost=cost)
        found.append(torch.autograd.grad(encoder(cells).sin().sum(), list(encoder.parameters())))
    for tabled, folded in zip(*found, strict=True):
        torch.testing.assert_close(tabled, folded)


def pvae(kinds: list[int], link: str = "sigmoid") -> PVAE:
    torch.manual_seed(0)
    config = PVAEConfig(
        embedding=3, set_size=6, encoder_layers=(8,), latent=4, decoder_layers=(9,),
        kl_weight=0.7, max_drop_rate=1.0, likelihood=LikelihoodConfig(rating_link=link, output_variance=0.1),
    )  # fmt: skip
    return PVAE(config, torch.tensor(kinds), torch.linspace(0, 1, 5))


@pytest.mark.parametrize("link", ["sigmoid", "identity"])
def test_elbo_equals_the_slow_one(link: str) -> None:
    model = pvae([KindType.BINARY, KindType.RATING, KindType.REAL, KindType.RATING, KindType.BINARY], link)
    model.likelihood.real_log_variance.data.fill_(-0.4)
    cells = random_cells(6, 5, 0.7, seed=3)
    cells = Cells(  # binary features take 0 or 1 only
        cells.indptr,
        cells.index,
        torch.where(model.kinds[cells.index] == KindType.BINARY, cells.values.round(), cells.values),
        cells.width,
    )
    mean, log_variance = model.posterior(cells)
    noise = torch.randn(6, 4)
    elbo = torch.zeros(())
    for i, line in enumerate(lines_of(cells)):
        posterior = Normal(mean[i], torch.exp(0.5 * log_variance[i]))
        activation = model.decoder(posterior.mean + posterior.stddev * noise[i])
        for j, x in line:
            output = model.weight[j] @ activation + model.bias[j]
            kind = int(model.kinds[j])
            if kind == KindType.BINARY:
                likelihood = Bernoulli(logits=output)
            elif kind == KindType.RATING:
                linked = torch.sigmoid(output) if link == "sigmoid" else output
                likelihood = Normal(linked, math.sqrt(0.1))
            else:
                likelihood = Normal(output, math.exp(-0.2))
            elbo = elbo + likelihood.log_prob(torch.tensor(x))
        prior = Normal(torch.zeros(4), torch.ones(4))
        elbo = elbo - 0.7 * kl_divergence(posterior, prior).sum()
    torch.testing.assert_close(model.negative_elbo(cells, mean, log_variance, noise), -elbo / 6)


def test_inputs_are_dropped_but_still_scored() -> None:
    """With every input dropped the encoder sees nothing, yet all observations are in the loss."""
    model = pvae([KindType.RATING] * 5)
    cells = random_cells(6, 5, 0.7, seed=4)
    seen: list[Cells] = []
    model.posterior = lambda kept, ask=model.posterior: (seen.append(kept), ask(kept))[1]  # type: ignore[method-assign]
    kept_shares = []
    for seed in range(200):
        model.loss(cells, torch.Generator().manual_seed(seed))
        kept_shares.append(len(seen[-1].index) / len(cells.index))
    # Rates are uniform on (0, 1) and drawn by row, so half of the inputs stay on average.
    assert abs(sum(kept_shares) / len(kept_shares) - 0.5) < 0.05
    by_row = torch.stack([kept.counts / cells.counts for kept in seen])
    assert float(by_row.std(0).mean()) > 0.3


def test_posterior_of_a_row_without_observations_is_finite() -> None:
    model = pvae([KindType.RATING] * 3)
    empty = Cells(torch.zeros(3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0), 3)
    states = model.states(empty)
    assert len(states) == 2
    assert torch.isfinite(states.activation).all()
