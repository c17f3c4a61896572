"""Tables from arrays, sparse matrices, files of other programs, and files at addresses."""

from __future__ import annotations

from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse
from tests.stand_ins import hide_modules

from headstart.errors import InputError, UnknownNameError
from headstart.model import Headstart
from headstart.table import Table

STARS = np.array([[5.0, np.nan, 1.0], [np.nan, np.nan, np.nan], [3.0, 2.0, np.nan]])


def triples(table: Table) -> set[tuple[str, str, float]]:
    lines = zip(table.row_index, table.feature_index, table.values.tolist(), strict=True)
    return {(table.rows[row], table.features[feature], value) for row, feature, value in lines}


# -- arrays and sparse matrices -----------------------------------------------------------------------


def test_an_array_has_numbers_for_names_and_nan_where_nothing_is_observed() -> None:
    table = Table.read(STARS, kinds="rating:1:5")
    assert table.shape == (3, 3)  # also the row without observations
    assert triples(table) == {("0", "0", 5.0), ("0", "2", 1.0), ("2", "0", 3.0), ("2", "1", 2.0)}
    named = Table.read(STARS, row_names=["a", "b", "c"], feature_names=["x", 7, "z"], kinds="rating:1:5")
    assert list(named.rows) == ["a", "b", "c"]
    assert ("c", "7", 2.0) in triples(named)


@pytest.mark.parametrize("make", [sparse.csr_array, sparse.coo_matrix, sparse.csc_matrix, sparse.lil_array])
def test_stored_entries_of_a_sparse_matrix_are_observed(make: type) -> None:
    matrix = make(np.where(np.isnan(STARS), 0, STARS))
    table = Table.read(matrix, kinds="rating:1:5")
    assert table == Table.read(STARS, kinds="rating:1:5")
    stored = sparse.csr_array(([0.0, 4.0], ([0, 1], [1, 0])), shape=(2, 2))
    assert triples(Table.read(stored, kinds="rating:0:5")) == {("0", "1", 0.0), ("1", "0", 4.0)}
    named = Table.read(matrix, row_names=[*"abc"], feature_names=[*"xyz"], kinds="rating:1:5")
    assert list(named.features) == ["x", "y", "z"]


def test_arrays_of_other_types() -> None:
    assert triples(Table.read(np.array([[True, False]]))) == {("0", "0", 1.0), ("0", "1", 0.0)}
    objects = np.array([[1, None], [None, 5]], dtype=object)
    assert triples(Table.read(objects, kinds="rating:1:5")) == {("0", "0", 1.0), ("1", "1", 5.0)}


def test_a_feature_of_an_array_may_be_called_row() -> None:
    table = Table.read(np.array([[1.0, 2.0]]), feature_names=["row", "row 0"], kinds="rating:1:5")
    assert triples(table) == {("0", "row", 1.0), ("0", "row 0", 2.0)}


