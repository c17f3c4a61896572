"""Computations that factorisations share, without loops over rows, features or observations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from problem import Floats, Ints
from scipy.sparse import csr_matrix
from scipy.special import expit

_AT_ONCE = 2**23  # numbers gathered, to bound memory
_DENSE = 2**24  # pairs of a dense product, for the same reason


def replaced(matrix: csr_matrix, values: NDArray[np.floating]) -> csr_matrix:
    """Return a sparse matrix of the same pattern with other values."""
    return csr_matrix((values, matrix.indices, matrix.indptr), shape=matrix.shape)


def lines_of(matrix: csr_matrix) -> Ints:
    """Return the line of each observation: (n,)."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def weighted_sums(weights: csr_matrix, moments: Floats) -> Floats:
    """Σ over a line's observations of weight × moment: (lines, columns) × (columns, d, d) → (lines, d, d).

    Moments are symmetric, so only their upper halves are summed, in single precision for speed.
    """
    size = moments.shape[1]
    upper = np.triu_indices(size)
    summed = weights.astype(np.float32) @ moments[:, upper[0], upper[1]].astype(np.float32)
    full = np.empty((weights.shape[0], size, size))
    full[:, upper[0], upper[1]] = summed
    full[:, upper[1], upper[0]] = summed
    return full


def outer(vectors: Floats) -> Floats:
    """Return the outer product of each vector with itself: (n, d) → (n, d, d)."""
    return vectors[:, :, None] * vectors[:, None, :]


def with_one(vectors: Floats) -> Floats:
    """Append a 1 to each vector: (n, d) → (n, d + 1)."""
    return np.concatenate([vectors, np.ones((len(vectors), 1))], axis=1)


def solve(matrices: Floats, vectors: Floats) -> Floats:
    """Solve each system: (n, d, d), (n, d) → (n, d)."""
    return np.linalg.solve(matrices, vectors[:, :, None])[:, :, 0]


def dots(left: Floats, right: Floats, at_left: Ints, at_right: Ints) -> Floats:
    """Return the dot products of ``left[at_left]`` and ``right[at_right]``: (n,).

    A dense matrix product computes them if they are a large share of all pairs; otherwise rows are gathered.
    """
    pairs = len(left) * len(right)
    if pairs <= min(_DENSE, 20 * len(at_left)):
        product: Floats = (left @ right.T)[at_left, at_right]
        return product
    found, step = np.empty(len(at_left)), max(1, _AT_ONCE // max(1, left.shape[1]))
    for start in range(0, len(at_left), step):
        part = slice(start, start + step)
        found[part] = np.einsum("nd,nd->n", left[at_left[part]], right[at_right[part]])
    return found


def ridge(metadata: Floats, values: Floats, weights: Floats, strength: float) -> Floats:
    """Weighted ridge regression of ``values`` (n, d) on metadata, its intercept free: (1 + width, d).

    The strength is in units of observations, relative to a mean weight of 1 per feature.
    """
    design = np.concatenate([np.ones((len(metadata), 1)), metadata], axis=1)
    scaled = design * (weights / max(weights.mean(), 1e-12))[:, None]
    penalty = np.full(design.shape[1], strength)
    penalty[0] = 1e-6
    coefficients: Floats = np.linalg.solve(scaled.T @ design + np.diag(penalty), scaled.T @ values)
    return coefficients


def predicted(metadata: Floats, coefficients: Floats) -> Floats:
    """Return the predictions of a ridge regression for these features: (n, d)."""
    said: Floats = coefficients[0] + metadata @ coefficients[1:]
    return said


def logit(chance: Floats) -> Floats:
    """Return the inverse of the logistic function, finite at 0 and 1."""
    safe = np.clip(chance, 1e-4, 1 - 1e-4)
    found: Floats = np.log(safe / (1 - safe))
    return found


def probit_mean(mean: Floats, variance: Floats) -> Floats:
    """Return the expected logistic function of a Gaussian, by MacKay's approximation: (n,)."""
    found: Floats = expit(mean / np.sqrt(1 + np.pi * variance / 8))
    return found
