"""The local part of new features: chosen by the judge, the same by every verb, and each feature's own."""

from __future__ import annotations

import copy
import math
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.states import state_of, with_state

from headstart import Headstart, Table
from headstart.core.neighbours import LocalStrengths, neighbours_of, weighted_sums
from headstart.model.cell_predictions import predict_one_cell, predict_pairs
from headstart.model.local import local_part, reference_residuals, row_residuals
from headstart.training.known_neighbours import fit_known_weights

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


def test_known_features_have_a_local_part_if_the_judge_chose_it() -> None:
    model, plain = fitted(), with_state(fitted(), local=None)
    known = [name for name in model.features if name not in NEW]
    assert np.array_equal(model.predict(features=known).mean, plain.predict(features=known).mean)
    assert not np.array_equal(model.predict(features=NEW[:2]).mean, plain.predict(features=NEW[:2]).mean)
    moved = with_known(model)
    assert not np.allclose(moved.predict(features=known).mean, plain.predict(features=known).mean)
    assert np.array_equal(moved.predict(features=NEW[:2]).mean, model.predict(features=NEW[:2]).mean)


@cache
def known_weights() -> Any:
    """The weights of known features of ``fitted``, estimated from its table."""
    state = state_of(fitted())
    heads = state.feature_store.heads_at(np.array(state.feature_store.slots(state.backbone_features))).dense()
    features = torch.arange(len(state.backbone_features))
    parts = state.backbone, state.adapter, state.knowledge, heads, features
    return neighbours_of(state.knowledge).stack(fit_known_weights(*parts, seed=0))


def with_known(model: Headstart, strength: float = 1.0) -> Headstart:
    """Return the model with a local part of known features."""
    weights = known_weights().copy()
    weights.data = weights.data.astype(np.float32).astype(np.float64)
    strengths = STRENGTHS.revised(known=(0.0, *(strength,) * 8))
    return with_state(model, local=strengths, known_weights=weights)


