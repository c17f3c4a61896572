"""The shipped contract holds for every part of the project, and notices parts that break it."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest
import torch
from tests.stand_ins import registered

from headstart.adapters.base import ADAPTERS, Adapter, AdapterConfig, OneContext, Reduce
from headstart.adapters.bayes import BayesConfig, BayesHead
from headstart.backbones.base import BACKBONES
from headstart.core import FeatureBatch, Heads, RowStates
from headstart.core.types import OneHead, OneState
from headstart.linalg.array_ops import Array
from headstart.testing import ContractError, check_adapter, check_backbone


@pytest.mark.parametrize("name", sorted(ADAPTERS.parts()))
def test_every_adapter_keeps_the_contract(name: str) -> None:
    check_adapter((ADAPTERS[name].variants or (name,))[0])


@pytest.mark.parametrize("name", sorted(BACKBONES.parts()))
def test_every_backbone_keeps_the_contract(name: str) -> None:
    check_backbone(name)


def broken(adapt) -> type[Adapter]:  # type: ignore[no-untyped-def]
    class BrokenConfig(AdapterConfig):
        name: Literal["broken"] = "broken"

    class Broken(Adapter):
        config_type: ClassVar[type[AdapterConfig]] = BrokenConfig

        def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
            return adapt(batch, states)

    return Broken


def by_first_value(batch: FeatureBatch, states: RowStates) -> Heads:
    values = torch.cat([batch.cells.values, torch.zeros(1)])
    first = torch.where(batch.shots > 0, values[batch.cells.indptr[:-1]], 0.0)
    return Heads(torch.zeros(len(batch), states.activation.shape[1]), first)


def by_batch_mean(batch: FeatureBatch, states: RowStates) -> Heads:
    mean = batch.cells.values.sum() / max(1, len(batch.cells.values))
    return Heads(torch.zeros(len(batch), states.activation.shape[1]), mean.expand(len(batch)).clone())


def by_mean_without_shots(batch: FeatureBatch, states: RowStates) -> Heads:
    sums = torch.bincount(batch.cells.lines, batch.cells.values, len(batch)).float()
    return Heads(torch.zeros(len(batch), states.activation.shape[1]), sums / batch.shots)


def by_chance(batch: FeatureBatch, states: RowStates) -> Heads:
    return Heads(torch.zeros(len(batch), states.activation.shape[1]), torch.rand(len(batch)))


def too_narrow(batch: FeatureBatch, states: RowStates) -> Heads:
    return Heads(torch.zeros(len(batch), 1), torch.zeros(len(batch)))


@pytest.mark.parametrize(
    ("adapt", "message"),
    [
        (by_first_value, "order of a context"),
        (by_batch_mean, "one feature at a time"),
        (by_mean_without_shots, "finite"),
        (by_chance, "same heads bit for bit"),
        (too_narrow, "cannot be trained"),
    ],
)
def test_a_broken_promise_is_noticed(adapt, message: str) -> None:  # type: ignore[no-untyped-def]
    with registered(ADAPTERS), pytest.raises(ContractError, match=message):
        check_adapter(broken(adapt))


def of_one_plus_one(adapter: BayesHead, context: OneContext, start: Array | None = None) -> OneHead:
    head = BayesHead.adapt_one(adapter, context, start)
    return head._replace(bias=head.bias + 1)


def louder_row(adapter: BayesHead, state: OneState) -> OneState:
    refined = BayesHead.refine_one(adapter, state)
    return refined._replace(noise=2 * (refined.noise or 1.0))


def twice(adapter: BayesHead, batch: FeatureBatch, states: RowStates, reduce: Reduce) -> Heads:
    return BayesHead.adapt_sharded(adapter, batch, states, lambda tensor: 2 * reduce(tensor))


@pytest.mark.parametrize(
    ("method", "form", "message"),
    [
        ("adapt_one", of_one_plus_one, "adapt_one"),
        ("refine_one", louder_row, "refine_one"),
        ("adapt_sharded", twice, "adapt_sharded"),
    ],
)
def test_a_form_that_disagrees_with_the_batch_is_noticed(method: str, form: object, message: str) -> None:
    class OddConfig(BayesConfig):
        name: Literal["odd"] = "odd"  # type: ignore[assignment]

    odd = type("Odd", (BayesHead,), {"config_type": OddConfig, method: form})
    with registered(ADAPTERS), pytest.raises(ContractError, match=message):
        check_adapter(odd)
