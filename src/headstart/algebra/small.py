"""The algebra of single small systems: LAPACK called directly, because batches of one are mostly overhead."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.algebra.symmetric import LinAlgError

Array = NDArray[Any]


@cache
def _places(size: int) -> tuple[Array, Array]:
    """Where each entry of a matrix lies in its packed form, and the reverse."""
    down, across = np.tril_indices(size)
    places = np.empty((size, size), dtype=np.int64)
    places[down, across] = places[across, down] = np.arange(len(down))
    return places, down * size + across


def unpacked(packed: Array) -> Array:
    """A symmetric matrix from its packed lower triangle, as ``symmetric.unpack``.

    >>> unpacked(np.array([1., 2., 5.]))
    array([[1., 2.],
           [2., 5.]])
    """
    size = int((2 * len(packed)) ** 0.5)
    return packed.take(_places(size)[0])


def triangle(matrix: Array) -> Array:
    """The packed lower triangle of a matrix, as ``symmetric.pack``.

    >>> triangle(np.array([[1., 2.], [2., 5.]]))
    array([1., 2., 5.])
    """
    return matrix.ravel().take(_places(len(matrix))[1])


def factor(matrix: Array) -> Array:
    """The lower triangular root of a positive matrix; raises ``LinAlgError`` if it is none."""
    from scipy.linalg.lapack import dpotrf  # imported here: few uses of the package need SciPy

    lower, failed = dpotrf(matrix, lower=1)
    if failed or not lower[-1, -1] > 0:  # NaN passes unseen
        raise LinAlgError("a matrix cannot be factorised")
    return lower  # type: ignore[no-any-return]


def robust_factor(precision: Array) -> Array:
    """``factor``, with the diagonal raised if rounding made it indefinite, as ``symmetric.solved``."""
    try:
        return factor(precision)
    except LinAlgError:
        size = np.abs(precision.diagonal()).max()
        return factor(precision + np.diag(np.full(len(precision), 1e-7 * size)))


def inverted(lower: Array) -> Array:
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


def forward(lower: Array, right: Array) -> Array:
    """L⁻¹·B of a vector or a matrix B."""
    from scipy.linalg.lapack import dtrtrs

    return dtrtrs(lower, right, lower=1)[0]  # type: ignore[no-any-return]


def backward(lower: Array, right: Array) -> Array:
    """L⁻ᵀ·b of a vector b."""
    from scipy.linalg.lapack import dtrtrs

    return dtrtrs(lower, right, lower=1, trans=1)[0]  # type: ignore[no-any-return]
