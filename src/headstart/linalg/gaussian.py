"""Compute Gaussian posteriors of linear models from their contexts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headstart.linalg.packed import append_one, squares, unpack
from headstart.linalg.ragged import pad, row_slices, segment_sum
from headstart.table.cells import Cells

TEMPER = 2.0  # observations from which the evidence for a part of a prior is half believed


class ContextSums(NamedTuple):
    """Sums over the contexts of features, of values x and weights w."""

    counts: Tensor  # (features,)
    total: Tensor  # (features, size, size): Σ w·[d; 1][d; 1]ᵀ
    linear: Tensor  # (features, size): Σ w·x·[d; 1]
    squares: Tensor  # (features,): Σ w·x²


def regress(
    rows: Tensor, values: Tensor, weights: Tensor, prior: Tensor, root: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of heads given padded contexts, in closed form.

    ``rows`` (features, shots, size) are the activations with a 1, ``values`` and ``weights``
    (features, shots) the observations and their precisions, 0 where padded. The prior has the mean
    ``prior`` (features, size) and the covariance root·rootᵀ (size, size). Of the two equal forms,
    solving for the shots or for the head, the smaller system is solved.
    """
    residual = values - (rows @ prior[:, :, None])[:, :, 0]
    shots, size = rows.shape[1:]
    if shots >= size:  # whitening the sums costs less than whitening the rows
        weighted = rows * weights[:, :, None]
        linear = (residual[:, None, :] @ weighted)[:, 0] @ root
        return posterior_of(root.T @ (weighted.mT @ rows) @ root, linear, prior, root)
    scale = weights.sqrt()
    white = (rows @ root) * scale[:, :, None]
    lower = torch.linalg.cholesky(white @ white.mT + torch.eye(shots, dtype=rows.dtype))
    right = torch.cat([white @ root.T, (scale * residual)[:, :, None]], dim=2)
    both = torch.linalg.solve_triangular(lower, right, upper=False)
    gain, half = both[..., :-1], both[..., -1:]
    return prior + (gain.mT @ half)[:, :, 0], root @ root.T - gain.mT @ gain


