"""Matrix factorisation by alternating least squares; a new feature is folded in by ridge regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from algebra import dots, outer, predicted, replaced, ridge, solve, weighted_sums, with_one
from problem import Context, Floats, Ints, Problem
from scipy.sparse import csr_matrix

from methods.protocol import Peer


@dataclass
class ALS(Peer):
    """Factors and biases of both sides, penalised by ``strength`` times the number of observations.

    Folding in regresses a new feature's context on its rows' factors with the penalty ``fold``, towards
    a prior mean: a ridge regression of known features' vectors on metadata (``prior="metadata"``) or
    their mean (``prior="mean"``). Binary values are read as real numbers.
    """

    factors: int = 16
    strength: float = 0.05
    fold: float = 3.0
    prior: str = "metadata"
    ridge_strength: float = 5.0
    popularity: float = 0.75
    rounds: int = 12
    seed: int = 0

    choices: ClassVar = {
        "strength": (0.01, 0.02, 0.05, 0.1, 0.2),
        "fold": (0.3, 1.0, 3.0, 10.0, 30.0),
        "factors": (8, 16, 32),
        "prior": ("metadata", "mean"),
        "popularity": (0.5, 0.75, 1.0),
        "ridge_strength": (0.2, 1.0, 5.0, 20.0),
    }

    def fit(self, problem: Problem) -> None:
        known, transposed = problem.known, problem.known.T.tocsr()
        self.low, self.high, self.centre = problem.low, problem.high, float(known.data.mean())
        known, transposed = (replaced(m, m.data - self.centre) for m in (known, transposed))
        generator = np.random.default_rng(self.seed)
        counts = np.diff(transposed.indptr)
        features = 0.1 * generator.normal(size=(known.shape[1], self.factors + 1))
        features[:, -1] = np.asarray(transposed.sum(1)).ravel() / (counts + 5)
        for _ in range(self.rounds):
            self.rows = self._regress(known, features, None, self.strength, weighted=True)
            features = self._regress(transposed, self.rows, None, self.strength, weighted=True)
        weights = np.maximum(counts, 1e-9) ** self.popularity * (counts > 0)
        metadata = problem.metadata_known if self.prior == "metadata" else np.zeros((len(features), 0))
        self._said = ridge(metadata, features, weights, self.ridge_strength)

    def adapt(self, context: Context) -> Floats:
        metadata = context.metadata if self.prior == "metadata" else np.zeros((context.features, 0))
        centred = context.matrix(context.value - self.centre)
        return self._regress(centred, self.rows, predicted(metadata, self._said), self.fold, weighted=False)

    def predict(self, adapted: Floats, feature: Ints, row: Ints) -> Floats:
        products = dots(with_one(self.rows[:, :-1]), adapted, row, feature)
        mean: Floats = np.clip(self.centre + self.rows[row, -1] + products, self.low, self.high)
        return mean

    def _regress(
        self,
        observed: csr_matrix,
        others: Floats,
        prior: Floats | None,
        penalty: float,
        weighted: bool,
    ) -> Floats:
        """Return (factors, bias) of each line given those of the other side: (lines, d + 1)."""
        design = with_one(others[:, :-1])
        ones = replaced(observed, np.ones(observed.nnz))
        counts = np.diff(observed.indptr)
        grams = weighted_sums(ones, outer(design))
        penalties = penalty * (np.maximum(counts, 1) if weighted else np.ones(len(counts)))
        grams += penalties[:, None, None] * np.eye(design.shape[1])
        vectors = observed @ design - ones @ (design * others[:, -1:])
        if prior is not None:
            vectors += penalties[:, None] * prior
        return solve(grams, vectors)
