"""Values of any type at any place: a clear error or a correct result, never a raw exception or a wait."""

from __future__ import annotations

import datetime
import os
import random
import time
import uuid
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from headstart import Headstart, InputError, Table
from headstart.errors import reads_input
from headstart.table.metadata import MetadataSchema
from tests.faults.corruption_round import damaged
from tests.faults.input_round import (
    failing_lazy,
    file_round,
    frame_with,
    long_frame,
    python_round,
    request_round,
)
from tests.faults.test_bad_input import made_up_table
from tests.test_cli import run

UNCLEAR = ("raw", "silent", "hang", "changed")


@pytest.fixture(scope="module")
def model() -> Headstart:
    return Headstart(adapter="bayes", quiet=True).fit(made_up_table())


def test_a_sample_of_the_corruptions() -> None:
    """40 of the cases of ``python -m tests.faults.corruption_round``."""
    cases = list(damaged(random.Random(7), 40))
    assert [case for case in cases if case[1] not in ("clear", "same", "other")] == []
    assert Counter(outcome for _, outcome, _ in cases)["clear"] > 10


def test_a_sample_of_the_round(model: Headstart) -> None:
    """``python -m tests.faults.input_round`` tries more."""
    lines = [
        *python_round(random.Random(7), 300, model),
        *file_round(random.Random(7), 60),
        *request_round(random.Random(7), 60, model),
    ]
    assert [line for line in lines if line[2] in UNCLEAR] == []
    assert sum(line[2] == "clear" for line in lines) > 300


@pytest.mark.parametrize(
    "value", [None, uuid.UUID(int=1), datetime.date(2024, 1, 1), pd.NaT, np.datetime64("2024"), object(), 3j]
)
def test_what_is_neither_a_name_nor_a_list(model: Headstart, value: Any) -> None:
    for call in (model.recommend, model.recommend_many, model.feature, model.row, model.similar):
        with pytest.raises(InputError):
            call(value)
    if value is not None:
        for call in (lambda: model.predict(value), lambda: model.predict(["u1"], value)):
            with pytest.raises(InputError):
                call()


@pytest.mark.parametrize(
    "frame",
    [
        failing_lazy,
        lambda: pl.LazyFrame({"row": ["u1"]}).select("nothing"),
        lambda: pl.DataFrame({"row": [["u1"]], "feature": ["f1"], "value": [1]}),
        lambda: pl.DataFrame({"row": [{"a": 1}], "feature": ["f1"], "value": [1]}),
        lambda: pd.DataFrame(
            {"value": [1.0]}, index=pd.MultiIndex.from_tuples([("u1", "f1")], names=["row", "row"])
        ),
        lambda: pd.DataFrame({"row": ["u1"], "feature": ["f1"], "value": [pd.Timestamp.max]}),
        lambda: pd.DataFrame({"row": [pd.Timestamp("2024-01-01 00:00:00.000000001")], "x": [1]}),
    ],
)
def test_frames_that_cannot_be_read(model: Headstart, frame: Any) -> None:
    for call in (
        lambda: Table.read(frame()),
        lambda: model.observe(frame()),
        lambda: model.add_rows(frame()),
    ):
        with pytest.raises(InputError) as refused:
            call()
        assert "\n" not in str(refused.value)


def test_times_of_any_precision() -> None:
    when = pd.to_datetime(["2024-05-01 00:00:00.123456789"] * 6)
    table = Table.read(long_frame().assign(when=when), time="when")
    np.testing.assert_allclose(table.times, when[0].timestamp(), atol=1e-5)
    far = pa.array([2**62] * 6, pa.timestamp("s"))
    data = pa.Table.from_pandas(long_frame()).append_column("when", far)
    with pytest.raises(InputError):
        Table.read(data, time="when")


@pytest.mark.filterwarnings("ignore:Casting complex values")  # of numpy, before the error
def test_objects_that_arrow_would_convert() -> None:
    for column, value in (("when", uuid.UUID(int=5)), ("value", np.complex64(3 + 2j)), ("value", 3 + 2j)):
        with pytest.raises(InputError, match=column):
            Table.read(frame_with(column, value), time="when")
    assert len(Table.read(frame_with("value", np.float32(2)), time="when")) == 6
    assert len(Table.read(frame_with("value", None), time="when")) == 5


@pytest.mark.parametrize("column", ["row", "feature", "value"])
def test_the_time_is_a_column_of_its_own(column: str) -> None:
    with pytest.raises(InputError, match=f"time='{column}' names the column of the {column}"):
        Table.read(long_frame(), time=column)


def test_pipes_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    long_frame().to_csv(tmp_path / "a.csv", index=False)
    for arguments in ({}, {"metadata": tmp_path / "pipe.csv"}):
        with pytest.raises(InputError, match="is neither a file nor a folder, but a pipe"):
            Table.read(tmp_path / ("a.csv" if arguments else "pipe.csv"), **arguments)
    refused = run("fit", "pipe.csv", "--out", "m", cwd=tmp_path)
    assert refused.stderr.startswith("error: pipe.csv is neither a file nor a folder")


def test_a_header_of_any_length(tmp_path: Path) -> None:
    names = [f"a feature with a rather long name {j}" for j in range(6000)]
    lines = [",".join(["row", *names]), *(",".join([f"u{i}", *[str(1 + i % 5)] * 6000]) for i in range(5))]
    (tmp_path / "wide.csv").write_text("\n".join(lines))
    assert len(lines[0]) > 131_072
    assert Table.read(tmp_path / "wide.csv").shape == (5, 6000)


