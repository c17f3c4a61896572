"""The head of a single feature in closed form, for which the batched form would mostly wait for itself."""

from __future__ import annotations

import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from headstart.adapters.closed_form import WIDEST_NOISE, ClosedFormAdapter
from headstart.adapters.logistic import FEWEST_WEIGHT
from headstart.adapters.posterior import TEMPER
from headstart.algebra.small import Array, backward, factor, forward, robust_factor, triangle
from headstart.core.heads import OneHead
from headstart.core.states import OneState
from headstart.table.kinds import KindType
from headstart.table.outliers import LEAST_DEVIATION, tame_one

_BOUNDED_STEPS, _MOST_STEPS = 4, 30
_CLOSE = 1e-11  # steps, in standard deviations of the prior, at which Newton's method has arrived


class OneContext(NamedTuple):
    """What was observed of one feature, and what is known of the rows that observed it."""

    kind: int
    values: Array  # (n,), on the models' scale
    activation: Array  # (n, width)
    noise: Array | None  # (n,)
    variance: Array | None  # (n, width)
    weights: Array | None = None  # (n,): how much each observation counts; None: all alike


class OneSums(NamedTuple):
    """``posterior.ContextSums`` of one feature."""

    shots: float
    total: Array  # (size, size)
    linear: Array  # (size,)
    squares: float


class OnePrior(NamedTuple):
    """What the closed form of one head needs of a frozen adapter, brought to numpy once."""

    roots: Array  # (2, size, size): of the prior's covariance, and of the one without metadata
    shares: Array | None  # (2,): of the two, if the context may doubt metadata
    noise: tuple[float, ...]  # by kind
    mean_squares: Array  # (width,)
    layers: tuple[tuple[Array, Array], ...]  # of the network that tells the noise of a row
    doubt: Array  # (code,)

    @classmethod
    def of(cls, adapter: ClosedFormAdapter) -> OnePrior:
        """That of an adapter whose training has ended; it is kept as long as the adapter."""
        if (known := _KNOWN.get(adapter)) is None:
            known = _KNOWN[adapter] = cls._read(adapter)
        return known

    @classmethod
    @torch.no_grad()
    def _read(cls, adapter: ClosedFormAdapter) -> OnePrior:
        prior = adapter.prior
        share = float(prior.misleading)
        return cls(
            torch.stack([prior.root(torch.float64), prior.plain_root.double()]).numpy(),
            np.array([1 - share, share]) if adapter.doubts_metadata else None,
            tuple(prior.log_noise.exp().tolist()),
            adapter.mean_squares.clamp(min=0).double().numpy(),
            tuple((each.weight.double().numpy(), each.bias.double().numpy())
                  for each in adapter.row_noise if isinstance(each, nn.Linear)),
            adapter.doubt.clamp(min=0).double().numpy(),
        )  # fmt: skip


_KNOWN: WeakKeyDictionary[ClosedFormAdapter, OnePrior] = WeakKeyDictionary()


def refined_one(adapter: ClosedFormAdapter, state: OneState) -> OneState:
    """``ClosedFormAdapter.refine`` of one row."""
    prior = OnePrior.of(adapter)
    hidden = np.append(state.code, state.code_std.mean())
    for place, (weight, bias) in enumerate(prior.layers):
        hidden = weight @ (np.maximum(hidden, 0) if place else hidden) + bias
    noise = math.exp(min(max(float(hidden[0]), -WIDEST_NOISE), WIDEST_NOISE))
    noise *= 1 + float(state.code_std**2 @ prior.doubt)
    return state._replace(noise=noise if state.noise is None else noise * state.noise)


def one_head(
    adapter: ClosedFormAdapter, context: OneContext, means: Array, start: Array | None
) -> tuple[OneHead, OneSums | None]:
    """The head that ``ClosedFormAdapter.adapt`` would give, and the sums it rests on, if there are such.

    ``means`` (2, size) are the prior means with and without metadata; ``start`` (size,) is a head that is
    near, from which Newton's method starts.
    """
    prior, values = OnePrior.of(adapter), context.values
    if context.kind == KindType.REAL:
        extent = adapter.landmarks.extents(torch.from_numpy(context.activation)).numpy()
        values = tame_one(values, extent, LEAST_DEVIATION)
    usual, root = prior.noise[context.kind], prior.roots[0]
    noise = usual if context.noise is None else usual * context.noise
    if context.variance is not None:
        noise = noise + context.variance @ prior.mean_squares
    sums = None
    if context.kind == KindType.BINARY:
        squeezed = _scaled(context.activation, 1 / np.sqrt(1 + math.pi / 8 * noise))
        mean, covariance = classify_one(squeezed, values, means[0], root, start, context.weights)
    else:
        scale, shots = 1 / np.sqrt(np.broadcast_to(noise, values.shape)), float(len(values))
        if context.weights is not None:
            scale, shots = scale * np.sqrt(context.weights), float(context.weights.sum())
        rows, scaled = _scaled(context.activation, scale), scale * values
        sums = OneSums(shots, rows.T @ rows, scaled @ rows, float(scaled @ scaled))
        if prior.shares is None:
            mean, covariance, _ = _conditioned(sums, means[0], root)
        else:
            mean, covariance = mixed_one(sums, means, prior.roots, prior.shares)
    return OneHead(mean[:-1], float(mean[-1]), triangle(covariance), usual), sums


