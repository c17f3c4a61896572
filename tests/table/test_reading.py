"""Reading: the same table from the long or wide form, a file or frame, lines in any order."""

import gzip

import hypothesis.strategies as st
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from headstart.errors import InputError, UnknownNameError
from headstart.table import Table

TEXTS = st.text("abcé ,\"'\n|", min_size=1, max_size=4).map(str.strip).filter(bool)
NAMES = st.one_of(st.integers(-5, 30).map(str), TEXTS)
VALUES = st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: round(value, 3))
OBSERVATIONS = st.dictionaries(st.tuples(NAMES, NAMES), VALUES, min_size=1, max_size=30)


def long_frame(observations, order=None):
    pairs = list(observations) if order is None else order
    return pa.table(
        {
            "row": pa.array([row for row, _ in pairs], pa.string()),
            "feature": pa.array([feature for _, feature in pairs], pa.string()),
            "value": pa.array([observations[pair] for pair in pairs], pa.float64()),
        }
    )


def wide_frame(observations):
    rows = list(dict.fromkeys(row for row, _ in observations))
    features = list(dict.fromkeys(feature for _, feature in observations))
    columns = {name: [observations.get((row, name)) for row in rows] for name in features}
    return pa.table(
        [pa.array(rows, pa.string()), *(pa.array(column, pa.float64()) for column in columns.values())],
        names=["the row", *columns],
    )


@settings(max_examples=60, deadline=None)
@given(OBSERVATIONS, st.randoms())
def test_form_library_and_order_do_not_matter(tmp_path_factory, observations, random):
    folder = tmp_path_factory.mktemp("tables")
    expected = Table.read(long_frame(observations))
    assert {
        (expected.rows[r], expected.features[f]): v
        for r, f, v in zip(expected.row_index, expected.feature_index, expected.values, strict=True)
    } == observations

    pairs = list(observations)
    random.shuffle(pairs)
    long, wide = long_frame(observations, pairs), wide_frame(observations)
    pa_csv.write_csv(long, folder / "long.csv")
    pa_csv.write_csv(wide, folder / "wide.csv")
    pq.write_table(long, folder / "long.parquet")
    pq.write_table(wide, folder / "wide.parquet")
    for data in (long, long.to_pandas(), pl.from_arrow(long), folder / "long.csv", folder / "long.parquet"):
        table = Table.read(data)
        assert table == expected
        assert table.fingerprint() == expected.fingerprint()
    frames = (wide, wide.to_pandas(), pl.from_arrow(wide).lazy())
    for data in (*frames, folder / "wide.csv", str(folder / "wide.parquet")):
        table = Table.read(data, row="the row")
        assert list(table.rows) == wide["the row"].to_pylist()  # the wide form keeps its order
        assert list(table.features) == wide.column_names[1:]
        again = pa.table(
            {
                "row": table.rows.take(table.row_index),
                "feature": table.features.take(table.feature_index),
                "value": table.values,
            }
        )
        assert Table.read(again) == expected


@settings(max_examples=30, deadline=None)
@given(OBSERVATIONS)
def test_cells_equal_a_slow_version(observations):
    table = Table.read(long_frame(observations))
    cells = table.cells()
    assert (len(cells), cells.width) == table.shape
    for position, row in enumerate(table.rows):
        line = slice(cells.indptr[position], cells.indptr[position + 1])
        fast = dict(zip(cells.index[line].tolist(), cells.values[line].tolist(), strict=True))
        slow = {
            table.features.position(f): np.float32(table.kinds[table.features.position(f)].scale(v))
            for (r, f), v in observations.items()
            if r == row
        }
        assert fast == slow