def posterior_of(precision: Tensor, linear: Tensor, prior: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """The posterior of observations that sum up to these two terms in whitened coordinates.

    ``precision`` is (features, size, size), ``linear`` (features, size).
    """
    # Double precision: the precisions of many observations span more than single holds.
    lower = torch.linalg.cholesky(torch.eye(len(root), dtype=torch.float64) + precision.double())
    right = torch.cat([root.T.expand(len(prior), -1, -1), linear[:, :, None]], dim=2).double()
    both = torch.linalg.solve_triangular(lower, right, upper=False).to(root.dtype)
    gain, half = both[..., :-1], both[..., -1:]
    return prior + (gain.mT @ half)[:, :, 0], gain.mT @ gain


def mixed(sums: ContextSums, means: Tensor, roots: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of heads under a prior of several parts, each weighed by its evidence.

    Part p has the mean ``means`` (features, parts, size), the covariance root·rootᵀ of ``roots`` (parts,
    size, size), and the share ``shares`` (parts,) before anything is observed.
    """
    total, linear = sums.total[:, None], sums.linear[:, None]
    white = roots.mT @ total @ roots + torch.eye(total.shape[-1], dtype=total.dtype)
    fitted = (total @ means[..., None])[..., 0]
    pulled = (roots.mT @ (linear - fitted)[..., None])[..., 0]
    lower = torch.linalg.cholesky(white)
    half = torch.linalg.solve_triangular(lower, pulled[..., None], upper=False)
    squared = sums.squares[:, None] - 2 * (linear * means).sum(-1) + (means * fitted).sum(-1)
    log_evidence = -0.5 * (squared - (half[..., 0] ** 2).sum(-1)) - lower.diagonal(
        dim1=-2, dim2=-1
    ).log().sum(-1)
    tempered = log_evidence * tempering(sums.counts)[:, None]
    weights = torch.softmax(shares.log() + tempered, dim=1)
    step = torch.linalg.solve_triangular(lower.mT, half, upper=True)[..., 0]
    mean = means + (roots @ step[..., None])[..., 0]
    middle = (weights[..., None] * mean).sum(1)
    apart = mean - middle[:, None]
    spread = roots @ torch.cholesky_inverse(lower) @ roots.mT + apart[..., :, None] * apart[..., None, :]
    return middle, (weights[..., None, None] * spread).sum(1)


def mixed_few(
    rows: Tensor,
    values: Tensor,
    weights: Tensor,
    counts: Tensor,
    means: Tensor,
    roots: Tensor,
    shares: Tensor,
) -> tuple[Tensor, Tensor]:
    """The same as ``mixed``, for padded contexts of fewer shots than a head has parameters.

    ``rows`` (features, shots, size), ``values`` and ``weights`` (features, shots) are as in ``regress``,
    ``counts`` (features,) as in ``ContextSums``. The systems are shots × shots here, by Woodbury's
    identity, instead of size × size.
    """
    scale, covariances = weights.sqrt(), roots @ roots.mT
    residual = (values[:, None] - means @ rows.mT) * scale[:, None]
    scaled = rows * scale[..., None]
    flat = scaled.reshape(
        -1, rows.shape[2]
    )  # as products of large matrices, which are faster than many small
    cross = torch.stack([(flat @ each).view_as(rows) for each in covariances], dim=1)
    lower = torch.linalg.cholesky(cross @ scaled.mT[:, None] + torch.eye(rows.shape[1], dtype=rows.dtype))
    both = torch.cat([cross, residual[..., None]], dim=-1)
    solved_both = torch.linalg.solve_triangular(lower, both, upper=False)
    gain, half = solved_both[..., :-1], solved_both[..., -1]
    log_evidence = -0.5 * (half**2).sum(-1) - lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    tempered = log_evidence * tempering(counts)[:, None]
    share = torch.softmax(shares.log() + tempered, dim=1)
    mean = means + (half[..., None, :] @ gain)[..., 0, :]
    middle = (share[..., None] * mean).sum(1)
    root_share = share.sqrt()
    known = (root_share[..., None, None] * gain).flatten(1, 2)
    apart = root_share[..., None] * (mean - middle[:, None])
    before = (share @ covariances.flatten(1)).view(len(rows), *roots.shape[1:])
    return middle, before - known.mT @ known + apart.mT @ apart


def tempering(counts: Tensor) -> Tensor:
    """How much the evidence of so many observations is believed: one or two fit any part by chance."""
    return counts / (counts + TEMPER)


_MAX_PADDING = 4  # times as many places as observations, at most


def sums_over(cells: Cells, activation: Tensor, weights: Tensor) -> ContextSums:
    """The sums over the contexts of features, in double precision.

    ``cells`` has one line per feature and points at rows of ``activation`` (rows, size − 1); ``weights``
    (n,) are those of the observations. Products of matrices are faster than many of vectors: one for a
    single feature, in blocks if it is long, and a padded block for features of similar shots.
    """
    values, counts = cells.values.double(), cells.weighted_counts.double()
    if len(cells) == 1:
        total, linear = _one_feature(cells, activation, weights)
        return ContextSums(counts, total[None], linear[None], (weights * values**2).sum()[None])
    rows = append_one(activation.index_select(0, cells.index)).double()
    if len(cells) and int(cells.counts.max()) * len(cells) <= _MAX_PADDING * len(weights):
        block = pad(rows, cells)
        weighted = block * pad(weights, cells)[:, :, None]
        linear = (pad(values, cells)[:, None] @ weighted)[:, 0]
        square = segment_sum((weights * values**2)[:, None], cells.indptr)[:, 0]
        return ContextSums(counts, weighted.mT @ block, linear, square)
    linear = rows * (weights * values)[:, None]
    each = torch.cat([squares(rows) * weights[:, None], linear, (weights * values**2)[:, None]], dim=1)
    return sums_of(segment_sum(each, cells.indptr), counts, rows.shape[1])


def _one_feature(cells: Cells, activation: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    size = activation.shape[1] + 1
    total, linear = weights.new_zeros(size, size), weights.new_zeros(size)
    for part in row_slices(len(weights), 32 * size):
        rows = append_one(activation.index_select(0, cells.index[part])).double()
        weighted = weights[part, None] * rows
        total, linear = total + weighted.T @ rows, linear + cells.values[part].double() @ weighted
    return total, linear


def sums_of(kept: Tensor, counts: Tensor, size: int) -> ContextSums:
    """Part what is kept of contexts of so many observations into their sums: see ``evidence``."""
    packed, linear, square = kept.tensor_split([kept.shape[1] - size - 1, kept.shape[1] - 1], dim=1)
    return ContextSums(counts.double(), unpack(packed, size), linear, square[:, 0])
