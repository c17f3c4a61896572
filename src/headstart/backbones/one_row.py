"""The posterior of a single row, for which the batched form would mostly wait for itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.algebra.symmetric import pack, triangle
from headstart.backbones.rows import NOISE_SHOTS, RowPosterior
from headstart.core.heads import Heads


def one_row_posterior(
    mean: Tensor, prior: Tensor, covariance: Tensor, heads: Heads, values: Tensor, passes: int
) -> RowPosterior:
    """The same fixed point as of many rows, of one that observed ratings and reals, in double precision.

    ``mean`` (1, latent) and ``covariance`` are those of the prior, ``prior`` its precision; ``heads`` are
    those of the row's observations, in their order, with ``values`` (n,).
    """
    seen, one = values.numpy().astype(np.float64), mean.numpy()[0].astype(np.float64)
    stacked = np.concatenate([heads.weight.numpy(), heads.bias.numpy()[:, None]], axis=1).astype(np.float64)
    noise = np.ones(len(seen)) if heads.noise is None else heads.noise.numpy().astype(np.float64)
    weighted = stacked / noise[:, None]
    total = weighted.T @ stacked + _unpacked(heads, 1 / noise)
    linear, squares = seen @ weighted, float((seen**2 / noise).sum())
    precision = prior.numpy().astype(np.float64)
    pull, towards = precision @ one, linear[:-1] - total[:-1, -1]
    exact, now = 1.0, one
    spread: NDArray[Any] = covariance.numpy().astype(np.float64)
    for turn in range(passes):
        if turn:
            extended = np.append(now, 1.0)
            expected = extended @ total @ extended + float((total[:-1, :-1] * spread).sum())
            errors = max(0.0, squares - 2 * float(linear @ extended) + float(expected))
            exact = (NOISE_SHOTS + len(seen)) / (NOISE_SHOTS + errors)
        spread = np.linalg.inv(precision + exact * total[:-1, :-1])
        now = spread @ (pull + exact * towards)
    dtype = mean.dtype
    return RowPosterior(
        torch.from_numpy(now)[None].to(dtype),
        pack(torch.from_numpy(spread)[None].to(dtype)),
        torch.tensor([exact], dtype=dtype),
    )


def _unpacked(heads: Heads, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weighted sum of the heads' covariances: (latent + 1, latent + 1)."""
    packed = heads.packed_covariance.numpy()
    summed = weights.astype(packed.dtype) @ packed
    size = heads.weight.shape[1] + 1
    down, across = triangle(size)
    matrix = np.empty((size, size))
    matrix[down.numpy(), across.numpy()] = summed
    matrix[across.numpy(), down.numpy()] = summed
    return matrix
