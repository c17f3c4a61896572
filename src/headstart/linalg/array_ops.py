"""Linear algebra for batches (torch) and single items (numpy with LAPACK).

``gaussian`` and ``laplace`` use these primitives to write each formula once. A batch of features is a torch
tensor with a leading axis, which can be differentiated and moved to a device. A single feature, or a stack of
some, is a numpy array without or with that axis: matrices are so small that the overhead of torch calls
exceeds the arithmetic. Both libraries have ``@``, ``.mT``, indexing and arithmetic in common; the other
operations are here.
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

A = TypeVar("A", Tensor, Array)
Numbers: TypeAlias = Any
"""A torch tensor with a leading batch axis, or a numpy array of one item or a stack of items."""

LinAlgError: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
"""The error of torch for a matrix that has no factorisation; both backends raise it."""


def namespace(array: Numbers) -> ModuleType:
    """Return the module of functions for ``array``: torch or numpy."""
    return torch if isinstance(array, Tensor) else np


@cache
def import_lapack() -> Any:
    """Import SciPy's LAPACK at its first use: importing it takes time, and few commands need it."""
    from scipy.linalg import lapack

    return lapack


# Added to the diagonal of an indefinite matrix, relative to its largest entry, until it is positive definite:
# sums in single precision have rounding errors of this size.
_JITTERS = (1e-7, 1e-6, 1e-5)


def cholesky(matrices: A) -> A:
    """Compute the lower Cholesky factor of each positive definite matrix (…, n, n).

    If rounding made a matrix indefinite, a small number is added to its diagonal.

    Raises
    ------
    LinAlgError
        If a matrix is still not positive definite, or not finite.
    """
    if isinstance(matrices, np.ndarray):
        return _each(_cholesky_one, matrices)
    lower, info = torch.linalg.cholesky_ex(matrices)
    if bool((info > 0).any()):
        largest = matrices.diagonal(dim1=-2, dim2=-1).abs().amax(-1, keepdim=True)
        raised = torch.zeros_like(largest)
        for jitter in _JITTERS:
            raised = torch.where(info[..., None] > 0, jitter * largest, raised)
            diagonals = torch.diag_embed(raised.expand(matrices.shape[:-1]))
            lower, info = torch.linalg.cholesky_ex(matrices + diagonals)
            if not bool((info > 0).any()):
                break
        else:
            raise LinAlgError("a matrix cannot be factorised")
    return cast(Tensor, lower)


def _cholesky_one(matrix: Array) -> Array:
    """Compute the lower Cholesky factor of one matrix (n, n)."""
    dpotrf = import_lapack().dpotrf
    lower, info = dpotrf(matrix, lower=1)
    for jitter in _JITTERS if info else ():
        raised = matrix.copy()
        raised.flat[:: len(matrix) + 1] += jitter * np.abs(matrix.diagonal()).max()
        lower, info = dpotrf(raised, lower=1)
        if not info:
            break
    if info or not lower[-1, -1] > 0:  # LAPACK does not report NaN
        raise LinAlgError("a matrix cannot be factorised")
    return cast(Array, lower)


def solve_lower(lower: A, right: A) -> A:
    """Return L⁻¹·B of lower triangular L (…, n, n) and B (…, n, k)."""
    if isinstance(lower, np.ndarray):
        dtrtrs = import_lapack().dtrtrs
        return _each(lambda root, columns: dtrtrs(root, columns, lower=1)[0], lower, right)
    return cast(Tensor, torch.linalg.solve_triangular(lower, right, upper=False))


def cholesky_solve(lower: A, right: A) -> A:
    """Return (L·Lᵀ)⁻¹·b of lower triangular L (…, n, n) and vectors b (…, n)."""
    if isinstance(lower, np.ndarray):
        dpotrs = import_lapack().dpotrs
        return _each(lambda root, vector: dpotrs(root, vector, lower=1)[0], lower, right)
    return torch.cholesky_solve(right[..., None], lower)[..., 0]


def cholesky_inverse(lower: A) -> A:
    """Return (L·Lᵀ)⁻¹ of lower triangular L (…, n, n)."""
    if isinstance(lower, np.ndarray):
        return _each(_cholesky_inverse_one, lower)
    return torch.cholesky_inverse(lower)


def _cholesky_inverse_one(lower: Array) -> Array:
    # LAPACK's dpotri starts threads even for small matrices, which takes milliseconds on a busy machine.
    inverse = import_lapack().dtrtri(lower, lower=1)[0]
    return cast(Array, inverse.T @ inverse)


def add_identity(matrices: A) -> A:
    """Return 1 + M of each matrix (…, n, n); a numpy argument is changed in place."""
    size = matrices.shape[-1]
    if isinstance(matrices, np.ndarray):
        matrices.reshape(*matrices.shape[:-2], size * size)[..., :: size + 1] += 1.0
        return matrices
    return matrices + torch.eye(size, dtype=matrices.dtype, device=matrices.device)


def half_log_determinant(lower: A) -> A:
    """Return ½·log |L·Lᵀ| of lower triangular L (…, n, n)."""
    if isinstance(lower, np.ndarray):
        return np.log(lower.diagonal(axis1=-2, axis2=-1)).sum(-1)  # type: ignore[no-any-return]
    return lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def weighted_gram(rows: A, weights: A) -> A:
    """Return Σ w·a·aᵀ over the rows a of each item: (…, n, size) and (…, n) to (…, size, size)."""
    if isinstance(rows, np.ndarray):
        scaled = rows * np.sqrt(weights)[..., None]
        return cast(Array, scaled.mT @ scaled)  # BLAS computes only half of a symmetric product
    return (rows * weights[..., None]).mT @ rows