def test_small_blocks_give_the_same_table(tmp_path, limits):
    random = np.random.default_rng(0)
    cells = random.permutation(200 * 50)[:3000]
    data = pa.table({"row": cells // 50, "feature": cells % 50, "value": random.integers(1, 6, 3000)})
    pa_csv.write_csv(data, tmp_path / "data.csv")
    pq.write_table(data, tmp_path / "data.parquet")
    expected = Table.read(data)
    limits(csv_block_bytes=1000, records_per_batch=100)
    assert Table.read(data) == expected
    assert Table.read(tmp_path / "data.csv") == expected
    assert Table.read(tmp_path / "data.parquet") == expected
    pd.DataFrame(data.to_pydict()).pivot(index="row", columns="feature", values="value").to_csv(
        tmp_path / "wide.csv"
    )
    assert Table.read(tmp_path / "wide.csv") == expected


def test_numbers_and_texts_are_the_same_name():
    values = [1.0, 2.0, 4.0]
    tables = [
        Table.read(frame)
        for frame in (
            pa.table({"row": [1, 2, 10], "feature": ["a", "a", "7"], "value": values}),
            pa.table({"row": [1.0, 2.0, 10.0], "feature": ["a", "a", "7"], "value": values}),
            pd.DataFrame({"row": [1, 2.0, "10"], "feature": ["a", "a", 7], "value": values}),
            pd.DataFrame({"row": ["1", "2", "10"], "feature": ["a", "a", "7"], "value": values}).astype(
                {"row": "category"}
            ),
            pl.DataFrame({"row": ["1", "2", "10"], "feature": ["a", "a", "7"], "value": values}).with_columns(
                pl.col("row").cast(pl.Categorical)
            ),
        )
    ]
    assert list(tables[0].rows) == ["1", "2", "10"]
    assert list(tables[0].features) == ["7", "a"]
    assert all(table == tables[0] for table in tables)


def test_whole_numbers_with_a_decimal_point_in_a_file(tmp_path):
    (tmp_path / "long.csv").write_text("row,feature,value\n1.0,a,1\n1,b,2\n")
    (tmp_path / "films.csv").write_text("feature,year\na,1990\n")
    assert list(Table.read(tmp_path / "long.csv").rows) == ["1"]
    (tmp_path / "long.csv").write_text("row,feature,value\n1.0,a,1\nu1,b,2\n")
    assert list(Table.read(tmp_path / "long.csv").rows) == ["1", "u1"]  # 1 and 1.0 are one name everywhere


def test_unused_categories_are_not_names():
    frame = pd.DataFrame({"row": ["a", "b"], "feature": ["x", "x"], "value": [1, 2]})
    frame = frame.astype({"row": "category"})[:1]
    assert list(Table.read(frame).rows) == ["a"]


def test_a_pivoted_pandas_frame():
    long = pd.DataFrame({"row": ["a", "a", "b"], "feature": [1, 2, 1], "value": [1.0, 2.0, 3.0]})
    wide = long.pivot(index="row", columns="feature", values="value")
    assert Table.read(wide) == Table.read(long)


def test_columns_can_have_other_names(tmp_path):
    (tmp_path / "ratings.tsv").write_text("user\titem\tstars\twhen\nu1\tx\t3\t0\nu2\tx\t4\t0\n")
    table = Table.read(tmp_path / "ratings.tsv", row="user", feature="item", value="stars")
    assert table.observations_of("x") == {"u1": 3.0, "u2": 4.0}
    assert "not used: 'when'" in table.notes[0]


def test_gzip_and_byte_order_mark(tmp_path):
    text = "row,feature,value\r\nu1,x,0.5\r\nu2,x,1\r\n"
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert Table.read(tmp_path / "a.csv") == Table.read(tmp_path / "b.csv.gz")


def test_blanks_are_not_observed_but_their_names_are_read(tmp_path):
    (tmp_path / "long.csv").write_text("row,feature,value\na,x,1\nb,x,\na,y,NA\n")
    (tmp_path / "wide.csv").write_text("row,x,y\na,1,\nb,,\n")
    long, wide = Table.read(tmp_path / "long.csv"), Table.read(tmp_path / "wide.csv")
    assert long == wide
    assert long.shape == (2, 2)
    assert len(long) == 1
    assert any("2 lines without a value" in note for note in long.notes)
    polars = pl.DataFrame({"row": ["a", "b"], "x": [1, None], "y": pl.Series([None, None])})
    assert Table.read(polars) == long


def test_booleans_are_zero_and_one():
    table = Table.read(pl.DataFrame({"row": ["a", "b"], "x": [True, False]}))
    assert table.observations_of("x") == {"a": 1.0, "b": 0.0}
    assert str(table.kinds[0]) == "binary"


def test_a_name_may_contain_a_line_break(tmp_path):
    (tmp_path / "a.csv").write_text('row,feature,value\n"u\n1",x,1\nu2,x,2\n')
    assert list(Table.read(tmp_path / "a.csv").rows) == ["u\n1", "u2"]


def test_a_narwhals_frame_is_a_frame():
    frame = pl.DataFrame({"row": ["a"], "feature": ["x"], "value": [1]})
    assert Table.read(nw.from_native(frame)) == Table.read(frame)


# --- names that are written in several ways ---------------------------------------------------------


def test_spaces_and_unicode_forms_are_one_name(tmp_path):
    """One row in several spellings is one row, and the notes say so."""
    rows = ["Am\u00e9lie", " Ame\u0301lie", "ann", "bob\u00a0"]
    data = frame(row=rows, feature=["x", "y ", "x", "y"], value=[1.0, 2.0, 3.0, 4.0])
    pa_csv.write_csv(data, tmp_path / "a.csv")
    pq.write_table(data, tmp_path / "a.parquet")
    for source in (data, data.to_pandas(), pl.from_arrow(data), tmp_path / "a.csv", tmp_path / "a.parquet"):
        table = Table.read(source)
        assert list(table.rows) == ["Am\u00e9lie", "ann", "bob"]
        assert list(table.features) == ["x", "y"]
        assert table.observations_of(" x") == {"Am\u00e9lie": 1.0, "ann": 3.0}
        assert table.notes[:3] == (
            "rows that are written in several ways, each read as one row: 1"
            " ('Am\u00e9lie' and ' Ame\\u0301lie')",
            "names of rows that were tidied (spaces around, Unicode form, decimal point): 1"
            " ('bob\\xa0' to 'bob')",
            "features that are written in several ways, each read as one feature: 1 ('y ' and 'y')",
        )


def test_spellings_meet_across_small_batches(limits):
    limits(records_per_batch=1)
    table = Table.read(frame(row=["a", " a"], feature=["x", "y"]))
    assert list(table.rows) == ["a"]
    assert "('a' and ' a')" in table.notes[0]


def test_metadata_in_another_spelling_belongs_to_the_feature():
    films = pa.table({" film ": ["Ame\u0301lie "], " year": [2001]})
    observations = pa.table({"row": ["a"], "film": ["Am\u00e9lie"], "value": [1]})
    table = Table.read(observations, feature="film", metadata=films, metadata_types={"year ": "category"})
    assert table.shape == (1, 1)
    assert table.schema.describe() == "year: category"


def test_7_and_7_0_are_one_name_in_a_mixed_column(tmp_path):
    (tmp_path / "a.csv").write_text("row,feature,value\n7,x,1\n7.0,y,2\nu1,y,3\n")
    for source in (
        tmp_path / "a.csv",
        frame(row=["7", "7.0", "u1"], feature=["x", "y", "y"], value=[1.0, 2.0, 3.0]),
        pd.DataFrame({"row": [7, 7.0, "u1"], "feature": ["x", "y", "y"], "value": [1, 2, 3]}),
    ):
        assert list(Table.read(source).rows) == ["7", "u1"]


def test_large_identifiers_stay_different(tmp_path):
    large = [2**53, 2**53 + 1]
    data = frame(row=large, feature=["x", "x"])
    pa_csv.write_csv(data, tmp_path / "a.csv")
    for source in (data, data.to_pandas(), pl.from_arrow(data), tmp_path / "a.csv"):
        assert list(Table.read(source).rows) == list(map(str, large))
    with pytest.raises(
        InputError, match=r"9007199254740992\.0 cannot be a row: decimal numbers of this size"
    ):
        Table.read(frame(row=[float(name) for name in large]))
    assert list(Table.read(frame(row=[2.0**53 - 1, 5.0])).rows) == ["5", str(2**53 - 1)]


# --- text files of every sort -----------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_the_separator_is_detected(tmp_path, name, separator):
    content = "row,feature,value\nu1,x,1\nu2,x,2\n".replace(",", separator).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert Table.read(tmp_path / name).observations_of("x") == {"u1": 1.0, "u2": 2.0}


def test_the_separator_is_detected_by_the_columns_asked_for(tmp_path):
    (tmp_path / "a.csv").write_text("the user;a, b, c, d;e\nu1;1;2\n")
    assert list(Table.read(tmp_path / "a.csv", row="the user").features) == ["a, b, c, d", "e"]
    (tmp_path / "a.csv").write_text("row,a;b;c;d,e\nu1,1,2\n")
    assert list(Table.read(tmp_path / "a.csv").features) == ["a;b;c;d", "e"]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252", "utf-8"])
def test_decimal_comma_and_encoding(tmp_path, encoding):
    films = "film; price\nAm\u00e9lie;1,5\nAlien;2,25\n"
    (tmp_path / "films.csv").write_bytes(films.encode(encoding))
    (tmp_path / "a.csv").write_bytes("row;film;value\nzo\u00e9;Am\u00e9lie;3,5\n".encode(encoding))
    table = Table.read(
        tmp_path / "a.csv", metadata=tmp_path / "films.csv", feature="film", decimal=",", encoding=encoding
    )
    assert table.observations_of("Am\u00e9lie") == {"zo\u00e9": 3.5}
    assert table.metadata["price"].to_pylist() == [2.25, 1.5]


def test_header_cells_are_tidied(tmp_path):
    (tmp_path / "a.csv").write_text(" row ,feature , value\nu1,x,1\n")
    assert Table.read(tmp_path / "a.csv", value=" value").observations_of("x") == {"u1": 1.0}
    pq.write_table(pa.table({" row": ["u1"], "x ": [1]}), tmp_path / "a.parquet")
    assert Table.read(tmp_path / "a.parquet").observations_of("x") == {"u1": 1.0}
    assert Table.read(pd.DataFrame({" row": ["u1"], "x ": [1]})).observations_of("x") == {"u1": 1.0}


def test_a_named_column_must_exist_also_in_the_wide_form(tmp_path):
    (tmp_path / "a.csv").write_text("user,film,stars\n1,10,3\n2,20,4\n")
    for arguments in ({"feature": "Film"}, {"value": "Stars"}, {"feature": "Film", "form": "wide"}):
        with pytest.raises(UnknownNameError, match="its columns are 'user', 'film', 'stars'; did you mean"):
            Table.read(tmp_path / "a.csv", row="user", **arguments)
    wide = pa.table({"user": ["u1"], "x": [1]})
    films = pa.table({"film": ["x"], "year": [1]})
    assert Table.read(wide, row="user", feature="film", metadata=films).shape == (1, 1)  # of the metadata
    with pytest.raises(UnknownNameError, match="the frame has no column 'film'"):
        Table.read(wide, row="user", feature="film", metadata=pa.table({"film": ["other"], "year": [1]}))


# --- bad input --------------------------------------------------------------------------------------


def frame(**columns):
    return pa.table({"row": ["a", "b"], "feature": ["x", "x"], "value": [1.0, 2.0]} | columns)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_name_row_and_feature(tmp_path, bad):
    data = frame(value=[1.0, bad])
    wide = pa.table({"row": ["a", "b"], "x": [1.0, bad], "y": [None, 1.0]})
    pa_csv.write_csv(data, tmp_path / "bad.csv")
    for data_source, arguments in (
        (data, {}),
        (pl.from_arrow(data), {}),
        (wide, {"form": "wide"}),
        (tmp_path / "bad.csv", {}),
    ):
        with pytest.raises(InputError, match=r"row 'b', feature 'x' is (nan|-?inf); values must be finite"):
            Table.read(data_source, **arguments)


def test_nan_in_pandas_means_not_observed():
    table = Table.read(pd.DataFrame({"row": ["a", "b"], "feature": ["x", "x"], "value": [1.0, np.nan]}))
    assert len(table) == 1


def test_missing_names_are_located(tmp_path):
    with pytest.raises(InputError, match="the frame, record 2: the name of the feature is missing"):
        Table.read(frame(feature=["x", None]))
    with pytest.raises(InputError, match="record 1: '' cannot be a row"):
        Table.read(frame(row=["", "b"]))
    with pytest.raises(InputError, match=r"record 2: 1\.5 cannot be a row"):
        Table.read(frame(row=[1.0, 1.5]))
    (tmp_path / "a.csv").write_text("row,feature,value\na,x,1\n\n,x,2\n")
    with pytest.raises(InputError, match=r"a\.csv, line 4: '' cannot be a row"):
        Table.read(tmp_path / "a.csv")


def test_the_error_for_a_missing_column_lists_the_columns():
    with pytest.raises(
        UnknownNameError, match=r"no column 'valeu' .* 'row', 'feature', 'value'; did you mean 'value'"
    ):
        Table.read(frame(), value="valeu")
    with pytest.raises(UnknownNameError, match="no column 'user'"):
        Table.read(frame(), row="user")
    with pytest.raises(UnknownNameError, match="no column 'user'"):
        Table.read(frame(), row="user", form="wide")
    with pytest.raises(InputError, match="must be three different columns"):
        Table.read(frame(), feature="row")
    with pytest.raises(
        InputError, match="no column besides 'row'; the wide form needs one column per feature"
    ):
        Table.read(pa.table({"row": [1]}))
    with pytest.raises(InputError, match="form must be"):
        Table.read(frame(), form="broad")


def test_columns_with_the_same_name_are_an_error(tmp_path):
    (tmp_path / "a.csv").write_text("row,x,x\na,1,2\n")
    with pytest.raises(InputError, match="more than one column called 'x'"):
        Table.read(tmp_path / "a.csv")
    with pytest.raises(InputError, match="x"):
        Table.read(pa.table([[1], [1], [2]], names=["row", "x", "x"]))


def test_text_values_are_an_error(tmp_path):
    with pytest.raises(InputError, match="column 'value' contains text, such as 'good'"):
        Table.read(frame(value=["good", "bad"]), kinds="rating:1:5")
    mixed = pd.DataFrame({"row": ["a", "b", "c"], "feature": "x", "value": [2.5, 3, "good"]})
    with pytest.raises(InputError, match="column 'value' contains text among numbers, such as 'good'; obs"):
        Table.read(mixed)
    with pytest.raises(InputError, match="column 'value' contains text, such as 'good'"):
        Table.read(mixed.assign(value=pd.Categorical(["good"] * 3)))
    with pytest.raises(InputError, match="column 'value' cannot be read"):
        Table.read(mixed.assign(value=[{"a": 1}, 3, "good"]))
    (tmp_path / "a.csv").write_text("row,feature,value\na,x,1\nb,x,good\n")
    with pytest.raises(
        InputError, match=r"line 3: 'good' in column 'value' is not a number \(row 'b', feature 'x'\)"
    ):
        Table.read(tmp_path / "a.csv")
    (tmp_path / "w.csv").write_text("row,x,y\na,1,\nb,,good\n")
    with pytest.raises(InputError, match=r"line 3: 'good' in column 'y' is not a number \(row 'b'\)"):
        Table.read(tmp_path / "w.csv")


# Without a time stamp: these bytes name the test case, so they must be the same in every process.
TRUNCATED = gzip.compress(b"row,feature,value\n" + b"a,x,1\n" * 999, mtime=0)[:50]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"row,feature,value\n", "contains no observations"),
        ("a.csv", b"row,feature,value\na,x,\n", "contains no observations"),
        ("a.csv", b"row,feature,value\na,x,1\nb,x\n", "line 3 has 2 fields where 3 were expected: 'b,x'"),
        ("a.csv", b"row,feature,value\na,x,1\n\nb,x,1,9\n", "line 4 has 4 fields where 3 were expected"),
        ("a.csv", b'row,feature,value\na,x,1\n"b,x,1\n', "line 3 has 1 fields where 3 were expected"),
        ("a.csv", "row,feature,value\nann,x,1\nzoé,x,1\n".encode("latin-1"), "not UTF-8"),
        ("a.csv.gz", TRUNCATED, "cannot be read"),
        ("a.csv.gz", b"row,feature,value\na,x,1\n", "cannot be read"),
        ("a.parquet", b"", "not a readable Parquet file"),
        ("a.parquet", b"PAR1 and then nothing", "not a readable Parquet file"),
        ("a.xls", b"", r"unsupported file type; expected .csv, .csv.gz"),
    ],
)
def test_damaged_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        Table.read(tmp_path / name)
    assert name in str(error.value)


