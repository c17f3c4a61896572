"""Observations in a random order within each feature or each row: the first ones are the context."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError

_ENOUGH = 20  # features or rows

Floats = NDArray[Any]
Ints = NDArray[Any]


@dataclass(frozen=True)
class Ordered:
    """Observations (feature, row, value), each with its rank in the random order of its ``group``.

    The group of an observation is its feature in tests of new features, its row in tests of new rows. A
    context of k shots has the ranks below k; the targets are the ranks from ``part`` up, the same at
    every k. Groups with no more than ``part`` observations are not tested.
    """

    feature: Ints  # (n,)
    row: Ints  # (n,)
    value: Floats  # (n,), data units
    group: Ints  # (n,)
    groups: int
    rank: Ints  # (n,)
    part: int
    ladder: tuple[int, ...]

    @classmethod
    def shuffled(
        cls,
        feature: Ints,
        row: Ints,
        value: Floats,
        by: str,
        groups: int,
        ladder: tuple[int, ...],
        seed: int,
    ) -> Ordered:
        """Shuffle observations within groups ``by`` "feature" or "row", by a seed."""
        group = feature if by == "feature" else row
        order = np.lexsort((np.random.default_rng(seed).random(len(group)), group))
        counts = np.bincount(group, minlength=groups)
        rank = np.empty(len(group), np.int64)
        rank[order] = np.arange(len(group)) - (np.cumsum(counts) - counts)[group[order]]
        # A third of a feature is context at most, half of a row: rows of narrow tables hold little.
        part = largest_part(counts, ladder, 3 if by == "feature" else 2)
        return cls(feature, row, value, group, groups, rank, part, ladder)

    @property
    def shots(self) -> tuple[int, ...]:
        """The context sizes that contain no target."""
        return tuple(k for k in self.ladder if k <= self.part)

    @cached_property
    def tested(self) -> NDArray[np.bool_]:
        """Mask of the groups with targets: (groups,)."""
        tested: NDArray[np.bool_] = np.bincount(self.group, minlength=self.groups) > self.part
        return tested

    @cached_property
    def targets(self) -> Ints:
        """Positions of the targets: (targets,)."""
        return np.flatnonzero((self.rank >= self.part) & self.tested[self.group])

    def seen(self, shots: int) -> Ints:
        """Positions of the context's observations: (n,)."""
        return np.flatnonzero((self.rank < shots) & self.tested[self.group])


def largest_part(counts: Ints, ladder: tuple[int, ...], times: int) -> int:
    """Return the largest context size such that groups have ``times`` as many observations.

    This must hold for half of the groups, or for 20 of them: in sparse tables most features have few
    observations, and features with more are tested.
    """
    enough = min(_ENOUGH, -(-len(counts) // 2))
    fitting = [k for k in ladder if k > 0 and int((counts >= times * k).sum()) >= enough]
    if not fitting:
        raise InputError("too few observations a feature or row: nothing would be left to test on")
    return max(fitting)
