"""The shipped contract holds for every part of the project, and notices parts that break it."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest
import torch
from tests.stand_ins import registered

from headstart.adapters.base import ADAPTERS, Adapter, AdapterConfig
from headstart.backbones.base import BACKBONES
from headstart.core import FeatureBatch, Heads, RowStates
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
