"""Codes for missing values: a code that is named is not observed, and one that is not is asked about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.test_cli import run

from headstart import Headstart, InputError, Table
from headstart.table.missing_values import find_codes

NAN = float("nan")
SIX = [1, 2, 3, 4, 5, 6] * 10


def long_form(values: list[Any]) -> pa.Table:
    rows, features = [f"r{i}" for i in range(len(values))], [f"f{i % 5}" for i in range(len(values))]
    return pa.table({"row": rows, "feature": features, "value": values})


def survey(**columns: Any) -> pa.Table:
    """Return a wide table of 100 rows: an age, and answers from 1 to 5."""
    random = np.random.default_rng(0)
    answers = {f"q{i}": random.integers(1, 6, 100).tolist() for i in range(3)}
    return pa.table(
        {"row": [f"r{i}" for i in range(100)], "age": random.integers(18, 90, 100), **answers, **columns}
    )


@pytest.mark.parametrize("codes", [[-9], [99], [999], [-1], [50], [97, 98, 99], [-99, -98]])
def test_a_value_far_from_a_small_grid_is_asked_about(codes: list[int]) -> None:
    frame = long_form(SIX + codes * 2)
    with pytest.raises(InputError) as asked:
        Table.read(frame)
    for part in (f"{codes[0]}", f"({2 * len(codes)} in the table)", f"missing={codes}", "kinds='real'"):
        assert part in str(asked.value)
    assert Table.read(frame, missing=codes).kinds.summary() == "5 rating:1:6"
    low, high = min(1, *codes), max(6, *codes)
    assert Table.read(frame, kinds=f"rating:{low}:{high}").kinds.summary() == f"5 rating:{low}:{high}"
    with pytest.raises(InputError, match="may be a code"):
        Table.read(frame, kinds="rating")


CONTINUED = [[0, 1] * 20 + [2], [0, 1] * 20 + [-1], [*SIX, 7, 8], [*SIX, 0], [1, 2, 50], [1.5, 2.25, 99],
             [-2, -1, 0, 1, 2] * 9]  # fmt: skip


@pytest.mark.parametrize("values", CONTINUED)
def test_values_that_continue_a_grid_are_read(values: list[float]) -> None:
    assert len(Table.read(long_form(values))) == len(values)


def test_a_code_in_one_column_of_many() -> None:
    answers = [99 if i % 10 == 0 else 1 + i % 5 for i in range(100)]
    with pytest.raises(
        InputError, match=r"^feature 'income': the value 99 \(10 in the table\).*missing=\[99\]"
    ):
        Table.read(survey(income=answers))
    table = Table.read(survey(income=answers), missing=[99])
    assert table.counts[table.features.position("income")] == 90
    counts = np.random.default_rng(1).poisson(0.5, (100, 30))  # counts have far values, too
    counts[0] = np.arange(30)
    read = Table.read(survey(**{f"c{j}": counts[:, j].tolist() for j in range(30)}))
    assert len(read.features) == 34


@pytest.mark.parametrize(
    "given", [[-9, "refused"], ["-9", "refused"], ("refused", -9.0), {np.int64(-9), "refused"}]
)
def test_codes_in_frames_and_files(tmp_path: Path, given: Any) -> None:
    values = ["1", "2", "-9", "refused", "3", "4"]
    expected = Table.read(long_form([1, 2, None, None, 3, 4]), kinds="rating:1:4")
    frame = long_form(values)
    mixed = pd.DataFrame({**frame.to_pydict(), "value": [1, 2, -9, "refused", 3, 4]})
    path = tmp_path / "a.csv"
    frame.to_pandas().to_csv(path, index=False)
    pq.write_table(frame, tmp_path / "a.parquet")
    for source in (frame, mixed, path, tmp_path / "a.parquet"):
        table = Table.read(source, missing=given, kinds="rating:1:4")
        assert table == expected
        assert any("values read as missing: -9, 'refused'" in note for note in table.notes)
        with pytest.raises(InputError):
            Table.read(source, kinds="rating:1:4")


def test_a_wide_file(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("row,a,b\nu,1,refused\nv,-9,2\nw,3,-9.0\n")
    assert Table.read(path, missing=["refused", -9], kinds="rating:1:3").values.tolist() == [1, 2, 3]
    with pytest.raises(InputError, match=r"line 2: 'refused' in column 'b' is not a number"):
        Table.read(path, missing=-9)


def test_nan_can_be_a_code() -> None:
    assert len(Table.read(long_form([1.0, 2.0, NAN]), missing=[NAN])) == 2


@pytest.mark.parametrize("given", [True, [None], [[1]], b"x", {"a": 1}, [1j], [""], object()])
def test_what_is_no_code(given: Any) -> None:
    with pytest.raises(InputError, match="missing= takes numbers and texts"):
        Table.read(long_form(SIX), missing=given)


def test_a_value_outside_of_its_kind_mentions_the_codes() -> None:
    with pytest.raises(InputError, match=r"must be from 1 to 6.*if it means 'missing', use missing=\[-9\]"):
        Table.read(long_form([*SIX, -9]), kinds="rating:1:6")


@pytest.mark.parametrize("count", [4, 5, 100])
def test_ones_alone_are_not_taken_for_binary(count: int) -> None:
    with pytest.raises(InputError, match=r"every value is 1.*add the zeros"):
        Table.read(long_form([1] * count))
    table = Table.read(long_form([1] * count), kinds="binary")
    assert any("all values of the binary features are 1" in note for note in table.notes)


def test_a_column_of_ones_beside_others() -> None:
    seen = [1 if i % 2 else None for i in range(100)]
    with pytest.raises(InputError, match=r"every value of 'seen' is 1.*kinds=\{'seen': 'binary'\}"):
        Table.read(survey(seen=seen))
    assert len(Table.read(survey(seen=seen), kinds={"seen": "binary"}).features) == 5


def test_the_slow_version_agrees() -> None:
    """A value is far if it is farther from the others than their range and three steps, or twice that."""
    random = np.random.default_rng(0)
    for _ in range(500):
        main = np.arange(random.integers(2, 7)) + random.integers(0, 3)
        code = float(main.max() + random.integers(1, 16))
        values = np.append(main, code).astype(float)
        distance = min(abs(code - value) for value in main)
        factor = 1 if code in (7, 8, 9) else 2
        expected = [code] if distance >= factor * max(np.ptp(main), 3) else []
        assert find_codes(values, np.full(len(values), 20)).tolist() == expected


def test_observe_and_fit_take_codes(tmp_path: Path) -> None:
    frame = long_form(SIX + [-9] * 3)
    model = Headstart(adapter="bayes", quiet=True).fit(frame, missing=-9)
    more = pa.table({"row": ["r0", "r1"], "feature": ["f1", "f1"], "value": [-9, 3]})
    assert model.observe(more, missing=[-9]).rows == ("r1",)
    with pytest.raises(InputError, match="leave missing values out of a list"):
        model.observe([("r0", "f1", 3)] * 2, missing=[-9])


def test_commands_take_codes(tmp_path: Path) -> None:
    frame = long_form([*(str(value) for value in SIX), "-9", "refused"])
    frame.to_pandas().to_csv(tmp_path / "a.csv", index=False)
    fit = ["fit", "a.csv", "--out", "m", "--adapter", "bayes", "--quiet"]
    asked = run(*fit, "--missing", "refused", cwd=tmp_path)
    assert asked.returncode == 1
    assert "use --missing -9, or, if it is a value, give its kind, as --kind rating:-9:6" in asked.stderr
    assert run(*fit, "--missing", "-9,refused", cwd=tmp_path).returncode == 0
    (tmp_path / "new.csv").write_text("row,feature,value\nr0,f1,-9\nr1,f1,3\n")
    (tmp_path / "first.csv").write_text("row,value\nr0,refused\nr1,3\nr2,-9\n")
    refused = run("observe", "m", "new.csv", cwd=tmp_path)
    assert "if it means 'missing', use --missing -9" in refused.stderr
    assert run("observe", "m", "new.csv", "--missing", "-9", cwd=tmp_path).returncode == 0
    added = run("add-feature", "m", "x", "--observations", "first.csv", "--missing", "refused", "--missing",
                "-9", cwd=tmp_path)  # fmt: skip
    assert "with 1 observation" in added.stdout
    assert json.loads(run("features", "m", "--search", "x", "--format", "json", cwd=tmp_path).stdout)


def test_labels_are_no_ones() -> None:
    table = Table.read(long_form(["A", "B", "C", "A", "B"] * 4), kinds="category")
    assert not any("are 1" in note for note in table.notes)
