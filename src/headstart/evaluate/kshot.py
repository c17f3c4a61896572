"""The k-shot test: every adapter, at every number of shots, is scored on the same cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.likelihood import Likelihood
from headstart.core.predictive import Predictive, predict_cells
from headstart.core.states import RowStates
from headstart.errors import InputError
from headstart.table.cells import Cells
from headstart.table.kinds import Kinds
from headstart.training.episodes import random_ranks


class KShotTest:
    """Contexts and targets of held-out features.

    Each feature's observations get one random order, drawn without looking at any value. The first
    k are its context at k shots; what follows the first ``max(shots)`` are its targets. So contexts
    are nested, targets are the same for every k, and no target is ever part of a context. Features
    with no target left are left out and counted.

    >>> from headstart.table.kinds import Kind
    >>> cells = Cells.from_pairs(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2, 0]), torch.ones(4), 2, 3)
    >>> batch = FeatureBatch(cells, torch.zeros(2, 0), torch.zeros(2, dtype=torch.int64))
    >>> test = KShotTest(batch, Kinds([Kind.binary(), Kind.binary()]), shots=[0, 1], seed=0)
    >>> test.context(1).shots, len(test.targets.index), test.left_out
    (tensor([1]), 2, 1)
    """

    def __init__(self, batch: FeatureBatch, kinds: Kinds, shots: Sequence[int], seed: int) -> None:
        self.shots = check_shots(shots)
        rank = random_ranks(batch.cells, torch.Generator().manual_seed(seed))
        enough = batch.shots > self.shots[-1]
        self.features: Tensor = enough.nonzero().squeeze(1)  # (tested,): positions in the batch
        self.left_out = len(batch) - len(self.features)
        if len(self.features) == 0:
            most = int(batch.shots.max()) if len(batch) else 0
            raise InputError(
                f"{self.shots[-1]} shots leave no feature anything to be tested on: "
                f"the largest of {len(batch)} has {most} observations"
            )
        self._batch = batch.take(self.features)
        self._rank = rank[enough[batch.cells.lines]]
        self.targets: Cells = self._batch.cells.keep(self._rank >= self.shots[-1])
        self._lines = self.targets.lines
        self._scales = kinds.take(self.features.numpy())

    def __len__(self) -> int:
        return len(self.features)

    @property
    def lines(self) -> Tensor:
        """Which of the tested features each target belongs to: (targets,)."""
        return self._lines

    @property
    def kinds(self) -> Tensor:
        """The kind of each target: (targets,)."""
        return self._batch.kinds[self._lines]

    @property
    def truth(self) -> NDArray[np.float64]:
        """The targets' values in data units: (targets,)."""
        return self.unscaled(self.targets.values)

    def context(self, shots: int) -> FeatureBatch:
        """Return the tested features with the first ``shots`` observations of each."""
        if not 0 <= shots <= self.shots[-1]:
            raise InputError(f"this test has contexts of 0 to {self.shots[-1]} shots; got {shots}")
        return self._batch.observing(self._batch.cells.keep(self._rank < shots))

    @torch.no_grad()
    def predict(self, heads: Heads, states: RowStates, likelihood: Likelihood) -> Predictive:
        """What these heads, one per tested feature, say of the targets: (targets,), on the models' scale."""
        return predict_cells(heads, states, self.targets, self._batch.kinds, likelihood)

    def unscaled(self, values: Tensor) -> NDArray[np.float64]:
        """Bring a value at each target (targets,) to data units."""
        return self._scales.unscale(values.double().numpy(), self._lines.numpy())

    def unscaled_std(self, std: Tensor) -> NDArray[np.float64]:
        """Bring a standard deviation at each target (targets,) to data units."""
        spans: NDArray[np.float64] = self._scales.spans[self._lines.numpy()]
        return np.asarray(spans * std.double().numpy())


def check_shots(shots: Sequence[int]) -> tuple[int, ...]:
    """Return the shots in ascending order; refuse none, negative ones and repeats.

    >>> check_shots([4, 0, 1])
    (0, 1, 4)
    """
    told = ", ".join(str(k) for k in shots)
    if not shots or min(shots) < 0 or len(set(shots)) < len(shots):
        raise InputError(f"shots must be different whole numbers from 0 up; got {told or 'none'}")
    return tuple(sorted(shots))
