"""Predict the residuals of biases from the nearest known features, by metadata and by context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from algebra import lines_of, replaced
from problem import Context, Floats, Ints, Problem
from scipy.special import expit

from methods.biases import Biases
from methods.protocol import Peer


@dataclass
class ItemKNN(Peer):
    """Biases plus a weighted mean of the row's residuals at the most similar known features.

    Similarity to a known feature is the cosine of metadata, times ``metadata_weight``, plus the
    correlation of residuals on common rows, shrunk by n / (n + ``shrinkage``). The ``neighbours`` most
    similar count, and ``damping`` is added to the sum of their similarities. For binary
    values, residuals are those of the logistic biases.
    """

    metadata_weight: float = 0.3
    shrinkage: float = 10.0
    neighbours: int = 100
    damping: float = 1.0
    power: float = 1.0

    choices: ClassVar = {
        "metadata_weight": (0.1, 0.3, 1.0),
        "shrinkage": (2.0, 5.0, 20.0, 60.0),
        "neighbours": (100, 300, 1000),
        "damping": (0.1, 0.3, 1.0, 3.0),
        "power": (1.0, 2.0, 3.0),
    }

    def fit(self, problem: Problem) -> None:
        self.biases = Biases(popularity=0.75)
        self.biases.fit(problem)
        known = problem.known
        total = self.biases.row_bias[lines_of(known)] + self.biases.feature_bias[known.indices]
        self.residuals = replaced(known, known.data - self.biases.link(total))
        self.squares = replaced(known, self.residuals.data**2)
        self.seen = replaced(known, np.ones(known.nnz))
        self.metadata = problem.metadata_known

    def adapt(self, context: Context) -> tuple[Floats, Floats, Floats]:
        bias = self.biases.adapt(context)
        total = self.biases.row_bias[context.row] + bias[context.feature]
        residual = context.value - self.biases.link(total)
        here, square = context.matrix(residual), context.matrix(residual**2)
        mask = context.matrix(np.ones(len(residual)))
        common = (mask @ self.seen).toarray()
        power = (square @ self.seen).toarray() * (mask @ self.squares).toarray()
        correlation = (here @ self.residuals).toarray() / np.sqrt(np.maximum(power, 1e-9))
        similarity = correlation * common / (common + self.shrinkage)
        similarity += self.metadata_weight * similar_metadata(context.metadata, self.metadata)
        similarity = np.maximum(similarity, 0) ** self.power
        kept = min(self.neighbours, similarity.shape[1])
        least = -np.partition(-similarity, kept - 1, axis=1)[:, kept - 1 : kept]
        similarity[similarity < least] = 0
        weighted, weight = self.residuals @ similarity.T, self.seen @ similarity.T  # (rows, new)
        return bias, weighted, weight

    def predict(self, adapted: tuple[Floats, Floats, Floats], feature: Ints, row: Ints) -> Floats:
        bias, weighted, weight = adapted
        shift = weighted[row, feature] / (weight[row, feature] + self.damping)
        total = self.biases.row_bias[row] + bias[feature]
        if self.biases.binary:
            chance = expit(total)
            # A residual of p is worth p / (p (1 − p)) on the logit scale.
            return expit(total + shift / np.maximum(chance * (1 - chance), 0.1))
        return np.clip(total + shift, self.biases.low, self.biases.high)


def similar_metadata(new: Floats, known: Floats) -> Floats:
    """Return the cosine of metadata, at least 0: (new, known).

    Columns are centred first, so that common values of all features do not count.
    """
    centre = known.mean(0)
    left, right = (_unit(metadata - centre) for metadata in (new, known))
    cosine: Floats = np.maximum(left @ right.T, 0)
    return cosine


def _unit(vectors: Floats) -> Floats:
    found: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return found
