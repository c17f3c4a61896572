"""Variational Bayes matrix factorisation; a new feature's head is one closed-form posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from algebra import (
    dots,
    lines_of,
    logit,
    outer,
    predicted,
    probit_mean,
    replaced,
    ridge,
    weighted_sums,
    with_one,
)
from problem import Context, Floats, Ints, Problem
from scipy.sparse import csr_matrix

from methods.protocol import Peer


@dataclass(frozen=True)
class Beliefs:
    """Gaussian posteriors of vectors (factors, bias): the bias of one side meets the 1 of the other."""

    mean: Floats  # (n, d + 1)
    covariance: Floats  # (n, d + 1, d + 1)

    @property
    def design(self) -> Floats:
        """The inputs of the other side's regression: factors and a 1: (n, d + 1)."""
        return with_one(self.mean[:, :-1])

    @property
    def design_moments(self) -> Floats:
        """The expected outer product of the design: (n, d + 1, d + 1)."""
        moments = outer(self.design)
        moments[:, :-1, :-1] += self.covariance[:, :-1, :-1]
        return moments

    @property
    def offset_moments(self) -> Floats:
        """The expected product of the design and the bias: (n, d + 1)."""
        moments = self.design * self.mean[:, -1:]
        moments[:, :-1] += self.covariance[:, :-1, -1]
        return moments

    def full(self, bias_first: bool) -> tuple[Floats, Floats]:
        """Mean and covariance of (factors, bias, 1) or (factors, 1, bias), so that sides line up."""
        size = self.mean.shape[1] - 1
        bias, one = (size, size + 1) if bias_first else (size + 1, size)
        mean = np.zeros((len(self.mean), size + 2))
        places = [*range(size), bias]
        mean[:, places], mean[:, one] = self.mean, 1.0
        covariance = np.zeros((len(self.mean), size + 2, size + 2))
        covariance[np.ix_(np.arange(len(mean)), places, places)] = self.covariance
        return mean, covariance


