"""The weights of known features' local parts, from the table that the backbone was trained on.

The regression is that of new features (``core.neighbours``), of residuals of a known feature on residuals of
the others at the same rows. Both must not come from one state of the row: a state that was fitted to all
observations of a row leaves residuals that compensate each other. So the observations of each row are divided
at random into two halves. The errors of the predictions of each half, from the state given the other half,
are regressed on the residuals of this other half.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.adapters.base import Adapter
from headstart.backbones.base import Backbone
from headstart.core.neighbours import NO_WEIGHTS, LocalWeights, neighbours_of, sparse_residuals
from headstart.core.predictive import predict_cells
from headstart.core.types import Heads, Knowledge
from headstart.table.cells import Cells
from headstart.training.episodes import random_ranks

if TYPE_CHECKING:
    from scipy.sparse import csr_array

KNOWN_CHOSEN = 32  # neighbours of a known feature: the weights of all features are stored

_MOST_ROWS = 1000  # of a feature, from which its weights are estimated, at most


class HalvedResiduals(NamedTuple):
    """Residuals of a table in which each row occurs twice, with one half of its observations each."""

    observed: csr_array  # (2 × rows, features): of the half that the state was computed from
    others: csr_array  # (features, 2 × rows): of the other half
    weights: NDArray[np.float64] | None  # (n,): of the observations of ``others``; None: all 1


@torch.no_grad()
def halve_residuals(
    backbone: Backbone,
    adapter: Adapter,
    knowledge: Knowledge,
    heads: Heads,
    features: Tensor,
    seed: int,
) -> HalvedResiduals:
    """Divide the observations of each row into two halves, and return their residuals.

    Parameters
    ----------
    backbone, adapter, knowledge
        The parts that were trained on the table.
    heads : Heads
        The heads by which known features are predicted.
    features : Tensor of shape (heads,)
        The positions of the features of ``heads`` in the table.
    seed : int
        The seed that chooses the halves.
    """
    cells = knowledge.cells
    rank = random_ranks(cells, torch.Generator().manual_seed(seed))
    is_first = 2 * rank < cells.counts[cells.lines]
    position = torch.full((len(knowledge.kinds),), -1)  # of each feature of the table in ``features``
    position[features] = torch.arange(len(features))
    has_head = position[cells.index] >= 0
    context = Cells.concatenate([cells.keep(half) for half in (is_first, ~is_first)])
    targets = Cells.concatenate([cells.keep(half & has_head) for half in (~is_first, is_first)])
    by_feature = replace(targets, index=position[targets.index], width=len(features)).transpose()
    states, kinds = backbone.states(context), knowledge.kinds[features]
    predictive = predict_cells(heads, adapter.refine(states), by_feature, kinds, knowledge.likelihood)
    weights = by_feature.weights
    return HalvedResiduals(
        neighbours_of(knowledge).residuals_at(states, context),
        sparse_residuals(predictive, by_feature),
        None if weights is None else weights.cpu().double().numpy(),
    )


def fit_known_weights(
    backbone: Backbone,
    adapter: Adapter,
    knowledge: Knowledge,
    heads: Heads,
    features: Tensor,
    groups: Tensor | None = None,
    *,
    seed: int,
) -> list[LocalWeights]:
    """Return the weights of known ``features``, as in ``halve_residuals``.

    Levels of a category, which have equal ``groups`` (features of the table,), have none; by default there
    are no categories.
    """
    neighbours = neighbours_of(knowledge)
    observed, others, weights = halve_residuals(backbone, adapter, knowledge, heads, features, seed)
    metadata, kinds = knowledge.metadata.cpu().numpy(), knowledge.kinds.tolist()
    group_sizes = torch.ones(len(kinds)) if groups is None else torch.bincount(groups)[groups]
    weights_by_feature = []
    for line, feature in enumerate(features.tolist()):
        if group_sizes[feature] > 1:
            weights_by_feature.append(NO_WEIGHTS)
            continue
        span = slice(*others.indptr[line : line + 2])
        rows, numbers = others.indices[span], others.data[span]
        of_rows = None if weights is None else weights[span]
        if len(rows) > _MOST_ROWS:  # evenly spaced, so that both halves have their share
            some = np.linspace(0, len(rows) - 1, _MOST_ROWS).astype(np.int64)
            rows, numbers = rows[some], numbers[some]
            of_rows = None if of_rows is None else of_rows[some]
        weights_by_feature.append(
            neighbours.chosen_weights(
                metadata[feature], kinds[feature], observed[rows], numbers, of_rows, KNOWN_CHOSEN
            )
        )
    return weights_by_feature