def test_a_model_is_fitted_to_an_array() -> None:
    random = np.random.default_rng(0)
    values = np.where(random.random((30, 8)) < 0.8, random.normal(size=(30, 8)), np.nan)
    model = Headstart(adapter="bayes", quiet=True).fit(values, kinds="real")
    assert model.predict(rows=["0"], features=["7"]).mean.shape == (1, 1)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (np.zeros(3), {}, "two dimensions"),
        (np.array([["a"]]), {}, "must contain numbers"),
        (np.array([["a"]], dtype=object), {}, "must contain numbers"),
        (np.array([[1.0, np.inf]]), {}, "values must be finite"),
        (np.zeros((2, 2)), {"row_names": ["a"]}, "2 rows, but row_names has 1"),
        (np.zeros((2, 2)), {"feature_names": ["a", " a"]}, "'a' twice"),
        (np.full((2, 2), np.nan), {}, "no observations"),
        (sparse.csr_array((2, 2)), {}, "no observations"),
        (pd.DataFrame({"row": ["a"], "x": [1]}), {"row_names": ["b"]}, "only"),
    ],
)
def test_arrays_that_do_not_fit(data: object, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Table.read(data, **options)


def test_an_array_has_no_other_columns() -> None:
    with pytest.raises(UnknownNameError, match="no column 'w'"):
        Table.read(STARS, weight="w")


# -- frames -------------------------------------------------------------------------------------------


def test_categories_of_numbers_and_booleans() -> None:
    frame = pd.DataFrame(
        {
            "row": pd.Categorical(["a", "b"]),
            "stars": pd.Categorical([5, 3], categories=[1, 2, 3, 4, 5]),
            "seen": pd.array([True, None], dtype="boolean"),
        }
    )
    table = Table.read(frame, kinds={"stars": "rating:1:5", "seen": "binary"})
    assert triples(table) == {("a", "stars", 5.0), ("b", "stars", 3.0), ("a", "seen", 1.0)}


# -- files of other programs --------------------------------------------------------------------------


@pytest.fixture
def survey(tmp_path: Path) -> Path:
    pyreadstat = pytest.importorskip("pyreadstat")
    frame = pd.DataFrame(
        {"id": ["a", "b", "c"], "q1": [1.0, 2.0, 9.0], "q2": [3.0, np.nan, 1.0], "note": ["x", "", "y"]}
    )
    labels = {"q1": {1.0: "agree", 2.0: "disagree", 9.0: "refused"}}
    names = {"id": "respondent", "q1": "I like films", "q2": "I like books", "note": "remark"}
    path = tmp_path / "wave.sav"
    pyreadstat.write_sav(
        frame, path, column_labels=names, variable_value_labels=labels, missing_ranges={"q1": [9.0]}
    )
    pyreadstat.write_dta(
        frame.drop(columns="note"), tmp_path / "wave.dta", column_labels=[*names.values()][:3]
    )
    return path


def test_a_file_of_spss_has_codes_and_missing_codes(survey: Path) -> None:
    table = Table.read(survey, row="id", kinds="rating:1:5")
    assert triples(table) == {("a", "q1", 1.0), ("b", "q1", 2.0), ("a", "q2", 3.0), ("c", "q2", 1.0)}
    assert any("text or dates were left out: 'note'" in note for note in table.notes)
    assert any("read as their codes, as 1.0 for 'agree' of 'q1'" in note for note in table.notes)


def test_labels_of_nominal_and_ordinal_variables_are_values(tmp_path: Path) -> None:
    pyreadstat = pytest.importorskip("pyreadstat")
    frame = pd.DataFrame({
        "id": [f"p{i}" for i in range(6)],
        "mood": [1.0, 2.0, 3.0, 9.0, 2.0, 1.0],
        "region": [1.0, 2.0, 3.0, 1.0, 2.0, 3.0],
        "partly": [1.0, 2.0, 7.0, 1.0, 2.0, 1.0],
    })  # fmt: skip
    labels = {
        "mood": {1.0: "bad", 2.0: "fair", 3.0: "good", 9.0: "refused"},
        "region": {1.0: "north", 2.0: "south", 3.0: "west"},
        "partly": {1.0: "no", 2.0: "yes"},
    }
    measures = {"mood": "ordinal", "region": "nominal", "partly": "ordinal"}
    pyreadstat.write_sav(
        frame, tmp_path / "t.sav", variable_value_labels=labels, variable_measure=measures,
        missing_ranges={"mood": [9.0]},
    )  # fmt: skip
    table = Table.read(tmp_path / "t.sav", row="id")
    kinds = {name: str(kind) for name, kind in zip(table.features, table.kinds, strict=True)}
    assert kinds["mood"].startswith("ordinal:bad,fair,good:")
    assert {name for name in kinds if name.startswith("region")} == {
        "region=north", "region=south", "region=west"
    }  # fmt: skip
    assert table.counts[list(table.features).index("mood")] == 5  # 9 is missing
    assert any("1 variables have labels and are read as their codes" in note for note in table.notes)


def test_labels_of_variables_are_metadata(survey: Path) -> None:
    table = Table.read(
        survey, row="id", kinds="rating:1:5", metadata=survey, metadata_types={"label": "text:16"}
    )
    assert table.metadata.column("label").to_pylist()[list(table.features).index("q1")] == "I like films"


def test_a_file_of_stata(survey: Path) -> None:
    table = Table.read(survey.with_suffix(".dta"), row="id", kinds="rating:1:9")
    assert ("c", "q1", 9.0) in triples(table)  # this file does not say that 9 is missing


def test_a_file_of_excel(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    path = tmp_path / "t.xlsx"
    pd.DataFrame({"row": ["a", "b"], "x": [1, None]}).to_excel(path, index=False)
    assert triples(Table.read(path, kinds="rating:1:5")) == {("a", "x", 1.0)}


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("t.sav", "pyreadstat", "survey"), ("t.xlsx", "openpyxl", "excel")]
)
def test_a_missing_package_is_named(
    name: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes(b"")
    hide_modules(monkeypatch, package)
    with pytest.raises(InputError, match=rf"needs {package}.*pip install 'headstart\[{extra}\]'"):
        Table.read(tmp_path / name)


@pytest.mark.parametrize("name", ["t.sav", "t.dta", "t.sas7bdat", "t.xlsx"])
def test_damaged_and_missing_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        Table.read(tmp_path / name)
    with pytest.raises(InputError, match="there is no file"):
        Table.read(pd.DataFrame({"row": ["a"], "x": [1]}), metadata=tmp_path / name)
    (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(InputError, match=rf"{name} cannot be read"):
        Table.read(tmp_path / name)


# -- addresses ----------------------------------------------------------------------------------------


def test_files_at_addresses() -> None:
    frame = pd.DataFrame({"row": ["a", "b"], "x": [1, None], "y": [2, 3]})
    memory = fsspec.filesystem("memory")
    with memory.open("/films/t.csv", "w") as file:
        frame.to_csv(file, index=False)
    for name, part in (("1", frame[:1]), ("2", frame[1:])):
        with memory.open(f"/films/parts/{name}.parquet", "wb") as file:
            part.to_parquet(file)
    expected = Table.read(frame, kinds="rating:1:5")
    assert Table.read("memory://films/t.csv", kinds="rating:1:5") == expected
    assert Table.read("memory://films/parts", kinds="rating:1:5") == expected
    assert any("memory://films/t.csv" in note for note in Table.read("memory://films/t.csv").notes)


def test_addresses_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"there is no file memory://none.csv"):
        Table.read("memory://none.csv")
    fsspec.filesystem("memory").pipe("/t.txt", b"row,x\na,1\n")
    with pytest.raises(InputError, match=r"memory://t.txt has an unsupported file type"):
        Table.read("memory://t.txt")
    fsspec.filesystem("memory").pipe("/t.csv", b"row,x\na,one\n")
    with pytest.raises(InputError, match=r"memory://t.csv cannot be read: line 2: 'one'"):
        Table.read("memory://t.csv")
    with pytest.raises(InputError, match="cannot be read: Protocol not known"):
        Table.read("nowhere://t.csv")
    hide_modules(monkeypatch, "s3fs")
    with pytest.raises(InputError, match=r"'s3://films/t.csv' cannot be read: Install s3fs"):
        Table.read("s3://films/t.csv")


def test_a_frame_of_arrow_is_still_a_frame() -> None:
    assert Table.read(pa.table({"row": ["a"], "x": [1]}), kinds="rating:1:5").shape == (1, 1)


def test_codes_for_missing_values_of_arrays_and_surveys(survey: Path) -> None:
    for data in (np.array([[1.0, -9.0]]), sparse.csr_array([[1.0, -9.0]])):
        assert triples(Table.read(data, missing=[-9], kinds="rating:1:5")) == {("0", "0", 1.0)}
    table = Table.read(survey.with_suffix(".dta"), row="id", missing=[9], kinds="rating:1:5")
    assert ("c", "q1", 9.0) not in triples(table)
