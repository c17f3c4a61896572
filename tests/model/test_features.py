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
    catalogue = FeatureStore(head(0.0))
    expected: dict[str, float] = {}
    random = np.random.default_rng(0)
    for number in range(400):
        name = f"f{int(random.integers(150))}"
        if name in expected and random.random() < 0.4:
            catalogue = catalogue.remove(name)
            del expected[name]
        else:
            catalogue = catalogue.put([feature(name)], head(float(number)))
            expected[name] = float(number)
        assert set(catalogue) == set(expected)
    names = list(expected)
    features, heads = catalogue.take(reversed(names))
    assert [each.name for each in features] == names[::-1]
    assert heads.weight[:, 0].tolist() == (-heads.bias).tolist() == list(expected.values())[::-1]
    with pytest.raises(UnknownNameError, match="unknown feature 'g1'"):
        catalogue["g1"]


def test_sums_belong_to_the_head_they_were_put_with() -> None:
    catalogue = FeatureStore(head(0.0))
    sums = [torch.tensor([[1.0]]), torch.tensor([[2.0]])]
    catalogue = catalogue.put([feature("a"), feature("b")], head(1.0, 2.0), sums)
    catalogue = catalogue.put([feature("c")], head(3.0))
    assert {name: float(each) for name, each in catalogue.evidence.items()} == {"a": 1.0, "b": 2.0}
    catalogue = catalogue.put([feature("a")], head(4.0))  # another head, of which there are no sums
    assert set(catalogue.evidence) == {"b"}
    catalogue = catalogue.put([feature("b")], head(5.0), [torch.tensor([[6.0]])])
    assert float(catalogue.evidence["b"]) == 6.0
    catalogue = catalogue.remove("b")
    assert not catalogue.evidence
    with pytest.raises(TypeError):
        catalogue.evidence["a"] = sums[0]  # type: ignore[index]
    with pytest.raises(ValueError, match="zip"):
        catalogue.put([feature("d"), feature("e")], head(1.0, 2.0), sums[:1])


def test_names_of_older_models_are_found_as_they_are() -> None:
    """Models saved before names were tidied may hold names with spaces around them."""
    catalogue = FeatureStore(head(0.0)).put([feature(" a "), feature("b")], head(1.0, 2.0))
    assert catalogue[" a "].name == " a "
    assert catalogue[" b "].name == "b"
    with pytest.raises(UnknownNameError, match="unknown feature 'a'"):
        catalogue["a"]
