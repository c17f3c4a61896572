"""The features of a model: heads that stay where they are, and the sums they rest on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headstart.core.types import Heads
from headstart.errors import UnknownNameError
from headstart.model.features import Feature, FeatureStore
from headstart.table.kinds import Kind

WIDTH = 2


def feature(name: str) -> Feature:
    nothing = np.zeros(0)
    return Feature(
        name, Kind.binary(), False, 0, nothing.astype(np.float32), nothing.astype(np.int64), nothing
    )


def head(*numbers: float) -> Heads:
    values = torch.tensor(numbers)
    return Heads(values[:, None].expand(-1, WIDTH).clone(), -values)


def test_heads_are_found_by_name_however_many_come_and_go() -> None:
    feature_store = FeatureStore(head(0.0))
    expected: dict[str, float] = {}
    random = np.random.default_rng(0)
    for number in range(400):
        name = f"f{int(random.integers(150))}"
        if name in expected and random.random() < 0.4:
            feature_store = feature_store.remove(name)
            del expected[name]
        else:
            feature_store = feature_store.put([feature(name)], head(float(number)))
            expected[name] = float(number)
        assert set(feature_store) == set(expected)
    names = list(expected)
    features, heads = feature_store.take(reversed(names))
    assert [each.name for each in features] == names[::-1]
    assert heads.weight[:, 0].tolist() == (-heads.bias).tolist() == list(expected.values())[::-1]
    with pytest.raises(UnknownNameError, match="unknown feature 'g1'"):
        feature_store["g1"]


def test_names_of_older_models_are_found_as_they_are() -> None:
    """Models saved before names were tidied may hold names with spaces around them."""
    feature_store = FeatureStore(head(0.0)).put([feature(" a "), feature("b")], head(1.0, 2.0))
    assert feature_store[" a "].name == " a "
    assert feature_store[" b "].name == "b"
    with pytest.raises(UnknownNameError, match="unknown feature 'a'"):
        feature_store["a"]
