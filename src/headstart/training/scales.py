"""Scales of held-out features that do not depend on their values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headstart.crew import crew
from headstart.table import Kind, Kinds, Table
from headstart.table.inference import resolve_kinds
from headstart.table.kinds import KindType


def hide_scales(table: Table, known_features: NDArray[np.int64]) -> Table:
    """Return the table with the centers and scales of real features computed from train features only.

    When a table is read, they are computed from all values. The center of a new feature would then
    reveal its mean at zero shots. So all other real features get the scale that the train features
    have in common or, if each of them has its own, their median scale.
    """
    real = table.kinds.types == KindType.REAL
    if not real.any():
        return table
    trained = np.zeros(len(real), dtype=bool)
    trained[known_features] = True
    train = table.with_features(real & trained)
    kinds = np.array(table.kinds, dtype=object)
    if crew().count(len(train)):
        resolved, _ = resolve_kinds("real", train.features, train.feature_index, train.values)
        kinds[real & trained] = resolved
        common = Kind.real(float(np.median(resolved.offsets)), float(np.median(resolved.spans)))
    else:
        common = Kind.real()
    kinds[real & ~trained] = common
    return replace(table, kinds=Kinds(kinds))
