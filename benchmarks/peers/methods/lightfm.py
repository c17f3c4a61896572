"""LightFM: a feature is the sum of its own embedding and its metadata's; new ones by ``fit_partial``."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from problem import Context, Floats, Ints, Problem
from scipy.sparse import coo_matrix, csr_matrix, hstack, identity
from scipy.special import expit
from sklearn.preprocessing import normalize

from methods.protocol import Peer


@dataclass
class LightFM(Peer):
    """The logistic loss; a rating counts as a 1 and a 0, weighted by how near it lies to either end.

    The model reserves embeddings for the new features, which are zero until a copy of the model trains on
    their contexts for ``context_epochs``.
    """

    components: int = 16
    epochs: int = 10
    context_epochs: int = 10
    learning_rate: float = 0.05
    context_rate: float = 0.05
    alpha: float = 1e-6
    normalised: bool = False  # whether a feature's parts are averaged or summed
    seed: int = 0

    library: ClassVar = "lightfm"
    choices: ClassVar = {
        "parts": ({"normalised": False}, {"normalised": True, "context_rate": 0.3}),
        "alpha": (0.0, 1e-6, 1e-5),
        "learning_rate": (0.02, 0.05),
        "context_rate": (0.02, 0.05, 0.1, 0.3, 0.6),
        "context_epochs": (3, 10, 30),
        "epochs": (5, 10, 20),
        "components": (8, 16, 32),
    }

    def fit(self, problem: Problem) -> None:
        from lightfm import LightFM as Model

        self.low, self.high = problem.low, problem.high
        self._first, new = problem.known.shape[1], len(problem.metadata_new)
        metadata = np.concatenate([problem.metadata_known, problem.metadata_new])
        own, every = identity(len(metadata)), np.ones((len(metadata), 1))  # a constant column
        described = csr_matrix(np.concatenate([every, metadata], axis=1))
        joined = hstack([own, described], format="csr", dtype=np.float32)
        self._features = normalize(joined, "l1").astype(np.float32) if self.normalised else joined
        self._model = Model(
            no_components=self.components, loss="logistic", learning_rate=self.learning_rate,
            item_alpha=self.alpha, user_alpha=self.alpha, random_state=self.seed,
        )  # fmt: skip
        known = problem.known.tocoo()
        self._shape = (problem.rows, len(metadata))
        self._train(self._model, known.row, known.col, known.data, self.epochs)
        there = slice(self._first, self._first + new)
        self._model.item_embeddings[there] = 0
        self._model.item_biases[there] = 0

    def adapt(self, context: Context) -> Any:
        model = copy.deepcopy(self._model)
        model.learning_rate = self.context_rate
        if len(context.value):
            self._train(model, context.row, context.feature + self._first, context.value, self.context_epochs)
        return model

    def predict(self, adapted: Any, feature: Ints, row: Ints) -> Floats:
        score = adapted.predict(
            row.astype(np.int32), (feature + self._first).astype(np.int32), item_features=self._features
        )
        mean: Floats = self.low + (self.high - self.low) * expit(score.astype(np.float64))
        return mean

    def _train(self, model: Any, row: Ints, feature: Ints, value: Floats, epochs: int) -> None:
        share = (value - self.low) / (self.high - self.low)
        weight = np.concatenate([share, 1 - share]).astype(np.float32)
        label = np.repeat(np.array([1, -1], np.float32), len(share))
        there = weight > 0
        at = (np.tile(row, 2)[there].astype(np.int32), np.tile(feature, 2)[there].astype(np.int32))
        model.fit_partial(
            coo_matrix((label[there], at), shape=self._shape),
            item_features=self._features,
            sample_weight=coo_matrix((weight[there], at), shape=self._shape),
            epochs=epochs,
        )
