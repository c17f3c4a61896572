"""Metadata: inferred types, the encoding of each type, and invalid values."""

from __future__ import annotations

import datetime
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from headstart.errors import InputError, UnknownNameError
from headstart.table import MetadataSchema, Table
from headstart.table.metadata import COLUMN_TYPES

FILMS = pa.table(
    {
        "title": ["Alien", "Brazil", "Casablanca", "Dune", "Eraserhead", "Fargo"],
        "year": [1979, 1985, 1942, None, 1977, 1996],
        "score": [8.5, 7.9, 8.5, 6.3, 7.3, None],
        "country": ["UK", "UK", "US", "US", "US", None],
        "colour": [True, True, False, True, False, None],
        "genres": ["Horror|Sci-Fi", "Sci-Fi", "Drama | Romance", None, "Horror", "Crime"],
        "tags": [["a", "b"], [], ["b"], None, ["c", None], ["a"]],
        "vector": [[1.0, 2.0], [3.0, 4.0], [0.0, 0.0], None, [1.0, 1.0], [0.5, -1.0]],
        "topics": [[3], [3, 71], [98], None, [], [71]],
        "released": [
            datetime.date(1979, 5, 25),
            None,
            *[datetime.date(1990, 1, day) for day in (1, 2, 3, 4)],
        ],
        "nothing": [None] * 6,
    }
)
TYPES = {
    "title": "text",
    "year": "number",
    "score": "number",
    "country": "category",
    "colour": "category",
    "genres": "labels",
    "tags": "labels",
    "vector": "vector",
    "topics": "labels",
    "released": "date",
    "nothing": "ignore",
}


@pytest.fixture
def schema():
    return MetadataSchema.fit(FILMS)


def column(schema, name):
    return next(column for column in schema.columns if column.name == name)


def part(schema, encoded, name):
    """Return the numbers that encode one column."""
    start = 0
    for each in schema.columns:
        if each.name == name:
            return encoded[:, start : start + each.width]
        start += each.width
    raise KeyError(name)


def test_types_are_inferred(schema):
    assert {each.name: each.type for each in schema.columns} == TYPES
    assert schema.describe().startswith("title: text (hashed words), year: number")


def test_types_can_be_given():
    schema = MetadataSchema.fit(
        FILMS, {"year": "category", "title": "ignore", "country": "text", "topics": "labels"}
    )
    assert column(schema, "year").values == ("1942", "1977", "1979", "1985", "1996")
    assert column(schema, "title").width == 0
    assert column(schema, "country").width == 64
    with pytest.raises(InputError, match=r"column 'title': 'txt' is not a type .*; did you mean 'text'"):
        MetadataSchema.fit(FILMS, {"title": "txt"})
    for bad, message in (
        ({"title": "text:0"}, "text:0 is not a type"),
        ({"title": "text:many"}, "the sentence encoder 'many' is not on this machine"),
        ({"year": "number:3"}, "only text and tokens take an argument"),
    ):
        with pytest.raises(InputError, match=message):
            MetadataSchema.fit(FILMS, bad)
    assert column(MetadataSchema.fit(FILMS, {"title": "text:8"}), "title").width == 8
    with pytest.raises(UnknownNameError, match="no column 'titel'; did you mean 'title'"):
        MetadataSchema.fit(FILMS, {"titel": "text"})


@pytest.mark.parametrize(
    ("name", "type_name", "message"),
    [
        ("title", "number", "'title' must be a finite number; got text 'Alien'"),
        ("year", "text", "'year' must be text; got 1979"),
        ("year", "labels", "'year' must be a list of labels .*; got 1979"),
        ("year", "date", "'year' must be a date .*; got 1979"),
        ("title", "date", "'title' must be a date .*; got text 'Alien'"),
        ("tags", "category", "'tags' must be one category"),
        ("tags", "vector", "'tags' must be a list of finite numbers"),
        ("topics", "vector", r"'topics': all vectors must have the same length; got lengths \[0, 1, 2\]"),
        ("colour", "number", "'colour' must be a finite number; got True"),
    ],
)
def test_given_types_must_fit(name, type_name, message):
    with pytest.raises(InputError, match=message):
        MetadataSchema.fit(FILMS, {name: type_name})


