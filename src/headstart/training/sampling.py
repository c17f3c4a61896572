"""Random numbers of meta-training: which features are drawn, how often, and which of their observations."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from headstart.core.batch import FeatureBatch
from headstart.table.cells import Cells, offsets, ranges


def random_ranks(cells: Cells, generator: torch.Generator) -> Tensor:
    """The place of each observation in a random order of its line: (n,). No value is looked at."""
    lines = cells.lines
    keys = torch.rand(len(lines), generator=generator, dtype=torch.float64)
    order = torch.argsort(lines + keys)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - cells.indptr[lines]
    return rank


def shuffled(cells: Cells, generator: torch.Generator) -> Cells:
    """The same observations, those of each line in a random order."""
    order = torch.empty(len(cells.index), dtype=torch.int64)
    order[random_ranks(cells, generator) + cells.indptr[cells.lines]] = torch.arange(len(order))
    return cells.at(cells.indptr, order)


def random_part(cells: Cells, lines: Tensor, most: int, generator: torch.Generator) -> Cells:
    """These lines, with at most so many observations of each, drawn at random from ``shuffled`` ones.

    They follow each other from a random place on, the first after the last: so a line of any length costs
    no more than what is taken of it.
    """
    counts = cells.counts[lines]
    first = (torch.rand(len(lines), generator=generator, dtype=torch.float64) * counts).long()
    taken = offsets(counts.clamp(max=most))
    place = ranges(first, taken.diff())
    owner = torch.repeat_interleave(taken.diff())
    return cells.at(taken, cells.indptr[lines][owner] + place % counts[owner])


def draw_shots(
    batch: FeatureBatch,
    most: int,
    generator: torch.Generator,
    how: Literal["uniform", "log"] = "uniform",
) -> Tensor:
    """Shots from {0..most} for each feature, leaving it at least one target: (features,).

    Uniform as in the paper, or uniform in log(1 + shots), so that many shots do not crowd out few.
    """
    if how == "uniform":
        shots = torch.randint(most + 1, (len(batch),), generator=generator)
    else:
        share = torch.rand(len(batch), generator=generator)
        shots = (torch.exp(share * math.log(most + 2)) - 1).long().clamp(max=most)
    return torch.minimum(shots, (batch.shots - 1).clamp(min=0))


def draw_features(counts: Tensor, number: int, power: float, generator: torch.Generator) -> Tensor:
    """The places of so many features, drawn in proportion to counts^power, in a random order: (number,).

    One is drawn from each of ``number`` equal parts of the whole, so that all kinds of features occur.
    """
    ends = (counts.double() ** power).cumsum(0)
    points = torch.arange(number) + torch.rand(number, generator=generator, dtype=torch.float64)
    drawn = torch.searchsorted(ends, points / number * ends[-1], right=True).clamp(max=len(counts) - 1)
    return drawn[torch.randperm(number, generator=generator)]


def feature_weights(shots: Tensor, counts: Tensor, usual: Tensor, power: float) -> Tensor:
    """How much a feature of ``counts`` observations counts in an episode of ``shots``: (features,).

    All draws of a feature together should count counts^p, relative to its mean over all features
    (``usual_weights``). p falls from 1 at no shots, where a feature's popularity is all that says how much
    its targets weigh, towards ``power``: less uneven weights make more features teach. ``draw_features``
    gives a part of it, counts^power, and this is the rest.
    """
    return counts.float() ** (_exponents(shots, power) - power) / usual[shots]


def usual_weights(every: Tensor, most: int, power: float) -> Tensor:
    """The mean of counts^p over ``every`` count there is, by shots up to ``most``: (most + 1,).

    Counts repeat: each power is computed once for the features that share it.
    """
    counts, features = torch.unique(every, return_counts=True)
    exponents = _exponents(torch.arange(most + 1), power)
    means = [(counts.float() ** each * features).sum() / len(every) for each in exponents]
    return torch.stack(means)


def _exponents(shots: Tensor, power: float) -> Tensor:
    return power + (1 - power) * (1 + shots.float()).rsqrt()
