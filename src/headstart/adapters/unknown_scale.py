"""Infer centre and scale of a new real feature together with its head.

Known features come standardised, a new one in units that all share. Its values are

    x_i = c + s·(w·d_i + e_i),   c ~ N(μ, ρ²·s²),   s² ~ scaled inverse χ²(ν₀, s₀²),   w ~ N(m, C),

with w and e as standardised features have them. With w ~ N(0, C + m·mᵀ) instead this is conjugate: s² given
the observations is again an inverse χ². Only sums over observations are needed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from headstart.core.types import Scales
from headstart.linalg.gaussian import ContextSums, sums_over, tempering
from headstart.linalg.packed import solve
from headstart.linalg.ragged import pad
from headstart.table.cells import Cells

_MIN_FREEDOM, _MAX_FREEDOM = 0.05, 50.0

_PARTS, _MIN_FEATURES = 6, 5  # known features are parted by scale, at least so many in each part

_LEVELS = 5  # of noise

_MIN_DISTANCE = 0.05

_BUDGET = 1 << 20  # numbers in the matrices of all parts of features that are computed together


class _Parts(NamedTuple):
    """What each part makes of each feature."""

    evidence: Tensor  # (features, parts): logarithms
    square: Tensor  # (features, parts): s²
    mean: Tensor  # (features, parts, size)
    covariance: Tensor  # (features, parts, size, size), in units of s²
    expected_square: Tensor  # (features, parts): E[s²]


class ScalePrior(nn.Module):
    """What is expected of a feature's centre, scale and noise: one of several parts, weighed by evidence.

    Scales, and how far centres lie from the middle in units of them, may differ by orders of magnitude.
    So known features are parted by scale, then by how far their centre lies, and each part has its own
    ν₀, s₀² and ρ²; a last part lets through what is unlike all of them. Besides, features differ in how
    noisy they are relative to the usual: in a few levels.
    """

    def __init__(self, scales: Scales, features: int) -> None:
        super().__init__()
        parts = 2 * _part_count(len(scales.centre)) + 1
        levels = _level_count(features)
        for name, size in (("reach", parts), ("share", parts), ("freedom", parts), ("square", parts)):
            self.register_buffer(name, torch.ones(size, dtype=torch.float64))
        for name in ("level", "level_share"):
            self.register_buffer(name, torch.ones(levels, dtype=torch.float64))
        self.centre: Tensor  # μ
        self.register_buffer("centre", torch.zeros((), dtype=torch.float64))
        self.reach: Tensor  # (parts,): ρ²
        self.share: Tensor  # (parts,): of the known features
        self.freedom: Tensor  # (parts,): ν₀
        self.square: Tensor  # (parts,): s₀²
        self.level: Tensor  # (levels,): noise relative to the usual
        self.level_share: Tensor  # (levels,): of the known features

    def prepare(self, scales: Scales, noise: Tensor | None) -> None:
        """Match the known features; ``noise`` (features,) is theirs relative to the usual, if known.

        In every part the mean and variance of log s² and the distance of centres are matched.
        """
        centre, scale = scales.centre.double(), scales.scale.double().clamp(min=1e-30)
        self.centre.copy_(_weighted_median(centre, 1 / scale))
        logarithms = 2 * scale.log()
        distance = (((centre - self.centre) / scale) ** 2).clamp(min=_MIN_DISTANCE)
        parts = []
        for part in torch.argsort(logarithms).tensor_split(_part_count(len(scale))):
            freedom = _matching_freedom(logarithms[part].var(correction=0) + 0.1)
            square = (logarithms[part].mean() - (freedom / 2).log() + torch.digamma(freedom / 2)).exp()
            for half in part[torch.argsort(distance[part])].tensor_split(2):
                parts.append(torch.stack([distance[half].mean(), torch.tensor(len(half)), freedom, square]))
        unlike = [100 * distance.max(), torch.tensor(1.0), torch.tensor(_MIN_FREEDOM), scale.min() ** 2]
        every = torch.stack([*parts, torch.stack([number.double() for number in unlike])])
        for name, column in zip(("reach", "share", "freedom", "square"), every.T, strict=True):
            getattr(self, name).copy_(column)
        self.share /= self.share.sum()
        if noise is not None:
            groups = torch.argsort(noise).tensor_split(len(self.level))
            self.level.copy_(torch.stack([noise[group].double().log().mean().exp() for group in groups]))
            self.level_share.copy_(torch.tensor([len(group) / len(noise) for group in groups]))

    def posterior(
        self, sums: ContextSums, means: Tensor, covariance: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (features, size) and covariance of heads (s·w, c − μ), and the noise relative to the usual.

        ``means`` (features, size − 1) are m, ``covariance`` is C.
        """
        most = max(1, _BUDGET // (len(self.level) * len(self.reach) * sums.total[:1].numel()))
        parts = [
            self._posterior(ContextSums(*(each[at] for each in sums)), means[at], covariance)
            for at in torch.split(torch.arange(len(means)), most)
        ]
        mean, spread, noise = (torch.cat(each) for each in zip(*parts, strict=True))
        return mean, spread, noise

    def _posterior(
        self, sums: ContextSums, means: Tensor, covariance: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        counts = sums.counts
        parts = [self._given(_scaled(sums, level), means, covariance) for level in self.level]
        evidence = torch.cat(
            [
                part.evidence + share.log() - counts[:, None] / 2 * level.log()
                for part, share, level in zip(parts, self.level_share, self.level, strict=True)
            ],
            dim=1,
        )
        evidence = evidence * tempering(counts)[:, None]
        square, mean, spread, expected = (torch.cat([part[i] for part in parts], dim=1) for i in range(1, 5))
        weights = torch.softmax(evidence, dim=1)
        # Errors count in units of a feature's own scale: the smaller it may be, the more an error costs.
        costs = torch.softmax(evidence - square.log(), dim=1)
        middle = (costs[:, :, None] * mean).sum(1)
        apart = mean - middle[:, None]
        spread = spread * expected[:, :, None, None] + apart[..., :, None] * apart[..., None, :]
        noise = expected * torch.repeat_interleave(self.level, len(self.reach))
        return middle, (weights[:, :, None, None] * spread).sum(1), (weights * noise).sum(1)

    def _given(self, sums: ContextSums, means: Tensor, covariance: Tensor) -> _Parts:
        loose = self._precision(torch.linalg.inv(covariance + means[:, :, None] * means[:, None, :]))
        lower = torch.linalg.cholesky(sums.total[:, None] + loose)
        explained = torch.linalg.solve_triangular(lower, sums.linear[:, None, :, None], upper=False)[..., 0]
        unexplained = (sums.squares[:, None] - (explained**2).sum(-1)).clamp(min=0)
        freedom = self.freedom + sums.counts[:, None]
        square = (self.freedom * self.square + unexplained) / freedom
        evidence = (
            self.evidence_of(freedom, square)
            - 0.5 * self.reach.log()
            - lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        )
        tight = self._precision(torch.linalg.inv(covariance)[None])
        shifted = torch.cat([means, means.new_zeros(len(means), 1)], 1)[:, None]
        shifted = shifted * shrinkage_scale(freedom, square)[:, :, None]
        shifted[:, -1] = 0.0  # of a feature that is unlike all others no pattern is known beforehand
        precision = sums.total[:, None] + tight
        linear = sums.linear[:, None] + (tight @ shifted[..., None])[..., 0]
        mean, spread = solve(precision.flatten(0, 1), linear.flatten(0, 1))
        expected = self.expected_square(freedom, square)
        return _Parts(evidence, square, mean.view(shifted.shape), spread.view(precision.shape), expected)

    def evidence_of(self, freedom: Tensor, square: Tensor) -> Tensor:
        """The logarithm of what the scale contributes to the evidence of each part: (…, parts)."""
        return (
            self.share.log()
            - freedom / 2 * (freedom * square / 2).log()
            + torch.lgamma(freedom / 2)
            + self.freedom / 2 * (self.freedom * self.square / 2).log()
            - torch.lgamma(self.freedom / 2)
        )

    @staticmethod
    def expected_square(freedom: Tensor, square: Tensor) -> Tensor:
        """E[s²], or three times the square where so few degrees of freedom give none worth naming."""
        return square * torch.where(freedom > 3, freedom / (freedom - 2).clamp(min=1), 3.0)

    def _precision(self, of_weights: Tensor) -> Tensor:
        """The prior precision of (w, c) in units of s, for each part: (features or 1, parts, size, size)."""
        size = of_weights.shape[-1] + 1
        precision = of_weights.new_zeros(len(of_weights), len(self.reach), size, size)
        precision[:, :, :-1, :-1] = of_weights[:, None]
        precision[:, :, -1, -1] = 1 / self.reach
        return precision


def _part_count(features: int) -> int:
    return max(1, min(_PARTS, features // _MIN_FEATURES))


def _level_count(features: int) -> int:
    return max(1, min(_LEVELS, features // _MIN_FEATURES))


def _scaled(sums: ContextSums, level: Tensor) -> ContextSums:
    """The sums with observations so many times as noisy."""
    return ContextSums(sums.counts, sums.total / level, sums.linear / level, sums.squares / level)


def _weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """The point with the least sum of weighted distances."""
    order = torch.argsort(values)
    running = weights[order].cumsum(0)
    return values[order][int(torch.searchsorted(running, running[-1] / 2).clamp(max=len(values) - 1))]


def _matching_freedom(variance: Tensor) -> Tensor:
    """The ν with trigamma(ν / 2) = variance, by bisection in log ν."""
    low, high = (torch.tensor(end, dtype=torch.float64).log() for end in (_MIN_FREEDOM, _MAX_FREEDOM))
    for _ in range(60):
        middle = (low + high) / 2
        larger = torch.polygamma(1, middle.exp() / 2) > variance
        low, high = torch.where(larger, middle, low), torch.where(larger, high, middle)
    return ((low + high) / 2).exp()


def shrinkage_scale(freedom: Tensor, square: Tensor) -> Tensor:
    """E[1/s] / E[1/s²]: the multiple of a predicted pattern with the least error in units of s."""
    half = freedom / 2
    return (square / half).sqrt() * (torch.lgamma(half + 0.5) - torch.lgamma(half)).exp()


class PaddedContexts(NamedTuple):
    """Contexts of features, padded with zeros."""

    rows: Tensor  # (features, shots, size − 1): activations
    values: Tensor  # (features, shots), from the centre of the prior
    weights: Tensor  # (features, shots)
    counts: Tensor  # (features,): how many observations there are, by what they count


class _Basis(NamedTuple):
    """What all parts have in common, in the basis U; levels come second."""

    back: Tensor  # (features, size − 1, shots): C·Aᵀ·U, which leads from the basis to weights
    determinant: Tensor  # (features, levels): ½·log |1 + A·C·Aᵀ / l|
    diagonal: Tensor  # (features, levels, shots): D
    ones: Tensor  # (features, shots): u = Uᵀ·s
    pattern: Tensor  # (features, shots): a = Uᵀ·A·m, what the predicted pattern says of the values
    middle: Tensor  # (features, 1): the mean value, taken apart so that it costs no digits
    rest: Tensor  # (features, shots): e = Uᵀ·(y − middle·s)


def found_scales(
    prior: ScalePrior, cells: Cells, activation: Tensor, weights: Tensor, means: Tensor, covariance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and covariance of heads and their noise, by whichever systems are smaller.

    ``cells`` has one line per feature and points at rows of ``activation`` (rows, size − 1); ``weights`` (n,)
    are those of the observations, ``means`` (features, size − 1) are m and ``covariance`` is C.
    """
    if int(cells.counts.max()) > activation.shape[1]:
        return prior.posterior(sums_over(cells, activation, weights), means, covariance)
    rows = pad(activation.index_select(0, cells.index).double(), cells)
    counts = cells.weighted_counts.double()
    contexts = PaddedContexts(rows, pad(cells.values, cells), pad(weights, cells), counts)
    return few_posterior(prior, contexts, means, covariance)


def few_posterior(
    prior: ScalePrior, contexts: PaddedContexts, means: Tensor, covariance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and covariance of heads and their noise, as ``ScalePrior.posterior`` has them.

    ``means`` (features, size − 1) are m, ``covariance`` (size − 1, size − 1) is C.
    """
    basis = _basis(prior, contexts, means, covariance)
    diagonal, ones = basis.diagonal, basis.ones[:, None]
    far = diagonal * ones  # D·u: (features, levels, shots)

    def shaped(numbers: Tensor) -> Tensor:  # to (features, levels, parts)
        return numbers.sum(-1)[..., None]

    # Scalars of each level and part: uᵀDu, aᵀDa, uᵀDa, uᵀDe, aᵀDe, eᵀDe, and 1 + ρ²·uᵀDu.
    pattern, rest = basis.pattern[:, None], basis.rest[:, None]
    uu, ua, ue = (shaped(far * each) for each in (ones, pattern, rest))
    aa, ae, ee = (shaped(diagonal * each) for each in (pattern**2, pattern * rest, rest**2))
    reach, middle = prior.reach, basis.middle[:, :, None]
    grown = 1 + reach * uu
    spread_of_centre = reach / grown  # g: M⁻¹ = D − g·D·u·uᵀ·D
    # yᵀM⁻¹y, aᵀM⁻¹y and aᵀM⁻¹a, of y = middle·u + e.
    values = (middle**2 * uu + 2 * middle * ue) / grown + ee - spread_of_centre * ue**2
    both = middle * ua / grown + ae - spread_of_centre * ua * ue
    alike = 1 + aa - spread_of_centre * ua**2
    unexplained = (values - both**2 / alike).clamp(min=0)
    freedom = prior.freedom + contexts.counts[:, None, None]
    square = (prior.freedom * prior.square + unexplained) / freedom
    determinant = basis.determinant[..., None] + 0.5 * (grown.log() + alike.log())
    evidence = prior.evidence_of(freedom, square) - determinant
    evidence = (
        evidence + (prior.level_share.log() - contexts.counts[:, None] / 2 * prior.level.log())[..., None]
    )
    evidence = (evidence * tempering(contexts.counts)[:, None, None]).flatten(1)
    weights = torch.softmax(evidence, dim=1)
    costs = torch.softmax(evidence - square.flatten(1).log(), dim=1)
    expected = prior.expected_square(freedom, square)
    noise = (weights * (expected * prior.level[:, None]).flatten(1)).sum(1)

    # The mean of a part is m·κ + back·z of the weights, and c of the centre: (κ, z, c) of each.
    kappa = shrinkage_scale(freedom, square) * (torch.arange(len(reach)) < len(reach) - 1)
    pulled = (ue - kappa * ua + middle * uu) / grown  # uᵀM⁻¹ of what the pattern leaves to explain
    beside = middle - reach * pulled  # of D·u, beside D·(e − κ·a)
    z = diagonal[:, :, None] * (rest[:, :, None] - kappa[..., None] * pattern[:, :, None])
    z = z + beside[..., None] * far[:, :, None]
    parts = torch.cat([kappa[..., None], z, (reach * pulled)[..., None]], dim=-1).flatten(1, 2)
    mean = (costs[:, None] @ parts)[:, 0]
    apart = (parts - mean[:, None]) * weights.sqrt()[:, :, None]
    inner = apart.mT @ apart
    share = weights.view(expected.shape) * expected
    _add_spread(inner, share, spread_of_centre, diagonal, far)
    outer = torch.zeros(len(means), means.shape[1] + 1, parts.shape[2], dtype=means.dtype)
    outer[:, :-1, 0], outer[:, :-1, 1:-1], outer[:, -1, -1] = means, basis.back, 1.0
    spread = outer @ inner @ outer.mT
    spread[:, :-1, :-1] += share.sum((1, 2))[:, None, None] * covariance
    return (outer @ mean[:, :, None])[:, :, 0], spread, noise


def _basis(prior: ScalePrior, contexts: PaddedContexts, means: Tensor, covariance: Tensor) -> _Basis:
    scale = contexts.weights.sqrt()
    rows = contexts.rows * scale[:, :, None]
    back = covariance @ rows.mT
    spread, turn = torch.linalg.eigh(rows @ back)
    spread = spread.clamp(min=0)[:, None]
    middle = contexts.values.sum(1, keepdim=True) / (scale > 0).sum(1, keepdim=True).clamp(min=1)
    level = prior.level[:, None]

    def turned(numbers: Tensor) -> Tensor:
        product: Tensor = numbers[:, None] @ turn
        return product[:, 0]

    return _Basis(
        back @ turn,
        0.5 * torch.log1p(spread / level).sum(-1),
        1 / (spread + level),
        turned(scale),
        turned((rows @ means[:, :, None])[:, :, 0]),
        middle,
        turned(scale * (contexts.values - middle)),
    )


def _add_spread(
    inner: Tensor, share: Tensor, spread_of_centre: Tensor, diagonal: Tensor, far: Tensor
) -> None:
    """Add the covariances of all parts, each times its ``share``, in the coordinates (κ, z, c).

    That of a part is C − C·Aᵀ·M⁻¹·A·C of the weights, ρ² / (1 + ρ²·uᵀDu) of the centre, and
    −C·Aᵀ·D·u times this between them; C itself is not in these coordinates.
    """
    centre = (share * spread_of_centre).sum(2)  # (features, levels)
    known = inner[:, 1:-1, 1:-1]
    known += (far * centre[..., None]).mT @ far
    known.diagonal(dim1=-2, dim2=-1).sub_((share.sum(2)[..., None] * diagonal).sum(1))
    between = (centre[..., None] * far).sum(1)
    inner[:, 1:-1, -1] -= between
    inner[:, -1, 1:-1] -= between
    inner[:, -1, -1] += centre.sum(1)
