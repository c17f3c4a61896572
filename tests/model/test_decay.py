"""Observations that count less the older they are."""

from __future__ import annotations

from copy import copy
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from tests.limits import Limits
from tests.model.conftest import CLOSED, ratings_table
from tests.states import snapshot, state_of

from headstart.errors import InputError, UnknownNameError
from headstart.model import Headstart
from headstart.table import Table
from headstart.table.times import age_weights, half_life_of, time_of, times_of

HALF = 100.0


def world(*, drift: bool, rows: int = 150, features: int = 30, seed: int = 0) -> dict[str, np.ndarray]:
    """Real numbers of 0 to 1000 days; rows and features may become other ones meanwhile."""
    random = np.random.default_rng(seed)
    start, end = random.normal(size=(2, rows, 2))
    early, late = random.normal(size=(2, features, 2))
    row, feature = np.nonzero(random.random((rows, features)) < 0.6)
    time = random.uniform(0, 1000, size=len(row))
    share = (time / 1000)[:, None] if drift else 0.0
    taste = (1 - share) * start[row] + share * end[row]
    trait = (1 - share) * early[feature] + share * late[feature]
    value = (taste * trait).sum(1) + 0.3 * random.normal(size=len(row))
    return {"row": np.array([f"u{i}" for i in row]), "feature": np.array([f"f{j}" for j in feature]),
            "value": value, "time": time}  # fmt: skip


def part(world: dict[str, np.ndarray], mask: np.ndarray) -> pa.Table:
    return pa.table({name: column[mask] for name, column in world.items()})


def table_of(frame: pa.Table) -> Table:
    return Table.read(frame, time="time", kinds="real:0:1.5")


def error(model: Headstart, frame: pa.Table) -> float:
    told = model.predict(model.rows, model.features)
    rows, features = (frame[name].to_pylist() for name in ("row", "feature"))
    known = [n for n, (r, f) in enumerate(zip(rows, features, strict=True))
             if r in model.rows and f in model.features]  # fmt: skip
    at = told.rows.positions([rows[n] for n in known]), told.features.positions([features[n] for n in known])
    return float(np.sqrt(np.mean((told.mean[at] - frame["value"].to_numpy()[known]) ** 2)))


@pytest.mark.parametrize("drift", [True, False])
def test_decay_foresees_a_drifting_world_and_loses_little_in_a_still_one(drift: bool) -> None:
    random = np.random.default_rng(1)
    made = world(drift=drift)
    later = (made["time"] > 850) & (random.random(len(made["time"])) < 0.5)
    held = table_of(part(made, ~later))
    plain, aging = Headstart(**CLOSED).fit(held), Headstart(**CLOSED, half_life=300).fit(held)
    without, with_decay = (error(model, part(made, later)) for model in (plain, aging))
    if drift:
        assert with_decay < 0.9 * without, (with_decay, without)
    else:
        assert with_decay < 1.1 * without, (with_decay, without)


def test_a_living_model_follows_drift() -> None:
    made = world(drift=True)
    first, last = made["time"] < 500, made["time"] > 900
    models = [Headstart(**CLOSED).fit(table_of(part(made, first))),
              Headstart(**CLOSED, half_life=150).fit(table_of(part(made, first)))]  # fmt: skip
    for begin in range(500, 900, 100):
        block = (made["time"] >= begin) & (made["time"] < begin + 100)
        known = np.isin(made["row"], models[0].rows) & np.isin(made["feature"], models[0].features)
        models[0].observe(part(made, block & known).drop_columns("time"))
        models[1].observe(part(made, block & known))
    plain, aging = (error(model, part(made, last)) for model in models)
    assert aging < 0.95 * plain, (aging, plain)


