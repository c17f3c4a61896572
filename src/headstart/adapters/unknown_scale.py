"""Joint inference of the centre, the scale and the head of a new real feature.

Known features are standardised. The values of a new feature are in units common to all features, with the
model

    x_i = c + s·(w·d_i + e_i),   c ~ N(μ, ρ²·s²),   s² ~ scaled inverse χ²(ν₀, s₀²),   w ~ N(m, C),

where w and the noise e are those of a standardised feature. The prior w ~ N(0, C + m·mᵀ) would be conjugate:
the posterior of s² is again an inverse χ² distribution. So s² is inferred under the conjugate prior, and
then the head, given s², under N(m, C): an approximation.

The prior of c and s² is a mixture of several such priors (its ``parts``), with several levels of noise. Let
A be the rows √weight·d and A·C·Aᵀ = U·S·Uᵀ. In the basis U the covariance of the values is diagonal, up to
terms of rank one, for all parts and levels. U comes from the rows if there are few, otherwise from sums over
them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from headstart.core.types import Scales
from headstart.linalg.gaussian import ContextSums, sum_contexts, temper
from headstart.linalg.ragged import pad
from headstart.table.cells import Cells

_MIN_FREEDOM, _MAX_FREEDOM = 0.05, 50.0  # limits of ν₀
_PARTS, _MIN_FEATURES = 6, 5  # groups of known features by scale, and the least number of features in each
_LEVELS = 5  # levels of noise
_MIN_DISTANCE = 0.05  # lower limit of ρ²
_NEGLIGIBLE = 1e-13  # relative to the largest eigenvalue or to the squared length


class ScaleBasis(NamedTuple):
    """Contexts of features in the basis U, which has k vectors."""

    counts: Tensor  # (features,): the number of observations, or the sum of their weights
    eigenvalues: Tensor  # (features, k): S
    to_weights: Tensor  # (features, size − 1, k): C·Aᵀ·U, from the basis to the weights of heads
    ones: Tensor  # (features, k): u = Uᵀ·s with s = √weight
    predicted: Tensor  # (features, k): a = Uᵀ·A·m, the values that the prior mean predicts
    offset: Tensor  # (features, 1): a mean value, subtracted for numerical precision
    rest: Tensor  # (features, k): e = Uᵀ·(y − offset·s) with y = √weight·values


def basis_from_rows(
    rows: Tensor, values: Tensor, weights: Tensor, counts: Tensor, means: Tensor, covariance: Tensor
) -> ScaleBasis:
    """Diagonalise A·C·Aᵀ of padded contexts: k is the number of shots.

    ``rows`` (features, shots, size − 1) are activations; ``values``, relative to the centre of the prior, and
    ``weights`` (features, shots) are 0 where padded; ``counts`` (features,) become the field of
    ``ScaleBasis``. ``means`` (features, size − 1) are m and ``covariance`` (size − 1, size − 1) is C.
    """
    scale = weights.sqrt()
    rows = rows * scale[:, :, None]
    to_weights = covariance @ rows.mT
    eigenvalues, vectors = torch.linalg.eigh(rows @ to_weights)
    offset = values.sum(1, keepdim=True) / (scale > 0).sum(1, keepdim=True).clamp(min=1)
    predicted = (rows @ means[:, :, None])[:, :, 0]
    ones, predicted, rest = (
        (numbers[:, None] @ vectors)[:, 0] for numbers in (scale, predicted, scale * (values - offset))
    )
    return ScaleBasis(counts, eigenvalues.clamp(min=0), to_weights @ vectors, ones, predicted, offset, rest)


def basis_from_sums(sums: ContextSums, means: Tensor, covariance: Tensor) -> ScaleBasis:
    """Diagonalise Rᵀ·Aᵀ·A·R with C = R·Rᵀ, which has the same non-zero eigenvalues as A·C·Aᵀ.

    Its eigenvectors V give U = A·R·V·S^(−½). Two further vectors of eigenvalue 0 span the parts of s and
    y − offset·s that are orthogonal to A. So k is size + 1 for any number of shots.
    """
    root = torch.linalg.cholesky(covariance)
    inner, ones_linear, ones_squared = sums.total[:, :-1, :-1], sums.total[:, :-1, -1], sums.total[:, -1, -1]
    eigenvalues, vectors = torch.linalg.eigh(root.T @ inner @ root)
    largest = eigenvalues.amax(1, keepdim=True).clamp(min=1e-300)
    eigenvalues = torch.where(eigenvalues > _NEGLIGIBLE * largest, eigenvalues, 0.0)
    inverse = torch.where(eigenvalues > 0, eigenvalues.clamp(min=1e-300).rsqrt(), 0.0)
    rotated = root @ vectors
    offset = torch.where(ones_squared > 0, sums.linear[:, -1] / ones_squared.clamp(min=1e-300), 0.0)
    rest_linear = sums.linear[:, :-1] - offset[:, None] * ones_linear
    rest_squared = (sums.squares - offset * sums.linear[:, -1]).clamp(min=0)
    ones, predicted, rest = (
        inverse * (numbers[:, None] @ rotated)[:, 0]
        for numbers in (ones_linear, (inner @ means[:, :, None])[:, :, 0], rest_linear)
    )
    # Gram-Schmidt of the parts of s and rest orthogonal to A; s and rest are orthogonal to each other.
    ones_outside = (ones_squared - (ones**2).sum(1)).clamp(min=0)
    ones_outside = torch.where(ones_outside > _NEGLIGIBLE * ones_squared, ones_outside, 0.0).sqrt()
    along = -(ones * rest).sum(1) / ones_outside.clamp(min=1e-300)
    along = torch.where(ones_outside > 0, along, 0.0)
    across = (rest_squared - (rest**2).sum(1) - along**2).clamp(min=0).sqrt()
    zero = torch.zeros_like(across)

    def extend(numbers: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return torch.cat([numbers, first[:, None], second[:, None]], dim=1)

    to_weights = nn.functional.pad(rotated * eigenvalues.sqrt()[:, None], (0, 2))
    return ScaleBasis(
        sums.counts,
        extend(eigenvalues, zero, zero),
        to_weights,
        extend(ones, ones_outside, zero),
        extend(predicted, zero, zero),
        offset[:, None],
        extend(rest, along, across),
    )


def infer_scales(
    prior: ScalePrior, cells: Cells, activation: Tensor, weights: Tensor, means: Tensor, covariance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``ScalePrior.posterior``: means, covariances and relative noise of heads.

    ``cells`` has one line per feature and indexes rows of ``activation`` (rows, size − 1); ``weights`` (n,)
    are the precisions of the observations, ``means`` (features, size − 1) are m and ``covariance`` is C.
    """
    if int(cells.counts.max()) > activation.shape[1]:
        basis = basis_from_sums(sum_contexts(cells, activation, weights), means, covariance)
    else:
        rows = pad(activation.index_select(0, cells.index).double(), cells)
        values, counts = pad(cells.values, cells), cells.weighted_counts.double()
        basis = basis_from_rows(rows, values, pad(weights, cells), counts, means, covariance)
    return prior.posterior(basis, means, covariance)


