"""The command line as a user meets it: files in, files out, one clear line when something is wrong."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from headstart.model import Headstart
from tests.model.conftest import able, ratings_table


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    program = "import torch; torch.set_num_threads(1); from headstart.cli import main; main()"
    command = [sys.executable, "-c", program, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli")
    table = ratings_table()
    with (path / "ratings.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "film", "stars"])
        for i, j, value in zip(table.row_index, table.feature_index, table.values, strict=True):
            writer.writerow([table.rows[i], table.features[j], value])
    with (path / "films.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["film", "genre", "year"])
        for name, line in zip(table.features, table.metadata.to_pylist(), strict=True):
            writer.writerow([name, line["genre"], line["year"]])
    (path / "first.csv").write_text("user,stars\nu1,5\nu2,3\n")
    return path


COLUMNS = ("--row", "user", "--feature", "film", "--value", "stars")


def test_the_whole_way(folder: Path) -> None:
    model = folder / "m.headstart"
    fitted = run("fit", folder / "ratings.csv", "--features", folder / "films.csv", *COLUMNS, "--out", model)
    assert fitted.returncode == 0, fitted.stderr
    assert "24 features, 60 rows" in fitted.stdout
    assert "rating:1:5" in fitted.stdout  # what was inferred is said
    assert "Training the backbone" in fitted.stderr
    assert not (folder / "m.headstart.checkpoint").exists()

    metadata = json.dumps({"genre": "drama", "year": 2001})
    first = ("--observations", folder / "first.csv", "--row", "user", "--value", "stars")
    added = run("add", model, "Dune, 3", "--metadata", metadata, *first)
    assert added.returncode == 0, added.stderr
    assert "added 'Dune, 3' (rating:1:5) with 2 observations" in added.stdout

    said = folder / "said.csv"
    predicted = run(
        "predict", model, "--rows", "u1,u2", "--features", "Dune, 3", "--features", "f1", "--out", said
    )
    assert predicted.returncode == 0, predicted.stderr
    lines = list(csv.DictReader(said.open()))
    assert [(line["row"], line["feature"]) for line in lines] == [
        ("u1", "Dune, 3"), ("u1", "f1"), ("u2", "Dune, 3"), ("u2", "f1"),
    ]  # fmt: skip
    held = Headstart.load(model).predict(["u1", "u2"], ["Dune, 3", "f1"])
    np.testing.assert_allclose([float(line["mean"]) for line in lines], held.mean.ravel())

    (folder / "new.csv").write_text("user,film,stars\nx,f1,5\nx,f2,4\ny,f1,1\n")
    everything = run(
        "predict", model, "--new-rows", folder / "new.csv", *COLUMNS, "--out", folder / "said.parquet"
    )
    assert everything.returncode == 0, everything.stderr
    assert len(pq.read_table(folder / "said.parquet")) == 2 * 25

    shown = run("predict", model, "--rows", "u1", "--features", "f1")
    assert "90% interval" in shown.stdout
    info = run("info", model)
    assert "25: 16 in the backbone, 9 by the adapter" in info.stdout
    assert "genre: category, year: number" in info.stdout


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "m.headstart"
    able().save(path)
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "{f}/nowhere.csv", "--out", "{f}/x"], "there is no file"),
        (["fit", "{f}/ratings.csv", "--out", "{f}/x"], "row"),
        (["fit", "{f}/ratings.csv", *COLUMNS, "--out", "{f}/x", "--backbone", "pvea"], "did you mean 'pvae'"),
        (["fit", "{f}/ratings.csv", *COLUMNS, "--out", "{f}/x", "--kind", "binary"], "f"),
        (["add", "{m}", "f1"], "already in the model"),
        (["add", "{m}", "new", "--metadata", "{{broken"], "neither a file nor JSON"),
        (["add", "{m}", "new", "--metadata", "[1]"], "must be a JSON object"),
        (["add", "{m}", "new", "--observations", "{f}/first.csv"], "row"),
        (["add", "{f}/nowhere", "new"], "no such folder"),
        (["predict", "{m}", "--rows", "nobody"], "unknown row 'nobody'"),
        (["predict", "{m}", "--rows", "u1", "--new-rows", "{f}/first.csv"], "either --rows or --new-rows"),
        (["predict", "{m}", "--rows", "u1", "--out", "{f}/x.xls"], "must end in .csv or .parquet"),
        (["predict", "{m}", "--rows", "u1", "--level", "7"], "between 0 and 1"),
        (["info", "{f}"], "no model.json"),
    ],
)
def test_errors_are_one_clear_line(folder: Path, saved: Path, arguments: list[str], message: str) -> None:
    before = sorted(path.name for path in folder.iterdir())
    done = run(*(argument.format(f=folder, m=saved) for argument in arguments))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == before


def test_debug_shows_the_traceback(folder: Path) -> None:
    done = run("--debug", "info", folder)
    assert done.returncode != 0
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("command", ["fit", "add", "predict", "info", "benchmark", "demo", "fetch", "reproduce"])
def test_help_teaches_with_an_example(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"headstart {command}" in " ".join(done.stdout.split())
    assert "Example" in done.stdout
