"""Symmetric matrices stored as packed lower triangles: conversion, products and linear systems."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from headstart.linalg.array_ops import (
    A,
    Array,
    cholesky,
    cholesky_inverse,
    multiply_vectors,
    to_double,
    to_precision_of,
)

_CPU = torch.device("cpu")

_SOLVED_AT_ONCE = 1 << 18  # numbers of the matrices that are inverted together

_NUMBERS_AT_ONCE = 2**19  # of matrices that are converted to double precision at a time: 4 MB


def packed_size(size: int) -> int:
    """Return the number of entries of a packed matrix (size, size)."""
    return size * (size + 1) // 2


@cache
def triangle_indices(size: int, device: torch.device = _CPU) -> tuple[Tensor, Tensor]:
    """Return the rows and the columns of the entries of a lower triangle, in packed order."""
    down, across = torch.tril_indices(size, size, device=device)
    return down, across


@cache
def _diagonal_positions(size: int, device: torch.device) -> Tensor:
    """Return the positions of the diagonal in a packed matrix: (size,)."""
    ends = torch.arange(1, size + 1, device=device)
    return ends * (ends + 1) // 2 - 1


@cache
def _packed_entries(size: int, device: torch.device) -> Tensor:
    """Return the positions of packed entries in the flattened matrix: (packed,)."""
    down, across = triangle_indices(size, device)
    return down * size + across


@cache
def _unpacked_entries(size: int, device: torch.device) -> Tensor:
    """Return the positions of the entries of a flattened matrix in the packed one: (size²,)."""
    down, across = triangle_indices(size, device)
    positions = torch.empty(size, size, dtype=torch.int64, device=device)
    positions[down, across] = positions[across, down] = torch.arange(len(down), device=device)
    return positions.flatten()


@cache
def _packed_entries_one(size: int) -> Array:
    """Return ``_packed_entries`` in numpy."""
    return _packed_entries(size, _CPU).numpy()


@cache
def _unpacked_entries_one(size: int) -> Array:
    """Return ``_unpacked_entries`` in numpy, as a matrix."""
    return _unpacked_entries(size, _CPU).numpy().reshape(size, size)


def pack(matrices: A) -> A:
    """Pack symmetric matrices (…, size, size) to (…, size·(size + 1)/2).

    >>> pack(torch.tensor([[1., 2.], [2., 5.]]))
    tensor([1., 2., 5.])
    >>> pack(np.array([[1., 2.], [2., 5.]]))
    array([1., 2., 5.])
    """
    size = matrices.shape[-1]
    if isinstance(matrices, np.ndarray):
        return matrices.reshape(*matrices.shape[:-2], -1).take(_packed_entries_one(size), -1)
    return matrices.flatten(-2).index_select(-1, _packed_entries(size, matrices.device))


def unpack(packed: A, size: int | None = None) -> A:
    """Unpack symmetric matrices: the inverse of ``pack``.

    >>> unpack(np.array([1., 2., 5.]))
    array([[1., 2.],
           [2., 5.]])
    """
    if size is None:
        size = int((2 * packed.shape[-1]) ** 0.5)
    if isinstance(packed, np.ndarray):
        return packed.take(_unpacked_entries_one(size), -1)
    entries = packed.index_select(-1, _unpacked_entries(size, packed.device))
    return entries.view(*packed.shape[:-1], size, size)


def last_rows(packed: Tensor, size: int, first: int) -> Tensor:
    """Return the rows of symmetric matrices from ``first`` on: (n, size − first, size).

    >>> last_rows(torch.tensor([[1.0, 2.0, 5.0]]), size=2, first=1)
    tensor([[[2., 5.]]])
    """
    entries = packed.index_select(-1, _unpacked_entries(size, packed.device)[first * size :])
    return entries.view(*packed.shape[:-1], size - first, size)


@cache
def _triangle_indices_one(size: int) -> tuple[Array, Array]:
    """Return ``triangle_indices`` in numpy."""
    down, across = triangle_indices(size)
    return down.numpy(), across.numpy()


def outer_products(vectors: A) -> A:
    """Return the packed outer product of each vector with itself: (…, size) to (…, size·(size + 1)/2)."""
    if isinstance(vectors, np.ndarray):
        rows, columns = _triangle_indices_one(vectors.shape[-1])
        return vectors.take(rows, -1) * vectors.take(columns, -1)
    down, across = triangle_indices(vectors.shape[-1], vectors.device)
    return vectors.index_select(1, down) * vectors.index_select(1, across)


def quadratic_forms(
    vectors: Tensor, packed: Tensor, variances: Tensor | None = None, positions: Tensor | None = None
) -> Tensor:
    """Compute vᵀ·M·v of all ``vectors`` (n, size) with all ``packed`` matrices (m, …): (n, m).

    If ``positions`` (m,) are given, only with the matrices at these positions.

    With ``variances`` (n, up to size) of the first entries of the vectors, compute the expectation.
    Matrices in a lower precision are converted to the precision of the vectors in blocks that fit in the
    cache.
    """
    squared = outer_products(vectors) * trace_weights(vectors.shape[-1], vectors.device, vectors.dtype)
    if variances is not None:
        squared[:, _diagonal_positions(vectors.shape[-1], vectors.device)[: variances.shape[1]]] += variances
    if packed.dtype == squared.dtype and positions is None:
        return squared @ packed.T
    count = len(packed) if positions is None else len(positions)
    forms = squared.new_empty(len(squared), count)
    step = max(1, _NUMBERS_AT_ONCE // max(1, packed.shape[1]))
    buffer = squared.new_empty(min(step, count), packed.shape[1])
    gathered = packed.new_empty(0 if positions is None else min(step, count), packed.shape[1])
    for start in range(0, count, step):
        block = packed[start : start + step]
        if positions is not None:
            chosen = positions[start : start + step]
            block = torch.index_select(packed, 0, chosen, out=gathered[: len(chosen)])
        if block.dtype == torch.float16 and buffer.dtype == torch.float64:
            block = block.float()  # two conversions take less time than one
        converted = buffer[: len(block)].copy_(block)
        # Matrix · vector reads the matrices in their memory order.
        product = torch.mv(converted, squared[0]) if len(squared) == 1 else squared @ converted.T
        forms[:, start : start + step] = product
    return forms


@cache
def trace_weights(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the factor of each packed entry in a trace tr(M·N): 1 on the diagonal, 2 off it."""
    down, across = triangle_indices(size, device)
    return torch.where(down == across, 1.0, 2.0).to(dtype)


