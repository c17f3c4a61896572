"""Compare models by everything that they show, and look at the state behind one.

Tests hold a model to its public class. Those that compare a formula with a slow version of it need the
numbers behind a prediction: this file is their only way to them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headstart.model import Headstart
from headstart.model.saving.lazy import SavedEntries
from headstart.model.state import ModelState


def snapshot(model: Headstart) -> tuple[object, ...]:
    """Return the names, observations, predictions and summaries of a model, which compare bit for bit."""
    predicted, table = model.predict(), model.table()
    arrays = (predicted.mean, predicted.std, table.row_index, table.feature_index, table.values, table.times)
    return (
        list(model.rows),
        list(model.features),
        *(None if array is None else array.tobytes() for array in arrays),
        model.info,
        model.staleness(),
    )


def state_of(model: Headstart) -> ModelState:
    """Return the fitted state of a model, for comparison with a slow version of a formula."""
    return model.state


def is_lazy(model: Headstart) -> bool:
    """Return whether a loaded model reads its features from the file on disk when they are needed."""
    return isinstance(model.state.feature_store._base, SavedEntries)


def with_state(model: Headstart, **changes: Any) -> Headstart:
    """Return a model with parts of the fitted state replaced, as no call of the public class does."""
    other = Headstart(**model.get_params())
    other.fitted_ = replace(model.state, **changes)
    return other