class ScalePrior(nn.Module):
    """Mixture prior of a feature's centre, scale and noise.

    Scales, and the distances |c − μ| / s of centres, can differ by orders of magnitude. Known features are
    therefore grouped by scale, then by distance, and each of these parts has its own ν₀, s₀² and ρ². The last
    part is vague, for features unlike all known ones. The noise of a feature, relative to the average, has
    one of a few levels.
    """

    def __init__(self, scales: Scales, features: int) -> None:
        super().__init__()
        parts = 2 * _group_count(len(scales.centre), _PARTS) + 1
        levels = _group_count(features, _LEVELS)
        for name, size in (
            ("centre_variance_ratio", parts),
            ("share", parts),
            ("freedom", parts),
            ("square", parts),
        ):
            self.register_buffer(name, torch.ones(size, dtype=torch.float64))
        for name in ("level", "level_share"):
            self.register_buffer(name, torch.ones(levels, dtype=torch.float64))
        self.centre: Tensor  # μ
        self.register_buffer("centre", torch.zeros((), dtype=torch.float64))
        self.centre_variance_ratio: Tensor  # (parts,): ρ²
        self.share: Tensor  # (parts,): fraction of the known features
        self.freedom: Tensor  # (parts,): ν₀
        self.square: Tensor  # (parts,): s₀²
        self.level: Tensor  # (levels,): noise relative to the average
        self.level_share: Tensor  # (levels,): fraction of the known features

    def prepare(self, scales: Scales, noise: Tensor | None) -> None:
        """Fit the mixture to known features, with ``noise`` (features,) relative to the average, if known.

        In each part, moment matching fits the mean and variance of log s² and the mean squared distance of
        centres.
        """
        centre, scale = scales.centre.double(), scales.scale.double().clamp(min=1e-30)
        self.centre.copy_(_weighted_median(centre, 1 / scale))
        logarithms = 2 * scale.log()
        distance = (((centre - self.centre) / scale) ** 2).clamp(min=_MIN_DISTANCE)
        parts = []
        for part in torch.argsort(logarithms).tensor_split(_group_count(len(scale), _PARTS)):
            freedom = _matching_freedom(logarithms[part].var(correction=0) + 0.1)
            square = (logarithms[part].mean() - (freedom / 2).log() + torch.digamma(freedom / 2)).exp()
            for half in part[torch.argsort(distance[part])].tensor_split(2):
                parts.append(torch.stack([distance[half].mean(), torch.tensor(len(half)), freedom, square]))
        vague = [100 * distance.max(), torch.tensor(1.0), torch.tensor(_MIN_FREEDOM), scale.min() ** 2]
        columns = torch.stack([*parts, torch.stack([number.double() for number in vague])]).T
        for name, column in zip(
            ("centre_variance_ratio", "share", "freedom", "square"), columns, strict=True
        ):
            getattr(self, name).copy_(column)
        self.share /= self.share.sum()
        if noise is not None:
            groups = torch.argsort(noise).tensor_split(len(self.level))
            self.level.copy_(torch.stack([noise[group].double().log().mean().exp() for group in groups]))
            self.level_share.copy_(torch.tensor([len(group) / len(noise) for group in groups]))

    def posterior(
        self, basis: ScaleBasis, means: Tensor, covariance: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean (features, size) and covariance of heads (s·w, c − μ), and their relative noise.

        ``basis`` contains the contexts, ``means`` (features, size − 1) are m and ``covariance`` is C.
        """
        # Tensors broadcast to (features, levels, parts, k).
        level, centre_variance_ratio = self.level[:, None], self.centre_variance_ratio
        # D: the inverse covariance of values in U, if c is known
        diagonal = 1 / (basis.eigenvalues[:, None] + level)
        ones, predicted, rest = basis.ones[:, None], basis.predicted[:, None], basis.rest[:, None]
        weighted_ones = diagonal * ones  # D·u

        def sum_basis(numbers: Tensor) -> Tensor:  # to (features, levels, 1)
            return numbers.sum(-1)[..., None]

        # uᵀDu, aᵀDu, eᵀDu, aᵀDa, aᵀDe and eᵀDe.
        uu, ua, ue = (sum_basis(weighted_ones * vector) for vector in (ones, predicted, rest))
        aa, ae, ee = (sum_basis(diagonal * product) for product in (predicted**2, predicted * rest, rest**2))
        offset = basis.offset[:, :, None]
        centre_determinant = 1 + centre_variance_ratio * uu
        # g: M⁻¹ = D − g·D·u·uᵀ·D, with the centre unknown
        centre_variance = centre_variance_ratio / centre_determinant
        # yᵀM⁻¹y, aᵀM⁻¹y and 1 + aᵀM⁻¹a, of y = offset·u + e.
        values_squared = (offset**2 * uu + 2 * offset * ue) / centre_determinant
        values_squared = values_squared + ee - centre_variance * ue**2
        values_along = offset * ua / centre_determinant + ae - centre_variance * ua * ue
        predicted_determinant = 1 + aa - centre_variance * ua**2
        unexplained = (values_squared - values_along**2 / predicted_determinant).clamp(min=0)
        counts = basis.counts[:, None, None]
        freedom = self.freedom + counts
        square = (self.freedom * self.square + unexplained) / freedom
        evidence = (
            self._scale_evidence(freedom, square)
            - 0.5 * torch.log1p(basis.eigenvalues[:, None] / level).sum(-1)[..., None]
            - 0.5 * (centre_determinant.log() + predicted_determinant.log())
            + self.level_share.log()[:, None]
            - counts / 2 * level.log()
        )
        evidence = (evidence * temper(counts)).flatten(1)
        weights = torch.softmax(evidence, dim=1)
        # The loss is in units of the feature's scale: an error costs more if the scale is small.
        costs = torch.softmax(evidence - square.flatten(1).log(), dim=1)
        expected = self._expected_square(freedom, square)
        noise = (weights * (expected * level).flatten(1)).sum(1)

        # Each part has the mean weights κ·m + to_weights·z and the mean centre c: coordinates (κ, z, c). The
        # vague last part has no prior mean.
        kappa = shrinkage_scale(freedom, square) * (
            torch.arange(len(centre_variance_ratio)) < len(centre_variance_ratio) - 1
        )
        residual = (ue - kappa * ua + offset * uu) / centre_determinant  # uᵀM⁻¹·(y − κ·a)
        z = diagonal[:, :, None] * (rest[:, :, None] - kappa[..., None] * predicted[:, :, None])
        z = z + (offset - centre_variance_ratio * residual)[..., None] * weighted_ones[:, :, None]
        parts = torch.cat(
            [kappa[..., None], z, (centre_variance_ratio * residual)[..., None]], dim=-1
        ).flatten(1, 2)
        mean = (costs[:, None] @ parts)[:, 0]
        between = (parts - mean[:, None]) * weights.sqrt()[:, :, None]
        inner = between.mT @ between
        share = weights.view(expected.shape) * expected
        _add_covariances(inner, share, centre_variance, diagonal, weighted_ones)
        outer = torch.zeros(len(means), means.shape[1] + 1, parts.shape[2], dtype=means.dtype)
        outer[:, :-1, 0], outer[:, :-1, 1:-1], outer[:, -1, -1] = means, basis.to_weights, 1.0
        head_covariance = outer @ inner @ outer.mT
        head_covariance[:, :-1, :-1] += share.sum((1, 2))[:, None, None] * covariance
        return (outer @ mean[:, :, None])[:, :, 0], head_covariance, noise

    def _scale_evidence(self, freedom: Tensor, square: Tensor) -> Tensor:
        """Return the terms of the log evidence that depend on the scale: (…, parts)."""
        return (
            self.share.log()
            - freedom / 2 * (freedom * square / 2).log()
            + torch.lgamma(freedom / 2)
            + self.freedom / 2 * (self.freedom * self.square / 2).log()
            - torch.lgamma(self.freedom / 2)
        )

    @staticmethod
    def _expected_square(freedom: Tensor, square: Tensor) -> Tensor:
        """Return E[s²], or 3·s₀² with too few degrees of freedom for a finite expectation."""
        return square * torch.where(freedom > 3, freedom / (freedom - 2).clamp(min=1), 3.0)


def _add_covariances(
    inner: Tensor, share: Tensor, centre_variance: Tensor, diagonal: Tensor, weighted_ones: Tensor
) -> None:
    """Add the covariances of all parts, each times its ``share``, to ``inner`` in the coordinates (κ, z, c).

    In a part the covariance of the weights is C − C·Aᵀ·M⁻¹·A·C, the variance of the centre is g = ρ² / (1 +
    ρ²·uᵀDu), and the covariance of both is −g·C·Aᵀ·D·u. The term C is not representable in these
    coordinates; the caller adds it.
    """
    centre = (share * centre_variance).sum(2)  # (features, levels)
    weight_block = inner[:, 1:-1, 1:-1]
    weight_block += (weighted_ones * centre[..., None]).mT @ weighted_ones
    weight_block.diagonal(dim1=-2, dim2=-1).sub_((share.sum(2)[..., None] * diagonal).sum(1))
    between = (centre[..., None] * weighted_ones).sum(1)
    inner[:, 1:-1, -1] -= between
    inner[:, -1, 1:-1] -= between
    inner[:, -1, -1] += centre.sum(1)


def shrinkage_scale(freedom: Tensor, square: Tensor) -> Tensor:
    """Return E[1/s] / E[1/s²], the factor of predicted values with the least expected error / s²."""
    half = freedom / 2
    return (square / half).sqrt() * (torch.lgamma(half + 0.5) - torch.lgamma(half)).exp()


def _group_count(features: int, most: int) -> int:
    """Return the number of groups with at least ``_MIN_FEATURES`` features each, up to ``most``."""
    return max(1, min(most, features // _MIN_FEATURES))


def _weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted median of ``values`` (n,)."""
    order = torch.argsort(values)
    running = weights[order].cumsum(0)
    return values[order][int(torch.searchsorted(running, running[-1] / 2).clamp(max=len(values) - 1))]


def _matching_freedom(variance: Tensor) -> Tensor:
    """Return the ν with trigamma(ν / 2) = variance, by bisection in log ν."""
    low, high = (torch.tensor(end, dtype=torch.float64).log() for end in (_MIN_FREEDOM, _MAX_FREEDOM))
    for _ in range(60):
        middle = (low + high) / 2
        larger = torch.polygamma(1, middle.exp() / 2) > variance
        low, high = torch.where(larger, middle, low), torch.where(larger, high, middle)
    return ((low + high) / 2).exp()