def test_json_round_trip(schema):
    again = MetadataSchema.model_validate_json(schema.model_dump_json())
    assert again == schema
    np.testing.assert_array_equal(again.encode_table(FILMS), schema.encode_table(FILMS))
    with pytest.raises(ValueError, match=r"extra|setting"):
        MetadataSchema.model_validate_json('{"columns": [], "more": 1}')
    with pytest.raises(ValueError, match="columns"):
        MetadataSchema.model_validate_json('{"columns": [{"type": "sound", "name": "x"}]}')


def test_records_and_tables_give_the_same_numbers(schema):
    table = schema.encode_table(FILMS)
    assert table.shape == (6, schema.width)
    assert table.dtype == np.float32
    assert np.isfinite(table).all()
    records = FILMS.to_pylist()
    np.testing.assert_array_equal(schema.encode(records), table)
    sparse = [{key: value for key, value in record.items() if value is not None} for record in records]
    np.testing.assert_array_equal(schema.encode(sparse), table)
    one_by_one = np.concatenate([schema.encode([record]) for record in records])
    np.testing.assert_array_equal(one_by_one, table)
    np.testing.assert_array_equal(schema.encode_table(FILMS.slice(2, 3)), table[2:5])


TEXTS = st.text("ab |1.é", max_size=5)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "number": st.none() | st.floats(-1e6, 1e6),
            "category": st.none() | TEXTS,
            "labels": st.none() | st.lists(TEXTS, max_size=3),
            "piped": st.none() | TEXTS,
            "text": st.none() | TEXTS,
            "vector": st.none() | st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3),
        },
    ),
    min_size=1,
    max_size=8,
)
ARROW = pa.schema(
    {
        "number": pa.float64(),
        "category": pa.string(),
        "labels": pa.list_(pa.string()),
        "piped": pa.string(),
        "text": pa.string(),
        "vector": pa.list_(pa.float64(), 3),
    }
)


@settings(deadline=None)
@given(RECORDS, RECORDS)
def test_any_records_and_tables_give_the_same_numbers(fitted, later):
    types = {name: "labels" if name == "piped" else name for name in ARROW.names}
    schema = MetadataSchema.fit(pa.Table.from_pylist(fitted, ARROW), types)
    assert schema == MetadataSchema.model_validate_json(schema.model_dump_json())
    records = [*fitted, *(later if column(schema, "vector").width else [])]
    encoded = schema.encode(records)
    assert encoded.shape == (len(records), schema.width)
    assert np.isfinite(encoded).all()
    np.testing.assert_array_equal(encoded, schema.encode_table(pa.Table.from_pylist(records, ARROW)))


def test_numbers(schema):
    years = part(
        schema, schema.encode([{"year": year} for year in (1942, 1996, 1969.0, 3000, -3000, None)]), "year"
    )
    mean = (np.mean([1979, 1985, 1942, 1977, 1996]) - 1942) / 54
    np.testing.assert_allclose(years[:, 0], [0, 1, 0.5, mean, mean, mean], rtol=1e-6)
    assert years[:, 1].tolist() == [0, 0, 0, 0, 0, 1]
    always = MetadataSchema.fit(pa.table({"year": [1, 3]}))
    np.testing.assert_allclose(always.encode([{"year": 3}, {}]), [[1], [0.5]])
    constant = MetadataSchema.fit(pa.table({"year": [2, 2]}))
    np.testing.assert_allclose(constant.encode([{"year": 2}, {}]), [[0], [0]])


