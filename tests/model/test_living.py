"""Rows that live: their states follow what they observe, of any feature, and they can leave."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from tests.model.conftest import CLOSED
from tests.oracles.row_state import row_state
from tests.states import snapshot, state_of

from headstart.adapters.base import Adapter
from headstart.errors import InputError, UnknownNameError
from headstart.model import Headstart, Prediction
from headstart.table import Table

Fresh = Callable[..., Headstart]


def same(one: Prediction, other: Prediction, rows: list[str], features: list[str]) -> bool:
    """Whether two predictions agree bit for bit at these rows and features."""
    at = np.ix_(one.rows.positions(rows), one.features.positions(features))
    there = np.ix_(other.rows.positions(rows), other.features.positions(features))
    return np.array_equal(one.mean[at], other.mean[there]) and np.array_equal(one.std[at], other.std[there])


def test_triples_update_their_rows_and_features_and_nothing_else(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    before = model.predict()
    said = model.observe([("u1", "f1", 5), ("u2", "f1", 1), ("u2", "f3", 4)])
    assert (said.observations, said.features, said.rows) == (3, ("f1", "f3"), ("u1", "u2"))
    assert str(said) == "3 observations taken; 2 features and 2 rows changed"
    after = model.predict()
    rows = [row for row in model.rows if row not in ("u1", "u2")]
    features = [name for name in model.features if name not in ("f1", "f3")]
    assert same(before, after, rows, features)
    assert not np.array_equal(before.mean[before.rows.position("u1")], after.mean[after.rows.position("u1")])
    for name in ("f1", "f3"):
        place = before.features.position(name)
        assert not np.array_equal(before.mean[:, place], after.mean[:, place])


@pytest.mark.parametrize("side", ["features", "rows"])
def test_one_side_can_be_updated_alone(fresh: Fresh, side: str) -> None:
    model = fresh(adapter="able")
    before = model.predict()
    said = model.observe([("u1", "f1", 5), ("u2", "f3", 1)], update=side)
    after = model.predict()
    rows, features = list(model.rows), list(model.features)
    if side == "features":
        assert (said.features, said.rows) == (("f1", "f3"), ())
        assert same(before, after, rows, [name for name in features if name not in ("f1", "f3")])
        assert not same(before, after, rows, ["f1"])
    else:
        assert (said.features, said.rows) == ((), ("u1", "u2"))
        assert same(before, after, [row for row in rows if row not in ("u1", "u2")], features)
        assert not same(before, after, ["u1"], ["f5"])


def test_a_feature_by_name_leaves_every_row_as_it_is(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    before = model.predict()
    said = model.observe_feature("f1", {"u1": 5, "u3": 1})
    assert (said.observations, said.features, said.rows) == (2, ("f1",), ())
    assert same(before, model.predict(), list(model.rows), [name for name in model.features if name != "f1"])
    both = fresh(adapter="able")
    both.observe_feature("f1", {"u1": 5, "u3": 1}, update="both")
    triples = fresh(adapter="able")
    triples.observe([("u3", "f1", 1), ("u1", "f1", 5)])
    assert same(both.predict(), triples.predict(), list(model.rows), list(model.features))


def test_a_state_is_the_posterior_given_all_that_was_observed(fresh: Fresh) -> None:
    """Of the backbone's own features, of one observed since fit, and of one that was added."""
    model = fresh(adapter="able")
    model.add_feature("new", observations={f"u{i}": 1 + i % 5 for i in range(40)})
    model.observe_feature("f2", {"u5": 3})
    told = {"f1": 5.0, "f2": 2.0, "new": 4.0, "f7": 1.0}
    model.add_rows({"x": {"f1": 5}})
    model.observe([("x", "f2", 5), ("x", "new", 4)], update="rows")
    model.observe([("x", "f2", 2), ("x", "f7", 1)], update="rows")  # a value is corrected
    state = state_of(model).row_store.take(model.rows.positions(["x"]))
    factors = row_state(state_of(model), told)
    np.testing.assert_allclose(state.activation[0].numpy(), factors, rtol=2e-4, atol=2e-5)
    guest = model.predict({"x": told}, ["f5", "new"])
    np.testing.assert_allclose(guest.mean, model.predict(["x"], ["f5", "new"]).mean, rtol=1e-6)