def test_truncated_parquet(tmp_path):
    pq.write_table(frame(), tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"a\.parquet is not a readable Parquet file"):
        Table.read(tmp_path / "a.parquet")


def test_neither_a_file_nor_a_frame(tmp_path):
    (tmp_path / "ratings.csv").write_text("row,feature,value\n")
    with pytest.raises(InputError, match=r"there is no file .*did you mean 'ratings.csv'"):
        Table.read(tmp_path / "rating.csv")
    with pytest.raises(InputError, match="is a folder"):
        Table.read(tmp_path)
    with pytest.raises(InputError, match="expected a path or a pandas, polars or pyarrow frame; got dict"):
        Table.read({"row": [1]})
    with pytest.raises(InputError, match="the frame contains no observations"):
        Table.read(frame().slice(0, 0))


# --- folders of Parquet files -----------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(OBSERVATIONS, st.integers(1, 4))
def test_a_folder_of_parquet_files_is_one_table(tmp_path_factory, observations, files):
    folder = tmp_path_factory.mktemp("shards")
    whole = long_frame(observations)
    for number, rows in enumerate(np.array_split(np.arange(len(whole)), files)):
        part = whole.take(rows)
        part = part if number % 2 else part.select(["value", "feature", "row"])  # in any order of columns
        pq.write_table(part, folder / f"{number}.parquet")
    (folder / "_SUCCESS").write_text("")  # as other programs write it
    assert Table.read(folder) == Table.read(whole)


