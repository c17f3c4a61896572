"""Fine-tuning of heads."""

from __future__ import annotations

from collections.abc import Callable
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


def train_maml(
    weight: torch.Tensor,
    bias: torch.Tensor,
    episodes: list[list[tuple[int, list[tuple[int, float]], list[tuple[int, float]]]]],
    activation: torch.Tensor,
    nll: Callable[..., torch.Tensor],
    *,
    inner_steps: int,
    inner_rate: float,
    outer_rate: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Meta-learn an initialisation (kinds, width), (kinds,): one feature and one observation at a time.

    An episode is a list of features: their kind, and the (row, value) pairs of context and targets. The loss
    of an episode is the mean over features of the mean over their targets, after ``inner_steps`` of Adam on
    the mean over the context.
    """
    weight, bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
    outer = torch.optim.Adam([weight, bias], lr=outer_rate)

    def mean_loss(theta: torch.Tensor, pairs: list[tuple[int, float]], kind: int) -> torch.Tensor:
        losses = [
            nll(theta[:-1] @ activation[row] + theta[-1], theta.new_tensor(value), torch.tensor(kind))
            for row, value in pairs
        ]
        return sum(losses[1:], losses[0]) / len(losses)

    for features in episodes:
        losses = []
        for kind, context, targets in features:
            theta = torch.cat([weight[kind], bias[kind, None]])
            gradients: list[torch.Tensor] = []
            for step in range(1, inner_steps + 1 if context else 1):
                (gradient,) = torch.autograd.grad(mean_loss(theta, context, kind), theta, create_graph=True)
                gradients.append(gradient)
                moved = []
                for number in range(len(theta)):
                    past = torch.stack([each[number] for each in gradients])
                    if bool((past == 0).all()):  # a dead unit
                        moved.append(theta[number])
                        continue
                    age = torch.arange(step - 1, -1, -1).to(past)
                    first = (0.1 * 0.9**age * past).sum() / (1 - 0.9**step)
                    second = (0.001 * 0.999**age * past**2).sum() / (1 - 0.999**step)
                    moved.append(theta[number] - inner_rate * first / (second.sqrt() + 1e-8))
                theta = torch.stack(moved)
            losses.append(mean_loss(theta, targets, kind))
        outer.zero_grad()
        (sum(losses[1:], losses[0]) / len(losses)).backward()
        outer.step()
    return weight.detach(), bias.detach()
