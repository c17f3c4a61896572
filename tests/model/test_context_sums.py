"""Sums over contexts are remembered between updates, and show only in the time of an update."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headstart.adapters.base import ContextStack, HeadSums
from headstart.adapters.chn_bayes import CHNBayes
from headstart.model import Headstart
from headstart.table import Table

ROWS, FEATURES = 60, 6


@pytest.fixture(scope="module")
def fitted() -> Headstart:
    random = np.random.default_rng(0)
    observed = random.random((ROWS, FEATURES)) < 0.5
    observed[:, 5] = True  # so that the table has every row
    row, feature = np.nonzero(observed)
    columns = {
        "row": [f"u{i}" for i in row],
        "feature": [f"f{j}" for j in feature],
        "value": random.integers(1, 6, len(row)),
    }
    quick = {"pretraining": {"epochs": 2}, "metatraining": {"epochs": 1}}
    table = Table.read(pa.table(columns), kinds="rating:1:5")
    return Headstart(adapter={"name": "chn-bayes", "blend": True}, quiet=True, **quick).fit(table)


@pytest.fixture
def model(fitted: Headstart) -> Headstart:
    return copy.deepcopy(fitted)


def triples(random: np.random.Generator, count: int) -> list[tuple[str, str, int]]:
    cells = random.choice(ROWS * FEATURES, count, replace=False)
    return [(f"u{cell // FEATURES}", f"f{cell % FEATURES}", int(random.integers(1, 6))) for cell in cells]


def count_summed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of observations of each context that is summed."""
    summed: list[int] = []
    sum_contexts = CHNBayes.sum_contexts

    def counting(self: CHNBayes, contexts: ContextStack) -> HeadSums:
        summed.append(len(contexts.values))
        return sum_contexts(self, contexts)

    monkeypatch.setattr(CHNBayes, "sum_contexts", counting)
    return summed


@pytest.mark.parametrize("seed", range(3))
def test_remembered_sums_do_not_show(model: Headstart, seed: int) -> None:
    """A copy starts without a memory; both make the same predictions after corrections and new rows."""
    random = np.random.default_rng(seed)
    for step in range(12):
        without_memory: Any = copy.deepcopy(model)
        if step == 6:
            for one in (model, without_memory):
                one.add_row("new", observations={"f0": 5, "f1": 1})
                one.observe([("new", "f2", 4), ("new", "f3", 2)])
        observations = triples(random, int(random.integers(1, 9)))
        for one in (model, without_memory):
            one.observe(observations)
        assert np.allclose(model.predict().mean, without_memory.predict().mean, atol=1e-6)
        assert np.allclose(model.predict().std, without_memory.predict().std, atol=1e-6)


def test_an_observation_sums_only_what_differs(model: Headstart, monkeypatch: pytest.MonkeyPatch) -> None:
    feature = next(name for name in model.features if model.feature(name).shots > 16)
    model.observe([("u0", feature, 3)])
    summed = count_summed(monkeypatch)
    model.observe([("u1", feature, 5)])
    assert 0 < max(summed) <= 3


def test_removed_rows_and_features_are_forgotten(model: Headstart) -> None:
    """The positions of rows change with the removal of one, so that nothing remembered holds any more."""
    random = np.random.default_rng(7)
    model.observe(triples(random, 20))
    without_memory = copy.deepcopy(model)
    for one in (model, without_memory):
        one.remove_row("u3")
        one.remove_feature("f1")
        one.observe([("u40", "f2", 5), ("u41", "f0", 1)])
    assert np.allclose(model.predict().mean, without_memory.predict().mean, atol=1e-6)


def test_copies_with_different_rows_do_not_mix(model: Headstart) -> None:
    """Copies share the memory; each may add another row at the same position."""
    one, other = copy.copy(model), copy.copy(model)
    one.add_row("new", observations={"f0": 5, "f1": 5, "f2": 5})
    other.add_row("another", observations={"f0": 1, "f1": 1, "f2": 1})
    one.observe([("new", "f5", 5), ("u1", "f5", 3)])
    without_memory = copy.deepcopy(other)
    for changed in (other, without_memory):
        changed.observe([("another", "f5", 5), ("u1", "f5", 3)])
    assert np.allclose(other.predict().mean, without_memory.predict().mean, atol=1e-6)
