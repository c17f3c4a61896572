"""The verbs of a model, and what it refuses without changing anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from tests.model.conftest import CLOSED, QUICK, ratings_table
from tests.stand_ins import Interruption, training_steps
from tests.states import state_of

from headstart.adapters.baselines import NearestHeadsConfig
from headstart.errors import InputError, NotFittedError, UnknownNameError
from headstart.linalg.packed import unpack
from headstart.model import Headstart
from headstart.progress import Reporter
from headstart.table import Table
from headstart.training.calibration import USUAL_LEVEL

Fresh = Callable[..., Headstart]


def test_every_feature_of_the_table_is_predictable(fresh: Fresh) -> None:
    table = ratings_table()
    for share, adapted in ((None, 0), (1 / 3, 8)):
        model = fresh(meta_share=share)
        assert sorted(model.features) == sorted(table.features)
        prediction = model.predict()
        assert prediction.mean.shape == table.shape
        assert sum(not model.feature(name).in_backbone for name in model.features) == adapted
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
    model = Headstart(**CLOSED).fit(Table.read(frame, kinds="rating:1:5"))
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
    model.observe_feature("new", {"u1": 5, "u2": 5, "u3": 5, "u4": 5})
    assert model.feature("new").shots == 4
    assert model.predict(features=["new"]).mean.mean() > low
    other = fresh(adapter="able")
    other.add_feature("new", observations={"u1": 5, "u2": 5, "u3": 5, "u4": 5})
    one, two = model.predict(features=["new"]), other.predict(features=["new"])
    np.testing.assert_allclose(one.mean, two.mean, rtol=1e-5)
    np.testing.assert_allclose(one.std, two.std, rtol=1e-5)


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


def test_a_predictions_spread_is_the_heads_and_the_rows_together(fresh: Fresh) -> None:
    """Mean and standard deviation of a cell from its parts, one cell at a time."""
    model = fresh("factorisation", "chn-bayes")
    model.add_feature("new", observations={"u1": 5, "u2": 1})
    fitted = state_of(model)
    states, calibration = fitted.states, fitted.calibration
    for name in ("new", "f3"):
        features, heads = fitted.feature_store.take([name])
        theta = torch.cat([heads.weight[0], heads.bias]).double()
        spread = unpack(heads.covariance[0].double(), len(theta))
        shots, kind = torch.tensor([features[0].shots]), torch.tensor([features[0].kind.type])
        factor = float(calibration.factor(shots, kind)[0, USUAL_LEVEL])
        found = model.predict(["u1", "u30"], [name])
        for row in found.rows:
            place = model.rows.position(row)
            a = torch.cat([states.activation[place].double(), torch.ones(1).double()])
            variance = float(a @ spread @ a) + float(heads.noise[0] * states.noise[place])
            for k, vague in enumerate(states.variance[place].tolist()):
                variance += float(theta[k] ** 2 + spread[k, k]) * vague
            mean = min(max(1 + 4 * float(theta @ a), 1), 5)
            assert found[row, name] == pytest.approx((mean, 4 * factor * variance**0.5), rel=1e-4)


@pytest.mark.parametrize("backbone", ["pvae", "factorisation"])
def test_a_spread_where_heads_claim_none_is_the_likelihoods_times_the_calibration(
    fresh: Fresh, backbone: str
) -> None:
    """A rating's noise adds to its value, and what a backbone says of its rows."""
    model = fresh(backbone, "mean")
    model.add_feature("new", observations={"u1": 5, "u2": 1, "u3": 4})
    fitted = state_of(model)
    likely = fitted.knowledge.likelihood.config.output_variance**0.5
    found = model.predict(features=["new", "f3"])
    for column, name in enumerate(["new", "f3"]):
        feature = model.feature(name)
        kind = torch.tensor([feature.kind.type])
        factor = float(fitted.calibration.factor(torch.tensor([feature.shots]), kind)[0, USUAL_LEVEL])
        weight = fitted.feature_store.take([name])[1].weight[0]
        for row in (0, 7, 30):
            variance = likely**2
            if backbone == "factorisation":  # the only one that says how noisy and uncertain its rows are
                variance *= float(fitted.states.noise[row])
                for k, vague in enumerate(fitted.states.variance[row].tolist()):
                    variance += float(weight[k]) ** 2 * vague
            assert found.std[row, column] == pytest.approx(4 * factor * variance**0.5, rel=1e-4)


