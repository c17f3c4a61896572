"""The verbs of a model, and what it refuses without changing anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone
from tests.model.conftest import QUICK, ratings_table

from headstart.errors import InputError, NotFittedError, UnknownNameError
from headstart.model import Headstart
from headstart.progress import Reporter
from headstart.table import Table
from headstart.training import loop

Fresh = Callable[..., Headstart]


def test_every_feature_of_the_table_is_predictable(fresh: Fresh) -> None:
    model = fresh()
    table = ratings_table()
    assert sorted(model.features) == sorted(table.features)
    prediction = model.predict()
    assert prediction.mean.shape == table.shape
    adapted = [name for name in model.features if not model.feature(name).trained]
    assert len(adapted) == 8
    assert all(
        model.feature(name).shots == table.counts[table.features.position(name)] for name in model.features
    )


def test_it_learns_something() -> None:
    """On a held-out fifth of the cells a fitted model beats each feature's own mean."""
    table = ratings_table(rows=200, features=40)
    held = np.arange(len(table)) % 5 == 0
    names = [
        (table.rows[i], table.features[j]) for i, j in zip(table.row_index, table.feature_index, strict=True)
    ]
    kept = [name for name, h in zip(names, held, strict=True) if not h]
    frame = pa.table(
        {"row": [r for r, _ in kept], "feature": [f for _, f in kept], "value": table.values[~held]}
    )
    model = Headstart(quiet=True).fit(Table.read(frame, kinds="rating:1:5"))
    prediction = model.predict(rows=list(table.rows), features=list(table.features))
    predicted = prediction.mean[table.row_index[held], table.feature_index[held]]
    totals = np.bincount(table.feature_index[~held], weights=table.values[~held], minlength=40)
    means = totals / np.bincount(table.feature_index[~held], minlength=40)
    rmse = np.sqrt(np.mean((predicted - table.values[held]) ** 2))
    baseline = np.sqrt(np.mean((means[table.feature_index[held]] - table.values[held]) ** 2))
    assert rmse < 0.8 * baseline


