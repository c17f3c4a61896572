"""A blend of two heads, beside the mixture written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headstart.core.types import Heads, mix_heads
from headstart.linalg.packed import pack, unpack


def some_heads(width: int, seed: int) -> Heads:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(4, width + 1, width + 1, generator=generator, dtype=torch.float64)
    weight, bias, noise = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((4, width), (4,), (4,))
    )
    return Heads(weight, bias, pack(root @ root.mT), noise.exp())


@pytest.mark.parametrize("fewer", [0, 3, 5])
def test_a_blend_has_the_moments_of_the_mixture(fewer: int) -> None:
    one, other = some_heads(5, 0), some_heads(fewer, 1)
    share = torch.tensor([0.0, 0.3, 0.8, 1.0], dtype=torch.float64)
    found = mix_heads(one, other, share)
    random = np.random.default_rng(0)
    for feature in range(4):
        part, row = float(share[feature]), random.normal(size=5)
        outputs, variances = [], []
        for heads, width in ((one, 5), (other, fewer)):
            matrix = unpack(heads.packed_covariance, width + 1)[feature].numpy()
            read = np.append(row[:width], 1.0)
            outputs.append(float(np.append(heads.weight[feature], heads.bias[feature]) @ read))
            variances.append(float(read @ matrix @ read))
        mean = part * outputs[0] + (1 - part) * outputs[1]
        second = part * (variances[0] + outputs[0] ** 2) + (1 - part) * (variances[1] + outputs[1] ** 2)
        read = np.append(row, 1.0)
        own = unpack(found.packed_covariance, 6)[feature].numpy()
        assert np.append(found.weight[feature], found.bias[feature]) @ read == pytest.approx(mean)
        assert read @ own @ read == pytest.approx(second - mean**2)
    assert torch.allclose(found.noise, share * one.noise + (1 - share) * other.noise)
