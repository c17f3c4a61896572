"""A category is one feature for users, in every method; FEATURE=LEVEL names a level where one is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headstart import Headstart, Table
from headstart.errors import InputError, UnknownNameError

ROWS = [f"u{i:02}" for i in range(50)]
QUESTIONS = [f"q{j}" for j in range(6)]
LEVELS = ["A", "B", "C"]


def answers(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(len(ROWS), 1)) + 0.7 * rng.normal(size=(len(ROWS), len(QUESTIONS)))
    frame = pd.DataFrame(np.array(LEVELS)[np.digitize(z, [-0.5, 0.5])], columns=QUESTIONS)
    frame = frame.astype(object).mask(rng.random(frame.shape) < 0.3)
    frame.insert(0, "row", ROWS)
    return frame


@pytest.fixture(scope="module")
def fitted() -> Headstart:
    frame = answers()
    rng = np.random.default_rng(1)
    frame["score"] = rng.integers(1, 6, len(frame)).astype(float)
    frame["other"] = rng.integers(1, 6, len(frame)).astype(float)
    kinds = {**dict.fromkeys(QUESTIONS, "category:A,B,C"), None: "rating:1:5"}
    return Headstart(adapter="bayes", quiet=True).fit(Table.read(frame, row="row", kinds=kinds, quiet=True))


@pytest.fixture
def model(fitted: Headstart) -> Headstart:
    return Headstart.from_state(fitted.state)


def test_features_are_questions(model: Headstart) -> None:
    assert model.features == [*QUESTIONS, "score", "other"]
    assert model.info.features == 8
    assert "features: 8, 0 of them added after fit" in str(model.info)
    model.add_feature("new", kind="category:X,Y", observations={"u01": "X"})
    assert (model.info.features, model.info.added, model.info.latest) == (9, 1, ("new (1 shots)",))
    assert str(model.feature("q0").kind) == "category:A,B,C"
    assert set(model.row("u03").observations) <= set(model.features)


def test_a_prediction_has_one_column_per_question(model: Headstart) -> None:
    found = model.predict(ROWS[:4])
    assert list(found.features) == model.features
    assert found.mean.shape == (4, 8)
    assert np.isnan(found.mean[:, :6]).all()
    assert np.isfinite(found.mean[:, 6:]).all()
    for part in (*found.interval(), found.quantile(0.5), found.quantile(0.1), found.probability_above(0.5)):
        assert np.isnan(part[:, :6]).all()
        assert np.isfinite(part[:, 6:]).all()
    chances = found.probabilities("q2")
    np.testing.assert_allclose(chances.sum(1), 1)
    assert found.labels("q2") == [LEVELS[best] for best in chances.argmax(1)]
    lines = found.to_arrow().to_pylist()
    assert len(lines) == 4 * 8
    assert (lines[2]["feature"], lines[2]["label"]) == ("q2", found.labels("q2")[0])
    assert lines[2]["probability"] == pytest.approx(chances[0].max())
    assert (lines[6]["label"], lines[6]["probability"]) == (None, None)
    long = found.probabilities_to_arrow().to_pylist()
    assert len(long) == 4 * 6 * 3
    assert long[1] == {"row": "u00", "feature": "q0", "level": "B", "probability": long[1]["probability"]}
    assert f"{found.labels('q0')[0]} (" in repr(found)
    drawn = found.sample(4000)
    shares = [(drawn[:, 0, 2] == level).mean() for level in range(3)]
    np.testing.assert_allclose(shares, chances[0], atol=0.03)


def test_the_name_of_a_level_is_an_event(model: Headstart) -> None:
    both = model.predict(ROWS[:4], ["q1", "q1=B"])
    assert [str(kind) for kind in both.kinds] == ["category:A,B,C", "binary"]
    np.testing.assert_array_equal(both.mean[:, 1], both.probabilities("q1")[:, 1])
    ranking = model.audience("q1=B", n=5, exclude_observed=False)
    assert ranking.mean[0] >= ranking.mean[-1]
    with pytest.raises(UnknownNameError, match="'q1' is a category; name one of its levels, as 'q1=A'"):
        model.audience("q1")
    names = model.recommend("u03", features=["q1=A", "q2=A", "q3=A"], exclude_observed=False).names
    assert set(names) == {"q1=A", "q2=A", "q3=A"}


def test_rankings_compare_numbers_and_information_compares_questions(model: Headstart) -> None:
    assert set(model.recommend("u03", exclude_observed=False).names) == {"score", "other"}
    asked = model.recommend("u03", n=5, by="information", exclude_observed=False)
    assert set(asked.names) <= set(model.features)
    assert len(set(asked.names)) == 5
    only = Headstart(adapter="bayes", quiet=True).fit(Table.read(answers(), row="row", quiet=True))
    with pytest.raises(InputError, match="levels have no order: name the levels to rank by"):
        only.recommend("u03")
    assert only.features == QUESTIONS
    assert only.recommend({"q0": "A"}, n=2, by="information").names[0] in QUESTIONS[1:]


def test_suggest_similar_and_explain_speak_of_questions(model: Headstart) -> None:
    assert len(model.suggest("q1", 3)) == 3
    assert len(model.audience("q1", 3, by="information")) == 3
    similar = model.similar("q1", 4)
    assert similar.feature == "q1"
    assert len(set(similar.names)) == 4
    assert set(similar.names) <= set(model.features) - {"q1"}
    explanation = model.explain("u03", "q1")
    predicted = model.predict(["u03"], ["q1"])
    assert explanation.feature == f"q1={predicted.labels('q1')[0]}"
    assert explanation.mean == pytest.approx(predicted.probabilities("q1").max())
    observed = explanation.of("observation")
    own = model.row("u03").observations
    assert {part.name: part.given for part in observed} == own
    total = explanation.baseline + sum(part.value for part in explanation)
    assert total == pytest.approx(explanation.output)


def test_an_answer_updates_all_levels(model: Headstart) -> None:
    row = next(row for row in ROWS if "q1" not in model.row(row).observations)
    shots = model.feature("q1").shots
    model.observe([(row, "q1", "B")])
    assert model.row(row).observations["q1"] == "B"
    assert model.feature("q1").shots == shots + 1
    model.observe([(row, "q1=C", 1)])  # the same as q1 = "C"
    assert model.row(row).observations["q1"] == "C"
    model.observe_row(row, {"q1": "A"}, weight=2.0, update="both")
    assert model.feature("q1").observations[row] == "A"
    assert model.feature("q1").shots == shots + 1
    assert {model.state.feature_store[f"q1={level}"].shots for level in LEVELS} == {shots + 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.observe([("u01", "q1=A", 0)]), "say which level of 'q1' was observed"),
        (lambda model: model.observe([("u01", "q1", "D")]), "'D' is not one of 'A', 'B', 'C'"),
        (lambda model: model.observe([("u01", "q1", "A"), ("u01", "q1", "B")]), "is given twice"),
        (lambda model: model.observe([("u01", "q1=A", 1), ("u01", "q1=B", 1)]), "is given twice"),
        (lambda model: model.observe_row("u01", {"q1": "A", "q1=B": 1}), "is given twice"),
        (lambda model: model.observe_feature("q1=A", {"u01": 1}), "is a level of 'q1'; observe 'q1'"),
        (lambda model: model.remove_feature("q1=A"), "'q1=A' is a level of 'q1'; remove 'q1'"),
        (lambda model: model.rename_feature("q1=A", "x"), "is a level of 'q1'; rename 'q1'"),
        (lambda model: model.rename_feature("score", "q1"), "'q1' is already in the model"),
        (lambda model: model.add_feature("q1"), "'q1' is already in the model"),
        (lambda model: model.add_feature("q1", kind="rating:1:5"), "'q1' is already in the model"),
        (lambda model: model.add_feature("n", kind="category:A,B", observations={"u1": "C"}), "not one of"),
        (lambda model: model.add_row("n", observations={"q1": "D"}), "'D' is not one of"),
    ],
)
def test_invalid_answers_change_nothing(model: Headstart, change: Any, message: str) -> None:
    before = model.state
    with pytest.raises(InputError, match=message):
        change(model)
    assert model.state is before


def test_draws_and_imputations_have_labels(model: Headstart) -> None:
    drawn = model.sample(ROWS[:3], ["q0", "score"], n=500)
    assert drawn.shape == (500, 3, 2)
    shares = np.stack([(drawn[:, :, 0] == level).mean(0) for level in range(3)], axis=1)
    np.testing.assert_allclose(shares, model.predict(ROWS[:3], ["q0"]).probabilities("q0"), atol=0.08)
    imputations = model.impute(m=2)
    frame = imputations[0]
    assert list(frame) == model.features
    given = answers().set_index("row")
    for question in QUESTIONS:
        assert set(frame[question]) <= set(LEVELS)
        known = given[question].notna()
        assert (frame[question].astype(object)[known] == given[question][known]).all()
    assert set(imputations.to_arrow(1)["q0"].to_pylist()) <= set(LEVELS)


def test_a_saved_model_speaks_of_questions(model: Headstart, tmp_path: Path) -> None:
    model.save(tmp_path / "m")
    with Headstart.updating(tmp_path / "m") as changed:
        changed.add_feature("new", kind="category:X,Y", observations={"u01": "X"})
        changed.observe([("u02", "new", "Y")])
        changed.remove_feature("q0")
        changed.rename_feature("q1", "first")
    loaded = Headstart.load(tmp_path / "m")
    assert loaded.features == ["first", *QUESTIONS[2:], "score", "other", "new"]
    assert loaded.feature("new").observations == {"u01": "X", "u02": "Y"}


def test_a_table_counts_questions() -> None:
    table = Table.read(answers(), row="row", quiet=True)
    given = int(answers()[QUESTIONS].notna().sum().sum())
    assert repr(table) == f"Table(50 rows × 6 features, {given} observations, 6 category:A,B,C)"
    assert f"50 rows × 6 features, {given} observations" in table.describe()


def test_features_without_answers_get_the_levels_of_the_others() -> None:
    described = pd.DataFrame({"feature": [*QUESTIONS, "unasked"], "year": range(7)})
    model = Headstart(adapter="bayes", quiet=True).fit(answers(), metadata=described)
    found = model.predict(features=["unasked", "q0"])
    assert found.levels("unasked") == LEVELS
    np.testing.assert_allclose(found.probabilities("unasked").sum(1), 1)
    assert set(model.impute(1)[0]["unasked"]) <= set(LEVELS)
    assert model.recommend("u00", by="information", n=7).names[0] in model.features
    own = answers().assign(**{f"q{j}": lambda frame, j=j: frame[f"q{j}"] + str(j) for j in range(6)})
    with pytest.raises(InputError, match=r"'unasked' has no observations.*'category:A,B,C'"):
        Table.read(own, metadata=described)


def test_features_without_answers_beside_few_categories_get_another_kind() -> None:
    numbers = np.random.default_rng(0).normal(size=(len(ROWS), 7))
    frame = answers()[["row", "q0"]].assign(**{f"n{j}": numbers[:, j] for j in range(7)})
    described = pd.DataFrame({"feature": ["q0", "unasked"], "year": [1, 2]})
    table = Table.read(frame, metadata=described)
    assert table.kinds[table.features.position("unasked")].name == "real"


def test_a_category_with_one_observed_level_is_a_category(tmp_path: Path) -> None:
    frame = answers().assign(**dict.fromkeys(QUESTIONS, "A"))
    model = Headstart(adapter="bayes", quiet=True).fit(frame, kinds="category")
    assert "6 category:A" in model.table().describe()
    assert (model.predict().probabilities("q0") == 1).all()
    with pytest.raises(InputError, match="the features are categories, whose levels have no order"):
        model.recommend("u00", exclude_observed=False)
