"""What a user relies on, whatever the backbone and the adapter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.model.conftest import QUICK, ratings_table

from headstart.adapters import adapter_names
from headstart.backbones import BACKBONES
from headstart.model import Headstart

Fresh = Callable[..., Headstart]
ONE_OF_EACH = [
    "chn",
    "random",
    "mean",
    "mean-head",
    "mean-head-matching",
    "knn-5",
    "train-5",
    "maml-3",
    "chn-train-5",
]

pairs = pytest.mark.parametrize(
    ("backbone", "adapter"),
    [("pvae", adapter) for adapter in ONE_OF_EACH]
    + [(name, "chn") for name in sorted(BACKBONES) if name != "pvae"],
)
NEW = {"metadata": {"genre": "drama", "year": 1999}, "observations": {"u1": 5, "u2": 1, "u7": 4, "u9": 2}}


def test_one_of_each_method_is_here() -> None:
    def family(name: str) -> str:
        return name.rstrip("0123456789")

    assert {family(name) for name in ONE_OF_EACH} == {family(name) for name in adapter_names()}


@pairs
def test_other_predictions_stay_bit_for_bit(fresh: Fresh, backbone: str, adapter: str) -> None:
    model = fresh(backbone, adapter)
    before = model.predict()
    model.add_feature("new", **NEW)
    model.add_features({"bare": {}, "seen": {"observations": {"u3": 4}}})
    model.observe("new", {"u4": 3})
    model.remove_feature("bare")
    after = model.predict()
    kept = [name for name in after.features if name not in ("new", "seen")]
    assert kept == list(before.features)
    where = after.features.positions(kept)
    assert np.array_equal(before.mean, after.mean[:, where])
    assert np.array_equal(before.std, after.std[:, where])
    few = model.predict(rows=["u5", "u1"], features=["f3", "new"])
    assert few["u5", "f3"] == before["u5", "f3"]


@pairs
def test_saving_and_loading_changes_nothing(
    fresh: Fresh, backbone: str, adapter: str, tmp_path: Path
) -> None:
    model = fresh(backbone, adapter)
    model.add_feature("new", **NEW)
    model.save(tmp_path / "m")
    copy = Headstart.load(tmp_path / "m")
    assert copy.features == model.features
    for rows in (None, {"stranger": {"f1": 5, "f2": 1}}):
        one, other = model.predict(rows), copy.predict(rows)
        assert np.array_equal(one.mean, other.mean)
        assert np.array_equal(one.std, other.std)
    # and they go on alike
    for each in (model, copy):
        each.observe("new", {"u4": 3, "u1": 2})
        each.add_feature("newer", **NEW)
    one, other = model.predict(features=["new", "newer"]), copy.predict(features=["new", "newer"])
    assert np.array_equal(one.mean, other.mean)


@pairs
def test_the_order_of_observations_does_not_matter(fresh: Fresh, backbone: str, adapter: str) -> None:
    model = fresh(backbone, adapter)
    given = NEW["observations"]
    model.add_feature("forth", NEW["metadata"], given)
    model.add_feature("back", NEW["metadata"], dict(reversed(given.items())))
    model.add_feature("slow", NEW["metadata"])
    for row, value in given.items():
        model.observe("slow", {row: value})
    mean = model.predict(features=["forth", "back", "slow"]).mean
    assert np.array_equal(mean[:, 0], mean[:, 1])
    assert np.array_equal(mean[:, 0], mean[:, 2])


@pairs
def test_many_at_once_are_as_one_by_one(fresh: Fresh, backbone: str, adapter: str) -> None:
    together, apart = fresh(backbone, adapter), fresh(backbone, adapter)
    features = {f"n{i}": {"observations": {f"u{i + j}": 1 + (i + j) % 5 for j in range(i)}} for i in range(6)}
    together.add_features(features)
    for name, parts in features.items():
        apart.add_feature(name, **parts)
    one, other = together.predict(features=list(features)), apart.predict(features=list(features))
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-5, atol=1e-5)


@pairs
def test_zero_shots_and_no_metadata_work(fresh: Fresh, backbone: str, adapter: str) -> None:
    model = fresh(backbone, adapter)
    model.add_feature("nothing known")
    prediction = model.predict(features=["nothing known"])
    assert np.isfinite(prediction.mean).all()
    assert (prediction.std > 0).all()
    assert ((prediction.mean >= 1) & (prediction.mean <= 5)).all()


@pytest.mark.parametrize("backbone", sorted(BACKBONES))
def test_the_same_random_state_gives_the_same_model(backbone: str) -> None:
    one, other = (
        Headstart(backbone=backbone, random_state=5, **QUICK).fit(ratings_table()).predict() for _ in range(2)
    )
    assert np.array_equal(one.mean, other.mean)
    third = Headstart(backbone=backbone, random_state=6, **QUICK).fit(ratings_table()).predict()
    assert not np.array_equal(one.mean, third.mean)
