"""A Gaussian process over vectors, by its definition."""

from __future__ import annotations

import math

import numpy as np

Vectors = list[list[float]]


def kernel_matrix(vectors: Vectors, others: Vectors | None = None, scale: float = 0.5) -> list[list[float]]:
    """exp(-|x - x'|² / 2ℓ²), where ℓ is ``scale`` times the median distance of two different vectors."""
    squared = [_distance(a, b) for a in vectors for b in vectors if _distance(a, b) > 1e-9]
    twice = 2 * scale**2 * sorted(squared)[(len(squared) - 1) // 2]
    return [[math.exp(-_distance(a, b) / twice) for b in vectors] for a in (others or vectors)]


def process_prediction(vectors: Vectors, targets: Vectors, new: Vectors, strength: float) -> Vectors:
    """The posterior mean at ``new`` with noise 1, a free constant, and strength times the centred kernel."""
    between, across = np.array(kernel_matrix(vectors)), np.array(kernel_matrix(vectors, new))
    centred = between - between.mean(0) - between.mean(1)[:, None] + between.mean()
    crossed = across - across.mean(1)[:, None] - between.mean(0) + between.mean()
    size = float(np.trace(centred)) / len(vectors)
    covariance = strength * centred / size + 1e6 + np.eye(len(vectors))
    return ((strength * crossed / size + 1e6) @ np.linalg.solve(covariance, np.array(targets))).tolist()


def _distance(a: list[float], b: list[float]) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
