"""The contextual hypernetwork against a loop over features and observations, from the paper's text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.adapters.conftest import Tiny
from torch.nn import functional as F

from headstart.adapters import build_adapter
from headstart.adapters.chn import CHNConfig
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

SMALL = CHNConfig(
    embedding=6,
    encoding=5,
    context_layers=(8,),
    metadata_encoding=4,
    metadata_layers=(7,),
    parameter_layers=(9, 9),
)


@pytest.mark.parametrize("layers", [(), (8,), (8, 7)])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("described", [True, False])
def test_forward_pass_equals_the_slow_one(
    layers: tuple[int, ...], frozen: bool, mixed: bool, described: bool, tiny: Callable[..., Tiny]
) -> None:
    world = tiny() if mixed else tiny(known=(KindType.RATING,) * 9, new=(KindType.RATING,) * 6)
    if not described:
        world = _without_metadata(world)
    adapter = build_adapter(SMALL.revised(context_layers=layers), world.knowledge)
    adapter.requires_grad_(not frozen)
    heads = world.adapted(adapter)
    for n in range(len(world.batch)):
        total = torch.zeros(6)
        for row, x in world.context(n):
            total = total + adapter.f(torch.cat([world.knowledge.states.code[row], torch.tensor([x])]))
        parts = [adapter.g(total)]
        metadata = world.batch.metadata[n]
        if mixed:
            metadata = torch.cat([metadata, F.one_hot(world.batch.kinds[n], 3).float()])
        if len(metadata):
            assert adapter.h is not None
            parts.append(adapter.h(metadata))
        theta = adapter.net(torch.cat(parts))
        torch.testing.assert_close(heads.weight[n], theta[:-1])
        torch.testing.assert_close(heads.bias[n], theta[-1])


def test_what_is_kept_of_rows_is_never_out_of_date(tiny: Callable[..., Tiny]) -> None:
    world, other = tiny(), tiny(seed=1)
    one = build_adapter(SMALL, world.knowledge).requires_grad_(False)
    two = build_adapter(SMALL, world.knowledge).requires_grad_(False)
    expected = world.adapted(two).weight
    world.adapted(one)  # keeps something
    one.load_state_dict(two.state_dict())
    assert torch.equal(world.adapted(one).weight, expected)
    elsewhere = one.adapt(world.batch, other.knowledge.states).weight
    assert torch.equal(elsewhere, two.adapt(world.batch, other.knowledge.states).weight)
    assert not torch.equal(elsewhere, expected)
    one.requires_grad_(True)
    with torch.no_grad():
        one.f[0].weight.add_(1.0)
    one.requires_grad_(False)
    assert not torch.equal(world.adapted(one).weight, expected)


def test_past_the_shots_it_was_trained_on_the_sum_stays_in_range(tiny: Callable[..., Tiny]) -> None:
    """Seeing every observation of a full context again and again changes nothing past ``max_shots``."""
    world = tiny(new=(KindType.RATING,), shots=(4,))
    adapter = build_adapter(SMALL.revised(max_shots=4), world.knowledge)
    once = adapter.context_vector(world.batch, world.knowledge.states)
    cells = world.batch.cells
    fold = Cells(cells.indptr * 25, cells.index.repeat(25), cells.values.repeat(25), cells.width)
    often = adapter.context_vector(world.batch.observing(fold), world.knowledge.states)
    torch.testing.assert_close(once, often, rtol=1e-4, atol=1e-5)


def test_it_begins_near_the_mean_head(tiny: Callable[..., Tiny]) -> None:
    world = tiny()
    heads = world.adapted(build_adapter(SMALL, world.knowledge))
    distance = heads.weight.detach() - world.knowledge.heads.weight.detach().mean(0)
    assert float(distance.abs().max()) < 0.5


def _without_metadata(world: Tiny) -> Tiny:
    from dataclasses import replace

    return Tiny(
        replace(world.knowledge, metadata=world.knowledge.metadata[:, :0]),
        replace(world.batch, metadata=world.batch.metadata[:, :0]),
    )
