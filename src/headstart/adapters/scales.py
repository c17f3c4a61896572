"""Centre and scale of a new real feature, where every feature of a table has its own.

Known features come standardised, a new one in units that all share. Its values are

    x_i = c + s·(w·d_i + e_i),   c ~ N(μ, ρ²·s²),   s² ~ scaled inverse χ²(ν₀, s₀²),   w ~ N(m, C),

with w and e as standardised features have them. With w ~ N(0, C + m·mᵀ) instead this is conjugate: s² given
the observations is again an inverse χ². Only sums over observations are needed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from headstart.adapters.posterior import ContextSums, tempering
from headstart.algebra.symmetric import solved
from headstart.core.knowledge import Scales

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
        shifted = shifted * cautious_scale(freedom, square)[:, :, None]
        shifted[:, -1] = 0.0  # of a feature that is unlike all others no pattern is known beforehand
        precision = sums.total[:, None] + tight
        linear = sums.linear[:, None] + (tight @ shifted[..., None])[..., 0]
        mean, spread = solved(precision.flatten(0, 1), linear.flatten(0, 1))
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


def cautious_scale(freedom: Tensor, square: Tensor) -> Tensor:
    """E[1/s] / E[1/s²]: the multiple of a predicted pattern with the least error in units of s."""
    half = freedom / 2
    return (square / half).sqrt() * (torch.lgamma(half + 0.5) - torch.lgamma(half)).exp()
