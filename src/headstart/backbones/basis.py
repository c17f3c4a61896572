"""Changes of a factorisation that keep its predictions, or almost: of its basis and of its link."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headstart.algebra.symmetric import pack, positive, unpack
from headstart.table.kinds import KindType

if TYPE_CHECKING:
    from headstart.backbones.factorisation import Factorisation

_CHANCES = 0.02, 0.98  # outputs that are taken for chances of a 1, at the least and at the most


def head_metric(backbone: Factorisation) -> Tensor:
    """What a difference of a row's factors does to predictions, squared: (latent, latent)."""
    moments = unpack(backbone.second_moments().mean(0), backbone.latent + 1)
    return moments[:-1, :-1].double()


def standardise(backbone: Factorisation) -> None:
    """Change the basis of the factors so that variances alone say how well a row is known.

    Then an average row is 0, the rows' prior covariance is the identity, and the heads' mean second
    moment is diagonal.
    """
    size = backbone.latent + 1
    centre = backbone.row_map[0].double().clone()
    root = torch.linalg.cholesky(positive(backbone.row_covariance.double()))
    root = root @ torch.linalg.eigh(root.T @ head_metric(backbone) @ root).eigenvectors.flip(1)
    change = torch.zeros(size, size, dtype=torch.float64)  # old factors = centre + root·new
    change[:-1, :-1], change[-1, :-1], change[-1, -1] = root.T, centre, 1.0
    heads = backbone.stacked_heads().double() @ change.T
    for part in torch.split(torch.arange(len(heads)), 4096):
        spread = change @ unpack(backbone.spread[part].double(), size) @ change.T
        backbone.spread[part] = pack(spread).to(backbone.spread.dtype)
    backbone.weight.copy_(heads[:, :-1])
    backbone.bias.copy_(heads[:, -1])
    moved = backbone.row_map.double()
    moved[0] = 0.0
    backbone.row_map.copy_(torch.linalg.solve(root, moved.T).T)
    backbone.row_covariance.copy_(torch.eye(backbone.latent))


def put_behind_link(backbone: Factorisation) -> None:
    """Turn heads of numbers into heads behind the link, to first order alike at an average row."""
    backbone.kinds = torch.full_like(backbone.kinds, KindType.BINARY)
    output = backbone.weight @ backbone.row_map[0] + backbone.bias
    chance = output.clamp(*_CHANCES)
    slope = chance * (1 - chance)
    backbone.bias.copy_(torch.logit(chance) + (backbone.bias - output) / slope)
    backbone.weight.copy_(backbone.weight / slope[:, None])
    backbone.spread.copy_(backbone.spread / slope[:, None] ** 2)
    backbone.exactness.fill_(1.0)