def test_thousands_of_metadata_columns_are_quick() -> None:
    random_numbers = np.random.default_rng(0)
    films = pa.table({f"c{j}": random_numbers.normal(size=50) for j in range(3000)})
    start = time.process_time()
    schema = MetadataSchema.fit(films)
    assert schema.encode_table(films).shape == (50, 3000)
    assert time.process_time() - start < 10


def test_the_guard_converts_nothing_else(model: Headstart) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'rwos'"):
        model.predict(rwos=["u1"])

    class Broken(Headstart):
        def predict(self, *_: Any) -> Any:
            return {}["a bug"]

    with pytest.raises(KeyError):
        Broken().predict()

    @reads_input
    def compute() -> None:
        raise FloatingPointError

    with pytest.raises(FloatingPointError):  # not in a module that reads input
        compute()


@pytest.mark.parametrize("seed", ["3", b"3", True, None, 2.5, -1, 2**63, np.array(3), torch.tensor(3), [3]])
def test_seeds_that_are_no_whole_numbers(model: Headstart, seed: Any) -> None:
    for call in (
        lambda: Headstart(random_state=seed).checked_settings(),
        lambda: model.sample(["u1"], ["f1"], random_state=seed),
        lambda: model.impute(2, random_state=seed),
        lambda: model.recommend("u1", by="sample", random_state=seed),
        lambda: model.evaluate(made_up_table(), random_state=seed),
    ):
        with pytest.raises(InputError, match=r"number|integer|greater|less"):
            call()


BAD_FILTERS = [5, "genre", [], {"nothing": 1}, {5: 5}, {"genre": None}, {"genre": []}, {"genre": object()}]


@pytest.mark.parametrize("where", BAD_FILTERS)
def test_filters_that_cannot_match(model: Headstart, where: Any) -> None:
    for call in (lambda: model.recommend("u1", where=where), lambda: model.audience("f1", where=where)):
        with pytest.raises(InputError, match="where="):
            call()


@pytest.mark.parametrize("value", ["no", None, 2, []])
def test_options_that_are_neither_true_nor_false(model: Headstart, value: Any) -> None:
    for call in (
        lambda: model.recommend("u1", exclude_observed=value),
        lambda: model.recommend("u1", mixed_kinds=value),
        lambda: model.audience("f1", exclude_observed=value),
    ):
        with pytest.raises(InputError, match="must be True or False"):
            call()


def test_a_filter_finds_whole_numbers_whatever_their_type() -> None:
    """A column with a missing year is one of floats in pandas."""
    data = pd.DataFrame(
        {"row": list("abc") * 4, "feature": ["f1", "f2", "f3", "f4"] * 3, "value": [1, 2, 3] * 4}
    )
    films = pd.DataFrame({"feature": ["f1", "f2", "f3", "f4"], "year": [1990, None, 1980, 1970]})
    table = Table.read(data, metadata=films, kinds="real", quiet=True)
    model = Headstart(adapter="bayes", quiet=True).fit(table)
    for year in (1990, 1990.0, "1990", [1990, 1991], np.int64(1990)):
        ranking = model.recommend("a", where={"year": year}, exclude_observed=False)
        assert list(ranking.names) == ["f1"]


def test_no_rows_and_estimates_of_imputations(model: Headstart) -> None:
    assert model.sample(rows={}, features=["f1"]).shape == (1, 0, 1)
    imputed = model.impute(2)
    for estimate in (None, "mean", lambda _: 1, lambda _: ("a", "b"), lambda _: (1, 2, 3)):
        with pytest.raises(InputError, match=r"pool\(\)"):
            imputed.pool(estimate)


def test_a_workbook_that_unpacks_to_more_than_the_memory_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    long_frame().to_excel(tmp_path / "a.xlsx", index=False)
    assert len(Table.read(tmp_path / "a.xlsx")) == 6
    with (
        zipfile.ZipFile(tmp_path / "a.xlsx", "a", zipfile.ZIP_DEFLATED) as parts,
        parts.open("xl/worksheets/sheet2.xml", "w") as part,
    ):
        for _ in range(600):
            part.write(bytes(10**6))
    assert (tmp_path / "a.xlsx").stat().st_size < 10**6
    start = time.monotonic()
    with pytest.raises(InputError, match=r"a\.xlsx has .* MB when it is unpacked"):
        Table.read(tmp_path / "a.xlsx")
    assert time.monotonic() - start < 5


def test_row_metadata_of_other_rows_is_refused() -> None:
    """It would add rows without observations; some such rows are reported."""
    for metadata in (np.zeros((2, 2)), pd.DataFrame({"row": [1, 2], "age": [30, 40]})):
        with pytest.raises(InputError, match="no row of the row metadata has observations: it describes"):
            Table.read(long_frame(), row_metadata=metadata)
    partly = Table.read(long_frame(), row_metadata=pd.DataFrame({"row": ["a", "z"], "age": [30, 40]}))
    assert any("rows with metadata but no observations: 1 ('z')" in note for note in partly.notes)
    array = Table.read(np.eye(3) + 1, row_metadata=np.eye(3), quiet=True)  # both by position
    assert list(array.rows) == ["0", "1", "2"]
