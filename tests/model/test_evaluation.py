"""Evaluating a fitted model: against adding the features by hand, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.model.conftest import CLOSED, ratings_table
from tests.model.test_ranking import mixed_table
from tests.states import snapshot

from headstart.core.value_references import RowColumnMeans
from headstart.errors import InputError
from headstart.evaluate.metrics import score
from headstart.model import Headstart
from headstart.table import Table

Fresh = Callable[..., Headstart]


@pytest.fixture(scope="module")
def split() -> tuple[Headstart, Table]:
    table = ratings_table(rows=80, features=30)
    new = table.with_features(np.arange(0, 30, 5))
    return Headstart(**CLOSED).fit(table.without_features(new.features)), new


def test_the_curve_is_that_of_features_added_by_hand(split: tuple[Headstart, Table]) -> None:
    model, new = split
    found = model.evaluate(new, (0, 4))
    assert found.data["on"] == "features"
    assert found.data["tested"] == 6
    curve = found.curves("rmse")["bayes"]
    assert curve.shots == [0, 4]
    assert curve.mean[1] < curve.mean[0]
    before, with_them = snapshot(model), copy(model)
    for name, line in zip(new.features, new.metadata.to_pylist(), strict=True):
        with_them.add_feature(name, line)
    everything = model.evaluate(new, (0,))  # every observation is a target
    truth, mean, std, lines = [], [], [], []
    for number, name in enumerate(new.features):
        seen = new.observations_of(name)
        prediction = with_them.predict(list(seen), [name])
        truth += list(seen.values())
        mean += prediction.mean[:, 0].tolist()
        std += prediction.std[:, 0].tolist()
        lines += [number] * len(seen)
    kinds = np.ones(len(truth), dtype=np.int64)
    distance = np.abs(np.array(truth) - mean) / std
    slow = score(np.array(truth), np.array(mean), np.array(lines), kinds, distance)
    for run in [run for run in everything.runs if run.method == "bayes"]:
        assert run.value == pytest.approx(slow[run.metric].value, rel=1e-4), run.metric
    assert snapshot(model) == before


def test_after_updates_heads_are_those_of_features_added_by_hand(split: tuple[Headstart, Table]) -> None:
    model = copy(split[0])
    rows, known = list(model.rows), list(model.features)
    model.observe([(row, feature, 1) for row in rows[:40] for feature in known[:12]])
    observed = dict(zip(rows[:5], [5, 4, 1, 2, 4], strict=True))
    new = pd.DataFrame({"row": list(observed), "feature": "new", "value": list(observed.values())})
    runs = model.evaluate(new, (4,)).runs
    (run,) = (run for run in runs if (run.method, run.metric) == ("bayes", "rmse"))
    errors = []
    for target, value in observed.items():  # the target is one of these
        added = copy(model)
        added.add_feature("new", observations={row: observed[row] for row in observed if row != target})
        errors.append(abs(added.predict([target], ["new"]).mean[0, 0] - value))
    assert np.isclose(errors, run.value, rtol=1e-5).any(), (errors, run.value)


def test_cells_that_were_held_out_are_predicted_as_they_are() -> None:
    table = ratings_table(rows=80, features=30)
    held = np.random.default_rng(0).random(len(table.values)) < 0.2

    def part(mask: np.ndarray) -> pa.Table:
        return pa.table(
            {
                "row": [table.rows[i] for i in table.row_index[mask]],
                "feature": [table.features[j] for j in table.feature_index[mask]],
                "value": table.values[mask],
            }
        )

    model = Headstart(**CLOSED).fit(Table.read(part(~held), kinds="rating:1:5"))
    found = model.evaluate(part(held))  # a frame is read
    assert found.data["on"] == "cells"
    assert found.data["tested"] == held.sum()
    everything = model.predict()
    mean = everything.mean[table.row_index[held], table.feature_index[held]]
    slow = float(np.sqrt(np.mean((mean - table.values[held]) ** 2)))
    assert found.curves("rmse")["bayes"].mean == [pytest.approx(slow, rel=1e-6)]
    means = RowColumnMeans(Table.read(part(~held), kinds="rating:1:5").cells())
    simple = 1 + 4 * (means.rows[table.row_index[held]] * means.features[table.feature_index[held]]).sum(1)
    slow = float(np.sqrt(np.mean((np.clip(simple.numpy(), 1, 5) - table.values[held]) ** 2)))
    assert found.curves("rmse")["row-column-means"].mean == [pytest.approx(slow, rel=1e-6)]
    both = model.evaluate(table)  # what the model observed is left out
    assert both.data["tested"] == held.sum()
    assert both.data["left_out"] == (~held).sum()
    with pytest.raises(InputError, match="has observed all of these cells"):
        model.evaluate(part(~held))


def test_cells_of_which_none_is_relevant_have_no_rankings() -> None:
    """Of reals none is relevant, nor of low ratings: the other metrics are computed all the same."""
    table = mixed_table("real", rows=40, features=12)
    held = np.random.default_rng(0).random(len(table.values)) < 0.2
    lines = {
        "row": [table.rows[i] for i in table.row_index],
        "feature": [table.features[j] for j in table.feature_index],
        "value": table.values,
    }
    frame = pa.table(lines)
    model = Headstart(**CLOSED).fit(frame.filter(pa.array(~held)), kinds="real")
    found = model.evaluate(frame.filter(pa.array(held)), by="mean", kinds="real")
    assert found.metrics == model.evaluate(frame.filter(pa.array(held)), kinds="real").metrics


@pytest.mark.parametrize("kind", ["real", "binary", "mixed"])
def test_every_kind_is_evaluated(kind: str) -> None:
    table = mixed_table(kind, rows=60, features=20)
    new = table.with_features(np.arange(4))
    found = Headstart(**CLOSED).fit(table.without_features(new.features)).evaluate(new, (0, 8))
    wanted = {"real": {"rmse"}, "binary": {"auroc"}, "mixed": {"rmse", "auroc"}}[kind]
    assert wanted <= set(found.metrics)


def test_rows_and_metadata_that_the_model_lacks_do_not_matter(split: tuple[Headstart, Table]) -> None:
    model, new = split
    long = pa.table(
        {
            "row": [*(new.rows[i] for i in new.row_index), "stranger"],
            "feature": [*(new.features[j] for j in new.feature_index), "f0"],
            "value": [*new.values, 3.0],
        }
    )
    plain = model.evaluate(Table.read(long, kinds="rating:1:5"), (0, 2))
    assert plain.data["unknown_rows"] == 1
    films = pa.table({"feature": list(new.features), "genre": ["drama"] * 6, "studio": ["A"] * 6})
    described = model.evaluate(Table.read(long, metadata=films, kinds="rating:1:5"), (0, 2))
    assert described.curves("rmse")["bayes"].mean[0] != plain.curves("rmse")["bayes"].mean[0]


def test_default_shots_are_those_that_leave_a_target(split: tuple[Headstart, Table]) -> None:
    model, new = split
    few = pd.DataFrame({"row": list(new.rows[:6]), "feature": ["x"] * 6, "value": [1, 5, 2, 4, 3, 3]})
    curve = model.evaluate(Table.read(few, kinds="rating:1:5")).curves("rmse")["bayes"]
    assert curve.shots == [0, 1, 2, 4]


def test_what_cannot_be_evaluated_is_refused(split: tuple[Headstart, Table]) -> None:
    model, new = split
    strange = pd.DataFrame({"row": ["a", "b"], "feature": ["x", "x"], "value": [1, 5]})
    with pytest.raises(InputError, match="knows none of the rows"):
        model.evaluate(Table.read(strange, kinds="rating:1:5"))
    with pytest.raises(InputError, match="takes a Table, a frame, an array or the path of a file"):
        model.evaluate([1])
    with pytest.raises(InputError, match="must be 'features' or 'cells'"):
        model.evaluate(new, on="rows")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"knows none of the table's features.*on='features'"):
        model.evaluate(new, on="cells")
    with pytest.raises(InputError, match=r"500 shots leave no observation to test on.*use shots below"):
        model.evaluate(new, (0, 500))
    with pytest.raises(InputError, match="shots must be different whole numbers"):
        model.evaluate(new, (2, 2))
    binary = Table.read(pd.DataFrame({"row": ["u1", "u2"], "feature": ["x", "x"], "value": [0, 1]}))
    with pytest.raises(InputError, match="kind binary is not among those"):
        model.evaluate(binary)


def test_every_adapter_can_be_evaluated(fresh: Fresh) -> None:
    table = ratings_table(rows=60, features=30, seed=5)
    new = table.with_features([f"f{j}" for j in range(24, 30)])
    found = fresh("pvae", "chn").evaluate(new, (0, 4))
    assert found.curves("rmse")["chn"].shots == [0, 4]
