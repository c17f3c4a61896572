"""The test of new rows: all methods are scored on the same cells, at every number of a row's observations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headstart.errors import InputError
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.nested import NestedContexts
from headstart.evaluate.targets import Targets
from headstart.table import Table
from headstart.table.cells import Cells
from headstart.table.kinds import Kinds

BOTH = 4  # observations of the feature and of the row, where both are few


class RowTest(Targets):
    """Contexts and targets of held-out rows, at features that are known.

    The observations of each row are put in a random order that does not depend on their values. The first
    r describe the row; those after the first ``max(shots)`` are the targets. So what describes a row is
    nested, targets are the same for every r, and no target describes its row. Rows that have no target are
    left out and counted.

    Parameters
    ----------
    table : Table
        The held-out rows with their observations of known features, as the model takes them.
    kinds : Kinds
        The kinds of these features in the data, with their scales.
    shots : sequence of int
        The numbers of observations of a row to test: different whole numbers from 0 up, in any order.
    seed : int
        Seed of the random order.

    Attributes
    ----------
    shots : tuple of int
        The numbers of observations in ascending order.
    rows : Tensor
        Positions in the table of the rows that are tested: (tested,).
    features : Tensor
        Positions in the table of the features that have a target: (features,).
    targets : Cells
        The cells to predict, one line per feature of ``features``; they point at tested rows.
    left_out : int
        Number of rows without a target.

    Raises
    ------
    InputError
        If ``shots`` are not valid, or if no row has a target.

    Examples
    --------
    >>> import pyarrow as pa
    >>> lines = {"row": [*"aaab"], "feature": [*"xyzx"], "value": [1, 2, 5, 4]}
    >>> table = Table.read(pa.table(lines), kinds="rating:1:5")
    >>> test = RowTest(table, table.kinds, shots=[0, 2], seed=0)
    >>> test.context(2).counts, len(test.targets.index), test.left_out
    (tensor([2]), 1, 1)
    """

    def __init__(self, table: Table, kinds: Kinds, shots: Sequence[int], seed: int) -> None:
        cells = table.cells()
        self._nested = nested = NestedContexts(
            cells,
            shots,
            seed,
            lambda most, largest: (
                f"{most} observations of a row leave none to test on: the largest of {len(cells)} "
                f"held-out rows has {largest} observations of known features"
            ),
        )
        self.shots, self.left_out = nested.shots, nested.left_out
        self.rows: Tensor = nested.tested  # (tested,): positions in the table
        by_feature = nested.targets().transpose()
        self.features: Tensor = by_feature.counts.nonzero().squeeze(1)
        positions = self.features.numpy()
        modelled = torch.from_numpy(table.kinds.types[positions])
        super().__init__(by_feature.take(self.features), kinds.take(positions), modelled)

    def __len__(self) -> int:
        return len(self.rows)

    def context(self, shots: int) -> Cells:
        """Return the first ``shots`` observations of each tested row: one line per row."""
        if not 0 <= shots <= self.shots[-1]:
            raise InputError(f"this test describes rows by 0 to {self.shots[-1]} observations; got {shots}")
        return self._nested.first(shots)


def both_few(table: Table, kinds: Kinds, rows: RowTest, features: KShotTest) -> Targets | None:
    """Return what tested rows observed of tested new features; None if there is nothing to be had.

    Parameters
    ----------
    table : Table
        The held-out rows with their observations of new features, as the model takes them.
    kinds : Kinds
        The kinds of these features in the data.
    rows : RowTest
        The test of the same rows; the targets point at the rows that it tests.
    features : KShotTest
        The test of the same features; the targets have one line for each feature that it tests.
    """
    if min(rows.shots[-1], features.shots[-1]) < BOTH:
        return None
    cells = table.cells().take(rows.rows).transpose().take(features.features)
    if len(cells.index) == 0:
        return None
    positions = features.features.numpy()
    return Targets(cells, kinds.take(positions), torch.from_numpy(table.kinds.types[positions]))
