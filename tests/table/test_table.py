"""The methods of a table, and that it is immutable."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from headstart.errors import InputError, UnknownNameError
from headstart.table import Kinds, MetadataSchema, Names, Table


@pytest.fixture
def table():
    stars = pa.table(
        {
            "row": ["ann", "ann", "bob", "cy", "cy"],
            "feature": ["Alien", "Brazil", "Alien", "Casablanca", "Alien"],
            "value": [5, 1, 3, 2, 4],
        }
    )
    films = pa.table(
        {
            "feature": ["Dune", "Casablanca", "Alien"],
            "year": [1984, 1942, 1979],
            "genres": [["Sci-Fi"], ["Drama", "Romance"], ["Horror", "Sci-Fi"]],
        }
    )
    return Table.read(stars, metadata=films)


def test_content(table):
    assert table.shape == (3, 4)
    assert len(table) == 5
    assert table.density == pytest.approx(5 / 12)
    assert list(table.features) == ["Alien", "Brazil", "Casablanca", "Dune"]
    assert table.counts.tolist() == [3, 1, 1, 0]
    assert table.observations_of("Alien") == {"ann": 5.0, "bob": 3.0, "cy": 4.0}
    assert table.observations_of("Dune") == {}
    assert table.metadata.column_names == ["year", "genres"]
    assert table.metadata["year"].to_pylist() == [1979, None, 1942, 1984]
    assert table.encoded_metadata().shape == (4, table.schema.width)
    with pytest.raises(UnknownNameError, match="unknown feature 'Alein'; did you mean 'Alien'"):
        table.observations_of("Alein")


def test_description(table):
    assert repr(table) == "Table(3 rows × 4 features, 5 observations, 4 rating:1:5)"
    text = table.describe()
    assert "3 rows × 4 features, 5 observations (41.67% observed)" in text
    assert "observations per feature: 0 to 3, median 1" in text
    assert "year: number, genres: labels" in text
    assert "note: features without metadata: 1 ('Brazil')" in text
    assert "note: features with metadata but no observations: 1 ('Dune')" in text


def test_a_table_is_immutable(table):
    for array in (table.row_index, table.feature_index, table.values):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.values = np.zeros(5)


def test_selecting_features(table):
    some = table.with_features(["Casablanca", "Alien"])
    assert list(some.features) == ["Casablanca", "Alien"]
    assert some.rows == table.rows
    assert some.observations_of("Alien") == table.observations_of("Alien")
    assert some.metadata["year"].to_pylist() == [1942, 1979]
    assert some.schema == table.schema
    np.testing.assert_array_equal(some.encoded_metadata(), table.encoded_metadata()[[2, 0]])
    assert some == table.with_features(np.array([2, 0]))
    assert table.without_features(["Brazil", "Dune"]) == table.with_features(["Alien", "Casablanca"])
    assert table.with_features(table.features) == table
    assert table.with_features(["Dune"]).shape == (3, 1)
    assert table.with_features([]).cells().width == 0
    with pytest.raises(InputError, match="features listed twice: 'Alien'; list each feature once"):
        table.with_features(["Alien", "Alien"])
    with pytest.raises(UnknownNameError, match="unknown feature 'Dnue'"):
        table.without_features(["Dnue"])
    with pytest.raises(InputError, match="a list of names; got the text 'Alien'"):
        table.with_features("Alien")
    with pytest.raises(InputError, match="positions"):
        table.with_features(np.array([4]))


def test_equality_and_fingerprint_depend_on_all_fields(table):
    same = table.with_features(np.arange(4))
    assert same == table
    assert hash(same) == hash(table)
    assert same.fingerprint() == table.fingerprint()
    assert table != "table"
    changes = {
        "rows": Names(["ann", "bob", "dee"], "row"),
        "features": Names(["Alien", "Brazil", "Casablanca", "Dune 2"], "feature"),
        "kinds": Kinds([*table.kinds[:3], table.kinds[0].real()]),
        "values": table.values + 1,
        "feature_index": np.array([0, 1, 1, 0, 2]),
        "metadata": table.metadata.set_column(0, "year", pa.array([1979, None, 1942, 1985])),
        "schema": MetadataSchema.fit(table.metadata, {"year": "ignore"}),
    }
    for name, value in changes.items():
        other = dataclasses.replace(table, **{name: value})
        assert other != table, name
        assert other.fingerprint() != table.fingerprint(), name
    assert dataclasses.replace(table, notes=()) == table
    assert dataclasses.replace(table, metadata=None, schema=None) != table


def test_unsorted_observations_are_an_error(table):
    with pytest.raises(InputError, match="sorted by"):
        dataclasses.replace(table, row_index=table.row_index[::-1])


def test_without_metadata():
    table = Table.read(pa.table({"row": [1], "feature": [1], "value": [0.0]}))
    assert table.metadata is None
    assert table.schema is None
    assert table.encoded_metadata().shape == (1, 0)
    assert "metadata: none" in table.describe()
