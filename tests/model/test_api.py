"""The public API is regular: names, arguments, what is read and what is shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from tests.model.conftest import CLOSED, ratings_table

from headstart import Client, Explanation, Headstart, InputError, Ranking, Results, Table
from headstart.errors import UnknownNameError
from headstart.model.inputs import ReadOptions

Fresh = Callable[..., Headstart]
SCRIPT = "<script>alert('&')</script>"


def frame(table: Table) -> pa.Table:
    rows, features = (np.array(list(names)) for names in (table.rows, table.features))
    columns = {"user": rows[table.row_index], "film": features[table.feature_index], "stars": table.values}
    return pa.table(columns)


def test_fit_and_evaluate_read_what_a_table_reads(tmp_path: Path) -> None:
    table = ratings_table(rows=30, features=8)
    pa.csv.write_csv(frame(table), tmp_path / "ratings.csv")
    names = {"row": "user", "feature": "film", "value": "stars"}
    expected = Headstart(**CLOSED).fit(Table.read(frame(table), **names, kinds="rating:1:5")).predict()
    for data in (frame(table), tmp_path / "ratings.csv", str(tmp_path / "ratings.csv")):
        model = Headstart(**CLOSED).fit(data, **names, kinds="rating:1:5")
        np.testing.assert_array_equal(model.predict().mean, expected.mean)
    other = frame(table).set_column(1, "film", pa.array(["new"] * len(table)))
    found = model.evaluate(other, (0,), **names, duplicates="last")
    assert isinstance(found, Results)
    assert found.data["features"] == 1
    with pytest.raises(InputError, match=r"fit\(\): 'row' is for a frame or the path of a file"):
        Headstart(**CLOSED).fit(table, row="user")
    with pytest.raises(TypeError, match="unexpected keyword argument 'rwo'"):
        Headstart(**CLOSED).fit(table, rwo="user")
    with pytest.raises(InputError, match=r"fit\(\) takes a Table, a frame, an array or the path of a file"):
        Headstart(**CLOSED).fit([("u1", "f1", 3)])


def test_the_options_of_fit_are_those_of_read() -> None:
    parameters = inspect.signature(Table.read).parameters
    assert set(ReadOptions.__annotations__) == set(parameters) - {"observations", "quiet"}


def test_the_client_has_the_verbs_and_arguments_of_the_model() -> None:
    verbs = ["add_feature", "add_row", "observe", "remove_feature", "remove_row", "predict", "recommend"]
    for verb in [*verbs, "audience", "suggest", "similar", "explain", "feature", "row"]:
        own = list(inspect.signature(getattr(Client, verb)).parameters.values())
        others = inspect.signature(getattr(Headstart, verb)).parameters
        for parameter in own:
            if parameter.name in others:
                assert parameter.kind == others[parameter.name].kind, (verb, parameter.name)
        common = [parameter.name for parameter in own if parameter.name in others]
        assert common == [name for name in others if name in common], verb
        assert {p.name for p in own} - set(others) <= {"level", "n"}, verb


def test_a_file_is_observed_like_its_triples(fresh: Fresh, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("user;film;stars\nu1;f1;5\nu2;f3;1\n")
    names = {"row": "user", "feature": "film", "value": "stars", "separator": ";"}
    one, other, third = (fresh(adapter="able") for _ in range(3))
    one.observe(str(tmp_path / "more.csv"), **names)
    other.observe(tmp_path / "more.csv", **names)
    third.observe([("u1", "f1", 5), ("u2", "f3", 1)])
    for model in (one, other):
        np.testing.assert_array_equal(model.predict().mean, third.predict().mean)


def test_one_row_is_observed_and_nothing_else_changes(fresh: Fresh) -> None:
    model, twin = fresh(adapter="able"), fresh(adapter="able")
    before = model.predict()
    said = model.observe_row("u1", {"f1": 5, "f2": 4})
    assert (said.features, said.rows) == ((), ("u1",))
    twin.observe([("u1", "f1", 5), ("u1", "f2", 4)], update="rows")
    np.testing.assert_array_equal(model.predict().mean, twin.predict().mean)
    changed = (model.predict().mean != before.mean).any(axis=1)
    assert [model.rows[i] for i in np.flatnonzero(changed)] == ["u1"]
    for wrong in (
        lambda: model.observe_row("nobody", {"f1": 3}),
        lambda: model.observe_row("u1", {"f99": 3}),
    ):
        with pytest.raises(UnknownNameError, match="unknown"):
            wrong()


def test_a_row_is_shown_with_all_its_observations(fresh: Fresh) -> None:
    model, table = fresh(adapter="able"), ratings_table(rows=200, features=60)
    own = table.row_index == table.rows.position("u1")
    expected = {
        table.features[i]: v for i, v in zip(table.feature_index[own], table.values[own], strict=True)
    }
    assert model.row("u1").observations == expected
    model.add_feature("new", observations={"u1": 2})
    model.observe([("u1", "f0", 4)])
    model.add_row("guest", observations={"f1": 5, "new": 1})
    assert model.row("u1").observations == {**expected, "new": 2, "f0": 4}
    assert (model.row("guest").observations, model.row("guest").metadata) == ({"f1": 5, "new": 1}, {})
    assert repr(model.row("guest")) == "'guest', 2 observations"
    model.remove_feature("new")
    assert model.row("guest").n_observed == 1
    with pytest.raises(UnknownNameError, match="unknown row 'nobody'"):
        model.row("nobody")


class Tags(HTMLParser):
    """Checks that tags are closed in order, and collects them with the text between them."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""
        self.feed(content)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_everything_that_people_hold_is_shown_in_a_notebook(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    model.add_feature(SCRIPT, observations={"u1": 5, "u2": 1})
    model.rename_row("u3", f"{SCRIPT} row")
    row = f"{SCRIPT} row"
    held = [
        model,
        model.table(),
        model.info,
        model.predict(),
        model.predict([row], [SCRIPT]),
        model.recommend(row, 30, exclude_observed=False),
        model.audience(SCRIPT, 300, exclude_observed=False),
        model.similar("f1", 60),
        model.explain(row, SCRIPT),
        model.recommend("u1", 1),
    ]
    for each in held:
        content = each._repr_html_()
        tags = Tags(content)
        assert tags.seen <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
        assert "<script" not in content
        assert len(content) < 20_000
        assert repr(each)
        assert max(map(len, str(each).splitlines())) < 400
    for each in held[4:7]:
        assert SCRIPT in Tags(each._repr_html_()).text
    assert "more" in repr(held[6]).splitlines()[-1]
    assert isinstance(held[5], Ranking)
    assert isinstance(held[8], Explanation)
    assert "not fitted yet" in Headstart()._repr_html_()
