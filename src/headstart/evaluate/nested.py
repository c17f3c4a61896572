"""Observations in a random order, of which the first are shown and the last are targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headstart.errors import InputError, listed
from headstart.table.cells import Cells
from headstart.training.sampling import random_ranks


class NestedContexts:
    """The observations of each line in a random order that does not depend on their values.

    The first k are shown at k shots; those after the first ``max(shots)`` are targets. Lines without a
    target are left out.

    Parameters
    ----------
    cells : Cells
        The lines with all their observations.
    shots : sequence of int
        The numbers of shots: different whole numbers from 0 up, in any order.
    seed : int
        Seed of the random order.
    refusal : callable
        The message if no line has a target, from the largest number of shots and the largest line.
    """

    def __init__(
        self, cells: Cells, shots: Sequence[int], seed: int, refusal: Callable[[int, int], str]
    ) -> None:
        self.shots = check_shots(shots)
        rank = random_ranks(cells, torch.Generator().manual_seed(seed))
        enough = cells.counts > self.shots[-1]
        self.tested: Tensor = enough.nonzero().squeeze(1)  # (tested,): lines that have a target
        self.left_out = len(cells) - len(self.tested)
        if len(self.tested) == 0:
            raise InputError(refusal(self.shots[-1], int(cells.counts.max()) if len(cells) else 0))
        self.cells = cells.take(self.tested)
        self._rank = rank[enough[cells.lines]]

    def first(self, shots: int) -> Cells:
        """The first ``shots`` observations of each tested line."""
        return self.cells.keep(self._rank < shots)

    def targets(self) -> Cells:
        """The targets of each tested line."""
        return self.cells.keep(self._rank >= self.shots[-1])


def check_shots(shots: Sequence[int]) -> tuple[int, ...]:
    """Return the shots in ascending order; they must be different and not negative.

    >>> check_shots([4, 0, 1])
    (0, 1, 4)
    """
    if not shots or min(shots) < 0 or len(set(shots)) < len(shots):
        raise InputError(f"shots must be different whole numbers from 0 up; got {listed(shots) or 'none'}")
    return tuple(sorted(shots))
