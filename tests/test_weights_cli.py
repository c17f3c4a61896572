"""Weights and addresses on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

from headstart.model import Headstart
from tests.model.conftest import CLOSED
from tests.model.test_weights import weighted_frame
from tests.test_cli import run

KIND = ("--kind", "rating:1:5", "--adapter", "bayes", "--quiet")


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    pa_csv.write_csv(weighted_frame(), tmp_path / "ratings.csv")
    return tmp_path / "ratings.csv"


def test_a_column_of_weights_is_fitted_observed_and_exported(ratings: Path, tmp_path: Path) -> None:
    saved = tmp_path / "m"
    done = run("fit", ratings, "--weight", "w", *KIND, "--out", saved)
    assert done.returncode == 0, done.stderr
    expected = Headstart(**CLOSED).fit(ratings, weight="w", kinds="rating:1:5")
    np.testing.assert_allclose(Headstart.load(saved).predict().mean, expected.predict().mean, rtol=1e-6)
    pa_csv.write_csv(
        pa.table({"row": ["u1"], "feature": ["f1"], "value": [5], "w": [3.0]}), tmp_path / "new.csv"
    )
    assert run("observe", saved, tmp_path / "new.csv", "--weight", "w", "--quiet").returncode == 0
    pa_csv.write_csv(pa.table({"row": ["u2"], "value": [4]}), tmp_path / "one.csv")
    done = run("observe-feature", saved, "f1", tmp_path / "one.csv", "--weight", 0.5, "--quiet")
    assert done.returncode == 0, done.stderr
    expected.observe([("u1", "f1", 5)], weight=3)
    expected.observe_feature("f1", {"u2": 4}, weight=0.5)
    np.testing.assert_allclose(Headstart.load(saved).predict().mean, expected.predict().mean, rtol=1e-6)
    assert run("export", saved, "--out", tmp_path / "all.csv", "--quiet").returncode == 0
    lines = pa_csv.read_csv(tmp_path / "all.csv").to_pandas().set_index(["row", "feature"])
    assert (lines.loc[("u1", "f1"), "weight"], lines.loc[("u2", "f1"), "weight"]) == (3.0, 0.5)


def test_bad_weights_are_an_error_and_nothing_is_written(ratings: Path, tmp_path: Path) -> None:
    text = ratings.read_text().splitlines()
    ratings.write_text("\n".join([text[0], text[1].rsplit(",", 1)[0] + ",0", *text[2:]]) + "\n")
    done = run("fit", ratings, "--weight", "w", *KIND, "--out", tmp_path / "m")
    assert done.returncode != 0
    assert "weights must be numbers above 0" in " ".join(done.stderr.split())
    assert not (tmp_path / "m").exists()


def test_a_file_at_an_address_is_fitted(ratings: Path, tmp_path: Path) -> None:
    done = run("fit", ratings.as_uri(), *KIND, "--out", tmp_path / "m")
    assert done.returncode == 0, done.stderr
    done = run("fit", "file:///nowhere/t.csv", *KIND, "--out", tmp_path / "n")
    assert done.returncode != 0
    assert "there is no file file:///nowhere/t.csv" in " ".join(done.stderr.split())
