"""The local part of a new feature's prediction, one number after the other."""

from __future__ import annotations

import math

import numpy as np

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


def cosine_of(knowledge: Knowledge, metadata: np.ndarray, feature: int) -> float:
    """The cosine of the centred metadata of a new and a known feature."""
    known = knowledge.metadata.double().numpy()
    one, other = metadata.astype(float) - known.mean(0), known[feature] - known.mean(0)
    lengths = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other) / lengths if lengths > 0 else 0.0


def similarity_of(knowledge: Knowledge, metadata: np.ndarray, features: list[int]) -> dict[int, float]:
    """m of the known features among ``features``, at most as many as have a weight."""
    index, rows = knowledge.cells.index.tolist(), len(knowledge.cells)
    squares = {feature: max(0.0, cosine_of(knowledge, metadata, feature)) ** 2 for feature in features}
    total = sum(squares[feature] * index.count(feature) / rows for feature in features)
    return {feature: square / max(1.0, total) for feature, square in squares.items()}


def metadata_inputs_of(knowledge: Knowledge) -> tuple[float, float, float]:
    """Strength, correlation and share of right signs when similar features predict known residuals."""
    known, features = residuals_of(knowledge), len(knowledge.kinds)
    product, square, total, signs = 0.0, 0.0, 0.0, 0
    for feature in range(features):
        others = [other for other in range(features) if other != feature]
        similarity = similarity_of(knowledge, knowledge.metadata[feature].double().numpy(), others)
        own = 0.0
        for (row, of), residual in known.items():
            if of == feature:
                predicted = sum(similarity[other] * known.get((row, other), 0.0) for other in others)
                own, square, total = own + residual * predicted, square + predicted**2, total + residual**2
        product, signs = product + own, signs + (own > 0)
    strength = min(1.5, max(-0.5, product / square))
    return strength, max(0.0, product) / math.sqrt(square * total), signs / features


def inputs_of(
    knowledge: Knowledge,
    metadata: np.ndarray,
    kind: int,
    rows: list[int],
    context: list[float],
    weights: list[float],
) -> list[dict[str, float]]:
    """The inputs of the prior of each known feature's weight, by name."""
    known, features = residuals_of(knowledge), range(len(knowledge.kinds))
    count, height, binary = len(features), len(knowledge.cells), int(KindType.BINARY)
    of = {j: [residual for (_, feature), residual in known.items() if feature == j] for j in features}
    size = {j: math.sqrt(sum(r**2 for r in of[j]) / max(1, len(of[j]))) for j in features}
    cosine = {j: cosine_of(knowledge, metadata, j) for j in features}
    similarity = similarity_of(knowledge, metadata, list(features))
    strength, correlation, signs = metadata_inputs_of(knowledge)
    triples = list(zip(rows, context, weights, strict=True))
    squares = {j: sum(w * known.get((i, j), 0.0) ** 2 for i, _, w in triples) for j in features}
    products = {j: sum(w * known.get((i, j), 0.0) * r for i, r, w in triples) for j in features}
    shots = {j: sum(w for i, _, w in triples if (i, j) in known) for j in features}
    gain = {j: products[j] ** 2 / (squares[j] + 1) for j in features}
    length, largest = sum(w * r**2 for _, r, w in triples), max(gain.values())
    agree = {j: products[j] / math.sqrt(squares[j] + 1) / 3 for j in features}
    alike = {
        j: products[j] / math.sqrt(squares[j] * length) if squares[j] and length else 0.0 for j in features
    }
    return [
        {
            "frequency": len(of[j]) / height,
            "log observations": math.log1p(len(of[j])) / 5,
            "residual size": size[j],
            "mean frequency": len(known) / height / count,
            "mean residual size": sum(size.values()) / count,
            "log features": math.log(count) / 5,
            "log rows": math.log(height) / 5,
            "log observations of a row": math.log1p(len(known) / height) / 3,
            "metadata": 1.0,
            "metadata strength": strength,
            "metadata correlation": correlation,
            "metadata sign": signs,
            "log shots": math.log1p(sum(weights)) / 3,
            "context size": length / max(1.0, sum(weights)),
            "log largest gain": math.log1p(largest),
            "new is binary": float(kind == binary),
            "known is binary": float(int(knowledge.kinds[j]) == binary),
            "cosine": cosine[j],
            "squared cosine": max(0.0, cosine[j]) ** 2,
            "similarity": similarity[j],
            "agreement": agree[j],
            "size of the agreement": abs(agree[j]),
            "correlation": alike[j],
            "squared correlation": alike[j] ** 2,
            "log shots in common": math.log1p(shots[j]) / 3,
            "relative gain": gain[j] / (largest + 1),
            "missing gain": (gain[j] - largest) / 5,
            "log gain": math.log1p(gain[j]),
        }
        for j in features
    ]


def prior_variance_of(
    layers: list[tuple[np.ndarray, np.ndarray]], inputs: list[float], usual: float
) -> float:
    """The variance of one weight: the network, unit after unit."""
    numbers = [min(3.0, max(-3.0, number)) for number in inputs]
    for layer, (weight, bias) in enumerate(layers):
        numbers = [float(np.dot(w, numbers)) + b for w, b in zip(weight, bias, strict=True)]
        if layer < 2:
            numbers = [number / (1 + math.exp(-number)) for number in numbers]
    return usual * math.exp(min(8.0, max(-8.0, 3 * numbers[0])))


def posterior_of(
    variances: list[float], matrix: np.ndarray, context: list[float], weights: list[float]
) -> np.ndarray:
    """The posterior mean of all weights, from the joint covariance of weights and context."""
    prior = np.diag(variances)
    covariance = matrix @ prior @ matrix.T + np.diag(1 / np.array(weights))
    return prior @ matrix.T @ np.linalg.inv(covariance) @ np.array(context)
