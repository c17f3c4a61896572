"""Posteriors of heads behind the logistic link, by Laplace's approximation.

As in ``gaussian``, the unknowns are whitened, θ = prior + root·t with t ~ N(0, 1); tensors are batches, and
numpy arrays are one feature.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
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

_BOUNDED_STEPS = 4  # first steps, with the curvature of a bound instead of the Hessian
_MORE_BOUNDED_STEPS = (16, 64, 256)  # the same in further attempts, if Newton's method diverges
_BATCH_STEPS = 12  # steps of a batch
_MAX_STEPS = 30  # steps of a single feature after the bounded ones
_TOLERANCE = 1e-11  # step length at convergence, in standard deviations of the prior
_DIVERGED = 0.1  # step length of a batch that has not converged at its last steps, relative to the point
_MIN_SLOPE = 1e-7  # keeps the curvature positive despite rounding, if all outputs are certain


def condition_logistic(
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

    ``rows`` (features, shots, size) are the activations with a 1, scaled by ``probit_scale`` if rows have
    noise; ``values`` (features, shots) are in [0, 1]; ``weights`` (features, shots) multiply the
    log-likelihoods. The prior has the mean ``prior`` (features, size) and the covariance root·rootᵀ.

    Newton's method finds the mode, which is unique. Far from the mode its steps can diverge: the first steps
    use the curvature of Jaakkola and Jordan's bound, which never overshoot. A batch takes a fixed number of
    steps, and more of the first ones for features whose last steps diverge. A single feature stops at
    convergence, and begins at ``start`` (size,), a head close to the mode, if given. If each of several
    processes has a part of the shots, ``reduce`` adds up gradients and curvatures over processes.
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
    # A Newton step that ends at the mode does not depend on its start, so the last two steps alone
    # give the exact gradient: one for the mean, one for the covariance.
    with torch.no_grad():
        point = _approach_modes(system, torch.zeros_like(begin))
    point, _ = system.step(point, bounded=False)
    point, factor = system.step(point, bounded=False)
    return system.posterior(point, factor, prior, root)


def _approach_modes(system: _Newton, begin: Tensor) -> Tensor:
    """Return points close to the modes of a batch, from ``begin``, but for the last two steps."""
    newton_steps = _BATCH_STEPS - 2 - _BOUNDED_STEPS
    modes, diverged = begin, torch.ones_like(begin[:, :1], dtype=torch.bool)
    for bounded in (_BOUNDED_STEPS, *_MORE_BOUNDED_STEPS):
        before, _ = system.iterate(begin, bounded, bounded + newton_steps - 1)
        point, _ = system.step(before, bounded=False)
        modes = torch.where(diverged, point, modes)
        lengths, sizes = ((part.abs().amax(-1, keepdim=True)) for part in (point - before, point))
        diverged = diverged & ~(lengths <= _DIVERGED * (1 + sizes))
        if not bool(diverged.any()):
            break
    return modes


def _posterior_of_one(
    newton: _NewtonOverHead, start: Array | None, prior: Array, root: Array
) -> tuple[Array, Array]:
    """Converge from ``start`` or, if that fails, from the prior with increasingly many bounded steps."""
    attempts = [(np.zeros_like(prior), bounded) for bounded in (_BOUNDED_STEPS, *_MORE_BOUNDED_STEPS)]
    if start is not None:
        attempts.insert(0, (start, 0))
    for begin, bounded in attempts:
        point, factor = newton.iterate(begin, bounded, bounded + _MAX_STEPS, _TOLERANCE)
        if factor is not None:
            return newton.posterior(point, factor, prior, root)
    raise ArithmeticError("Newton's method does not converge")


class _Newton(ABC):
    """Newton's method for the mode of logistic heads; subclasses solve systems of different size."""

    def __init__(
        self,
        white: Numbers,
        prior_outputs: Numbers,
        values: Numbers,
        weights: Numbers,
        reduce: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Initialise with ``white`` = rows·root and ``prior_outputs`` = rows·prior (features, shots)."""
        self.white, self.prior_outputs, self.values, self.weights = white, prior_outputs, values, weights
        self.reduce = reduce

    @abstractmethod
    def step(self, point: Numbers, *, bounded: bool) -> tuple[Numbers, tuple[Numbers, ...]]:
        """Return the next point, and a factorisation of the curvature at ``point``."""

    @abstractmethod
    def posterior(
        self, point: Numbers, factor: tuple[Numbers, ...], prior: Numbers, root: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Return mean and covariance of heads, given the mode ``point`` and its curvature's ``factor``."""

    def iterate(
        self, point: Numbers, bounded: int, steps: int, tolerance: float | None = None
    ) -> tuple[Numbers, tuple[Numbers, ...] | None]:
        """Take up to ``steps`` steps, the first ``bounded`` of them with the curvature of the bound.

        With a ``tolerance``, stop at convergence after these; without convergence the factor is None.
        """
        last, factor = math.inf, None
        for turn in range(steps):
            before = point
            point, factor = self.step(point, bounded=turn < bounded)
            if tolerance is None:
                continue
            length = float(abs(point - before).max())
            # The factor of a bounded step is that of the bound, whose curvature exceeds the Hessian's.
            if turn >= bounded and length <= tolerance * (1 + float(abs(point).max())):
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
    """Newton steps of t (features, size), with systems of size × size."""

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
    """The same steps for a (features, shots) with t = whiteᵀ·a, and systems of shots × shots.

    With fewer shots than parameters these systems are smaller. With K = white·whiteᵀ, the curvature c,
    B = 1 + √c·K·√c and b = c·K·a + residuals, the next point is a = b − √c·B⁻¹·√c·K·b.
    """

    def __init__(self, white: Numbers, prior_outputs: Numbers, values: Numbers, weights: Numbers) -> None:
        super().__init__(white, to_double(prior_outputs), to_double(values), to_double(weights))
        self.kernel = to_double(white @ white.mT)

    def step(self, point: Numbers, *, bounded: bool) -> tuple[Numbers, tuple[Numbers, ...]]:
        change = multiply_vectors(point, self.kernel)
        residuals, slopes = self.residuals_and_slopes(change, bounded=bounded)
        # Two roots instead of the root of the product, which has no gradient at padding (weight 0).
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
