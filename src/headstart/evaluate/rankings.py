"""Score rankings: which features a row gets first, and which rows a new feature finds first.

A list ranks all candidates of one row or one feature. Some candidates are relevant, such as held-out clicks;
some are excluded, such as those of the context. ``score_lists`` compares the scores of all candidates with
the relevant ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.evaluate.metrics import Score
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

Floats = NDArray[np.float64]

LENGTHS = (10, 50)  # of the first part of a list, in metrics such as NDCG@10

RELEVANT_RATING = 0.75  # on the models' scale: 4 of 1 to 5

_CELLS_AT_ONCE = 1 << 22  # scores sorted together

_TIES = 0  # seed of the order of candidates with equal scores


def is_relevant(values: Tensor, kinds: Tensor) -> Tensor:
    """Return which ``values`` (n,) on the models' scale, of features of ``kinds`` (n,), are relevant: (n,).

    A 1 of a binary feature is relevant, and a rating from three quarters of its scale upwards. Values of
    other kinds have no common order of preference.
    """
    rating = (kinds == KindType.RATING) & (values >= RELEVANT_RATING - 1e-6)
    return rating | (kinds == KindType.CLICK) | ((kinds == KindType.BINARY) & (values > 0.5))


class Lists(NamedTuple):
    """The relevant and the excluded candidates of each list, as cells of the same width: all candidates."""

    relevant: Cells
    excluded: Cells


def score_lists(scores: Callable[[slice], Tensor], lists: Lists) -> dict[str, Score]:
    """Compute the metrics of rankings, averaged over the lists with a relevant candidate.

    Candidates of equal scores are ranked in one random order, the same for all lists.

    Parameters
    ----------
    scores : callable
        Returns the scores of a slice of the lists: (lists of the slice, candidates).
    lists : Lists
        The relevant and the excluded candidates.

    Returns
    -------
    dict
        By name (see ``METRICS``), a ``Score`` with the numbers of lists and of relevant candidates: NDCG and
        recall of the first 10 and 50, the mean average precision, the mean reciprocal rank, and the share
        of all candidates that is among the first 10 of any list. Empty if nothing is relevant.

    Examples
    --------
    >>> ones, pairs = torch.ones(2), (torch.tensor([0, 1]), torch.tensor([2, 0]))
    >>> relevant = Cells.from_pairs(*pairs, ones, 2, 3)
    >>> nothing = relevant.keep(ones < 0)
    >>> scores = torch.tensor([[0.1, 0.2, 0.9], [0.1, 0.2, 0.3]])
    >>> score_lists(lambda part: scores[part], Lists(relevant, nothing))["mrr"]
    Score(value=0.6666666666666666, features=2, targets=2)
    """
    relevant, excluded = lists
    candidates = relevant.width
    order = np.random.default_rng(_TIES).permutation(candidates)
    step = max(1, _CELLS_AT_ONCE // max(1, candidates))
    tested = torch.nonzero(relevant.counts)[:, 0]
    if len(tested) == 0:
        return {}
    ranks, firsts = [], np.zeros(candidates, dtype=bool)
    for start in range(0, len(relevant), step):
        part = slice(start, min(start + step, len(relevant)))
        wanted = relevant.block(part.start, part.stop)
        block = scores(part).double().numpy().copy()
        hidden = excluded.block(part.start, part.stop)
        block[hidden.lines.numpy(), hidden.index.numpy()] = -np.inf
        ranked = order[np.argsort(-block[:, order], axis=1, kind="stable")]
        positions = np.empty_like(ranked)
        np.put_along_axis(positions, ranked, np.arange(1, candidates + 1)[None], axis=1)
        ranks.append(positions[wanted.lines.numpy(), wanted.index.numpy()])
        shown = ranked[wanted.counts.numpy() > 0, : LENGTHS[0]]
        firsts[shown.ravel()] = True
    metrics = _metrics(np.concatenate(ranks), relevant.take(tested).lines.numpy())
    values = {name: float(numbers.mean()) for name, numbers in metrics.items()}
    values[f"coverage@{LENGTHS[0]}"] = float(firsts.mean())
    return {name: Score(value, len(tested), len(relevant.index)) for name, value in values.items()}


def _metrics(ranks: NDArray[np.int64], lines: NDArray[np.int64]) -> dict[str, Floats]:
    """Return the metrics of each list, given the ``ranks`` (n,) from 1 of the relevant candidates."""
    order = np.lexsort((ranks, lines))
    ranks, lines = ranks[order], lines[order]
    counts = np.bincount(lines)
    hits = np.arange(1, len(ranks) + 1) - (np.cumsum(counts) - counts)[lines]  # relevant ones up to each rank

    def total(numbers: Floats) -> Floats:
        return np.asarray(np.bincount(lines, weights=numbers), dtype=np.float64)

    metrics = {}
    for length in LENGTHS:
        gains = total((ranks <= length) / np.log2(1 + ranks))
        metrics[f"ndcg@{length}"] = gains / total((hits <= length) / np.log2(1 + hits))
    for length in LENGTHS:
        metrics[f"recall@{length}"] = total((ranks <= length).astype(np.float64)) / counts
    metrics["map"] = total(hits / ranks) / counts
    metrics["mrr"] = 1.0 / ranks[hits == 1]
    return metrics
