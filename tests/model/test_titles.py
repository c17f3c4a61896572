"""Titles: they are shown in answers, found by their text, and may be used in place of names."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headstart import Headstart, InputError, Table
from headstart.datasets import synthetic_ratings


@pytest.fixture(scope="module")
def model() -> Headstart:
    made = synthetic_ratings(rows=40, features=12, density=0.5)
    observations = pa.table(
        {
            "row": [made.rows[i] for i in made.row_index],
            "feature": [f"m{i}" for i in made.feature_index],
            "value": made.values,
        }
    )
    films = pa.table(
        {
            "feature": [f"m{i}" for i in range(12)],
            "title": ["Alien", "Aliens", "Dune", "Dune", *(f"Film {i}" for i in range(4, 12))],
            "year": list(range(1980, 1992)),
        }
    )
    users = pa.table({"row": list(made.rows), "name": [f"Person {i}" for i in range(len(made.rows))]})
    table = Table.read(observations, metadata=films, row_metadata=users, kinds="rating:1:5", quiet=True)
    return Headstart(adapter="bayes", quiet=True).fit(table)


def test_names_and_titles_are_searched(model: Headstart) -> None:
    assert model.find_features("ALIEN") == ["m0", "m1"]
    assert model.find_features("m11") == ["m11"]
    assert model.find_features("no such film") == []
    assert model.rows[7] in model.find_rows("person 7")


def test_a_title_names_one_feature(model: Headstart) -> None:
    assert model.feature_with_title("alien") == "m0"
    assert model.feature_with_title("Brazil") is None
    with pytest.raises(InputError, match="'m2', 'm3' all have the title 'Dune'"):
        model.feature_with_title("Dune")


def test_answers_have_titles(model: Headstart) -> None:
    similar = model.similar("m0", 3)
    assert similar.titles == tuple(str(model.feature(name).metadata["title"]) for name in similar.names)
    assert similar.to_arrow()["title"].to_pylist() == list(similar.titles)
    assert similar.titles[0] in repr(similar)
    explanation = model.explain(model.rows[3], "m0")
    assert (explanation.row_title, explanation.feature_title) == ("Person 3", "Alien")
    observed = explanation.of("observation")[0]
    assert observed.title == model.feature(observed.name).metadata["title"]
    assert observed.label.startswith(f"{observed.title} = ")
    assert "feature 'm0' (Alien)" in str(explanation)
    total = explanation.baseline + sum(part.value for part in explanation)
    np.testing.assert_allclose(total, explanation.output, rtol=1e-6)


def test_a_model_without_titles_has_none() -> None:
    plain = Headstart(adapter="bayes", quiet=True).fit(synthetic_ratings(rows=40, features=8, density=0.5))
    assert plain.similar("film 0").titles is None
    assert plain.similar("film 0").to_arrow().column_names == ["feature", "similarity"]
    assert plain.explain("row 0", "film 0").feature_title is None
    assert plain.row_titles(["row 0"]) is None


def test_no_rows_have_no_titles() -> None:
    """Where every row has observed the feature, nobody is left to rank."""
    random = np.random.default_rng(0)
    rows = [f"u{i}" for i in range(12)]
    table = pa.table({"row": rows, **{f"f{j}": random.normal(size=12) for j in range(5)}})
    people = pa.table({"row": rows, "title": [f"Person {i}" for i in range(12)]})
    model = Headstart(adapter="bayes", quiet=True).fit(table, row_metadata=people, kinds="real")
    assert len(model.audience("f0")) == 0
    assert model.audience("f0", n=1, exclude_observed=False).titles is not None
