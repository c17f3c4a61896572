"""The strength of the rows' differences in categories, estimated on held-out cells.

The frequencies of the levels of a known category depend on no factor. How much the predictions of rows may
differ from them depends on the table: with few features, factors fit their own observations too well.
``fit_level_strength`` trains models without some cells, and finds the strength that predicts these best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.adapters.base import AdapterConfig
from headstart.core.devices import CPU, compute_on, move
from headstart.core.predictive import predict_cells
from headstart.distributed import process_group
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.margins import Category
from headstart.training.recipe import Recipe, train
from headstart.training.table_inputs import feature_batch

MOST_OBSERVATIONS = 500_000  # of a table; with more, a second training takes too long

_FOLDS = 5  # parts of the answers; each is held out from one training

_ENOUGH = 20_000  # levels of held-out answers; then no further fold is needed

USUAL_ANSWERS = 5.0  # as if this number of answers had been observed as predicted

STRENGTHS = tuple(step / 20 for step in range(21))


def level_chances(probability: Any, count: Any, total: Any, strength: Any) -> Any:
    """Return f^(1 - strength)·p^strength: chances of the levels of a cell, up to a common factor.

    p is the predicted ``probability`` of a level, and f its frequency: it was observed ``count`` of ``total``
    times, and ``USUAL_ANSWERS`` as predicted are added. With the strength 1 the chances are p; with 0, all
    rows have nearly the same frequencies.
    """
    frequency = (count + USUAL_ANSWERS * probability) / (total + USUAL_ANSWERS)
    return frequency ** (1 - strength) * probability**strength


def best_strength(probability: Tensor, truth: Tensor, answer: Tensor, count: Tensor, total: Tensor) -> float:
    """Return the one of ``STRENGTHS`` with the highest likelihood of observed levels.

    Parameters
    ----------
    probability, truth : Tensor of shape (n,)
        The predicted probability of a level, and whether it was observed, 1 or 0; weighted by its weight.
    answer : Tensor of shape (n,)
        The number of the cell that each level belongs to.
    count, total : Tensor of shape (n,)
        How often the level, and any level of its feature, was observed elsewhere.
    """
    answer = torch.unique(answer, return_inverse=True)[1]
    share = probability / torch.bincount(answer, probability)[answer]
    strengths = []
    for strength in STRENGTHS:
        chances = level_chances(share, count, total, strength)
        shares = chances / torch.bincount(answer, chances)[answer]
        strengths.append((float((truth * shares.log()).sum()), strength))
    return max(strengths)[1]


@torch.no_grad()
def fit_level_strength(
    table: Table,
    features: NDArray[np.int64],
    recipe: Recipe,
    adapter: AdapterConfig,
    *,
    reporter: Reporter,
    checkpoint: Callable[[str], Path | None],
    device: torch.device = CPU,
) -> float:
    """Estimate the strength of the rows' differences in the categories of a table.

    It is 1, which changes nothing, without categories, for a large table, and for several processes.
    """
    table = table.with_features(features)
    is_level = np.array([isinstance(kind.margin, Category) for kind in table.kinds], dtype=bool)
    if not is_level.any() or len(table) > MOST_OBSERVATIONS or not process_group().is_single:
        return 1.0
    answers = table.groups[table.feature_index] * len(table.rows) + table.row_index
    _, answer = np.unique(answers, return_inverse=True)
    fold = np.random.default_rng(recipe.random_state).integers(_FOLDS, size=answer.max(initial=0) + 1)
    ones = np.bincount(table.feature_index, table.values, len(table.features))
    rare = (table.values == 1) & (ones[table.feature_index] < _FOLDS)  # a level must stay known
    fold[answer[rare | ~is_level[table.feature_index]]] = -1
    reporter.say("Judging the levels of categories on cells held out")
    parts = []
    for number in range(_FOLDS):
        hidden = (fold == number)[answer]
        if hidden.any():
            trial = _Trial(table, hidden, recipe, adapter, reporter, checkpoint, device)
            parts.append(trial.predict(f"levels-{number}"))
        if sum(len(part[0]) for part in parts) >= _ENOUGH:
            break
    if not parts:
        return 1.0
    numbers = [torch.cat(part) for part in zip(*parts, strict=True)]
    return best_strength(*numbers)


@dataclass(frozen=True)
class _Trial:
    """Training without the observations ``hidden`` (n,)."""

    table: Table
    hidden: NDArray[np.bool_]
    recipe: Recipe
    adapter: AdapterConfig
    reporter: Reporter
    checkpoint: Callable[[str], Path | None]
    device: torch.device

    def predict(self, name: str) -> tuple[Tensor, ...]:
        """Return the arguments of ``best_strength`` at the hidden cells; checkpoints have this ``name``."""
        known, device = self.table.with_observations(~self.hidden), self.device
        everything = np.arange(len(known.features))
        trained = train(
            known,
            everything,
            everything,
            self.recipe,
            {"adapter": self.adapter},
            reporter=self.reporter,
            checkpoint=lambda part: self.checkpoint(f"{name}-{part}"),
            device=device,
        )
        part, knowledge = trained.adapters["adapter"], trained.knowledge
        batch = move(replace(feature_batch(known), known=torch.arange(len(everything))), device)
        targets = move(feature_batch(self.table.with_observations(self.hidden)).cells, device)
        with compute_on(device):
            states = part.adapter.refine(knowledge.states)
            heads = part.adapter.adapt(batch, states)
            predictive = predict_cells(heads, states, targets, batch.kinds, knowledge.likelihood)
            mean, std = predictive.mean.cpu(), predictive.std.cpu()
        batch, targets = move(batch, CPU), move(targets, CPU)
        lines, cells = targets.lines, batch.cells
        probability = part.calibration.probability(mean, std, batch.shots[lines]).clamp(1e-6, 1)
        answer = torch.from_numpy(self.table.groups)[lines] * targets.width + targets.index
        count = torch.bincount(cells.lines, cells.values.double(), minlength=len(cells))
        truth = targets.weighted(targets.values).double()
        return probability, truth, answer, count[lines], batch.shots[lines].double()
