"""Define the tests of new features and new rows: contexts of k observations, and targets to predict.

Benchmarks and ``Headstart.evaluate`` use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.likelihood import Likelihood
from headstart.core.predictive import Predictive, predict_cells
from headstart.core.types import FeatureBatch, Heads, RowStates
from headstart.errors import InputError, join_names
from headstart.evaluate.metrics import Answers
from headstart.evaluate.rankings import Lists, is_relevant
from headstart.table import Table
from headstart.table.cells import Cells, offsets
from headstart.table.kinds import Kinds
from headstart.table.margins import Category
from headstart.training.episodes import random_ranks
from headstart.training.table_inputs import table_groups

NEW_CELL_SHOTS = 4  # observations of the feature and of the row, in the test of new features at new rows


class NestedContexts:
    """Split the observations of each line into nested contexts and targets, at random.

    The first k observations in a random order are the context at k shots; the observations after the first
    ``max(shots)`` are targets. Lines without a target are left out.

    Parameters
    ----------
    cells : Cells
        The lines with all their observations.
    shots : sequence of int
        The numbers of shots: different whole numbers from 0 up, in any order.
    seed : int
        Seed of the random order.
    refusal : callable
        Returns the error message if no line has a target, given the largest number of shots and the number
        of observations of the largest line.
    groups : Tensor, optional
        Lines with equal numbers, the levels of one category, have the same random order of their rows.
    column_groups : Tensor, optional
        Columns with equal numbers, the levels of one category, are one observation of a line.
    """

    def __init__(
        self,
        cells: Cells,
        shots: Sequence[int],
        seed: int,
        refusal: Callable[[int, int], str],
        groups: Tensor | None = None,
        column_groups: Tensor | None = None,
    ) -> None:
        self.shots = check_shots(shots)
        generator = torch.Generator().manual_seed(seed)
        if column_groups is None:
            rank, counts = random_ranks(cells, generator, groups), cells.counts
        else:
            rank, counts = _answer_ranks(cells, column_groups, generator)
        enough = counts > self.shots[-1]
        self.tested: Tensor = enough.nonzero().squeeze(1)  # (tested,): lines that have a target
        self.left_out = len(cells) - len(self.tested)
        if len(self.tested) == 0:
            raise InputError(refusal(self.shots[-1], int(counts.max()) if len(cells) else 0))
        self.cells = cells.take(self.tested)
        self._rank = rank[enough[cells.lines]]

    def first(self, shots: int) -> Cells:
        """Return the first ``shots`` observations of each tested line."""
        return self.cells.keep(self._rank < shots)

    def targets(self) -> Cells:
        """Return the targets of each tested line."""
        return self.cells.keep(self._rank >= self.shots[-1])


def _answer_ranks(cells: Cells, groups: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the rank of each cell's answer in a random order of the answers of its line, and their counts.

    Columns with equal ``groups`` (width,) are the levels of one category: together they are one answer.
    """
    width = int(groups.max()) + 1 if len(groups) else 1
    answers, answer = torch.unique(cells.lines * width + groups[cells.index], return_inverse=True)
    lines = torch.div(answers, width, rounding_mode="floor")
    counts = torch.bincount(lines, minlength=len(cells))
    by_line = Cells(offsets(counts), answers % width, torch.ones(len(answers)), width)
    return random_ranks(by_line, generator)[answer], counts


def check_shots(shots: Sequence[int]) -> tuple[int, ...]:
    """Return the shots in ascending order; they must be different and not negative.

    >>> check_shots([4, 0, 1])
    (0, 1, 4)
    """
    if not shots or min(shots) < 0 or len(set(shots)) < len(shots):
        raise InputError(
            f"shots must be different whole numbers from 0 up; got {join_names(shots) or 'none'}"
        )
    return tuple(sorted(shots))