def multiply_each(items: A, matrices: A) -> A:
    """Return the products of all items (…, n, size) with all matrices (P, size, k): (…, P, n, k)."""
    if isinstance(items, np.ndarray):
        return items[..., None, :, :] @ matrices
    # One product of large matrices is faster than many products of small ones.
    flat = items.reshape(-1, items.shape[-1])
    products = [(flat @ matrix).view(*items.shape[:-1], matrix.shape[-1]) for matrix in matrices]
    return torch.stack(products, dim=-3) if len(products) > 1 else products[0].unsqueeze(-3)


def multiply_vectors(vectors: A, matrices: A) -> A:
    """Return vᵀ·M of vectors (…, n) and matrices (…, n, k): (…, k)."""
    return (vectors[..., None, :] @ matrices)[..., 0, :]  # faster in torch than matrix · vector


def append_column(matrices: A, vectors: A) -> A:
    """Append vectors (…, n) to matrices (…, n, k) or (n, k) as a last column: (…, n, k + 1)."""
    if isinstance(matrices, np.ndarray):
        shape = (*vectors.shape, matrices.shape[-1] + 1)
        joined = np.empty(shape)
        joined[..., :-1], joined[..., -1] = matrices, vectors
        return joined
    expanded = matrices.expand(*vectors.shape, matrices.shape[-1])
    return torch.cat([expanded, vectors[..., None].to(matrices.dtype)], dim=-1)


def softmax(scores: A) -> A:
    """Return the softmax over the last axis."""
    if isinstance(scores, np.ndarray):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return cast(Array, weights / weights.sum(-1, keepdims=True))
    return torch.softmax(scores, dim=-1)


def logistic(outputs: Any) -> Any:
    """Return 1 / (1 + exp(−x)) of each number x of a tensor or an array, or of one number."""
    return torch.sigmoid(outputs) if isinstance(outputs, Tensor) else 0.5 * (1 + np.tanh(outputs / 2))


def probit_scale(variance: Any) -> Any:
    """Return 1 / √(1 + π·v / 8), by which Gaussian noise of variance v in the input flattens a logistic link.

    The approximation is MacKay's. ``variance`` is a tensor, an array or a number.
    """
    return 1 / (1 + math.pi / 8 * variance) ** 0.5


def jaakkola_slope(outputs: A) -> A:
    """Return tanh(x/2) / 2x: the curvature of Jaakkola and Jordan's bound of the logistic log-likelihood.

    The bound is a quadratic function that touches the log-likelihood at ±x and lies below it elsewhere.
    """
    if isinstance(outputs, np.ndarray):
        distance = np.maximum(np.abs(outputs), 1e-3)
        return cast(Array, np.tanh(distance / 2) / (2 * distance))
    distances = outputs.abs().clamp(min=1e-3)
    return torch.tanh(distances / 2) / (2 * distances)


def at_least(numbers: A, least: float) -> A:
    """Return the maximum of each number and ``least``."""
    if isinstance(numbers, Tensor):
        return numbers.clamp(min=least)
    return np.maximum(numbers, least)


def lerp(start: A, end: A, share: A) -> A:
    """Return start + share·(end − start)."""
    if isinstance(start, Tensor):
        return torch.lerp(start, end, share)
    return start + share * (end - start)  # type: ignore[no-any-return]


def square_root(numbers: A) -> A:
    """Return the square root of each number."""
    return np.sqrt(numbers) if isinstance(numbers, np.ndarray) else numbers.sqrt()


def logarithm(numbers: A) -> A:
    """Return the natural logarithm of each number."""
    return np.log(numbers) if isinstance(numbers, np.ndarray) else numbers.log()


def to_double(numbers: A) -> A:
    """Convert a batch to double precision; single items already have it."""
    return numbers if isinstance(numbers, np.ndarray) else numbers.double()


def to_library_of(numbers: Tensor, other: A) -> A:
    """Return the numbers as an array of the library of ``other``: a tensor, or a view of it in numpy."""
    return numbers if isinstance(other, Tensor) else numbers.numpy()


def to_dtype_of(numbers: A, other: A) -> A:
    """Return the numbers in the type of the numbers of ``other``."""
    if isinstance(numbers, np.ndarray):
        return numbers.astype(other.dtype, copy=False)
    return numbers.to(other.dtype)


def to_precision_of(numbers: A, other: A) -> A:
    """Return the numbers in the precision of ``other``."""
    if isinstance(numbers, np.ndarray):
        return numbers
    return numbers.to(other.dtype)


def _each(function: Any, *stacks: Array) -> Array:
    """Apply a function of matrices to each matrix of ``stacks`` (…, n, k); the last can be (…, n)."""
    if not stacks[0].size:  # LAPACK refuses empty matrices
        return stacks[-1].copy()
    if stacks[0].ndim == 2:
        return cast(Array, function(*stacks))
    results = np.empty(stacks[-1].shape)
    for position in np.ndindex(stacks[0].shape[:-2]):
        results[position] = function(*(stack[position] for stack in stacks))
    return results
