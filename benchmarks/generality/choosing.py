"""Choose the settings of references on known features treated as new, from small grids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from generality.methods import Reference
from generality.scoring import scored
from generality.trial import Trial

LARGE = 200_000  # observations; above, slow references keep their settings, which are those of MovieLens

# The ridge on metadata goes far, so that a table whose metadata says nothing can do without.
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "biases": {
        "feature_strength": (1.0, 3.0, 10.0),
        "row_strength": (1.0, 5.0, 20.0),
        "ridge_strength": (1.0, 5.0, 30.0, 300.0),
    },
    "als": {
        "strength": (0.02, 0.05, 0.2),
        "fold": (0.3, 1.0, 3.0, 10.0),
        "factors": (4, 8, 16),
        "ridge_strength": (1.0, 5.0, 30.0, 300.0),
    },
    "item-knn": {
        "shrinkage": (2.0, 10.0, 50.0),
        "damping": (0.1, 0.5, 2.0),
        "power": (1.0, 2.0),
        "metadata_weight": (0.0, 0.1, 0.3, 1.0),
        "neighbours": (20, 100),
    },
    "vbmf": {
        "likelihood": ("gaussian", "logistic"),
        "factors": (4, 8, 16),
        "ridge_strength": (1.0, 5.0, 30.0, 300.0),
    },
    "lightgbm": {"leaves": (7, 31)},
}
SLOW = ("als", "vbmf", "lightgbm")


def choose(name: str, method: Reference, trial: Trial, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the chosen settings of a reference for this table that differ from its defaults."""
    grid = dict(GRIDS.get(name, {}))
    if len(trial.known) > LARGE and name in SLOW:
        return {}
    if trial.one_kind != "binary":
        grid.pop("likelihood", None)
    if trial.metadata[0].shape[1] == 0:
        grid.pop("ridge_strength", None)
        grid.pop("metadata_weight", None)
    rehearsal = trial.rehearsal()
    best: dict[str, Any] = {}
    tried: dict[str, float] = {}

    def loss(settings: dict[str, Any]) -> float:
        key = str(sorted(settings.items()))
        if key not in tried:
            candidate = Reference(replace(method.peer, **settings))
            candidate.fit(rehearsal)
            tried[key] = _loss(candidate, rehearsal)
        return tried[key]

    for setting, values in grid.items():
        best = min(({**best, setting: value} for value in values), key=loss)
    if tried:
        say(f"  {name}: {len(tried)} settings tried, {best}")
    return best


def _loss(method: Reference, trial: Trial) -> float:
    """Return the mean of the main scores over all shots; for mixed kinds both scores count."""
    losses = []
    for found in scored(method, trial, rows=False):
        losses += [
            sign * found["scores"][name]
            for name, sign in (("rmse", 1), ("auroc", -1))
            if name in found["scores"]
        ]
    return float(np.mean(losses))