class Targets:
    """Cells to predict, with their kinds and true values.

    Parameters
    ----------
    targets : Cells
        The cells on the models' scale, one line per feature. The index of a cell is the position of its row
        in the states that predict it.
    scales : Kinds
        The kinds of these features in the data.
    modelled : Tensor
        The kinds with which these features are modelled: (features,).
    groups : Tensor, optional
        (features,): equal for the levels of one category. By default there are no categories.

    Attributes
    ----------
    targets : Cells
        The cells to predict, one line per feature.
    modelled : Tensor
        The kinds with which the features are modelled: (features,).
    """

    def __init__(self, targets: Cells, scales: Kinds, modelled: Tensor, groups: Tensor | None = None) -> None:
        self.targets = targets
        self.groups = groups
        self.modelled = modelled
        self._lines = targets.lines
        self._scales = scales

    @property
    def lines(self) -> Tensor:
        """The position of each target's feature among the tested ones: (targets,)."""
        return self._lines

    @property
    def kinds(self) -> Tensor:
        """The kind of each target in the data: (targets,)."""
        return torch.from_numpy(self._scales.types)[self._lines]

    @property
    def answers(self) -> Answers | None:
        """The targets as answers to categories; None without categories."""
        if self.groups is None:
            return None
        groups = self.groups[self._lines].numpy()
        is_level = np.array([isinstance(kind.margin, Category) for kind in self._scales], dtype=bool)
        return Answers.of(groups, self.targets.index.numpy(), is_level[self._lines.numpy()])

    @property
    def truth(self) -> NDArray[np.float64]:
        """The targets' values in data units: (targets,)."""
        lines = self._lines.numpy()
        numbers = self._scales.unscale(self.targets.values.double().numpy(), lines)
        return np.asarray(self._scales.values(numbers, lines))

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """The targets' weights: (targets,); None: all 1."""
        return None if self.targets.weights is None else self.targets.weights.double().numpy()

    @torch.no_grad()
    def predict(self, heads: Heads, states: RowStates, likelihood: Likelihood) -> Predictive:
        """Predict the targets from one head per tested feature: (targets,), on the models' scale."""
        return predict_cells(heads, states, self.targets, self.modelled, likelihood)

    def values_within_limits(self, mean: Tensor, std: float) -> NDArray[np.float64]:
        """Return the means of values in data units, clipped to the limits of their kinds: (targets,).

        ``mean`` (targets,) and ``std`` are on the models' scale.
        """
        return self._scales.values_within_limits(mean.double().numpy(), std, self._lines.numpy())

    def to_values(self, mean: Tensor, std: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the means and standard deviations of values in data units: two of (targets,).

        ``mean`` and ``std`` (targets,) are on the models' scale.
        """
        lines = self._lines.numpy()
        numbers = self._scales.unscale(mean.double().numpy(), lines)
        return self._scales.moments(numbers, self._scales.spans[lines] * std.double().numpy(), lines)


class KShotTest(Targets):
    """Contexts and targets of held-out features.

    The observations of each feature are put in a random order that does not depend on their values. The
    first k are the context at k shots; the observations after the first ``max(shots)`` are the targets. So
    contexts are nested, targets are the same for every k, and no target is part of a context. Features
    without a target are left out and counted.

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
        Positions of the tested features in the batch: (tested,).
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
                f"the largest of {len(batch)} features has {largest} observations; use shots below {largest}"
            ),
            batch.groups,
        )
        self.shots, self.left_out = nested.shots, nested.left_out
        self.features: Tensor = nested.tested  # (tested,): positions in the batch
        self._batch = batch.take(self.features)
        scales = kinds.take(self.features.numpy())
        super().__init__(nested.targets(), scales, self._batch.kinds, self._batch.groups)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def tested(self) -> int:
        """The number of tested features; a category is one."""
        return len(self) if self.groups is None else len(torch.unique(self.groups))

    def context(self, shots: int) -> FeatureBatch:
        """Return the tested features with the first ``shots`` observations of each."""
        if not 0 <= shots <= self.shots[-1]:
            raise InputError(f"this test has contexts of 0 to {self.shots[-1]} shots; got {shots}")
        return self._batch.observing(self._nested.first(shots))

    def lists(self) -> Lists:
        """Return one list of rows per tested feature: relevant targets, without the largest context."""
        relevant = is_relevant(self.targets.values, self.modelled[self.lines])
        return Lists(self.targets.keep(relevant), self._nested.first(self.shots[-1]))


class RowTest(Targets):
    """Contexts and targets of held-out rows, at known features.

    The observations of each row are put in a random order that does not depend on their values. The first
    r are the context of the row; the observations after the first ``max(shots)`` are the targets. So contexts
    are nested, targets are the same for every r, and no target is part of a context. Rows without a target
    are left out and counted.

    Parameters
    ----------
    table : Table
        The held-out rows with their observations of known features, with the kinds that are modelled.
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
        Positions of the tested rows in the table: (tested,).
    features : Tensor
        Positions in the table of the features with a target: (features,).
    targets : Cells
        The cells to predict, one line per feature of ``features``; the index is the position of a tested row.
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
            column_groups=table_groups(table),
        )
        self.shots, self.left_out = nested.shots, nested.left_out
        self.rows: Tensor = nested.tested  # (tested,): positions in the table
        self._types = torch.from_numpy(table.kinds.types)
        by_feature = nested.targets().transpose()
        self.features: Tensor = by_feature.counts.nonzero().squeeze(1)
        positions = self.features.numpy()
        modelled = torch.from_numpy(table.kinds.types[positions])
        groups = table_groups(table)
        groups = None if groups is None else groups[self.features]
        super().__init__(by_feature.take(self.features), kinds.take(positions), modelled, groups)

    def __len__(self) -> int:
        return len(self.rows)

    def context(self, shots: int) -> Cells:
        """Return the first ``shots`` observations of each tested row: one line per row."""
        if not 0 <= shots <= self.shots[-1]:
            raise InputError(f"this test describes rows by 0 to {self.shots[-1]} observations; got {shots}")
        return self._nested.first(shots)

    def lists(self) -> Lists:
        """Return one list of features per tested row: relevant targets, without the largest context."""
        targets = self._nested.targets()
        relevant = is_relevant(targets.values, self._types[targets.index])
        return Lists(targets.keep(relevant), self._nested.first(self.shots[-1]))


def new_cell_targets(table: Table, kinds: Kinds, rows: RowTest, features: KShotTest) -> Targets | None:
    """Return the cells of tested new rows at tested new features as targets; None if there are none.

    Parameters
    ----------
    table : Table
        The held-out rows with their observations of new features, with the kinds that are modelled.
    kinds : Kinds
        The kinds of these features in the data.
    rows : RowTest
        The test of the same rows; the index of a target is a position among the rows that it tests.
    features : KShotTest
        The test of the same features; the targets have one line for each feature that it tests.
    """
    if min(rows.shots[-1], features.shots[-1]) < NEW_CELL_SHOTS:
        return None
    cells = table.cells().take(rows.rows).transpose().take(features.features)
    if len(cells.index) == 0:
        return None
    positions = features.features.numpy()
    modelled = torch.from_numpy(table.kinds.types[positions])
    return Targets(cells, kinds.take(positions), modelled, features.groups)
