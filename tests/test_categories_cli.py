"""Categories, draws and imputations on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.csv as pa_csv
import pytest

from headstart.model import Headstart
from tests.model.test_categories import LEVELS, QUESTIONS, answers
from tests.test_cli import run


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    answers().to_csv(folder / "answers.csv", index=False)
    done = run("fit", folder / "answers.csv", "--row", "row", "--adapter", "bayes", "--out", folder / "m")
    assert done.returncode == 0, done.stderr
    assert "6 features" in done.stdout
    return folder / "m"


def test_features_and_predictions_are_questions(saved: Path, tmp_path: Path) -> None:
    assert "6, 0 of them added after fit" in run("info", saved).stdout
    listed = json.loads(run("features", saved, "--format", "json").stdout)
    assert [line["feature"] for line in listed] == QUESTIONS
    assert {line["kind"] for line in listed} == {"category:A,B,C"}
    shown = run("predict", saved, "--rows", "u01", "--features", "q1")
    assert "most probable" in shown.stdout
    lines = json.loads(run("predict", saved, "--rows", "u01,u02", "--format", "json").stdout)
    assert len(lines) == 12
    assert {line["label"] for line in lines} <= set(LEVELS)
    chances = run("predict", saved, "--rows", "u01", "--probabilities", "--format", "json")
    assert len(json.loads(chances.stdout)) == 18
    assert "6 features" in run("check", saved).stdout


def test_a_question_is_added_observed_exported_and_removed(saved: Path, tmp_path: Path) -> None:
    model = tmp_path / "m"
    Headstart.load(saved).save(model)
    (tmp_path / "first.csv").write_text("row,value\nu01,X\nu02,Y\n")
    done = run(
        "add-feature", model, "new", "--kind", "category:X,Y", "--observations", tmp_path / "first.csv",
        "--weight", "2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "added 'new' (category:X,Y) with 2 observations" in done.stdout
    (tmp_path / "more.csv").write_text("row,feature,value\nu03,new,X\nu03,q1,B\n")
    assert run("observe", model, tmp_path / "more.csv").returncode == 0
    assert Headstart.load(model).feature("new").observations == {"u01": "X", "u02": "Y", "u03": "X"}
    assert run("export", model, "--out", tmp_path / "all.csv", "--quiet").returncode == 0
    lines = pa_csv.read_csv(tmp_path / "all.csv").to_pylist()
    assert {line["feature"] for line in lines} == {*QUESTIONS, "new"}
    assert {"row": "u01", "feature": "new", "value": "X", "weight": 2.0} in lines
    assert run("remove", model, "--features", "new").returncode == 0
    assert Headstart.load(model).features == QUESTIONS


def test_draws_and_imputations_are_written(saved: Path, tmp_path: Path) -> None:
    done = run("sample", saved, "--rows", "u01,u02", "--features", "q1,q2", "-n", 3, "--format", "json")
    lines = json.loads(done.stdout)
    assert len(lines) == 12
    assert lines[0] == {"draw": 1, "row": "u01", "feature": "q1", "value": lines[0]["value"]}
    assert {line["value"] for line in lines} <= set(LEVELS)
    assert run("impute", saved, "-m", 2, "--out", tmp_path / "filled.csv", "--quiet").returncode == 0
    filled = pa_csv.read_csv(tmp_path / "filled.csv").to_pandas()
    assert list(filled) == ["imputation", "row", *QUESTIONS]
    assert len(filled) == 100
    assert not filled.isna().any().any()
    again = Headstart.load(saved).impute(2)[1]
    assert (filled[filled["imputation"] == 2]["q1"].to_numpy() == again["q1"].to_numpy()).all()
