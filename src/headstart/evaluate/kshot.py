"""The k-shot test: all adapters are scored on the same cells, at every number of shots."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from headstart.core.batch import FeatureBatch
from headstart.errors import InputError
from headstart.evaluate.nested import NestedContexts
from headstart.evaluate.targets import Targets
from headstart.table.kinds import Kinds


class KShotTest(Targets):
    """Contexts and targets of held-out features.

    The observations of each feature are put in a random order that does not depend on their values. The
    first k are the context at k shots; those after the first ``max(shots)`` are the targets. So contexts
    are nested, targets are the same for every k, and no target is part of a context. Features that have
    no target are left out and counted.

    Parameters
    ----------
    batch : FeatureBatch
        The held-out features with all their observations.
    kinds : Kinds
        The kinds of these features, with their scales.
    shots : sequence of int
        The numbers of shots to test: different whole numbers from 0 up, in any order.
    seed : int
        Seed of the random order.

    Attributes
    ----------
    shots : tuple of int
        The numbers of shots in ascending order.
    features : Tensor
        Positions in the batch of the features that are tested: (tested,).
    targets : Cells
        The cells to predict, one line per tested feature.
    left_out : int
        Number of features without a target.

    Raises
    ------
    InputError
        If ``shots`` are not valid, or if no feature has a target.

    Examples
    --------
    >>> import torch
    >>> from headstart.table import Cells, Kind
    >>> cells = Cells.from_pairs(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2, 0]), torch.ones(4), 2, 3)
    >>> batch = FeatureBatch(cells, torch.zeros(2, 0), torch.zeros(2, dtype=torch.int64))
    >>> test = KShotTest(batch, Kinds([Kind.binary(), Kind.binary()]), shots=[0, 1], seed=0)
    >>> test.context(1).shots, len(test.targets.index), test.left_out
    (tensor([1]), 2, 1)
    """

    def __init__(self, batch: FeatureBatch, kinds: Kinds, shots: Sequence[int], seed: int) -> None:
        self._nested = nested = NestedContexts(
            batch.cells,
            shots,
            seed,
            lambda most, largest: (
                f"{most} shots leave no observation to test on: "
                f"the largest of {len(batch)} features has {largest} observations"
            ),
        )
        self.shots, self.left_out = nested.shots, nested.left_out
        self.features: Tensor = nested.tested  # (tested,): positions in the batch
        self._batch = batch.take(self.features)
        super().__init__(nested.targets(), kinds.take(self.features.numpy()), self._batch.kinds)

    def __len__(self) -> int:
        return len(self.features)

    def context(self, shots: int) -> FeatureBatch:
        """Return the tested features with the first ``shots`` observations of each."""
        if not 0 <= shots <= self.shots[-1]:
            raise InputError(f"this test has contexts of 0 to {self.shots[-1]} shots; got {shots}")
        return self._batch.observing(self._nested.first(shots))
