"""Store and solve symmetric matrices by their packed lower triangles."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# What torch raises if a matrix cannot be factorised.
LinAlgError: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined]

_CPU = torch.device("cpu")


@cache
def triangle_indices(size: int, device: torch.device = _CPU) -> tuple[Tensor, Tensor]:
    """Where the lower triangle's entries lie: their rows and their columns."""
    down, across = torch.tril_indices(size, size, device=device)
    return down, across


@cache
def _on_diagonal(size: int, device: torch.device) -> Tensor:
    """Where the diagonal lies in a packed matrix."""
    ends = torch.arange(1, size + 1, device=device)
    return ends * (ends + 1) // 2 - 1


@cache
def _packing(size: int, device: torch.device) -> Tensor:
    """Where the entries of a packed matrix lie in the matrix: (packed,)."""
    down, across = triangle_indices(size, device)
    return down * size + across


@cache
def _unpacking(size: int, device: torch.device) -> Tensor:
    """Where the entries of a matrix lie in the packed one: (size²,)."""
    down, across = triangle_indices(size, device)
    places = torch.empty(size, size, dtype=torch.int64, device=device)
    places[down, across] = places[across, down] = torch.arange(len(down), device=device)
    return places.flatten()


def pack(matrices: Tensor) -> Tensor:
    """(…, size, size) to (…, size·(size + 1)/2).

    >>> pack(torch.tensor([[1., 2.], [2., 5.]]))
    tensor([1., 2., 5.])
    """
    return matrices.flatten(-2).index_select(-1, _packing(matrices.shape[-1], matrices.device))


def unpack(packed: Tensor, size: int) -> Tensor:
    """The inverse of ``pack``."""
    return packed.index_select(-1, _unpacking(size, packed.device)).view(*packed.shape[:-1], size, size)


def squares(vectors: Tensor) -> Tensor:
    """The packed outer product of each vector with itself: (n, size) to (n, size·(size + 1)/2)."""
    down, across = triangle_indices(vectors.shape[-1], vectors.device)
    return vectors.index_select(1, down) * vectors.index_select(1, across)


def quadratic_forms(vectors: Tensor, packed: Tensor, spread: Tensor | None = None) -> Tensor:
    """vᵀ·M·v of every vector (n, size) with every packed matrix (m, …), as one product: (n, m).

    ``spread`` (n, up to size) are variances of the vectors' first entries: then it is the expected form.
    """
    down, across = triangle_indices(vectors.shape[-1], vectors.device)
    twice = torch.where(down == across, 1.0, 2.0).to(vectors.dtype)  # what is off the diagonal counts twice
    squared = squares(vectors) * twice
    if spread is not None:
        squared[:, _on_diagonal(vectors.shape[-1], vectors.device)[: spread.shape[1]]] += spread
    return squared @ packed.T


def affine_form(vectors: Tensor, matrix: Tensor) -> Tensor:
    """[v; 1]ᵀ·M·[v; 1] of every vector (n, size − 1) with one matrix (size, size): (n,).

    Where there are few matrices this costs far less than writing all squares of each vector.
    """
    products = torch.addmm(2 * matrix[-1, :-1], vectors, matrix[:-1, :-1])
    return (products * vectors).sum(1) + matrix[-1, -1]


def diagonals(packed: Tensor, size: int) -> Tensor:
    """The diagonals of packed matrices: (…, size)."""
    return packed.index_select(-1, _on_diagonal(size, packed.device))


def traces(left: Tensor, right: Tensor) -> Tensor:
    """tr(M·N) of each pair of packed matrices (n, packed) of one size: (n,)."""
    size = int((2 * left.shape[1]) ** 0.5)
    products = left * right
    return 2 * products.sum(1) - products.index_select(1, _on_diagonal(size, products.device)).sum(1)


def weighted_traces(packed: Tensor, metric: Tensor) -> Tensor:
    """tr(M·metric) of every packed matrix M (n, …), as one product: (n,)."""
    down, across = triangle_indices(len(metric), metric.device)
    twice = torch.where(down == across, 1.0, 2.0).to(metric.dtype)
    return packed.to(metric.dtype) @ (metric[down, across] * twice)


def positive(matrix: Tensor, relative: float = 1e-6) -> Tensor:
    """A symmetric matrix with its diagonal raised by a small share of itself and of its mean."""
    matrix = (matrix + matrix.mT) / 2
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    raised = relative * (diagonal + diagonal.mean(-1, keepdim=True)) + 1e-12
    return matrix + torch.diag_embed(raised)


