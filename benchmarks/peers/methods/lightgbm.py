"""LightGBM on hand-made inputs of a cell: statistics of the row and of the context, and metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from algebra import lines_of, replaced
from numpy.typing import NDArray
from problem import Context, Floats, Ints, Problem

from methods.als import ALS
from methods.biases import Biases
from methods.item_knn import similar_metadata
from methods.protocol import Peer


@dataclass
class LightGBM(Peer):
    """Gradient-boosted trees, trained on known features treated as new at every number of shots.

    Known features are split into ``folds``. The inputs of each fold are computed from the other folds, so
    that no row statistic and no factor depends on the feature to predict.
    """

    leaves: int = 31
    trees: int = 300
    learning_rate: float = 0.05
    smallest: int = 200  # cells a leaf
    folds: int = 4
    cells: int = 30_000  # of each fold, at each number of shots
    seed: int = 0

    library: ClassVar = "lightgbm"
    choices: ClassVar = {
        "leaves": (7, 31, 63),
        "trees": (100, 300, 600),
    }

    def fit(self, problem: Problem) -> None:
        import lightgbm

        generator = np.random.default_rng(self.seed)
        designs, values = [], []
        for fold in problem.folds(self.folds, self.seed):
            source = _Source(fold)
            for shots in fold.shots:
                cells = fold.targets(min(p for p in fold.parts if p >= shots))
                if len(cells) > self.cells:
                    cells = generator.choice(cells, self.cells, replace=False)
                seen = source.of_context(fold.context(shots))
                designs.append(source.design(seen, fold.feature[cells], fold.row[cells]))
                values.append(fold.value[cells])
        binary = problem.kind == "binary"
        design, value = np.concatenate(designs), np.concatenate(values)
        settings = {
            "objective": "binary" if binary else "regression",
            "num_leaves": self.leaves,
            "learning_rate": self.learning_rate,
            "min_data_in_leaf": min(self.smallest, max(5, len(value) // 100)),
            "feature_fraction": 0.7,
            "bagging_fraction": 0.7,
            "bagging_freq": 1,
            "num_threads": 1,
            "seed": self.seed,
            "verbosity": -1,
        }
        self._model = lightgbm.train(settings, lightgbm.Dataset(design, value), num_boost_round=self.trees)
        self._source = _Source(problem)
        self.low, self.high = problem.low, problem.high

    def adapt(self, context: Context) -> dict[str, Any]:
        return self._source.of_context(context)

    def predict(self, adapted: dict[str, Any], feature: Ints, row: Ints) -> Floats:
        said = self._model.predict(self._source.design(adapted, feature, row))
        return np.clip(np.asarray(said, dtype=np.float64), self.low, self.high)


class _Source:
    """Compute the inputs of cells from a problem's known features and a context."""

    def __init__(self, problem: Problem) -> None:
        known = problem.known
        self.biases, self.als = Biases(popularity=0.75), ALS(strength=0.05)
        self.biases.fit(problem)
        self.als.fit(problem)
        total = self.biases.row_bias[lines_of(known)] + self.biases.feature_bias[known.indices]
        residual = known.data - self.biases.link(total)
        self.residuals, self.seen = replaced(known, residual), replaced(known, np.ones(known.nnz))
        counts = np.maximum(np.diff(known.indptr), 1)
        mean = np.asarray(known.sum(1)).ravel() / counts
        square = np.asarray(replaced(known, known.data**2).sum(1)).ravel() / counts
        self.rows = np.stack([mean, np.log(counts), np.sqrt(np.maximum(square - mean**2, 0))], axis=1)
        self.metadata = problem.metadata_known
        lengths = np.linalg.norm(self.als.rows[:, :-1], axis=1, keepdims=True)
        self.directions = self.als.rows[:, :-1] / np.maximum(lengths, 1e-9)

    def of_context(self, context: Context) -> dict[str, Any]:
        """Compute the statistics of the context of each new feature, which do not depend on the row."""
        bias = self.biases.adapt(context)
        total = self.biases.row_bias[context.row] + bias[context.feature]
        residual = context.value - self.biases.link(total)
        counts = context.counts
        mean = np.bincount(context.feature, context.value, len(counts)) / np.maximum(counts, 1)
        alike = similar_metadata(context.metadata, self.metadata) ** 2
        return {
            "bias": bias,
            "head": self.als.adapt(context),
            "of_feature": np.stack([bias, counts, np.where(counts > 0, mean, np.nan)], axis=1),
            "metadata": context.metadata,
            # A mean of the context's residuals weighted by the cosine of the rows' factors.
            "context": context.matrix(residual) @ self.directions / (counts[:, None] + 2),
            "on_alike": (self.residuals @ alike.T) / (self.seen @ alike.T + 1),  # (rows, new)
        }

    def design(self, seen: dict[str, Any], feature: Ints, row: Ints) -> NDArray[np.float32]:
        """Return the inputs of the trees: (n, width)."""
        total = self.biases.row_bias[row] + seen["bias"][feature]
        parts = [
            self.rows[row],
            self.biases.row_bias[row][:, None],
            seen["of_feature"][feature],
            self.biases.link(total)[:, None],
            self.als.predict(seen["head"], feature, row)[:, None],
            np.einsum("nd,nd->n", self.directions[row], seen["context"][feature])[:, None],
            seen["on_alike"][row, feature][:, None],
            seen["metadata"][feature],
        ]
        return np.concatenate(parts, axis=1).astype(np.float32)