@cache
def fitted(kind: str = "rating") -> Headstart:
    table = ratings_table()
    random = np.random.default_rng(3)
    times = np.floor(random.uniform(0, 1000, len(table)))
    frame = pa.table({
        "row": [table.rows[i] for i in table.row_index],
        "feature": [table.features[j] for j in table.feature_index],
        "value": (table.values > 3).astype(float) if kind == "binary" else table.values,
        "time": times,
    })  # fmt: skip
    kinds = {"rating": "rating:1:5", "real": "real:3:1", "binary": "binary"}[kind]
    return Headstart(**CLOSED, half_life=HALF).fit(Table.read(frame, time="time", kinds=kinds))


def fresh(kind: str = "rating") -> Headstart:
    trained = fitted(kind)
    return copy(trained)


def test_nothing_changes_without_a_half_life() -> None:
    plain = ratings_table()
    frame = pa.table({
        "row": [plain.rows[i] for i in plain.row_index],
        "feature": [plain.features[j] for j in plain.feature_index],
        "value": plain.values,
        "time": np.arange(len(plain)),
    })  # fmt: skip
    timed = Table.read(frame, time="time", kinds="rating:1:5")
    untimed = Table.read(frame.drop_columns("time"), kinds="rating:1:5")
    one, other = (Headstart(**CLOSED).fit(each).predict() for each in (timed, untimed))
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.std, other.std)


