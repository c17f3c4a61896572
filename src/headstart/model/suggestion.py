"""Which observations of a feature would tell most about it."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.backbones.heads import Heads
from headstart.backbones.likelihood import Likelihood
from headstart.backbones.protocol import RowStates
from headstart.backbones.symmetric import unpack


@torch.no_grad()
def most_telling(
    heads: Heads, states: RowStates, candidates: Tensor, code: int, n: int, likelihood: Likelihood
) -> list[int]:
    """Choose up to ``n`` of the ``candidates`` (rows of ``states``) for the one head given, best first.

    Observing row i changes the head's covariance C to C − C·a·aᵀ·C / (s + aᵀ·C·a), where a is the
    row's activation with a 1 and s its noise, whatever value is seen. The row chosen is the one for
    which the mean variance over all rows falls most; then C is changed, and the next one chosen.
    """
    if heads.covariance is None or heads.noise is None:
        raise TypeError("this head does not know how sure it is")
    every = states.activation.double()
    every = torch.cat([every, every.new_ones(len(every), 1)], dim=1)
    covariance = unpack(heads.covariance[0].double(), every.shape[1])
    usual = every.T @ every / len(every)  # mean variance over all rows is the trace of C·usual
    rows = every[candidates]
    noise = _noise(heads, states.take(candidates), code, likelihood)
    chosen: list[int] = []
    left = torch.ones(len(candidates), dtype=torch.bool)
    for _ in range(min(n, len(candidates))):
        seen = rows @ covariance
        gain = ((seen @ usual) * seen).sum(1) / (noise + (seen * rows).sum(1))
        best = int(torch.where(left, gain, -torch.inf).argmax())
        left[best] = False
        chosen.append(int(candidates[best]))
        told = seen[best]
        covariance = covariance - torch.outer(told, told) / (noise[best] + told @ rows[best])
    return chosen


def _noise(heads: Heads, states: RowStates, code: int, likelihood: Likelihood) -> Tensor:
    """The variance of an observation about the head's output at each row: (rows,)."""
    noise = torch.ones(len(states), dtype=torch.float64) if states.noise is None else states.noise.double()
    if heads.noise is not None:
        noise = noise * heads.noise.double()
    if not bool(likelihood.squashes(torch.tensor(code))):
        return noise
    # Behind a logistic link an observation is worth the slope there.
    chance = torch.sigmoid(heads.logits(states.activation)[:, 0].double())
    return 1 / (chance * (1 - chance)).clamp(min=1e-4)
