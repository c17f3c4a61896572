"""Choose the observations that would inform most about a feature or a row (A-optimal design).

``most_informative_rows`` chooses rows for a feature, ``most_informative_features`` features for a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.likelihood import Likelihood
from headstart.core.predictive import predict_grid
from headstart.core.types import Heads, RowStates
from headstart.errors import InputError, option_name
from headstart.linalg.packed import affine_quadratic_form, append_one
from headstart.model.features import Feature, FeatureColumns
from headstart.model.levels import category_columns, owner_of
from headstart.model.scores import Candidates, ScoredSlots
from headstart.model.state import ModelState

_HEADS_AT_ONCE = 4096  # heads that are read together

_AT_ONCE = 8192  # vectors whose products are computed together, so that they stay in the cache

_NEAR = 16  # leading candidates that are compared in double precision

_REFRESH = 64  # choices after which the quadratic forms are computed again


@torch.no_grad()
def choose_rows(
    heads: Heads, states: RowStates, candidates: Tensor, kind: int, n: int, likelihood: Likelihood
) -> tuple[list[int], list[float]]:
    """Choose up to ``n`` of the rows ``candidates`` that inform most about one head.

    Observing a row changes the covariance C of the head to C − C·a·aᵀ·C / (s + aᵀ·C·a), where a is the row's
    activation followed by a 1 and s its noise variance; the observed value does not matter. Each choice
    lowers the mean variance over all rows most, given the choices before it.

    Parameters
    ----------
    heads : Heads
        One head, with its covariance.
    states : RowStates
        The states of all rows.
    candidates : Tensor of shape (candidates,)
        Positions in ``states``.
    kind : int
        The kind of the feature.
    n : int
        The number of rows to choose.
    likelihood : Likelihood
        The distribution of values.

    Returns
    -------
    chosen : list of int
        Positions in ``candidates``, best first.
    gains : list of float
        The decrease of the mean variance over all rows by each choice.
    """
    covariance = heads.covariances(states.activation.shape[1] + 1)[0].double()
    moment = states.second_moment  # the mean variance over all rows is tr(C·moment)
    if 3 * len(candidates) < len(states):
        selected = states.take(candidates)
        noise = _noise_at_rows(heads, selected, kind, likelihood)
        return greedy_design(_Activations(selected.activation), noise, covariance, moment, n)
    # Most rows are candidates: excluding the others is cheaper than copying the candidates.
    excluded = torch.ones(len(states), dtype=torch.bool)
    excluded[candidates] = False
    noise = _noise_at_rows(heads, states, kind, likelihood)
    chosen, gains = greedy_design(_Activations(states.activation), noise, covariance, moment, n, excluded)
    positions = torch.full((len(states),), -1).index_copy_(0, candidates, torch.arange(len(candidates)))
    return positions[torch.tensor(chosen, dtype=torch.int64)].tolist(), gains


class Vectors(Protocol):
    """The design vectors a_i: observation i has the mean a_iᵀ·x, where x is the unknown."""

    def exact(self, positions: Tensor) -> Tensor:
        """Return the vectors at these positions in double precision: (positions, size)."""

    def forms(self, part: slice, matrices: list[Tensor]) -> list[Tensor]:
        """Return aᵀ·M·a of a slice of the vectors for each matrix M, in single precision: (n,) each."""

    def products(self, part: slice, sides: Tensor) -> list[Tensor]:
        """Return the products of a slice of the vectors with each side, in single precision: (n,) each."""


class _Activations(Vectors):
    """Activations of rows, the design vectors of a head; each is followed by a 1 that is not stored."""

    def __init__(self, activation: Tensor) -> None:
        self.activation = activation

    def exact(self, positions: Tensor) -> Tensor:
        return append_one(self.activation[positions].double())

    def forms(self, part: slice, matrices: list[Tensor]) -> list[Tensor]:
        rows = self.activation[part]
        return [affine_quadratic_form(rows, matrix.to(rows.dtype)) for matrix in matrices]

    def products(self, part: slice, sides: Tensor) -> list[Tensor]:
        sides, rows = sides.to(self.activation.dtype), self.activation[part]
        return [torch.mv(rows, side[:-1]) + side[-1] for side in sides]  # far faster than one thin product


class HeadWeights(Vectors):
    """Weights of heads, the design vectors of a row's activation."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def exact(self, positions: Tensor) -> Tensor:
        """Return the weights at these positions in double precision."""
        return self.weight[positions].double()

    def forms(self, part: slice, matrices: list[Tensor]) -> list[Tensor]:
        """Return wᵀ·M·w of a slice of the weights for each matrix M."""
        weights = self.weight[part]
        return [((weights @ matrix.to(weights.dtype)) * weights).sum(1) for matrix in matrices]

    def products(self, part: slice, sides: Tensor) -> list[Tensor]:
        """Return the products of a slice of the weights with each of ``sides``."""
        return [torch.mv(self.weight[part], side) for side in sides.to(self.weight.dtype)]


