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
from headstart.core.neighbours import NO_WEIGHTS, LocalWeights, neighbours_of
from headstart.core.predictive import predict_cells
from headstart.core.types import Heads, Knowledge
from headstart.table.cells import Cells
from headstart.training.episodes import random_ranks

if TYPE_CHECKING:
    from scipy.sparse import csr_array

KNOWN_CHOSEN = 32  # neighbours of a known feature: the weights of all features are stored

_MOST_ROWS = 1000  # of a feature, from which its weights are estimated


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
    from scipy.sparse import csr_array

    cells = knowledge.cells
    rank = random_ranks(cells, torch.Generator().manual_seed(seed))
    first, position = 2 * rank < cells.counts[cells.lines], torch.full((len(knowledge.kinds),), -1)
    position[features] = torch.arange(len(features))
    asked = position[cells.index] >= 0
    context = Cells.concatenate([cells.keep(half) for half in (first, ~first)])
    targets = Cells.concatenate([cells.keep(half & asked) for half in (~first, first)])
    by_feature = replace(targets, index=position[targets.index], width=len(features)).transpose()
    states, kinds = backbone.states(context), knowledge.kinds[features]
    predictive = predict_cells(heads, adapter.refine(states), by_feature, kinds, knowledge.likelihood)
    parts = (predictive.residuals(by_feature.values).double(), by_feature.index, by_feature.indptr)
    numbers, index, indptr = (part.cpu().numpy() for part in parts)
    shape, weights = (len(features), len(targets)), by_feature.weights
    return HalvedResiduals(
        neighbours_of(knowledge).residuals_at(states, context),
        csr_array((numbers, index, indptr), shape=shape),
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
    sizes = torch.ones(len(kinds)) if groups is None else torch.bincount(groups)[groups]
    found = []
    for line, feature in enumerate(features.tolist()):
        if sizes[feature] > 1:
            found.append(NO_WEIGHTS)
            continue
        span = slice(*others.indptr[line : line + 2])
        rows, numbers = others.indices[span], others.data[span]
        of_rows = None if weights is None else weights[span]
        if len(rows) > _MOST_ROWS:  # those of both halves alike
            some = np.linspace(0, len(rows) - 1, _MOST_ROWS).astype(np.int64)
            rows, numbers = rows[some], numbers[some]
            of_rows = None if of_rows is None else of_rows[some]
        found.append(
            neighbours.chosen_weights(
                metadata[feature], kinds[feature], observed[rows], numbers, of_rows, KNOWN_CHOSEN
            )
        )
    return found