def test_metadata_may_be_a_folder(tmp_path):
    for number, name in enumerate(["x", "y"]):
        pq.write_table(pa.table({"feature": [name], "year": [1990 + number]}), tmp_path / f"{name}.parquet")
    observations = pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1, 5]})
    table = Table.read(observations, metadata=tmp_path)
    assert table.metadata.to_pydict() == {"year": [1990, 1991]}


def test_folders_that_are_no_table(tmp_path):
    with pytest.raises(InputError, match=r"is a folder without \.parquet files"):
        Table.read(tmp_path)
    pq.write_table(frame(), tmp_path / "a.parquet")
    other = frame().rename_columns(["row", "feature", "stars"])
    pq.write_table(other, tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"must have the same columns: .*a\.parquet has .* but .*b\.parquet"):
        Table.read(tmp_path)
    (tmp_path / "b.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"b\.parquet is not a readable Parquet file"):
        Table.read(tmp_path)
    (tmp_path / "b.parquet").rename(tmp_path / "b.csv")
    with pytest.raises(InputError, match=r"does not only hold \.parquet files \('b\.csv'\)"):
        Table.read(tmp_path)
    (tmp_path / "b.csv").unlink()
    with pytest.raises(InputError, match="is not a text file: no separator"):
        Table.read(tmp_path, separator=";")


# --- duplicates -------------------------------------------------------------------------------------


def test_equal_duplicates_are_kept_once():
    table = Table.read(frame(row=["a", "a"], value=[2.0, 2.0]), kinds="real")
    assert table.observations_of("x") == {"a": 2.0}
    assert any("1 repeated observations were merged" in note for note in table.notes)


def test_contradictory_duplicates():
    data = pa.table({"row": list("aaab"), "feature": ["x"] * 4, "value": [3.0, 1.0, 2.0, 5.0]})
    with pytest.raises(InputError, match="row 'a', feature 'x' is observed twice, as 3 and 1"):
        Table.read(data)
    assert Table.read(data, duplicates="last").observations_of("x") == {"a": 2.0, "b": 5.0}
    table = Table.read(data, duplicates="mean")
    assert table.observations_of("x") == {"a": 2.0, "b": 5.0}
    assert any("2 of them contradictory (duplicates='mean')" in note for note in table.notes)
    with pytest.raises(InputError, match="duplicates must be one of error, last, mean, sum; got 'first'"):
        Table.read(data, duplicates="first")
