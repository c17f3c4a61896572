"""The state of a single row, for which the batched form would mostly wait for itself: in numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from headstart.algebra.small import Array, factor, inverted, robust_factor, triangle, unpacked
from headstart.backbones.rows import BINARY_PASSES, NOISE_SHOTS, PASSES
from headstart.core.states import OneState

if TYPE_CHECKING:
    from headstart.backbones.factorisation import Factorisation


class OneRow(NamedTuple):
    """What a row observed, and the heads by which it is read, one for each observation."""

    values: Array  # (n,)
    heads: Array  # (n, latent + 1): the means of (v, b), in double precision
    covariance: Array  # (n, packed), in single precision
    noise: Array  # (n,)
    binary: Array | None = None  # (n,): a mask of binary features; None if there are none
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
    # The passes ask how exact the row is, which two values do not tell, and how sure it is of binary ones.
    passes = BINARY_PASSES if row.binary is not None else 1 if two else PASSES
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
    counted = np.ones(len(row.values)) if row.weights is None else row.weights
    signs = None
    if row.binary is not None:
        signs = np.where(row.binary, counted * (row.values - 0.5), 0.0) @ row.heads
        counted = np.where(row.binary, 0.0, counted)
    weights, count = counted / row.noise, float(counted.sum())
    scale = np.sqrt(weights)
    scaled = row.heads * scale[:, None]
    total, linear = scaled.T @ scaled + _spread(row, weights), (row.values * scale) @ scaled
    squares = float(weights @ row.values**2)
    pull = prior @ mean
    exact, now, spread = 1.0, mean, covariance
    for turn in range(passes):
        if turn and finds_exactness:
            inner, cross = total[:-1, :-1], total[:-1, -1]
            expected = now @ (inner @ now + 2 * cross) + total[-1, -1] + np.vdot(inner, spread)
            errors = max(0.0, float(squares - 2 * (linear[:-1] @ now + linear[-1]) + expected))
            exact = (NOISE_SHOTS + count) / (NOISE_SHOTS + errors)
        precision, towards = exact * total, exact * linear
        if signs is not None:
            bound = _logistic_bound(row, now, spread)
            bounded = row.heads * np.sqrt(bound)[:, None]
            precision += bounded.T @ bounded + _spread(row, bound)
            towards = towards + signs
        spread = inverted(robust_factor(prior + precision[:-1, :-1]))
        now = spread @ (pull + towards[:-1] - precision[:-1, -1])
    return OnePosterior(now, spread, exact)


def _spread(row: OneRow, weights: Array) -> Array:
    """The weighted sum of the heads' covariances: (latent + 1, latent + 1)."""
    return unpacked(weights.astype(row.covariance.dtype) @ row.covariance)


def _logistic_bound(row: OneRow, mean: Array, spread: Array) -> Array:
    """The weights of binary observations as Gaussian ones, as ``Readings.logistic_bound``; 0 of others."""
    one = np.append(mean, 1.0)
    moments = np.outer(one, one)
    moments[:-1, :-1] += spread
    both = triangle(moments + np.tril(moments, -1)).astype(row.covariance.dtype)  # off the diagonal twice
    squared = ((row.heads @ moments) * row.heads).sum(1) + row.covariance @ both
    bound = np.sqrt(np.maximum(squared, 1e-6))
    weights: Array = np.tanh(bound / 2) / (2 * bound) * (0.0 if row.binary is None else row.binary)
    return weights if row.weights is None else weights * row.weights