REFUSED = {
    "a name that exists": ({"feature": "f1"}, "feature 'f1' is already in the model"),
    "a series": ({"observations": np.ones(3)}, "must map names to values.*got ndarray"),
    "nothing of use": ({"observations": 0}, "must map names to values"),
    "metadata that is a list": ({"metadata": []}, "must map names to values"),
    "too large": ({"observations": {"u1": 10**400}}, "too large"),
    "an unknown row": ({"observations": {"u999": 3}}, "unknown row 'u999'.*rows the model knows"),
    "a value out of range": ({"observations": {"u1": 9}}, "the value 9 at 'u1' is not from 1 to 5"),
    "not a number": ({"observations": {"u1": "five"}}, "must be a number; got 'five'"),
    "NaN": ({"observations": {"u1": float("nan")}}, "is nan; leave unknown values out"),
    "infinity": ({"observations": {"u1": float("inf")}}, "is inf"),
    "the same row twice": ({"observations": {1: 3, "1": 4}}, "'1' is given twice"),
    "not a mapping": ({"observations": [3, 4]}, "must map names to values"),
    "metadata of the wrong type": ({"metadata": {"year": "nineteen"}}, "feature 'new'.*year"),
    "unknown metadata": ({"metadata": {"yaer": 1999}}, "did you mean 'year'"),
    "an unknown kind": ({"kind": "ratng"}, "did you mean 'rating'"),
    "a kind not trained on": ({"kind": "binary"}, "not among those the model was fitted on"),
    "an empty name": ({"feature": ""}, "cannot be a feature"),
    "no name": ({"feature": None}, "cannot be a feature"),
    "a truth value": ({"feature": True}, "cannot be a feature"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_features_are_refused_and_nothing_changes(fresh: Fresh, case: str) -> None:
    model = fresh()
    before, names = model.predict(), model.features
    given, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        model.add_feature(**{"feature": "new", **given})
    parts = {key: value for key, value in given.items() if key != "feature"}
    with pytest.raises(InputError, match=message):  # a batch is refused whole
        model.add_features({"fine": {}, given.get("feature", "new"): parts})
    assert model.features == names
    assert np.array_equal(model.predict().mean, before.mean)


def test_other_bad_input_is_refused(fresh: Fresh) -> None:
    model = fresh()
    trained = next(name for name in model.features if model.feature(name).fixed)
    with pytest.raises(InputError, match="was trained into the backbone"):
        model.observe_feature(trained, {"u1": 3})
    with pytest.raises(UnknownNameError, match="unknown feature 'f99'; did you mean"):
        model.observe_feature("f99", {"u1": 3})
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
    for wrong in (["a"], {"x": None}, {"x": 5}):
        with pytest.raises(InputError, match="must map names to values"):
            model.add_features(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="must map names to values"):
        model.add_rows(["y"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'3' is given twice"):
        model.predict({3: {}, "3": {}})
    with pytest.raises(InputError, match="between 0 and 1"):
        model.predict(["u1"]).interval("a")  # type: ignore[arg-type]


def test_settings_are_checked_before_any_work() -> None:
    table = ratings_table()
    with pytest.raises(NotFittedError, match=r"call fit\(table\)"):
        Headstart().predict()
    with pytest.raises(UnknownNameError, match="did you mean 'pvae'"):
        Headstart(backbone="pvea").fit(table)
    with pytest.raises(InputError, match="has no setting 'epoch'; did you mean 'epochs'"):
        Headstart(pretraining={"epoch": 3}).fit(table)
    for wrong, message in (
        ({"meta_share": 2.0}, "'meta_share'"),
        ({"random_state": -1}, "'random_state'"),
        ({"adapter": 5}, "chosen by its name or its settings; got 5"),
        ({"backbone": 5}, "chosen by its name or its settings; got 5"),
        ({"pretraining": 5}, "must map names to values"),
        ({"backbone": {"name": "pvae", "latent": -1}}, "'latent'.*greater"),
        ({"backbone": {"name": "pvae", "likelihood": {"output_variance": 0}}}, "output_variance"),
        ({"adapter": {"name": "chn", "max_shots": 0}}, "'max_shots'"),
    ):
        with pytest.raises(InputError, match=message):
            Headstart(**wrong).fit(table)
    with pytest.raises(InputError, match="takes a Table"):
        Headstart().fit([1, 2])
    with pytest.raises(InputError, match="at least 4 are needed"):
        Headstart().fit(table.with_features(["f1", "f2"]))


def test_it_follows_estimator_conventions() -> None:
    model = Headstart(adapter="knn-5", random_state=3)
    assert model.get_params()["adapter"] == "knn-5"
    assert clone(model).get_params() == model.get_params()
    assert not [name for name in vars(model) if name.endswith("_")]


@pytest.mark.parametrize(
    ("backbone", "adapter", "stage"),
    [("pvae", "chn", "backbone"), ("pvae", "chn", "adapter"), ("factorisation", "chn-bayes", "adapter")],
)
def test_an_interrupted_fit_resumes_to_the_same_model(
    tmp_path: Path, backbone: str, adapter: str, stage: str
) -> None:
    """After three of six epochs of either stage; it goes on where it stopped."""
    epochs = {"epochs": 6, "checkpoint_seconds": 0.0}
    settings: dict[str, Any] = {
        "backbone": backbone,
        "pretraining": epochs,
        "metatraining": epochs,
        "quiet": True,
    }
    table = ratings_table()
    with training_steps() as first:
        Headstart(adapter="mean", **settings).fit(table)  # which trains the backbone only
    settings["adapter"] = adapter
    with training_steps() as every:
        whole = Headstart(**settings).fit(table).predict()
    start, stop = (0, first[0]) if stage == "backbone" else (first[0], every[0])
    kept = start + 3 * (stop - start) // 6
    with training_steps(stop_before=kept), pytest.raises(Interruption):
        Headstart(**settings).fit(table, checkpoint=tmp_path / "c")
    with pytest.raises(InputError, match="other data or settings"):
        Headstart(**{**settings, "random_state": 9}).fit(table, checkpoint=tmp_path / "c", resume=True)
    with training_steps() as left:
        resumed = Headstart(**settings).fit(table, checkpoint=tmp_path / "c", resume=True).predict()
    again = left[0] - (every[0] - kept)  # steps of the epoch that was interrupted: of no finished one
    assert 0 <= again <= (stop - start) / 6 + 1
    assert np.array_equal(whole.mean, resumed.mean)
    assert np.array_equal(whole.std, resumed.std)


def test_a_folder_of_something_else_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match=r"is not empty .* and holds no checkpoint"):
        Headstart(**QUICK).fit(ratings_table(), checkpoint=tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Headstart(**{**QUICK, "adapter": "chn", "quiet": False}).fit(ratings_table())
    shown = capsys.readouterr().err
    assert "Training the backbone" in shown
    assert "Meta-training chn" in shown
    Reporter(quiet=True).say("nothing")
    assert capsys.readouterr().err == ""


def test_kinds_follow_the_table_and_not_what_was_added() -> None:
    random = np.random.default_rng(0)
    frame = {"row": [f"u{i}" for i in range(40)]}
    frame |= {f"lab{j}": random.normal(50, 5, 40) for j in range(6)}
    frame |= {f"sign{j}": random.integers(0, 2, 40).astype(float) for j in range(7)}
    model = Headstart(**CLOSED).fit(Table.read(pa.table(frame)))
    model.add_feature("bare")
    assert str(model.feature("bare").kind) == "binary"
    model.add_feature("real", kind="real", observations={"u1": 47.0})
    assert model.feature("real").kind == model.feature("lab0").kind  # the reals share one scale
    model.add_feature("own", kind="real:1000:50", observations={"u1": 1100.0})
    model.add_feature("after", kind="real")  # another scale in the model changes nothing for the next
    assert model.feature("after").kind == model.feature("lab0").kind
    mean = model.predict(features=["own", "after"]).mean
    assert 800 < mean[:, 0].mean() < 1200
    assert 30 < mean[:, 1].mean() < 70
    assert np.isfinite(model.predict().std).all()
    with pytest.raises(InputError, match=r"not among those the model was fitted on \(binary, real\)"):
        model.add_feature("stars", kind="rating:1:5")


def test_the_ends_of_a_rating_are_values_too() -> None:
    table = ratings_table()
    values = -5 + 3.3 * (table.values - 1) / 4
    frame = pa.table(
        {
            "row": [table.rows[i] for i in table.row_index],
            "feature": [table.features[j] for j in table.feature_index],
            "value": values,
        }
    )
    model = Headstart(**CLOSED).fit(Table.read(frame, kinds="rating:-5:-1.7"))
    model.add_feature("new", observations={"u1": -1.7, "u2": -5.0})
    assert model.feature("new").shots == 2


def test_many_new_rows_and_features_take_time_in_proportion_to_their_number(fresh: Fresh) -> None:
    model = fresh()

    def seconds(count: int) -> float:
        rows = {f"n{i}": dict.fromkeys(model.features[:60], 1 + i % 5) for i in range(count // 2)}
        begin = time.process_time()
        model.predict(rows)
        model.add_features({f"x{count} {i}": {"observations": {"u1": 3}} for i in range(count)})
        return time.process_time() - begin

    few, many = seconds(100), seconds(1000)
    assert many < 20 * few  # a loop over all features for each would take 100 times as long
    assert many < 5  # seconds of CPU time


# -- Parameters as scikit-learn's tools expect them


def test_scikit_learn_clones_a_model() -> None:
    model = Headstart(adapter=NearestHeadsConfig(neighbours=3), metatraining={"epochs": 2}, random_state=7)
    copy = clone(model)
    assert copy is not model
    assert type(copy) is Headstart
    assert copy.get_params() == model.get_params()
    assert copy.metatraining is not model.metatraining


def test_parameters_are_set_by_name() -> None:
    model = Headstart()
    assert model.set_params(adapter="mean", quiet=True) is model
    assert model.get_params() == Headstart(adapter="mean", quiet=True).get_params()
    assert list(model.get_params(deep=False)) == [
        "backbone", "adapter", "pretraining", "metatraining", "meta_share", "random_state", "quiet",
        "half_life", "device",
    ]  # fmt: skip


def test_an_unknown_parameter_is_refused_and_nothing_is_set() -> None:
    model = Headstart()
    with pytest.raises(UnknownNameError, match="Headstart has no parameter 'adaptr'; did you mean 'adapter'"):
        model.set_params(quiet=True, adaptr="mean")
    assert model.quiet is False


def test_a_model_shows_what_differs_from_the_defaults() -> None:
    assert repr(Headstart()) == "Headstart()"
    assert repr(Headstart(adapter="mean", random_state=3)) == "Headstart(adapter='mean', random_state=3)"