@pytest.mark.parametrize("kind", ["rating", "real"])
def test_weights_are_those_of_a_weighted_regression(kind: str) -> None:
    """The head of a feature, by its definition, one observation after the other."""
    model = fresh(kind)
    model.observe([("u1", "f1", 4, 1500)])
    feature, held = state_of(model).feature_store["f1"], state_of(model)
    prior = held.adapter.prior
    states = held.row_store.take(feature.rows, "reference")
    scaled = (feature.values - feature.kind.offset) / feature.kind.span
    batch, _ = held.adapter_inputs([feature], "reference")
    noise = held.adapter._noise(states, batch).double().numpy()
    weights = 2.0 ** ((feature.times - 1500) / HALF)
    rows = np.concatenate([states.activation.numpy(), np.ones((len(scaled), 1))], axis=1).astype(np.float64)
    root = prior.root(torch.float64).detach().numpy()
    assert not held.adapter.mixes_priors  # the prior has one part
    mean = prior.known_means[held.feature_store.number("f1"), 0].double().numpy()
    precision = np.linalg.inv(root @ root.T)
    linear = precision @ mean
    for row, value, weight, variance in zip(rows, scaled, weights, noise, strict=True):
        precision = precision + weight / variance * np.outer(row, row)
        linear = linear + weight / variance * value * row
    head = held.feature_store.take(["f1"])[1]
    np.testing.assert_allclose(
        head.weight[0].numpy(), np.linalg.solve(precision, linear)[:-1], rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("kind", ["rating", "real", "binary"])
def test_one_is_as_among_many(kind: str, limits: Limits) -> None:
    one, many = fresh(kind), fresh(kind)
    stream = [("u1", "f0", 1, 1100), ("u5", "f3", 1, 900), ("u1", "f0", 1, 1200), ("u7", "f9", 1, 2000.5)]
    for each in stream:
        one.observe([each])
    limits(computed_one_by_one=0)
    for each in stream:
        many.observe([each])
    np.testing.assert_allclose(one.predict().mean, many.predict().mean, rtol=2e-5)
    np.testing.assert_allclose(one.predict().std, many.predict().std, rtol=2e-5)
    assert one.table() == many.table()
    assert one.table().times.max() == 2000.5


def test_sums_fade_exactly() -> None:
    """A feature by name adds to kept sums, which fade as time goes on; the same as from all observations."""
    kept, anew = fresh(), fresh()
    kept.observe_feature("f1", {"u1": 5}, time=1100)
    kept.observe_feature("f1", {"u2": 1}, time=1300)
    kept.observe_feature("f1", {"u3": 2}, time=1250)  # late
    anew.observe_feature("f1", {"u3": 2}, time=1250)
    anew.observe([("u2", "f1", 1, 1300), ("u1", "f1", 5, 1100)], update="features")
    np.testing.assert_allclose(
        kept.predict(features=["f1"]).mean, anew.predict(features=["f1"]).mean, rtol=1e-5
    )
    np.testing.assert_allclose(
        kept.predict(features=["f1"]).std, anew.predict(features=["f1"]).std, rtol=1e-5
    )


def test_time_goes_on_for_what_is_observed_and_for_nothing_else() -> None:
    model = fresh()
    before = model.predict()
    model.observe([("u1", "f1", 3, 5000)])
    after = model.predict()
    rows = [i for i, name in enumerate(before.rows) if name != "u1"]
    features = [j for j, name in enumerate(before.features) if name != "f1"]
    np.testing.assert_array_equal(before.mean[np.ix_(rows, features)], after.mean[np.ix_(rows, features)])
    np.testing.assert_array_equal(before.std[np.ix_(rows, features)], after.std[np.ix_(rows, features)])
    wide = after.std[:, after.features.position("f1")].mean()
    assert wide > before.std[:, before.features.position("f1")].mean()  # all but one value have faded


def test_a_late_observation_does_not_turn_time_back() -> None:
    late, together = fresh(), fresh()
    late.observe([("u1", "f1", 3, 5000)])
    late.observe([("u2", "f1", 5, 10)])
    together.observe([("u1", "f1", 3, 5000), ("u2", "f1", 5, 10)])
    np.testing.assert_allclose(late.predict().mean, together.predict().mean, rtol=1e-5)
    np.testing.assert_allclose(late.predict().std, together.predict().std, rtol=1e-5)


def test_a_saved_model_keeps_its_times(tmp_path: Path) -> None:
    model = fresh()
    model.add_feature("new", observations={"u1": 5, "u2": 3})
    model.add_rows({"x": {"f1": 4}})
    model.observe([("x", "f2", 1, 1400), ("u3", "new", 4, 1300)])
    model.observe_feature("f9", {"x": 4}, time=1500)
    model.save(tmp_path / "m")
    loaded = Headstart.load(tmp_path / "m")
    assert loaded.half_life == HALF
    np.testing.assert_array_equal(model.predict().mean, loaded.predict().mean)
    assert model.table() == loaded.table()
    for each in (model, loaded):
        each.observe([("x", "f1", 2, 1600), ("u4", "new", 1, 1700)])
        each.remove_row("u9")
        each.observe([("u8", "f2", 5, 1800)])
    np.testing.assert_allclose(model.predict().mean, loaded.predict().mean, rtol=1e-6)
    table = model.table()
    at = np.flatnonzero((table.row_index == table.rows.position("x"))
                        & (table.feature_index == table.features.position("f1")))  # fmt: skip
    assert table.times is not None
    assert table.times[at].tolist() == [1600.0]
    again = Headstart(**CLOSED, half_life=HALF).fit(table)
    assert again.table().times.max() == 1800


def test_an_explanation_adds_up_whenever_a_row_was_observed() -> None:
    model = fresh()
    model.observe([("u1", "f1", 3, 1500)], update="rows")
    model.observe([("u2", "f2", 3, 4000)], update="rows")
    for row in ("u1", "u2", "u3"):
        told = model.explain(row, "f5")
        # What is left beside observations and metadata would show that other weights were taken.
        assert sum(abs(each.value) for each in told if each.source == "row") < 1e-3, row


NO_TIME = {"row": ["u1"], "feature": ["f1"], "value": [3]}
BAD = {
    "missing": ([("u1", "f1", 3)], {}, "say when they were made"),
    "some missing": ([("u1", "f1", 3, 4), ("u2", "f1", 3)], {}, "entry 1 has no time"),
    "twice": ([("u1", "f1", 3, 4)], {"time": 5}, "given twice"),
    "not finite": ([("u1", "f1", 3, float("inf"))], {}, "must be finite"),
    "nan": ([("u1", "f1", 3)], {"time": float("nan")}, "missing|finite"),
    "mixed": ([("u1", "f1", 3, 4), ("u2", "f1", 3, "2024-01-01")], {}, "all be numbers, or all be dates"),
    "no date": ([("u1", "f1", 3, "yesterday")], {}, "numbers, or dates"),
    "bool": ([("u1", "f1", 3, True)], {}, "numbers or dates"),
    "no column": (pd.DataFrame(NO_TIME), {}, "no column 'time'"),
    "column": (pd.DataFrame(NO_TIME), {"time": 5}, "name of a column"),
    "null": (pd.DataFrame({**NO_TIME, "time": [None]}), {}, "missing|numbers or dates"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_times_change_nothing(case: str) -> None:
    model = fresh()
    before = snapshot(model)
    given, options, message = BAD[case]
    with pytest.raises((InputError, UnknownNameError), match=message):
        model.observe(given, **options)
    with pytest.raises(InputError, match="say when they were made"):
        model.observe_feature("f1", {"u1": 3})
    assert snapshot(model) == before


def test_a_time_without_a_half_life_is_refused() -> None:
    model = Headstart(**CLOSED).fit(ratings_table())
    before = snapshot(model)
    for wrong in (
        lambda: model.observe([("u1", "f1", 3, 5)]),
        lambda: model.observe([("u1", "f1", 3)], time=5),
        lambda: model.observe_feature("f1", {"u1": 3}, time=5),
        lambda: model.observe(pd.DataFrame({**NO_TIME, "time": [4]}), time="time"),
    ):
        with pytest.raises(InputError, match="no half-life"):
            wrong()
    assert snapshot(model) == before


def test_what_fit_needs() -> None:
    with pytest.raises(InputError, match="when each observation was made"):
        Headstart(**CLOSED, half_life=5).fit(ratings_table())
    made = table_of(pa.table(world(drift=False, rows=20, features=6)))
    for wrong in ({"adapter": "knn-5"}, {"adapter": "bayes", "backbone": "pvae"}):
        with pytest.raises(InputError, match="half_life"):
            Headstart(**wrong, quiet=True, half_life=5).fit(made)
    for wrong in (0, -1, "soon", "5 moons", float("nan"), True, [3]):
        with pytest.raises(InputError, match="half_life"):
            Headstart(**CLOSED, half_life=wrong).fit(made)


def test_times_and_half_lives() -> None:
    assert half_life_of("1 week") == half_life_of(timedelta(days=7)) == 604800
    assert half_life_of("2.5 hours") == 9000
    assert half_life_of("90") == 90
    second = datetime(2024, 5, 17, tzinfo=UTC).timestamp()
    for given in (date(2024, 5, 17), datetime(2024, 5, 17), "2024-05-17", np.datetime64("2024-05-17"), second,
                  datetime(2024, 5, 17, tzinfo=UTC), pd.Timestamp("2024-05-17")):  # fmt: skip
        assert time_of(given, "time") == second
    assert times_of(pa.array(["7", "8.5"]), "time").tolist() == [7.0, 8.5]
    np.testing.assert_allclose(age_weights(np.array([0.0, 100.0, 300.0]), 200.0, 100.0), [0.25, 0.5, 1.0])
    assert age_weights(np.array([-1e9]), 0.0, 1.0)[0] > 0


def test_of_several_values_of_a_cell_the_newest_is_the_last() -> None:
    frame = pa.table({"row": ["a", "a", "b"], "feature": ["x", "x", "y"], "value": [5, 1, 3],
                      "time": ["2024-05-02", "2024-05-01", "2024-05-01"]})  # fmt: skip
    table = Table.read(frame, time="time", duplicates="last")
    assert table.observations_of("x") == {"a": 5.0}
    assert table.times is not None
    assert table.times[0] == datetime(2024, 5, 2, tzinfo=UTC).timestamp()
    assert table.with_features(["y", "x"]).times.tolist() == table.times.tolist()
    with pytest.raises(InputError, match="long form"):
        Table.read(pa.table({"row": ["a"], "x": [1], "time": [3]}), time="time")