@torch.no_grad()
def greedy_design(
    vectors: Vectors,
    noise: Tensor,
    covariance: Tensor,
    moment: Tensor,
    n: int,
    excluded: Tensor | None = None,
) -> tuple[list[int], list[float]]:
    """Choose up to ``n`` observations greedily; each choice lowers tr(C·moment) most.

    C (size, size) is the covariance of the unknown. An observation with the design vector a and the noise
    variance s lowers the trace by aᵀ·C·moment·C·a / (s + aᵀ·C·a). Both quadratic forms of all candidates are
    stored in single precision. A choice changes C by rank one, and the forms by products with two vectors, so
    that no matrix product is needed. The leading candidates are compared in double precision.

    Parameters
    ----------
    vectors : Vectors
        The design vectors of the candidates.
    noise : Tensor of shape (candidates,)
        The noise variances.
    covariance : Tensor of shape (size, size)
        The covariance of the unknown.
    moment : Tensor of shape (size, size)
        The weights of the trace.
    n : int
        The number of observations to choose.
    excluded : Tensor of shape (candidates,), default=None
        A mask of candidates that must not be chosen.

    Returns
    -------
    chosen : list of int
        The candidates, best first.
    gains : list of float
        The decrease of the trace by each choice.
    """
    # A power of two as the unit of variances, which changes no digit: the forms are squares of variances and
    # would leave the range of single precision.
    unit = 2.0 ** math.frexp(float(covariance.diagonal().max()))[1]
    covariance, noise = covariance / unit, noise / unit
    count = len(noise)
    most = min(n, count if excluded is None else count - int(excluded.sum()))
    parts = [slice(start, min(start + _AT_ONCE, count)) for start in range(0, count, _AT_ONCE)]
    # aᵀ·C·moment·C·a, aᵀ·C·a and the noise of all candidates, in single precision.
    reduction, variance, single_noise = noise.new_empty(3, count, dtype=torch.float32)
    single_noise.copy_(noise)
    chosen: list[int] = []
    gains: list[float] = []
    while len(chosen) < most:
        if len(chosen) % _REFRESH == 0:  # so that rounding errors do not accumulate
            matrices = [covariance @ moment @ covariance, covariance]
            for part in parts:
                reduction[part], variance[part] = vectors.forms(part, matrices)
            if excluded is not None:
                reduction[excluded] = -torch.inf
            reduction[chosen] = -torch.inf
        near = torch.topk(reduction / (single_noise + variance), min(_NEAR, count)).indices
        near = near[reduction[near] > -torch.inf].sort().values
        leading = vectors.exact(near)
        products = leading @ covariance
        total = noise[near] + (products * leading).sum(1)
        exact = ((products @ moment) * products).sum(1) / total
        best = int(exact.argmax())
        chosen.append(int(near[best]))
        reduction[chosen[-1]] = -torch.inf
        gains.append(float(exact[best]))
        direction = products[best]  # C·a of the choice
        sides = torch.stack([direction, covariance @ (moment @ direction)])
        curvature = float(direction @ moment @ direction / total[best])
        for part in parts if len(chosen) < most and len(chosen) % _REFRESH else []:
            along, across = vectors.products(part, sides)
            reduction[part] += along * (along * curvature - 2 * across) / float(total[best])
            variance[part] -= along**2 / float(total[best])
        covariance = covariance - torch.outer(direction, direction) / total[best]
    return chosen, [gain * unit for gain in gains]


