"""What every verb of a model starts from: the parts that fit made."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headstart.errors import NotFittedError
from headstart.model.asking.info import ModelInfo, info_of
from headstart.model.changing.journal import Call
from headstart.model.changing.notes import Notes
from headstart.model.estimator import Estimator
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.known_feature import KnownFeature
from headstart.table import Names

LOG = logging.getLogger("headstart")  # what a service wants to know; silent unless it listens


class FittedModel(Estimator):
    """A model that may be fitted, and what can be looked up in it."""

    fitted_: Fitted
    _notes: Notes | None = None  # while a folder is being changed by this model

    @property
    def info(self) -> ModelInfo:
        """What was chosen, what each metadata column contributes, and the error to expect by shots."""
        return info_of(self._fitted)

    @property
    def features(self) -> list[str]:
        """The names of all features the model predicts."""
        return list(self._fitted.catalogue)

    @property
    def rows(self) -> Names:
        """The names of the rows the model knows."""
        return self._fitted.rows

    def feature(self, name: object) -> KnownFeature:
        """What the model holds of one feature: its kind, shots, observations and metadata."""
        fitted = self._fitted
        return KnownFeature(fitted.catalogue[name], fitted.rows, fitted.schema)

    def _change(self, after: Fitted, call: Callable[[], Call]) -> None:
        """Take another state, and note the call that led to it if anyone wants to know."""
        if self._notes is not None:
            self._notes.note(self.fitted_, after, call())
        self.fitted_ = after

    @property
    def _fitted(self) -> Fitted:
        try:
            return self.fitted_
        except AttributeError:
            raise NotFittedError(
                "this model is not fitted yet; call fit(table) or Headstart.load(path)"
            ) from None
