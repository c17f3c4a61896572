"""Rows that live, and the verbs that ask of them: what is observed is left out, and explanations add up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from tests.model.conftest import CLOSED, fitted, ratings_table
from tests.model.test_explanation import added_up
from tests.model.test_ranking import mixed_table
from tests.model.test_row_metadata import fitted as with_row_metadata

from headstart.errors import InputError, MetadataWarning
from headstart.model import Headstart
from headstart.model.saving.folder import list_losses

Fresh = Callable[..., Headstart]


def observed(model: Headstart) -> set[tuple[str, str]]:
    """All cells that the model holds, from the table that it writes out."""
    table = model.table()
    rows, features = table.row_index.tolist(), table.feature_index.tolist()
    return {(table.rows[row], table.features[feature]) for row, feature in zip(rows, features, strict=True)}


def check_verbs(model: Headstart, rows: list[str], features: list[str]) -> None:
    """What is recommended are the best features that the row has not observed; and so for audiences."""
    cells, every, names = observed(model), model.predict(), list(model.features)
    for row in rows:
        found = model.recommend(row, len(names))
        assert set(found.names) == {name for name in names if (row, name) not in cells}
        at = every.features.positions(found.names)
        np.testing.assert_allclose(found.mean, every.mean[every.rows.position(row), at], atol=1e-6)
        assert (np.diff(found.score) <= 1e-9).all()
    for name in features:
        found = model.audience(name, len(model.rows))
        left = {row for row in model.rows if (row, name) not in cells}
        assert set(found.names) == left
        at = every.rows.positions(found.names)
        np.testing.assert_allclose(found.mean, every.mean[at, every.features.position(name)], atol=1e-6)
        assert set(model.suggest(name, n=5)) <= left


@pytest.mark.parametrize("update", ["both", "features", "rows"])
def test_what_either_side_observed_is_left_out(fresh: Fresh, update: str) -> None:
    model = fresh(adapter="able")
    model.add_feature("new", {"year": 1990}, {"u3": 5, "u9": 2})
    triples = [("u1", "f1", 5), ("u2", "f1", 1), ("u2", "new", 4), ("u7", "f59", 2)]
    model.observe(triples, update=update)
    assert {(row, feature) for row, feature, _ in triples} <= observed(model)
    check_verbs(model, ["u1", "u2", "u7", "u9"], ["f1", "new", "f59", "f2"])


def test_added_removed_and_renamed_rows_keep_rankings_right(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    model.recommend("u0")  # so that a listing is there that the changes must not leave behind
    model.add_rows({"late": {"f1": 5, "f2": 1}, "later": {}})
    check_verbs(model, ["late", "later", "u0"], ["f1", "f2"])
    model.observe([("late", "f3", 4), ("later", "f1", 2)])
    check_verbs(model, ["late", "later"], ["f1", "f3"])
    model.remove_row("u5")
    check_verbs(model, ["late", "later", "u4", "u6", "u199"], ["f1", "f3", "f40"])
    model.rename_row("late", "Ann")
    check_verbs(model, ["Ann", "u6"], ["f1", "f3"])
    model.remove_row("Ann")
    check_verbs(model, ["later", "u6"], ["f1", "f3"])
    assert "Ann" not in model.audience("f1", 300, exclude_observed=False).names


def test_a_renamed_feature_is_the_same_one_to_every_verb(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    model.add_feature("new", observations={"u1": 4})
    model.observe([("u1", "f3", 5), ("u2", "new", 2)])
    before, alike = model.predict(), model.similar("f3", 5)
    told = model.explain("u1", "f5")
    for name, other in {"f3": "third", "new": "newer"}.items():
        model.rename_feature(name, other)
    after = model.predict()
    assert np.array_equal(before.mean, after.mean)
    assert np.array_equal(before.std, after.std)
    assert model.similar("third", 5).names == alike.names
    as_before = [
        part.name.replace("third", "f3").replace("newer", "new") for part in model.explain("u1", "f5")
    ]
    assert as_before == [part.name for part in told]
    check_verbs(model, ["u1", "u2"], ["third", "newer"])
    # Observed further, they are what they would have been under their first names.
    other = fresh(adapter="able")
    other.add_feature("new", observations={"u1": 4})
    other.observe([("u1", "f3", 5), ("u2", "new", 2)])
    for one, renamed in {"f3": "third", "new": "newer"}.items():
        other.observe_feature(one, {"u8": 1})
        model.observe_feature(renamed, {"u8": 1})
        np.testing.assert_allclose(
            model.predict(["u50"], [renamed]).mean, other.predict(["u50"], [one]).mean, atol=1e-6
        )


def test_a_removed_feature_leaves_its_name_but_not_its_number(fresh: Fresh, tmp_path: Path) -> None:
    model = fresh(adapter="able")
    model.observe([("u1", "f3", 5), ("u1", "f4", 2)])
    model.remove_feature("f3")
    model.add_feature("f3", {"year": 1999}, {"u2": 1, "u3": 2})
    for each in (model, _saved(model, tmp_path)):
        assert "f3" in each.recommend("u1", 60).names
        check_verbs(each, ["u2"], ["f3"])
        added_up(each, "u1", "f3")


def _saved(model: Headstart, folder: Path) -> Headstart:
    model.save(folder / "model")
    return Headstart.load(folder / "model")


@pytest.mark.parametrize("adapter", ["bayes", "chn-bayes", "chn-bayes-blend"])
def test_living_rows_are_explained_by_what_they_observed(adapter: str) -> None:
    model = copy(fitted("factorisation", adapter, None))
    model.add_feature("new", {"year": 1993, "genre": "drama"}, {"u7": 4, "u9": 1})
    model.add_rows({"late": {"f1": 5, "new": 2}, "empty": {}})
    model.observe([("u1", "new", 5), ("u1", "f0", 1), ("late", "f2", 4)])
    for row in ("u0", "u1", "late", "empty"):
        for feature in ("f0", "f5", "new"):
            added_up(model, row, feature)
    told = {part.name: part.given for part in model.explain("late", "f5").of("observation")}
    assert told == {"f1": 5, "f2": 4, "new": 2}
    own = {part.name: part.given for part in model.explain("u1", "f5").of("observation")}
    assert own == {**_table_row("u1"), "new": 5, "f0": 1}
    model.remove_feature("new")
    added_up(model, "late", "f5")
    assert "new" not in {part.name for part in model.explain("late", "f5")}
    model.remove_row("u0")
    for row in ("u1", "late", "empty"):
        added_up(model, row, "f5")


def _table_row(row: str) -> dict[str, float]:
    table = ratings_table()
    return {name: values[row] for name in table.features if row in (values := table.observations_of(name))}


def test_a_row_read_by_present_heads_is_explained_without_a_rest() -> None:
    """Nothing is left over under ``row`` right after a row was described, and nothing else is hidden."""
    model = Headstart(**CLOSED).fit(ratings_table())
    model.add_feature("new", observations={"u7": 4, "u9": 1})
    model.observe([("u1", "new", 5), ("u1", "f0", 1)], update="rows")
    told = model.explain("u1", "f5")
    assert sum(abs(part.value) for part in told.of("row")) < 1e-4
    assert abs({part.name: part.value for part in told}["new"]) > 0


@pytest.mark.parametrize("kind", ["real", "binary", "mixed"])
def test_living_rows_of_every_kind_add_up(kind: str) -> None:
    model = Headstart(**CLOSED).fit(mixed_table(kind))
    model.add_feature("new", observations={"u1": 1, "u7": 0}, kind="binary" if kind != "real" else None)
    model.add_rows({"late": {"f0": 1, "new": 0}})
    model.observe([("late", "f1", 1), ("u3", "new", 1)])
    for row in ("late", "u3"):
        for feature in ("f0", "f1", "new"):
            added_up(model, row, feature)


def test_row_metadata_is_a_part_of_its_own() -> None:
    model = copy(with_row_metadata("telling"))
    for row in ("u000", "u299"):  # the last observed nothing
        added_up(model, row, "f03")
        assert len(model.explain(row, "f03").of("row metadata")) == 1
        assert sum(abs(part.value) for part in model.explain(row, "f03").of("row")) < 1e-3
    model.add_rows({"late": {"f01": 1.0}}, {"late": {"plan": "pro", "age": 30}})
    added_up(model, "late", "f03")
    assert model.explain("late", "f03").of("row metadata")


def test_metadata_is_read_as_it_was_given(fresh: Fresh, tmp_path: Path) -> None:
    model = fresh(adapter="able")
    with pytest.warns(MetadataWarning, match="'western' is not known"):
        model.add_feature("new", {"genre": "western", "year": 1993.25})
    for each in (model, _saved(model, tmp_path)):
        assert each.feature("new").metadata == {"genre": "western", "year": 1993.25}
        assert each.feature("f7").metadata["year"] == 1987
        given = {part.name: part.given for part in each.explain("u1", "new").of("metadata")}
        assert given.get("year", 1993.25) == 1993.25


def test_frames_and_series_serve_rows_too(fresh: Fresh) -> None:
    plain, framed = fresh(adapter="able"), fresh(adapter="able")
    plain.add_rows({"a": {"f1": 5, "f2": 1}, "b": {"f1": 2}})
    lines = {"row": ["a", "a", "b"], "feature": ["f1", "f2", "f1"], "value": [5, 1, 2]}
    framed.add_rows(pl.DataFrame(lines))
    series = fresh(adapter="able")
    series.add_rows({"a": pd.Series({"f1": 5, "f2": 1}), "b": pd.Series({"f1": 2})})
    expected = plain.predict(["a", "b"]).mean
    assert np.array_equal(framed.predict(["a", "b"]).mean, expected)
    assert np.array_equal(series.predict(["a", "b"]).mean, expected)
    plain.observe_feature("f3", {"a": 4})
    framed.observe_feature("f3", pd.Series({"a": 4}))
    assert np.array_equal(plain.predict(["u0"], ["f3"]).mean, framed.predict(["u0"], ["f3"]).mean)
    with pytest.raises(InputError, match="no column 'value'"):
        plain.add_rows(pl.DataFrame({"row": ["c"], "feature": ["f1"]}))


def test_changes_of_rows_are_logged(fresh: Fresh, caplog: pytest.LogCaptureFixture) -> None:
    model = fresh(adapter="able")
    with caplog.at_level(logging.DEBUG, logger="headstart"):
        model.add_rows({"late": {"f1": 5}})
        model.observe([("late", "f2", 4)])
        model.rename_row("late", "Ann")
        model.rename_feature("f2", "second")
        model.remove_row("Ann")
    assert [record.getMessage() for record in caplog.records] == [
        "added 1 row",
        "observed: 1 observation taken; 1 feature and 1 row changed",
        "renamed row 'late' to 'Ann'",
        "renamed feature 'f2' to 'second'",
        "removed row 'Ann'",
    ]


def test_cells_that_rows_observed_are_not_evaluated(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    model.add_rows({"late": {"f1": 5, "f2": 1}})
    frame = pd.DataFrame({"row": ["late"] * 3, "feature": ["f1", "f2", "f3"], "value": [5, 1, 3]})
    assert model.evaluate(frame).data["tested"] == 1


def test_what_rows_observed_is_not_replaced_unsaid(fresh: Fresh, tmp_path: Path) -> None:
    model, table = fresh(adapter="able"), ratings_table(rows=200, features=60)
    model.save(tmp_path / "m")
    assert list_losses(tmp_path / "m", table) == []
    cells = observed(model)
    new = [("u1", name, 3) for name in model.features if ("u1", name) not in cells][:2]
    model.observe(new, update="rows")
    model.save(tmp_path / "m")
    assert list_losses(tmp_path / "m", table) == ["2 observations"]
    assert list_losses(tmp_path / "m", model.table()) == []
