"""Predictions of known features at rows that were held out, for the calibration of known features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.adapters.base import Adapter
from headstart.backbones.base import Backbone
from headstart.core.devices import CPU, compute_on, move
from headstart.core.predictive import predict_cells
from headstart.core.types import VALIDATION_SHOTS, FeatureBatch, Knowledge
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.training.calibration import Outcome, RowOutcomes
from headstart.training.comparison import concatenate_outcomes
from headstart.training.episodes import random_ranks

_SHARE, _MOST_ROWS = 0.1, 200  # of the rows, held out in one fold

_LEAST_ROWS = 3  # held out in one fold; a table with fewer has no calibration of known features

_MOST_FEATURES = 200  # whose observations are targets


def draw_rows(rows: int, fold: int) -> NDArray[np.bool_]:
    """Draw the rows to hold out in a fold: (rows,), none if there are few."""
    count = min(_MOST_ROWS, round(_SHARE * rows))
    held_out = np.zeros(rows, dtype=bool)
    if count >= _LEAST_ROWS:
        held_out[np.random.default_rng(fold).permutation(rows)[:count]] = True
    return held_out


def concatenate_row_outcomes(parts: list[RowOutcomes]) -> RowOutcomes:
    """Concatenate the outcomes of different folds."""
    outcomes = [
        replace(part.outcome, feature=part.outcome.feature + _MOST_ROWS * fold)  # folds have different rows
        for fold, part in enumerate(parts)
    ]
    return RowOutcomes(concatenate_outcomes(outcomes), torch.cat([part.shots for part in parts]))


@torch.no_grad()
def predict_held_out_rows(
    adapter: Adapter,
    backbone: Backbone,
    knowledge: Knowledge,
    known: FeatureBatch,
    cells: Cells,
    *,
    seed: int,
    all_binary: bool = False,
) -> RowOutcomes | None:
    """Predict half of the observations of held-out rows from some of the others.

    Contexts have each of ``VALIDATION_SHOTS`` observations that a row has in its first half, in random order.

    Parameters
    ----------
    adapter, backbone, knowledge
        Parts that were trained without these rows.
    known : FeatureBatch
        The features of the backbone with all their observations.
    cells : Cells
        The observations of the held-out rows: rows × features.
    seed : int
        The seed of the random order.
    all_binary : bool
        Whether all values are binary, even if the model treats them as numbers.

    Returns
    -------
    RowOutcomes or None
        None if no row has two observations.
    """
    with compute_on(knowledge.device):
        generator = torch.Generator().manual_seed(seed)
        sample = torch.randperm(len(known), generator=generator)[:_MOST_FEATURES].sort().values
        states = adapter.refine_in_blocks(knowledge.states)
        heads = adapter.adapt(replace(known, known=torch.arange(len(known))).take(sample), states)
        position = torch.full((len(known),), -1)
        position[sample] = torch.arange(len(sample))
        half, rank = cells.counts // 2, random_ranks(cells, generator)
        parts, shots = [], []
        for size in VALIDATION_SHOTS:
            rows = torch.nonzero(half >= max(1, size))[:, 0]
            if not len(rows):
                break
            context = cells.keep(rank < size).take(rows)
            targets = cells.keep((rank >= half[cells.lines]) & (position[cells.index] >= 0)).take(rows)
            by_feature = replace(targets, index=position[targets.index], width=len(sample)).transpose()
            refined = adapter.refine(backbone.states(context))
            predictive = predict_cells(heads, refined, by_feature, known.kinds[sample], knowledge.likelihood)
            binary = torch.full((len(by_feature.index),), all_binary) | (predictive.kinds == KindType.BINARY)
            row = rows[by_feature.index]
            parts.append(Outcome(predictive, by_feature.values, row, binary, by_feature.weights))
            shots.append(known.shots[sample][by_feature.lines])
        if not parts:
            return None
        return move(RowOutcomes(concatenate_outcomes(parts), torch.cat(shots)), CPU)
