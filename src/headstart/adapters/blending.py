"""Two heads of a feature as one: a head has a mean and a covariance, and so has a mixture of heads."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.algebra.symmetric import pack, squares, unpack
from headstart.core.heads import Heads


def blended(heads: Heads, other: Heads, share: Tensor) -> Heads:
    """The mean and covariance of a mixture: ``share`` (features,) of the first heads, the rest of the other.

    The other heads may read fewer activations, the first ones of those that ``heads`` read. The covariance
    holds what both say of themselves and how far they are apart, so that a blend of predictions is the
    prediction of the blend.
    """
    other, part = widened(other, heads.weight.shape[1]), share[:, None]
    apart = torch.cat([heads.weight - other.weight, (heads.bias - other.bias)[:, None]], dim=1)
    covariance = torch.lerp(other.packed_covariance, heads.packed_covariance, part)
    covariance = covariance + part * (1 - part) * squares(apart)
    noise = None
    if heads.noise is not None and other.noise is not None:
        noise = torch.lerp(other.noise, heads.noise, share)
    weight = torch.lerp(other.weight, heads.weight, part)
    return Heads(weight, torch.lerp(other.bias, heads.bias, share), covariance, noise)


def widened(heads: Heads, width: int) -> Heads:
    """The same heads over ``width`` activations, of which they read the first ones."""
    plain = heads.plain(width)
    covariance = plain.weight.new_zeros(len(plain), (width + 1) * (width + 2) // 2)
    covariance[:, _places(heads.weight.shape[1], width)] = heads.packed_covariance
    return Heads(plain.weight, plain.bias, covariance, heads.noise)


def narrowed(packed: Tensor, fewer: int, width: int) -> Tensor:
    """Of packed matrices over ``width`` activations and a bias, those over ``fewer`` of them and the bias."""
    return packed.index_select(-1, _places(fewer, width))


def _places(fewer: int, width: int) -> Tensor:
    """Where the entries of a smaller packed matrix lie in a larger one, whose last line is the bias too."""
    every = unpack(torch.arange((width + 1) * (width + 2) // 2), width + 1)
    kept = torch.cat([torch.arange(fewer), torch.tensor([width])])
    return pack(every[kept][:, kept])