def test_a_row_without_changes_keeps_its_state(fresh: Fresh) -> None:
    """To observe again what the table holds computes the state that fit computed."""
    model = fresh(adapter="able")
    before = model.predict()
    feature = model.feature("f1")
    row = feature.rows[0]
    model.observe([(row, "f1", feature.values[0])], update="rows")
    np.testing.assert_allclose(model.predict().mean, before.mean, rtol=1e-6)


def test_rows_known_by_new_features_are_predicted_well() -> None:
    """Rows that observed only features added after fit, against the same rows and features in the table."""
    random = np.random.default_rng(1)
    taste, trait = random.normal(size=(400, 3)), random.normal(size=(60, 3))
    values = taste @ trait.T + 0.3 * random.normal(size=(400, 60))
    names = [f"f{j}" for j in range(60)]

    def frame(rows: range, columns: range) -> pa.Table:
        at = [(i, j) for i in rows for j in columns if (i * 7 + j * 3) % 5 < 3]
        return pa.table({"row": [f"u{i}" for i in [a for a, _ in at]], "feature": [names[b] for _, b in at],
                         "value": [values[a, b] for a, b in at]})  # fmt: skip

    kinds = "real"
    old = Table.read(frame(range(300), range(44)), kinds=kinds)
    model = Headstart(**CLOSED).fit(old)
    for j in range(44, 60):
        seen = {f"u{i}": values[i, j] for i in range(0, 300, 2)}
        model.add_feature(names[j], observations=seen)
    model.add_rows({f"u{i}": {names[j]: values[i, j] for j in range(44, 60)} for i in range(300, 400)})
    rows = [f"u{i}" for i in range(300, 400)]
    error = np.sqrt(np.mean((model.predict(rows, names[:44]).mean - values[300:, :44]) ** 2))
    spread = values[300:, :44].std()
    assert error < 0.35 * spread, (error, spread)


def test_a_removed_row_leaves_nothing_behind(fresh: Fresh) -> None:
    model, never = fresh(adapter="able"), fresh(adapter="able")
    told = {"f1": 5, "f2": 1, "f3": 4}
    for each in (model, never):
        each.add_feature("new", observations={"u1": 5, "u2": 3})
    model.add_rows({"gone": told, "stays": {"f1": 2}}, update="both")
    model.observe([("gone", "f1", 1), ("gone", "new", 5)])
    never.add_rows({"stays": {"f1": 2}})
    never.observe([("stays", "f1", 2)], update="features")
    model.remove_row("gone")
    assert list(model.rows) == list(never.rows)
    one, other = model.predict(), never.predict()
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-6)
    np.testing.assert_allclose(one.std, other.std, rtol=1e-6)
    for name in model.features:
        assert model.feature(name).shots == never.feature(name).shots
    guest = {"g": {"f1": 3, "f2": 4, "new": 2}}
    np.testing.assert_allclose(model.predict(guest).mean, never.predict(guest).mean, rtol=1e-6)


def test_a_row_of_the_table_can_be_removed(fresh: Fresh, tmp_path: Path) -> None:
    model = fresh(adapter="able")
    held = [name for name in model.features if "u7" in model_rows(model, name)]
    assert held
    others = [name for name in model.features if name not in held]
    before = model.predict()
    model.remove_row("u7")
    assert "u7" not in model.rows
    rows = list(model.rows)
    if others:
        assert same(before, model.predict(), rows, others)
    again = state_of(model).adapt([state_of(model).feature_store[name] for name in held])
    fresh_heads, heads = again.feature_store.take(held)[1], state_of(model).feature_store.take(held)[1]
    torch.testing.assert_close(fresh_heads.weight, heads.weight)
    assert all("u7" not in model_rows(model, name) for name in model.features)
    model.save(tmp_path / "m")
    assert b'u7"' not in (tmp_path / "m" / "model.json").read_bytes()
    assert same(model.predict(), Headstart.load(tmp_path / "m").predict(), rows, list(model.features))


