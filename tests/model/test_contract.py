"""What a user relies on, whatever the backbone and the adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.model.conftest import ratings_table
from tests.states import state_of

from headstart.adapters import ADAPTERS, Adapter, adapter_config
from headstart.adapters.head_prior import HeadPrior
from headstart.backbones import BACKBONES, Backbone
from headstart.model import Headstart
from headstart.model.prediction import Prediction

Fresh = Callable[..., Headstart]


def one_variant(name: str) -> str:
    """A name by which this adapter is chosen: the middle one of those listed."""
    variants = ADAPTERS[name].variants or (name,)
    return variants[len(variants) // 2]


ONE_OF_EACH = [one_variant(name) for name in sorted(ADAPTERS.parts())]

pairs = pytest.mark.parametrize(
    ("backbone", "adapter"),
    [("pvae", adapter) for adapter in ONE_OF_EACH if adapter != "bayes"]
    + [(name, "chn") for name in sorted(BACKBONES.parts()) if name != "pvae"]
    + [("factorisation", "chn-bayes"), ("factorisation", "bayes"), ("factorisation", "knn-5")]
    + [("factorisation", "chn-bayes-blend")]
    + [("feedforward", "bayes")],
)
streaming = pytest.mark.parametrize(
    ("backbone", "adapter"),
    [("factorisation", name) for name in ("chn-bayes", "chn-bayes-blend", "bayes")] + [("pvae", "chn-bayes")],
)
NEW = {"metadata": {"genre": "drama", "year": 1999}, "observations": {"u1": 5, "u2": 1, "u7": 4, "u9": 2}}


def test_every_part_is_here() -> None:
    tested = pairs.args[1]
    assert {adapter_config(adapter).name for _, adapter in tested} == set(ADAPTERS.parts())
    assert {backbone for backbone, _ in tested} == set(BACKBONES.parts())
    by_name = {adapter_config(adapter).name for _, adapter in streaming.args[1]}
    assert by_name == {name for name, part in ADAPTERS.parts().items() if part.makes_known_heads}


@pairs
def test_other_predictions_stay_bit_for_bit(fresh: Fresh, backbone: str, adapter: str) -> None:
    model = fresh(backbone, adapter)
    before = model.predict()
    model.add_feature("new", **NEW)
    model.add_features({"bare": {}, "seen": {"observations": {"u3": 4}}})
    model.observe_feature("new", {"u4": 3})
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
    fresh: Fresh, backbone: str, adapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fresh(backbone, adapter)
    model.add_feature("new", **NEW)
    model.save(tmp_path / "m")
    with monkeypatch.context() as patched:
        forbid_computing(patched)
        with without_values():
            copy = Headstart.load(tmp_path / "m")
    assert copy.features == model.features
    assert state_of(copy).settings == state_of(model).settings
    for rows in (None, {"stranger": {"f1": 5, "f2": 1}}):
        one, other = model.predict(rows), copy.predict(rows)
        assert np.array_equal(one.mean, other.mean)
        assert np.array_equal(one.std, other.std)
    # and they go on alike
    for each in (model, copy):
        each.observe_feature("new", {"u4": 3, "u1": 2})
        each.add_feature("newer", **NEW)
    one, other = model.predict(features=["new", "newer"]), copy.predict(features=["new", "newer"])
    assert np.array_equal(one.mean, other.mean)
    assert np.array_equal(one.std, other.std)


@contextmanager
def without_values() -> Iterator[None]:
    """Let memory that is set aside without values hold NaN, so that what loading leaves in it is noticed."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(1).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def forbid_computing(patched: pytest.MonkeyPatch) -> None:
    """Let every part fail that looks at data."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("loading must compute nothing")

    for part in (Adapter, Backbone, HeadPrior, *ADAPTERS.parts().values(), *BACKBONES.parts().values()):
        for ability in ("prepare", "adapt", "refine", "states", "batch_states", "train_by_sweeps", "loss"):
            if ability in vars(part):
                patched.setattr(part, ability, never)


@pairs
def test_the_order_of_observations_does_not_matter(fresh: Fresh, backbone: str, adapter: str) -> None:
    model = fresh(backbone, adapter)
    given = NEW["observations"]
    model.add_feature("forth", NEW["metadata"], given)
    model.add_feature("back", NEW["metadata"], dict(reversed(given.items())))
    for name, order in {"slow": given.items(), "slow back": reversed(given.items())}.items():
        model.add_feature(name, NEW["metadata"])
        for row, value in order:
            model.observe_feature(name, {row: value})
    found = model.predict(features=["forth", "back", "slow", "slow back"])
    rounding = 1e-5 if state_of(model).adapter.makes_known_heads else 0
    for numbers in (found.mean, found.std):
        assert np.array_equal(numbers[:, 0], numbers[:, 1])
        np.testing.assert_allclose(numbers[:, 2], numbers[:, 0], rtol=rounding)
        np.testing.assert_allclose(numbers[:, 3], numbers[:, 0], rtol=rounding)


@streaming
def test_any_feature_can_be_observed_and_taken_up_after_loading(
    fresh: Fresh, backbone: str, adapter: str, tmp_path: Path
) -> None:
    """The table's own features too; in one go, one by one, or with a save and load between."""
    at_once, model = fresh(backbone, adapter), fresh(backbone, adapter)
    before, table = model.predict(), ratings_table()
    for number, name in enumerate(model.features):
        assert not model.feature(name).fixed
        given = {f"u{number}": 5, f"u{number + 1}": 1, "u59": 3}  # some of them seen before, some not
        at_once.observe_feature(name, given)
        for row, value in given.items():
            model.observe_feature(name, {row: value})
        if number % 6 == 0:
            model.save(tmp_path / "m")
            model = Headstart.load(tmp_path / "m")
        feature = model.feature(name)
        assert feature.shots == len(feature.rows) >= table.counts[table.features.position(name)]
        assert feature.observations["u59"] == 3
    one, other = at_once.predict(), model.predict()
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-5)
    np.testing.assert_allclose(one.std, other.std, rtol=1e-5)
    assert (np.abs(one.mean - before.mean).max(axis=0) > 1e-4).all()  # each feature learned from it


@streaming
def test_a_value_changed_back_leaves_no_trace(fresh: Fresh, backbone: str, adapter: str) -> None:
    model = fresh(backbone, adapter)
    model.add_feature("new", **NEW)
    before = model.predict(features=["new"])
    for value in (1, 4, 2, 5):
        model.observe_feature("new", {"u1": value})
    after = model.predict(features=["new"])
    np.testing.assert_allclose(after.mean, before.mean, rtol=1e-5)
    np.testing.assert_allclose(after.std, before.std, rtol=1e-5)


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


@pytest.mark.parametrize("backbone", sorted(BACKBONES.parts()))
def test_the_same_random_state_gives_the_same_model(backbone: str) -> None:
    adapter = "chn-bayes" if backbone == "factorisation" else "chn"

    def predicted(seed: int) -> Prediction:
        epochs = {"epochs": 2, "min_steps": 1}
        model = Headstart(
            backbone, adapter, pretraining=epochs, metatraining=epochs, random_state=seed, quiet=True
        )
        return model.fit(ratings_table()).predict()

    one, other, third = predicted(5), predicted(5), predicted(6)
    assert np.array_equal(one.mean, other.mean)
    assert np.array_equal(one.std, other.std)
    assert not np.array_equal(one.mean, third.mean)
