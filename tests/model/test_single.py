"""A single observation takes a short way; it must lead where the general one leads."""

from __future__ import annotations

import warnings
from copy import copy
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.limits import Limits
from tests.model.conftest import CLOSED, ratings_table
from tests.states import state_of
from torch.overrides import TorchFunctionMode

from headstart.errors import NumericalError, SurpriseWarning
from headstart.model import Headstart
from headstart.model.persistent import PersistentArray
from headstart.table import Table

BLEND = {
    "adapter": {"name": "chn-bayes", "blend": True, "activations": 3, "hidden": 8},
    "metatraining": {"epochs": 2},
    "quiet": True,
}  # with learned activations, which row states are computed with


@cache
def fitted(kind: str) -> Headstart:
    if kind == "blend of ratings":
        return Headstart(**BLEND).fit(ratings_table())
    settings = BLEND if kind == "blend" else CLOSED
    if kind == "rating":
        return Headstart(**CLOSED).fit(ratings_table())
    random = np.random.default_rng(0)
    taste, trait = random.normal(size=(60, 3)), random.normal(size=(24, 3))
    values = taste @ trait.T + 0.4 * random.normal(size=(60, 24))
    row, feature = np.nonzero(random.random((60, 24)) < 0.6)
    mixed = kind in ("mixed", "blend")
    binary = (kind == "binary") | (mixed & (feature % 2 == 0))
    seen = np.where(binary, values[row, feature] > 0, values[row, feature])
    observations = {"row": [f"u{i}" for i in row], "feature": [f"f{j}" for j in feature], "value": seen}
    kinds = {f"f{j}": "binary" if kind == "binary" or (mixed and j % 2 == 0) else "real:0:2"
             for j in range(24)}  # fmt: skip
    about_rows = kind in ("row metadata", "blend")
    people = {"row": [f"u{i}" for i in range(60)], "age": taste[:, 0]} if about_rows else None
    return Headstart(**settings).fit(
        Table.read(
            pa.table(observations), kinds=kinds, row_metadata=None if people is None else pa.table(people)
        )
    )


def of(kind: str) -> Headstart:
    return copy(fitted(kind))


KINDS = ["rating", "real", "binary", "mixed", "row metadata", "blend", "blend of ratings"]


@pytest.mark.parametrize("update", ["both", "features", "rows"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_triple_is_as_among_many(kind: str, update: str, limits: Limits) -> None:
    one, many = of(kind), of(kind)
    low, high = (1, 5) if "rating" in kind else (0, 1)
    for model in (one, many):
        model.add_feature("new", observations={"u1": high, "u2": low, "u3": high})
        model.add_feature("gone", observations={"u1": low})
        model.observe([("u5", "gone", high), ("u7", "f1", low)])
        model.remove_feature("gone")
    stream = [("u1", "f0", high), ("u5", "f3", low), ("u5", "new", low), ("u1", "f0", low), ("u5", "f2", 1)]
    for triple in stream:
        one.observe([triple], update=update)
    limits(computed_one_by_one=0)
    for triple in stream:
        many.observe([triple], update=update)
    mine, theirs = one.predict(), many.predict()
    np.testing.assert_allclose(mine.mean, theirs.mean, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(mine.std, theirs.std, rtol=2e-5, atol=2e-6)
    assert one.staleness().excess == pytest.approx(many.staleness().excess, rel=1e-4)
    for part, other in zip(state_of(one).states.parts(), state_of(many).states.parts(), strict=True):
        np.testing.assert_allclose(part.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)
    assert one.table() == many.table()


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_single_observations_of_one_feature_does_not_matter(kind: str) -> None:
    one, other = of(kind), of(kind)
    given = [("u1", "f0", 1), ("u2", "f0", 1), ("u3", "f0", 1), ("u2", "f0", 1)]
    for triple in given:
        one.observe([triple], update="features")
    for triple in reversed(given):
        other.observe([triple], update="features")
    np.testing.assert_allclose(one.predict().mean, other.predict().mean, rtol=1e-6)


class Counted(TorchFunctionMode):
    """Count the operations of torch within the block: small ones cost more time than their arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return function(*args, **(kwargs or {}))


def test_one_observation_takes_few_operations(limits: Limits) -> None:
    one, many = of("rating"), of("rating")
    for model in (one, many):  # the first observation also copies the adapter's parameters to numpy, once
        model.observe([("u2", "f2", 4)])
    with Counted() as few:
        said = one.observe([("u1", "f1", 5)])
    limits(computed_one_by_one=0)
    with Counted() as general:
        many.observe([("u1", "f1", 5)])
    assert (said.observations, said.features, said.rows) == (1, ("f1",), ("u1",))
    assert 5 * few.operations < general.operations, (few.operations, general.operations)


def test_other_predictions_stay_bit_for_bit() -> None:
    model = of("mixed")
    before = model.predict()
    model.observe([("u1", "f1", 2.5)])
    after = model.predict()
    rows = [i for i, name in enumerate(before.rows) if name != "u1"]
    features = [j for j, name in enumerate(before.features) if name != "f1"]
    np.testing.assert_array_equal(before.mean[np.ix_(rows, features)], after.mean[np.ix_(rows, features)])
    np.testing.assert_array_equal(before.std[np.ix_(rows, features)], after.std[np.ix_(rows, features)])


def test_a_far_value_widens_as_among_many() -> None:
    one, many = of("real"), of("real")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one.observe([("u1", "f1", 900.0)])
        many.observe([("u1", "f1", 900.0), ("u1", "f1", 900)])
    np.testing.assert_allclose(one.predict().std, many.predict().std, rtol=2e-5)
    before = one.predict().mean
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((SurpriseWarning, NumericalError)):
            one.observe([("u1", "f1", 1e17)])
    assert np.array_equal(one.predict().mean, before)


def test_layers_are_an_array() -> None:
    random = np.random.default_rng(0)
    plain, layered, held = np.arange(90), PersistentArray(np.arange(90)), []
    for turn in range(300):
        places = np.sort(random.choice(len(plain), int(random.integers(1, 4)), replace=False))
        values = random.integers(0, 1000, len(places))
        held.append((layered, plain.copy()))
        plain = plain.copy()
        plain[places], layered = values, layered.put(places, values)
        if turn % 100 == 50:
            held.append((layered.extend(np.array([5])), np.append(plain, [5])))  # another extension of it
            plain, layered = np.append(plain, [7, 8]), layered.extend(np.array([7, 8]))
            plain = np.append(plain, [0, 0, 9])
            layered = layered.put_or_extend(np.array([len(plain) - 1]), np.array([9]), 0)
        some = random.integers(0, len(plain), 9)
        np.testing.assert_array_equal(layered.take(some), plain[some])
    for before, expected in held[::17]:
        np.testing.assert_array_equal(before.whole(), expected)
