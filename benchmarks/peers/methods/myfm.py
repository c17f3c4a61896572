"""myFM: a Bayesian factorisation machine by Gibbs sampling, trained again for every context."""

from __future__ import annotations

import io
import warnings
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from algebra import replaced
from problem import Context, Floats, Ints, Problem
from scipy.sparse import csr_matrix, diags, hstack, identity

from methods.protocol import Peer


@dataclass
class MyFM(Peer):
    """Rows and features by name, features' metadata, and (``history``) the other observations of the row.

    There is no folding in: ``adapt`` trains from scratch on all known observations and all contexts.
    """

    rank: int = 10
    iterations: int = 100
    kept: int = 80  # last samples; the prediction is their mean
    history: bool = True
    seed: int = 0

    library: ClassVar = "myfm"
    choices: ClassVar = {"history": (True, False)}
    tuning_shots: ClassVar = (2, 32)

    def fit(self, problem: Problem) -> None:
        self._problem = problem

    def adapt(self, context: Context) -> tuple[Any, csr_matrix, csr_matrix]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its import warns of setuptools
            import myfm
        problem = self._problem
        every = problem.including(context).known
        rows, features = self._blocks(every, np.concatenate([problem.metadata_known, context.metadata]))
        cells = every.tocoo()
        binary = problem.kind == "binary"
        model = (myfm.MyFMClassifier if binary else myfm.MyFMRegressor)(self.rank, random_seed=self.seed)
        with redirect_stderr(io.StringIO()):  # it draws a bar and cannot be told not to
            model.fit(
                None,
                cells.data > 0.5 if binary else cells.data,
                X_rel=[myfm.RelationBlock(cells.row, rows), myfm.RelationBlock(cells.col, features)],
                n_iter=self.iterations,
                n_kept_samples=self.kept,
                group_shapes=self._groups,
                callback=_silent,
            )
        return model, rows, features

    def predict(self, adapted: tuple[Any, csr_matrix, csr_matrix], feature: Ints, row: Ints) -> Floats:
        import myfm

        model, rows, features = adapted
        blocks = [
            myfm.RelationBlock(row, rows),
            myfm.RelationBlock(feature + self._problem.known.shape[1], features),
        ]
        if self._problem.kind == "binary":
            chance: Floats = model.predict_proba(None, blocks)
            return chance
        mean: Floats = np.clip(model.predict(None, blocks), self._problem.low, self._problem.high)
        return mean

    def _blocks(self, every: csr_matrix, metadata: Floats) -> tuple[csr_matrix, csr_matrix]:
        rows = [identity(every.shape[0], format="csr")]
        if self.history:
            counts = np.maximum(np.diff(every.indptr), 1)
            rows.append(diags(1 / np.sqrt(counts)) @ replaced(every, np.ones(every.nnz)))
        features = [identity(every.shape[1], format="csr")]
        if metadata.shape[1]:
            features.append(csr_matrix(metadata))
        self._groups = [part.shape[1] for part in (*rows, *features)]
        return hstack(rows, format="csr"), hstack(features, format="csr")


def _silent(*state: Any) -> tuple[bool, None]:
    del state
    return False, None