def test_dates(schema):
    days = [
        "1990-01-02",
        datetime.date(1990, 1, 2),
        datetime.datetime(1990, 1, 2),
        pd.Timestamp("1990-01-02"),
    ]
    zoned = datetime.datetime(1990, 1, 2, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    encoded = part(schema, schema.encode([{"released": day} for day in [*days, zoned]]), "released")
    assert (encoded == part(schema, schema.encode_table(FILMS), "released")[3]).all()
    texts = pa.table({"released": ["1990-01-01", None, "1990-01-03"]})
    assert MetadataSchema.fit(texts, {"released": "date"}).columns[0].width == 2


def test_categories(schema):
    encoded = part(
        schema, schema.encode([{"country": name} for name in ("UK", " US ", "FR", "", None)]), "country"
    )
    assert encoded.tolist() == [[1, 0], [0, 1], [0, 0], [0, 0], [0, 0]]
    bits = part(schema, schema.encode([{"colour": True}, {"colour": False}, {"colour": np.True_}]), "colour")
    assert bits.tolist() == [[0, 1], [1, 0], [0, 1]]
    numbers = MetadataSchema.fit(pa.table({"cluster": [3.0, 1.0, None, 2.5]}), {"cluster": "category"})
    assert numbers.columns[0].values == ("1", "2.5", "3")
    assert numbers.encode([{"cluster": 3}, {"cluster": "3"}, {"cluster": 2.5}]).tolist() == [
        [0, 0, 1],
        [0, 0, 1],
        [0, 1, 0],
    ]


def test_labels(schema):
    assert column(schema, "genres").values == ("Crime", "Drama", "Horror", "Romance", "Sci-Fi")
    expected = [[0, 0, 1, 0, 1]]
    for value in (
        "Horror|Sci-Fi",
        ["Sci-Fi", "Horror"],
        ("Horror", "Sci-Fi", "Western"),
        {"Horror", "Sci-Fi"},
    ):
        assert part(schema, schema.encode([{"genres": value}]), "genres").tolist() == expected
    assert column(schema, "topics").values == ("3", "71", "98")
    assert part(schema, schema.encode([{"topics": np.array([3, 5])}]), "topics").tolist() == [[1, 0, 0]]
    for value in ([], "", None, "|"):
        assert not part(schema, schema.encode([{"genres": value}]), "genres").any()


def test_only_the_most_frequent_are_kept(limits):
    limits(categories_kept=2, labels_kept=2)
    data = pa.table({"one": list("zzyyxw"), "many": ["z|a", "z|b", "y", "y", "c|d", "z"]})
    schema = MetadataSchema.fit(data, {"one": "category", "many": "labels"})
    assert [each.values for each in schema.columns] == [("y", "z"), ("y", "z")]


def test_text(schema):
    encoded = part(
        schema,
        schema.encode([{"title": text} for text in ("The Thing", "the thing!", "", "?", None)]),
        "title",
    )
    np.testing.assert_allclose(np.linalg.norm(encoded, axis=1), [1, 1, 0, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(encoded[0], encoded[1])


def test_vectors(schema):
    encoded = part(schema, schema.encode([{"vector": (2, 4)}, {"vector": np.array([2, 4])}, {}]), "vector")
    assert (encoded[0] == encoded[1]).all()
    assert not encoded[2].any()
    present = part(schema, schema.encode_table(FILMS), "vector")[[0, 1, 2, 4, 5]]
    assert np.mean(present**2) == pytest.approx(1)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"yaer": 1990}, "unknown metadata 'yaer'; the columns are .*; did you mean 'year'"),
        ({"year": "1990"}, "'year' must be a finite number; got text '1990'"),
        ({"year": True}, "'year' must be a finite number; got True"),
        ({"year": np.inf}, "'year' must be a finite number; got inf"),
        ({"year": 10**400}, "'year' must be a finite number"),
        ({"year": [1990]}, "'year' must be a finite number"),
        ({"title": 3}, "'title' must be text; got 3"),
        ({"country": ["UK"]}, "'country' must be one category"),
        ({"genres": 3}, "'genres' must be a list of labels"),
        ({"genres": {"a": 1}}, "'genres' must be a list of labels"),
        ({"genres": [["a"]]}, "'genres' must be a list of labels"),
        ({"vector": [1.0]}, "'vector' must be a list of 2 numbers; got 1"),
        ({"vector": [1.0, float("nan")]}, "'vector' must be a list of finite numbers"),
        ({"vector": ["a", "b"]}, "'vector' must be a list of finite numbers"),
        ({"vector": [[1.0, 2.0]]}, "'vector' must be a list of finite numbers"),
        ({"vector": 3}, "'vector' must be a list of finite numbers"),
        ({"released": "last year"}, "'released' must be a date such as '2026-11-15'; got text 'last year'"),
        ({"released": 1990}, "'released' must be a date"),
        ({"released": "9999-12-31T23:00:00-05:00"}, "'released' must be a date .*; got text '9999-12-31"),
        ({"released": "0001-01-01T01:00:00+05:00"}, "'released' must be a date"),
        ({"released": np.datetime64("20000-01-01")}, "'released' must be a date"),
        ("a film", "must be given as {name: value}"),
    ],
)
def test_bad_records(schema, record, message):
    with pytest.raises(InputError, match=message):
        schema.encode([{}, record])


