from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "peers"))

import run as command
from algebra import dots, replaced, ridge, weighted_sums
from methods.als import ALS
from methods.biases import Biases
from methods.dropoutnet import DropoutNet
from methods.ease import EASE
from methods.headstart_methods import HeadstartPeer, HeadstartRetrained, joined
from methods.implicit_als import ImplicitALS
from methods.imputers import MICE, Imputer
from methods.irt import ItemResponse
from methods.irt import _above as above
from methods.item_knn import ItemKNN
from methods.lightfm import LightFM
from methods.lightgbm import LightGBM
from methods.myfm import MyFM
from methods.retrained import VBMFRetrained
from methods.tabular import TabICL, TabPFN
from methods.vbmf import VBMF
from problem import Problem
from tuning import trial, tune

from headstart.datasets import synthetic_diagnoses, synthetic_ratings, synthetic_responses
from headstart.errors import InputError
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.splits import split_features
from headstart.training.table_inputs import feature_batch

PARTS = (4, 16)  # in place of 32 and 128
OWN = {
    "biases": Biases(),
    "als": ALS(factors=4, rounds=5),
    "item-knn": ItemKNN(),
    "vbmf": VBMF(factors=4, rounds=8),
    "vbmf-logistic": VBMF(factors=4, rounds=5, likelihood="logistic"),
    "vbmf-retrained": VBMFRetrained(factors=4, rounds=5),
    "ease": EASE(),
    "irt": ItemResponse(steps=100, context_steps=60, rate=0.1),
    "dropoutnet": DropoutNet(factors=4, hidden=16, epochs=20),
    "iterative-imputer": Imputer(nearest=5, rounds=2),
    "mice-like": MICE(nearest=10, rounds=3, draws=10),
}


@pytest.fixture(scope="module")
def tables():
    return {
        "rating": synthetic_ratings(150, 60, 0.4),
        "binary": synthetic_responses(150, 60, 0.5),
        "bare": synthetic_diagnoses(150, 40),
    }


@pytest.fixture(scope="module")
def problems(tables):
    return {
        name: Problem.of_split(table, split_features(table, 0.2, 0.375, 3), 3, PARTS)
        for name, table in tables.items()
    }


def test_contexts_and_targets_are_those_of_the_benchmark(tables, problems):
    table, problem = tables["rating"], problems["rating"]
    held_out = table.with_features(split_features(table, 0.2, 0.375, 3).meta_test)
    for part in PARTS:
        test = KShotTest(feature_batch(held_out), held_out.kinds, [0, 2, part], seed=3)
        at = problem.targets(part)
        assert np.array_equal(problem.row[at], test.targets.index.numpy())
        assert np.array_equal(problem.feature[at], test.features.numpy()[test.lines.numpy()])
        assert np.allclose(problem.value[at], test.truth)
        context = test.context(2)
        expected = torch.stack([test.features[context.cells.lines], context.cells.index])
        found = problem.context(2)
        kept = (problem.counts > part)[found.feature]  # the smaller part tests more features
        assert np.array_equal(np.stack([found.feature, found.row])[:, kept], expected.numpy())


@pytest.mark.parametrize("name", ["rating", "binary", "bare"])
def test_no_target_is_ever_seen(problems, name):
    problem = problems[name]
    cells = set(zip(problem.feature.tolist(), problem.row.tolist(), strict=True))
    assert len(cells) == len(problem.feature)
    for part in PARTS:
        at = problem.targets(part)
        hidden = set(zip(problem.feature[at].tolist(), problem.row[at].tolist(), strict=True))
        for shots in (k for k in problem.shots if k <= part):
            context = problem.context(shots)
            seen = set(zip(context.feature.tolist(), context.row.tolist(), strict=True))
            assert not hidden & seen
            assert (context.counts[context.tested] == shots).all()
            assert not context.counts[~context.tested].any()


def test_metadata_is_encoded_by_known_features_alone(tables):
    table = tables["rating"]
    year = table.metadata.column_names.index("year")
    split = split_features(table, 0.2, 0.375, 3)
    column = table.metadata.column("year").to_pylist()
    column[split.meta_test[0]] = 9999
    changed = replace(table, metadata=table.metadata.set_column(year, "year", [column]))
    ours, theirs = (Problem.of_split(t, split, 3, PARTS).metadata_known for t in (table, changed))
    assert np.array_equal(ours, theirs)


