"""The state of a single row, for which the batched form would mostly wait for itself: in numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from headstart.algebra.small import Array, factor, inverted, robust_factor, triangle, unpacked
from headstart.backbones.rows import BELIEVED, MORE_PASSES, NOISE_SHOTS, PASSES
from headstart.core.states import OneState
from headstart.table.kinds import KindType

if TYPE_CHECKING:
    from headstart.backbones.factorisation import Factorisation


class OneRow(NamedTuple):
    """What a row observed, and the heads by which it is read, one for each observation."""

    values: Array  # (n,)
    heads: Array  # (n, latent + 1): the means of (v, b), in double precision
    covariance: Array  # (n, packed), in single precision
    noise: Array  # (n,)
    kinds: Array  # (n,): of the features
    weights: Array | None = None  # (n,): how much each observation counts; None: all alike


class OnePosterior(NamedTuple):
    """The Gaussian posterior of a row's factors, and how exact its observations are."""

    mean: Array  # (latent,)
    covariance: Array  # (latent, latent)
    exactness: float


def one_state(
    backbone: Factorisation, row: OneRow, known: Array, belief: tuple[Array, Array] | None = None
) -> OneState:
    """The state of one row, as ``Factorisation.states_by`` gives it.

    ``known`` are the positions of the backbone's own features that the row observed; ``belief`` is the shift
    and the covariance of a ``RowBelief``.
    """
    signature = backbone.signature.of_one(known)
    mean = signature @ backbone.row_map.numpy()
    covariance = backbone.row_covariance.numpy()
    if belief is not None:
        mean, covariance = mean + belief[0], belief[1]
    two = backbone.has_two_values
    # The passes ask how exact ratings are, which two values do not tell, and how far to believe the others.
    passes = MORE_PASSES if (row.kinds != KindType.RATING).any() else 1 if two else PASSES
    prior = _own_precision(backbone) if belief is None else _precision(covariance)
    found = one_row_posterior(row, mean, prior, covariance, passes, finds_exactness=not two)
    variance = found.covariance.diagonal()
    std = np.sqrt(variance)
    certainty = np.array([np.log(found.exactness), 1 - 2 * std.mean()])
    code = np.concatenate([found.mean, certainty, signature[1:]])
    code_std = np.zeros(len(code))
    code_std[: len(std)] = std
    if not backbone.config.uncertain_rows:
        return OneState(code, code_std, found.mean)
    return OneState(code, code_std, found.mean, 1 / found.exactness, variance)


_KNOWN: WeakKeyDictionary[Factorisation, tuple[int, Array]] = WeakKeyDictionary()


def _own_precision(backbone: Factorisation) -> Array:
    """The precision of the rows' prior, kept until the covariance changes."""
    version = backbone.row_covariance._version
    known = _KNOWN.get(backbone)
    if known is None or known[0] != version:
        known = _KNOWN[backbone] = (version, _precision(backbone.row_covariance.numpy()))
    return known[1]


def _precision(covariance: Array) -> Array:
    """The precision of a covariance, as ``symmetric.inverse``."""
    exact = covariance.astype(np.float64)
    diagonal = exact.diagonal()
    raised = 1e-6 * (diagonal + diagonal.mean()) + 1e-12
    return inverted(factor(exact + np.diag(raised)))


def one_row_posterior(
    row: OneRow, mean: Array, prior: Array, covariance: Array, passes: int, *, finds_exactness: bool = True
) -> OnePosterior:
    """The same fixed point as of many rows (``Factorisation.posterior_from``), in double precision.

    ``mean`` (latent,) and ``covariance`` are those of the prior, ``prior`` is its precision.
    """
    rated = row.kinds == KindType.RATING
    others = not rated.all()
    counted = rated.astype(np.float64) if row.weights is None else rated * row.weights
    weights, count = counted / row.noise, float(counted.sum())
    scale = np.sqrt(weights)
    scaled = row.heads * scale[:, None]
    total, linear = scaled.T @ scaled + _spread(row, weights), (row.values * scale) @ scaled
    squares = float(weights @ row.values**2)
    pull = prior @ mean
    exact, now, spread = 1.0, mean, covariance
    for turn in range(passes):
        if turn and finds_exactness and count:
            inner, cross = total[:-1, :-1], total[:-1, -1]
            expected = now @ (inner @ now + 2 * cross) + total[-1, -1] + np.vdot(inner, spread)
            errors = max(0.0, float(squares - 2 * (linear[:-1] @ now + linear[-1]) + expected))
            exact = (NOISE_SHOTS + count) / (NOISE_SHOTS + errors)
        precision, towards = exact * total, exact * linear
        if others:
            own, values = _weighted(row, now, spread, new=turn == 0)
            bounded = row.heads * np.sqrt(own)[:, None]
            precision += bounded.T @ bounded + _spread(row, own)
            towards = towards + values @ row.heads
        spread = inverted(robust_factor(prior + precision[:-1, :-1]))
        now = spread @ (pull + towards[:-1] - precision[:-1, -1])
    return OnePosterior(now, spread, exact)


def _spread(row: OneRow, weights: Array) -> Array:
    """The weighted sum of the heads' covariances: (latent + 1, latent + 1)."""
    return unpacked(weights.astype(row.covariance.dtype) @ row.covariance)


def _weighted(row: OneRow, mean: Array, spread: Array, *, new: bool) -> tuple[Array, Array]:
    """Observations that are no ratings as Gaussian ones, as ``Readings.weighted``: two of (n,)."""
    one = np.append(mean, 1.0)
    moments = np.outer(one, one)
    moments[:-1, :-1] += spread
    both = triangle(moments + np.tril(moments, -1)).astype(row.covariance.dtype)  # off the diagonal twice
    output = row.heads @ one
    second = ((row.heads @ moments) * row.heads).sum(1) + row.covariance @ both
    bound = np.sqrt(np.maximum(second, 1e-6))
    doubt, squared = np.maximum(second - output**2, 0), (row.values - output) ** 2
    squared = squared / (row.noise + doubt) if new else (squared + doubt) / row.noise
    binary, real = row.kinds == KindType.BINARY, row.kinds == KindType.REAL
    believed = BELIEVED / np.maximum(squared, BELIEVED) / row.noise
    weights = np.where(real, believed, binary * np.tanh(bound / 2) / (2 * bound))
    values = np.where(real, believed * row.values, binary * (row.values - 0.5))
    return (weights, values) if row.weights is None else (weights * row.weights, values * row.weights)
