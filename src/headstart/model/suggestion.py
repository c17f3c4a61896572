"""Choose the observations that would inform most about a feature or a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from headstart.core.likelihood import Likelihood
from headstart.core.predictive import predict_grid
from headstart.core.types import Heads, RowStates, second_moment
from headstart.linalg.packed import affine_form, append_one

_AT_ONCE = 8192  # vectors whose products are computed together, so that they stay in the cache

_NEAR = 16  # candidates that are compared in double precision

_REFRESH = 64  # choices after which the forms are computed anew


@torch.no_grad()
def suggest_rows(
    heads: Heads, states: RowStates, candidates: Tensor, kind: int, n: int, likelihood: Likelihood
) -> list[int]:
    """Choose up to ``n`` of the ``candidates`` (rows of ``states``), best first; see ``information``."""
    chosen, _ = information(heads, states, candidates, kind, n, likelihood)
    return candidates[torch.tensor(chosen, dtype=torch.int64)].tolist()


@torch.no_grad()
def information(
    heads: Heads, states: RowStates, candidates: Tensor, kind: int, n: int, likelihood: Likelihood
) -> tuple[list[int], list[float]]:
    """Choose up to ``n`` of the ``candidates`` (rows of ``states``), best first, with what each adds.

    ``heads`` holds one head, with its covariance. Returned are places among the candidates, and by how much
    each lowers the mean variance over all rows.

    Observing row i changes the head's covariance C to C − C·a·aᵀ·C / (s + aᵀ·C·a), where a is the
    row's activation with a 1 and s its noise, whatever the value is. The row chosen is the one for
    which the mean variance over all rows falls most; then C is changed, and the next one chosen.
    """
    covariance = heads.covariances(states.activation.shape[1] + 1)[0].double()
    usual = second_moment(states)  # the mean variance over all rows is the trace of C·usual
    if 3 * len(candidates) < len(states):
        asked = states.take(candidates)
        noise = _observation_noise(heads, asked, kind, likelihood)
        return greedy_design(_Rows(asked.activation), noise, covariance, usual, n)
    # Most rows are candidates: it is cheaper to pass over the others than to copy.
    barred = torch.ones(len(states), dtype=torch.bool)
    barred[candidates] = False
    noise = _observation_noise(heads, states, kind, likelihood)
    chosen, gains = greedy_design(_Rows(states.activation), noise, covariance, usual, n, barred)
    place = torch.full((len(states),), -1).index_copy_(0, candidates, torch.arange(len(candidates)))
    return place[torch.tensor(chosen, dtype=torch.int64)].tolist(), gains


class Vectors(Protocol):
    """The vectors along which observations see the unknown."""

    def exact(self, places: Tensor) -> Tensor:
        """Some of the vectors, in double precision: (places, size)."""

    def forms(self, part: slice, matrices: list[Tensor]) -> list[Tensor]:
        """aᵀ·M·a of a slice of the vectors, in single precision: one (n,) per matrix."""

    def products(self, part: slice, sides: Tensor) -> list[Tensor]:
        """A slice of the vectors times ``sides`` (k, size), in single precision: k of (n,)."""


class _Rows(Vectors):
    """Rows' activations with a 1, which is never written."""

    def __init__(self, activation: Tensor) -> None:
        self.activation = activation

    def exact(self, places: Tensor) -> Tensor:
        return append_one(self.activation[places].double())

    def forms(self, part: slice, matrices: list[Tensor]) -> list[Tensor]:
        rows = self.activation[part]
        return [affine_form(rows, matrix.to(rows.dtype)) for matrix in matrices]

    def products(self, part: slice, sides: Tensor) -> list[Tensor]:
        sides, rows = sides.to(self.activation.dtype), self.activation[part]
        return [torch.mv(rows, side[:-1]) + side[-1] for side in sides]  # far faster than one thin product


class Weights(Vectors):
    """The weights of heads, as they see a row's activation."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def exact(self, places: Tensor) -> Tensor:
        """Some of the weights, in double precision."""
        return self.weight[places].double()

    def forms(self, part: slice, matrices: list[Tensor]) -> list[Tensor]:
        """wᵀ·M·w of a slice of the weights."""
        some = self.weight[part]
        return [((some @ matrix.to(some.dtype)) * some).sum(1) for matrix in matrices]

    def products(self, part: slice, sides: Tensor) -> list[Tensor]:
        """A slice of the weights times ``sides``."""
        return [torch.mv(self.weight[part], side) for side in sides.to(self.weight.dtype)]


@torch.no_grad()
def greedy_design(
    vectors: Vectors,
    noise: Tensor,
    covariance: Tensor,
    usual: Tensor,
    n: int,
    barred: Tensor | None = None,
) -> tuple[list[int], list[float]]:
    """Choose up to ``n`` observations, each by how far it lowers tr(C·usual) given those before it.

    Observation i sees the unknown, of ``covariance`` C (size, size), along the vector a_i with a noise of
    variance ``noise`` (candidates,). It lowers the trace by aᵀ·C·usual·C·a / (s + aᵀ·C·a). Both forms are
    kept for all candidates in single precision. A choice changes C by rank one and the forms by products
    with two vectors, so that no further matrix product is needed. The leading candidates are compared in
    double precision. None of those in the mask ``barred`` (candidates,) is chosen.
    """
    count = len(noise)
    most = min(n, count if barred is None else count - int(barred.sum()))
    parts = [slice(start, min(start + _AT_ONCE, count)) for start in range(0, count, _AT_ONCE)]
    reduction, uncertain, quiet = noise.new_empty(3, count, dtype=torch.float32)
    quiet.copy_(noise)
    chosen: list[int] = []
    gains: list[float] = []
    while len(chosen) < most:
        if len(chosen) % _REFRESH == 0:  # so that rounding does not add up
            both = [covariance @ usual @ covariance, covariance]
            for part in parts:
                reduction[part], uncertain[part] = vectors.forms(part, both)
            if barred is not None:
                reduction[barred] = -torch.inf
            reduction[chosen] = -torch.inf
        near = torch.topk(reduction / (quiet + uncertain), min(_NEAR, count)).indices
        near = near[reduction[near] > -torch.inf].sort().values
        some = vectors.exact(near)
        products = some @ covariance
        total = noise[near] + (products * some).sum(1)
        exact = ((products @ usual) * products).sum(1) / total
        best = int(exact.argmax())
        chosen.append(int(near[best]))
        reduction[chosen[-1]] = -torch.inf
        gains.append(float(exact[best]))
        gained = products[best]
        sides = torch.stack([gained, covariance @ (usual @ gained)])
        spread = float(gained @ usual @ gained / total[best])
        for part in parts if len(chosen) < most and len(chosen) % _REFRESH else []:
            along, across = vectors.products(part, sides)
            reduction[part] += along * (along * spread - 2 * across) / float(total[best])
            uncertain[part] -= along**2 / float(total[best])
        covariance = covariance - torch.outer(gained, gained) / total[best]
    return chosen, gains


def _observation_noise(heads: Heads, states: RowStates, kind: int, likelihood: Likelihood) -> Tensor:
    """The variance of an observation about the output of one head, at each row: (rows,)."""
    if heads.noise is not None and not bool(likelihood.squashes(torch.tensor(kind))):
        usual = heads.noise.double()
        return usual.expand(len(states)) if states.noise is None else usual * states.noise.double()
    certain, known = replace(heads, covariance=None), replace(states, variance=None)  # neither is needed
    grid = predict_grid(certain, known, torch.tensor([kind]), likelihood)
    return grid.output_noise()[:, 0].contiguous()
