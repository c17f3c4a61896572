"""Metadata of rows: what it says is judged on rows left out, and serves rows that observed nothing."""

from __future__ import annotations

from copy import copy
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.model.conftest import CLOSED
from tests.states import snapshot, state_of
from tests.test_cli import run

from headstart.errors import InputError, UnknownNameError
from headstart.model import Headstart
from headstart.model.rows import fit_row_prior
from headstart.table import Table

ROWS, FEATURES = 300, 30


@cache
def data(kind: str = "telling") -> tuple[Table, np.ndarray, np.ndarray]:
    """Values, of which two thirds come from a row's plan and age; the last 50 rows observe nothing."""
    random = np.random.default_rng(3)
    plan, age = random.integers(0, 3, ROWS), random.uniform(20, 70, ROWS)
    told = np.stack([plan - 1.0, (age - 45) / 15], axis=1) @ random.normal(size=(2, 2))
    taste = told + 0.5 * random.normal(size=(ROWS, 2))
    values = taste @ random.normal(size=(2, FEATURES)) + 0.3 * random.normal(size=(ROWS, FEATURES))
    row, feature = np.nonzero(random.random((ROWS, FEATURES)) < 0.4)
    seen = row < ROWS - 50
    observations = pa.table(
        {
            "row": [f"u{i:03}" for i in row[seen]],
            "feature": [f"f{j:02}" for j in feature[seen]],
            "value": values[row[seen], feature[seen]],
        }
    )
    order = np.arange(ROWS) if kind == "telling" else random.permutation(ROWS)
    metadata = pa.table(
        {
            "row": [f"u{i:03}" for i in range(ROWS)],
            "plan": [["basic", "plus", "pro"][i] for i in plan[order]],
            "age": age[order],
        }
    )
    given = None if kind == "none" else metadata
    return Table.read(observations, row_metadata=given, kinds="real"), values, order


@cache
def fitted(kind: str) -> Headstart:
    return Headstart(**CLOSED).fit(data(kind)[0])


def error(model: Headstart, rows: range) -> float:
    values = data()[1]
    names = [f"u{i:03}" for i in rows]
    predicted = model.predict(names, [f"f{j:02}" for j in range(FEATURES)]).mean
    return float(np.sqrt(np.mean((predicted - values[list(rows)]) ** 2)))


def test_telling_metadata_serves_rows_that_observed_nothing() -> None:
    table, values, _ = data()
    assert table.row_schema.describe() == "plan: category, age: number"
    told, plain = fitted("telling"), Headstart(**CLOSED).fit(Table.read(_without_empty(table), kinds="real"))
    empty = range(ROWS - 50, ROWS)
    assert error(told, empty) < 0.7 * float(values[ROWS - 50 :].std())
    plain.add_rows({f"u{i:03}": {} for i in empty})
    assert error(told, empty) < 0.75 * error(plain, empty)
    assert error(told, range(ROWS - 50)) < 1.01 * error(plain, range(ROWS - 50))
    assert (state_of(told).row_metadata.prior.gains > 0).all()


def _without_empty(table: Table) -> pa.Table:
    from headstart.model.saving.export import long_form

    return long_form(table)


def test_noise_costs_nothing() -> None:
    model = fitted("noise")
    assert state_of(model).row_metadata.prior is None
    plain = Headstart(**CLOSED).fit(Table.read(_without_empty(data("noise")[0]), kinds="real"))
    names = [f"u{i:03}" for i in range(ROWS - 50)]
    np.testing.assert_allclose(model.predict(names).mean, plain.predict(names).mean, rtol=0.02, atol=0.02)
    plain.add_rows({f"u{i:03}": {} for i in range(ROWS - 50, ROWS)})
    assert error(model, range(ROWS)) < 1.002 * error(plain, range(ROWS))


@pytest.mark.parametrize("seed", range(30))
def test_noise_is_rarely_let_in_and_harmless_then(seed: int) -> None:
    model = fitted("none")
    random = np.random.default_rng(seed)
    encoded = torch.from_numpy(random.random((len(model.rows), 3)).astype(np.float32))
    state = state_of(model)
    prior = fit_row_prior(state.backbone, state.knowledge, encoded, (1, 1, 1))
    if prior is not None:
        assert float(prior.prior_of(encoded).shift.std(0).norm()) < 0.3


