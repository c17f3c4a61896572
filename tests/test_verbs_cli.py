"""The commands that ask a saved model and look into it, their formats, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import logging
from copy import copy
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from headstart.datasets import synthetic_clicks
from headstart.model import Headstart
from tests.model.conftest import CLOSED, able, ratings_table
from tests.test_cli import run


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("verbs") / "m"
    model = copy(able())
    model.add_feature("Dune, 3", {"year": 1999, "genre": "drama"}, {"u1": 5})
    model.save(place)
    return place


def asked(*arguments: object) -> str:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_recommend(saved: Path) -> None:
    model = Headstart.load(saved)
    lines = json.loads(asked("recommend", saved, "u1", "u2", "-n", 3, "--format", "json"))
    assert [(line["row"], line["place"]) for line in lines] == [
        (u, i) for u in ("u1", "u2") for i in (1, 2, 3)
    ]
    for row in ("u1", "u2"):
        own = [line for line in lines if line["row"] == row]
        found = model.recommend(row, 3)
        assert [line["feature"] for line in own] == list(found.names)
        np.testing.assert_allclose([line["mean"] for line in own], found.mean)
    shown = asked("recommend", saved, "u1", "-n", 1, "--features", "f1,f2", "--include-observed")
    assert model.recommend("u1", 1, ["f1", "f2"], exclude_observed=False).names[0] in shown
    upper = asked("recommend", saved, "u1", "--by", "upper", "--quantile", 0.8, "--out", "-")
    names = [line["feature"] for line in csv.DictReader(io.StringIO(upper))]
    assert names == list(model.recommend("u1", by="upper", quantile=0.8).names)


def test_recommend_for_new_rows(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("user,film,stars\nx,f1,5\nx,f2,4\ny,f1,1\n")
    columns = ("--row", "user", "--feature", "film", "--value", "stars")
    lines = json.loads(
        asked("recommend", saved, "--new-rows", tmp_path / "new.csv", *columns, "-n", 2, "--format", "json")
    )
    found = Headstart.load(saved).recommend_many({"x": {"f1": 5, "f2": 4}, "y": {"f1": 1}}, 2)
    assert [line["feature"] for line in lines] == [*found["x"].names, *found["y"].names]


def test_audience(saved: Path, tmp_path: Path) -> None:
    model = Headstart.load(saved)
    asked("audience", saved, "Dune, 3", "-n", 4, "--out", tmp_path / "who.parquet", "--quiet")
    assert pq.read_table(tmp_path / "who.parquet")["row"].to_pylist() == list(
        model.audience("Dune, 3", 4).names
    )
    few = ("-n", 2, "--rows", "u1,u4,u5", "--by", "information", "--format", "json")
    lines = json.loads(asked("audience", saved, "Dune, 3", *few))
    assert [line["row"] for line in lines] == list(
        model.audience("Dune, 3", 2, ["u1", "u4", "u5"], by="information").names
    )


def test_similar_and_explain(saved: Path, tmp_path: Path) -> None:
    model = Headstart.load(saved)
    lines = list(csv.DictReader(io.StringIO(asked("similar", saved, "f1", "-n", 3, "--format", "csv"))))
    assert [line["feature"] for line in lines] == list(model.similar("f1", 3).names)
    assert asked("explain", saved, "u1", "f3").strip() == str(model.explain("u1", "f3"))
    told = asked(
        "explain", saved, "u1", "f3", "--format", "json", "--picture", tmp_path / "why.png", "--quiet"
    )
    assert sum(line["value"] for line in json.loads(told)) == pytest.approx(
        sum(each.value for each in model.explain("u1", "f3"))
    )
    assert (tmp_path / "why.png").read_bytes().startswith(b"\x89PNG")


def test_features_and_rows(saved: Path) -> None:
    lines = json.loads(asked("features", saved, "--search", "DUNE", "--format", "json"))
    assert lines == [
        {
            "feature": "Dune, 3", "kind": "rating:1:5", "observations": 1, "added": "after fit",
            "genre": "drama", "year": "1999",
        }
    ]  # fmt: skip
    assert len(json.loads(asked("features", saved, "--format", "json"))) == 61
    rows = json.loads(asked("rows", saved, "--search", "u19", "--format", "json"))
    assert {line["row"] for line in rows} == {"u19", *(f"u19{i}" for i in range(10))}
    table = ratings_table(rows=200, features=60)
    counts = np.bincount(table.row_index, minlength=200)
    assert {line["row"]: line["observations"] for line in rows} == {
        line["row"]: counts[table.rows.position(line["row"])] for line in rows
    }
    assert json.loads(asked("rows", saved, "--search", "nobody", "--format", "json")) == []
    assert "and 150 more; use --out FILE" in asked("rows", saved)
    assert "more" not in asked("rows", saved, "--quiet")


def test_evaluate(saved: Path, tmp_path: Path) -> None:
    table = ratings_table(rows=60, features=70, seed=1)
    with (tmp_path / "later.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "feature", "value"])
        for i, j, value in zip(table.row_index, table.feature_index, table.values, strict=True):
            writer.writerow([table.rows[i], table.features[j], value])
    done = run("evaluate", saved, tmp_path / "later.csv", "--shots", "0,4", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "on features: 10 tested" in done.stderr  # what is said is not mixed with what was asked for
    lines = json.loads(done.stdout)
    errors = [line for line in lines if line["metric"] == "rmse"]
    assert {line["method"] for line in errors} == {"bayes", "row-column-means"}
    assert [line["shots"] for line in errors if line["method"] == "bayes"] == [0, 4]
    cells = run("evaluate", saved, tmp_path / "later.csv", "--on", "cells")
    assert cells.returncode == 0, cells.stderr
    assert "RMSE (lower is better)" in cells.stdout
    assert "row-column-means" in cells.stdout


def test_predictions_in_every_format(saved: Path, tmp_path: Path) -> None:
    ask = ("predict", saved, "--rows", "u1,u2", "--features", "f1")
    lines = json.loads(asked(*ask, "--format", "json"))
    mean = Headstart.load(saved).predict(["u1", "u2"], ["f1"]).mean[:, 0]
    np.testing.assert_allclose([line["mean"] for line in lines], mean)
    found = list(csv.DictReader(io.StringIO(asked(*ask, "--out", "-"))))
    assert [line["row"] for line in found] == ["u1", "u2"]
    assert asked(*ask, "--out", tmp_path / "said.json", "--quiet") == ""
    assert json.loads((tmp_path / "said.json").read_text()) == lines
    assert "wrote 2 lines" in asked(*ask, "--out", tmp_path / "said.txt", "--format", "csv")
    assert (tmp_path / "said.txt").read_text().startswith('"row","feature","mean"')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recommend", "{m}"], "name rows, or give --new-rows"),
        (["recommend", "{m}", "nobody"], "unknown row 'nobody'"),
        (["recommend", "{m}", "u1", "--by", "most"], "--by must be one of"),
        (["recommend", "{m}", "u1", "--quantile", "2"], "--quantile must be a number from 0.5"),
        (["recommend", "{m}", "u1", "--level", "2"], "between 0 and 1"),
        (["audience", "{m}", "f999"], "unknown feature 'f999'"),
        (["similar", "{m}", "f999"], "unknown feature 'f999'"),
        (["explain", "{m}", "u1", "f1", "--picture", "x.gif"], "--picture must end in .png, .svg or .pdf"),
        (["rows", "{m}", "--format", "xml"], "--format must be table, json or csv; got 'xml'"),
        (["rows", "{m}", "--format", "tabel"], "did you mean 'table'?"),
        (["rows", "{m}", "--out", "x.xls"], "--out must end in .csv or .parquet; got 'x.xls'"),
        (["rows", "{m}", "--out", "x.csv", "--format", "table"], "--format table is for the screen"),
        (["rows", "{m}", "--out", "nodir/x.csv"], "the folder nodir does not exist"),
        (["evaluate", "{m}", "{t}", "--shots", "a"], "--shots must be whole numbers"),
        (["evaluate", "{m}", "{t}"], "the model knows none of the rows"),
        (["fit", "{t}", "--out", "x", "--set", "epochs=3"], "--set must be SECTION.NAME=VALUE"),
        (["fit", "{t}", "--out", "x", "--set", "pretrainin.epochs=3"], "did you mean 'pretraining'?"),
        (["fit", "{t}", "--out", "x", "--set", "pretraining.epoch=3"], "did you mean 'epochs'?"),
        (["fit", "{t}", "--out", "x", "--set", "backbone.latent=0"], "setting 'latent'"),
        (["fit", "{t}", "--out", "x", "--set", "adapter.encoding=3"], "goes with an adapter of your choice"),
        (["fit", "{t}", "--out", "x", *2 * ("--set", "backbone.latent=2")], "latent twice; keep one"),
    ],
)  # fmt: skip
def test_errors_are_one_clear_line(saved: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "t.csv").write_text("row,feature,value\na,x,1\nb,x,5\n")
    done = run(*(each.format(m=saved, t=tmp_path / "t.csv") for each in arguments), cwd=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_settings_of_training_on_the_command_line(tmp_path: Path) -> None:
    table = ratings_table(rows=30, features=8)
    lines = [
        f"{table.rows[i]},{table.features[j]},{value}"
        for i, j, value in zip(table.row_index, table.feature_index, table.values, strict=True)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["row,feature,value", *lines]))
    own = ("--set", "backbone.latent=3", "--set", "metatraining.epochs=2", "--set", "adapter.activations=1")
    done = run("fit", tmp_path / "t.csv", "--out", tmp_path / "m", "--adapter", "chn-bayes", *own, "--quiet")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    settings = Headstart.load(tmp_path / "m").get_params()
    assert settings["backbone"].latent == 3
    assert settings["metatraining"].epochs == 2
    assert settings["adapter"].activations == 1


@pytest.mark.parametrize(
    "command",
    ["recommend", "audience", "similar", "explain", "features", "rows", "evaluate", "fit", "add-feature"],
)
def test_help_has_a_short_name(command: str) -> None:
    done = run(command, "-h")
    assert done.returncode == 0
    assert "Usage" in done.stdout
    assert "--install-completion" in run("-h").stdout


def test_what_a_service_wants_to_know_is_logged(
    saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert any(isinstance(each, logging.NullHandler) for each in logging.getLogger("headstart").handlers)
    with caplog.at_level(logging.DEBUG, logger="headstart"):
        model = Headstart.load(saved)
        model.add_feature("new", observations={"u1": 3})
        model.observe_feature("new", {"u2": 4})
        model.add_rows({"guest": {}})
        model.remove_feature("new")
        model.save(tmp_path / "m")
        Headstart(**CLOSED).fit(ratings_table(rows=20, features=6))
    said = [record.getMessage() for record in caplog.records if record.name == "headstart"]
    assert [record.levelname for record in caplog.records if "observed" in record.getMessage()] == ["DEBUG"]
    parts = ["loaded", "added 1 feature", "observed: 1 observation", "added 1 row", "saved"]
    for part in [*parts, "removed feature 'new'", "fitting 20 rows and 6 features", "fitted bayes in"]:
        assert any(part in message for message in said), part


def test_rankings_are_filtered_on_the_command_line(tmp_path: Path) -> None:
    model = Headstart(quiet=True).fit(synthetic_clicks(60, 24, density=0.3))
    path = tmp_path / "clicks.headstart"
    model.save(path)
    row, first = model.rows[0], model.recommend(model.rows[0], n=1, by="lower").names[0]
    options = ("--by", "lower", "--exclude", first, "--where", "genres=Drama", "--format", "json")
    answer = json.loads(asked("recommend", path, row, "-n", 3, *options))
    expected = model.recommend(row, n=3, by="lower", exclude=[first], where={"genres": "Drama"})
    assert [line["feature"] for line in answer] == list(expected.names)
    assert run("recommend", path, row, "--where", "genres").returncode == 1