@pytest.mark.parametrize(
    "nothing", [None, float("nan"), np.float32("nan"), pd.NA, pd.NaT, np.datetime64("NaT")], ids=repr
)
def test_values_that_count_as_missing(schema, nothing):
    record = dict.fromkeys((column.name for column in schema.columns), nothing)
    np.testing.assert_array_equal(schema.encode([record]), schema.encode([{}]))
    np.testing.assert_array_equal(
        schema.encode([{"genres": ["Drama", nothing]}]), schema.encode([{"genres": ["Drama"]}])
    )


def test_dates_of_all_libraries_are_equal(schema):
    dates = [
        "1985-02-20",
        datetime.date(1985, 2, 20),
        datetime.datetime(1985, 2, 20),
        np.datetime64("1985-02-20"),
        np.datetime64("1985-02-20T00:00:00.000000000"),
        pd.Timestamp("1985-02-20"),
    ]
    encoded = part(schema, schema.encode([{"released": date} for date in dates]), "released")
    assert (encoded == encoded[0]).all()


def test_bad_tables(schema):
    with pytest.raises(UnknownNameError, match="unknown metadata 'yaer'"):
        schema.encode_table(pa.table({"yaer": [1]}))
    with pytest.raises(InputError, match="'year' must be a finite number; got nan"):
        schema.encode_table(pa.table({"year": [1.0, float("nan")]}))
    with pytest.raises(InputError, match="'vector' must be a list of 2 numbers; got 3"):
        schema.encode_table(pa.table({"vector": [[1.0, 2.0, 3.0]]}))
    with pytest.raises(InputError, match="'vector' must be a list of finite numbers; got None"):
        schema.encode_table(pa.table({"vector": [[1.0, None]]}))
    assert schema.encode_table(pa.table({"year": [1990]})).shape == (1, schema.width)


def test_every_type_has_a_name():
    for name, column_type in COLUMN_TYPES.items():
        assert column_type.model_fields["type"].default == name


# --- with a table -----------------------------------------------------------------------------------

STARS = pa.table({"row": ["a", "b"], "feature": ["Alien", "Fargo"], "value": [1, 5]})


def named(table=FILMS):
    return table.add_column(0, "feature", table["title"])


def test_metadata_does_not_depend_on_its_source(tmp_path):
    lists = named()
    flat = lists.drop_columns(["tags", "vector", "topics"])
    expected, simple = Table.read(STARS, metadata=lists), Table.read(STARS, metadata=flat)
    pq.write_table(lists, tmp_path / "films.parquet")
    flat.to_pandas().to_csv(tmp_path / "films.csv")
    order = np.random.default_rng(0).permutation(6)
    for data in (
        lists.to_pandas(),
        pl.from_arrow(lists),
        tmp_path / "films.parquet",
        lists.take(pa.array(order)),
    ):
        table = Table.read(STARS, metadata=data)
        assert table == expected
        assert table.fingerprint() == expected.fingerprint()
    assert Table.read(STARS, metadata=tmp_path / "films.csv") == simple
    assert list(expected.features) == ["Alien", "Brazil", "Casablanca", "Dune", "Eraserhead", "Fargo"]
    np.testing.assert_array_equal(expected.encoded_metadata(), expected.schema.encode(FILMS.to_pylist()))


