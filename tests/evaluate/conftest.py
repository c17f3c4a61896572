"""Tiny hand-made worlds: knowledge, held-out features and adapters that need no training."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch

from headstart.adapters.base import Adapter, AdapterConfig
from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.types import FeatureBatch, Heads, Knowledge, RowStates
from headstart.evaluate.results import Results, Run
from headstart.table.cells import Cells
from headstart.table.kinds import Kind, Kinds

ROWS, WIDTH = 40, 3


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny tensors gain nothing from threads, and lose much where tests run side by side."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def worlds() -> ModuleType:
    """What is in this file, for tests to take from."""
    return sys.modules[__name__]


def knowledge(seed: int = 0) -> Knowledge:
    generator = torch.Generator().manual_seed(seed)
    states = RowStates(
        torch.randn(ROWS, 2, generator=generator),
        torch.ones(ROWS, 2),
        torch.randn(ROWS, WIDTH, generator=generator),
    )
    heads = Heads(torch.randn(4, WIDTH, generator=generator), torch.zeros(4))
    cells = Cells.from_pairs(torch.arange(4), torch.arange(4), torch.ones(4), ROWS, 4)
    kinds = torch.zeros(4, dtype=torch.int64)
    return Knowledge(states, cells, heads, torch.zeros(4, 0), kinds, Likelihood(LikelihoodConfig()))


def held_out(features: int = 6, seed: int = 0) -> tuple[FeatureBatch, Kinds]:
    """Features of all three kinds with 0 to ROWS observations each."""
    rng = np.random.default_rng(seed)
    kinds = Kinds([(Kind.binary(), Kind.rating(1, 5), Kind.real(10.0, 2.0))[j % 3] for j in range(features)])
    lines, index = np.nonzero(rng.random((features, ROWS)) < np.linspace(0.05, 0.9, features)[:, None])
    values = np.where(kinds.types[lines] == 0, rng.integers(0, 2, len(lines)), rng.random(len(lines)))
    cells = Cells.from_pairs(
        torch.from_numpy(lines),
        torch.from_numpy(index),
        torch.from_numpy(values).float(),
        features,
        ROWS,
    )
    return FeatureBatch(cells, torch.zeros(features, 0), torch.from_numpy(kinds.types)), kinds


class RidgeConfig(AdapterConfig):
    name: Literal["ridge"] = "ridge"


class Ridge(Adapter):
    """Reads all there is in a context: a head by one gradient step from zero."""

    config_type: ClassVar[type[AdapterConfig]] = RidgeConfig

    def __init__(self, config: AdapterConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self.calls: list[int] = []

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        self.calls.append(len(batch))
        cells = batch.cells
        centred = cells.values - 0.5
        weight = torch.zeros(len(batch), states.activation.shape[1])
        weight.index_add_(0, cells.lines, centred[:, None] * states.activation[cells.index])
        bias = torch.zeros(len(batch)).index_add_(0, cells.lines, centred)
        share = batch.shots.clamp(min=1)
        return Heads(weight / share[:, None], bias / share)


def some_results(
    methods: list[str],
    splits: int = 3,
    metrics: tuple[str, ...] = ("rmse", "mae"),
    row_shots: tuple[int, ...] = (),
) -> Results:
    rng = np.random.default_rng(0)
    shots = [0, 1, 4, 16]
    given = [(k, None) for k in shots] + [(None, r) for r in row_shots] + [(4, 4)] * (4 in row_shots)
    runs = [
        Run(
            split=s,
            method=m,
            shots=k,
            row_shots=r,
            metric=name,
            value=float(1 + 0.1 * i - 0.02 * (k or r or 0) + 0.01 * rng.random()),
            features=5,
            targets=50,
            ms_per_feature=None if r is not None else 0.5,
        )
        for s in range(splits)
        for i, m in enumerate(methods)
        for k, r in given
        for name in metrics
    ]
    data = {"name": "films", "rows": 4, "splits": [{"split": s, "left_out": 2} for s in range(splits)]}
    return Results(data=data, settings={"methods": methods, "shots": shots}, runs=runs)
