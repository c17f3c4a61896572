"""Fine-tuning of heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from headstart.core.types import Heads


def tune_each(world: Any, start: Heads, epochs: int, learning_rate: float) -> Heads:
    """One feature at a time, with PyTorch's own Adam."""
    tuned = []
    for feature in range(len(start)):
        weight = nn.Parameter(start.weight[feature].detach().clone())
        bias = nn.Parameter(start.bias[feature].detach().clone())
        optimizer = torch.optim.Adam([weight, bias], lr=learning_rate)
        context = world.context(feature)
        for _ in range(epochs if context else 0):
            losses = []
            for row, value in context:
                logit = weight @ world.knowledge.states.activation[row] + bias
                kind = world.batch.kinds[feature]
                losses.append(world.knowledge.likelihood.nll(logit, logit.new_tensor(value), kind))
            optimizer.zero_grad()
            (sum(losses) / len(losses)).backward()
            optimizer.step()
        tuned.append(Heads(weight.detach()[None], bias.detach()[None]))
    return Heads.concatenate(tuned)
