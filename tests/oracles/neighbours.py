"""The local part of a new feature's prediction, one number after the other."""

from __future__ import annotations

import math

import numpy as np

from headstart.core.neighbours import CHOSEN, PRIOR_SHARE, SIMILAR
from headstart.core.types import Knowledge
from headstart.table.kinds import KindType


def residuals_of(knowledge: Knowledge) -> dict[tuple[int, int], float]:
    """The residual of each observation, by its row and feature."""
    cells, heads, states = knowledge.cells, knowledge.heads, knowledge.states
    residuals = {}
    for row, feature, value in zip(
        cells.lines.tolist(), cells.index.tolist(), cells.values.tolist(), strict=True
    ):
        output = float(heads.weight[feature].double() @ states.activation[row].double() + heads.bias[feature])
        noise = 1.0 if heads.noise is None else float(heads.noise[feature])
        noise *= 1.0 if states.noise is None else float(states.noise[row])
        if int(knowledge.kinds[feature]) == KindType.BINARY:
            chance = 1 / (1 + math.exp(-output / math.sqrt(1 + math.pi / 8 * noise)))
            residual = (value - chance) / math.sqrt(max(0.01, chance * (1 - chance)))
        else:
            residual = (value - output) / math.sqrt(noise)
        residuals[row, feature] = min(4.0, max(-4.0, residual))
    return residuals


def similar_weights_of(knowledge: Knowledge, metadata: np.ndarray) -> dict[int, float]:
    """The weights from the similarity of metadata, by feature."""
    known = knowledge.metadata.double().numpy()
    mean = known.mean(0)
    squares = {}
    for feature, other in enumerate(known):
        lengths = np.linalg.norm(other - mean) * np.linalg.norm(metadata - mean)
        cosine = float((other - mean) @ (metadata - mean)) / lengths if lengths > 0 else 0.0
        squares[feature] = max(0.0, cosine) ** 2
    largest = sorted(squares, key=lambda feature: (-squares[feature], feature))[:SIMILAR]
    index = knowledge.cells.index.tolist()
    total = sum(squares[feature] * index.count(feature) / len(knowledge.cells) for feature in largest)
    return {feature: squares[feature] / max(1.0, total) for feature in largest if squares[feature] > 0}


def chosen_weights_of(
    knowledge: Knowledge, rows: list[int], context: list[float], weights: list[float]
) -> dict[int, float]:
    """The weights of the ridge regression of a context's residuals, by feature."""
    known = residuals_of(knowledge)
    features = len(knowledge.kinds)
    matrix = np.array([[known.get((row, feature), 0.0) for feature in range(features)] for row in rows])
    weighted = np.diag(weights)
    squares, products = np.diag(matrix.T @ weighted @ matrix), matrix.T @ weighted @ np.array(context)
    precision = squares.sum() / (PRIOR_SHARE * sum(weights))
    gains = products**2 / (squares + precision)
    chosen = sorted(sorted(range(features), key=lambda feature: -gains[feature])[:CHOSEN])
    part = matrix[:, chosen]
    system = part.T @ weighted @ part + precision * np.eye(len(chosen))
    return dict(zip(chosen, np.linalg.solve(system, products[chosen]).tolist(), strict=True))
