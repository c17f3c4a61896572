"""Metadata that cannot have its effect is reported: columns, labels, and numbers far outside of the range."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.test_cli import run

from headstart import Headstart, InputError, MetadataWarning, Table
from headstart.table.columns import DateColumn, NumberColumn
from headstart.table.metadata import MetadataSchema

STARS = pa.table({"row": ["a", "b"], "feature": ["f0", "f1"], "value": [1.0, 2.0]})


@pytest.mark.parametrize("first_accent", [1, 5_000, 60_000])
def test_metadata_in_another_encoding_is_an_error(tmp_path: Path, first_accent: int) -> None:
    lines = [f"f{i},film {i}" for i in range(70_000)]
    lines[first_accent] = f"f{first_accent},Amélie"
    path = tmp_path / "films.csv"
    path.write_bytes("\n".join(["feature,title", *lines]).encode("latin-1"))
    with pytest.raises(InputError, match=r"films\.csv cannot be read.*not UTF-8 text.*encoding='latin-1'"):
        Table.read(STARS, metadata=path)


def test_every_column_without_an_effect_says_why(tmp_path: Path) -> None:
    films = pa.table(
        {
            "": [0, 1],
            "feature": ["f0", "f1"],
            "empty": pa.nulls(2),
            "bytes": [b"a", b"b"],
            "inner": [{"a": 1}, {"a": 2}],
            "asked": [1, 2],
            "year": [1990, 1991],
        }
    )
    table = Table.read(STARS, metadata=films, metadata_types={"asked": "ignore"})
    unused = [note for note in table.notes if "not used" in note]
    assert [note.split(" is not used")[0] for note in unused] == [
        "the frame: the column without a name",
        "metadata column 'empty'",
        "metadata column 'bytes'",
        "metadata column 'inner'",
    ]
    rows = Table.read(STARS, row_metadata=pa.table({"row": ["a", "b"], "x": [b"a", b"b"], "age": [3, 4]}))
    assert "row metadata column 'x' is not used: it contains binary" in rows.notes


def test_rare_categories_are_counted(limits: Any) -> None:
    limits(categories_kept=2, labels_kept=2)
    films = pa.table(
        {"feature": ["f0", "f1", "f2", "f3", "f4", "f5"], "c": list("aabbcd"), "l": ["a|b", "a|c"] * 3}
    )
    notes = Table.read(STARS, metadata=films, metadata_types={"c": "category"}).notes
    assert any("column 'c': the 2 most frequent of 4 values are used" in note for note in notes)
    assert any("column 'l': the 2 most frequent of 3 values are used" in note for note in notes)


def test_numbers_beyond_the_range_return_towards_the_mean() -> None:
    """Within the range the code is linear; beyond it, it goes back from the end to the mean, by exp(-d)."""
    column = NumberColumn.fit("year", pa.array([1960.0, 1990.0, 2020.0, 2010.0]))
    mean = (1995 - 1960) / 60

    def slow(year: float) -> float:
        place = (year - 1960) / 60
        if 0 <= place <= 1:
            return place
        end, distance = (1, place - 1) if place > 1 else (0, -place)
        return mean + (end - mean) * np.exp(-distance)

    years = [1960, 1975.5, 2020, 2021, 2100, 1e6, -1e300, 1e300, 1900]
    encoded = column.encode(pa.array(years, pa.float64()))[:, 0]
    np.testing.assert_allclose(encoded, [slow(year) for year in years], atol=1e-6)
    assert encoded.min() >= 0
    assert encoded.max() <= 1
    assert column.describe_unusual(2021) == []
    assert "2100 is far outside of the known range from 1960 to 2020" in column.describe_unusual(2100)[0]
    days = DateColumn.fit("day", pa.array([date(2020, 1, 1), date(2020, 12, 31)]).cast(pa.timestamp("us")))
    assert days.describe_unusual(date(2020, 6, 1)) == []
    assert "is far outside" in days.describe_unusual("2031-01-01")[0]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"genres": ["Drama", "Adventur"]},
            "'genres': 'Adventur' is not known .*; did you mean 'Adventure'?",
        ),
        ({"genres": "HORROR|Drama"}, "'genres': 'HORROR' is not known .*; did you mean 'Horror'?"),
        ({"country": "gb"}, "'country': 'gb' is not known .*; did you mean 'GB'?"),
        ({"country": "Atlantis"}, "'Atlantis' is not known and has no effect; known are 'FR', 'GB'"),
        ({"year": 2300}, "'year': 2300 is far outside of the known range from 1990 to 2009"),
    ],
)
def test_what_is_not_known_is_reported(
    model: Headstart, tmp_path: Path, metadata: dict[str, Any], message: str
) -> None:
    with pytest.warns(MetadataWarning, match=message):
        model.add_feature("new", metadata=metadata)
    model.remove_feature("new")


def test_what_is_known_is_not_reported(model: Headstart, recwarn: pytest.WarningsRecorder) -> None:
    known = {"genres": ["Drama", "", None], "country": " GB ", "year": 2010}
    model.add_features({"new": {"metadata": known}, "newer": {"metadata": {"year": None}}, "newest": {}})
    assert not [warning for warning in recwarn if issubclass(warning.category, MetadataWarning)]


def test_the_command_prints_a_note(model: Headstart, tmp_path: Path) -> None:
    model.save(tmp_path / "m")
    done = run("add-feature", "m", "noted", "--metadata", '{"country": "gb"}', cwd=tmp_path)
    assert done.returncode == 0
    assert "note: metadata 'country': 'gb' is not known" in done.stderr


def test_years_beyond_the_range_do_not_run_away(model: Headstart) -> None:
    """A strong trend over the years of the fit does not continue into years that were never seen."""
    years = [2009, 2015, 2050, 2300]
    with pytest.warns(MetadataWarning):
        model.add_features({f"of {year}": {"metadata": {"year": year}} for year in years})
    means = model.predict(features=[f"of {year}" for year in years]).mean.mean(axis=0)
    middle = model.table().values.mean()
    distances = np.abs(means - middle)
    assert (np.diff(distances) < 0).all()
    assert means.max() <= means[0] + 1e-6


@pytest.fixture(scope="module")
def model() -> Headstart:
    random = np.random.default_rng(0)
    row, feature = np.nonzero(random.random((60, 20)) < 0.7)
    trend = 1.5 + 3 * feature / 19
    stars = np.clip(np.round(trend + 0.5 * random.normal(size=len(row))), 1, 5)
    names = [f"f{j}" for j in range(20)]
    films = pa.table(
        {
            "feature": names,
            "year": [1990 + j for j in range(20)],
            "country": ["GB", "FR"] * 10,
            "genres": ["Drama|Horror", "Adventure|Drama"] * 10,
        }
    )
    data = pa.table({"row": [f"u{i}" for i in row], "feature": [names[j] for j in feature], "value": stars})
    return Headstart(adapter="bayes", quiet=True).fit(data, metadata=films, kinds="rating:1:5")


def test_a_schema_describes_each_thing_once() -> None:
    schema = MetadataSchema.fit(pa.table({"genre": ["a", "b"] * 3}))
    assert len(schema.describe_unusual([{"genre": "c"}, {"genre": "c"}, {"genre": "a"}])) == 1
