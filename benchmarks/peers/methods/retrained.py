"""Fit variational Bayes matrix factorisation again with the contexts: the gap to a full retrain."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from problem import Context, Floats, Ints, Problem

from methods.vbmf import VBMF, Beliefs


@dataclass
class VBMFRetrained(VBMF):
    """``adapt`` fits from scratch on the known features and the contexts of the new ones."""

    shots: ClassVar = (8, 32, 128)
    tuned_as: ClassVar = "vbmf"

    def fit(self, problem: Problem) -> None:
        self._problem = problem

    def adapt(self, context: Context) -> tuple[VBMF, Beliefs]:  # type: ignore[override]
        model = VBMF(**{field.name: getattr(self, field.name) for field in fields(VBMF)})
        model.fit(self._problem.including(context))
        first = self._problem.known.shape[1]
        found = model.features
        return model, Beliefs(found.mean[first:], found.covariance[first:])

    def predict(self, adapted: tuple[VBMF, Beliefs], feature: Ints, row: Ints) -> Floats:  # type: ignore[override]
        model, beliefs = adapted
        return model.predict(beliefs, feature, row)
