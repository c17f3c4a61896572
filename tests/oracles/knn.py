"""Distances between features."""

from __future__ import annotations

import math
from typing import Any


def imputed(pairs: list[tuple[int, float]], rows: int, kind_mean: float) -> list[float]:
    """A whole column, what is not observed filled with the mean."""
    mean = sum(value for _, value in pairs) / len(pairs) if pairs else kind_mean
    return [dict(pairs).get(row, mean) for row in range(rows)]


def squared_distances(world: Any, rows: int) -> list[list[float]]:
    """Between each new feature and each known one, over whole columns."""
    known, new = world.knowledge.kinds.tolist(), world.batch.kinds.tolist()

    def kind_mean(kind: int) -> float:
        values = [value for j, other in enumerate(known) if other == kind for _, value in world.column(j)]
        return sum(values) / len(values)

    columns = [imputed(world.column(j), rows, kind_mean(kind)) for j, kind in enumerate(known)]
    contexts = [imputed(world.context(i), rows, kind_mean(kind)) for i, kind in enumerate(new)]
    return [[math.dist(context, column) ** 2 for column in columns] for context in contexts]
