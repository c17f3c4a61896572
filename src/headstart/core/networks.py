"""Small networks that backbones and adapters are made of."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def mlp(sizes: list[int], *, last: bool = False) -> nn.Sequential:
    """Linear layers of these sizes with ReLU between them; also after the last one if ``last``."""
    layers: list[nn.Module] = []
    for size, following in pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))