def test_new_rows_bring_metadata_and_all_is_saved(tmp_path: Path) -> None:
    model = copy(fitted("telling"))
    model.add_rows({"a": {}, "b": {"f01": 0.5}, "c": {}}, metadata={"a": {"plan": "pro", "age": 60}, "c": {}})
    line = {"plan": "pro", "age": 60}
    model.add_rows({"d": {}}, {"d": line})
    one = model.predict(["a", "d", "c"])
    np.testing.assert_array_equal(one.mean[0], one.mean[1])
    assert not np.array_equal(one.mean[0], one.mean[2])
    model.observe([("a", "f01", 2.0), ("d", "f01", 2.0)], update="rows")
    after = model.predict(["a", "d"])
    np.testing.assert_allclose(after.mean[0], after.mean[1], rtol=1e-6)
    model.remove_row("c")
    model.save(tmp_path / "m")
    loaded = Headstart.load(tmp_path / "m")
    np.testing.assert_array_equal(model.predict().mean, loaded.predict().mean)
    for each in (model, loaded):
        table = each.table()
        assert table.row_metadata.slice(table.rows.position("d"), 1).to_pylist() == [line]
        assert table.row_schema.describe() == "plan: category, age: number"
        each.add_rows({"e": {}}, {"e": line})
    np.testing.assert_array_equal(model.predict(["e"]).mean, loaded.predict(["e"]).mean)


def test_a_believed_row_is_the_posterior_from_that_prior() -> None:
    """With nothing observed the activation is what the regression says, and its variance what it leaves."""
    model = copy(fitted("telling"))
    model.add_rows({"x": {}}, {"x": {"plan": "plus", "age": 33}})
    state = state_of(model).row_store.take(model.rows.positions(["x"]))
    held = state_of(model).row_metadata
    encoded = held.schema.encode([{"plan": "plus", "age": 33}])[0]
    bend = np.where(held.prior.nonlinear.numpy(), encoded * (1 - encoded), 0)
    full = np.concatenate([encoded, bend, bend * (1 - 2 * encoded)])
    expected = full @ held.prior.matrix.numpy() + held.prior.constant.numpy()
    np.testing.assert_allclose(state.activation[0].numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.variance[0].numpy(), held.prior.covariance.diagonal().numpy(), rtol=1e-4)


def test_bad_metadata_changes_nothing() -> None:
    model = copy(fitted("telling"))
    before = snapshot(model)
    for given, message in (
        ({"x": {"plan": "pro", "agee": 3}}, "row 'x': unknown metadata 'agee'.*did you mean 'age'"),
        ({"x": {"age": "old"}}, "row 'x'"),
        ({"y": {}}, "row 'y', which is not among the new rows"),
        ({"x": 3}, "row 'x': metadata must map"),
    ):
        with pytest.raises(InputError, match=message):
            model.add_rows({"x": {}}, metadata=given)
        assert snapshot(model) == before
    plain = Headstart(**CLOSED).fit(Table.read(_without_empty(data()[0]), kinds="real"))
    with pytest.raises(InputError, match="fitted without row metadata"):
        plain.add_rows({"x": {}}, metadata={"x": {"age": 3}})
    with pytest.raises(InputError, match="the backbone 'pvae' has no prior of rows"):
        Headstart(backbone="pvae", **CLOSED).fit(data()[0])
    with pytest.raises(InputError, match="no columns of row metadata"):
        Table.read(_without_empty(data()[0]), row_metadata_types={"age": "number"})
    with pytest.raises(UnknownNameError):
        Table.read(
            _without_empty(data()[0]),
            row_metadata=pa.table({"row": ["u001"], "age": [3]}),
            row_metadata_types={"agee": "number"},
        )


def test_the_command_line_takes_row_metadata(tmp_path: Path) -> None:
    from pyarrow import csv

    table = data()[0]
    csv.write_csv(_without_empty(table), tmp_path / "values.csv")
    people = table.row_metadata.add_column(0, "row", pa.array(list(table.rows)))
    csv.write_csv(people, tmp_path / "people.csv")
    model = tmp_path / "m"
    options = ("--kind", "real", "--adapter", "bayes", "--quiet", "--out", model)
    done = run("fit", tmp_path / "values.csv", "--row-metadata", tmp_path / "people.csv", *options)
    assert done.returncode == 0, done.stderr
    (tmp_path / "new.csv").write_text("row,feature,value\nx,f01,\ny,f01,1.5\n")
    (tmp_path / "who.csv").write_text("row,plan,age\nx,pro,60\n")
    added = run("add-rows", model, tmp_path / "new.csv", "--metadata", tmp_path / "who.csv")
    assert added.returncode == 0, added.stderr
    loaded = Headstart.load(model)
    assert loaded.row("x").metadata == {"plan": "pro", "age": 60}
