"""Predict by the sum of a row's and a feature's bias; metadata gives the prior of a new feature's bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from algebra import lines_of, predicted, ridge
from problem import Context, Floats, Ints, Problem
from scipy.special import expit

from methods.protocol import Peer


@dataclass
class Biases(Peer):
    """Shrunk biases, by Newton steps: least squares for ratings (exact), logistic for binary.

    ``row_strength`` and ``feature_strength`` are the precisions of the biases' Gaussian priors, in
    observations; the prior mean of a feature is a ridge regression on its metadata, in which a feature
    counts by its number of observations to the power of ``popularity``.
    """

    row_strength: float = 5.0
    feature_strength: float = 5.0
    ridge_strength: float = 5.0
    popularity: float = 0.5
    rounds: int = 12

    choices: ClassVar = {
        "feature_strength": (2.0, 5.0, 10.0),
        "row_strength": (2.0, 5.0, 10.0),
        "ridge_strength": (0.2, 1.0, 5.0, 20.0),
        "popularity": (0.0, 0.5, 1.0),
    }

    def fit(self, problem: Problem) -> None:
        known = problem.known
        self.binary, self.low, self.high = problem.kind == "binary", problem.low, problem.high
        row, feature, value = lines_of(known), known.indices, known.data
        # Four times: a logistic observation weighs at most 1/4, and strengths count observations.
        self._unit = 0.25 if self.binary else 1.0
        counts = np.bincount(feature, minlength=known.shape[1])
        self.row_bias, self.feature_bias = np.zeros(known.shape[0]), np.zeros(known.shape[1])
        prior = np.zeros(known.shape[1])
        for _ in range(self.rounds):
            self.feature_bias = self._newton(
                feature, value, self.row_bias[row], self.feature_bias, prior, self.feature_strength
            )
            weights = np.maximum(counts, 1e-9) ** self.popularity * (counts > 0)
            self._said = ridge(
                problem.metadata_known, self.feature_bias[:, None], weights, self.ridge_strength
            )
            prior = predicted(problem.metadata_known, self._said)[:, 0]
            zero = np.zeros(known.shape[0])
            self.row_bias = self._newton(
                row, value, self.feature_bias[feature], self.row_bias, zero, self.row_strength
            )

    def adapt(self, context: Context) -> Floats:
        prior = predicted(context.metadata, self._said)[:, 0]
        bias = prior
        for _ in range(8 if self.binary else 1):
            bias = self._newton(
                context.feature, context.value, self.row_bias[context.row], bias, prior, self.feature_strength
            )
        return bias

    def predict(self, adapted: Floats, feature: Ints, row: Ints) -> Floats:
        return self.link(self.row_bias[row] + adapted[feature])

    def link(self, total: Floats) -> Floats:
        """Convert the sum of biases to data units."""
        return expit(total) if self.binary else np.clip(total, self.low, self.high)

    def _newton(
        self, group: Ints, value: Floats, offset: Floats, bias: Floats, prior: Floats, strength: float
    ) -> Floats:
        """Compute one Newton step of the bias of every group; for least squares this is the solution."""
        now = offset + bias[group]
        mean = expit(now) if self.binary else now
        curve = mean * (1 - mean) if self.binary else np.ones(len(now))
        strength = strength * self._unit
        slope = np.bincount(group, value - mean, len(bias)) - strength * (bias - prior)
        return bias + slope / (np.bincount(group, curve, len(bias)) + strength)