def test_rehearsals_hold_out_known_features_only(problems):
    problem = problems["binary"]
    folds = problem.rehearsals()
    assert sum(len(fold.metadata_new) for fold in folds) == problem.known.shape[1]
    for fold in folds:
        assert fold.known.shape[1] + len(fold.metadata_new) == problem.known.shape[1]
        assert fold.known.nnz + len(fold.value) == problem.known.nnz
    assert sum(fold.value.sum() for fold in folds) == problem.known.sum()


def test_including_adds_contexts_and_nothing_else(problems):
    problem = problems["rating"]
    context = problem.context(4)
    every = problem.including(context).known
    assert every.nnz == problem.known.nnz + len(context.value)
    added = every[:, problem.known.shape[1] :].tocoo()
    assert np.array_equal(np.sort(added.data), np.sort(context.value))
    assert added.shape[1] == context.features


@pytest.mark.parametrize("kind", ["rating", "binary", "bare"])
@pytest.mark.parametrize("name", OWN)
def test_peers_predict_well_and_better_with_more_shots(problems, name, kind):
    problem, peer = problems[kind], replace(OWN[name])
    shots = (8,) if peer.shots else (0, 16)
    peer.fit(problem)
    outcomes = {o.shots: o.scores for o in trial(peer, problem, shots) if o.part == PARTS[-1]}
    at = problem.targets(PARTS[-1])
    if kind == "rating":
        worst = problem.value[at].std()
        values = [outcomes[k]["rmse"].value for k in shots]
        assert values[-1] < worst
    else:
        values = [1 - outcomes[k]["auroc"].value for k in shots]
        assert values[-1] < 0.5
        assert all(np.isfinite(outcomes[k]["log_loss"].value) for k in shots)
    assert values[-1] <= values[0] + 0.02  # biases learn next to nothing where features are much alike


@pytest.mark.parametrize("name", ["als", "vbmf", "item-knn", "biases", "ease", "irt", "dropoutnet"])
def test_a_new_feature_does_not_hang_on_others_or_on_order(problems, name):
    problem, peer = problems["rating"], replace(OWN[name])
    peer.fit(problem)
    context = problem.context(4)
    at = problem.targets(4)
    feature, row = problem.feature[at], problem.row[at]
    whole = peer.predict(peer.adapt(context), feature, row)
    one = feature[0]
    kept = np.flatnonzero(context.feature == one)[::-1]
    alone = replace(context, feature=context.feature[kept], row=context.row[kept], value=context.value[kept])
    mine = feature == one
    assert np.allclose(peer.predict(peer.adapt(alone), feature[mine], row[mine]), whole[mine], atol=1e-4)


def test_folding_in_is_ridge_regression(problems):
    problem = problems["rating"]
    peer = ALS(factors=3, rounds=3, prior="mean", fold=2.0)
    peer.fit(problem)
    context = problem.context(4)
    head = peer.adapt(context)[context.feature[0]]
    mine = context.feature == context.feature[0]
    design = np.concatenate([peer.rows[context.row[mine], :-1], np.ones((4, 1))], axis=1)
    goal = context.value[mine] - peer.centre - peer.rows[context.row[mine], -1]
    prior = peer._said[0]
    expected = prior + np.linalg.solve(design.T @ design + 2 * np.eye(4), design.T @ (goal - design @ prior))
    assert np.allclose(head, expected, atol=1e-4)


def test_expected_error_is_exact(problems):
    problem = problems["rating"]
    peer = VBMF(factors=3, rounds=4)
    peer.fit(problem)
    known = problem.known.tocoo()
    (rows, row_spread), (features, feature_spread) = peer.rows.full(True), peer.features.full(False)
    error = 0.0
    for i, j, value in zip(known.row, known.col, known.data, strict=True):
        second = np.outer(rows[i], rows[i]) + row_spread[i]
        other = np.outer(features[j], features[j]) + feature_spread[j]
        error += value**2 - 2 * value * rows[i] @ features[j] + np.sum(second * other)
    assert peer._expected_error(problem.known) == pytest.approx(error / known.nnz, rel=1e-4)