def test_weights_of_known_features_find_their_groups() -> None:
    state, weights = state_of(fitted()), known_weights().toarray()
    assert np.array_equal(np.diag(weights), np.zeros(len(weights)))
    group = np.array([int(name[1:]) // SIZE for name in state.backbone_features])
    same = group[:, None] == group
    np.fill_diagonal(same, val=False)
    assert weights[same].mean() > 5 * np.abs(weights[~same]).mean()


def test_rows_outside_the_table_are_predicted_better_with_neighbours() -> None:
    values = answers(1.0)
    known, rows = [name for name in values if name not in NEW], [f"u{row:03d}" for row in range(100, ROWS)]
    table = {name: {row: x for row, x in values[name].items() if row not in rows} for name in known}
    model = Headstart(quiet=True).fit(table_of(table))
    assert state_of(model).known_weights is not None
    guests = {row: {name: values[name][row] for name in known[::2] if row in values[name]} for row in rows}
    truth = np.array([[values[name].get(row, np.nan) for name in known[1::2]] for row in rows])
    errors = [
        np.sqrt(np.nanmean((each.predict(guests, known[1::2]).mean - truth) ** 2))
        for each in (model, with_state(model, known_weights=None))
    ]
    assert errors[0] < 0.98 * errors[1]
    found = model.predict(guests, known[1::2])
    low, high = found.interval(0.9)
    inside = (truth >= low) & (truth <= high)
    assert 0.85 < inside[~np.isnan(truth)].mean() < 0.96


def test_every_verb_moves_known_features_alike(tmp_path: Path) -> None:
    model, row = with_known(fitted()), "u007"
    name = next(name for name in model.features if name not in NEW and row not in answers(1.0)[name])
    mean = float(model.predict(rows=[row], features=[name]).mean[0, 0])
    state = state_of(model)
    assert predict_one_cell(state, row, name, 0.9).mean == pytest.approx(mean, abs=1e-9)
    pairs = np.array([state.rows.position(row)]), [name], np.zeros(1, np.int64)
    assert predict_pairs(state, *pairs, 0.9)[0][0] == pytest.approx(mean, abs=1e-9)
    listed = model.recommend(row, n=len(model.features), exclude_observed=False)
    assert dict(zip(listed.names, listed.mean.tolist(), strict=True))[name] == pytest.approx(mean, abs=1e-9)
    whole = model.predict().mean[model.rows.index(row)]
    assert listed.score.tolist() == pytest.approx(sorted(whole, reverse=True), abs=1e-6)
    guest = model.predict({"guest": values_of(row)}, [name]).mean[0, 0]
    assert guest == pytest.approx(mean, abs=1e-4)
    explanation = model.explain(row, name)
    assert explanation.output == pytest.approx(mean, abs=1e-6)
    terms = {part.name: part.value for part in explanation.contributions if part.source == "neighbour"}
    assert terms.keys() <= values_of(row).keys()
    plain = with_state(model, local=None).explain(row, name)
    assert explanation.output - plain.output == pytest.approx(sum(terms.values()), abs=1e-5)
    half = with_known(fitted(), 0.5).predict(rows=[row], features=[name]).mean[0, 0]
    assert half - plain.output == pytest.approx(0.5 * (mean - plain.output), abs=1e-6)
    model.save(tmp_path / "model")
    for other in (Headstart.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(other.predict().mean, model.predict().mean)


def values_of(row: str) -> dict[str, float]:
    """The observations of a row in the fitted table."""
    return {name: values[row] for name, values in answers(1.0).items() if name not in NEW and row in values}


def test_a_row_given_by_its_observations_has_the_local_part_of_this_row() -> None:
    model, plain = fitted(), with_state(fitted(), local=None)
    guest: dict[str, Any] = {"guest": values_of("u007")}
    inside, outside = model.predict(["u007"], NEW[:2]).mean, model.predict(guest, NEW[:2]).mean
    assert outside == pytest.approx(inside, abs=1e-4)
    assert np.abs(outside - plain.predict(guest, NEW[:2]).mean).max() > 0.01
    one = model.explain(guest["guest"], NEW[0])
    assert one.output == pytest.approx(float(outside[0, 0]), abs=1e-6)
    assert {part.name for part in one.contributions if part.source == "neighbour"} <= guest["guest"].keys()
    ranked = model.recommend(guest["guest"], n=len(model.features), exclude_observed=False)
    means = dict(zip(ranked.names, ranked.mean.tolist(), strict=True))
    assert means[NEW[0]] == pytest.approx(float(outside[0, 0]), abs=1e-9)


def test_an_added_row_and_later_observations_have_residuals() -> None:
    model, values = copy.copy(fitted()), values_of("u007")
    first, later = dict(list(values.items())[:6]), dict(list(values.items())[6:])
    model.add_rows({"added": first})
    expected = model.predict({"guest": first}, NEW[:2])
    assert model.predict(["added"], NEW[:2]).mean == pytest.approx(expected.mean, abs=1e-6)
    model.observe([("added", name, value) for name, value in later.items()], update="rows")
    expected = model.predict({"guest": values}, NEW[:2])
    assert model.predict(["added"], NEW[:2]).mean == pytest.approx(expected.mean, abs=1e-6)
    state = state_of(model)
    (slot,) = state.feature_store.slots([NEW[0]])
    part = local_part(state, [state.feature_store[NEW[0]]], np.array([slot]))
    row = state.row_store.take(np.array([state.rows.position("added")]))
    assert part is not None
    knowledge, shift = state.knowledge, 0.0
    activation = row.activation[0, : knowledge.heads.weight.shape[1]].double()
    for name, value in values.items():
        j = state.backbone_features.position(name)
        output = float(knowledge.heads.weight[j].double() @ activation + knowledge.heads.bias[j].double())
        noise = float(knowledge.heads.noise[j]) * float(row.noise[0])
        residual = ((value - 1) / 4 - output) / math.sqrt(noise)  # on the scale of models, 0 to 1
        shift += float(part.weights[0, j]) * min(4.0, max(-4.0, residual))
    (computed,) = weighted_sums(row_residuals(state, row), part.weights)[0]
    assert computed == pytest.approx(shift, abs=1e-5)


def test_the_context_of_a_new_feature_counts_at_added_rows() -> None:
    model, name = copy.copy(fitted()), NEW[2]
    rows = list(answers(1.0)[name])[:12]
    model.add_rows({f"copy of {row}": values_of(row) for row in rows})
    state, context = state_of(model), {f"copy of {row}": answers(1.0)[name][row] for row in rows}
    assert reference_residuals(state, np.arange(ROWS, ROWS + 12)).nnz > 0
    model.add_feature(name, observations=context)
    plain = with_state(model, local=None)
    assert not np.allclose(model.predict(["u007"], [name]).mean, plain.predict(["u007"], [name]).mean)


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


def test_rows_observed_since_fit_are_found_among_few_and_among_all() -> None:
    model = copy.copy(fitted())
    model.add_rows({f"new{number}": {} for number in range(9)})
    model.observe([("u003", NEW[0], 4), ("u001", NEW[0], 2)])
    store, rows = state_of(model).row_store, np.arange(len(model.rows))
    assert len(store.observed_rows) == 11
    assert store.observed_among(rows[::-1]) == store.observed_rows
    assert store.observed_among(np.array([122, 3, 5, 3])) == [3, 122]
    assert store.observed_among(rows[:0]) == []


def test_the_only_feature_that_is_left_is_recommended() -> None:
    """It has its local part: one candidate is ranked as among others."""
    model = fitted()
    row = model.rows[0]
    for feature in model.features[:3]:
        (found,) = model.recommend(row, features=[feature], exclude_observed=False)
        assert found.name == feature
        assert found.mean == pytest.approx(model.predict([row], [feature]).mean[0, 0])
