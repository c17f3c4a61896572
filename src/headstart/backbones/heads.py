"""Heads: the features' own parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Heads:
    """A batch of heads θ = (w, b): the prediction for a row is its kind's link of w·d + b."""

    weight: Tensor  # (features, width)
    bias: Tensor  # (features,)

    def __len__(self) -> int:
        return len(self.bias)

    def take(self, features: Tensor) -> Heads:
        """Return the heads at these positions."""
        return Heads(self.weight[features], self.bias[features])

    def detach(self) -> Heads:
        """Return the same numbers, cut off from any gradient."""
        return Heads(self.weight.detach(), self.bias.detach())

    def logits(self, activation: Tensor) -> Tensor:
        """Apply every head to every row's decoder activation: (rows, features)."""
        return torch.addmm(self.bias, activation, self.weight.T)

    @classmethod
    def concatenate(cls, parts: list[Heads]) -> Heads:
        """Join batches of heads into one."""
        return cls(torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts]))