def test_observing_moves_a_prediction_and_replaces_a_value(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    model.add_feature("new", observations={"u1": 1, "u2": 1})
    low = model.predict(features=["new"]).mean.mean()
    model.observe("new", {"u1": 5, "u2": 5, "u3": 5, "u4": 5})
    assert model.feature("new").shots == 4
    assert model.predict(features=["new"]).mean.mean() > low
    other = fresh(adapter="able")
    other.add_feature("new", observations={"u1": 5, "u2": 5, "u3": 5, "u4": 5})
    assert np.array_equal(model.predict(features=["new"]).mean, other.predict(features=["new"]).mean)


def test_new_rows_are_predicted_from_what_is_passed_with_them(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    high = dict.fromkeys(model.features, 5)
    prediction = model.predict(
        rows={"fan": high, "critic": dict.fromkeys(high, 1), "blank": {}}, features=["f0", "f1"]
    )
    assert list(prediction.rows) == ["fan", "critic", "blank"]
    assert (prediction.mean[0] > prediction.mean[1]).all()
    assert "fan" not in model.rows
    model.add_rows({"fan": high})
    model.add_feature("new", observations={"fan": 5, "u1": 2})
    assert model.predict(["fan"], ["f0"]).mean[0, 0] == prediction["fan", "f0"][0]
    with pytest.raises(InputError, match="row 'fan' is already in the model"):
        model.add_rows({"fan": {}})


def test_a_row_seen_in_training_is_predicted_alike_from_its_own_observations(fresh: Fresh) -> None:
    model, table = fresh(), ratings_table()
    row = table.rows.position("u5")
    mine = table.row_index == row
    own = {table.features[j]: v for j, v in zip(table.feature_index[mine], table.values[mine], strict=True)}
    told = model.predict(rows={"again": own})
    np.testing.assert_allclose(told.mean[0], model.predict(rows=["u5"]).mean[0], rtol=1e-4)


def test_intervals_widen_with_the_level_and_stay_in_range(fresh: Fresh) -> None:
    prediction = fresh().predict()
    narrow, wide = prediction.interval(0.5), prediction.interval(0.95)
    assert (narrow[0] >= wide[0]).all()
    assert (narrow[1] <= wide[1]).all()
    assert wide[0].min() >= 1
    assert wide[1].max() <= 5
    with pytest.raises(InputError, match="between 0 and 1"):
        prediction.interval(1.5)
    assert prediction.to_arrow().column_names == ["row", "feature", "mean", "std", "low", "high"]


REFUSED = {
    "a name that exists": ({"name": "f1"}, "feature 'f1' is already in the model; use observe"),
    "an unknown row": ({"observations": {"u999": 3}}, "unknown row 'u999'.*rows the model knows"),
    "a value out of range": ({"observations": {"u1": 9}}, "the value 9 at 'u1' is not from 1 to 5"),
    "not a number": ({"observations": {"u1": "five"}}, "must be a number; got 'five'"),
    "NaN": ({"observations": {"u1": float("nan")}}, "is nan; leave unknown values out"),
    "infinity": ({"observations": {"u1": float("inf")}}, "is inf"),
    "the same row twice": ({"observations": {1: 3, "1": 4}}, "'1' is observed twice"),
    "not a mapping": ({"observations": [3, 4]}, "must map names to values"),
    "metadata of the wrong type": ({"metadata": {"year": "nineteen"}}, "feature 'new'.*year"),
    "unknown metadata": ({"metadata": {"yaer": 1999}}, "did you mean 'year'"),
    "an unknown kind": ({"kind": "ratng"}, "did you mean 'rating'"),
    "a kind not trained on": ({"kind": "binary"}, "not among those the model was fitted on"),
    "an empty name": ({"name": ""}, "cannot be a feature"),
    "no name": ({"name": None}, "cannot be a feature"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_features_are_refused_and_nothing_changes(fresh: Fresh, case: str) -> None:
    model = fresh()
    before, names = model.predict(), model.features
    given, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        model.add_feature(**{"name": "new", **given})
    parts = {key: value for key, value in given.items() if key != "name"}
    with pytest.raises(InputError, match=message):  # a batch is refused whole
        model.add_features({"fine": {}, given.get("name", "new"): parts})
    assert model.features == names
    assert np.array_equal(model.predict().mean, before.mean)


def test_other_bad_input_is_refused(fresh: Fresh) -> None:
    model = fresh()
    trained = next(name for name in model.features if model.feature(name).trained)
    with pytest.raises(InputError, match="was trained into the backbone"):
        model.observe(trained, {"u1": 3})
    with pytest.raises(UnknownNameError, match="unknown feature 'f99'; did you mean"):
        model.observe("f99", {"u1": 3})
    with pytest.raises(UnknownNameError, match="unknown row 'u99'"):
        model.predict(rows=["u99"])
    with pytest.raises(UnknownNameError, match="2 unknown rows: 'a', 'b'"):
        model.predict(rows=["a", "b"])
    with pytest.raises(UnknownNameError, match="unknown feature"):
        model.predict(features=["f99"])
    with pytest.raises(UnknownNameError, match="unknown feature"):
        model.remove_feature("f99")
    with pytest.raises(InputError, match="row 'x': the value 7 at 'f1' is not from 1 to 5"):
        model.predict(rows={"x": {"f1": 7}})
    with pytest.raises(InputError, match="unknown part 'metdata'; did you mean 'metadata'"):
        model.add_features({"new": {"metdata": {}}})


def test_settings_are_checked_before_any_work() -> None:
    table = ratings_table()
    with pytest.raises(NotFittedError, match=r"call fit\(table\)"):
        Headstart().predict()
    with pytest.raises(UnknownNameError, match="did you mean 'pvae'"):
        Headstart(backbone="pvea").fit(table)
    with pytest.raises(InputError, match="has no setting 'epoch'; did you mean 'epochs'"):
        Headstart(pretraining={"epoch": 3}).fit(table)
    with pytest.raises(InputError, match="meta_share must lie between 0 and 1"):
        Headstart(meta_share=2.0).fit(table)
    with pytest.raises(InputError, match="takes a Table"):
        Headstart().fit("ratings.csv")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least 4 are needed"):
        Headstart().fit(table.with_features(["f1", "f2"]))


def test_it_follows_estimator_conventions() -> None:
    model = Headstart(adapter="knn-5", random_state=3)
    assert model.get_params()["adapter"] == "knn-5"
    assert clone(model).get_params() == model.get_params()
    assert not [name for name in vars(model) if name.endswith("_")]


class Stop(Exception):
    pass


@pytest.mark.parametrize("stage", ["Training the backbone", "Meta-training chn"])
def test_an_interrupted_fit_resumes_to_the_same_model(
    tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "pretraining": {"epochs": 6, "checkpoint_seconds": 0.0},
        "metatraining": {"epochs": 6, "checkpoint_seconds": 0.0},
        "quiet": True,
    }
    table = ratings_table()
    whole = Headstart(**settings).fit(table).predict()
    keep = loop.Loop._train_epoch

    def breaks(self: loop.Loop, losses: loop.Losses) -> float:
        if self.title == stage and self.epoch == 3:
            raise Stop
        return keep(self, losses)

    monkeypatch.setattr(loop.Loop, "_train_epoch", breaks)
    with pytest.raises(Stop):
        Headstart(**settings).fit(table, checkpoint=tmp_path / "c")
    monkeypatch.setattr(loop.Loop, "_train_epoch", keep)
    with pytest.raises(InputError, match="other data or settings"):
        Headstart(**{**settings, "random_state": 9}).fit(table, checkpoint=tmp_path / "c", resume=True)
    resumed = Headstart(**settings).fit(table, checkpoint=tmp_path / "c", resume=True).predict()
    assert np.array_equal(whole.mean, resumed.mean)
    assert np.array_equal(whole.std, resumed.std)


def test_a_folder_of_something_else_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty and holds no checkpoint"):
        Headstart(**QUICK).fit(ratings_table(), checkpoint=tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Headstart(**{**QUICK, "quiet": False}).fit(ratings_table())
    shown = capsys.readouterr().err
    assert "Training the backbone" in shown
    assert "Meta-training chn" in shown
    Reporter(quiet=True).say("nothing")
    assert capsys.readouterr().err == ""
