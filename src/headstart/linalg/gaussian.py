"""Gaussian posteriors of heads given their contexts.

A head θ = (w, b) has P ≥ 1 alternative priors N(mean, root·rootᵀ), and an observation x of a row with the
activation d has the likelihood N(θ·[d; 1], 1/weight). The posterior under each prior and its evidence have
a closed form; ``mix`` averages them. Tensors are batches (features, …); numpy arrays are one feature, without
the first axis: see ``array_ops``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headstart.linalg.array_ops import (
    Numbers,
    add_identity,
    append_column,
    cholesky,
    half_log_determinant,
    logarithm,
    multiply_each,
    multiply_vectors,
    softmax,
    solve_lower,
    square_root,
    to_double,
    to_precision_of,
    weighted_gram,
)
from headstart.linalg.packed import append_one, outer_products, pack, unpack
from headstart.linalg.ragged import pad, pad_rows, row_slices, segment_sum
from headstart.table.cells import Cells

TEMPER = 2.0  # shots at which ``temper`` is one half

_MAX_PADDING = 4  # entries of a padded block per observation, at most


class ContextSums(NamedTuple):
    """Sufficient statistics of contexts: sums over observations x with weights w."""

    counts: Numbers  # (features,): the number of observations, or the sum of their weights
    total: Numbers  # (features, size, size): Σ w·[d; 1][d; 1]ᵀ
    linear: Numbers  # (features, size): Σ w·x·[d; 1]
    squares: Numbers  # (features,): Σ w·x²

    def add_zeros(self, weights: Numbers, moments: Numbers) -> ContextSums:
        """Add observations of 0: ``moments`` (size, size) of their rows, with ``weights`` (features,)."""
        return self._replace(total=self.total + weights[..., None, None] * moments)

    def pack(self) -> Tensor:
        """Concatenate the sums into one vector for each feature; ``unpack_sums`` splits it."""
        return torch.cat([self.counts[:, None], pack(self.total), self.linear, self.squares[:, None]], dim=1)


def unpack_sums(packed: Tensor, size: int) -> ContextSums:
    """Split the vectors of ``ContextSums.pack`` (features, numbers) into their parts."""
    counts, total, linear, square = packed.tensor_split([1, -size - 1, -1], dim=1)
    return ContextSums(counts[:, 0], unpack(total, size), linear, square[:, 0])


class Posterior(NamedTuple):
    """Posteriors of heads under each of P priors.

    The covariance is gainᵀ·gain if ``prior_covariances`` is None, else prior covariance − gainᵀ·gain. The
    residuals r from the prior's predictions have the covariance V under the prior.
    """

    mean: Numbers  # (features, P, size)
    gain: Numbers  # (features, P, n, size)
    prior_covariances: Numbers | None  # (P, size, size)
    unexplained: Numbers  # (features, P): rᵀ·V⁻¹·r
    half_log_determinant: Numbers  # (features, P): ½·log |V|, without terms common to all priors

    @property
    def log_evidence(self) -> Numbers:
        """The log marginal likelihood under each prior, up to a constant: (features, P)."""
        return -0.5 * self.unexplained - self.half_log_determinant

    @property
    def covariance(self) -> Numbers:
        """The covariance under each prior: (features, P, size, size)."""
        product = self.gain.mT @ self.gain
        return product if self.prior_covariances is None else self.prior_covariances - product


def condition_on_sums(sums: ContextSums, means: Numbers, roots: Numbers) -> Posterior:
    """Condition P priors on the sums of contexts.

    The priors have the ``means`` (features, P, size) and the covariances root·rootᵀ with ``roots``
    (P, size, size).
    """
    linear = sums.linear[..., None, :]
    fitted = means @ sums.total  # the matrices are symmetric
    squared = sums.squares[..., None] - ((2 * linear - fitted) * means).sum(-1)
    return _condition(sums.total, linear - fitted, squared, means, roots)


def condition_on_rows(
    rows: Numbers, values: Numbers, weights: Numbers, means: Numbers, roots: Numbers
) -> Posterior:
    """Condition P priors on padded contexts.

    ``rows`` (features, shots, size) are the activations with a 1; ``values`` and ``weights``
    (features, shots) are the observations and their precisions, 0 where padded; ``means`` and ``roots`` are
    as in ``condition_on_sums``. With fewer shots than parameters, Woodbury's identity makes the systems
    shots × shots, at a lower cost.
    """
    residuals = values[..., None, :] - means @ rows.mT  # (features, P, shots)
    if rows.shape[-2] >= rows.shape[-1]:
        weighted = residuals * weights[..., None, :]
        squared = (weighted * residuals).sum(-1)
        return _condition(weighted_gram(rows, weights), weighted @ rows, squared, means, roots)
    scale = square_root(weights)
    scaled, covariances = rows * scale[..., None], roots @ roots.mT
    cross = multiply_each(scaled, covariances)  # (features, P, shots, size)
    lower = cholesky(add_identity(cross @ scaled[..., None, :, :].mT))
    solved = solve_lower(lower, append_column(cross, residuals * scale[..., None, :]))
    gain, half = solved[..., :-1], solved[..., -1]
    return Posterior(
        means + multiply_vectors(half, gain),
        gain,
        covariances,
        (half**2).sum(-1),
        half_log_determinant(lower),
    )


def _condition(
    total: Numbers, linear: Numbers, squared: Numbers, means: Numbers, roots: Numbers
) -> Posterior:
    """Condition on sums over residuals from the prior means, in coordinates that whiten the priors.

    ``total`` is (features, size, size), ``linear`` (features, P, size) and ``squared`` (features, P).
    """
    white = add_identity(roots.mT @ multiply_each(total, roots))
    # Double precision: with many observations the matrix is too ill-conditioned for single precision.
    lower = cholesky(to_double(white))
    right = append_column(to_double(roots.mT), multiply_vectors(linear, roots))
    solved = to_precision_of(solve_lower(lower, right), roots)
    gain, half = solved[..., :-1], solved[..., -1]
    mean = means + multiply_vectors(half, gain)
    return Posterior(mean, gain, None, squared - (half**2).sum(-1), half_log_determinant(lower))


def mix(posterior: Posterior, shares: Numbers | None, counts: Numbers) -> tuple[Numbers, Numbers]:
    """Return mean (features, size) and covariance (features, size, size) of a mixture of posteriors.

    ``shares`` (P,) are the prior probabilities of the P priors, None if P = 1. Their posterior probabilities
    follow from the evidence, tempered by the number of shots ``counts`` (features,).
    """
    mean, gain, covariances = posterior.mean, posterior.gain, posterior.prior_covariances
    if shares is None:
        return mean[..., 0, :], posterior.covariance[..., 0, :, :]
    weights = softmax(logarithm(shares) + posterior.log_evidence * temper(counts)[..., None])
    priors, rank, size = gain.shape[-3:]
    scaled = square_root(weights)[..., None, None] * gain
    scaled = scaled.reshape(*gain.shape[:-3], priors * rank, size)
    within = scaled.mT @ scaled
    if covariances is not None:
        prior = (weights @ covariances.reshape(-1, size * size)).reshape(*weights.shape[:-1], size, size)
        within = prior - within
    return mix_moments(weights, mean, within)


def mix_moments(weights: Numbers, means: Numbers, within: Numbers) -> tuple[Numbers, Numbers]:
    """Return mean (features, size) and covariance (features, size, size) of a mixture.

    The components have ``weights`` (features, P) and ``means`` (features, P, size), and ``within``
    (features, size, size) is the mean of their covariances.
    """
    mean = multiply_vectors(weights, means)
    between = square_root(weights)[..., None] * (means - mean[..., None, :])
    return mean, within + between.mT @ between


class Components(NamedTuple):
    """Posteriors of heads under J priors that differ in their means only."""

    means: Numbers  # (features, J, size)
    gain: Numbers  # (features, size, size): the covariance of each posterior is gainᵀ·gain
    log_evidence: Numbers  # (features, J): as in ``Posterior``


def condition_components(sums: ContextSums, means: Numbers, root: Numbers) -> Components:
    """Condition J priors with the ``means`` (J, size) and one covariance root·rootᵀ on the sums of contexts.

    All of them share one factorisation: with the gain g of any of them, the residual sums rⱼ = l − T·mⱼ of
    prior j move its mean by gᵀ·g·rⱼ, where l and T are the linear sums and the total.
    """
    centre = means[..., :1, :]
    first = condition_on_sums(sums, centre, root[None])
    gain, linear = first.gain[..., 0, :, :], sums.linear[..., None, :]
    residual = linear - means @ sums.total  # the matrices are symmetric
    half = residual @ gain.mT
    explained = ((linear + residual) * means).sum(-1) + (half**2).sum(-1)
    evidence = 0.5 * (explained - sums.squares[..., None]) - first.half_log_determinant
    return Components(means + half @ gain, gain, evidence)


def temper(counts: Numbers, half: float = TEMPER) -> Numbers:
    """Return an exponent below 1 for the evidence of few shots, which can fit any prior by chance.

    After ``half`` shots it is one half.
    """
    return counts / (counts + half)


def sum_contexts(cells: Cells, activation: Tensor, weights: Tensor) -> ContextSums:
    """Compute the sums over the contexts of features in double precision.

    ``cells`` has one line per feature and indexes rows of ``activation`` (rows, size − 1); ``weights`` (n,)
    are the precisions of the observations. A single feature, or features of similar shots in a padded block,
    use matrix products, which are faster than outer products of each observation.
    """
    values, counts = cells.values.double(), cells.weighted_counts.double()
    if len(cells) == 1:
        total, linear = _sum_one_context(cells, activation, weights)
        return ContextSums(counts, total[None], linear[None], (weights * values**2).sum()[None])
    if len(cells) and int(cells.counts.max()) * len(cells) <= _MAX_PADDING * len(weights):
        rows = pad_rows(activation, cells).double()
        return sum_block(rows, pad(values, cells), pad(weights, cells), counts)
    rows = append_one(activation.index_select(0, cells.index)).double()
    linear = rows * (weights * values)[:, None]
    terms = torch.cat(
        [outer_products(rows) * weights[:, None], linear, (weights * values**2)[:, None]], dim=1
    )
    return unpack_sums(torch.cat([counts[:, None], segment_sum(terms, cells.indptr)], 1), rows.shape[1])


def sum_block(rows: Tensor, values: Tensor, weights: Tensor, counts: Tensor) -> ContextSums:
    """Compute the sums over padded contexts: ``rows`` (features, shots, size), the others without size."""
    weighted = rows * weights[:, :, None]
    linear = (values[:, None] @ weighted)[:, 0]
    return ContextSums(counts, weighted.mT @ rows, linear, (weights * values**2).sum(1))


def _sum_one_context(cells: Cells, activation: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Compute total (size, size) and linear sums (size,) of one context, in blocks that fit in memory."""
    size = activation.shape[1] + 1
    total, linear = weights.new_zeros(size, size), weights.new_zeros(size)
    for part in row_slices(len(weights), 32 * size):
        rows = append_one(activation.index_select(0, cells.index[part])).double()
        weighted = weights[part, None] * rows
        total, linear = total + weighted.T @ rows, linear + cells.values[part].double() @ weighted
    return total, linear
