"""The default: the judge chooses, says what it found, and a saved model still knows."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.limits import limits
from tests.model.conftest import ratings_table
from tests.states import state_of, with_state

from headstart.adapters.bayes import BayesConfig
from headstart.datasets import synthetic_diagnoses
from headstart.errors import InputError
from headstart.model import Headstart
from headstart.training import judge


@cache
def default() -> Headstart:
    return Headstart(quiet=True).fit(ratings_table(60, 16))


@cache
def judged_as_numbers() -> Headstart:
    with limits(judge_folds=1):
        return Headstart(quiet=True).fit(synthetic_diagnoses(60, 14))


@pytest.fixture
def as_numbers() -> Headstart:
    """A model of binary features for which the judge preferred to take 0 and 1 as numbers."""
    return copy(judged_as_numbers())


def judgement_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "model.json").read_text())["judgement"]


def test_the_default_is_what_the_judge_chooses(tmp_path: Path) -> None:
    assert Headstart().get_params()["adapter"] == "auto"
    model = default()
    info = model.info
    assert (info.backbone, info.adapter, info.chosen.split(",")[0]) == ("factorisation", "bayes", "bayes")
    assert info.judged_on == sum(map(len, judge.draw_folds(np.arange(16), seed=0)))
    model.save(tmp_path / "m")
    judgement = judgement_of(tmp_path / "m")
    assert [each.shots for each in info.errors] == judgement["shots"]
    assert info.chosen == judgement["chosen"]
    verdict = judgement["candidates"][info.chosen]
    for each, squared, spread in zip(info.errors, verdict["error"], verdict["standard_error"], strict=True):
        assert each.error == pytest.approx(4 * np.sqrt(squared))  # in stars
        assert each.standard_error == pytest.approx(4 * spread / (2 * np.sqrt(squared)))
        assert 0.2 < each.error < 2
    assert set(info.metadata) == {"genre", "year"}
    assert all(0 <= share <= 1 for share in info.metadata.values())
    assert (info.rows, info.features, info.added) == (60, 16, 0)
    text = str(info)
    assert f"chosen: {info.chosen}, judged on {info.judged_on} features held out" in text
    assert "error by shots: " in text
    assert "unit of errors: root mean square in the units of the values (rating:1:5)" in text
    assert not any(0 < each.standard_error < 1e-6 for each in info.errors)  # of a single feature
    assert "metadata: " in text


def test_errors_to_expect_are_those_that_come() -> None:
    """Of features that were no part of the table, with as many observations as the judge had shown."""
    table = ratings_table(200, 90)
    model = Headstart(quiet=True).fit(table.with_features(np.arange(50)))
    expected = {each.shots: each for each in model.info.errors}
    for shots in (0, 8):
        squared = []
        for j in range(50, 90):
            own = np.flatnonzero(table.feature_index == j)
            seen, asked = own[:shots], own[shots:]
            rows = [table.rows[i] for i in table.row_index[asked]]
            given = {table.rows[table.row_index[n]]: table.values[n] for n in seen}
            model.add_feature(f"new {j} {shots}", observations=given)
            mean = model.predict(rows, [f"new {j} {shots}"]).mean[:, 0]
            squared.append(np.mean((mean - table.values[asked]) ** 2))
        found, spread = np.mean(squared), np.std(squared) / np.sqrt(40)
        told = expected[shots]
        apart = abs(found - told.error**2)
        assert apart < 4 * np.hypot(spread, 2 * told.error * told.standard_error) + 0.1 * found


def test_a_saved_model_knows_how_it_was_chosen(tmp_path: Path) -> None:
    model = default()
    model.save(tmp_path / "m")
    copy = Headstart.load(tmp_path / "m")
    copy.save(tmp_path / "copy")
    assert judgement_of(tmp_path / "copy") == judgement_of(tmp_path / "m")
    assert copy.info == model.info
    assert str(copy.info) == str(model.info)
    assert copy.get_params()["adapter"] == BayesConfig()
    assert np.array_equal(copy.predict().std, model.predict().std)


def test_adapters_that_were_named_are_not_judged() -> None:
    info = Headstart(adapter="mean", quiet=True).fit(ratings_table(30, 14)).info
    assert (info.adapter, info.chosen, info.judged_on, info.errors) == ("mean", None, 0, [])
    assert info.metadata == {}
    assert "chosen" not in str(info)


def test_few_features_are_fitted_without_a_judge() -> None:
    info = Headstart(quiet=True).fit(ratings_table(30, 8)).info
    assert (info.adapter, info.judged_on, info.errors) == ("bayes", 0, [])
    assert "chosen" not in str(info)


def test_the_judge_takes_all_features() -> None:
    with pytest.raises(InputError, match="meta_share goes with an adapter of your choice"):
        Headstart(meta_share=0.3).fit(ratings_table())


def test_progress_says_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    Headstart().fit(ratings_table(30, 12))
    shown = capsys.readouterr().err
    assert "Judging bayes" in shown
    assert "error by shots" in shown


def test_zeros_and_ones_may_be_taken_as_numbers(as_numbers: Headstart, tmp_path: Path) -> None:
    model = as_numbers
    assert model.info.chosen.removesuffix(", with known heads") == "bayes, 0 and 1 as numbers"
    assert {str(model.feature(name).kind) for name in model.features} == {"binary"}
    row = list(model.rows)
    model.add_feature("new", observations={row[0]: 1, row[1]: 0, row[2]: 1})
    model.add_feature("bare")
    before = model.predict(features=["new"])
    model.observe_feature("new", {row[3]: 1, row[0]: 0})
    assert not np.array_equal(before.mean, model.predict(features=["new"]).mean)
    model.add_feature("again", observations={row[0]: 0, row[1]: 0, row[2]: 1, row[3]: 1})
    both = model.predict(features=["new", "again"])
    np.testing.assert_allclose(both.mean[:, 0], both.mean[:, 1], rtol=1e-5)
    found = model.predict()
    assert ((found.mean >= 0) & (found.mean <= 1)).all()
    np.testing.assert_allclose(found.std, np.sqrt(found.mean * (1 - found.mean)))
    assert set(np.unique(found.interval()[0])) | set(np.unique(found.interval()[1])) <= {0.0, 1.0}
    with pytest.raises(InputError, match="0 or 1"):
        model.add_feature("half", observations={row[0]: 0.5})
    stranger = model.predict({"x": {model.features[0]: 1, model.features[1]: 0}})
    assert ((stranger.mean >= 0) & (stranger.mean <= 1)).all()
    assert len(model.suggest("new", n=3)) == 3
    model.save(tmp_path / "m")
    copy = Headstart.load(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "model.json").read_text())["settings"]["binary_link"] == "identity"
    for each in (model, copy):
        each.observe_feature("new", {row[5]: 0})
        each.add_feature("later", observations={row[0]: 1})
    assert np.array_equal(copy.predict().mean, model.predict().mean)
    assert np.array_equal(copy.predict().std, model.predict().std)
    assert copy.info == model.info
    assert copy.suggest("later", n=3) == model.suggest("later", n=3)


def test_probabilities_are_those_of_the_judges_calibration(as_numbers: Headstart) -> None:
    model = as_numbers
    calibration = state_of(model).calibration
    assert bool((calibration.slopes != 1).any())
    none = replace(type(calibration).none(tuple(calibration.marks.tolist())), edge=calibration.edge)
    plain = with_state(model, calibration=none).predict().mean
    shots = [model.feature(name).shots for name in model.features]
    at = np.log1p(shots), np.log1p(calibration.marks.numpy())
    slope, shift = (np.interp(*at, each.numpy()) for each in (calibration.slopes, calibration.shifts))
    expected = 1 / (1 + np.exp(-(np.log(plain / (1 - plain)) * slope + shift)))
    np.testing.assert_allclose(model.predict().mean, expected, rtol=1e-4, atol=1e-5)
