"""The library implicit: confidence-weighted ALS; a new feature by ``recalculate_item``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from algebra import dots, lines_of, logit, replaced
from problem import Context, Floats, Ints, Problem
from sklearn.linear_model import LinearRegression, LogisticRegression

from methods.biases import Biases
from methods.protocol import Peer


@dataclass
class ImplicitALS(Peer):
    """Values above the biases count as liked, values below as not liked, weighted by their distance.

    The library scores preferences, not values. So its score is mapped to the data's scale: a regression of
    values on the biases' prediction and the score (linear, or logistic for binary), for each number of
    shots, fitted on a sixth of the known features treated as new.
    """

    factors: int = 16
    regularization: float = 1.0
    alpha: float = 10.0
    iterations: int = 15
    seed: int = 0

    library: ClassVar = "implicit"
    choices: ClassVar = {
        "alpha": (3.0, 10.0, 30.0),
        "regularization": (0.1, 1.0, 10.0, 50.0),
        "factors": (8, 16, 32),
    }

    def fit(self, problem: Problem) -> None:
        practice = problem.folds(6)[0]
        self._learn(practice)
        self._maps: dict[int, Any] = {}
        for shots in practice.shots:
            cells = practice.targets(min(p for p in practice.parts if p >= shots))
            found = self._scores(
                self._adapt(practice.context(shots)), practice.feature[cells], practice.row[cells]
            )
            binary = practice.kind == "binary"
            chosen = LogisticRegression() if binary else LinearRegression()
            self._maps[shots] = chosen.fit(found, practice.value[cells])
        self._learn(problem)

    def adapt(self, context: Context) -> tuple[Any, Floats, Floats]:
        return (self._maps[context.shots], *self._adapt(context))

    def predict(self, adapted: tuple[Any, Floats, Floats], feature: Ints, row: Ints) -> Floats:
        mapped, *rest = adapted
        design = self._scores((rest[0], rest[1]), feature, row)
        if self.biases.binary:
            chance: Floats = mapped.predict_proba(design)[:, 1]
            return chance
        mean: Floats = np.clip(mapped.predict(design), self.biases.low, self.biases.high)
        return mean

    def _learn(self, problem: Problem) -> None:
        from implicit.cpu.als import AlternatingLeastSquares

        self.biases = Biases(popularity=0.75)
        self.biases.fit(problem)
        known = problem.known
        total = self.biases.row_bias[lines_of(known)] + self.biases.feature_bias[known.indices]
        liked = replaced(known, (known.data - self.biases.link(total)).astype(np.float32))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of settings that only matter with many cores
            self._model = AlternatingLeastSquares(
                factors=self.factors, regularization=self.regularization, alpha=self.alpha,
                iterations=self.iterations, num_threads=1, random_state=self.seed,
            )  # fmt: skip
            self._model.fit(liked, show_progress=False)

    def _adapt(self, context: Context) -> tuple[Floats, Floats]:
        bias = self.biases.adapt(context)
        total = self.biases.row_bias[context.row] + bias[context.feature]
        liked = context.matrix(context.value - self.biases.link(total)).astype(np.float32)
        return bias, self._model.recalculate_item(np.arange(context.features), liked)

    def _scores(self, adapted: tuple[Floats, Floats], feature: Ints, row: Ints) -> Floats:
        """Return the prediction of the biases (a logit for binary) and the score of the library: (n, 2)."""
        bias, factors = adapted
        base = self.biases.link(self.biases.row_bias[row] + bias[feature])
        score = dots(self._model.user_factors, factors, row, feature)
        return np.stack([logit(base) if self.biases.binary else base, score], axis=1)
