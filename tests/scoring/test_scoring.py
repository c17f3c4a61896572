"""Scoring in partitions gives what the model itself predicts, goes on after a stop, and refuses a mixture."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.limits import Limits
from tests.model.conftest import able
from tests.scoring.conftest import contents

from headstart import BusyError, Headstart, InputError, ModelFileError, UnknownNameError
from headstart import scoring as folder
from headstart.files import lock_folder
from headstart.scoring import Scorer, score

NUMBERS = ("mean", "std", "low", "high")


def read(path: Path) -> pa.Table:
    table = pq.read_table(path)
    return table.cast(
        pa.schema([f.with_type(pa.string()) if f.name in ("row", "feature") else f for f in table.schema])
    )


def test_all_cells_are_those_of_predict_whatever_the_partitions(saved: Path, tmp_path: Path) -> None:
    expected = able().predict().to_arrow()
    for size in (7, 200, 1000):
        done = score(saved, tmp_path / str(size), partition_size=size, quiet=True)
        found = read(tmp_path / str(size))
        assert (done.lines, done.partitions, done.found) == (len(expected), -(-200 // size), 0)
        assert found.column_names == expected.column_names
        for name in ("row", "feature"):
            assert found[name].to_pylist() == expected[name].to_pylist()
        for name in NUMBERS:
            assert np.array_equal(found[name], expected[name])


def test_many_features_are_predicted_some_at_a_time(saved: Path, tmp_path: Path, limits: Limits) -> None:
    score(saved, tmp_path / "whole", partition_size=50, quiet=True)
    limits(scored_features_per_block=7)
    score(saved, tmp_path / "parts", partition_size=50, quiet=True)
    assert contents(tmp_path / "whole") == contents(tmp_path / "parts")


def test_cells_keep_their_order_and_are_those_of_predict(
    saved: Path, tmp_path: Path, cells: pa.Table
) -> None:
    score(saved, tmp_path / "out", pairs=cells, partition_size=99, level=0.5, quiet=True)
    found, every = read(tmp_path / "out"), able().predict()
    low, high = every.interval(0.5)
    at = (
        every.rows.positions(cells["row"].to_pylist()),
        every.features.positions(cells["feature"].to_pylist()),
    )
    assert found.select(["row", "feature"]).to_pydict() == cells.to_pydict()
    for name, expected in zip(NUMBERS, (every.mean, every.std, low, high), strict=True):
        assert np.allclose(found[name], expected[at], rtol=1e-6, atol=0)


def test_the_best_features_are_those_of_recommend(saved: Path, tmp_path: Path) -> None:
    model, names = able(), [f"f{j}" for j in range(0, 60, 2)]
    settings: dict[str, Any] = {"features": names, "by": "upper", "quantile": 0.8, "level": 0.8}
    score(saved, tmp_path / "out", top=4, partition_size=64, quiet=True, **settings)
    found = read(tmp_path / "out").to_pylist()
    expected = model.recommend_many(list(model.rows), 4, **settings)
    assert len(found) == sum(map(len, expected.values()))
    lines = iter(found)
    for row, ranking in expected.items():
        for place, each in enumerate(ranking, start=1):
            line = next(lines)
            assert (line["row"], line["place"], line["feature"]) == (row, place, each.name)
            assert line["score"] == each.score
            numbers = [line["mean"], line["low"], line["high"]]
            assert np.allclose(numbers, [each.mean, each.low, each.high], rtol=1e-6, atol=0)


def test_records_of_all_forms_are_read_alike(saved: Path, tmp_path: Path, cells: pa.Table) -> None:
    renamed = cells.rename_columns(["user", "film"]).append_column("stars", pa.nulls(len(cells)))
    pyarrow.csv.write_csv(renamed.select(["user", "film"]), tmp_path / "cells.csv")
    pq.write_table(renamed, tmp_path / "cells.parquet", row_group_size=70)
    (tmp_path / "cells").mkdir()
    pq.write_table(renamed.slice(0, 300), tmp_path / "cells" / "a.parquet", row_group_size=41)
    pq.write_table(renamed.slice(300), tmp_path / "cells" / "b.parquet")
    forms = {"csv": "cells.csv", "file": "cells.parquet", "folder": "cells"}
    columns: dict[str, Any] = {"row": "user", "feature": "film", "partition_size": 60, "quiet": True}
    for name, path in forms.items():
        score(saved, tmp_path / "out" / name, pairs=tmp_path / path, **columns)
    score(saved, tmp_path / "out" / "frame", pairs=renamed.to_pandas(), **columns)
    found = {name: read(tmp_path / "out" / name) for name in (*forms, "frame")}
    assert all(each.equals(found["csv"]) for each in found.values())
    assert len(contents(tmp_path / "out" / "folder")) == 5 + 4  # no partition spans two files
    for name in found:  # copies are removed
        others = [each.name for each in (tmp_path / "out" / name).iterdir() if each.suffix != ".parquet"]
        assert others == [folder.MANIFEST]
        assert not (tmp_path / "out" / name / folder.COPY).exists()


def test_rows_may_be_a_list_or_a_file(saved: Path, tmp_path: Path) -> None:
    names = [f"u{i}" for i in (5, 3, 5, 199)]
    pq.write_table(pa.table({"row": names, "age": [1, 2, 3, 4]}), tmp_path / "rows.parquet")
    for out, rows in (("list", names), ("file", tmp_path / "rows.parquet"), ("array", np.array(names))):
        score(saved, tmp_path / out, rows=rows, features=["f3", "f1"], partition_size=3, quiet=True)
    found = read(tmp_path / "list")
    assert found["row"].to_pylist() == [name for name in names for _ in range(2)]
    assert found["feature"].to_pylist() == ["f3", "f1"] * 4
    assert contents(tmp_path / "list") == contents(tmp_path / "file") == contents(tmp_path / "array")


def test_an_interrupted_run_goes_on_with_what_is_missing(
    saved: Path, tmp_path: Path, cells: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    score(saved, tmp_path / "whole", pairs=cells, partition_size=100, quiet=True)
    write, written = folder.ScoringFolder.write, []

    def stopping(self: folder.ScoringFolder, number: int, predictions: pa.Table) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(number)
        write(self, number, predictions)

    with monkeypatch.context() as patch:
        patch.setattr(folder.ScoringFolder, "write", stopping)
        with pytest.raises(KeyboardInterrupt):
            score(saved, tmp_path / "out", pairs=cells, partition_size=100, quiet=True)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert len(before) == 2
    (tmp_path / "out" / ".part-000003.parquet.abcd1234.partial").write_bytes(b"cut off")
    done = score(saved, tmp_path / "out", pairs=cells, partition_size=100, quiet=True)
    assert (done.partitions, done.found, done.lines) == (5, 2, 500)
    assert "2 of them from an earlier run" in str(done)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not [each for each in (tmp_path / "out").iterdir() if each.name.startswith(".")]
    assert score(saved, tmp_path / "out", pairs=cells, partition_size=100, quiet=True).found == 5


def test_a_killed_run_goes_on(saved: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from headstart.scoring import score; score(*sys.argv[1:], partition_size=4, quiet=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(saved), str(tmp_path / "out")])
    while len([*tmp_path.glob("out/part-*")]) < 5:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    done = score(saved, tmp_path / "out", partition_size=4, quiet=True)
    score(saved, tmp_path / "whole", partition_size=4, quiet=True)
    assert 5 <= done.found < done.partitions == 50
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not [each for each in (tmp_path / "out").iterdir() if each.name.startswith(".")]


def test_a_file_that_is_cut_short_is_written_again(saved: Path, tmp_path: Path) -> None:
    score(saved, tmp_path / "out", top=2, partition_size=50, quiet=True)
    before = contents(tmp_path / "out")
    (tmp_path / "out" / "part-000002.parquet").write_bytes(before["part-000002.parquet"][:100])
    (tmp_path / "out" / "part-000001.parquet").unlink()
    assert score(saved, tmp_path / "out", top=2, partition_size=50, quiet=True).found == 2
    assert contents(tmp_path / "out") == before


def test_the_model_is_opened_once(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, calls = Headstart.load, []
    monkeypatch.setattr(Headstart, "load", lambda *a, **k: (calls.append(k), load(*a, **k))[1])
    score(saved, tmp_path / "out", partition_size=10, quiet=True)
    assert calls == [{}, {"verify": False}]  # all of it is verified before, and then mapped


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top": 3}, "another question: top was 2 and is 3; name another folder, or remove this one"),
        ({"level": 0.8}, "another question: level was 0.9 and is 0.8"),
        ({"features": ["f1", "f2", "f3"]}, "other features"),
        ({"partition_size": 51}, "another partition size"),
        ({"rows": ["u1"]}, "other records"),
    ],
)
def test_another_run_is_not_mixed_in(
    saved: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    settings: dict[str, Any] = {"top": 2, "partition_size": 50, "quiet": True}
    score(saved, tmp_path / "out", **settings)
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(InputError, match=message):
        score(saved, tmp_path / "out", **{**settings, **change})
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_another_model_or_other_records_are_refused(saved: Path, tmp_path: Path, cells: pa.Table) -> None:
    place, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(saved, place)
    pq.write_table(cells, tmp_path / "cells.parquet")
    score(place, out, pairs=tmp_path / "cells.parquet", quiet=True)
    score(saved, out, pairs=tmp_path / "cells.parquet", quiet=True)  # a copy is the same model
    pq.write_table(cells.take(np.arange(len(cells))[::-1]), tmp_path / "cells.parquet")
    with pytest.raises(InputError, match="holds predictions of other records"):
        score(place, out, pairs=tmp_path / "cells.parquet", quiet=True)
    pq.write_table(cells, tmp_path / "cells.parquet")
    with Headstart.updating(place) as model:
        model.observe_feature("f1", {"u0": 4})
    with pytest.raises(InputError, match="holds predictions of another model"):
        score(place, out, pairs=tmp_path / "cells.parquet", quiet=True)


def test_a_model_that_changes_meanwhile_is_refused(saved: Path, tmp_path: Path) -> None:
    question = Scorer(saved).question
    with pytest.raises(ModelFileError, match="has changed since scoring began"):
        Scorer.checked(saved, question, "of another one")


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"engine": "rai"}, InputError, "engine= must be 'local' or 'ray'; got 'rai'; did you mean 'ray'"),
        ({"workers": 2}, InputError, "workers= is for engine='ray'"),
        ({"top": 0}, InputError, "top= takes a whole number n from 1 up; got 0"),
        ({"partition_size": 0}, InputError, "partition_size= takes a whole number"),
        ({"level": 1}, InputError, "level must lie between 0 and 1; got 1"),
        ({"by": "means"}, InputError, "did you mean 'mean'"),
        ({"features": ["f99"]}, UnknownNameError, "unknown feature 'f99'; did you mean 'f9'"),
        ({"features": []}, InputError, "features= gives no name"),
        ({"rows": ["u1", "u1000"]}, UnknownNameError, "rows=: unknown row 'u1000'"),
        ({"rows": ["u1", None]}, InputError, "None cannot be a row"),
        ({"rows": []}, InputError, "rows= has no records"),
        ({"rows": "nowhere.parquet"}, InputError, "there is no file nowhere.parquet"),
        ({"rows": ["u1"], "pairs": ["u1"]}, InputError, "give either pairs= or rows="),
        ({"pairs": ["u1"]}, InputError, "pairs= takes a file, a folder or a frame with the columns 'row'"),
        ({"pairs": pa.table({"row": ["u1"]})}, UnknownNameError, "has no column 'feature'"),
        (
            {"pairs": pa.table({"row": ["u1"], "feature": ["f1"]}), "top": 2},
            InputError,
            "top= has no meaning",
        ),
        (
            {"pairs": pa.table({"row": ["u1", None], "feature": ["f1", "f1"]})},
            InputError,
            "the frame, record 2: the name of the row is missing",
        ),
        (
            {"pairs": pa.table({"row": ["u1", "u2"], "feature": ["f1", "f100"]})},
            UnknownNameError,
            "the frame: unknown feature 'f100'",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused(
    saved: Path, tmp_path: Path, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message.replace("(", r"\(")):
        score(saved, tmp_path / "out", quiet=True, **settings)
    assert not [*tmp_path.glob("out/part-*")]


def test_places_that_cannot_be_used_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes the folder of a saved model; got Headstart"):
        score(able(), tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(ModelFileError, match="is not a saved model"):
        score(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; name a folder"):
        score(saved, tmp_path / "file")
    with pytest.raises(InputError, match="holds other files, such as 'file'"):
        score(saved, tmp_path)
    (tmp_path / "out").mkdir()
    with lock_folder(tmp_path / "out"), pytest.raises(BusyError):
        score(saved, tmp_path / "out")


def test_a_scorer_maps_tables(saved: Path, cells: pa.Table) -> None:
    scorer, expected = Scorer(saved), able().predict(["u7"], ["f3"])
    found = scorer(pa.table({"row": ["u7"], "feature": ["f3"]}))
    assert (found["mean"][0].as_py(), found["std"][0].as_py()) == expected["u7", "f3"]
    chunked = pa.concat_tables([cells.slice(0, 100), cells.slice(100)])
    coded = pa.table({name: chunked[name].dictionary_encode() for name in cells.column_names})
    assert scorer(chunked).equals(scorer(coded))
    assert len(scorer(cells.slice(0, 0))) == 0
    assert len(Scorer(saved, top=3)(cells)) == 1500
    assert len(Scorer(saved, top=3)(cells.slice(0, 0))) == 0
    with pytest.raises(InputError, match="have no column 'row'"):
        scorer(cells.select(["feature"]))
