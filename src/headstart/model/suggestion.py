"""Which observations of a feature would tell most about it."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.core.heads import Heads
from headstart.core.likelihood import Likelihood
from headstart.core.predictive import predict_grid
from headstart.core.states import RowStates


@torch.no_grad()
def most_telling(
    heads: Heads, states: RowStates, candidates: Tensor, kind: int, n: int, likelihood: Likelihood
) -> list[int]:
    """Choose up to ``n`` of the ``candidates`` (rows of ``states``), best first.

    ``heads`` holds one head, with its covariance.

    Observing row i changes the head's covariance C to C − C·a·aᵀ·C / (s + aᵀ·C·a), where a is the
    row's activation with a 1 and s its noise, whatever the value is. The row chosen is the one for
    which the mean variance over all rows falls most; then C is changed, and the next one chosen.
    """
    every = states.activation.double()
    every = torch.cat([every, every.new_ones(len(every), 1)], dim=1)
    covariance = heads.covariances(every.shape[1])[0].double()
    usual = every.T @ every / len(every)  # mean variance over all rows is the trace of C·usual
    rows = every[candidates]
    noise = predict_grid(heads, states.take(candidates), torch.tensor([kind]), likelihood).output_noise()[
        :, 0
    ]
    chosen: list[int] = []
    left = torch.ones(len(candidates), dtype=torch.bool)
    for _ in range(min(n, len(candidates))):
        products = rows @ covariance
        gain = ((products @ usual) * products).sum(1) / (noise + (products * rows).sum(1))
        best = int(torch.where(left, gain, -torch.inf).argmax())
        left[best] = False
        chosen.append(int(candidates[best]))
        gained = products[best]
        covariance = covariance - torch.outer(gained, gained) / (noise[best] + gained @ rows[best])
    return chosen
