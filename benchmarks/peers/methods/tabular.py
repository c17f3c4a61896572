"""Foundation models of tables, TabPFN and TabICL: rows with a value are the examples of a new feature.

Both download weights at their first use, which was not possible here: the runners are tested
with a stand-in for the library only, and have **never been tried** with the libraries themselves.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from problem import Context, Floats, Ints, Problem

from methods.biases import Biases
from methods.protocol import Peer
from methods.vbmf import VBMF


@dataclass
class TabularModel(Peer):
    """Predict the value of a row from the row's factors, in context, with one call per new feature.

    The inputs are the row factors of a factorisation of the known features, and the prediction of the biases,
    which contains the metadata. Features with fewer than ``fewest`` observations, or equal ones, are
    predicted by the biases.
    """

    factors: int = 10
    fewest: int = 2

    def fit(self, problem: Problem) -> None:
        self.biases, factorisation = Biases(popularity=0.75), VBMF(factors=self.factors)
        self.biases.fit(problem)
        factorisation.fit(problem)
        self.rows = factorisation.rows.full(True)[0]

    def adapt(self, context: Context) -> tuple[Floats, dict[int, Any]]:
        bias, models = self.biases.adapt(context), {}
        for feature in np.flatnonzero(context.counts >= self.fewest).tolist():
            mine = context.feature == feature
            goal = context.value[mine]
            if np.ptp(goal) > 0:
                at = np.full(len(goal), feature)
                models[feature] = self._new().fit(self._inputs(bias, at, context.row[mine]), goal)
        return bias, models

    def predict(self, adapted: tuple[Floats, dict[int, Any]], feature: Ints, row: Ints) -> Floats:
        bias, models = adapted
        mean = self.biases.predict(bias, feature, row)
        for number, model in models.items():
            mine = feature == number
            if mine.any():
                inputs = self._inputs(bias, feature[mine], row[mine])
                binary = self.biases.binary
                mean[mine] = model.predict_proba(inputs)[:, 1] if binary else model.predict(inputs)
        return np.clip(mean, self.biases.low, self.biases.high)

    def _inputs(self, bias: Floats, feature: Ints, row: Ints) -> Floats:
        return np.column_stack([self.rows[row], self.biases.predict(bias, feature, row)])

    def _new(self) -> Any:
        module = importlib.import_module(str(self.library))
        return getattr(module, f"{self.prefix}{'Classifier' if self.biases.binary else 'Regressor'}")()

    prefix: ClassVar[str]


@dataclass
class TabPFN(TabularModel):
    """By TabPFN."""

    library: ClassVar = "tabpfn"
    prefix: ClassVar = "TabPFN"


@dataclass
class TabICL(TabularModel):
    """By TabICL."""

    library: ClassVar = "tabicl"
    prefix: ClassVar = "TabICL"
