"""``headstart predict --engine``: what the command line makes of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.scoring.conftest import contents
from tests.test_cli import run

from headstart.scoring import score


def test_the_command_writes_what_the_function_writes(saved: Path, tmp_path: Path, cells: pa.Table) -> None:
    pyarrow.csv.write_csv(cells.rename_columns(["user", "film"]), tmp_path / "cells.csv")
    score(saved, tmp_path / "a", pairs=cells, partition_size=200, quiet=True)
    columns = ("--row", "user", "--feature", "film", "--partition-size", 200)
    asked = ("predict", saved, "--engine", "local", "--pairs", tmp_path / "cells.csv", *columns)
    done = run(*asked, "--out", tmp_path / "b")
    assert done.stdout.replace("\n", "") == f"wrote 500 predictions in 3 files to {tmp_path / 'b'}"
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    again = run(*asked, "--out", tmp_path / "b")
    assert "(3 of them from an earlier run)" in again.stdout.replace("\n", " ")
    assert run(*asked, "--out", tmp_path / "b", "--quiet").stdout == ""


def test_rows_are_names_or_a_table(saved: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": ["u2", "u1"]}), tmp_path / "rows.parquet")
    (tmp_path / "rows.txt").write_text("u2\nu1\n")
    top = ("--engine", "local", "--top", 3, "--features", "f1,f2,f3", "--include-observed", "--by", "upper")
    for out, rows in (("a", "u2,u1"), ("b", tmp_path / "rows.parquet"), ("c", tmp_path / "rows.txt")):
        done = run("predict", saved, *top, "--rows", rows, "--out", tmp_path / out)
        assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == contents(tmp_path / "c")
    assert pq.read_table(tmp_path / "a")["row"].to_pylist() == ["u2"] * 3 + ["u1"] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--top", 3), "--top needs --engine local or --engine ray"),
        (("--mixed-kinds",), "--mixed-kinds needs --engine"),
        (("--engine", "local"), "name it with --out"),
        (("--engine", "local", "--out", "x", "--format", "csv"), "--engine takes no --format"),
        (("--engine", "local", "--out", "x", "--new-rows", "y"), "--engine takes no --new-rows"),
        (("--engine", "local", "--out", "x", "--decimal", ","), "--decimal has no meaning"),
        (("--engine", "local", "--out", "x", "--workers", 2), "--workers is for --engine ray"),
        (("--engine", "dask", "--out", "x"), "--engine must be 'local' or 'ray'; got 'dask'"),
        (("--engine", "local", "--out", "x", "--pairs", "no.csv"), "there is no file no.csv"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    saved: Path, tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    done = run("predict", saved, *options, cwd=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr.replace("\n", " ")
    assert not [*tmp_path.iterdir()]
