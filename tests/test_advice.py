"""Messages that new users stumbled over say what to do next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from headstart import Headstart, InputError, Table
from headstart.errors import UnknownNameError
from headstart.model.summary import ExpectedError
from tests.faults.test_bad_input import made_up_table
from tests.test_cli import run


@pytest.fixture(scope="module")
def model() -> Headstart:
    return Headstart(adapter="bayes", quiet=True).fit(made_up_table())


def test_unknown_rows(model: Headstart, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown row 'zoe'; .* as \{'u99': \{'Alien': 5\}\}"):
        model.predict(["zoe"])
    model.save(tmp_path / "m")
    (tmp_path / "new.csv").write_text("row,feature,value\nzoe,f1,3\n")
    (tmp_path / "first.csv").write_text("row,value\nzoe,3\n")
    for command, advice in {
        ("predict", "m", "--rows", "zoe"): "--new-rows FILE predicts rows from their observations",
        ("observe", "m", "new.csv"): "headstart add-rows adds new ones",
        ("observe-feature", "m", "f1", "first.csv"): "headstart add-rows adds new ones",
        ("add-feature", "m", "x", "--observations", "first.csv"): "headstart add-rows adds new ones",
    }.items():
        assert advice in run(*command, cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("agree", "write answers as numbers, such as 1 to 5 for the steps of a scale"),
        ("C", "write answers as numbers"),
        ("TRUE", "write 1 for true or yes and 0 for false or no"),
        ("refused", "if the text means 'missing', use missing=['refused']"),
    ],
)
def test_texts_in_place_of_numbers(model: Headstart, tmp_path: Path, text: str, advice: str) -> None:
    frame = pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": ["1", text]})
    (tmp_path / "a.csv").write_text(f"row,feature,value\na,x,1\nb,y,{text}\n")
    for source in (frame, tmp_path / "a.csv"):
        with pytest.raises(InputError) as refused:
            Table.read(source)
        assert advice in str(refused.value)
    with pytest.raises(InputError, match="write "):
        model.observe([("u1", "f1", text)])


def test_metadata_from_a_table(model: Headstart, tmp_path: Path) -> None:
    model.save(tmp_path / "m")
    (tmp_path / "films.csv").write_text("feature,year,genre\nnew,2004,drama\nother,2005,comedy\n")
    (tmp_path / "titles.csv").write_text("film,year\nnewer,2006\n")
    assert run("add-feature", "m", "new", "--metadata", "films.csv", cwd=tmp_path).returncode == 0
    assert run("add-feature", "m", "newer", "--metadata", "titles.csv", cwd=tmp_path).returncode == 0
    loaded = Headstart.load(tmp_path / "m")
    assert loaded.feature("new").metadata == {"year": 2004, "genre": "drama"}
    assert loaded.feature("newer").metadata == {"year": 2006}
    refused = run("add-feature", "m", "third", "--metadata", "films.csv", cwd=tmp_path)
    assert "films.csv has no line of feature 'third' in column 'feature'" in refused.stderr
    (tmp_path / "notes.txt").write_text("nothing")
    refused = run("add-feature", "m", "third", "--metadata", "notes.txt", cwd=tmp_path)
    assert "notes.txt is a file without JSON" in refused.stderr


def test_the_client_without_its_extra() -> None:
    program = (
        "import sys; sys.modules['httpx'] = None; from headstart import Client; Client('http://localhost')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'headstart[service]'" in done.stderr


def test_the_error_of_a_single_feature_has_no_deviation(model: Headstart) -> None:
    from dataclasses import replace

    one = ExpectedError(64, 0.252, 0.0)
    text = str(replace(model.info, errors=(one, ExpectedError(0, 0.5, 0.02))))
    assert "error by shots: 0.252 (64), 0.5 ± 0.02 (0)" in text
    assert "an error without ± comes from a single feature" in text