def _scaled(activation: Array, scale: Array) -> Array:
    """[d; 1] of each row, times its scale: (n, size)."""
    rows = np.empty((len(activation), activation.shape[1] + 1))
    np.multiply(activation, scale[:, None], out=rows[:, :-1])
    rows[:, -1] = scale
    return rows


def _conditioned(sums: OneSums, mean: Array, root: Array) -> tuple[Array, Array, float]:
    """Mean and covariance given sums, as ``posterior.posterior_of``, and the logarithm of the evidence."""
    fitted = sums.total @ mean
    white = root.T @ sums.total @ root
    white.flat[:: len(white) + 1] += 1
    lower = robust_factor(white)
    gain = forward(lower, root.T)  # the posterior covariance is gainᵀ·gain
    half = forward(lower, root.T @ (sums.linear - fitted))
    squared = sums.squares - 2 * (sums.linear @ mean) + mean @ fitted
    evidence = -0.5 * float(squared - half @ half) - float(np.log(lower.diagonal()).sum())
    return mean + gain.T @ half, gain.T @ gain, evidence


def mixed_one(sums: OneSums, means: Array, roots: Array, shares: Array) -> tuple[Array, Array]:
    """``posterior.mixed`` of one feature: ``means`` (parts, size), ``roots`` (parts, size, size)."""
    parts = [_conditioned(sums, mean, root) for mean, root in zip(means, roots, strict=True)]
    tempered = np.array([part[2] for part in parts]) * (sums.shots / (sums.shots + TEMPER))
    scores = np.log(shares) + tempered
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    middle = sum(weight * part[0] for weight, part in zip(weights, parts, strict=True))
    covariance = np.zeros_like(sums.total)
    for weight, (mean, own, _) in zip(weights, parts, strict=True):
        apart = mean - middle
        covariance += weight * (own + apart[:, None] * apart)
    return np.asarray(middle), covariance


def classify_one(
    squeezed: Array,
    values: Array,
    prior: Array,
    root: Array,
    start: Array | None,
    weights: Array | None = None,
) -> tuple[Array, Array]:
    """``logistic.classify`` of one feature, until it no longer moves.

    The mode is the only one, so a near ``start`` changes nothing but the number of steps. If Newton's method
    does not arrive from there, it starts anew from the prior, with steps that cannot go too far.
    """
    white, prior_output = squeezed @ root, squeezed @ prior
    begin = np.zeros(len(prior)) if start is None else forward(root, start - prior)
    for bounded, first in ((0, begin), (_BOUNDED_STEPS, np.zeros(len(prior)))):
        found = _mode(white, values, prior_output, first, bounded, 1.0 if weights is None else weights)
        if found is not None:
            break
    else:
        raise ArithmeticError("Newton's method does not arrive")
    mean, lower = found
    gain = forward(lower, root.T)
    return prior + root @ mean, gain.T @ gain


def _mode(
    white: Array, values: Array, prior_output: Array, mean: Array, bounded: int, weights: Array | float
) -> tuple[Array, Array] | None:
    """The mode and the root of the precision there; None if it is not found."""
    last = np.inf
    for turn in range(_MOST_STEPS):
        output = prior_output + white @ mean
        chance = 0.5 * (1 + np.tanh(output / 2))
        if turn < bounded:
            size = np.maximum(np.abs(output), 1e-3)
            slope = np.tanh(size / 2) / (2 * size)
        else:
            slope = chance * (1 - chance)
        scaled = white * np.sqrt(weights * np.maximum(slope, FEWEST_WEIGHT))[:, None]
        precision = scaled.T @ scaled
        precision.flat[:: len(precision) + 1] += 1
        lower = factor(precision)
        half = forward(lower, (weights * (values - chance)) @ white - mean)
        step = backward(lower, half)
        mean = mean + step
        length = float(np.abs(step).max(initial=0.0))
        if length <= _CLOSE * (1 + float(np.abs(mean).max(initial=0.0))):
            return mean, lower
        if turn > bounded and not length < last:  # it goes back and forth, or nowhere
            return None
        last = length
    return None