def test_polars_arrays_are_vectors():
    films = pl.DataFrame(
        {
            "feature": ["Alien", "Fargo"],
            "v": [[1.0, 2.0], [3.0, 4.0]],
            "c": pl.Series(["x", "x"], dtype=pl.Enum(["x"])),
        },
        schema_overrides={"v": pl.Array(pl.Float32, 2)},
    )
    table = Table.read(STARS, metadata=films)
    assert [each.type for each in table.schema.columns] == ["vector", "category"]


def test_metadata_types_of_a_table_can_be_given():
    table = Table.read(STARS, metadata=named(), metadata_types={"year": "ignore"})
    assert column(table.schema, "year").type == "ignore"
    with pytest.raises(UnknownNameError, match="no column 'yaer'; did you mean 'year'"):
        Table.read(STARS, metadata=named(), metadata_types={"yaer": "number"})
    with pytest.raises(InputError, match="no columns of metadata"):
        Table.read(STARS, metadata_types={"year": "number"})


def test_repeated_lines():
    twice = pa.concat_tables([named(), named().slice(1, 2)])
    assert Table.read(STARS, metadata=twice) == Table.read(STARS, metadata=named())
    other = named().set_column(2, "year", pa.array([1979, 1985, 1942, None, 1977, 1997]))
    with pytest.raises(InputError, match=r"feature 'Fargo' has two lines .* column 'year': 1996 and 1997"):
        Table.read(STARS, metadata=pa.concat_tables([named(), other]))


def test_names_with_and_without_a_decimal_point_are_equal(tmp_path):
    (tmp_path / "films.csv").write_text("movie,year\n7.0,1990\n8.0,1991\n7.0,1990\n")
    stars = pa.table({"row": ["a"], "movie": [7], "value": [1]})
    table = Table.read(stars, metadata=tmp_path / "films.csv", feature="movie")
    assert list(table.features) == ["7", "8"]


def test_bad_metadata(tmp_path):
    with pytest.raises(UnknownNameError, match=r"no column 'feature' .*'title'"):
        Table.read(STARS, metadata=FILMS)
    with pytest.raises(InputError, match="record 2: the name of the feature is missing"):
        Table.read(STARS, metadata=pa.table({"feature": ["a", None], "x": [1, 2]}))
    with pytest.raises(InputError, match="there is no file"):
        Table.read(STARS, metadata=tmp_path / "films.csv")
    (tmp_path / "films.csv").write_text("feature,year\nAlien,1979\nFargo\n")
    with pytest.raises(
        InputError, match=r"films\.csv cannot be read: line 3 has 1 fields where 2 were expected"
    ):
        Table.read(STARS, metadata=tmp_path / "films.csv")
    with pytest.raises(InputError, match=r"feature 'Fargo'.*'year'.*nan"):
        Table.read(STARS, metadata=pa.table({"feature": ["Alien", "Fargo"], "year": [1979, float("nan")]}))
    junk = pa.table({"feature": ["Alien", "Fargo"], "year": [1979, float("nan")]})
    assert Table.read(STARS, metadata=junk, metadata_types={"year": "ignore"}).schema.width == 0


def test_metadata_with_names_only():
    table = Table.read(STARS, metadata=pa.table({"feature": ["Dune"]}))
    assert list(table.features) == ["Alien", "Dune", "Fargo"]
    assert table.metadata is None


def test_columns_of_other_types_are_ignored():
    films = pa.table({"feature": ["Alien"], "x": [{"a": 1}], "b": [b"xy"]})
    table = Table.read(STARS, metadata=films)
    assert table.schema.width == 0
    assert table.fingerprint()


# -- Metadata columns that a function of the user's encodes


ANSWERS = pa.table({"row": ["a", "b", "a"], "feature": ["x", "y", "z"], "value": [1, 5, 2]})
POSTERS = pa.table(
    {"feature": ["x", "y", "z"], "poster": [b"\x01\x02", None, b"\x03\x04"], "year": [1, 2, 3]}
)


