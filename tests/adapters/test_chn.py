"""The contextual hypernetwork against a loop over features and observations, from the paper's text."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.adapters.conftest import Tiny
from torch import Tensor
from torch.nn import functional as F

from headstart import Headstart
from headstart.adapters import Adapter, adapter_config, build_adapter
from headstart.adapters.chn import CHNConfig, ContextualHypernetwork
from headstart.core.predictive import predict_cells
from headstart.core.types import Heads, NetworkHeads
from headstart.datasets import synthetic_ratings
from headstart.errors import UnsupportedError
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.testing import check_adapter

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


def attention_of(adapter: ContextualHypernetwork, query: Tensor, codes: Tensor, values: Tensor) -> Tensor:
    """Multihead attention of one feature, one head after the other: softmax(q·k / √size) · v."""
    attention = adapter.attention
    assert attention is not None
    q, k, v = attention.query(query), attention.key(codes), attention.value(values)
    size = len(q) // attention.heads
    parts = []
    for start in range(0, len(q), size):
        one = slice(start, start + size)
        weights = torch.softmax(k[:, one] @ q[one] / math.sqrt(size), dim=0)
        parts.append(weights @ v[:, one])
    return attention.output(torch.cat(parts))


@pytest.mark.parametrize("layers", [(), (8,), (8, 7)])
@pytest.mark.parametrize("aggregation", ["mean", "max", "attention"])
@pytest.mark.parametrize("described", [True, False])
def test_other_aggregations_equal_the_slow_ones(
    layers: tuple[int, ...], aggregation: str, described: bool, tiny: Callable[..., Tiny]
) -> None:
    world = tiny(known=(KindType.RATING,) * 9, new=(KindType.RATING,) * 6)
    if not described:
        world = _without_metadata(world)
    config = SMALL.revised(context_layers=layers, aggregation=aggregation, attention_heads=4)
    adapter = build_adapter(config, world.knowledge)
    heads = world.adapted(adapter)
    for n in range(len(world.batch)):
        pairs = world.context(n)
        codes = world.knowledge.states.code[[row for row, _ in pairs]]
        embedded = adapter.f(torch.cat([codes, torch.tensor([[x] for _, x in pairs]).view(-1, 1)], dim=1))
        encoded = [adapter.h(world.batch.metadata[n])] if described else []
        if not pairs:
            context = torch.zeros(6)
        elif aggregation == "mean":
            context = embedded.mean(0)
        elif aggregation == "max":
            context = embedded.max(0).values
        else:
            context = attention_of(adapter, torch.cat([*encoded, torch.ones(1)]), codes, embedded)
        theta = adapter.net(torch.cat([adapter.g(context), *encoded]))
        torch.testing.assert_close(heads.weight[n], theta[:-1])
        torch.testing.assert_close(heads.bias[n], theta[-1])


def label(config: CHNConfig) -> str:
    return f"{config.aggregation}-{config.head_units}"


OTHER_CHOICES = [
    SMALL.revised(aggregation="mean"),
    SMALL.revised(aggregation="max"),
    SMALL.revised(aggregation="attention"),
    SMALL.revised(aggregation="attention", head_units=3),
    SMALL.revised(head_units=3),
]


@pytest.mark.parametrize("config", OTHER_CHOICES, ids=label)
@pytest.mark.parametrize("mixed", [True, False])
def test_every_choice_keeps_the_promises(
    config: CHNConfig,
    mixed: bool,
    tiny: Callable[..., Tiny],
    keeps_the_contract: Callable[[Tiny, Adapter], None],
) -> None:
    world = tiny() if mixed else tiny(known=(KindType.RATING,) * 9, new=(KindType.RATING,) * 6)
    keeps_the_contract(world, build_adapter(config, world.knowledge))


@pytest.mark.parametrize(
    "config",
    [OTHER_CHOICES[2], OTHER_CHOICES[-1]],
    ids=label,
)
def test_every_choice_can_be_trained_and_loaded(config: CHNConfig) -> None:
    check_adapter(config)


def test_a_head_with_hidden_units_predicts_as_its_network(tiny: Callable[..., Tiny]) -> None:
    world = tiny()
    adapter = build_adapter(SMALL.revised(head_units=3), world.knowledge)
    adapter.net[-1].bias.data.normal_()  # so that the hidden units have an effect
    states = world.knowledge.states
    heads = world.adapted(adapter)
    assert isinstance(heads, NetworkHeads)
    predictive = predict_cells(
        heads, states, world.batch.cells, world.batch.kinds, world.knowledge.likelihood
    )
    position, described = 0, adapter._describe(world.batch)
    contexts = adapter.context_vector(world.batch, states, described)
    for n in range(len(world.batch)):
        pairs = [contexts[n], described[n]]
        theta = adapter.net(torch.cat(pairs))
        weight, bias, inner, outer = theta[:5], theta[5], theta[6 : 6 + 3 * 6].view(3, 6), theta[-3:]
        for row, _ in world.context(n):
            d = states.activation[row]
            expected = weight @ d + bias + outer @ torch.relu(inner[:, :5] @ d + inner[:, 5])
            torch.testing.assert_close(predictive.logits[position], expected)
            position += 1
    assert position == len(predictive.logits)
    linear = Heads(heads.weight, heads.bias)
    plain = predict_cells(linear, states, world.batch.cells, world.batch.kinds, world.knowledge.likelihood)
    assert not torch.allclose(plain.logits, predictive.logits)


def test_hidden_units_start_without_effect(tiny: Callable[..., Tiny]) -> None:
    world = tiny()
    adapter = build_adapter(SMALL.revised(head_units=3), world.knowledge)
    with torch.no_grad():
        adapter.net[-1].weight.zero_()
    heads = world.adapted(adapter)
    assert isinstance(heads, NetworkHeads)
    assert not bool(heads.outer.any())
    assert bool(heads.hidden.any())  # random, so that they can learn different things
    torch.testing.assert_close(heads.weight[0], world.knowledge.heads.weight.mean(0))


def test_what_needs_linear_heads_refuses_others(tiny: Callable[..., Tiny]) -> None:
    networks, world = SMALL.revised(head_units=3), tiny()
    with pytest.raises(UnsupportedError, match="are networks; a model stores linear heads only"):
        Headstart(adapter=networks, quiet=True).fit(synthetic_ratings(40, 24, 0.5))
    with pytest.raises(UnsupportedError, match="are networks; fine-tuning changes linear heads only"):
        build_adapter(adapter_config({"name": "fine-tuned", "base": networks.model_dump()}), world.knowledge)


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
    described = adapter._describe(world.batch)
    once = adapter.context_vector(world.batch, world.knowledge.states, described)
    cells = world.batch.cells
    fold = Cells(cells.indptr * 25, cells.index.repeat(25), cells.values.repeat(25), cells.width)
    often = adapter.context_vector(world.batch.observing(fold), world.knowledge.states, described)
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
