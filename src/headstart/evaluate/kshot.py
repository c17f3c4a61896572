"""The k-shot test: every adapter, at every number of shots, is scored on the same cells."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headstart.adapters.protocol import FeatureBatch
from headstart.backbones.heads import Heads
from headstart.backbones.likelihood import Likelihood
from headstart.backbones.protocol import RowStates
from headstart.backbones.sparse import products_at
from headstart.errors import InputError
from headstart.table.cells import Cells
from headstart.table.kinds import Kinds
from headstart.training.episodes import random_ranks, target_noise

_CELLS_AT_ONCE = 2**24  # bounds what a dense product of heads and rows may take


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
        self._offset = torch.from_numpy(kinds.offsets)[self.features]
        self._span = torch.from_numpy(kinds.spans)[self.features]

    def __len__(self) -> int:
        return len(self.features)

    @property
    def lines(self) -> Tensor:
        """Which of the tested features each target belongs to: (targets,)."""
        return self._lines

    @property
    def codes(self) -> Tensor:
        """The kind of each target: (targets,)."""
        return self._batch.codes[self._lines]

    @property
    def truth(self) -> Tensor:
        """The targets' values in data units: (targets,) float64."""
        return self._unscaled(self.targets.values)

    def context(self, shots: int) -> FeatureBatch:
        """Return the tested features with the first ``shots`` observations of each."""
        if not 0 <= shots <= self.shots[-1]:
            raise InputError(f"this test has contexts of 0 to {self.shots[-1]} shots; got {shots}")
        return self._batch.observing(self._batch.cells.keep(self._rank < shots))

    @torch.no_grad()
    def predict(
        self, heads: Heads, states: RowStates, likelihood: Likelihood
    ) -> tuple[Tensor, Tensor | None]:
        """The mean at each target in data units, (targets,) float64, and the standard deviation on the
        models' scale where the heads know it.
        """
        parts = torch.split(torch.arange(len(self)), max(1, _CELLS_AT_ONCE // max(1, len(states))))
        products = [
            products_at(heads.weight[part], states.activation, self.targets.take(part)) for part in parts
        ]
        logits = torch.cat(products) + heads.bias[self._lines]
        if heads.covariance is None:
            return self._unscaled(likelihood.mean(logits, self.codes)), None
        mean, variance = likelihood.predictive(logits, *target_noise(heads, states, self.targets), self.codes)
        return self._unscaled(mean), variance.sqrt()

    def spread(self, std: Tensor) -> Tensor:
        """Bring a standard deviation at each target (targets,) to data units."""
        return std.double() * self._span[self._lines]

    def _unscaled(self, values: Tensor) -> Tensor:
        return values.double() * self._span[self._lines] + self._offset[self._lines]


def check_shots(shots: Sequence[int]) -> tuple[int, ...]:
    """Return the shots in ascending order; refuse none, negative ones and repeats.

    >>> check_shots([4, 0, 1])
    (0, 1, 4)
    """
    told = ", ".join(str(k) for k in shots)
    if not shots or min(shots) < 0 or len(set(shots)) < len(shots):
        raise InputError(f"shots must be different whole numbers from 0 up; got {told or 'none'}")
    return tuple(sorted(shots))