class Pixels:
    """Encodes bytes as numbers, and counts the values."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def __call__(self, values: list[Any]) -> np.ndarray:
        self.values += values
        return np.array([list(value) for value in values], dtype=float)


def test_a_function_encodes_a_column_once() -> None:
    pixels = Pixels()
    table = Table.read(ANSWERS, metadata=POSTERS, encoders={"poster": pixels}, quiet=True)
    assert "poster: custom" in table.schema.describe()
    scale = np.sqrt(30 / 4)
    expected = np.array([[1, 2], [0, 0], [3, 4]]) / scale
    np.testing.assert_allclose(table.encoded_metadata()[:, :2], expected, rtol=1e-6)
    np.testing.assert_allclose(table.with_features(["z"]).encoded_metadata()[0, :2], expected[2], rtol=1e-6)
    assert pixels.values == [b"\x01\x02", b"\x03\x04"]
    again = MetadataSchema.model_validate_json(table.schema.model_dump_json())
    assert again == table.schema
    np.testing.assert_allclose(
        again.encode([{"poster": b"\x03\x04"}, {}], {"poster": pixels})[:, :2], expected[[2, 1]], rtol=1e-6
    )


def test_values_come_in_batches() -> None:
    sizes: list[int] = []

    def lengths(values: list[str]) -> list[list[int]]:
        sizes.append(len(values))
        return [[len(value)] for value in values]

    column = pa.table({"path": [f"{i}.png" for i in range(600)]})
    assert MetadataSchema.fit(column, encoders={"path": lengths}).width == 1
    assert sizes == [256, 256, 88]


def test_a_column_without_values_has_no_numbers() -> None:
    schema = MetadataSchema.fit(pa.table({"path": pa.nulls(2, pa.string())}), encoders={"path": Pixels()})
    assert schema.width == 0


def test_missing_functions_and_wrong_ones_are_clear_errors() -> None:
    schema = MetadataSchema.fit(POSTERS.select(["poster"]), encoders={"poster": Pixels()})
    assert not schema.encode([{}]).any()
    with pytest.raises(
        InputError, match=r"'poster' is encoded by a function .* encoders=\{'poster': function\}"
    ):
        schema.encode([{"poster": b"\x01\x02"}])
    with pytest.raises(InputError, match="gave vectors of 3 numbers; those of the fitted column have 2"):
        schema.encode([{"poster": b"\x01\x02\x03"}], {"poster": Pixels()})
    with pytest.raises(InputError, match="encoded by a function"):
        Table.read(ANSWERS, metadata=POSTERS, metadata_types={"poster": "custom"})
    with pytest.raises(InputError, match="a column with an encoder has the type custom"):
        Table.read(ANSWERS, metadata=POSTERS, metadata_types={"year": "number"}, encoders={"year": Pixels()})
    with pytest.raises(UnknownNameError, match=r"'postr'; did you mean 'poster'\? \(in encoders=\)"):
        Table.read(ANSWERS, metadata=POSTERS, encoders={"postr": Pixels()})
    with pytest.raises(InputError, match="must be a function; got 'folder'"):
        Table.read(ANSWERS, metadata=POSTERS, encoders={"poster": "folder"})
    with pytest.raises(InputError, match="encoders= was given, but there are no columns"):
        Table.read(ANSWERS, encoders={"poster": Pixels()})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda values: 1 / 0, "its encoder failed: ZeroDivisionError"),
        (lambda values: [[1.0]], r"must return an array \(2, width\)"),
        (lambda values: [1.0, 2.0], r"got the shape \(2,\)"),
        (lambda values: [[1.0], [float("inf")]], "finite"),
        (lambda values: [["a"], ["b"]], "its encoder failed: ValueError"),
    ],
)
def test_what_a_function_returns_is_checked(function: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Table.read(ANSWERS, metadata=POSTERS, encoders={"poster": function}, quiet=True)
