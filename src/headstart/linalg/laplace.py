"""Compute posteriors of heads behind the logistic link by Laplace's approximation.

As in ``gaussian``, heads are computed in whitened coordinates, θ = prior + root·t with t ~ N(0, 1), and
tensors are batches while numpy arrays are one feature.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from headstart.linalg.array_ops import (
    Array,
    Numbers,
    add_identity,
    at_least,
    cholesky,
    cholesky_solve,
    jaakkola_slope,
    logistic,
    multiply_vectors,
    solve_lower,
    square_root,
    to_double,
    to_precision_of,
    weighted_gram,
)

_BOUNDED_STEPS = 4  # with the curvature of a bound, before Newton's own
_BATCH_STEPS = 12
_MAX_STEPS = 30  # of a single feature after the bounded ones
_TOLERANCE = 1e-11  # the length of a step, in standard deviations of the prior, at which it has converged
_MIN_SLOPE = 1e-7  # where all outputs are certain, rounding must not leave a negative curvature


def classify(
    rows: Numbers,
    values: Numbers,
    weights: Numbers,
    prior: Numbers,
    root: Numbers,
    *,
    start: Numbers | None = None,
    reduce: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Numbers, Numbers]:
    """Return mean (features, size) and covariance (features, size, size) of logistic heads.

    ``rows`` (features, shots, size) are the activations with a 1, scaled by ``probit_scale`` where a
    row's own noise flattens its link; ``values`` (features, shots) are in [0, 1] and ``weights`` multiply
    their log-likelihoods. The prior has the mean ``prior`` (features, size) and the covariance root·rootᵀ.

    Newton's method finds the mode, of which there is only one. Its first steps take the curvature of
    Jaakkola and Jordan's bound, which never overshoots: far from the mode Newton's own steps may diverge.
    A batch takes a fixed number of steps. A single feature stops at convergence, and may begin at
    ``start`` (size,), a head close to the mode. If each of several processes has a part of the shots,
    ``reduce`` adds gradient and curvature up over the processes.
    """
    prior_outputs = multiply_vectors(prior, rows.mT)
    if isinstance(rows, np.ndarray):
        newton = _NewtonOverHead(rows @ root, prior_outputs, values, weights)
        begin = None if start is None else solve_lower(root, start - prior)
        return _posterior_of_one(newton, begin, prior, root)
    if reduce is None and not rows.shape[1]:
        return prior, (root @ root.mT).expand(len(prior), -1, -1)
    system: _Newton
    if reduce is None and rows.shape[1] < rows.shape[2]:
        system, begin = _NewtonOverShots(rows @ root, prior_outputs, values, weights), values.double()
    else:
        system, begin = _NewtonOverHead(rows @ root, prior_outputs, values, weights, reduce), prior
    # At the mode a Newton step does not depend on where it started, so the last two steps alone
    # carry the exact gradient: one for the mean, one for the covariance around it.
    with torch.no_grad():
        point, _ = system.iterate(torch.zeros_like(begin), _BOUNDED_STEPS, _BATCH_STEPS - 2)
    point, _ = system.step(point, bounded=False)
    point, factor = system.step(point, bounded=False)
    return system.posterior(point, factor, prior, root)


def _posterior_of_one(
    newton: _NewtonOverHead, start: Array | None, prior: Array, root: Array
) -> tuple[Array, Array]:
    """Converge from ``start`` or, where that fails, from the prior with more and more bounded steps."""
    attempts = [(np.zeros_like(prior), bounded) for bounded in (_BOUNDED_STEPS, 4 * _BOUNDED_STEPS)]
    if start is not None:
        attempts.insert(0, (start, 0))
    for begin, bounded in attempts:
        point, factor = newton.iterate(begin, bounded, bounded + _MAX_STEPS, _TOLERANCE)
        if factor is not None:
            return newton.posterior(point, factor, prior, root)
    raise ArithmeticError("Newton's method does not converge")


class _Newton:
    """Newton's method for the mode of logistic heads; subclasses differ in the systems they solve."""

    def __init__(
        self,
        white: Numbers,
        prior_outputs: Numbers,
        values: Numbers,
        weights: Numbers,
        reduce: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """``white`` (features, shots, size) are rows·root, ``prior_outputs`` (features, shots) rows·prior."""
        self.white, self.prior_outputs, self.values, self.weights = white, prior_outputs, values, weights
        self.reduce = reduce

    def step(self, point: Numbers, *, bounded: bool) -> tuple[Numbers, tuple[Numbers, ...]]:
        """Return the next point, and a factor of the curvature at the present one."""
        raise NotImplementedError

    def posterior(
        self, point: Numbers, factor: tuple[Numbers, ...], prior: Numbers, root: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Return mean and covariance of heads from the mode and the factor of its curvature."""
        raise NotImplementedError

    def iterate(
        self, point: Numbers, bounded: int, steps: int, tolerance: float | None = None
    ) -> tuple[Numbers, tuple[Numbers, ...] | None]:
        """Take up to ``steps`` steps, the first ``bounded`` of them with the curvature of the bound.

        With a ``tolerance``, stop at convergence, and return no factor if it is not reached.
        """
        last, factor = math.inf, None
        for turn in range(steps):
            before = point
            point, factor = self.step(point, bounded=turn < bounded)
            if tolerance is None:
                continue
            length = float(abs(point - before).max())
            if length <= tolerance * (1 + float(abs(point).max())):
                return point, factor
            if turn > bounded and not length <= 2 * last:  # it diverges
                return point, None
            last = length
        return point, factor if tolerance is None else None

    def residuals_and_slopes(self, change: Numbers, *, bounded: bool) -> tuple[Numbers, Numbers]:
        """Return the weighted residuals, and the slopes of the link, at prior outputs plus ``change``."""
        outputs = self.prior_outputs + change
        probabilities = logistic(outputs)
        slopes = jaakkola_slope(outputs) if bounded else probabilities * (1 - probabilities)
        return self.weights * (self.values - probabilities), at_least(slopes, _MIN_SLOPE)


class _NewtonOverHead(_Newton):
    """Steps of t itself (features, size), by systems of size × size."""

    def step(self, point: Numbers, *, bounded: bool) -> tuple[Numbers, tuple[Numbers, ...]]:
        white = self.white
        residuals, slopes = self.residuals_and_slopes(multiply_vectors(point, white.mT), bounded=bounded)
        curvature, gradient = weighted_gram(white, self.weights * slopes), multiply_vectors(residuals, white)
        if self.reduce is not None:
            curvature, gradient = self.reduce(curvature), self.reduce(gradient)
        lower = cholesky(to_double(add_identity(curvature)))
        step = cholesky_solve(lower, to_double(gradient - point))
        return point + to_precision_of(step, white), (lower,)

    def posterior(
        self, point: Numbers, factor: tuple[Numbers, ...], prior: Numbers, root: Numbers
    ) -> tuple[Numbers, Numbers]:
        (lower,) = factor
        gain = to_precision_of(solve_lower(lower, to_double(root.mT)), root)
        return prior + multiply_vectors(point, root.mT), gain.mT @ gain


class _NewtonOverShots(_Newton):
    """The same steps of a (features, shots) in t = whiteᵀ·a, by systems of shots × shots.

    These are far smaller if there are fewer shots than parameters. With K = white·whiteᵀ, c the curvature,
    B = 1 + √c·K·√c and b = c·K·a + residuals, a step leads to a = b − √c·B⁻¹·√c·K·b.
    """

    def __init__(self, white: Numbers, prior_outputs: Numbers, values: Numbers, weights: Numbers) -> None:
        super().__init__(white, to_double(prior_outputs), to_double(values), to_double(weights))
        self.kernel = to_double(white @ white.mT)

    def step(self, point: Numbers, *, bounded: bool) -> tuple[Numbers, tuple[Numbers, ...]]:
        change = multiply_vectors(point, self.kernel)
        residuals, slopes = self.residuals_and_slopes(change, bounded=bounded)
        # Two roots, not the root of the product: padding has weight 0, where the root has no gradient.
        scale = square_root(self.weights) * square_root(slopes)
        scaled = scale[..., None] * self.kernel
        lower = cholesky(add_identity(scaled * scale[..., None, :]))
        target = scale**2 * change + residuals
        solved = cholesky_solve(lower, multiply_vectors(target, scaled.mT))
        return target - scale * solved, (scale, lower)

    def posterior(
        self, point: Numbers, factor: tuple[Numbers, ...], prior: Numbers, root: Numbers
    ) -> tuple[Numbers, Numbers]:
        scale, lower = (to_precision_of(part, root) for part in factor)
        cross = self.white @ root.mT
        gain = solve_lower(lower, cross * scale[..., None])
        mean = prior + multiply_vectors(to_precision_of(point, root), cross)
        return mean, root @ root.mT - gain.mT @ gain


def probit_scale(noise: Numbers) -> Numbers:
    """Return the factor by which Gaussian noise of variance ``noise`` flattens a logistic link."""
    return 1 / square_root(1 + math.pi / 8 * noise)
