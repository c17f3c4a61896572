"""The levels of a category are one feature in training: held out together, with no factors of their own."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from tests.oracles.levels import log_score

from headstart import Headstart, Table
from headstart.backbones.base import backbone_config, build_backbone
from headstart.core.types import FeatureBatch, Knowledge
from headstart.evaluate import split_features
from headstart.table.cells import Cells
from headstart.training.episodes import cross_fitted_tasks, random_ranks, sample_features
from headstart.training.judge import draw_folds
from headstart.training.level_strength import STRENGTHS, best_strength, level_chances
from headstart.training.table_inputs import describe_features, feature_batch, table_groups

LEVELS = list("ABCD")


def answers(seed: int, structure: float, rows: int = 200, questions: int = 12) -> pd.DataFrame:
    """Return answers whose log-odds are linear in two factors of a row, with weights of this size."""
    rng = np.random.default_rng(seed)
    factors, weights = rng.normal(size=(rows, 2)), structure * rng.normal(size=(questions, 2, len(LEVELS)))
    logits = np.einsum("nk,qkl->nql", factors, weights) + 0.8 * rng.normal(size=(questions, len(LEVELS)))
    chosen = (logits + rng.gumbel(size=logits.shape)).argmax(2)
    names = [f"q{j:02}" for j in range(questions)]
    index = pd.Index([f"r{i:03}" for i in range(rows)], name="row")
    return pd.DataFrame(np.array(LEVELS)[chosen], index=index, columns=names)


def read(frame: pd.DataFrame) -> Table:
    return Table.read(frame.reset_index(), row="row", kinds="category:A,B,C,D", quiet=True)


@pytest.fixture(scope="module")
def table() -> Table:
    frame = answers(0, 1.0, rows=60, questions=10)
    return read(frame.astype(object).mask(np.random.default_rng(1).random(frame.shape) < 0.3))


def whole(groups: np.ndarray, columns: np.ndarray) -> bool:
    """Whether these columns are all levels of their features."""
    return set(columns.tolist()) == set(np.flatnonzero(np.isin(groups, groups[columns])).tolist())


def test_the_levels_of_a_question_are_held_out_together(table: Table) -> None:
    assert table.groups.tolist() == np.repeat(np.arange(10), 4).tolist()
    for fold in draw_folds(np.arange(40), 3, table.groups):
        assert len(fold)
        assert whole(table.groups, fold)
    split = split_features(table, test_share=0.3, meta_share=0.4, seed=2)
    for part in (split.train, split.meta_train, split.meta_test):
        assert len(part)
        assert whole(table.groups, part)
    assert len(split.meta_test) == 12


def test_no_level_of_a_question_reaches_the_rows_of_its_fold(table: Table) -> None:
    batch = feature_batch(table)
    kinds = torch.from_numpy(table.kinds.types)
    torch.manual_seed(0)
    backbone = build_backbone(backbone_config("factorisation"), kinds, torch.zeros(0))
    none, cells = torch.zeros(len(kinds), 0), table.cells()
    knowledge = Knowledge(
        backbone.states(cells), cells, backbone.heads.detach(), none, kinds, backbone.likelihood
    )
    tasks = cross_fitted_tasks(batch, backbone, knowledge, seed=0)
    assert all(len(set(tasks.fold[table.groups == question].tolist())) == 1 for question in range(10))
    training, validation = tasks.hold_out(0.3, seed=0)
    assert len(validation) == 12
    assert not set(training.batch.groups.tolist()) & set(validation.batch.groups.tolist())
    assert sample_features(knowledge, batch.groups, seed=0) is None  # all fit into memory


def test_levels_have_the_same_contexts(table: Table) -> None:
    cells, groups = table.cells().transpose(), table_groups(table)
    ranks = random_ranks(cells, torch.Generator().manual_seed(0), groups)
    lines = [ranks[cells.indptr[i] : cells.indptr[i + 1]].tolist() for i in range(40)]
    assert all(lines[i] == lines[4 * (i // 4)] for i in range(40))
    assert all(sorted(line) == list(range(len(line))) for line in lines)
    assert len({tuple(line) for line in lines}) == 10


def test_columns_of_other_kinds_are_features_of_their_own() -> None:
    frame = pd.DataFrame({"row": ["a", "b"], "a=b": [1, 0], "c": [0, 1]})
    table = Table.read(frame, row="row", kinds="binary", quiet=True)
    assert table_groups(table) is None
    assert describe_features(table).levels is None
    batch = FeatureBatch(Cells.from_pairs(*torch.zeros(3, 0).long(), 2, 2), torch.zeros(2, 0), torch.zeros(2))
    assert batch.groups is None


@pytest.mark.parametrize(("structure", "least_gain"), [(0.0, -0.008), (1.0, 0.05)])
def test_questions_are_not_behind_their_frequencies(structure: float, least_gain: float) -> None:
    """Independent questions have no factors; with factors, held-out answers are predicted better."""
    scores, frequencies = [], []
    for seed in (100, 101):
        frame = answers(seed, structure)
        held = np.random.default_rng(seed).random(frame.shape) < 0.4
        model = Headstart(adapter="bayes", quiet=True).fit(read(frame.astype(object).mask(held)))
        prediction = model.predict()
        for j, name in enumerate(frame):
            levels = prediction.levels(name)
            answer = frame[name].map({level: k for k, level in enumerate(levels)}).to_numpy()
            test, chances = held[:, j], prediction.probabilities(name)
            counts = np.bincount(answer[~test], minlength=4) + 0.5
            scores += np.log(chances[test, answer[test]]).tolist()
            frequencies += np.log((counts / counts.sum())[answer[test]]).tolist()
    assert np.mean(scores) - np.mean(frequencies) > least_gain


# -- the strength of the rows' differences ---------------------------------------------------------------


def test_the_best_strength_is_that_of_a_slow_search() -> None:
    rng = np.random.default_rng(0)
    cells, levels = 60, 3
    chances, counts = rng.random((cells, levels)) + 0.05, rng.integers(0, 30, (cells, levels))
    observed = rng.integers(0, levels, cells)
    slow = [
        sum(log_score(*parts, strength) for parts in zip(chances, counts.tolist(), observed, strict=True))
        for strength in STRENGTHS
    ]
    truth = np.eye(levels)[observed]
    totals = np.repeat(counts.sum(1), levels).reshape(cells, levels)
    answer = np.repeat(np.arange(cells) * 7 + 3, levels)
    order = rng.permutation(cells * levels)
    parts = (torch.from_numpy(part.ravel()[order]) for part in (chances, truth, answer, counts, totals))
    assert best_strength(*parts) == STRENGTHS[int(np.argmax(slow))]


def test_a_strength_lies_between_frequencies_and_predictions() -> None:
    own, counts = np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([30.0, 10.0])
    assert level_chances(own, counts, 40.0, 1.0) == pytest.approx(own)
    assert level_chances(own, counts, 40.0, 0.0) == pytest.approx((counts + 5 * own) / 45)
    assert level_chances(own, 0.0, 0.0, 0.3) == pytest.approx(own)  # nothing is observed


@pytest.mark.parametrize(("structure", "low", "high"), [(0.0, 0.0, 0.5), (2.0, 0.7, 1.0)])
def test_independent_answers_have_their_frequencies(structure: float, low: float, high: float) -> None:
    frame = answers(3, structure, rows=200, questions=5)
    model = Headstart(quiet=True).fit(read(frame))
    assert low <= float(model.state.calibration.level_strength) <= high
    if structure == 0:
        chances = model.predict().probabilities("q02")
        frequencies = frame["q02"].value_counts(normalize=True).sort_index().to_numpy()
        assert np.abs(chances - frequencies).mean() < 0.05
