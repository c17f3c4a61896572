"""The local part of new features: chosen by the judge, the same by every verb, and each feature's own."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.states import state_of, with_state

from headstart import Headstart, Table
from headstart.core.neighbours import LocalStrengths
from headstart.model.prediction import predict_one_cell, predict_pairs

ROWS, GROUPS, SIZE = 120, 15, 4
NEW = [f"q{number:02d}" for number in range(0, GROUPS * SIZE, 5)]
STRENGTHS = LocalStrengths(similar=(0.3,) * 9, chosen=(1.0,) * 9)


def answers(group_effect: float, seed: int = 0) -> dict[str, dict[str, float]]:
    """Values by feature and row: two factors, and one for each group of four features."""
    random = np.random.default_rng(seed)
    outputs = random.normal(size=(ROWS, 2)) @ random.normal(size=(2, GROUPS * SIZE)) / 2
    outputs += group_effect * np.repeat(random.normal(size=(ROWS, GROUPS)), SIZE, axis=1)
    values = np.clip(np.round(3 + outputs + random.normal(size=outputs.shape) / 2), 1, 5)
    observed = random.random(values.shape) < 0.5
    return {
        f"q{feature:02d}": {
            f"u{row:03d}": float(values[row, feature]) for row in np.flatnonzero(observed[:, feature])
        }
        for feature in range(GROUPS * SIZE)
    }


def table_of(features: dict[str, dict[str, float]]) -> Table:
    triples = [(row, name, value) for name, values in features.items() for row, value in values.items()]
    columns = dict(zip(("row", "feature", "value"), map(list, zip(*triples, strict=True)), strict=True))
    names = sorted(features)
    metadata = pa.table({"feature": names, "group": [f"g{int(name[1:]) // SIZE}" for name in names]})
    return Table.read(pa.table(columns), kinds="rating:1:5", metadata=metadata)


@cache
def judged(group_effect: float) -> Headstart:
    known = {name: values for name, values in answers(group_effect).items() if name not in NEW}
    return Headstart(quiet=True).fit(table_of(known))


@cache
def fitted() -> Headstart:
    """A small model with a local part, and two features added to it."""
    known = {name: values for name, values in answers(1.0).items() if name not in NEW}
    model = with_state(Headstart(adapter="bayes", quiet=True).fit(table_of(known)), local=STRENGTHS)
    for name in NEW[:2]:
        add(model, name, 20)
    return model


def add(model: Headstart, name: str, shots: int, group_effect: float = 1.0) -> dict[str, float]:
    """Add a feature with some of its values; return the others."""
    values = list(answers(group_effect)[name].items())
    order = np.random.default_rng(3).permutation(len(values))
    context = {values[i][0]: values[i][1] for i in order[:shots]}
    model.add_feature(name, observations=context, metadata={"group": f"g{int(name[1:]) // SIZE}"})
    return {values[i][0]: values[i][1] for i in order[shots:]}


def error(model: Headstart, features: dict[str, dict[str, float]]) -> float:
    squares = [
        (model.predict(rows=list(values), features=[name]).mean[:, 0] - np.array(list(values.values()))) ** 2
        for name, values in features.items()
    ]
    return float(np.sqrt(np.concatenate(squares).mean()))


def test_groups_of_features_are_predicted_better() -> None:
    model = copy.copy(judged(1.0))
    assert model.info.chosen.endswith("with neighbours")
    targets = {name: add(model, name, 32) for name in NEW}
    assert error(model, targets) < 0.95 * error(with_state(model, local=None), targets)


def test_without_groups_a_local_part_changes_little() -> None:
    model = copy.copy(judged(0.0))
    targets = {name: add(model, name, 32, group_effect=0.0) for name in NEW}
    assert error(model, targets) < 1.02 * error(with_state(model, local=None), targets)


def test_known_features_and_rows_outside_the_table_have_no_local_part() -> None:
    model, plain = fitted(), with_state(fitted(), local=None)
    known = [name for name in model.features if name not in NEW]
    assert np.array_equal(model.predict(features=known).mean, plain.predict(features=known).mean)
    guest: dict[str, Any] = {"guest": {"q01": 5, "q02": 1}}
    assert np.array_equal(model.predict(guest).mean, plain.predict(guest).mean)
    assert not np.array_equal(model.predict(features=NEW[:2]).mean, plain.predict(features=NEW[:2]).mean)


def test_another_feature_changes_no_prediction() -> None:
    model = copy.copy(fitted())
    before = model.predict()
    add(model, NEW[2], 12)
    after = model.predict(features=list(before.features))
    assert np.array_equal(before.mean, after.mean)
    assert np.array_equal(before.std, after.std)
    model.remove_feature(NEW[2])
    assert np.array_equal(before.mean, model.predict(features=list(before.features)).mean)


def test_every_verb_gives_the_same_prediction() -> None:
    model, name, row = fitted(), NEW[0], "u007"
    mean = float(model.predict(rows=[row], features=[name]).mean[0, 0])
    whole = model.predict()
    assert whole.mean[whole.rows.position(row), whole.features.position(name)] == mean
    state = state_of(model)
    assert predict_one_cell(state, row, name, 0.9).mean == pytest.approx(mean, abs=1e-9)
    pairs = np.array([state.rows.position(row)]), [name], np.zeros(1, np.int64)
    assert predict_pairs(state, *pairs, 0.9)[0][0] == pytest.approx(mean, abs=1e-9)
    ranking = model.audience(name, n=5, exclude_observed=False)
    top = model.predict(rows=list(ranking.names), features=[name]).mean[:, 0]
    assert ranking.mean.tolist() == pytest.approx(top.tolist(), abs=1e-9)
    best = np.sort(model.predict(features=[name]).mean[:, 0])[::-1][:5]
    assert top.tolist() == pytest.approx(best.tolist(), abs=1e-9)
    listed = model.recommend(row, n=len(model.features), exclude_observed=False)
    assert dict(zip(listed.names, listed.mean.tolist(), strict=True))[name] == pytest.approx(mean, abs=1e-9)


def test_an_explanation_adds_up_and_names_neighbours() -> None:
    explanation = fitted().explain("u007", NEW[0])
    total = explanation.baseline + sum(part.value for part in explanation.contributions)
    assert total == pytest.approx(explanation.output, abs=1e-9)
    neighbours = {part.name: part for part in explanation.contributions if part.source == "neighbour"}
    observed = {name for name, values in answers(1.0).items() if "u007" in values}
    assert neighbours
    assert neighbours.keys() <= observed - set(NEW)
    assert all(part.given == answers(1.0)[name]["u007"] for name, part in neighbours.items())
    plain = with_state(fitted(), local=None).explain("u007", NEW[0])
    moved = sum(part.value for part in neighbours.values())
    assert explanation.output - plain.output == pytest.approx(moved, abs=1e-5)


def test_a_saved_or_copied_model_predicts_the_same(tmp_path: Path) -> None:
    model = fitted()
    model.save(tmp_path / "model")
    loaded = Headstart.load(tmp_path / "model")
    assert state_of(loaded).local == STRENGTHS
    for other in (loaded, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert np.array_equal(other.predict().mean, model.predict().mean)
        assert np.array_equal(other.predict().std, model.predict().std)


def test_a_forgotten_row_is_in_no_local_part() -> None:
    model = copy.copy(fitted())
    (row,) = [row for row in answers(1.0)[NEW[0]] if row in model.feature(NEW[0]).rows][:1]
    model.remove_row(row)
    again = copy.deepcopy(model)  # with an empty cache
    assert np.array_equal(model.predict().mean, again.predict().mean)


def test_evaluate_scores_the_local_part() -> None:
    new = table_of({name: answers(1.0)[name] for name in NEW[2:]})
    model = fitted()
    values = {
        name: {
            run.shots: run.value
            for run in each.evaluate(new, shots=[0, 16]).runs
            if (run.metric, run.method) == ("rmse", "bayes")
        }
        for name, each in (("local", model), ("plain", with_state(model, local=None)))
    }
    assert values["local"][16] < values["plain"][16]
