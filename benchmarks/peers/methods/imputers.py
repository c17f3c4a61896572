"""Chained equations: scikit-learn's IterativeImputer, and several draws of it as MICE makes them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from problem import Context, Floats, Ints, Problem

from methods.protocol import Peer


@dataclass
class Imputer(Peer):
    """Fill the table of known features and contexts, each column regressed on its most correlated ones.

    There is no folding in: ``adapt`` fills the whole dense table again. So it needs a table of at most some
    hundred columns, and is tested at few numbers of shots. With ``draws`` above 1, values are drawn from the
    posterior of each regression, and the prediction is the mean over the draws, as in MICE.
    """

    nearest: int = 20  # columns of a regression
    rounds: int = 5
    draws: int = 1
    seed: int = 0

    library: ClassVar = "sklearn"
    shots: ClassVar = (8, 32, 128)
    tuning_shots: ClassVar = (8,)
    choices: ClassVar = {"nearest": (10, 20, 50)}

    def fit(self, problem: Problem) -> None:
        self._problem = problem

    def adapt(self, context: Context) -> Floats:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.experimental import enable_iterative_imputer  # noqa: F401
        from sklearn.impute import IterativeImputer

        cells = self._problem.including(context).known.tocoo()
        table = np.full(cells.shape, np.nan)
        table[cells.row, cells.col] = cells.data
        # A column without an observation has nothing to start from: begin with the mean of all values.
        empty = np.isnan(table).all(0)
        filled = []
        for draw in range(self.draws):
            imputer = IterativeImputer(
                max_iter=self.rounds, n_nearest_features=min(self.nearest, table.shape[1] - 1),
                sample_posterior=self.draws > 1, min_value=self._problem.low, max_value=self._problem.high,
                random_state=self.seed + draw, keep_empty_features=True,
            )  # fmt: skip
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                found = imputer.fit_transform(table)
            found[:, empty] = np.nanmean(table)
            filled.append(found[:, self._problem.known.shape[1] :])
        mean: Floats = np.mean(filled, axis=0)
        return mean

    def predict(self, adapted: Floats, feature: Ints, row: Ints) -> Floats:
        found: Floats = np.clip(adapted[row, feature], self._problem.low, self._problem.high)
        return found


@dataclass
class MICE(Imputer):
    """Five draws, averaged."""

    draws: int = 5

    tuned_as: ClassVar = "iterative-imputer"
