"""Define the interface of the compared methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from problem import Context

from generality.ordered import Floats, Ints
from generality.trial import Trial

LEVELS = (0.5, 0.8, 0.9, 0.99)


@dataclass(frozen=True)
class Said:
    """Predictions at some cells, in data units: the mean (probability of 1 if binary), and intervals."""

    mean: Floats  # (n,)
    intervals: dict[float, tuple[Floats, Floats]] | None = None  # level: low and high, (n,) each


class Method(ABC):
    """A method that learns from the known features and rows of a trial, then adapts to new ones."""

    settings: dict[str, Any]

    @abstractmethod
    def fit(self, trial: Trial) -> None:
        """Learn from ``trial.known``."""

    @abstractmethod
    def adapt(self, context: Context) -> Any:
        """Adapt to all new features at once; return the argument ``adapted`` of ``predict``."""

    @abstractmethod
    def predict(self, adapted: Any, feature: Ints, row: Ints) -> Said:
        """Predict new features at known rows: positions in ``trial.new`` and ``trial.known.rows``."""

    def fold(self, feature: Ints, row: Ints, value: Floats) -> Any | None:  # noqa: ARG002
        """Fold in held-out rows by observations of known features; return None if the method cannot."""
        return None

    def predict_rows(self, folded: Any, adapted: Any | None, feature: Ints, row: Ints) -> Said:
        """Predict folded rows at known features or, with ``adapted``, at new ones."""
        raise NotImplementedError
