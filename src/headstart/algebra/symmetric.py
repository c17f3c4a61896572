"""Symmetric matrices by their lower triangles: half the memory, and sums of them are plain vectors."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def triangle(size: int) -> tuple[Tensor, Tensor]:
    """Where the lower triangle's entries lie: their rows and their columns."""
    down, across = torch.tril_indices(size, size)
    return down, across


def pack(matrices: Tensor) -> Tensor:
    """(…, size, size) to (…, size·(size + 1)/2).

    >>> pack(torch.tensor([[1., 2.], [2., 5.]]))
    tensor([1., 2., 5.])
    """
    down, across = triangle(matrices.shape[-1])
    return matrices[..., down, across]


def unpack(packed: Tensor, size: int) -> Tensor:
    """The inverse of ``pack``."""
    down, across = triangle(size)
    matrices = packed.new_empty(*packed.shape[:-1], size, size)
    matrices[..., down, across] = packed
    matrices[..., across, down] = packed
    return matrices


def squares(vectors: Tensor) -> Tensor:
    """The packed outer product of each vector with itself: (n, size) to (n, size·(size + 1)/2)."""
    down, across = triangle(vectors.shape[-1])
    return vectors.index_select(1, down) * vectors.index_select(1, across)


def forms(vectors: Tensor, packed: Tensor) -> Tensor:
    """vᵀ·M·v of every vector (n, size) with every packed matrix (m, …), as one product: (n, m)."""
    down, across = triangle(vectors.shape[-1])
    twice = torch.where(down == across, 1.0, 2.0).to(vectors.dtype)  # what is off the diagonal counts twice
    return (squares(vectors) * twice) @ packed.T


def solved(precision: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of Gaussians given as precision (n, size, size) and precision × mean (n, size)."""
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
    return (covariance @ linear[:, :, None])[:, :, 0], covariance
