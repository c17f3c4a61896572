"""Which observations would tell most about a feature, or about a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from headstart.algebra.symmetric import form, with_one
from headstart.core.heads import Heads
from headstart.core.likelihood import Likelihood
from headstart.core.moments import second_moment
from headstart.core.predictive import predict_grid
from headstart.core.states import RowStates

_AT_ONCE = 4096  # vectors that are brought to double precision together, so that they stay in the cache


@torch.no_grad()
def most_telling(
    heads: Heads, states: RowStates, candidates: Tensor, kind: int, n: int, likelihood: Likelihood
) -> list[int]:
    """Choose up to ``n`` of the ``candidates`` (rows of ``states``), best first; see ``telling``."""
    chosen, _ = telling(heads, states, candidates, kind, n, likelihood)
    return candidates[torch.tensor(chosen, dtype=torch.int64)].tolist()


@torch.no_grad()
def telling(
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
    everyone = torch.equal(candidates, torch.arange(len(states)))  # then nothing needs to be copied
    noise = _observation_noise(heads, states if everyone else states.take(candidates), kind, likelihood)
    activation = states.activation if everyone else states.activation.index_select(0, candidates)

    def vectors(part: slice) -> Tensor:
        return with_one(activation[part].double())

    # The mean variance over all rows is the trace of C·usual.
    return greedy(vectors, noise, covariance, second_moment(states), n)


@torch.no_grad()
def greedy(
    vectors: Callable[[slice], Tensor], noise: Tensor, covariance: Tensor, usual: Tensor, n: int
) -> tuple[list[int], list[float]]:
    """Choose up to ``n`` observations, each by how far it lowers tr(C·usual) given those before it.

    Observation i sees the unknown, of ``covariance`` C (size, size), along the vector a_i with a noise of
    variance ``noise`` (candidates,). ``vectors`` gives some of the a_i in double precision. An observation
    lowers the trace by aᵀ·C·usual·C·a / (s + aᵀ·C·a). Both forms are kept for all candidates. A choice
    changes C by rank one and the forms by two products, so that no further matrix product is needed.
    """
    parts = [slice(start, start + _AT_ONCE) for start in range(0, len(noise), _AT_ONCE)]
    told, uncertain = noise.new_empty(2, len(noise))
    for part in parts:
        rows = vectors(part)
        told[part] = form(rows, covariance @ usual @ covariance)
        uncertain[part] = form(rows, covariance)
    chosen: list[int] = []
    gains: list[float] = []
    left = torch.ones(len(noise), dtype=torch.bool)
    for _ in range(min(n, len(noise))):
        gain = torch.where(left, told / (noise + uncertain), -torch.inf)
        best = int(gain.argmax())
        left[best] = False
        chosen.append(best)
        gains.append(float(gain[best]))
        if len(chosen) == n:
            break
        gained = covariance @ vectors(slice(best, best + 1))[0]
        total = noise[best] + uncertain[best]
        both = torch.stack([gained, covariance @ (usual @ gained)], dim=1)
        spread = gained @ usual @ gained
        for part in parts:
            along, across = (vectors(part) @ both).T
            told[part] += along * (along * (spread / total) - 2 * across) / total
            uncertain[part] -= along**2 / total
        covariance = covariance - torch.outer(gained, gained) / total
    return chosen, gains


def _observation_noise(heads: Heads, states: RowStates, kind: int, likelihood: Likelihood) -> Tensor:
    """The variance of an observation about the output of one head, at each row: (rows,)."""
    certain, known = replace(heads, covariance=None), replace(states, variance=None)  # neither is needed
    grid = predict_grid(certain, known, torch.tensor([kind]), likelihood)
    return grid.output_noise()[:, 0].contiguous()