def test_sums_products_and_ridge():
    generator = np.random.default_rng(0)
    matrix = Problem.of_split(
        synthetic_ratings(20, 40, 0.5), split_features(synthetic_ratings(20, 40, 0.5), seed=0), 0, (4,)
    ).known
    weights = replaced(matrix, generator.random(matrix.nnz))
    moments = generator.normal(size=(matrix.shape[1], 3, 3))
    moments += moments.transpose(0, 2, 1)
    expected = np.einsum("ij,jde->ide", weights.toarray(), moments)
    assert np.allclose(weighted_sums(weights, moments), expected, atol=1e-4)
    left, right = generator.normal(size=(5, 4)), generator.normal(size=(6, 4))
    at = (generator.integers(5, size=9), generator.integers(6, size=9))
    assert np.allclose(dots(left, right, *at), (left @ right.T)[at])
    assert np.allclose(dots(left, right, at[0][:1], at[1][:1]), (left @ right.T)[at][:1])
    metadata = generator.normal(size=(50, 3))
    values = metadata @ np.array([[1.0], [-2], [0]]) + 4
    found = ridge(metadata, values, np.ones(50), 1e-9)
    assert np.allclose(found.ravel(), [4, 1, -2, 0], atol=1e-5)


def test_tuning_takes_the_best_choice(problems, monkeypatch):
    monkeypatch.setattr(Biases, "choices", {"feature_strength": (1e4, 3.0), "both": ({"rounds": 3},)})
    chosen = tune(Biases(), problems["rating"])
    assert (chosen.feature_strength, chosen.rounds) == (3.0, 3)


def test_the_column_of_ease_is_that_of_the_whole_item_matrix(problems):
    problem = problems["rating"]
    peer = EASE(strength=7.0, gain=1.0)
    peer.fit(problem)
    context = problem.context(4)
    one = context.feature[0]
    bias, shift = peer.adapt(context)
    mine = context.feature == one
    own = np.zeros(problem.rows)
    total = peer.biases.row_bias[context.row[mine]] + bias[one]
    own[context.row[mine]] = context.value[mine] - total
    joined = np.column_stack([peer.residuals.toarray(), own])
    inverse = np.linalg.inv(joined.T @ joined + 7 * np.eye(joined.shape[1]))
    column = -inverse[:-1, -1] / inverse[-1, -1]  # Steck's formula, without the diagonal
    assert np.allclose(shift[:, one], joined[:, :-1] @ column)


def test_two_levels_are_the_two_parameter_logistic_model():
    items, ability = torch.tensor([[np.log(2.0), 0.5]]), torch.tensor([1.5])
    assert float(above(items, ability)) == pytest.approx(1 / (1 + np.exp(-(2 * 1.5 - 0.5))))
    graded = above(torch.tensor([[0.0, -1.0, 0.3, -0.2]]), ability)[0]
    assert (graded.diff() < 0).all()  # a higher level is rarer


class Ridge:
    """A stand-in for the models of TabPFN and TabICL."""

    def fit(self, inputs, goal):
        self._model = ridge(inputs, goal[:, None], np.ones(len(goal)), 1.0)
        return self

    def predict(self, inputs):
        return self._model[0, 0] + inputs @ self._model[1:, 0]

    def predict_proba(self, inputs):
        chance = np.clip(self.predict(inputs), 0.01, 0.99)
        return np.column_stack([1 - chance, chance])


@pytest.mark.parametrize(("peer", "name"), [(TabPFN(factors=3), "TabPFN"), (TabICL(factors=3), "TabICL")])
@pytest.mark.parametrize("kind", ["rating", "binary"])
def test_tabular_models_learn_from_the_rows_of_a_context(problems, monkeypatch, peer, name, kind):
    library = types.SimpleNamespace(**{f"{name}Regressor": Ridge, f"{name}Classifier": Ridge})
    monkeypatch.setitem(sys.modules, name.lower(), library)
    peer = replace(peer)
    peer.fit(problems[kind])
    outcomes = list(trial(peer, problems[kind], (0, 16)))
    assert all(np.isfinite(found.value) for o in outcomes for found in o.scores.values())


