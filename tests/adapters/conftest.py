"""A tiny world by hand: ten rows, nine features of three kinds, and new features to adapt to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from headstart.adapters.base import Adapter
from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.types import FeatureBatch, Heads, Knowledge, RowStates
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

ROWS, WIDTH, LATENT = 10, 5, 3


@dataclass(frozen=True)
class Tiny:
    """Everything an adapter is built from and asked for."""

    knowledge: Knowledge
    batch: FeatureBatch

    def adapted(self, adapter: Adapter) -> Heads:
        return adapter.adapt(self.batch, adapter.refine(self.knowledge.states))

    def context(self, feature: int) -> list[tuple[int, float]]:
        """The (row, value) pairs of one new feature, as plain numbers."""
        cells = self.batch.cells.take(torch.tensor([feature]))
        return list(zip(cells.index.tolist(), cells.values.tolist(), strict=True))

    def column(self, feature: int) -> list[tuple[int, float]]:
        """The (row, value) pairs of one of the backbone's features."""
        cells = self.knowledge.cells.transpose().take(torch.tensor([feature]))
        return list(zip(cells.index.tolist(), cells.values.tolist(), strict=True))


def values_of(kinds: Tensor, generator: torch.Generator) -> Tensor:
    """Values on the models' scale, one for each of these kinds."""
    size = kinds.shape
    binary = torch.randint(2, size, generator=generator).float()
    rating = torch.randint(5, size, generator=generator).float() / 4
    real = torch.randn(size, generator=generator)
    return torch.where(kinds == KindType.BINARY, binary, torch.where(kinds == KindType.RATING, rating, real))


def some_cells(kinds: Tensor, counts: Tensor, rows: int, generator: torch.Generator) -> Cells:
    """A line a feature, with this many observations each, in distinct rows."""
    lines = torch.repeat_interleave(counts)
    where = torch.cat([torch.randperm(rows, generator=generator)[:n] for n in counts.tolist()])
    values = values_of(kinds[lines], generator)
    return Cells.from_pairs(lines, where, values, len(counts), rows)


@pytest.fixture
def tiny() -> Callable[..., Tiny]:
    """Builds a tiny world: of the three kinds mixed, or of those given; of rows that are vague, or not."""

    def build(
        known: tuple[int, ...] = (KindType.BINARY, KindType.RATING, KindType.REAL) * 3,
        new: tuple[int, ...] = (KindType.BINARY, KindType.RATING, KindType.REAL) * 2,
        shots: tuple[int, ...] = (4, 0, 3, 0, 6, 1),
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        link: Literal["sigmoid", "identity"] = "sigmoid",
        vague: bool = False,
    ) -> Tiny:
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=generator).to(dtype)

        kinds, new_kinds = torch.tensor(known), torch.tensor(new)
        observed = torch.randint(2, 8, (len(known),), generator=generator)
        observed[-1] = 0  # a feature that nobody has seen is normal
        cells = some_cells(kinds, observed, ROWS, generator).transpose()
        activation = normal(ROWS, WIDTH).relu()
        activation[:, 0] = 0  # a dead unit
        metadata = torch.randint(2, (len(known) + len(new), 4), generator=generator).to(dtype)
        metadata = torch.cat([metadata, normal(len(metadata), 1)], dim=1)  # four labels and a number
        context = some_cells(new_kinds, torch.tensor(shots), ROWS, generator)
        likelihood = Likelihood(LikelihoodConfig(rating_link=link)).to(dtype)
        with torch.no_grad():
            likelihood.real_log_variance.fill_(-0.5)
        code, code_std = normal(ROWS, LATENT), normal(ROWS, LATENT).abs()
        heads = Heads(nn.Parameter(normal(len(known), WIDTH)), nn.Parameter(normal(len(known))))
        noise, variance = (normal(ROWS).abs() + 0.5, normal(ROWS, WIDTH) ** 2) if vague else (None, None)
        return Tiny(
            Knowledge(
                states=RowStates(code, code_std, activation, noise, variance),
                cells=cells,
                heads=heads,
                metadata=metadata[: len(known)],
                kinds=kinds,
                likelihood=likelihood.requires_grad_(False),
            ),
            FeatureBatch(
                Cells(context.indptr, context.index, context.values.to(dtype), context.width),
                metadata[len(known) :],
                new_kinds,
            ),
        )

    return build


@pytest.fixture
def keeps_the_contract() -> Callable[[Tiny, Adapter], None]:
    """What every adapter promises: any order, any batch, no shots, no features; the same every time.

    It holds in training, with gradients, but for dropout, which is left out; and in use, without.
    """

    def check(world: Tiny, adapter: Adapter) -> None:
        for training in (True, False):
            adapter.train(training)
            for module in adapter.modules():
                if isinstance(module, nn.Dropout):
                    module.eval()
            with torch.set_grad_enabled(training):
                check_as_it_is(world, adapter)

    def check_as_it_is(world: Tiny, adapter: Adapter) -> None:
        batch, states = world.batch, adapter.refine(world.knowledge.states)
        heads = world.adapted(adapter)
        assert heads.weight.shape == (len(batch), states.activation.shape[1])
        assert heads.bias.shape == (len(batch),)
        assert (heads.covariance is not None) == (heads.noise is not None) == adapter.gives_uncertainty
        for part in heads.parts():
            assert len(part) == len(batch)
            assert bool(part.isfinite().all())

        def same(other: Heads, expected: Heads) -> None:
            for one, two in zip(other.parts(), expected.parts(), strict=True):
                torch.testing.assert_close(one, two)

        for one, two in zip(world.adapted(adapter).parts(), heads.parts(), strict=True):
            assert torch.equal(one, two)
        each = [adapter.adapt(batch.take(torch.tensor([i])), states) for i in range(len(batch))]
        same(Heads.concatenate(each), heads)
        backwards = torch.arange(len(batch)).flip(0)
        same(adapter.adapt(batch.take(backwards), states), heads.take(backwards))
        cells = batch.cells
        key = cells.lines * 1000 - torch.arange(len(cells.index))  # every context backwards
        turned = torch.argsort(key)
        other = Cells(cells.indptr, cells.index[turned], cells.values[turned], cells.width)
        same(adapter.adapt(batch.observing(other), states), heads)
        none = adapter.adapt(batch.take(torch.tensor([], dtype=torch.int64)), states)
        for part, full in zip(none.parts(), heads.parts(), strict=True):
            assert part.shape == (0, *full.shape[1:])

    return check