def test_no_adapter_inside_a_blend_keeps_a_removed_row(fresh: Fresh) -> None:
    model = fresh("factorisation", "chn-bayes-blend")
    before = len(model.rows)
    model.remove_row("u7")
    adapter = state_of(model).adapter
    assert adapter.blend_partner is not None
    kept = [part.knowledge for part in adapter.modules() if isinstance(part, Adapter)]
    assert [len(knowledge.cells) for knowledge in kept] == [before - 1] * len(kept)


def model_rows(model: Headstart, feature: str) -> set[str]:
    return set(model.feature(feature).rows)


def test_names_can_be_changed(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    before = model.predict()
    model.rename_row("u1", "Ann")
    model.rename_feature("f1", "Alien")
    model.rename_feature("f2", "f2")
    after = model.predict()
    np.testing.assert_array_equal(before.mean, after.mean)
    assert "Ann" in model.rows
    assert "u1" not in model.rows
    model.observe([("Ann", "Alien", 5)])
    model.add_rows({"x": {"Alien": 4}})
    for wrong in (lambda: model.rename_row("Ann", "u2"), lambda: model.rename_feature("Alien", "f3")):
        with pytest.raises(InputError, match="already in the model"):
            wrong()
    with pytest.raises(UnknownNameError):
        model.rename_row("u1", "z")


FRAME = {"user": ["u1", "u2"], "film": ["f1", "f2"], "stars": [5, 1]}


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table, "file"])
def test_observations_come_from_frames_and_files(fresh: Fresh, make: object, tmp_path: Path) -> None:
    model, other = fresh(adapter="able"), fresh(adapter="able")
    if make == "file":
        given: object = tmp_path / "more.csv"
        (tmp_path / "more.csv").write_text("user,film,stars\nu1,f1,5\nu2,f2,1\n")
    else:
        given = make(FRAME)  # type: ignore[operator]
    model.observe(given, row="user", feature="film", value="stars")
    other.observe([("u2", "f2", 1), ("u1", "f1", 5)])
    assert same(model.predict(), other.predict(), list(model.rows), list(model.features))


