"""EASE: a new feature as a ridge regression on all known features, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from algebra import lines_of, replaced
from problem import Context, Floats, Ints, Problem
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from methods.biases import Biases
from methods.protocol import Peer


@dataclass
class EASE(Peer):
    """Biases plus the column of a new feature in the item-item matrix of EASE (Steck, 2019).

    The column is the ridge regression of the feature's residuals on the residuals of all known features;
    missing residuals are 0, as in EASE. Because a context has few residuals among many zeros, the result
    is multiplied by ``gain``.
    """

    strength: float = 50.0
    gain: float = 3.0

    choices: ClassVar = {
        "strength": (1.0, 3.0, 10.0, 50.0, 200.0, 1000.0, 5000.0),
        "gain": (0.3, 1.0, 3.0, 10.0, 30.0),
    }

    def fit(self, problem: Problem) -> None:
        self.biases = Biases(popularity=0.75)
        self.biases.fit(problem)
        known = problem.known
        total = self.biases.row_bias[lines_of(known)] + self.biases.feature_bias[known.indices]
        self.residuals = replaced(known, known.data - self.biases.link(total))
        gram = (self.residuals.T @ self.residuals).toarray()
        self._factor = cho_factor(gram + self.strength * np.eye(len(gram)), lower=True)

    def adapt(self, context: Context) -> tuple[Floats, Floats]:
        bias = self.biases.adapt(context)
        total = self.biases.row_bias[context.row] + bias[context.feature]
        residual = context.matrix(context.value - self.biases.link(total))
        weights = cho_solve(self._factor, (residual @ self.residuals).toarray().T)  # (known, new)
        return bias, self.gain * (self.residuals @ weights)

    def predict(self, adapted: tuple[Floats, Floats], feature: Ints, row: Ints) -> Floats:
        bias, shift = adapted[0], adapted[1][row, feature]
        total = self.biases.row_bias[row] + bias[feature]
        if self.biases.binary:
            chance = expit(total)
            return expit(total + shift / np.maximum(chance * (1 - chance), 0.1))
        return np.clip(total + shift, self.biases.low, self.biases.high)