def inverse(covariance: Tensor) -> Tensor:
    """The precision of a covariance, computed in double precision, in the covariance's own precision."""
    exact = torch.cholesky_inverse(torch.linalg.cholesky(positive(covariance.double())))
    return exact.to(covariance.dtype)


def solve(precision: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of Gaussians given as precision (n, size, size) and precision × mean (n, size).

    Solved in double precision: the precisions of near-duplicate columns span more than single holds.
    """
    exact = precision.double()
    lower, failed = torch.linalg.cholesky_ex(exact)
    if bool((failed > 0).any()):  # because of rounding: a precision is a sum of positive parts
        size = exact.diagonal(dim1=-2, dim2=-1).abs().amax(-1)
        raised = torch.where(failed > 0, 1e-7 * size, torch.zeros_like(size))
        lower = torch.linalg.cholesky(exact + torch.diag_embed(raised[..., None].expand(exact.shape[:-1])))
    covariance = torch.cholesky_inverse(lower)
    mean = (covariance @ linear.double()[:, :, None])[:, :, 0]
    return mean.to(linear.dtype), covariance.to(precision.dtype)


def append_one(vectors: Tensor) -> Tensor:
    """Append a 1 to each vector, for the bias."""
    return torch.cat([vectors, vectors.new_ones(len(vectors), 1)], dim=1)


Array = NDArray[Any]


@cache
def _places(size: int) -> tuple[Array, Array]:
    """Where each entry of a matrix lies in its packed form, and the reverse."""
    down, across = np.tril_indices(size)
    places = np.empty((size, size), dtype=np.int64)
    places[down, across] = places[across, down] = np.arange(len(down))
    return places, down * size + across


def unpack_one(packed: Array) -> Array:
    """A symmetric matrix from its packed lower triangle, as ``symmetric.unpack``.

    >>> unpacked(np.array([1., 2., 5.]))
    array([[1., 2.],
           [2., 5.]])
    """
    size = int((2 * len(packed)) ** 0.5)
    return packed.take(_places(size)[0])


def pack_one(matrix: Array) -> Array:
    """The packed lower triangle of a matrix, as ``symmetric.pack``.

    >>> triangle(np.array([[1., 2.], [2., 5.]]))
    array([1., 2., 5.])
    """
    return matrix.ravel().take(_places(len(matrix))[1])


def cholesky_one(matrix: Array) -> Array:
    """The lower triangular root of a positive matrix; raises ``LinAlgError`` if it is none."""
    from scipy.linalg.lapack import dpotrf  # imported here: few uses of the package need SciPy

    lower, failed = dpotrf(matrix, lower=1)
    if failed or not lower[-1, -1] > 0:  # NaN passes unseen
        raise LinAlgError("a matrix cannot be factorised")
    return lower  # type: ignore[no-any-return]


def robust_cholesky_one(precision: Array) -> Array:
    """``cholesky_one``, with the diagonal raised if rounding made it indefinite, as ``symmetric.solve``."""
    try:
        return cholesky_one(precision)
    except LinAlgError:
        size = np.abs(precision.diagonal()).max()
        return cholesky_one(precision + np.diag(np.full(len(precision), 1e-7 * size)))


def invert_one(lower: Array) -> Array:
    """The inverse of L·Lᵀ."""
    from scipy.linalg.lapack import dpotri

    half = dpotri(lower, lower=1)[0]
    return half.ravel(order="F").take(_mirror(len(half)))  # type: ignore[no-any-return]


@cache
def _mirror(size: int) -> Array:
    """Where in a lower triangle, column by column, each entry of the symmetric matrix lies."""
    down, across = np.indices((size, size))
    places: Array = np.minimum(down, across) * size + np.maximum(down, across)
    return places


def solve_lower_one(lower: Array, right: Array) -> Array:
    """L⁻¹·B of a vector or a matrix B."""
    from scipy.linalg.lapack import dtrtrs

    return dtrtrs(lower, right, lower=1)[0]  # type: ignore[no-any-return]


def solve_upper_one(lower: Array, right: Array) -> Array:
    """L⁻ᵀ·b of a vector b."""
    from scipy.linalg.lapack import dtrtrs

    return dtrtrs(lower, right, lower=1, trans=1)[0]  # type: ignore[no-any-return]
