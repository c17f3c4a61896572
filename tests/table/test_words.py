"""The words of a table: from its columns to the saved model."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headstart import Headstart, Table
from headstart.display import count, plural
from headstart.errors import InputError
from headstart.table.words import Words, noun_of

RATINGS = pa.table(
    {
        "userId": [f"u{i}" for i in range(8) for _ in range(5)],
        "film": [f"m{j}" for _ in range(8) for j in range(5)],
        "stars": [1 + (i * j) % 5 for i in range(8) for j in range(5)],
    }
)
COLUMNS = {"row": "userId", "feature": "film", "value": "stars"}


def test_words_come_from_the_columns_unless_they_are_given() -> None:
    assert Table.read(RATINGS, quiet=True, **COLUMNS).words == Words(
        row="user", feature="film", value="stars"
    )
    given = Table.read(RATINGS, quiet=True, words={"row": "reader"}, **COLUMNS).words
    assert (given.row, given.feature) == ("reader", "film")
    with pytest.raises(InputError, match="did you mean 'row'"):
        Table.read(RATINGS, quiet=True, words={"rows": "readers"}, **COLUMNS)
    wide = pa.table({"student": ["a", "b"], "Q1": [1, 0], "Q2": [0, 1]})
    assert Table.read(wide, quiet=True, row="student").words == Words(row="student")


def test_words_are_saved_with_the_model_and_kept_by_a_refit(tmp_path: Path) -> None:
    model = Headstart(adapter="bayes", quiet=True).fit(RATINGS, words={"title": "headline"}, **COLUMNS)
    model.save(tmp_path / "model")
    loaded = Headstart.load(tmp_path / "model")
    expected = Words(row="user", feature="film", value="stars", title="headline")
    assert loaded.words == expected
    assert loaded.set_params(quiet=True).refit().words == expected
    assert loaded.explain("u1", "m1").unit == "stars"


@pytest.mark.parametrize(
    ("column", "noun"),
    [
        ("user", "user"),
        ("MovieID", "movie"),
        ("item_name", "item"),
        ("1", "row"),
        ("x1", "row"),
        ("id", "row"),
    ],
)
def test_a_noun_is_the_column_without_what_says_identifier(column: str, noun: str) -> None:
    assert noun_of(column, "row") == noun


def test_plurals() -> None:
    assert [plural(noun) for noun in ("box", "day", "test person")] == ["boxes", "days", "test people"]
    assert count(0, "city") == "0 cities"
