"""Targets: cells of some features whose values are to be predicted."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.heads import Heads
from headstart.core.likelihood import Likelihood
from headstart.core.predictive import Predictive, predict_cells
from headstart.core.states import RowStates
from headstart.table.cells import Cells
from headstart.table.kinds import Kinds


class Targets:
    """Cells to predict, with what is needed to score predictions of them.

    Parameters
    ----------
    targets : Cells
        The cells, on the models' scale: one line per feature, pointing at rows of the states that predict
        them.
    scales : Kinds
        The kinds of these features in the data.
    modelled : Tensor
        The kinds of these features as the model takes them: (features,).

    Attributes
    ----------
    targets : Cells
        The cells to predict, one line per feature.
    modelled : Tensor
        The kinds of the features as the model takes them: (features,).
    """

    def __init__(self, targets: Cells, scales: Kinds, modelled: Tensor) -> None:
        self.targets = targets
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
    def truth(self) -> NDArray[np.float64]:
        """The targets' values in data units: (targets,)."""
        return self.unscaled(self.targets.values)

    @torch.no_grad()
    def predict(self, heads: Heads, states: RowStates, likelihood: Likelihood) -> Predictive:
        """Predict the targets from one head per tested feature: (targets,), on the models' scale."""
        return predict_cells(heads, states, self.targets, self.modelled, likelihood)

    def unscaled(self, values: Tensor) -> NDArray[np.float64]:
        """Convert one value per target (targets,) to data units."""
        return self._scales.unscale(values.double().numpy(), self._lines.numpy())

    def unscaled_std(self, std: Tensor) -> NDArray[np.float64]:
        """Convert one standard deviation per target (targets,) to data units."""
        spans: NDArray[np.float64] = self._scales.spans[self._lines.numpy()]
        return np.asarray(spans * std.double().numpy())