def _noise_at_rows(heads: Heads, states: RowStates, kind: int, likelihood: Likelihood) -> Tensor:
    """Return the variance of an observation given the output of one head, at each row: (rows,)."""
    if heads.noise is not None and not bool(likelihood.squashes(torch.tensor(kind))):
        noise = heads.noise.double()
        return noise.expand(len(states)) if states.noise is None else noise * states.noise.double()
    certain, known = replace(heads, covariance=None), replace(states, variance=None)  # neither is used
    grid = predict_grid(certain, known, torch.tensor([kind]), likelihood)
    return grid.output_noise()[:, 0].contiguous()


def most_informative_features(
    model: ModelState,
    columns: FeatureColumns,
    slots: NDArray[np.int64],
    states: RowStates,
    n: int,
    excluded: Sequence[NDArray[np.int64]],
) -> list[ScoredSlots]:
    """Return, for each row, the slots of the features that would inform most about it, and their gains.

    This is the A-optimal design of ``suggest`` with rows and features exchanged. The unknown is the row's
    activation, with the variance that the backbone gives; the uncertainty of heads counts as noise.
    """
    if states.variance is None:
        raise InputError(
            f"{option_name('by', 'information')} needs a backbone that knows how sure it is of rows; "
            f"fit with {option_name('backbone', 'factorisation')}"
        )
    moment = _second_moment_of_weights(model, columns.used_slots)
    chosen = []
    for line, observed in enumerate(excluded):
        unobserved = np.setdiff1d(slots, observed)
        candidates = torch.from_numpy(unobserved[np.argsort(columns.positions[unobserved], kind="stable")])
        state = states.take(slice(line, line + 1))
        noise = _noise_of_features(model, columns, candidates, state)
        covariance = torch.diag(state.variance[0].double())  # type: ignore[index]
        weights = HeadWeights(model.feature_store.heads_at(candidates).weight)
        most = n * columns.most_levels  # of a category, the most informative level counts
        best, gains = greedy_design(weights, noise, covariance, moment, most)
        owners = [owner_of(cast(Feature, columns.features[slot])) for slot in candidates.numpy()[best]]
        first = [i for i, owner in enumerate(owners) if owner not in owners[:i]][:n]
        chosen.append((candidates.numpy()[best][first], np.array(gains)[first]))
    return chosen


def _second_moment_of_weights(model: ModelState, slots: NDArray[np.int64]) -> Tensor:
    """Return M, the mean of w·wᵀ over features; tr(C·M) is the mean variance if activations vary by C."""
    blocks = torch.split(torch.from_numpy(slots), _HEADS_AT_ONCE)
    weights = [model.feature_store.heads_at(block).weight.double() for block in blocks]
    return sum(weight.T @ weight for weight in weights) / max(1, len(slots))  # type: ignore[return-value]


def _noise_of_features(model: ModelState, columns: FeatureColumns, slots: Tensor, state: RowStates) -> Tensor:
    """Return the variance of one row's observation of each feature given its activation: (features,)."""
    certain = replace(state, variance=None)
    noise = [torch.zeros(0, dtype=torch.float64)]
    for part in torch.split(slots, _HEADS_AT_ONCE):
        candidates = Candidates.at(model, columns, part)
        grid = predict_grid(candidates.heads, certain, candidates.modelled, model.knowledge.likelihood)
        noise.append((grid.output_noise() + grid.variance)[0])
    return torch.cat(noise)


def most_uncertain_level(model: ModelState, feature: object) -> object:
    """Return the column of a category whose values vary most so far; any other feature unchanged."""
    columns = category_columns(model, feature)
    if not columns:
        return feature
    shares = [
        (f.values.sum() + 0.5) / (len(f.values) + 1) for f in map(model.feature_store.get, columns) if f
    ]
    return columns[int(np.argmax([share * (1 - share) for share in shares]))]


def most_informative_rows(
    model: ModelState, heads: Heads, feature: Feature, candidates: NDArray[np.int64], n: int, what: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the positions of the rows that inform most about a feature, and the gain of each."""
    if not model.adapter.gives_uncertainty:
        raise InputError(
            f"{what} needs an adapter that knows how sure it is; fit with {option_name('adapter', 'bayes')}"
        )
    kind, likelihood = int(model.kinds_of([feature])), model.knowledge.likelihood
    chosen, gains = choose_rows(heads, model.states, torch.from_numpy(candidates), kind, n, likelihood)
    return candidates[chosen], np.array(gains)
