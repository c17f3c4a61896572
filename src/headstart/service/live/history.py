"""How the predictions of a feature moved as its observations came in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headstart.errors import InputError
from headstart.service.live.distribution import predicted_over_rows
from headstart.service.live.state import LiveState

_MOST_ADDED, _MOST_FITTED = 40, 12  # points of the history of an added and of a fitted feature


def history(state: LiveState, name: str, arrived: Sequence[str]) -> list[dict[str, Any]]:
    """The predictions of a feature after each number of observations, from the first on.

    Parameters
    ----------
    state : LiveState
        The model.
    name : str
        The feature.
    arrived : sequence of str
        The rows whose observations arrived, in order; all others of the feature come before them.

    Returns
    -------
    list of dict
        By number of shots: the mean over rows of the predicted means and of the standard deviations, and
        the standard deviation of the means, which says how much rows differ.
    """
    base = state.base
    feature = base.catalogue[name]
    if feature.fixed:
        raise InputError(f"feature {name!r} has a fixed head, whose observations are not kept")
    later = dict.fromkeys(base.rows.position(row) for row in arrived if row in base.rows)
    order = [row for row in later if feature.holds(row)]
    first = feature.rows[~np.isin(feature.rows, np.array(order, dtype=np.int64))]
    marks = _marks(len(order), _MOST_FITTED if feature.in_backbone else _MOST_ADDED)
    steps = [
        base.with_own_units(feature.among(np.union1d(first, np.array(order[:count], dtype=np.int64))))
        for count in marks
    ]
    if feature.in_backbone:  # such heads depend on which feature it is, so that one pass can make only one
        return [_point(state, base.adapted([step]), name, step.shots) for step in steps]
    # Each step is a feature of its own for a moment, so that one pass makes all heads.
    names = [f"step {place} of {name}" for place in range(len(steps))]
    made = base.adapted([replace(step, name=own) for own, step in zip(names, steps, strict=True)])
    return [_point(state, made, own, step.shots) for own, step in zip(names, steps, strict=True)]


def _marks(count: int, most: int) -> list[int]:
    """At most so many numbers from 0 to a count, dense at the beginning."""
    if count < most:
        return list(range(count + 1))
    marks = np.unique(np.round(np.geomspace(1, count, most - 1)).astype(int))
    return [0, *marks.tolist()]


def _point(state: LiveState, made: Any, name: str, shots: int) -> dict[str, Any]:
    predicted = predicted_over_rows(state, made, name)
    return {
        "shots": shots,
        "mean": float(predicted.mean.mean()),
        "std": float(predicted.std.mean()),
        "spread": float(predicted.mean.std()),
    }