@pytest.mark.parametrize(
    ("library", "peer"),
    [
        ("lightfm", LightFM(components=4, epochs=3)),
        ("implicit", ImplicitALS(factors=4)),
        ("myfm", MyFM(rank=3, iterations=10, kept=5)),
        ("lightgbm", LightGBM(trees=30, folds=2, smallest=20)),
    ],
)
@pytest.mark.parametrize("kind", ["rating", "bare"])
def test_libraries(problems, library, peer, kind):
    pytest.importorskip(library)
    problem, peer = problems[kind], replace(peer)
    peer.fit(problem)
    outcomes = list(trial(peer, problem, (0, 16)))
    assert {o.shots for o in outcomes} == {0, 16}
    assert all(np.isfinite(found.value) for o in outcomes for found in o.scores.values())


def test_headstart_by_its_public_calls(problems):
    quick = {
        "backbone": "pvae",
        "adapter": "chn",
        "pretraining": {"epochs": 2},
        "metatraining": {"epochs": 1},
    }
    problem = problems["rating"]
    peer = HeadstartPeer(quick)
    peer.fit(problem)
    before = set(peer.model.features)
    first, *_ = trial(peer, problem, (4, 16))
    assert {"rmse", "coverage_90"} <= set(first.scores)
    assert set(peer.model.features) - before <= set(peer._names)
    again = next(iter(trial(peer, problem, (4,))))
    assert again.scores == first.scores  # what was added in between is gone
    anew = HeadstartRetrained(quick)
    anew.fit(problem)
    assert [o.shots for o in trial(anew, problem) if o.part == 16] == [8]


def test_joined_holds_known_values_and_contexts(problems):
    problem = problems["rating"]
    context = problem.context(8)
    known, new = problem.tables
    table = joined(known, new, context)
    assert len(table) == len(known) + len(context.value)
    name = new.features[int(context.feature[0])]
    assert len(table.observations_of(name)) == 8
    assert set(table.observations_of(name).items()) <= set(new.observations_of(name).items())


def test_the_command_resumes(tables, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "load_dataset", lambda name, data: tables["rating"])
    monkeypatch.setattr(Biases, "choices", {"popularity": (0.5, 1.0)})
    arguments = ["run.py", "--out", str(tmp_path), "--sets", "movielens", "--methods", "biases"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--splits", "2", "--part", "4,16"])
    command.main()
    record = json.loads((tmp_path / "movielens" / "biases" / "split-1.json").read_text())
    assert record["settings"].keys() >= {"feature_strength"}
    assert {run["shots"] for run in record["parts"]["16"]} == {0, 1, 2, 4, 8, 16}
    assert "**" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "movielens.png").stat().st_size > 10_000
    capsys.readouterr()
    command.main()
    assert capsys.readouterr().out == ""


def test_the_texts_of_questions_join_their_metadata(tmp_path, monkeypatch):
    table = synthetic_responses(40, 30)
    monkeypatch.setattr(command, "load_dataset", lambda name, data: table)
    (tmp_path / "eedi" / "metadata").mkdir(parents=True)
    words = [f"what is the {'area' if i % 2 else 'angle'} of shape number {i}" for i in range(29)]
    lines = [f"{name},{text}" for name, text in zip(table.features, words, strict=False)]
    (tmp_path / "eedi" / "metadata" / "question_text.csv").write_text(
        "\n".join(["QuestionId,QuestionText", *lines])
    )
    described = command.load_set("elearning-text", tmp_path)
    assert described.metadata["text"].to_pylist() == [*words, None]  # the last question has no text
    before, after = table.encoded_metadata(), described.encoded_metadata()
    assert after.shape[1] > before.shape[1]
    assert (after[:, : before.shape[1]] == before).all()
    assert command.load_set("elearning", tmp_path) is table


def test_unknown_names_and_missing_libraries_are_told(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path), "--methods", "vbfm"])
    with pytest.raises(InputError, match="did you mean 'vbmf'"):
        command.main()
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="needs the library 'myfm'"):
        command.check_libraries(["biases", "myfm"])
