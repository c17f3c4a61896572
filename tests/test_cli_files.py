"""Whole files on the command line: many new features, unknown names, titles, and wide predictions."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from headstart import Headstart, Table
from tests.test_cli import run

COLUMNS = ("--row", "user", "--feature", "film", "--value", "stars")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("files")
    generator = np.random.default_rng(0)
    lines = ["user,film,stars"]
    for user, film in zip(*np.nonzero(generator.random((40, 12)) < 0.5), strict=True):
        lines.append(f"u{user},m{film},{generator.integers(1, 6)}")
    (place / "ratings.csv").write_text("\n".join(lines))
    films = [f"m{i},{'Alien' if i == 0 else f'Film {i}'},{1980 + i}" for i in range(12)]
    (place / "films.csv").write_text("\n".join(["film,title,year", *films]))
    (place / "new.csv").write_text("film,title,year\nm90,Dune 3,2026\nm91,Brazil,1985\n")
    (place / "first.csv").write_text(
        "user,film,stars\nu1,m90,5\nu2,m90,4\nu1,m3,2\nsomeone,m91,1\nu3,m91,2\n"
    )
    table = Table.read(
        place / "ratings.csv", metadata=place / "films.csv", row="user", feature="film", value="stars",
        kinds="rating:1:5", quiet=True,
    )  # fmt: skip
    Headstart(adapter="bayes", quiet=True).fit(table).save(place / "m")
    return place


@pytest.fixture
def model(folder: Path, tmp_path: Path) -> Path:
    Headstart.load(folder / "m").save(tmp_path / "m")
    return tmp_path / "m"


def succeed(*arguments: object) -> str:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_many_new_features(folder: Path, model: Path) -> None:
    given = (model, folder / "new.csv", "--observations", folder / "first.csv", *COLUMNS)
    refused = run("add-features", *given)
    assert refused.returncode == 1
    assert "unknown row 'someone'" in refused.stderr
    assert "m90" not in Headstart.load(model).features
    said = succeed("add-features", *given, "--unknown", "skip")
    assert "added 2 features with 3 observations; left out 1 unknown row" in said
    loaded = Headstart.load(model)
    assert loaded.feature("m90").observations == {"u1": 5, "u2": 4}
    assert loaded.feature("m91").metadata == {"title": "Brazil", "year": 1985}
    assert "u1" not in loaded.feature("m91").observations
    again = run("add-features", *given)
    assert "in the model already: 'm90', 'm91'; --skip-existing" in again.stderr


def test_new_features_with_new_rows(folder: Path, model: Path) -> None:
    (folder / "all.csv").write_text((folder / "films.csv").read_text() + "\nm91,Brazil,1985\n")
    given = (model, folder / "all.csv", "--observations", folder / "first.csv", *COLUMNS)
    said = succeed("add-features", *given, "--unknown", "add", "--skip-existing")
    assert "added 1 feature with 2 observations; added 1 unknown row; 12 features were in" in said
    assert Headstart.load(model).feature("m91").observations == {"u3": 2, "someone": 1}


def test_observe_unknown_names(folder: Path, model: Path) -> None:
    refused = run("observe", model, folder / "first.csv", *COLUMNS)
    assert "--unknown add" in refused.stderr
    assert "left out 2 features and 1 row" in succeed(
        "observe", model, folder / "first.csv", *COLUMNS, "--unknown", "skip"
    )
    assert "added 2 features and 1 row" in succeed(
        "observe", model, folder / "first.csv", *COLUMNS, "--unknown", "add"
    )
    assert Headstart.load(model).row("someone").observations == {"m91": 1}


def test_titles(folder: Path) -> None:
    found = json.loads(succeed("features", folder / "m", "--search", "alien", "--format", "json"))
    assert [(line["feature"], line["title"]) for line in found] == [("m0", "Alien")]
    by_title = succeed("similar", folder / "m", "alien", "--format", "json")
    assert by_title == succeed("similar", folder / "m", "m0", "--format", "json")
    assert "feature 'm0' (Alien)" in succeed("explain", folder / "m", "u1", "Alien")
    assert "title" in json.loads(succeed("recommend", folder / "m", "u1", "--format", "json"))[0]
    assert "unknown feature 'Alienn'" in run("audience", folder / "m", "Alienn").stderr


def test_wide_predictions(folder: Path) -> None:
    names = ("--rows", "u3,u1", "--features", "m2,m0")
    text = succeed("predict", folder / "m", *names, "--form", "wide", "--keep-observed", "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [line["row"] for line in lines] == ["u3", "u1"]
    assert list(lines[0]) == ["row", "m2", "m0"]
    loaded = Headstart.load(folder / "m")
    means = loaded.predict(["u3", "u1"], ["m2", "m0"]).mean
    for i, line in enumerate(lines):
        observed = loaded.row(line["row"]).observations
        for j, film in enumerate(("m2", "m0")):
            assert float(line[film]) == pytest.approx(observed.get(film, means[i, j]))
    assert "--keep-observed needs --form wide" in run("predict", folder / "m", "--keep-observed").stderr
    assert "--form must be long or wide" in run("predict", folder / "m", "--form", "broad").stderr


def test_wide_predictions_of_new_rows(folder: Path) -> None:
    (folder / "guests.csv").write_text("user,film,stars\nguest,m1,5\nguest,m2,1\n")
    text = succeed(
        "predict", folder / "m", "--new-rows", folder / "guests.csv", *COLUMNS, "--features", "m2,m3",
        "--form", "wide", "--keep-observed", "--format", "json",
    )  # fmt: skip
    (line,) = json.loads(text)
    assert (line["row"], line["m2"]) == ("guest", 1)
    assert 1 <= line["m3"] <= 5
