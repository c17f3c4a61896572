"""The size of saved models: nothing is stored twice, or in a longer type than it needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load_file
from tests.limits import Limits
from tests.limits import limits as limits_of

from headstart import Headstart, Table

Fresh = Callable[..., Headstart]


def rare_table(features: int = 80, rows: int = 60) -> Table:
    """Ratings of 1 to 5: from 1 up to 20 ratings of each feature."""
    random = np.random.default_rng(0)
    counts = np.minimum(random.geometric(0.2, features), 20)
    row = np.concatenate([random.choice(rows, count, replace=False) for count in counts])
    columns = {
        "row": [f"u{i}" for i in row],
        "feature": [f"f{j}" for j in np.repeat(np.arange(features), counts)],
    }
    return Table.read(pa.table({**columns, "value": random.integers(1, 6, len(row))}), kinds="rating:1:5")


@cache
def rare(adapter: str, compact: bool) -> Headstart:
    """Fit a model whose features have few observations each."""
    backbone = {"name": "factorisation", "latent": 12}
    with limits_of(compact_from_numbers=0 if compact else 2**30):
        return Headstart(backbone=backbone, adapter=adapter, metatraining={"epochs": 1}, quiet=True).fit(
            rare_table()
        )


def stored(folder: Path) -> dict[str, np.ndarray]:
    """Return the tensors in the file of weights, by name."""
    return load_file(next(folder.glob("weights-*")))


@pytest.mark.parametrize("mapped", [False, True])
def test_equal_tensors_are_stored_once(fresh: Fresh, tmp_path: Path, limits: Limits, mapped: bool) -> None:
    limits(compared_bytes=0, **({"mapped_from_bytes": 0} if mapped else {}))
    model = fresh("factorisation", "bayes")
    model.save(tmp_path / "m")
    copies = json.loads((tmp_path / "m/model.json").read_text())["copies"]
    tensors = stored(tmp_path / "m")
    assert copies["knowledge/heads/covariance"] == "backbone/covariance"
    assert not copies.keys() & tensors.keys()
    assert {name.partition("[")[0] for name in copies.values()} <= tensors.keys()
    contents = [(array.dtype, array.shape, array.tobytes()) for array in tensors.values() if array.size]
    twice = [
        name
        for name, array in tensors.items()
        if contents.count((array.dtype, array.shape, array.tobytes())) > 1
    ]
    assert all(name.startswith(("features/", "states/")) for name in twice)
    for verify in (True, False):
        loaded = Headstart.load(tmp_path / "m", verify=verify)
        np.testing.assert_array_equal(loaded.predict().mean, model.predict().mean)
        np.testing.assert_array_equal(loaded.predict().std, model.predict().std)
    loaded.observe([("u1", "f1", 4), ("u2", "f3", 1)])
    model.observe([("u1", "f1", 4), ("u2", "f3", 1)])
    np.testing.assert_array_equal(loaded.predict().mean, model.predict().mean)


def test_few_different_values_take_a_byte_each(tmp_path: Path, limits: Limits) -> None:
    limits(coded_values=1)
    model = copy(rare("bayes", compact=False))
    model.observe_feature("f5", {"u9": 2})
    model.save(tmp_path / "m")
    tensors = stored(tmp_path / "m")
    assert tensors["contexts/values"].dtype == "uint8"
    assert tensors["contexts/levels"].tolist() == [1, 2, 3, 4, 5]
    assert tensors["knowledge/values"].dtype == "uint8"
    assert tensors["knowledge/levels"].tolist() == [0, 0.25, 0.5, 0.75, 1]
    loaded = Headstart.load(tmp_path / "m")
    assert loaded.state.knowledge.cells.values.equal(model.state.knowledge.cells.values)
    for name in model.features:
        assert loaded.feature(name).observations == model.feature(name).observations


@pytest.mark.parametrize("mapped", [False, True])
def test_covariances_of_the_backbone_take_half_precision(
    tmp_path: Path, limits: Limits, mapped: bool
) -> None:
    """A fit rounds them, so that predictions of a loaded model are the same bit for bit."""
    limits(narrowed_from_numbers=0, compared_bytes=0, **({"mapped_from_bytes": 0} if mapped else {}))
    model = copy(rare("bayes", compact=True))
    model.save(tmp_path / "m")
    tensors = stored(tmp_path / "m")
    assert tensors["backbone/covariance"].dtype == "float16"
    assert "knowledge/heads/covariance" not in tensors
    assert tensors["backbone/weight"].dtype == "float32"  # which half precision does not hold exactly
    exact = rare("bayes", compact=False)
    rows = {"new": {"f1": 5, "f2": 1, "f7": 4}}
    for verify in (True, False):
        loaded = Headstart.load(tmp_path / "m", verify=verify)
        np.testing.assert_array_equal(loaded.predict(rows).mean, model.predict(rows).mean)
        np.testing.assert_array_equal(loaded.predict(rows).std, model.predict(rows).std)
    np.testing.assert_allclose(model.predict(rows).mean, exact.predict(rows).mean, atol=1e-3)


def test_activations_of_the_backbone_are_the_first_columns_of_states(tmp_path: Path, limits: Limits) -> None:
    limits(compared_bytes=0)
    backbone = {"name": "factorisation", "latent": 4}
    adapter = {"name": "chn-bayes", "activations": 3}
    model = Headstart(backbone=backbone, adapter=adapter, metatraining={"epochs": 1}, quiet=True)
    model.fit(rare_table())
    for _ in range(2):
        model.save(tmp_path / "m")
        copies = json.loads((tmp_path / "m/model.json").read_text())["copies"]
        assert copies["knowledge/states/activation"].endswith("[:, :4]")
        loaded = Headstart.load(tmp_path / "m")
        np.testing.assert_array_equal(loaded.predict().mean, model.predict().mean)
        assert loaded.state.knowledge.states.activation.shape == (60, 4)
        for changed in (model, loaded):
            changed.observe([("u1", "f1", 4), ("u2", "f3", 1)])
        np.testing.assert_array_equal(loaded.predict().mean, model.predict().mean)


@pytest.mark.parametrize(("value", "type_"), [(0.5, "float32"), (0.1, "float64")])
def test_contexts_take_the_shortest_type_that_is_exact(tmp_path: Path, value: float, type_: str) -> None:
    random = np.random.default_rng(0)
    row, feature = np.nonzero(random.random((30, 6)) < 0.7)
    columns = {"row": [f"u{i}" for i in row], "feature": [f"f{j}" for j in feature]}
    table = Table.read(pa.table({**columns, "value": random.integers(-4, 5, len(row)) * value}), kinds="real")
    model = Headstart(adapter="bayes", quiet=True).fit(table)
    model.save(tmp_path / "m")
    tensors = stored(tmp_path / "m")
    assert (tensors["contexts/values"].dtype, tensors["contexts/rows"].dtype) == (type_, "int32")
    loaded = Headstart.load(tmp_path / "m")
    for name in model.features:
        assert loaded.feature(name).observations == model.feature(name).observations


ADAPTERS = ("bayes", "chn-bayes", "chn-bayes-blend")


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_compact_covariances_change_predictions_little(adapter: str) -> None:
    small, exact = rare(adapter, compact=True).predict(), rare(adapter, compact=False).predict()
    np.testing.assert_array_equal(small.mean, exact.mean)
    ratio = small.std / exact.std
    assert np.abs(ratio - 1).mean() < 1e-3
    np.testing.assert_allclose(ratio, 1, atol=1e-2)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_few_observations_take_few_bytes(adapter: str, tmp_path: Path) -> None:
    """The covariance of a head takes a few vectors in half precision per observation, not a triangle."""
    sizes = {}
    for compact in (True, False):
        folder = tmp_path / str(compact)
        rare(adapter, compact).save(folder)
        sizes[compact] = {
            name: array.nbytes
            for name, array in stored(folder).items()
            if name.startswith(("features/covariance", "covariances/"))
        }
    assert sum(sizes[True].values()) < 0.5 * sum(sizes[False].values())


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_compact_models_are_loaded_and_changed_alike(
    adapter: str, mapped: bool, tmp_path: Path, limits: Limits
) -> None:
    """Also after a change, after more new heads than there is room for, and after a second save."""
    limits(mapped_from_bytes=0 if mapped else 2**40, mapped_spare_lines=4, coded_values=0)
    model = copy(rare(adapter, compact=True))

    def same(other: Headstart) -> None:
        mine, others = model.predict(), other.predict()
        np.testing.assert_array_equal(others.mean, mine.mean)
        np.testing.assert_array_equal(others.std, mine.std)

    def change(one: Headstart) -> None:
        one.observe([("u1", "f1", 4), ("u2", "f3", 1)])
        one.add_feature("new", observations={"u1": 5, "u4": 2})
        one.observe_feature("f5", {"u9": 2})
        for i in range(70):
            one.add_feature(f"more{i}", observations={f"u{i % 50}": 1 + i % 5})
        one.remove_feature("f6")

    model.save(tmp_path / "m")
    loaded = Headstart.load(tmp_path / "m", verify=not mapped)
    same(loaded)
    before = model.predict(features=["f8", "f9"]).std
    change(model)
    change(loaded)
    same(loaded)
    kept = model.predict(rows=["u5", "u6"], features=["f8", "f9"]).std
    np.testing.assert_array_equal(kept, before[[list(model.rows).index(row) for row in ("u5", "u6")]])
    model.save(tmp_path / "again")
    same(Headstart.load(tmp_path / "again"))
    same(Headstart.load(tmp_path / "again", verify=False))