BAD = {
    "unknown row": ([("nobody", "f1", 3)], {}, r"unknown row 'nobody'.*add_rows\(\)"),
    "unknown feature": ([("u1", "f999", 3)], {}, r"unknown feature 'f999'.*add_features\(\)"),
    "kind": ([("u2", "f1", 3), ("u1", "f1", 9)], {}, "row 'u1', feature 'f1': the value 9 is not"),
    "text": ([("u1", "f1", "five")], {}, "must be a number; got 'five'"),
    "not finite": ([("u1", "f1", float("nan"))], {}, "leave unknown values out"),
    "twice": ([("u1", "f1", 3), ("u1", "f1", 4)], {}, "is given twice, as 3 and 4; keep one"),
    "pairs": ([("u1", "f1")], {}, r"list of \(row, feature, value\)"),
    "mapping": ({"u1": 3}, {}, "got dict"),
    "column": (pd.DataFrame({"row": ["u1"], "feature": ["f1"]}), {}, "value"),
    "named column": (pd.DataFrame(FRAME), {"row": "usr", "feature": "film", "value": "stars"}, "usr"),
    "side": ([("u1", "f1", 3)], {"update": "row"}, "update must be one of both, features, rows"),
    "no such file": ("f1", {}, "f1"),
    "number": (7, {}, r"observe_feature\(\) takes"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_observed_changes_nothing(fresh: Fresh, case: str) -> None:
    model = fresh(adapter="able")
    given, options, message = BAD[case]
    before = snapshot(model)
    with pytest.raises(InputError, match=message):
        model.observe(given, **options)
    assert snapshot(model) == before


def test_repeated_equal_triples_are_one(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    assert model.observe([("u1", "f1", 3), ("u1", "f1", 3.0)]).observations == 1


def test_parts_that_cannot_say_why(fresh: Fresh) -> None:
    closed = fresh("pvae", "bayes")
    closed.add_feature("new", observations={"u1": 3})
    with pytest.raises(InputError, match="the backbone 'pvae' reads the features of its table only"):
        closed.observe([("u1", "new", 4)])
    closed.observe([("u1", "new", 4)], update="features")
    before = closed.predict(["u1"], ["f3"]).mean
    closed.observe([("u1", "f1", 5), ("u1", "f2", 5)])
    assert not np.array_equal(before, closed.predict(["u1"], ["f3"]).mean)
    fixed = fresh("factorisation", "chn")
    fixed.add_feature("new", observations={"u1": 3})
    with pytest.raises(InputError, match="the adapter 'chn' does not know how sure it is"):
        fixed.observe([("u1", "new", 4)], update="rows")
    with pytest.raises(InputError, match="heads are fixed with this adapter"):
        fixed.observe([("u1", "f1", 4)])
    fixed.observe([("u1", "f1", 4)], update="rows")
    with pytest.raises(InputError, match="cannot be taken out of the features"):
        fixed.remove_row("u1")
    fixed.add_rows({"x": {"f1": 3}})
    fixed.remove_row("x")


def test_learned_activations_do_not_stand_in_the_way() -> None:
    """With chn-bayes a head also reads functions of a row's code, here some of them."""
    from tests.model.conftest import ratings_table

    model = Headstart(
        adapter={"name": "chn-bayes", "activations": 3}, metatraining={"epochs": 3}, quiet=True
    ).fit(ratings_table())
    model.add_feature("new", observations={f"u{i}": 1 + i % 5 for i in range(30)})
    model.add_rows({"x": {"new": 5}, "y": {"f1": 4}})
    model.observe([("x", "f2", 5), ("y", "new", 1), ("u3", "new", 2)])
    assert np.isfinite(model.predict(["x", "y"]).mean).all()
    assert model.predict(["x"], ["f5"]).mean != model.predict(["y"], ["f5"]).mean


def test_a_saved_model_goes_on_living(fresh: Fresh, tmp_path: Path) -> None:
    model = fresh(adapter="able")
    model.add_feature("new", observations={"u1": 5, "u2": 3})
    model.add_feature("gone", observations={"u1": 5})
    model.add_rows({"x": {"f1": 4, "new": 2, "gone": 1}})
    model.observe([("u1", "f1", 5), ("x", "f2", 1), ("u3", "new", 4), ("u3", "gone", 4)])
    model.observe_feature("f9", {"x": 4})
    model.remove_feature("gone")
    model.save(tmp_path / "m")
    loaded = Headstart.load(tmp_path / "m")
    rows, features = list(model.rows), list(model.features)
    assert same(model.predict(), loaded.predict(), rows, features)
    for each in (model, loaded):
        each.observe([("u3", "f1", 1), ("x", "new", 5)])
        each.remove_row("u9")
    one, other = model.predict(), loaded.predict()
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-6)
    np.testing.assert_allclose(one.std, other.std, rtol=1e-6)


def test_what_a_removed_feature_told_does_not_come_back(fresh: Fresh) -> None:
    model, other = fresh(adapter="able"), fresh(adapter="able")
    for each in (model, other):
        each.add_rows({"x": {"f1": 4}})
    model.add_feature("new", observations={"u1": 5, "u2": 3})
    model.observe([("x", "new", 1)])
    model.remove_feature("new")
    for each in (model, other):
        each.add_feature("new", observations={"u1": 5, "u2": 3})
        each.observe([("x", "f2", 3)], update="rows")
    assert same(model.predict(), other.predict(), ["x"], ["f5", "new"])


def test_the_table_holds_all_and_can_be_fitted_again(fresh: Fresh, tmp_path: Path) -> None:
    model = fresh(adapter="able")
    model.add_feature("new", metadata={"genre": "drama", "year": 2001}, observations={"u1": 5, "u2": 3})
    model.add_rows({"x": {"f1": 4, "new": 2}, "empty": {}})
    model.observe([("u1", "f1", 5), ("x", "f2", 1)])
    model.observe_feature("f3", {"x": 4})
    model.remove_row("u9")
    model.remove_feature("f8")
    model.save(tmp_path / "m")
    for each in (model, Headstart.load(tmp_path / "m")):
        table = each.table()
        assert list(table.rows) == list(each.rows)
        assert list(table.features) == list(each.features)
        assert table.observations_of("new") == {"u1": 5, "u2": 3, "x": 2}
        assert table.observations_of("f1")["u1"] == 5
        assert table.observations_of("f1")["x"] == 4
        assert table.observations_of("f3")["x"] == 4
        line = table.metadata.slice(table.features.position("new"), 1).to_pylist()[0]
        assert line == {"genre": "drama", "year": 2001}
        assert table.schema.describe() == "genre: category, year: number"
    again = Headstart.load(tmp_path / "m")
    again.quiet = True
    before = list(again.features)
    again.refit()
    assert sorted(again.features) == sorted(before)
    assert "empty" in again.rows
    assert again.feature("new").in_backbone


def test_a_table_is_what_it_was_before_anything_changed(fresh: Fresh) -> None:
    from tests.model.conftest import ratings_table

    for backbone, adapter in (("factorisation", "bayes"), ("factorisation", "chn")):
        table = fresh(backbone, adapter).table()
        given = ratings_table()
        for name in given.features:
            found, held = table.observations_of(name), given.observations_of(name)
            assert found.keys() == held.keys()
            np.testing.assert_allclose(list(found.values()), [held[row] for row in found], rtol=1e-6)


def test_staleness_tells_what_was_foreseen_from_what_was_not(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    taste, trait = random.normal(size=(200, 2)), random.normal(size=(2, 30))
    values = taste @ trait + 0.4 * random.normal(size=(200, 30))
    seen = random.random((200, 30)) < 0.5

    def triples(mask: np.ndarray, numbers: np.ndarray) -> list[tuple[str, str, float]]:
        return [(f"u{i}", f"f{j}", numbers[i, j]) for i, j in np.argwhere(mask)]

    rows, features, given = zip(*triples(seen, values), strict=True)
    frame = pa.table({"row": rows, "feature": features, "value": given})
    model = Headstart(**CLOSED).fit(Table.read(frame, kinds="real"))
    assert str(model.staleness()) == "nothing was observed since fit"
    later = ~seen & (random.random((200, 30)) < 0.4)
    calm, moved = copy(model), copy(model)
    calm.observe(triples(later, values))
    turned = (taste @ -trait) + 0.4 * random.normal(size=(200, 30))  # the world is another one
    with pytest.warns(UserWarning, match="standard deviations"):
        moved.observe(triples(later, turned))
    same_world, other_world = calm.staleness(), moved.staleness()
    assert same_world.observations == other_world.observations == later.sum()
    assert not same_world.refit, str(same_world)
    assert other_world.refit
    assert other_world.excess > same_world.excess + 0.5
    assert "a refit is likely to pay" in str(other_world)
    moved.save(tmp_path / "m")
    assert Headstart.load(tmp_path / "m").staleness() == other_world


def test_excess_is_likelihood_less_entropy() -> None:
    from headstart.core.likelihood import Likelihood, LikelihoodConfig
    from headstart.core.predictive import Predictive
    from headstart.model.staleness import excess_of

    likelihood = Likelihood(LikelihoodConfig(rating_link="identity"))
    kinds = torch.tensor([0, 1, 2])
    predictive = Predictive(
        torch.tensor([0.7, 0.4, -1.0]), torch.full((3,), 0.1), torch.full((3,), 0.2), kinds, likelihood
    )
    values = torch.tensor([1.0, 0.9, 0.5])
    p, m, s = float(predictive.mean[0]), predictive.mean.detach().numpy(), predictive.std.detach().numpy()
    found = excess_of(values.numpy(), m, s, kinds.numpy() == 0)
    entropy = -p * np.log(p) - (1 - p) * np.log(1 - p)
    assert found[0] == pytest.approx(-np.log(p) - entropy, rel=1e-4)
    for i in (1, 2):
        nll = 0.5 * ((values[i] - m[i]) / s[i]) ** 2 + np.log(s[i]) + 0.5 * np.log(2 * np.pi)
        assert found[i] == pytest.approx(float(nll - np.log(s[i]) - 0.5 * np.log(2 * np.pi * np.e)), rel=1e-4)