@dataclass
class VBMF(Peer):
    """Row and feature vectors with full posterior covariances; noise and priors learned by EM.

    value = row factors · feature factors + row bias + feature bias + noise. A row's prior is centred at
    0, a feature's at a ridge regression on its metadata (a feature counts by its number of observations
    to the power of ``popularity``); both prior covariances are full. Binary values take Jaakkola and
    Jordan's bound of the logistic likelihood, or are read as real numbers (``likelihood``).
    """

    factors: int = 16
    rounds: int = 30
    ridge_strength: float = 5.0
    popularity: float = 0.75
    likelihood: str = "gaussian"
    seed: int = 0

    choices: ClassVar = {
        "likelihood": ("gaussian", "logistic"),
        "factors": (8, 16, 32),
        "popularity": (0.5, 0.75, 1.0),
        "ridge_strength": (0.2, 1.0, 5.0, 20.0),
    }

    def fit(self, problem: Problem) -> None:
        known, transposed = problem.known, problem.known.T.tocsr()
        self.low, self.high = problem.low, problem.high
        self.logistic = self.likelihood == "logistic" and problem.kind == "binary"
        counts = np.diff(transposed.indptr)
        self._weights = np.maximum(counts, 1e-9) ** self.popularity * (counts > 0)
        self.features, self.rows = self._start(known)
        self.noise = float(known.data.var())
        spread, none = self.rows.covariance[0], np.zeros_like(self.rows.mean)  # the rows' prior
        for _ in range(self.rounds):
            self._said, self._spread = self._prior_of_features(problem.metadata_known)
            self.rows = self._posterior(known, self.features, none, spread, self.rows)
            spread = _moment(self.rows, none, None)
            if not self.logistic:
                self.noise = self._expected_error(known)
            prior = predicted(problem.metadata_known, self._said)
            self.features = self._posterior(transposed, self.rows, prior, self._spread, self.features)
        self._said, self._spread = self._prior_of_features(problem.metadata_known)

    def adapt(self, context: Context) -> Beliefs:
        prior = predicted(context.metadata, self._said)
        start = Beliefs(prior, np.broadcast_to(self._spread, (len(prior), *self._spread.shape)))
        found, matrix = start, context.matrix()
        for _ in range(8 if self.logistic else 1):
            found = self._posterior(matrix, self.rows, prior, self._spread, found)
        return found

    def predict(self, adapted: Beliefs, feature: Ints, row: Ints) -> Floats:
        (rows, row_spread), (features, feature_spread) = self.rows.full(True), adapted.full(False)
        mean = dots(rows, features, row, feature)
        if not self.logistic:
            edge = 0.005 * (self.high - self.low) if (self.low, self.high) == (0, 1) else 0.0
            return np.clip(mean, self.low + edge, self.high - edge)
        second = dots(_flat(row_spread + outer(rows)), _flat(feature_spread + outer(features)), row, feature)
        return probit_mean(mean, np.maximum(second - mean**2, 0))

    def _start(self, known: csr_matrix) -> tuple[Beliefs, Beliefs]:
        """Initialise features and rows."""
        size, generator = self.factors + 1, np.random.default_rng(self.seed)
        # Logits are larger than ratings' residuals, and too small a start would die out.
        scale = 1.0 if self.logistic else 0.1
        mean = scale * generator.normal(size=(known.shape[1], size))
        counts = np.bincount(known.indices, minlength=known.shape[1])
        totals = np.bincount(known.indices, known.data, known.shape[1]) + 5 * known.data.mean()
        mean[:, -1] = logit(totals / (counts + 5)) if self.logistic else totals / (counts + 5)
        none = np.zeros((known.shape[0], size))
        return (
            Beliefs(mean, np.broadcast_to(0.01 * np.eye(size), (len(mean), size, size))),
            Beliefs(none, np.broadcast_to(scale * np.eye(size), (len(none), size, size))),
        )

    def _posterior(
        self, observed: csr_matrix, others: Beliefs, prior: Floats, spread: Floats, now: Beliefs
    ) -> Beliefs:
        """Compute the posterior of every line of ``observed`` given the posteriors of the other side.

        ``prior`` (lines, d + 1) and ``spread`` (d + 1, d + 1) are the prior's means and covariance; ``now``
        is the point of the logistic bound.
        """
        if self.logistic:
            pull, weight = observed.data - 0.5, self._curvature(observed, now, others)
        else:
            pull, weight = observed.data / self.noise, np.full(observed.nnz, 1 / self.noise)
        weights = replaced(observed, weight)
        precision = np.linalg.inv(spread)
        vector = replaced(observed, pull) @ others.design - weights @ others.offset_moments
        covariance = np.linalg.inv(precision + weighted_sums(weights, others.design_moments))
        return Beliefs(np.einsum("nde,ne->nd", covariance, vector + prior @ precision), covariance)

    def _curvature(self, observed: csr_matrix, lines: Beliefs, others: Beliefs) -> Floats:
        """Return Jaakkola and Jordan's weight of each observation, at the tightest bound: (n,)."""
        (left, left_spread), (right, right_spread) = lines.full(True), others.full(False)
        second = dots(
            _flat(left_spread + outer(left)), _flat(right_spread + outer(right)),
            lines_of(observed), observed.indices,
        )  # fmt: skip
        place = np.sqrt(np.maximum(second, 1e-6))
        weight: Floats = np.tanh(place / 2) / (2 * place)
        return weight

    def _prior_of_features(self, metadata: Floats) -> tuple[Floats, Floats]:
        """Return the ridge coefficients (1 + width, d + 1) and the residual covariance (d + 1, d + 1)."""
        said = ridge(metadata, self.features.mean, self._weights, self.ridge_strength)
        return said, _moment(self.features, predicted(metadata, said), self._weights)

    def _expected_error(self, known: csr_matrix) -> float:
        """Return the expected squared error of an observation under the posteriors of both sides."""
        mask, rows, features = replaced(known, np.ones(known.nnz)), self.rows, self.features
        moments = outer(rows.mean) + rows.covariance
        square = np.sum(weighted_sums(mask, features.design_moments) * moments)
        square += 2 * np.sum((mask @ features.offset_moments) * rows.mean)
        square += np.sum(mask @ (features.mean[:, -1] ** 2 + features.covariance[:, -1, -1]))
        cross = np.sum((known @ features.design) * rows.mean) + np.sum(known @ features.mean[:, -1])
        return float((np.sum(known.data**2) - 2 * cross + square) / known.nnz)


def _moment(beliefs: Beliefs, centre: Floats, weights: Floats | None) -> Floats:
    """Return the expected covariance around a centre, slightly regularised: (d, d)."""
    gap = beliefs.mean - centre
    shares = np.full(len(gap), 1 / len(gap)) if weights is None else weights / weights.sum()
    found = (gap * shares[:, None]).T @ gap + np.einsum("n,nde->de", shares, beliefs.covariance)
    regular: Floats = found + 1e-6 * np.eye(len(found))
    return regular


def _flat(moments: Any) -> Floats:
    return np.asarray(moments, dtype=np.float64).reshape(len(moments), -1)
