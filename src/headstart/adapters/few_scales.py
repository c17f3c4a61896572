"""``ScalePrior.posterior`` for contexts of fewer shots than a head has parameters.

All parts and levels of a ``ScalePrior`` differ only by the variance ρ² of the centre and by the level l of
noise. With X = [A, s] the activations and a 1, each times the root of its observation's weight, the
covariance of the values y of a context, in units of s², is

    M = l + A·C·Aᵀ + ρ²·s·sᵀ.

So one eigendecomposition A·C·Aᵀ = U·Λ·Uᵀ of shots × shots serves all of them: in its basis M⁻¹ is a diagonal
D = 1 / (Λ + l) and a matrix of rank one, where otherwise each part would need a factorisation of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headstart.adapters.posterior import tempering
from headstart.adapters.scales import ScalePrior, cautious_scale
from headstart.adapters.sums import sums_over
from headstart.algebra.padding import padded
from headstart.table.cells import Cells


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
    rows = padded(activation.index_select(0, cells.index).double(), cells)
    counts = cells.weighted_counts.double()
    contexts = PaddedContexts(rows, padded(cells.values, cells), padded(weights, cells), counts)
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
    kappa = cautious_scale(freedom, square) * (torch.arange(len(reach)) < len(reach) - 1)
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
