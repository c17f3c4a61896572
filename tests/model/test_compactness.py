"""The size of saved models: nothing is stored twice, or in a longer type than it needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load_file
from tests.limits import Limits

from headstart import Headstart, Table

Fresh = Callable[..., Headstart]


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
    assert set(copies.values()) <= tensors.keys()
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
