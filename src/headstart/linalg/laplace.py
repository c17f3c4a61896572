"""Compute posteriors behind the logistic link by Laplace's approximation.

As in ``posterior``, all work is done in whitened coordinates, θ = prior + root·t with t ~ N(0, I).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from headstart.linalg.packed import solve

_BOUNDED_STEPS, _NEWTON_STEPS = 4, 8

FEWEST_WEIGHT = 1e-7  # where all is certain, rounding must not leave a negative curvature


def classify(
    rows: Tensor,
    values: Tensor,
    weights: Tensor,
    squeeze: Tensor,
    prior: Tensor,
    root: Tensor,
    total: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """``regress`` for values in [0, 1] behind the logistic function: Laplace's approximation.

    Newton's method finds the mode, which is the only one. Its first steps take the curvature of
    Jaakkola and Jordan's bound, with which none goes too far: from afar Newton's own may never return.
    ``weights`` (features, shots) say how much an observation counts, ``squeeze`` by how much a row's
    own noise flattens its link. ``total`` adds up sums over several processes, each with a part of the shots.
    """
    squeezed = rows * squeeze[:, :, None]
    form = _OverShots if rows.shape[1] < rows.shape[2] and total is None else _OverHead
    system = form(squeezed @ root, (prior[:, None] @ squeezed.mT)[:, 0], values, weights)
    system.total = total or system.total
    if not rows.shape[1] and total is None:
        return prior, (root @ root.T).expand(len(prior), -1, -1)
    at = torch.zeros_like(system.start)
    # At the mode a Newton step does not depend on where it started, so the last two steps alone
    # carry the exact gradient: one for the mean, one for the covariance around it.
    with torch.no_grad():
        for turn in range(_BOUNDED_STEPS + _NEWTON_STEPS - 2):
            at = system.stepped(at, bounded=turn < _BOUNDED_STEPS)
    before = system.stepped(at, bounded=False)
    return system.posterior(before, prior, root)


class _Newton:
    """Newton's method for the heads of features, t in θ = prior + root·t."""

    def __init__(self, white: Tensor, prior_output: Tensor, values: Tensor, weights: Tensor) -> None:
        self.white, self.prior_output, self.values, self.weights = white, prior_output, values, weights
        self.total: Callable[[Tensor], Tensor] = lambda sums: sums

    def pulled(self, change: Tensor, *, bounded: bool) -> tuple[Tensor, Tensor]:
        """How far values are from what the outputs say, weighted, and the slopes of the link there."""
        output = self.prior_output + change
        chance = torch.sigmoid(output)
        slope = _bounding_slope(output) if bounded else chance * (1 - chance)
        return self.weights * (self.values - chance), slope.clamp(min=FEWEST_WEIGHT)


class _OverHead(_Newton):
    """Steps of t itself (features, size), by systems of size × size."""

    @property
    def start(self) -> Tensor:
        """Any tensor of the shape of what is stepped."""
        return self.white.new_zeros(len(self.white), self.white.shape[2])

    def stepped(self, at: Tensor, *, bounded: bool) -> Tensor:
        """The next t."""
        return self._solved(at, bounded=bounded)[0]

    def posterior(self, at: Tensor, prior: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of heads after a last step."""
        mean, covariance = self._solved(at, bounded=False)
        return prior + mean @ root.T, root @ covariance @ root.T

    def _solved(self, at: Tensor, *, bounded: bool) -> tuple[Tensor, Tensor]:
        white = self.white
        pull, slope = self.pulled((at[:, None] @ white.mT)[:, 0], bounded=bounded)
        unit = torch.eye(white.shape[2], dtype=white.dtype)
        precision = unit + self.total((white * (self.weights * slope)[:, :, None]).mT @ white)
        step, covariance = solve(precision, self.total((pull[:, None, :] @ white)[:, 0]) - at)
        return at + step, covariance


class _OverShots(_Newton):
    """The same steps of a (features, shots) in t = whiteᵀ·a, by systems of shots × shots: far smaller ones.

    With B = 1 + √c·K·√c, K = white·whiteᵀ, c the curvature and b = c·K·a + pull, a step leads to
    a = b − √c·B⁻¹·√c·K·b.
    """

    def __init__(self, white: Tensor, prior_output: Tensor, values: Tensor, weights: Tensor) -> None:
        super().__init__(white, *(each.double() for each in (prior_output, values, weights)))
        self.kernel = (white @ white.mT).double()

    @property
    def start(self) -> Tensor:
        """Any tensor of the shape of what is stepped."""
        return self.values

    def stepped(self, at: Tensor, *, bounded: bool) -> Tensor:
        """The next a."""
        return self._solved(at, bounded=bounded)[0]

    def posterior(self, at: Tensor, prior: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of heads after a last step."""
        at, scale, lower = (each.to(root.dtype) for each in self._solved(at, bounded=False))
        far = self.white @ root.T
        gain = torch.linalg.solve_triangular(lower, far * scale[:, :, None], upper=False)
        return prior + (at[:, None, :] @ far)[:, 0], root @ root.T - gain.mT @ gain

    def _solved(self, at: Tensor, *, bounded: bool) -> tuple[Tensor, Tensor, Tensor]:
        change = (at[:, None] @ self.kernel)[:, 0]  # from the left, which is far faster
        pull, slope = self.pulled(change, bounded=bounded)
        scale = self.weights.sqrt() * slope.sqrt()  # apart: the root of a 0 of padding has no gradient
        scaled = scale[:, :, None] * self.kernel
        lower = torch.linalg.cholesky(
            torch.eye(len(scale[0]), dtype=scale.dtype) + scaled * scale[:, None, :]
        )
        wanted = scale**2 * change + pull
        right = (wanted[:, None] @ scaled.mT).mT
        held = torch.cholesky_solve(right, lower)[:, :, 0]
        return wanted - scale * held, scale, lower


def _bounding_slope(output: Tensor) -> Tensor:
    """The curvature of the quadratic that touches the logistic log-likelihood from below at ±output."""
    size = output.abs().clamp(min=1e-3)
    return torch.tanh(size / 2) / (2 * size)


def probit_scale(noise: Tensor) -> Tensor:
    """By how much Gaussian noise of this variance flattens a logistic link."""
    return torch.rsqrt(1 + math.pi / 8 * noise)
