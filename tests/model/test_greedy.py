"""Greedy choices with kept forms: against computing everything anew at each choice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headstart.model.suggestion import Weights, greedy_design

SIZE = 5


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_bars", [False, True])
def test_many_choices_are_those_of_computing_all_anew(seed: int, with_bars: bool) -> None:
    """More choices than forms are kept for without being computed anew."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(150, SIZE)).astype(np.float32)
    noise = random.uniform(0.5, 2, 150)
    some = random.normal(size=(2, SIZE, SIZE))
    start, usual = some @ some.transpose(0, 2, 1)
    barred = random.random(150) < 0.3 if with_bars else np.zeros(150, dtype=bool)

    covariance, left, chosen, gains = start.copy(), ~barred, [], []
    exact = vectors.astype(float)
    for _ in range(int(left.sum())):
        products = exact @ covariance
        gain = ((products @ usual) * products).sum(1) / (noise + (products * exact).sum(1))
        best = int(np.where(left, gain, -np.inf).argmax())
        chosen.append(best)
        gains.append(gain[best])
        left[best] = False
        step = products[best]
        covariance = covariance - np.outer(step, step) / (noise[best] + step @ exact[best])

    mask = torch.from_numpy(barred) if with_bars else None
    given = Weights(torch.from_numpy(vectors)), torch.from_numpy(noise), torch.from_numpy(start)
    found, told = greedy_design(*given, torch.from_numpy(usual), 999, mask)
    assert found == chosen
    np.testing.assert_allclose(told, gains, rtol=1e-9)
    few, _ = greedy_design(*given, torch.from_numpy(usual), 3, mask)
    assert few == chosen[:3]


def test_there_may_be_nothing_to_choose() -> None:
    eye = torch.eye(SIZE, dtype=torch.float64)
    none = torch.zeros(0, dtype=torch.float64)
    assert greedy_design(Weights(torch.zeros(0, SIZE)), none, eye, eye, 3) == ([], [])
    barred = torch.ones(4, dtype=torch.bool)
    assert greedy_design(Weights(torch.ones(4, SIZE)), torch.ones(4).double(), eye, eye, 3, barred) == (
        [],
        [],
    )
