from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, ndcg_score
from tests.oracles.rankings import metrics_of_list

from headstart.evaluate.metrics import METRICS
from headstart.evaluate.rankings import Lists, is_relevant, score_lists
from headstart.table import Cells
from headstart.table.kinds import KindType


def lists(seed: int, count: int = 30, candidates: int = 80):
    """Scores without ties, relevant and excluded candidates as masks; list 0 has nothing relevant."""
    rng = np.random.default_rng(seed)
    scores = rng.permuted(np.tile(np.arange(candidates) / candidates, (count, 1)), axis=1)
    relevant = rng.random((count, candidates)) < rng.uniform(0.01, 0.4, (count, 1))
    excluded = (rng.random((count, candidates)) < 0.2) & ~relevant
    relevant[0] = False
    return scores, relevant, excluded


def as_cells(mask: np.ndarray) -> Cells:
    lines, index = (torch.from_numpy(part) for part in np.nonzero(mask))
    return Cells.from_pairs(lines, index, torch.ones(len(lines)), *mask.shape)


@pytest.mark.parametrize("seed", range(3))
def test_metrics_are_those_of_their_definitions(seed, limits):
    limits(ranked_cells_per_block=500)
    scores, relevant, excluded = lists(seed)
    found = score_lists(
        lambda part: torch.from_numpy(scores[part]), Lists(as_cells(relevant), as_cells(excluded))
    )
    slow: dict[str, list[float]] = {}
    shown: set[int] = set()
    for line in range(1, len(scores)):
        ranked = [int(i) for i in np.argsort(-scores[line]) if not excluded[line, i]]
        wanted = set(np.flatnonzero(relevant[line]).tolist())
        if not wanted:
            continue
        shown |= set(ranked[:10])
        for length in (10, 50):
            slow_one = metrics_of_list(ranked, wanted, length)
            for name in {f"ndcg@{length}", f"recall@{length}", *(("map", "mrr") if length == 10 else ())}:
                slow.setdefault(name, []).append(slow_one[name])
    for name, values in slow.items():
        assert found[name].value == pytest.approx(np.mean(values), abs=1e-12)
        assert found[name].features == len(values)
        assert found[name].targets == relevant.sum()
    assert found["coverage@10"].value == pytest.approx(len(shown) / scores.shape[1])
    assert set(found) <= set(METRICS)


def test_metrics_are_those_of_scikit_learn():
    scores, relevant, _ = lists(5)
    nothing = as_cells(np.zeros_like(relevant))
    found = score_lists(lambda part: torch.from_numpy(scores[part]), Lists(as_cells(relevant), nothing))
    tested = relevant.any(1)
    for k in (10, 50):
        assert found[f"ndcg@{k}"].value == pytest.approx(ndcg_score(relevant[tested], scores[tested], k=k))
    precisions = [average_precision_score(relevant[i], scores[i]) for i in np.flatnonzero(tested)]
    assert found["map"].value == pytest.approx(np.mean(precisions))


def test_equal_scores_do_not_favour_the_first_candidates():
    relevant = np.zeros((200, 100), dtype=bool)
    relevant[np.arange(200), np.random.default_rng(0).integers(0, 5, 200)] = True
    nothing = as_cells(np.zeros_like(relevant))
    found = score_lists(lambda part: torch.zeros(200, 100)[part], Lists(as_cells(relevant), nothing))
    assert found["ndcg@10"].value < 0.5


def test_nothing_relevant_gives_no_metrics():
    nothing = as_cells(np.zeros((3, 4), dtype=bool))
    assert score_lists(lambda part: torch.zeros(3, 4)[part], Lists(nothing, nothing)) == {}


def test_high_ratings_and_ones_are_relevant():
    kinds = torch.tensor([KindType.RATING] * 3 + [KindType.BINARY] * 2 + [KindType.REAL])
    values = torch.tensor([0.75, 1.0, 0.5, 1.0, 0.0, 3.0])
    assert is_relevant(values, kinds).tolist() == [True, True, False, True, False, False]