@cache
def trace_weights_one(size: int) -> Array:
    """Return ``trace_weights`` in numpy."""
    return trace_weights(size, _CPU, torch.float64).numpy()


def affine_quadratic_form(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Compute [v; 1]ᵀ·M·[v; 1] of all ``vectors`` (n, size − 1) with one ``matrix`` (size, size): (n,).

    For few matrices this is faster than ``quadratic_forms``, which needs the squares of all vectors.
    """
    products = torch.addmm(2 * matrix[-1, :-1], vectors, matrix[:-1, :-1])
    return (products * vectors).sum(1) + matrix[-1, -1]


@cache
def _diagonal_positions_one(size: int) -> Array:
    """Return ``_diagonal_positions`` in numpy."""
    return _diagonal_positions(size, _CPU).numpy()


def diagonals(packed: A, size: int) -> A:
    """Return the diagonals of packed matrices: (…, size)."""
    if isinstance(packed, np.ndarray):
        return packed.take(_diagonal_positions_one(size), -1)
    return packed.index_select(-1, _diagonal_positions(size, packed.device))


def traces(left: Tensor, right: Tensor) -> Tensor:
    """Return tr(M·N) of each pair of packed matrices (n, packed) of one size: (n,)."""
    size = int((2 * left.shape[1]) ** 0.5)
    products = left * right
    return 2 * products.sum(1) - products.index_select(1, _diagonal_positions(size, products.device)).sum(1)


def frobenius_norms(packed: Tensor) -> Tensor:
    """Return the Frobenius norm of each packed matrix (n, packed), a bound of its eigenvalues: (n,)."""
    return traces(packed, packed).sqrt()


def weighted_traces(packed: Tensor, metric: Tensor) -> Tensor:
    """Return tr(M·metric) of every packed matrix M (n, …), as one product: (n,)."""
    down, across = triangle_indices(len(metric), metric.device)
    twice = trace_weights(len(metric), metric.device, metric.dtype)
    return packed.to(metric.dtype) @ (metric[down, across] * twice)


def make_positive_definite(matrix: Tensor, relative: float = 1e-6) -> Tensor:
    """Symmetrise a matrix, and add ``relative`` · (diagonal + its mean) to the diagonal."""
    matrix = (matrix + matrix.mT) / 2
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    raised = relative * (diagonal + diagonal.mean(-1, keepdim=True)) + 1e-12
    return matrix + torch.diag_embed(raised)


def inverse(covariance: Tensor) -> Tensor:
    """Invert a covariance in double precision; return it in the dtype of ``covariance``."""
    exact = torch.cholesky_inverse(torch.linalg.cholesky(make_positive_definite(covariance.double())))
    return exact.to(covariance.dtype)


def solve(precision: A, linear: A) -> tuple[A, A]:
    """Return mean and covariance of Gaussians with ``precision`` and ``linear`` = precision · mean.

    ``precision`` is (…, size, size) and ``linear`` (…, size). The systems are solved in double precision:
    near-duplicate columns make them too ill-conditioned for single precision. Large batches are solved in
    blocks that stay in the processor's cache, in half the time.
    """
    step = max(1, _SOLVED_AT_ONCE // precision.shape[-1] ** 2)
    if isinstance(precision, Tensor) and precision.ndim == 3 and len(precision) > step:
        mean, covariance = torch.empty_like(linear), torch.empty_like(precision)
        for start in range(0, len(precision), step):
            part = slice(start, start + step)
            mean[part], covariance[part] = solve(precision[part], linear[part])
        return mean, covariance
    covariance = cholesky_inverse(cholesky(to_double(precision)))
    mean = multiply_vectors(to_double(linear), covariance)
    return to_precision_of(mean, linear), to_precision_of(covariance, precision)


def append_one(vectors: Tensor) -> Tensor:
    """Append a 1 to each vector, for the bias."""
    return torch.cat([vectors, vectors.new_ones(len(vectors), 1)], dim=1)
