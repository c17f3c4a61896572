"""Item response theory: the two-parameter logistic model, and the graded response model for ratings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from algebra import lines_of
from problem import Context, Floats, Ints, Problem
from torch import Tensor

from methods.protocol import Peer

_LEAST = 1e-6  # probability of an answer, in the likelihood


@dataclass
class ItemResponse(Peer):
    """P(value ≥ level c) = σ(a·θ − b_c), with a row's ability θ and a feature's slope a and thresholds b.

    With two levels this is the two-parameter logistic model (2PL), with more the graded response model (GRM).
    Abilities, slopes and thresholds of known features are found together by their largest posterior (Adam).
    ``adapt`` estimates slope and thresholds of a new feature by theirs, with the abilities fixed; their prior
    has the mean and the variance of the known features. The model reads no metadata.
    """

    steps: int = 300
    context_steps: int = 150
    rate: float = 0.05
    width: float = 1.0  # factor of the standard deviation of the prior of a new feature

    choices: ClassVar = {"width": (0.5, 1.0, 2.0), "steps": (150, 300)}

    def fit(self, problem: Problem) -> None:
        known = problem.known
        self.levels = np.unique(known.data)
        row, feature = torch.from_numpy(lines_of(known)), torch.from_numpy(known.indices.astype(np.int64))
        grade = torch.from_numpy(np.searchsorted(self.levels, known.data))
        share = np.array([(known.data >= level).mean() for level in self.levels[1:]])
        start = torch.from_numpy(np.log((1 - share) / share))  # the thresholds that explain all values
        gaps = torch.log(torch.expm1((start[1:] - start[:-1]).clamp(min=0.05)))
        begin = torch.cat([torch.zeros(1, dtype=torch.float64), start[:1], gaps])  # log a, b_1, gaps
        prior = (begin, torch.ones_like(begin))
        items = begin.repeat(known.shape[1], 1).requires_grad_()
        ability = torch.zeros(known.shape[0], dtype=torch.float64)
        ability += 0.1 * torch.from_numpy(np.random.default_rng(0).normal(size=len(ability)))
        ability.requires_grad_()
        self._climb([items, ability], self.steps, lambda: (
            _log_posterior(items, prior, ability[row], feature, grade) - 0.5 * (ability**2).sum()
        ))  # fmt: skip
        self.ability = ability.detach()
        found = items.detach()
        self.prior = (found.mean(0), self.width * found.std(0).clamp(min=0.05))

    def adapt(self, context: Context) -> Tensor:
        items = self.prior[0].repeat(context.features, 1).requires_grad_()
        if len(context.value):
            grade = torch.from_numpy(
                np.clip(np.searchsorted(self.levels, context.value), 0, len(self.levels) - 1)
            )
            feature = torch.from_numpy(context.feature.astype(np.int64))
            ability = self.ability[torch.from_numpy(context.row.astype(np.int64))]
            self._climb([items], self.context_steps, lambda: (
                _log_posterior(items, self.prior, ability, feature, grade)
            ))  # fmt: skip
        return items.detach()

    def predict(self, adapted: Tensor, feature: Ints, row: Ints) -> Floats:
        items, ability = adapted[torch.from_numpy(feature)], self.ability[torch.from_numpy(row)]
        steps = torch.from_numpy(np.diff(self.levels))
        found: Floats = (float(self.levels[0]) + _above(items, ability) @ steps).numpy()
        return found

    def _climb(self, parameters: list[Tensor], steps: int, objective) -> None:  # type: ignore[no-untyped-def]
        optimiser = torch.optim.Adam(parameters, lr=self.rate)
        for _ in range(steps):
            optimiser.zero_grad()
            loss = -objective()
            loss.backward()
            optimiser.step()


def _above(items: Tensor, ability: Tensor) -> Tensor:
    """Return the probabilities of at least each level but the lowest: (n, levels − 1)."""
    slope, thresholds = items[:, :1].exp(), items[:, 1:2]
    gaps = torch.nn.functional.softplus(items[:, 2:]).cumsum(1)
    return torch.sigmoid(slope * ability[:, None] - torch.cat([thresholds, thresholds + gaps], 1))


def _log_posterior(
    items: Tensor, prior: tuple[Tensor, Tensor], ability: Tensor, feature: Tensor, grade: Tensor
) -> Tensor:
    """Return the log-likelihood of the ``grade`` of each observation, and the log-prior of ``items``."""
    above = _above(items[feature], ability)
    ends = above.new_ones(len(above), 1)
    bounds = torch.cat([ends, above, 0 * ends], 1)
    chance = bounds.gather(1, grade[:, None]) - bounds.gather(1, grade[:, None] + 1)
    return chance.clamp(min=_LEAST).log().sum() - 0.5 * (((items - prior[0]) / prior[1]) ** 2).sum()
